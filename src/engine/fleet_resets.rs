//! What is forgotten of a key that counts over the fleet: by a reset, or by a ban, which clears the denials that led to it.

use super::fleet_denials::denial_key;
use super::state::Engine;
use crate::clock::Nanos;
use crate::estimator::{EstimateLimit, FleetView};
use crate::policy::KeyHash;

/// How long after a reset or a ban other nodes may still publish what they counted before: they hear of it through the store,
/// within a second or two.
const HEARD_WITHIN: Nanos = Nanos::from_secs(5);

impl Engine {
    /// Forgets what other nodes counted of a key, as far as they counted it before now.
    pub(super) fn forget_counts_of_others(&self, estimate: &EstimateLimit, key: KeyHash) {
        let Some(view) = estimate.fleet() else {
            return;
        };
        let until = self.shared_instant().latest.saturating_add(HEARD_WITHIN);
        self.fleet().forgotten.forget(key, until, estimate.rate().period());
        view.forget(key);
    }

    /// Forgets the denials that led to the latest ban of a key, on this node and of others, unless that was done. Returns whether
    /// it did.
    pub(super) fn clear_banned_denials(
        &self,
        view: &FleetView,
        period: Nanos,
        key: KeyHash,
    ) -> bool {
        let now = self.now();
        let Some(until) = self.bans.latest_until(key) else {
            return false;
        };
        // Since then all windows have ended.
        if until.saturating_add(period.saturating_mul(2)) <= now.mono {
            return false;
        }
        let ended_before = now.mono.saturating_sub(until);
        let ended = self.confirm.clock().read(now).latest.saturating_sub(ended_before);
        let denials = denial_key(key);
        let believed_from = ended.saturating_add(HEARD_WITHIN);
        if !self.fleet().forgotten.forget_denials(denials, until, believed_from, period) {
            return false;
        }
        self.confirm.reset(denials);
        view.forget(denials);
        true
    }
}
