//! Puts the bounds of all limits into a report: what one limit refuses, another one is not charged for.

use super::observer::LimitBounds;
use super::tally::LimitSummary;

/// Adds the bounds of each limit whose times are not exact.
pub(super) fn add(limits: &mut [LimitSummary], bounds: Vec<LimitBounds>) {
    let found: Vec<_> = bounds.into_iter().map(|bounds| Some(bounds.stamps?.finish())).collect();
    let total: u64 = found.iter().flatten().map(|bounds| bounds.upper).sum();
    for (limit, bounds) in limits.iter_mut().zip(found) {
        if let Some(bounds) = bounds {
            let by_others = total.saturating_sub(bounds.upper);
            limit.bounds = Some((bounds.lower(by_others), bounds.upper));
        }
    }
}
