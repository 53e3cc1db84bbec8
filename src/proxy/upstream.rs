//! Which server is asked, and what it is told of the client.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{self, HeaderName, HeaderValue};
use pingora::http::RequestHeader;
use pingora::prelude::HttpPeer;
use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;

use super::{Context, MAX_TRIES, Tollgate};
use crate::policy::Facts;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id of a trusted peer that is passed on.
const MAX_REQUEST_ID: usize = 128;

/// A server of the route's origin that is well and was not found dead for this request. (One whose
/// kept connection had gone may be asked again: that says nothing of the server.)
pub(super) fn choose(
    gate: &Tollgate,
    session: &Session,
    ctx: &mut Context,
) -> Result<Box<HttpPeer>> {
    let live = Arc::clone(&ctx.live);
    let route = ctx.decision.as_ref().and_then(|decision| decision.route);
    let Some(route) = route.map(|route| live.generation.policy().route(route)) else {
        return Error::e_explain(
            ErrorType::InternalError,
            "a request without a route was let through",
        );
    };
    let origin = &live.origins[route.origin];
    let head = session.req_header();
    let facts = Facts {
        client_ip: ctx.client_ip.unwrap_or(IpAddr::from([0, 0, 0, 0])),
        peer_trusted: ctx.peer_trusted,
        now: ctx.decision.as_ref().map(|one| one.at.wall).unwrap_or_default(),
        method: head.method.as_str(),
        host: &ctx.host,
        path: ctx.rewritten.as_deref().map_or(head.uri.path(), |target| {
            target.split_once('?').map_or(target, |(path, _)| path)
        }),
        readings: &[],
        query: head.uri.query(),
        headers: &head.headers,
        ipv6_prefix: live.ipv6_prefix,
    };
    ctx.origin = Some(Arc::clone(origin));
    let Some(server) = origin.choose(&facts, route, &ctx.tried) else {
        let why = format!("origin {} has no healthy server", origin.meant().name);
        return Err(Error::explain(ErrorType::HTTPStatus(503), why).into_up());
    };
    ctx.asked = Some(server);
    if ctx.origin_asked.is_none() {
        ctx.origin_asked = Some(gate.engine.now().mono);
    }
    Ok(Box::new(origin.peer(server)))
}

/// A connection that could not be made is tried at another server; the request has not been sent.
pub(super) fn try_another(ctx: &mut Context, mut error: Box<Error>) -> Box<Error> {
    ctx.tried.extend(ctx.asked.take());
    let others = ctx.origin.as_ref().is_some_and(|origin| origin.health().1 > ctx.tried.len());
    error.set_retry(others && ctx.tried.len() < MAX_TRIES);
    error
}

/// A request that got no answer over a connection that had been kept may have met its end: it is
/// sent once more if it only reads. A write is sent once, or the origin would see more of them than
/// were charged.
pub(super) fn send_again(
    session: &Session,
    ctx: &mut Context,
    mut error: Box<Error>,
    kept: bool,
) -> Box<Error> {
    let reads = session.req_header().method.is_safe() && !session.as_ref().retry_buffer_truncated();
    if reads && !ctx.sent_again {
        error.retry.decide_reuse(kept);
        ctx.sent_again = error.retry();
    } else {
        error.set_retry(false);
    }
    error
}

/// `X-Forwarded-For/-Proto/-Host` replace what an untrusted peer says and append to what a trusted
/// one says; `X-Request-Id` is a trusted peer's or a new one.
pub(super) fn introduce(
    session: &Session,
    request: &mut RequestHeader,
    ctx: &mut Context,
) -> Result<()> {
    if let Some(target) = &ctx.rewritten {
        request.set_raw_path(target.as_bytes())?;
    }
    if request.headers.get_all(header::UPGRADE).iter().any(is_to_http) {
        // Requests inside another HTTP would pass unjudged; who asks may be answered in this one.
        request.remove_header(&header::UPGRADE);
        request.remove_header(&header::CONNECTION);
    }
    request.remove_header(&HTTP2_SETTINGS);
    let peer = session.client_addr().and_then(|address| address.as_inet());
    let peer = peer.map(|peer| crate::policy::client::unmapped(peer.ip()).to_string());
    let peer = peer.unwrap_or_default();
    let chain = if ctx.peer_trusted { joined(request, &X_FORWARDED_FOR) } else { None };
    request.insert_header(
        X_FORWARDED_FOR,
        chain.map_or_else(|| peer.clone(), |chain| format!("{chain}, {peer}")),
    )?;
    if !(ctx.peer_trusted && request.headers.contains_key(&X_FORWARDED_PROTO)) {
        let tls = session.digest().is_some_and(|digest| digest.ssl_digest.is_some());
        request.insert_header(X_FORWARDED_PROTO, if tls { "https" } else { "http" })?;
    }
    if !(ctx.peer_trusted && request.headers.contains_key(&X_FORWARDED_HOST)) {
        request.insert_header(X_FORWARDED_HOST, &*ctx.host)?;
    }
    if !ctx.peer_trusted {
        // It says what X-Forwarded-* say; a forged one must not stand beside ours.
        request.remove_header(&header::FORWARDED);
    }
    let id = request_id(session, ctx);
    request.insert_header(X_REQUEST_ID, &*id)?;
    ctx.request_id = Some(id);
    if let Some(host) = ctx.origin.as_ref().and_then(|origin| origin.meant().host.as_deref()) {
        request.insert_header(header::HOST, host)?;
    }
    Ok(())
}

/// Whether a field `Upgrade` names another version of HTTP, or TLS with HTTP inside.
fn is_to_http(line: &HeaderValue) -> bool {
    line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii).any(|protocol| {
        let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
        [&b"h2c"[..], b"h2", b"http", b"tls"].iter().any(|http| name.eq_ignore_ascii_case(http))
    })
}

/// The request's id: that of a trusted peer if it is a plain one, else 128 random bits. Made once.
pub(super) fn request_id(session: &Session, ctx: &Context) -> Box<str> {
    if let Some(id) = &ctx.request_id {
        return id.clone();
    }
    let given = session.get_header(X_REQUEST_ID).and_then(|id| id.to_str().ok());
    let plain = |id: &&str| {
        !id.is_empty() && id.len() <= MAX_REQUEST_ID && id.bytes().all(|b| b.is_ascii_graphic())
    };
    match given.filter(|_| ctx.peer_trusted).filter(plain) {
        Some(id) => id.into(),
        None => new_request_id(),
    }
}

/// 128 random bits.
pub(super) fn new_request_id() -> Box<str> {
    format!("{:032x}", fastrand::u128(..)).into()
}

/// All lines of a field as one list.
fn joined(request: &RequestHeader, name: &HeaderName) -> Option<String> {
    let lines = request.headers.get_all(name).iter();
    let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    if lines.is_empty() { None } else { Some(lines.join(", ")) }
}
