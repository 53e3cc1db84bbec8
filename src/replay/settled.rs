//! What a request costs in the end, as far as the log says: after its answer has refunded a charge or named a cost.

use super::entry::LogEntry;
use crate::engine::{AnsweredBy, LimitVerdict};
use crate::policy::{Cost, Limit, NamedCost, Route};

/// The units that a request demands of a limit of its route. Without an answer in the log it is what was charged first.
pub(super) fn units(
    found: &LimitVerdict,
    limit: &Limit,
    route: Option<&Route>,
    entry: &LogEntry,
) -> u32 {
    let answer = entry.trace.as_ref().and_then(|trace| trace.answer.as_ref());
    let by_origin = answer.is_none_or(|answer| answer.by != AnsweredBy::Proxy);
    let status = answer.map(|answer| answer.status).or(entry.status).filter(|status| *status != 0);
    if status.is_some_and(|status| limit.status_rules.refunds(status, by_origin)) {
        return 0;
    }
    let mut used = route.into_iter().flat_map(|route| &route.limits);
    let cost = used.find(|used| used.limit == found.limit).map(|used| &used.cost);
    cost.and_then(|cost| named(cost, entry)).unwrap_or(found.cost)
}

/// Whether the answer may change what a limit has charged for a request, so that it holds units until then.
pub(super) fn is_settled_later(limit: &Limit, route: &Route) -> bool {
    limit.status_rules.depends_on_status()
        || route.limits.iter().any(|used| used.cost.depends_on_response())
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
