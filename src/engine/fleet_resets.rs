//! What is forgotten of a key that counts over the fleet: by a reset, or by a ban, which clears the denials that led to it.

use super::fleet::Heard;
use super::fleet_denials::denial_key;
use super::state::Engine;
use crate::clock::Nanos;
use crate::estimator::{EstimateLimit, FleetView};
use crate::policy::KeyHash;

/// How long after a ban other nodes may still publish the denials that led to it: they hear of it through the store, within a
/// second or two.
const HEARD_WITHIN: Nanos = Nanos::from_secs(5);

impl Engine {
    /// The number of the latest change of operators that this node has made.
    pub fn heard_changes(&self) -> u64 {
        self.fleet().heard.get().changes
    }

    /// Records that this node has made all changes of operators up to this number. A lower number than before: the store has
    /// another history, and numbers begin anew.
    pub fn set_heard_changes(&self, changes: u64) {
        if changes < self.heard_changes() {
            self.fleet().forgotten.begin_anew();
        }
        self.fleet().heard.set(Heard { changes });
    }

    /// Forgets what nodes counted of a key that have not made the change of this number yet.
    pub(super) fn forget_counts_of_others(
        &self,
        estimate: &EstimateLimit,
        key: KeyHash,
        change: u64,
    ) {
        let Some(view) = estimate.fleet() else {
            return;
        };
        let (heard, now) = (Heard { changes: change }, self.shared_instant().latest);
        let period = estimate.rate().period();
        view.forget(key, self.fleet().forgotten.forget(key, heard, now, period));
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
        let forgotten = &self.fleet().forgotten;
        let Some(number) = forgotten.forget_denials(denials, until, believed_from, period) else {
            return false;
        };
        self.confirm.reset(denials);
        view.forget(denials, number);
        true
    }
}
