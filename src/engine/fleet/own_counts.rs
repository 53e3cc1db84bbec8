//! What this node counted itself and tells the other nodes.
//!
//! What must always hold: no unit of another node is among it, none that another limit may still refund, and no denial that a ban
//! has cleared.

use super::limits::{FleetLimit, FleetLimits};
use super::publication::{OwnCount, Publication};
use crate::clock::Nanos;
use crate::engine::Engine;
use crate::engine::fleet_denials::denial_key;
use crate::limit::{FleetBound, WindowPair};

/// What this node counted of keys that it publishes: those that are large enough, those that another node has published,
/// and those that it has published itself. `nodes`: how many are live; `now`: the earliest that the shared time can be.
pub(super) fn own_counts(
    engine: &Engine,
    limits: &FleetLimits,
    publication: &Publication,
    nodes: u32,
    now: Nanos,
) -> Vec<OwnCount> {
    let threshold = |limit: &FleetLimit| {
        FleetBound::of(limit.rate.count(), limits.terms.error_ppm, nodes).threshold
    };
    let forgotten = &engine.fleet().forgotten;
    let (mut own, mut banned) = (Vec::new(), Vec::new());
    engine.confirm_table().visit_counts(|count| {
        // Its cell is locked: what is tentative of it is known.
        let tentative = engine.fleet().tentative.of(count.key);
        for (limit, name) in limits.counted(&count) {
            let counted = count.counted.without(tentative);
            let units = limit.units(counted, now);
            let is_published = publication.has(name);
            if units < threshold(limit) && !is_published && !limit.view.has(count.key) {
                continue;
            }
            if units == 0 && !is_published {
                continue;
            }
            if limit.view.counts_denials() {
                banned.push((own.len(), limit, denial_key(count.key, count.period)));
            }
            let counted = if units > 0 { counted } else { nothing(limit, now) };
            own.push(OwnCount { name, counted, needed: forgotten.needed(count.key) });
        }
    });
    for (index, limit, key) in banned {
        // A ban clears the denials that led to it, also those that this node counted.
        if engine.clear_banned_denials(&limit.view, limit.rate.period(), key)
            && let Some(cleared) = own.get_mut(index)
        {
            cleared.counted = nothing(limit, now);
        }
    }
    own
}

/// A count of nothing, in the present window of a limit.
fn nothing(limit: &FleetLimit, now: Nanos) -> WindowPair {
    WindowPair::of_counts(((now.get() / limit.rate.period().get()) as u32, 0, 0))
}
