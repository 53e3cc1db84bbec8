//! `request_filter`: the gate, the decision, and the early answer.

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

use super::{Context, RequestOutcome, Tollgate, delay, http10, respond};
use crate::clock::Nanos;
use crate::config::Bounds;
use crate::edge::{ConnectionState, RequestMemory};
use crate::engine::{Decision, Outcome, Unsettled};
use crate::http::{
    AnswerPreferences, Head, HeadBounds, RejectReason, ScannedHead, ValidRequest, render, validate,
    validate_scanned,
};

/// What `request_filter` gives the framework.
pub(super) type Judging<'r> = Pin<Box<dyn Future<Output = Result<bool>> + Send + 'r>>;

/// Answers the request and says `true`, or lets it pass with `false`. What need not wait is done
/// here and now: a future that holds a request's facts and its decision costs as much as these.
pub(super) fn judge<'r>(
    gate: &'r Tollgate,
    session: &'r mut Session,
    ctx: &'r mut Context,
) -> Judging<'r> {
    prepare(gate, session, ctx);
    let scanned = match session.req_header().version {
        Version::HTTP_2 => None,
        _ => ConnectionState::of(session).and_then(|connection| connection.take_scanned()),
    };
    let head = session.req_header();
    let mut unsettled = None;
    let clean = read(head, scanned.as_ref(), ctx.live.connections.head).and_then(|clean| {
        let rules = &ctx.live.field_rules;
        rules.check(clean.rare, &head.method, &head.headers)?;
        // A trusted proxy sends the requests of many hosts over a connection for one or none.
        match !ctx.peer_trusted()
            && ConnectionState::of(session)
                .is_some_and(|connection| connection.is_misdirected(&clean.host))
        {
            true => Err(RejectReason::Misdirected),
            false => Ok(clean),
        }
    });
    let judged = clean.map(|clean| {
        let facts = clean.facts(ctx.client(), ctx.date, &head.method, &head.headers);
        let generation = &ctx.live.generation;
        let decision = ctx.decision.insert(generation.undecided(ctx.began));
        unsettled = gate.engine.begin(generation, &facts, decision, &mut ctx.pending);
        keep(ctx, head, &clean, scanned.as_ref());
    });
    if let Some(unsettled) = unsettled {
        return Box::pin(settle(gate, session, ctx, unsettled));
    }
    let passes = |decision: &Decision| {
        decision.outcome == Outcome::Allowed && decision.wait() == Nanos::ZERO
    };
    match ctx.decision.as_ref().is_some_and(passes) {
        true => Box::pin(std::future::ready(Ok(false))),
        false => Box::pin(conclude(gate, session, ctx, judged)),
    }
}

/// Waits for the shared store, then answers as [`judge`] does.
async fn settle(
    gate: &Tollgate,
    session: &mut Session,
    ctx: &mut Context,
    unsettled: Unsettled,
) -> Result<bool> {
    ctx.held = Some(hold(gate, session));
    if let Some(decision) = &mut ctx.decision {
        let generation = &ctx.live.generation;
        gate.engine.settle(generation, unsettled, decision, &mut ctx.pending).await;
    }
    conclude(gate, session, ctx, Ok(())).await
}

/// Notes when it began and who asks, and says who bounds what.
fn prepare(gate: &Tollgate, session: &mut Session, ctx: &mut Context) {
    ctx.began = gate.engine.now();
    ctx.date = gate.engine.date(ctx.began);
    // The stream under the session bounds what HTTP/1 writes.
    let http2 = session.req_header().version == Version::HTTP_2;
    session.set_write_timeout(if http2 { part_timeout(&ctx.live.bounds()) } else { None });
    session.set_total_drain_timeout(Some(ctx.live.bounds().discard_time));
    // The stream under the session waits for nobody too long; who switches protocols may be silent
    // for as long as the origin likes.
    session.set_read_timeout(None);
    // A client of HTTP/1.0 would take an interim answer for the answer.
    if http10::is_request(session) {
        session.as_downstream_mut().set_ignore_info_resp(true);
    }
    // Else as the request says: HTTP/1.0 closes unless it is asked to go on.
    if gate.leaving.load(std::sync::atomic::Ordering::Relaxed) {
        session.set_keepalive(None);
    }
    let peer = session.client_addr().and_then(|address| address.as_inet()).map(|peer| peer.ip());
    // Only a socket without an address (a test's pipe) has no peer.
    let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    ctx.client = Some(ctx.live.clients().client(peer, &session.req_header().headers));
}

/// How long one part of an answer over HTTP/2 may take. The stream under the session ends one whose window does not
/// open, and cannot tell apart those that share what a slow client takes: each moves at the least rate of a body,
/// or is ended here.
fn part_timeout(bounds: &Bounds) -> Option<Duration> {
    /// The largest part that the framework writes at once.
    const PART_BYTES: u64 = 64 * 1024;
    let rate = bounds.body_min_rate?;
    let moving = Duration::from_secs(PART_BYTES.div_ceil(rate.get()));
    Some(bounds.write_timeout.saturating_add(moving))
}

/// Lets a head through the gate.
fn read<'r>(
    head: &'r RequestHeader,
    scanned: Option<&'r ScannedHead>,
    bounds: HeadBounds,
) -> Result<ValidRequest<'r>, RejectReason> {
    scanned
        .and_then(|one| validate_scanned(one, head.raw_path(), bounds))
        .unwrap_or_else(|| validate(Head::of(head), bounds))
}

/// Keeps what is needed of a clean head when it is forwarded.
fn keep(
    ctx: &mut Context,
    head: &RequestHeader,
    clean: &ValidRequest<'_>,
    scanned: Option<&ScannedHead>,
) {
    ctx.rewritten = rewritten(clean, head.raw_path());
    ctx.rare = clean.rare;
    ctx.host = match scanned {
        Some(scanned) => Arc::clone(&scanned.host),
        None => Arc::from(&*clean.host),
    };
}

/// What follows a decision: its turn, and the answer of who is let through no further.
async fn conclude(
    gate: &Tollgate,
    session: &mut Session,
    ctx: &mut Context,
    judged: Result<(), RejectReason>,
) -> Result<bool> {
    if let Err(reason) = judged {
        ctx.rejected = Some(reason);
        ctx.outcome = Some(RequestOutcome::Rejected);
        Box::pin(respond::rejected(session, ctx, reason)).await?;
        return Ok(true);
    }
    if ctx.decision.as_ref().is_some_and(|decision| decision.wait() > Nanos::ZERO) {
        ctx.held.get_or_insert_with(|| hold(gate, session));
    }
    let Some(decision) = &mut ctx.decision else {
        return Ok(false);
    };
    let turn = match decision.wait() {
        Nanos::ZERO => Ok(()),
        wait => Box::pin(delay::take(session, wait)).await,
    };
    ctx.pending.end_delay();
    let outcome = decision.outcome;
    ctx.rejected = render::reason(decision).map(|(reason, _)| reason);
    turn?;
    if outcome == Outcome::Allowed {
        return Ok(false);
    }
    let asking =
        AnswerPreferences { headers: &session.req_header().headers, chance: fastrand::f64() };
    let Some(reply) = ctx.standing().and_then(|standing| render::reply(standing, asking)) else {
        return Ok(false);
    };
    ctx.outcome = Some(match ctx.rejected {
        Some(_) => RequestOutcome::Rejected,
        None if outcome == Outcome::Outage => RequestOutcome::Failed,
        None => RequestOutcome::Limited,
    });
    respond::refuse(session, ctx, reply).await?;
    Ok(true)
}

/// Counts what a request holds while it waits: for a store, for its turn, for an origin.
pub(super) fn hold(gate: &Tollgate, session: &Session) -> RequestMemory {
    let head = session.req_header();
    let head_bytes = match ConnectionState::of(session)
        .map_or(0, |connection| connection.head_bytes())
    {
        // Over HTTP/2 the head came compressed; 32 bytes stand for the entry of a field (RFC 9113,
        // section 6.5.2).
        0 => head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum(),
        bytes => bytes,
    };
    RequestMemory::new(&gate.memory, head_bytes)
}

/// A body without a declared length is measured as it passes.
pub(super) fn bound_body(body: Option<&Bytes>, ctx: &mut Context) -> Result<()> {
    let Some(body) = body else {
        return Ok(());
    };
    ctx.body_read = ctx.body_read.saturating_add(body.len() as u64);
    if let Some(held) = &mut ctx.held {
        held.add_body_chunk(body.len());
    }
    if ctx.live.bounds().body_size.is_none_or(|most| ctx.body_read <= most) {
        return Ok(());
    }
    ctx.rejected = Some(RejectReason::BodySize);
    Error::e_explain(ErrorType::HTTPStatus(413), "the body is larger than body_size")
}

/// What the origin shall be asked for, where that is not what came: an escape was decoded, or the
/// target was absolute.
fn rewritten(clean: &ValidRequest<'_>, raw_target: &[u8]) -> Option<Box<str>> {
    if matches!(clean.path, Cow::Borrowed(_)) && matches!(raw_target.first(), Some(b'/' | b'*')) {
        return None;
    }
    Some(match clean.query {
        Some(query) => format!("{}?{query}", clean.path).into_boxed_str(),
        None => clean.path.clone().into_owned().into_boxed_str(),
    })
}
