//! The counters of which the history keeps the differences.

use crate::engine::VerdictKind;
use crate::history::TrafficTotals;
use crate::proxy::{Live, RequestOutcome, TrafficCounters};

/// The counters as they are now: of every route that was ever configured, and of the limits in force.
pub fn traffic_totals(live: &Live, counters: &TrafficCounters) -> TrafficTotals {
    let routes = counters.routes().into_iter().map(|(name, counted)| {
        let [forwarded, limited, rejected, failed, redirected] =
            RequestOutcome::ALL.map(|outcome| counted.get(outcome));
        let authenticated = counted.limited_authenticated();
        (name, [forwarded, limited, rejected, failed, redirected, authenticated])
    });
    let limits = live.generation.policy().indexed_limits().map(|(index, limit)| {
        let counted = live.generation.counters(index);
        let sum = |kinds: &[VerdictKind]| kinds.iter().map(|kind| counted.get(*kind)).sum();
        let admitted = sum(&[
            VerdictKind::Allowed,
            VerdictKind::OverflowAllowed,
            VerdictKind::DegradedAllowed,
        ]);
        let refused =
            sum(&[VerdictKind::Denied, VerdictKind::OverflowDenied, VerdictKind::DegradedDenied]);
        let degraded = sum(&[VerdictKind::DegradedAllowed, VerdictKind::DegradedDenied]);
        let shadow = counted.get(VerdictKind::ShadowDenied);
        (std::sync::Arc::clone(&limit.name), [admitted, refused, degraded, shadow])
    });
    TrafficTotals { routes: routes.collect(), limits: limits.collect() }
}
