//! `logging`: the outcome of a request goes into the counters and into the access log.
//!
//! A record is built here for a request, and in `early_rejection` for a refused head. It does not know how it is
//! written. What must always hold: a record contains no query, no cookie and no credential. (`User-Agent` and `traceparent` are in it; who
//! writes it leaves them out where they are keys.)

use std::net::{IpAddr, SocketAddr};

use http::{Version, header};
use pingora_proxy::Session;

use super::context::{Context, Tollgate};
use super::failure_reason::FailureReason;
use super::live::Live;
use super::request_id::RequestId;
use super::route_details::is_timed;
use super::traffic::{RequestEnd, RequestOutcome};
use super::tunnel::TunnelEnd;
use crate::clock::{Nanos, Now};
use crate::config::AccessLog;
use crate::engine::{CandidateComparison, Decision, Outcome, RequestTrace};
use crate::http::{RejectReason, retry_after_secs, trace_id};
use crate::policy::{KeyHash, Policy};

/// Receives access records. It must not block.
pub trait AccessSink: Send + Sync + 'static {
    /// Whether a request with this outcome is recorded.
    fn takes(&self, outcome: RequestOutcome, outage: bool, rules: &AccessLog) -> bool;

    /// Takes a record, or drops it and counts that.
    fn record(&self, record: &AccessRecord<'_>, rules: &AccessLog);
}

/// What the access log says about one request.
#[derive(Debug)]
pub struct AccessRecord<'r> {
    /// When it ended, since the Unix epoch.
    pub at: Nanos,
    /// The identifier, as the origin received it.
    pub request_id: &'r str,
    /// The client.
    pub client_ip: Option<IpAddr>,
    /// The method as sent.
    pub method: &'r str,
    /// The host that the request names.
    pub host: &'r str,
    /// The path, without the query.
    pub path: &'r str,
    /// The answer's status; 0 if there was no answer.
    pub status: u16,
    /// The route's name.
    pub route: Option<&'r str>,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// Why it was rejected.
    pub reason: Option<RejectReason>,
    /// The limit that decided.
    pub limit: Option<DecidingLimit<'r>>,
    /// The most units that one limit has charged, if limits apply.
    pub charged: Option<u32>,
    /// How the tunnel ended, if the origin switched protocols.
    pub tunnel: Option<TunnelEnd>,
    /// Seconds to wait, if it was limited.
    pub retry_after: Option<u64>,
    /// Whether a limit was judged while the store was away.
    pub degraded: bool,
    /// Whether it was refused because the store was away.
    pub outage: bool,
    /// Whether a ban refused it.
    pub banned: bool,
    /// How long `max_delay` held it back.
    pub waited: Nanos,
    /// The candidates that would have decided otherwise.
    pub candidates: Vec<CandidateResult<'r>>,
    /// The number of the configuration.
    pub generation: u64,
    /// The origin's name, if one was asked.
    pub origin: Option<&'r str>,
    /// Bits of an IPv6 address that logs keep when they shorten addresses.
    pub ipv6_prefix: u8,
    /// From the head of the request to the end of the answer.
    pub duration: Nanos,
    /// `User-Agent` as sent.
    pub user_agent: Option<&'r [u8]>,
    /// The version of HTTP; `None` if the head was not read.
    pub protocol: Option<Version>,
    /// Bytes of the request's body that were read.
    pub request_bytes: u64,
    /// Bytes of the answer's body that were sent.
    pub response_bytes: u64,
    /// What is known of the exchange with the origin.
    pub exchange: OriginExchange,
    /// Why it failed.
    pub failure: Option<FailureReason>,
    /// The trace that it belongs to.
    pub trace_id: Option<&'r str>,
    /// The version of TLS, as rustls names it. `None` without TLS.
    pub tls_version: Option<&'r str>,
    /// What a replay needs, if the policy has that written.
    pub trace: Option<&'r RequestTrace>,
}

/// The exchange of one request with its origin.
#[derive(Clone, Copy, Debug, Default)]
pub struct OriginExchange {
    /// The server that was asked last.
    pub server: Option<SocketAddr>,
    /// The status that it gave.
    pub status: Option<u16>,
    /// From the choice of the first server to the head of the answer.
    pub duration: Option<Nanos>,
    /// How often the request was sent to another server, or again.
    pub retries: u32,
}

/// The limit that decided a request.
#[derive(Clone, Copy, Debug)]
pub struct DecidingLimit<'r> {
    /// Its name.
    pub name: &'r str,
    /// Its tier, as in metrics.
    pub tier: &'static str,
    /// What it found for the key; `None` if the request has no key of the limit, and is refused for that.
    pub judged: Option<JudgedKey>,
}

/// What a limit found for a key.
#[derive(Clone, Copy, Debug)]
pub struct JudgedKey {
    /// Units that are left.
    pub remaining: u32,
    /// Whether the key came from a credential.
    pub authenticated: bool,
    /// The hash of the key.
    pub key: KeyHash,
}

/// What the candidate of a limit would have decided otherwise.
#[derive(Clone, Copy, Debug)]
pub struct CandidateResult<'r> {
    /// The limit's name.
    pub limit: &'r str,
    /// The difference.
    pub comparison: CandidateComparison,
}

impl<'r> AccessRecord<'r> {
    /// What the deciding limit found for the key.
    pub fn judged(&self) -> Option<JudgedKey> {
        self.limit?.judged
    }

    /// The record of a head that was refused before it was parsed: nothing of the request is known.
    pub(super) fn of_refused_head(
        live: &Live,
        request_id: &'r str,
        client: IpAddr,
        reason: RejectReason,
        response_bytes: u64,
        at: Nanos,
        duration: Nanos,
    ) -> Self {
        Self {
            at,
            request_id,
            client_ip: Some(client),
            method: "",
            host: "",
            path: "",
            status: reason.status(),
            route: None,
            outcome: RequestOutcome::Rejected,
            reason: Some(reason),
            limit: None,
            charged: None,
            tunnel: None,
            retry_after: None,
            degraded: false,
            outage: false,
            banned: false,
            waited: Nanos::ZERO,
            candidates: Vec::new(),
            generation: live.generation.number(),
            origin: None,
            ipv6_prefix: live.ipv6_prefix(),
            duration,
            user_agent: None,
            protocol: None,
            request_bytes: 0,
            response_bytes,
            exchange: OriginExchange::default(),
            failure: None,
            trace_id: None,
            tls_version: None,
            trace: None,
        }
    }
}

/// Records the outcome in the counters and hands the record to the log.
pub(super) fn record(proxy: &Tollgate, session: &mut Session, ctx: &mut Context) {
    // A request without an outcome had no response, because its client left first.
    let outcome = ctx.outcome.unwrap_or(RequestOutcome::Failed);
    let route = ctx.decision.as_ref().and_then(|decision| decision.route);
    if let Some(reason) = ctx.rejected {
        proxy.counters.record_rejection(reason);
    }
    if let Some(origin) = &ctx.origin {
        origin.counters().record(ctx.origin_status);
    }
    let written = session.response_written().map(|answer| answer.status.as_u16());
    let end = RequestEnd {
        outcome,
        status: ctx.answered.or(written).unwrap_or(0),
        request_bytes: session.body_bytes_read() as u64,
        response_bytes: ctx.answered_bytes + session.body_bytes_sent() as u64,
    };
    let traffic = ctx.live.traffic(route);
    traffic.record(&end);
    if outcome == RequestOutcome::Limited
        && ctx
            .decision
            .as_ref()
            .and_then(Decision::deciding)
            .is_some_and(|found| found.authenticated)
    {
        traffic.record_limited_authenticated();
    }
    let outage = ctx.decision.as_ref().is_some_and(|decision| decision.outcome.is_outage());
    let is_logged = proxy.access.takes(outcome, outage, &ctx.live.access_log);
    let is_timed = is_timed(ctx.began.mono) && ctx.tunnel.is_none();
    if !is_logged && !is_timed {
        return;
    }
    let now = proxy.engine.now();
    if is_timed {
        // An answer of ours is written at once, just before the end.
        let first_byte = (end.status != 0).then(|| ctx.origin_answered.unwrap_or(now.mono));
        traffic.record_times(ctx.began.mono, first_byte, now.mono);
    }
    if is_logged {
        let request_id = RequestId::of(&proxy.request_ids, session, ctx);
        let trace = ctx.pending.take_trace();
        let record = AccessRecord {
            trace: trace.as_ref(),
            ..access_record(proxy, session, ctx, &request_id, end, outage, now)
        };
        proxy.access.record(&record, &ctx.live.access_log);
    }
}

/// The record of a request that has ended.
fn access_record<'r>(
    proxy: &Tollgate,
    session: &'r Session,
    ctx: &'r Context,
    request_id: &'r RequestId,
    end: RequestEnd,
    outage: bool,
    now: Now,
) -> AccessRecord<'r> {
    let policy = ctx.live.generation.policy();
    let decision = ctx.decision.as_ref();
    let head = session.req_header();
    let target = ctx.rewritten.as_deref().unwrap_or(head.uri.path());
    AccessRecord {
        at: proxy.engine.date(now),
        request_id: request_id.as_str(),
        client_ip: ctx.client.map(|client| client.ip),
        method: head.method.as_str(),
        host: &ctx.host,
        path: target.split_once('?').map_or(target, |(path, _)| path),
        status: end.status,
        route: decision.and_then(|it| it.route).map(|route| &*policy.route(route).name),
        outcome: end.outcome,
        reason: ctx.rejected,
        limit: decision.and_then(|decision| deciding(decision, policy)),
        charged: decision
            .filter(|decision| !decision.verdicts.is_empty())
            .map(|decision| decision.charged(policy)),
        tunnel: ctx.tunnel,
        retry_after: decision.and_then(retry_after_secs),
        degraded: decision.is_some_and(Decision::is_degraded),
        outage,
        banned: decision.is_some_and(Decision::is_banned),
        waited: decision.map(Decision::wait).unwrap_or_default(),
        candidates: decision.map(|decision| disagreeing(decision, policy)).unwrap_or_default(),
        generation: ctx.live.generation.number(),
        origin: ctx.origin.as_ref().map(|origin| &*origin.config().name),
        ipv6_prefix: ctx.live.ipv6_prefix(),
        duration: now.mono.saturating_sub(ctx.began.mono),
        user_agent: head.headers.get(header::USER_AGENT).map(|value| value.as_bytes()),
        protocol: Some(head.version),
        request_bytes: end.request_bytes,
        response_bytes: end.response_bytes,
        exchange: exchange(ctx),
        failure: failure(ctx, outage),
        trace_id: trace_id(&head.headers),
        tls_version: session
            .digest()
            .and_then(|digest| digest.ssl_digest.as_ref())
            .map(|tls| &*tls.version),
        trace: None,
    }
}

fn exchange(ctx: &Context) -> OriginExchange {
    let asked = ctx.origin_asked.zip(ctx.origin_answered);
    OriginExchange {
        server: ctx.server(),
        status: ctx.origin_status,
        duration: asked.map(|(asked, answered)| answered.saturating_sub(asked)),
        retries: ctx.retries(),
    }
}

fn failure(ctx: &Context, outage: bool) -> Option<FailureReason> {
    let keys_missing =
        |decision: &Decision| matches!(decision.outcome, Outcome::NoTokenKeys { .. });
    match ctx.outcome {
        _ if ctx.decision.as_ref().is_some_and(keys_missing) => Some(FailureReason::TokenKeys),
        _ if outage => Some(FailureReason::StoreOutage),
        None => Some(FailureReason::ClientLeft),
        Some(_) => ctx.failure,
    }
}

/// The candidates that disagree, as far as they have answered by now.
fn disagreeing<'p>(decision: &Decision, policy: &'p Policy) -> Vec<CandidateResult<'p>> {
    let results = decision.candidates.iter().filter_map(|candidate| {
        let comparison =
            candidate.comparison().filter(|kind| *kind != CandidateComparison::Agrees)?;
        Some(CandidateResult { limit: &policy.limit(candidate.limit).name, comparison })
    });
    results.collect()
}

fn deciding<'p>(decision: &Decision, policy: &'p Policy) -> Option<DecidingLimit<'p>> {
    if let Some(limit) = decision.outcome.limit_without_key() {
        let limit = policy.limit(limit);
        let tier = limit.count.tier().name();
        return Some(DecidingLimit { name: &limit.name, tier, judged: None });
    }
    let verdict = decision.deciding()?;
    Some(DecidingLimit {
        name: &policy.limit(verdict.limit).name,
        tier: verdict.tier.name(),
        judged: Some(JudgedKey {
            remaining: verdict.verdict.remaining,
            authenticated: verdict.authenticated,
            key: verdict.key,
        }),
    })
}
