//! Before a request is forwarded: the choice of a server, and the fields that tell it about the client.
//!
//! A server is chosen only after memory and a slot of the origin are available. What must always hold: an origin never
//! receives a write twice for one charge. Only a request that reads is sent again, once.
//!
//! How a server failed is recorded where the framework reports it, so that other requests ask other servers.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{self, HeaderName, HeaderValue};
use pingora::http::RequestHeader;
use pingora::prelude::HttpPeer;
use pingora::{Error, ErrorType, Result, RetryType};
use pingora_proxy::Session;

use super::context::{Context, Tollgate};
use super::origins::{Attempt, ServerFailure, SlotUse};
use super::request_id::RequestId;
use super::{http10, origin_wait, request, tunnel};
use crate::clock::Nanos;
use crate::config::RouteEdits;
use crate::edge::{
    ConnectionState, EXCHANGE_BYTES, MAX_BODY_BYTES, MAX_RESPONSE_BYTES, ShedReason,
};
use crate::http::{UncommonFields, edit_request, forwarded_host, forwarded_scheme};
use crate::policy::{ConditionResults, Facts, Route, client};

// For lookups. The fields are written by their texts, which keeps their case over HTTP/1.
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// The largest number of servers that one request tries to connect to.
const MAX_TRIES: usize = 3;

/// Chooses a healthy server of the route's origin that was not found dead for this request. A server whose kept
/// connection had gone may be asked again, since that says nothing about the server.
pub(super) fn choose(
    proxy: &Tollgate,
    session: &mut Session,
    ctx: &mut Context,
) -> Result<Box<HttpPeer>> {
    // A body that is with the client may never come. What tries a server that was left out must not depend on that.
    let reads = session.req_header().method.is_safe() && session.is_body_done();
    let live = &*ctx.live;
    let route = ctx.decision.as_ref().and_then(|decision| decision.route);
    let Some(route) = route.map(|route| live.generation.policy().route(route)) else {
        return Error::e_explain(
            ErrorType::InternalError,
            "a request without a route was let through",
        );
    };
    let origin = &live.origins[route.origin];
    let head = session.req_header();
    // The fields of the request may have been edited since it was judged.
    let conditions = ConditionResults::default();
    let facts = Facts {
        client: ctx.client(),
        connection: ConnectionState::facts_of(session),
        now: ctx.date,
        method: head.method.as_str(),
        host: &ctx.host,
        path: ctx.rewritten.as_deref().map_or(head.uri.path(), |target| {
            target.split_once('?').map_or(target, |(path, _)| path)
        }),
        readings: &[],
        query: head.uri.query(),
        headers: &head.headers,
        conditions: Some(&conditions),
    };
    ctx.origin = Some(Arc::clone(origin));
    if ctx.origin_slot.is_none() {
        let client = facts.client.prefix();
        if !has_memory(proxy, client, live.bounds().memory) {
            (ctx.shed, ctx.is_unforwarded) = (Some(ShedReason::Memory), true);
            proxy.counters.record_shed(ShedReason::Memory);
            return Err(Error::explain(ErrorType::HTTPStatus(503), "no memory is left").into_up());
        }
        let max = origin.config().max_connections;
        let slot_use = match tunnel::is_asked_for(session, ctx) {
            true => SlotUse::Tunnel,
            false => SlotUse::Exchange,
        };
        ctx.origin_slot = origin.counters().slots.take(client, slot_use, max, &proxy.origin_slots);
        if ctx.origin_slot.is_none() {
            (ctx.shed, ctx.is_unforwarded) = (Some(ShedReason::OriginConnections), true);
            proxy.counters.record_shed(ShedReason::OriginConnections);
            let why =
                format!("origin {} has no connection left for this client", origin.config().name);
            return Err(Error::explain(ErrorType::HTTPStatus(503), why).into_up());
        }
        ctx.held.get_or_insert_with(|| request::hold_memory(proxy, session));
    }
    let now = match ctx.origin_asked {
        // A connection that fails may have taken its time.
        Some(_) => proxy.engine.now().mono,
        None => {
            // A decision that waited for nothing was made just now, so the clock need not be read again.
            let waited = ctx.decision.as_ref().is_none_or(|decision| decision.wait() > Nanos::ZERO);
            let just_now = !waited && proxy.engine.remote().is_none();
            if just_now { ctx.began.mono } else { proxy.engine.now().mono }
        }
    };
    let attempt = Attempt { tried: &ctx.tried, reads, now };
    let Some(chosen) = origin.choose(&facts, route, attempt) else {
        ctx.is_unforwarded = ctx.attempts == 0;
        let why = format!("origin {} has no healthy server", origin.config().name);
        return Err(Error::explain(ErrorType::HTTPStatus(503), why).into_up());
    };
    ctx.origin_asked.get_or_insert(now);
    ctx.asked = Some(chosen.address);
    ctx.in_flight = chosen.in_flight;
    ctx.attempts += 1;
    if ctx.retries() > 0 {
        origin.counters().record_retry();
    }
    let mut peer = Box::new(origin.peer(chosen.address));
    origin_wait::prepare(session, ctx, &mut peer);
    Ok(peer)
}

/// Whether there is memory for one more exchange of a client. When half of the budget is used, the exchanges of one
/// client may fill a quarter of it, so a client that stalls all of its own leaves the rest to others.
fn has_memory(proxy: &Tollgate, client: IpAddr, budget: usize) -> bool {
    let used = proxy.memory.total();
    if used <= budget / 2 {
        return true;
    }
    let largest = EXCHANGE_BYTES + MAX_BODY_BYTES.max(MAX_RESPONSE_BYTES);
    used <= budget && proxy.origin_slots.held_by(client) < (budget / 4 / largest).max(1)
}

/// Allows another server after a failed connection, before the request was sent.
pub(super) fn try_another(ctx: &mut Context, mut error: Box<Error>) -> Box<Error> {
    if says_server_is_down(error.etype()) {
        // A server with a full queue of connections does not answer in time, and requests may have filled it.
        let is_late = *error.etype() == ErrorType::ConnectTimedout;
        let failure = if is_late { ServerFailure::Answer } else { ServerFailure::Connection };
        record_failure(ctx, failure);
    }
    let others = leave_server(ctx);
    error.set_retry(others);
    error
}

/// Allows a request that only reads to be sent once more when a connection ended without an answer. A kept connection may
/// have ended just then, which says nothing about its server. After a new one another server is asked. A write is sent
/// once, or the origin would see more writes than were charged.
pub(super) fn send_again(
    session: &mut Session,
    ctx: &mut Context,
    mut error: Box<Error>,
    kept: bool,
) -> Box<Error> {
    if origin_wait::leaves_request_unanswered(session, ctx, &error, kept) {
        record_failure(ctx, ServerFailure::Answer);
    }
    let reads = session.req_header().method.is_safe() && !session.as_ref().retry_buffer_truncated();
    if !reads || ctx.sent_again {
        error.set_retry(false);
        return error;
    }
    if error.retry == RetryType::ReusedOnly && !kept {
        let others = leave_server(ctx);
        error.set_retry(others);
    } else {
        error.retry.decide_reuse(kept);
    }
    ctx.sent_again = error.retry();
    error
}

/// Leaves the server that was asked last. Returns whether another one may be asked.
fn leave_server(ctx: &mut Context) -> bool {
    ctx.tried.extend(ctx.asked.take());
    ctx.in_flight = None;
    let origin = ctx.origin.as_ref();
    ctx.tried.len() < MAX_TRIES && origin.is_some_and(|origin| origin.has_another(&ctx.tried))
}

fn record_failure(ctx: &Context, failure: ServerFailure) {
    if let (Some(origin), Some(server)) = (&ctx.origin, ctx.asked) {
        origin.failed(server, failure, ctx.origin_asked.unwrap_or_default());
    }
}

/// Whether a failed connection tells that the server is down. Failures of this process (no descriptor, no port) do not.
const fn says_server_is_down(error: &ErrorType) -> bool {
    use ErrorType::{
        ConnectError, ConnectNoRoute, ConnectRefused, ConnectTimedout, HandshakeError, InvalidCert,
        TLSHandshakeFailure, TLSHandshakeTimedout,
    };
    matches!(
        error,
        ConnectError
            | ConnectNoRoute
            | ConnectRefused
            | ConnectTimedout
            | HandshakeError
            | InvalidCert
            | TLSHandshakeFailure
            | TLSHandshakeTimedout
    )
}

/// Writes what the origin is told about the client: `X-Forwarded-For`, `-Proto` and `-Host` replace what an untrusted
/// peer says. A trusted peer's list of addresses is extended, and the scheme and host that it wrote itself are passed on.
/// `X-Request-Id` is a trusted peer's or a new one.
pub(super) fn write_forwarding_fields(
    proxy: &Tollgate,
    session: &Session,
    request: &mut RequestHeader,
    ctx: &mut Context,
) -> Result<()> {
    if let Some(target) = forwarded_target(session, ctx) {
        request.set_raw_path(target.as_bytes())?;
    }
    if ctx.uncommon != UncommonFields::NONE {
        clean_up(session, request, ctx)?;
    }
    // Before the fields that this proxy writes. Keys and costs were read from the request as it came.
    for edits in ctx.edits().into_iter().flat_map(RouteEdits::of_request) {
        edit_request(request, edits)?;
    }
    join_cookie_lines(request, ctx)?;
    let chain = if ctx.peer_trusted() { joined(request, &X_FORWARDED_FOR) } else { None };
    let peer = peer_text(session)?;
    let forwarded_for = match chain {
        None => peer,
        Some(chain) => {
            let all = format!("{chain}, {}", peer.to_str().unwrap_or_default());
            HeaderValue::try_from(all).map_err(|error| {
                Error::because(ErrorType::InvalidHTTPHeader, "forwarded addresses", error)
            })?
        }
    };
    request.insert_header("X-Forwarded-For", forwarded_for)?;
    write_scheme(session, request, ctx)?;
    write_host(session, request, ctx)?;
    if ctx.pending.awaits_response() && ctx.route().is_some_and(Route::reads_body) {
        ask_for_plain_body(request)?;
    }
    RequestId::assign(&proxy.request_ids, session, ctx);
    request.insert_header("X-Request-Id", ctx.request_id())?;
    if let Some(host) = ctx.origin.as_ref().and_then(|origin| origin.config().host.as_deref()) {
        request.insert_header(header::HOST, host)?;
    }
    Ok(())
}

/// `X-Forwarded-Proto`: the scheme that a trusted peer wrote, or that of this connection.
fn write_scheme(session: &Session, request: &mut RequestHeader, ctx: &Context) -> Result<()> {
    let named = if ctx.peer_trusted() { forwarded_scheme(&request.headers) } else { None };
    let scheme = match named {
        Some(named) => text_value(named.as_bytes())?,
        None if ConnectionState::facts_of(session).is_tls => HeaderValue::from_static("https"),
        None => HeaderValue::from_static("http"),
    };
    request.insert_header("X-Forwarded-Proto", scheme)
}

/// `X-Forwarded-Host`: the host that a trusted peer wrote, or the one of this request.
fn write_host(session: &Session, request: &mut RequestHeader, ctx: &Context) -> Result<()> {
    let named = if ctx.peer_trusted() { forwarded_host(&request.headers) } else { None };
    if ctx.host.is_empty() {
        // Only HTTP/1.0 comes without a host, and no field may claim that there was one.
        request.remove_header(&X_FORWARDED_HOST);
        http10::name_host(request, ctx)?;
    } else if let Some(named) = named {
        let host = text_value(named)?;
        request.insert_header("X-Forwarded-Host", host)?;
    } else {
        // As the client wrote it, port and all.
        let head = session.req_header();
        let authority = || head.uri.authority().map(|authority| authority.as_str());
        match head.headers.get(header::HOST) {
            Some(host) => request.insert_header("X-Forwarded-Host", host.clone())?,
            None => {
                let host = authority().unwrap_or(&*ctx.host);
                request.insert_header("X-Forwarded-Host", host)?;
            }
        }
    }
    Ok(())
}

/// The target for the origin, where it differs from what the client wrote.
fn forwarded_target<'c>(session: &'c Session, ctx: &'c Context) -> Option<Cow<'c, str>> {
    let canonical = ctx.rewritten.as_deref();
    let Some(rewrite) = ctx.route().and_then(|route| route.rewrite.as_ref()) else {
        return canonical.map(Cow::Borrowed);
    };
    let written = || std::str::from_utf8(session.req_header().raw_path()).ok();
    let target = canonical.or_else(written)?;
    Some(match target.split_once('?') {
        Some((path, query)) => Cow::Owned(format!("{}?{query}", rewrite.forwarded(path)?)),
        None => Cow::Owned(rewrite.forwarded(target)?),
    })
}

/// Asks for a body whose cost can be read: not compressed, and all of it. Otherwise a client could hide the cost of its
/// requests by what it asks for.
fn ask_for_plain_body(request: &mut RequestHeader) -> Result<()> {
    request.remove_header(&header::RANGE);
    request.remove_header(&header::IF_RANGE);
    request.insert_header(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"))
}

/// Removes the fields that an origin must not see, and joins several cookie lines.
fn clean_up(session: &Session, request: &mut RequestHeader, ctx: &Context) -> Result<()> {
    if ctx.uncommon.has(UncommonFields::UPGRADE) {
        if !tunnel::is_asked_for(session, ctx) {
            request.remove_header(&header::UPGRADE);
            request.remove_header(&header::CONNECTION);
        }
        request.remove_header(&HTTP2_SETTINGS);
    }
    let rules = &ctx.live.field_rules;
    let method = &session.req_header().method;
    for name in rules.dropped(ctx.uncommon, ctx.peer_trusted(), method, &request.headers) {
        request.remove_header(&name);
    }
    Ok(())
}

/// Joins the cookie lines of the client and those that edits have added.
fn join_cookie_lines(request: &mut RequestHeader, ctx: &Context) -> Result<()> {
    let is_edited =
        ctx.edits().is_some_and(|edits| edits.of_request().iter().any(|it| !it.is_empty()));
    // HTTP/2 has its own rule for several lines (RFC 9113, section 8.2.3).
    let is_http2 = ctx.origin.as_ref().is_some_and(|origin| origin.config().http2);
    if is_http2 || !(is_edited || ctx.uncommon.has(UncommonFields::COOKIES)) {
        return Ok(());
    }
    match request.headers.get_all(header::COOKIE).iter().nth(1) {
        Some(_) => join_cookies(request),
        None => Ok(()),
    }
}

/// Joins cookie lines. Browsers split cookies over HTTP/2; HTTP/1 origins expect one line and read several in different
/// ways. The joined line keeps the order in which keys are read.
fn join_cookies(request: &mut RequestHeader) -> Result<()> {
    let mut joined = Vec::new();
    for line in request.headers.get_all(header::COOKIE) {
        let pairs = line.as_bytes().trim_ascii();
        let pairs = pairs.strip_suffix(b";").unwrap_or(pairs);
        if !joined.is_empty() && !pairs.is_empty() {
            joined.extend_from_slice(b"; ");
        }
        joined.extend_from_slice(pairs);
    }
    let joined = HeaderValue::from_bytes(&joined).map_err(|error| {
        Error::because(ErrorType::InvalidHTTPHeader, "several cookie lines", error)
    })?;
    request.insert_header(header::COOKIE, joined)
}

/// The peer's address as text, written once for all requests of a connection.
fn peer_text(session: &Session) -> Result<HeaderValue> {
    let write = || {
        let peer = session.client_addr().and_then(|address| address.as_inet());
        let peer = peer.map(|peer| client::unmapped(peer.ip()).to_string());
        HeaderValue::try_from(peer.unwrap_or_default()).map_err(|error| {
            Error::because(ErrorType::InvalidHTTPHeader, "an address that is not text", error)
        })
    };
    match ConnectionState::of(session) {
        Some(connection) => connection.peer_text(write),
        None => write(),
    }
}

/// A value that a trusted peer wrote, alone.
fn text_value(value: &[u8]) -> Result<HeaderValue> {
    HeaderValue::from_bytes(value)
        .map_err(|error| Error::because(ErrorType::InvalidHTTPHeader, "a forwarded value", error))
}

/// All lines of a field, joined into one list.
fn joined(request: &RequestHeader, name: &HeaderName) -> Option<String> {
    let lines = request.headers.get_all(name).iter();
    let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    if lines.is_empty() { None } else { Some(lines.join(", ")) }
}
