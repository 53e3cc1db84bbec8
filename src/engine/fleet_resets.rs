//! What is forgotten of a key that counts over the fleet: by a reset, or by a ban, which clears the denials that led to it.

use super::fleet::Heard;
use super::fleet_denials::denial_key;
use super::generation::Generation;
use super::state::Engine;
use crate::clock::Nanos;
use crate::estimator::{EstimateLimit, FleetView};
use crate::policy::KeyHash;

impl Engine {
    /// What this node has heard of. What it counts afterwards is without everything that it has forgotten until then.
    pub(super) fn heard(&self) -> Heard {
        Heard { changes: self.heard_changes(), bans: self.bans.heard() }
    }

    /// Whether this node knows what was forgotten before it began, so that it may use what others counted.
    pub(super) fn believes_counts(&self) -> bool {
        self.fleet().made_changes.is_known()
    }

    /// The same for denials, which are also forgotten by a ban.
    pub(super) fn believes_denials(&self) -> bool {
        self.believes_counts() && self.bans.heard() > 0
    }

    /// The number of the latest change of operators that this node has made.
    pub fn heard_changes(&self) -> u64 {
        self.fleet().made_changes.latest()
    }

    /// Records that this node has made all changes of operators up to this number.
    pub fn set_heard_changes(&self, changes: u64) {
        self.fleet().made_changes.set_latest(changes, || self.bans.set_made_changes(changes));
    }

    /// How often it was set which changes this node has made: when it took over what another process counted, for one.
    pub fn times_changes_were_set(&self) -> u64 {
        self.fleet().made_changes.set_count()
    }

    /// Records that this node has made all changes up to `changes`, unless it took over something since it was set `times` which it
    /// had made. Returns whether it did not.
    #[must_use]
    pub fn advance_heard_changes(&self, times: u64, changes: u64) -> bool {
        let also = || self.bans.set_made_changes(changes);
        self.fleet().made_changes.advance(times, changes, also)
    }

    /// This node is told of no changes. It uses what others counted, and its bans count whatever operators have forgiven: otherwise it
    /// could ban no key for a day that was reset.
    pub fn hear_no_changes(&self) {
        self.set_heard_changes(0);
        self.bans.set_made_changes(u64::MAX);
    }

    /// What this node has heard of changes is of no possible time, which is `time` now: a store has told it by a wrong clock. It is as
    /// if it had heard of none, unless it took over something since it was set `times` which it had made. Returns whether it did not.
    #[must_use]
    pub fn drop_heard_changes(&self, times: u64, time: u64) -> bool {
        let also = || self.bans.set_made_changes(0);
        let is_dropped = self.fleet().made_changes.forget(times, also);
        if is_dropped {
            self.fleet().forgotten.drop_after(time);
        }
        is_dropped
    }

    /// Some changes before the one of this number are not known any more. Counts of nodes that had made less are not believed, and
    /// if this node is one of them, it forgets what it counted itself: somebody may have been forgiven. `is_older`: they are older
    /// than everything that this node counted.
    pub fn forget_before(&self, generation: &Generation, change: u64, is_older: bool) {
        let periods = generation.estimates().map(|estimate| estimate.rate().period());
        let longest = periods.max().unwrap_or_default();
        let now = self.shared_instant().latest;
        self.fleet().forgotten.forget_before(change, now, longest);
        if self.heard_changes() < change && !is_older {
            self.confirm.reset_all();
            self.bans.forget_all();
        }
    }

    /// When this process began to count (monotonic); `None` if it counts on from what was counted before.
    pub fn counts_since(&self) -> Option<Nanos> {
        (!self.fleet().made_changes.is_continuing()).then_some(self.began)
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
        let (now, period) = (self.shared_instant().latest, estimate.rate().period());
        view.forget(key, self.fleet().forgotten.forget(key, change, now, period));
    }

    /// Forgets the denials that led to the latest ban of a key, on this node and of others, unless that was done. Returns whether
    /// it did.
    pub(super) fn clear_banned_denials(
        &self,
        view: &FleetView,
        period: Nanos,
        key: KeyHash,
    ) -> bool {
        let Some((until, reported_at)) = self.bans.latest_ban(key) else {
            return false;
        };
        // Since then all windows have ended.
        if until.saturating_add(period.saturating_mul(2)) <= self.now().mono {
            return false;
        }
        let (denials, now) = (denial_key(key, period), self.shared_instant().latest);
        let forgotten = &self.fleet().forgotten;
        let ban = (until, reported_at);
        let Some((number, is_other)) = forgotten.forget_denials(denials, ban, now, period) else {
            return false;
        };
        view.forget(denials, number);
        if is_other {
            self.confirm.reset(denials);
        }
        is_other
    }
}
