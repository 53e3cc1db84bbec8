//! What a request costs in the end, as far as the log says: after its answer has refunded a charge or named a cost.

use super::entry::LogEntry;
use crate::engine::{AnsweredBy, LimitVerdict};
use crate::policy::{Cost, LimitIndex, NamedCost, Policy, Route};

/// The units that a request demands of a limit of its route. Without an answer in the log it is what was charged first.
pub(super) fn units(
    found: &LimitVerdict,
    policy: &Policy,
    route: Option<&Route>,
    entry: &LogEntry,
) -> u32 {
    let answer = entry.trace.as_ref().and_then(|trace| trace.answer.as_ref());
    let by_origin = answer.is_none_or(|answer| answer.by != AnsweredBy::Proxy);
    let status = answer.map(|answer| answer.status).or(entry.status).filter(|status| *status != 0);
    let limit = policy.limit(found.limit);
    if status.is_some_and(|status| limit.status_rules.refunds(status, by_origin)) {
        return 0;
    }
    let cost = route.and_then(|route| costs(policy, found.limit, route).next());
    cost.and_then(|cost| named(cost, entry)).unwrap_or(found.cost)
}

/// Whether the answer may change what a limit has charged for a request, so that it holds units until then.
pub(super) fn is_settled_later(policy: &Policy, limit: LimitIndex, route: &Route) -> bool {
    let mut costs = costs(policy, limit, route).peekable();
    costs.peek().is_some()
        && (policy.limit(limit).status_rules.depends_on_status()
            || costs.any(Cost::depends_on_response))
}

/// What requests of a route cost of a limit: first of the use of the limit itself, then of limits that it stands in for.
fn costs<'p>(
    policy: &'p Policy,
    limit: LimitIndex,
    route: &'p Route,
) -> impl Iterator<Item = &'p Cost> {
    let own = route.limits.iter().filter(move |used| used.limit == limit);
    let for_others = route.limits.iter().filter(move |used| {
        used.limit != limit && policy.missing_key_chain(used.limit).any(|reached| reached == limit)
    });
    own.chain(for_others).map(|used| &used.cost)
}

/// The cost that the answer names.
fn named(cost: &Cost, entry: &LogEntry) -> Option<u32> {
    let source = cost.response_source()?;
    let trace = entry.trace.as_ref()?;
    let end = trace.end.as_ref().map(|end| &end.costs);
    let costs = end.or(trace.answer.as_ref().map(|answer| &answer.costs))?;
    match cost.bounded(costs.named(source)?) {
        NamedCost::Final(units) | NamedCost::AtLeast(units, _) => Some(units),
        NamedCost::Unread(_) => None,
    }
}
