//! `logging`: what became of a request goes into the counters and into the access log.

use std::net::IpAddr;

use pingora_proxy::Session;

use super::{Context, RequestOutcome, Tollgate, TunnelEnd, upstream};
use crate::clock::Nanos;
use crate::config::AccessLog;
use crate::engine::{CandidateComparison, Decision, Outcome};
use crate::http::{RejectReason, retry_after_secs};
use crate::policy::Policy;

/// Where a line per request goes. It must not block.
pub trait AccessSink: Send + Sync + 'static {
    /// Whether a request that ended so is to be recorded at all.
    fn takes(&self, outcome: RequestOutcome, outage: bool, rules: &AccessLog) -> bool;

    /// Takes one request's record, or drops it and counts.
    fn record(&self, record: &AccessRecord<'_>, rules: &AccessLog);
}

/// What there is to say of one request. Values of keys are not part of it.
#[derive(Debug)]
pub struct AccessRecord<'r> {
    /// When it ended, since the Unix epoch.
    pub at: Nanos,
    /// As the origin was told.
    pub request_id: &'r str,
    /// The client.
    pub client_ip: Option<IpAddr>,
    /// The method as sent.
    pub method: &'r str,
    /// The host asked for.
    pub host: &'r str,
    /// The path, without the query.
    pub path: &'r str,
    /// The answer's status; 0 when there was none.
    pub status: u16,
    /// The route's name.
    pub route: Option<&'r str>,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// Why it was refused, if it was unclean.
    pub reason: Option<RejectReason>,
    /// The deciding limit: name, tier, remaining, and whether its key was a credential.
    pub limit: Option<(&'r str, &'static str, u32, bool)>,
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
    /// How long it waited for its turn.
    pub waited: Nanos,
    /// What the candidates of its limits would have done otherwise, each with its limit's name.
    pub trials: Vec<(&'r str, CandidateComparison)>,
    /// The number of the configuration.
    pub generation: u64,
    /// The origin's name, if one was asked.
    pub origin: Option<&'r str>,
    /// Bits of an IPv6 network, for logs that cut addresses.
    pub ipv6_prefix: u8,
    /// From the head of the request to the end of the answer.
    pub duration: Nanos,
}

/// Counts the request and hands its record to the log.
pub(super) fn book(gate: &Tollgate, session: &mut Session, ctx: &mut Context) {
    // Without an outcome nobody answered: the client left before the origin did.
    let outcome = ctx.outcome.unwrap_or(RequestOutcome::Failed);
    let route = ctx.decision.as_ref().and_then(|decision| decision.route);
    ctx.live.tally(route).count(outcome);
    if let Some(reason) = ctx.rejected {
        gate.counters.reject(reason);
    }
    if let Some(origin) = &ctx.origin {
        origin.tally().count(ctx.origin_status);
    }
    let outage = ctx.decision.as_ref().is_some_and(|one| one.outcome == Outcome::Outage);
    if !gate.access.takes(outcome, outage, &ctx.live.access_log) {
        return;
    }
    let request_id = upstream::RequestId::of(session, ctx);
    let written = session.response_written().map(|answer| answer.status.as_u16());
    let now = gate.engine.now();
    let policy = ctx.live.generation.policy();
    let head = session.req_header();
    let target = ctx.rewritten.as_deref().unwrap_or(head.uri.path());
    let record = AccessRecord {
        at: gate.engine.date(now),
        request_id: request_id.as_str(),
        client_ip: ctx.client.map(|client| client.ip),
        method: head.method.as_str(),
        host: &ctx.host,
        path: target.split_once('?').map_or(target, |(path, _)| path),
        status: ctx.answered.or(written).unwrap_or(0),
        route: route.map(|route| &*policy.route(route).name),
        outcome,
        reason: ctx.rejected,
        limit: ctx.decision.as_ref().and_then(|decision| deciding(decision, policy)),
        tunnel: ctx.tunnel,
        retry_after: ctx.decision.as_ref().and_then(retry_after_secs),
        degraded: ctx.decision.as_ref().is_some_and(Decision::is_degraded),
        outage,
        banned: ctx.decision.as_ref().is_some_and(Decision::is_banned),
        waited: ctx.decision.as_ref().map(Decision::wait).unwrap_or_default(),
        trials: ctx.decision.as_ref().map(|one| trials(one, policy)).unwrap_or_default(),
        generation: ctx.live.generation.number(),
        origin: ctx.origin.as_ref().map(|origin| &*origin.meant().name),
        ipv6_prefix: ctx.live.ipv6_prefix(),
        duration: now.mono.saturating_sub(ctx.began.mono),
    };
    gate.access.record(&record, &ctx.live.access_log);
}

/// The candidates that disagree, as far as they have answered by now.
fn trials<'p>(decision: &Decision, policy: &'p Policy) -> Vec<(&'p str, CandidateComparison)> {
    let told = decision.candidates.iter().filter_map(|trial| {
        let kind = trial.kind().filter(|kind| *kind != CandidateComparison::Agrees)?;
        Some((&*policy.limit(trial.limit).name, kind))
    });
    told.collect()
}

fn deciding<'p>(
    decision: &Decision,
    policy: &'p Policy,
) -> Option<(&'p str, &'static str, u32, bool)> {
    let answer = decision.deciding()?;
    let name = &*policy.limit(answer.limit).name;
    Some((name, answer.tier.name(), answer.verdict.remaining, answer.authenticated))
}
