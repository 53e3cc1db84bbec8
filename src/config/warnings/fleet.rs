//! Warnings about counting over a fleet: limits that the exchange does not help, and a section without effect.

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use crate::clock::Nanos;
use crate::limit::PROPAGATION_EXCHANGES;
use crate::policy::{Count, Limit, Scope};

pub(super) fn add_warnings(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    let counts_over_fleet = input.limits.iter().any(|defined| defined.limit.scope == Scope::Fleet);
    if let Some(at) = &input.fleet_at
        && !counts_over_fleet
    {
        let message = "fleet has no effect: no limit has scope: fleet".to_owned();
        list.add(Code::UnusedFleet, at, message, "write scope: fleet in a limit, or remove fleet");
    }
    let known_after = input.fleet.every.saturating_mul(PROPAGATION_EXCHANGES.into());
    for defined in input.limits.iter().filter(|defined| defined.limit.scope == Scope::Fleet) {
        let (limit, at) = (&defined.limit, &defined.at);
        let Some(span) = counted_span(limit).filter(|span| *span < known_after) else {
            continue;
        };
        let message = format!(
            "limit {:?} counts over {span:?}, and a count reaches the other nodes within \
             {known_after:?}: each node counts mostly by itself",
            limit.name
        );
        let cure = "lower fleet.every to half of that time or less, or count over a longer time";
        list.add(Code::ExchangeTooSlow, at, message, cure);
    }
}

/// The time over which the limit counts what nodes exchange.
fn counted_span(limit: &Limit) -> Option<Nanos> {
    match &limit.count {
        Count::Estimate { rate, .. } => Some(rate.period()),
        Count::Exact { quota, .. } => {
            Some(limit.penalty.map_or(quota.window(), |penalty| penalty.within))
        }
        Count::InFlight { .. } => None,
    }
}
