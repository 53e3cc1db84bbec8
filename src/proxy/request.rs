//! `request_filter`: validation, the decision, the delay, and the answer to what is refused.
//!
//! A request that waits for nothing is decided before a future is made. Nothing is charged for a request that is not
//! valid.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use pingora::http::RequestHeader;
use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;

use super::context::{Context, Tollgate};
use super::request_id::RequestId;
use super::traffic::RequestOutcome;
use super::{http10, respond};
use crate::clock::Nanos;
use crate::config::Bounds;
use crate::edge::{ConnectionState, RequestMemory};
use crate::engine::{Decision, Outcome, Unsettled};
use crate::http::{
    Head, HeadBounds, RejectReason, ScannedHead, ValidRequest, https_location, redirect, render,
    validate, validate_scanned,
};
use crate::limiter::delay;
use crate::policy::ConditionResults;
use crate::refusals::RefusedRequest;

/// The future of `request_filter`: `true` when the request has been answered.
pub(super) type Judging<'r> = Pin<Box<dyn Future<Output = Result<bool>> + Send + 'r>>;

/// Judges a request. It answers `true` when it has answered a refusal, `false` when the request passes. What does not
/// wait is done before a future is made, because a future that holds the facts and the decision costs as much as these.
pub(super) fn judge<'r>(
    proxy: &'r Tollgate,
    session: &'r mut Session,
    ctx: &'r mut Context,
) -> Judging<'r> {
    prepare(proxy, session, ctx);
    let scanned = match session.req_header().version {
        Version::HTTP_2 => None,
        _ => ConnectionState::of(session).and_then(|connection| connection.take_scanned()),
    };
    let head = session.req_header();
    let mut unsettled = None;
    let valid = validated(head, scanned.as_ref(), ctx.live.connections.head).and_then(|valid| {
        let rules = &ctx.live.field_rules;
        rules.check(valid.uncommon, &head.method, &head.headers)?;
        if ConnectionState::of(session).is_some_and(|connection| connection.is_trust_outdated()) {
            return Err(RejectReason::ClientCertificate);
        }
        // A trusted proxy sends requests for many hosts over one connection.
        match !ctx.peer_trusted()
            && ConnectionState::of(session)
                .is_some_and(|connection| connection.is_misdirected(&valid.host))
        {
            true => Err(RejectReason::Misdirected),
            false => Ok(valid),
        }
    });
    let connection = ConnectionState::facts_of(session);
    let judged = valid.and_then(|valid| {
        let conditions = ConditionResults::default();
        let facts = valid.facts(
            ctx.client(),
            connection,
            ctx.date,
            &head.method,
            &head.headers,
            &conditions,
        );
        if facts.connection.https_port.is_some() {
            let exempt = ctx.live.default_responses.exempt;
            let location = https_location(&valid, &facts, &ctx.live.served_hosts, exempt)?;
            if let Some(location) = location {
                ctx.location = Some(location.into());
                keep_for_forwarding(ctx, head, &valid, scanned.as_ref());
                return Ok(());
            }
        }
        let generation = &ctx.live.generation;
        let decision = ctx.decision.insert(generation.undecided(ctx.began));
        unsettled = proxy.engine.begin(generation, &facts, decision, &mut ctx.pending);
        keep_for_forwarding(ctx, head, &valid, scanned.as_ref());
        Ok(())
    });
    if let Some(unsettled) = unsettled {
        return Box::pin(settle(proxy, session, ctx, unsettled));
    }
    let passes = |decision: &Decision| {
        decision.outcome == Outcome::Allowed
            && decision.wait() == Nanos::ZERO
            && proxy.engine.is_saved(decision)
    };
    match ctx.decision.as_ref().is_some_and(passes) {
        true => Box::pin(std::future::ready(Ok(false))),
        false => Box::pin(conclude(proxy, session, ctx, judged)),
    }
}

/// Waits for the shared store, then answers as [`judge`] does.
async fn settle(
    proxy: &Tollgate,
    session: &mut Session,
    ctx: &mut Context,
    unsettled: Unsettled,
) -> Result<bool> {
    ctx.held = Some(hold_memory(proxy, session));
    if let Some(decision) = &mut ctx.decision {
        let generation = &ctx.live.generation;
        proxy.engine.settle(generation, unsettled, decision, &mut ctx.pending).await;
    }
    conclude(proxy, session, ctx, Ok(())).await
}

/// Records when the request began and its client, and sets the session's timeouts.
fn prepare(proxy: &Tollgate, session: &mut Session, ctx: &mut Context) {
    ctx.began = proxy.engine.now();
    ctx.date = proxy.engine.date(ctx.began);
    // The stream under the session bounds what HTTP/1 writes.
    let http2 = session.req_header().version == Version::HTTP_2;
    session.set_write_timeout(if http2 { chunk_timeout(ctx.live.bounds()) } else { None });
    session.set_total_drain_timeout(Some(ctx.live.bounds().discard_time));
    // The stream under the session has its own deadlines. After a switch of protocols both sides may be silent for as
    // long as the origin allows.
    session.set_read_timeout(None);
    // An HTTP/1.0 client would take an interim response for the final one.
    if http10::is_request(session) {
        session.as_downstream_mut().set_ignore_info_resp(true);
    }
    // Otherwise the request decides: HTTP/1.0 closes unless keep-alive is asked for.
    if proxy.leaving.load(std::sync::atomic::Ordering::Relaxed) {
        session.set_keepalive(None);
    }
    let peer = session.client_addr().and_then(|address| address.as_inet()).map(|peer| peer.ip());
    // Only a socket without an address (a test's pipe) has no peer.
    let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    ctx.client = Some(ctx.live.clients().client(peer, &session.req_header().headers));
}

/// The time in which one chunk of an HTTP/2 response must be written. The stream under the session ends exchanges whose
/// window does not open. It cannot tell apart those that share what a slow client reads, so each must move at the
/// minimum rate of a body, or it ends here.
fn chunk_timeout(bounds: &Bounds) -> Option<Duration> {
    /// The largest chunk that the framework writes at once, in bytes.
    const CHUNK_BYTES: u64 = 64 * 1024;
    let rate = bounds.body_min_rate?;
    let moving = Duration::from_secs(CHUNK_BYTES.div_ceil(rate.get()));
    Some(bounds.write_timeout.saturating_add(moving))
}

/// Validates a head: from what the scan found, or over HTTP/2 from the parsed fields.
fn validated<'r>(
    head: &'r RequestHeader,
    scanned: Option<&'r ScannedHead>,
    bounds: HeadBounds,
) -> Result<ValidRequest<'r>, RejectReason> {
    scanned
        .and_then(|scanned| validate_scanned(scanned, head.raw_path(), bounds))
        .unwrap_or_else(|| validate(Head::of(head), bounds))
}

/// Keeps what forwarding a valid head needs.
fn keep_for_forwarding(
    ctx: &mut Context,
    head: &RequestHeader,
    valid: &ValidRequest<'_>,
    scanned: Option<&ScannedHead>,
) {
    ctx.rewritten = rewritten(valid, head.raw_path());
    ctx.uncommon = valid.uncommon;
    ctx.host = match scanned {
        Some(scanned) => Arc::clone(&scanned.host),
        None => Arc::from(&*valid.host),
    };
}

/// After the decision: waits for its delay, and answers a request that is refused.
async fn conclude(
    proxy: &Tollgate,
    session: &mut Session,
    ctx: &mut Context,
    judged: Result<(), RejectReason>,
) -> Result<bool> {
    if let Err(reason) = judged {
        ctx.rejected = Some(reason);
        ctx.outcome = Some(RequestOutcome::Rejected);
        Box::pin(respond::rejected(proxy, session, ctx, reason)).await?;
        return Ok(true);
    }
    if let Some(location) = ctx.location.take() {
        ctx.outcome = Some(RequestOutcome::Redirected);
        RequestId::assign(&proxy.request_ids, session, ctx);
        let reply = redirect(&session.req_header().method, &location, ctx.request_id());
        respond::refuse(session, ctx, reply).await?;
        return Ok(true);
    }
    if ctx
        .decision
        .as_ref()
        .is_some_and(|decision| decision.wait() > Nanos::ZERO || decision.save.is_some())
    {
        ctx.held.get_or_insert_with(|| hold_memory(proxy, session));
    }
    let Some(decision) = &mut ctx.decision else {
        return Ok(false);
    };
    if decision.save.is_some() && decision.outcome == Outcome::Allowed {
        Box::pin(proxy.engine.until_saved(decision)).await;
    }
    let delayed = match decision.wait() {
        Nanos::ZERO => Ok(()),
        wait => Box::pin(delay::wait(session, wait.into())).await,
    };
    ctx.pending.end_delay();
    let outcome = decision.outcome;
    ctx.rejected = render::reason(decision).map(|(reason, _)| reason);
    delayed?;
    if outcome == Outcome::Allowed {
        return Ok(false);
    }
    RequestId::assign(&proxy.request_ids, session, ctx);
    let preferences = ctx.preferences(session);
    let Some(reply) = ctx.rate_limit_fields().and_then(|fields| render::reply(fields, preferences))
    else {
        return Ok(false);
    };
    ctx.outcome = Some(match ctx.rejected {
        Some(_) => RequestOutcome::Rejected,
        None if outcome.is_outage() => RequestOutcome::Failed,
        None => RequestOutcome::Limited,
    });
    // Before the answer, so that its client can be told at once why.
    record_refusal(proxy, ctx, reply.status.as_u16());
    respond::refuse(session, ctx, reply).await?;
    Ok(true)
}

/// Records a request that a limit refuses.
fn record_refusal(proxy: &Tollgate, ctx: &Context, status: u16) {
    if let Some(decision) = &ctx.decision {
        proxy.counters.refusals().record(&RefusedRequest {
            request_id: ctx.request_id.as_ref().map_or(b"", RequestId::as_bytes),
            client: ctx.client(),
            status,
            decision,
            policy: ctx.live.generation.policy(),
            names: &ctx.live.refusal_names,
        });
    }
}

/// Counts the memory that a request holds while it waits for a store, a delay or an origin.
pub(super) fn hold_memory(proxy: &Tollgate, session: &Session) -> RequestMemory {
    let head = session.req_header();
    let head_bytes = match ConnectionState::of(session)
        .map_or(0, |connection| connection.head_bytes())
    {
        // Over HTTP/2 the head came compressed; 32 bytes stand for the entry of a field (RFC 9113,
        // section 6.5.2).
        0 => head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum(),
        bytes => bytes,
    };
    RequestMemory::new(&proxy.memory, head_bytes)
}

/// Bounds a body as it passes, because its length may not have been declared.
pub(super) fn bound_body(proxy: &Tollgate, body: Option<&Bytes>, ctx: &mut Context) -> Result<()> {
    let Some(body) = body else {
        return Ok(());
    };
    ctx.body_at = proxy.engine.now().mono;
    ctx.body_read = ctx.body_read.saturating_add(body.len() as u64);
    if let Some(held) = &mut ctx.held {
        held.add_body_chunk(body.len());
    }
    if ctx.live.bounds().body_size.is_none_or(|max| ctx.body_read <= max) {
        return Ok(());
    }
    ctx.rejected = Some(RejectReason::BodySize);
    Error::e_explain(ErrorType::HTTPStatus(413), "the body is larger than body_size")
}

/// The target for the origin, where it differs from the one that came: an escape was decoded, or it was absolute.
fn rewritten(valid: &ValidRequest<'_>, raw_target: &[u8]) -> Option<Box<str>> {
    if matches!(valid.path, Cow::Borrowed(_)) && matches!(raw_target.first(), Some(b'/' | b'*')) {
        return None;
    }
    Some(match valid.query {
        Some(query) => format!("{}?{query}", valid.path).into_boxed_str(),
        None => valid.path.clone().into_owned().into_boxed_str(),
    })
}
