//! Keys whose counts are forgotten: an operator has reset them, or a ban has cleared their denials.
//!
//! What other nodes published before is still in the store: a live node withdraws it a moment later, one that has ended never
//! does. So counts of a node are not believed that had not heard of it. To forget too much admits more, and refuses nobody.

use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::heard::Heard;
use crate::clock::Nanos;
use crate::policy::KeyHash;
use crate::store::UNREPORTED;

/// The most keys: as many as counts of other nodes are kept. With so many, one of them is believed again.
const MAX_KEYS: usize = 131_072;

/// For each key, what is forgotten.
#[derive(Debug, Default)]
pub(in crate::engine) struct Forgotten {
    forgettings: Mutex<Forgettings>,
    /// Whether there are any, so that hardly anybody waits for the lock.
    has_any: AtomicBool,
}

/// What is forgotten, as of some moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Forgettings {
    by_key: HashMap<KeyHash, Forgetting>,
    /// Counts of nodes are not believed that had made less changes: what was forgotten before is not known.
    oldest_change: u64,
    /// From when on (shared time) no window has counts from before that.
    oldest_over: Nanos,
    /// How often something was forgotten. It tells what a view leaves out from what it does not leave out yet.
    pub(super) count: u64,
}

/// What is forgotten of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forgetting {
    /// Counts of nodes that had not heard so much are not believed.
    pub(super) heard: Heard,
    /// The end of the latest ban (monotonic) that cleared its denials.
    ban_until: Nanos,
    /// From when on (shared time) no window has counts from before.
    over: Nanos,
}

impl Forgotten {
    /// Forgets what nodes counted of a key that have not made a change of operators, under a limit with windows of this length.
    /// `now`: the latest that the shared time can be. Returns how often something was forgotten.
    pub(in crate::engine) fn forget(
        &self,
        key: KeyHash,
        change: u64,
        now: Nanos,
        period: Nanos,
    ) -> u64 {
        let mut forgettings = self.forgettings.lock();
        let forgetting = forgettings.obtain(key);
        forgetting.heard.changes = forgetting.heard.changes.max(change);
        // A node that has made the change has nothing from before, whatever it has heard of bans.
        (forgetting.heard.bans, forgetting.ban_until) = (0, Nanos::ZERO);
        forgetting.keep(now, period);
        self.has_any.store(true, Ordering::Release);
        forgettings.count
    }

    /// Forgets the denials that led to a ban, as far as nodes counted them that have not heard of it. `ban`: when it ends
    /// (monotonic), and when it was reported to the store, or [`UNREPORTED`]. Returns how often something was forgotten, and
    /// whether the ban is another one than before; `None`: this was done before.
    pub(in crate::engine) fn forget_denials(
        &self,
        key: KeyHash,
        ban: (Nanos, u64),
        now: Nanos,
        period: Nanos,
    ) -> Option<(u64, bool)> {
        let (ban_until, reported_at) = ban;
        let mut forgettings = self.forgettings.lock();
        let known = forgettings.by_key.get(&key).copied().unwrap_or_default();
        let is_same_until = reported_at != UNREPORTED || known.ban_until == ban_until;
        if known.heard.bans == reported_at && is_same_until {
            return None;
        }
        // Its maker learns later when it was reported.
        let is_other = known.heard.bans != UNREPORTED || reported_at == UNREPORTED;
        let forgetting = forgettings.obtain(key);
        (forgetting.ban_until, forgetting.heard.bans) = (ban_until, reported_at);
        forgetting.keep(now, period);
        self.has_any.store(true, Ordering::Release);
        Some((forgettings.count, is_other))
    }

    /// Forgets what nodes counted of any key that had not made the change of this number. `now`: the latest that the shared time can
    /// be; `period`: the longest window of a limit.
    pub(in crate::engine) fn forget_before(&self, change: u64, now: Nanos, period: Nanos) {
        let mut forgettings = self.forgettings.lock();
        forgettings.count += 1;
        forgettings.oldest_change = forgettings.oldest_change.max(change);
        forgettings.oldest_over = now.saturating_add(period.saturating_mul(2));
        self.has_any.store(true, Ordering::Release);
    }

    /// Drops what no node can have heard of: changes after this number, which a store has told by a wrong clock.
    pub(in crate::engine) fn drop_after(&self, change: u64) {
        let mut forgettings = self.forgettings.lock();
        forgettings.count += 1;
        if forgettings.oldest_change > change {
            forgettings.oldest_change = 0;
        }
        forgettings.by_key.retain(|_, forgetting| forgetting.heard.changes <= change);
    }

    /// How often something was forgotten.
    pub(super) fn count(&self) -> u64 {
        if self.has_any.load(Ordering::Acquire) { self.forgettings.lock().count } else { 0 }
    }

    /// What a node has to have heard of whose counts of a key are believed.
    pub(super) fn needed(&self, key: KeyHash) -> Heard {
        if !self.has_any.load(Ordering::Acquire) {
            return Heard::default();
        }
        let forgettings = self.forgettings.lock();
        let needed = forgettings.by_key.get(&key).map(|forgetting| forgetting.heard);
        let needed = needed.unwrap_or_default();
        Heard { changes: needed.changes.max(forgettings.oldest_change), ..needed }
    }

    /// All of them, without those whose windows are over.
    pub(super) fn snapshot(&self, now: Nanos) -> Forgettings {
        if !self.has_any.load(Ordering::Acquire) {
            return Forgettings::default();
        }
        let mut forgettings = self.forgettings.lock();
        forgettings.by_key.retain(|_, forgetting| forgetting.over > now);
        if forgettings.oldest_over <= now {
            forgettings.oldest_change = 0;
        }
        forgettings.clone()
    }
}

impl Forgettings {
    fn obtain(&mut self, key: KeyHash) -> &mut Forgetting {
        self.count += 1;
        if self.by_key.len() >= MAX_KEYS && !self.by_key.contains_key(&key) {
            let any = self.by_key.keys().next().copied();
            any.and_then(|any| self.by_key.remove(&any));
        }
        self.by_key.entry(key).or_default()
    }

    /// Whether anything is believed of a node that had heard so much.
    pub(super) const fn believes_node(&self, heard: Heard) -> bool {
        heard.changes >= self.oldest_change
    }

    /// Whether a count is believed of a node that had heard so much.
    pub(super) fn believes(&self, key: KeyHash, heard: Heard) -> bool {
        self.believes_node(heard)
            && self.by_key.get(&key).is_none_or(|forgetting| heard.includes(forgetting.heard))
    }
}

impl Forgetting {
    fn keep(&mut self, until: Nanos, period: Nanos) {
        self.over = self.over.max(until.saturating_add(period.saturating_mul(2)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyHash = KeyHash { high: 1, low: 2 };

    #[test]
    fn counts_are_believed_once_their_node_has_heard_of_the_reset() {
        let (forgotten, at) = (Forgotten::default(), Nanos::from_secs);
        let heard = |changes| Heard { changes, bans: 0 };
        let all = forgotten.snapshot(at(9));
        assert!(all.believes(KEY, heard(0)) && all.count == 0);
        assert_eq!(forgotten.forget(KEY, 5, at(10), at(60)), 1);
        assert_eq!(forgotten.forget(KEY, 3, at(11), at(60)), 2);
        let all = forgotten.snapshot(at(12));
        assert!(!all.believes(KEY, heard(4)) && all.believes(KEY, heard(5)));
        assert!(all.believes(KeyHash { high: 2, low: 2 }, heard(0)));
        assert_eq!((forgotten.needed(KEY), all.count), (heard(5), 2));
        // Two windows later nothing from before counts.
        assert!(!forgotten.snapshot(at(130)).believes(KEY, heard(4)));
        assert!(forgotten.snapshot(at(131)).believes(KEY, heard(4)));
    }

    #[test]
    fn counts_from_before_changes_that_are_not_known_are_not_believed() {
        let (forgotten, at) = (Forgotten::default(), Nanos::from_secs);
        let heard = |changes| Heard { changes, bans: 0 };
        forgotten.forget_before(7, at(9), at(60));
        forgotten.forget_before(5, at(9), at(60));
        let all = forgotten.snapshot(at(9));
        assert!(!all.believes(KEY, heard(6)) && all.believes(KEY, heard(7)));
        assert_eq!((forgotten.needed(KEY), all.count), (heard(7), 2));
        // A node that begins in another history has made less.
        assert!(!forgotten.snapshot(at(128)).believes(KEY, heard(0)));
        assert!(forgotten.snapshot(at(129)).believes(KEY, heard(0)));
        assert_eq!(forgotten.needed(KEY), heard(0));
    }

    #[test]
    fn changes_of_no_possible_time_hide_no_counts() {
        let (forgotten, at) = (Forgotten::default(), Nanos::from_secs);
        let (heard, other) = (|changes| Heard { changes, bans: 0 }, KeyHash { high: 2, low: 2 });
        forgotten.forget(KEY, 900, at(9), at(60));
        forgotten.forget(other, 5, at(9), at(60));
        forgotten.forget_before(800, at(9), at(60));
        forgotten.drop_after(7);
        let all = forgotten.snapshot(at(9));
        assert!(all.believes(KEY, heard(0)) && !all.believes(other, heard(4)));
    }

    #[test]
    fn the_denials_of_a_ban_are_forgotten_once_and_those_after_it_believed() {
        let (forgotten, at) = (Forgotten::default(), Nanos::from_secs);
        let believes = |bans| {
            let all = forgotten.snapshot(at(11));
            all.believes(KEY, Heard { changes: 0, bans })
        };
        let forget = |until, reported_at| {
            forgotten.forget_denials(KEY, (Nanos::from_millis(until), reported_at), at(10), at(60))
        };
        // Its maker does not know yet when it is reported: nothing is believed.
        assert_eq!(forget(20_000, u64::MAX), Some((1, true)));
        assert_eq!(forget(20_000, u64::MAX), None);
        assert!(!believes(1_000));
        assert_eq!(forget(20_003, 700), Some((2, false)), "it is the same ban");
        assert!(!believes(699) && believes(700));
        assert_eq!(forget(90_000, 900), Some((3, true)));
        assert!(!believes(899) && believes(900));
    }
}
