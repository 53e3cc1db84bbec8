//! Keys whose counts are forgotten: an operator has reset them, or a ban has cleared their denials.
//!
//! What other nodes published before is still in the store: a live node withdraws it a moment later, one that has ended never
//! does. So counts of a node that had not heard of a reset are not believed, nor denials that were published until a ban. To
//! forget too much admits more, and refuses nobody.

use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::heard::Heard;
use crate::clock::Nanos;
use crate::policy::KeyHash;

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
    /// How often something was forgotten. It tells what a view leaves out from what it does not leave out yet.
    pub(super) count: u64,
}

/// What is forgotten of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forgetting {
    /// Counts of nodes that had not heard so much are not believed.
    pub(super) heard: Heard,
    /// What was published until then (shared time) is not believed.
    pub(super) until: Nanos,
    /// The end of the latest ban (monotonic) that cleared its denials.
    ban_until: Nanos,
    /// From when on (shared time) no window has counts from before.
    over: Nanos,
}

impl Forgotten {
    /// Forgets what nodes counted of a key that have not heard so much, under a limit with windows of this length. `now`: the
    /// latest that the shared time can be. Returns how often something was forgotten.
    pub(in crate::engine) fn forget(
        &self,
        key: KeyHash,
        heard: Heard,
        now: Nanos,
        period: Nanos,
    ) -> u64 {
        let mut forgettings = self.forgettings.lock();
        let forgetting = forgettings.obtain(key);
        forgetting.heard = forgetting.heard.and(heard);
        forgetting.keep(now, period);
        self.has_any.store(true, Ordering::Release);
        forgettings.count
    }

    /// Forgets the denials that led to a ban which ends at `ban_until` (monotonic), as far as they were published until an instant
    /// (shared time). Returns how often something was forgotten; `None`: this was done before.
    pub(in crate::engine) fn forget_denials(
        &self,
        key: KeyHash,
        ban_until: Nanos,
        until: Nanos,
        period: Nanos,
    ) -> Option<u64> {
        let mut forgettings = self.forgettings.lock();
        let forgetting = forgettings.obtain(key);
        if ban_until <= forgetting.ban_until {
            return None;
        }
        forgetting.ban_until = ban_until;
        forgetting.until = forgetting.until.max(until);
        forgetting.keep(until, period);
        self.has_any.store(true, Ordering::Release);
        Some(forgettings.count)
    }

    /// How often something was forgotten.
    pub(super) fn count(&self) -> u64 {
        if self.has_any.load(Ordering::Acquire) { self.forgettings.lock().count } else { 0 }
    }

    /// The numbers of changes begin anew: those that are known mean nothing any more.
    pub(in crate::engine) fn begin_anew(&self) {
        let mut forgettings = self.forgettings.lock();
        forgettings.count += 1;
        forgettings.by_key.values_mut().for_each(|forgetting| forgetting.heard = Heard::default());
    }

    /// What a node has to have heard of whose counts of a key are believed.
    pub(super) fn needed(&self, key: KeyHash) -> Heard {
        if !self.has_any.load(Ordering::Acquire) {
            return Heard::default();
        }
        let forgettings = self.forgettings.lock();
        forgettings.by_key.get(&key).map(|forgetting| forgetting.heard).unwrap_or_default()
    }

    /// All of them, without those whose windows are over.
    pub(super) fn snapshot(&self, now: Nanos) -> Forgettings {
        if !self.has_any.load(Ordering::Acquire) {
            return Forgettings::default();
        }
        let mut forgettings = self.forgettings.lock();
        forgettings.by_key.retain(|_, forgetting| forgetting.over > now);
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

    /// Whether a count is believed that was published at an instant (shared time) by a node that had heard so much.
    pub(super) fn believes(&self, key: KeyHash, heard: Heard, at: Nanos) -> bool {
        let forgetting = self.by_key.get(&key);
        forgetting
            .is_none_or(|forgetting| heard.includes(forgetting.heard) && at > forgetting.until)
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
        let heard = |changes| Heard { changes };
        let all = forgotten.snapshot(at(9));
        assert!(all.believes(KEY, heard(0), at(1)) && all.count == 0);
        assert_eq!(forgotten.forget(KEY, heard(5), at(10), at(60)), 1);
        assert_eq!(forgotten.forget(KEY, heard(3), at(11), at(60)), 2);
        let all = forgotten.snapshot(at(12));
        assert!(!all.believes(KEY, heard(4), at(100)) && all.believes(KEY, heard(5), at(1)));
        assert!(all.believes(KeyHash { high: 2, low: 2 }, heard(0), at(1)));
        assert_eq!((forgotten.needed(KEY), all.count), (heard(5), 2));
        // Two windows later nothing from before counts.
        assert!(!forgotten.snapshot(at(130)).believes(KEY, heard(4), at(100)));
        assert!(forgotten.snapshot(at(131)).believes(KEY, heard(4), at(100)));
    }

    #[test]
    fn numbers_that_begin_anew_forget_nothing() {
        let (forgotten, at) = (Forgotten::default(), Nanos::from_secs);
        let _count = forgotten.forget(KEY, Heard { changes: 57 }, at(10), at(60));
        forgotten.begin_anew();
        assert!(forgotten.snapshot(at(11)).believes(KEY, Heard { changes: 1 }, at(11)));
    }

    #[test]
    fn the_denials_of_a_ban_are_forgotten_once() {
        let (forgotten, at) = (Forgotten::default(), Nanos::from_secs);
        assert_eq!(forgotten.forget_denials(KEY, at(20), at(10), at(60)), Some(1));
        assert_eq!(forgotten.forget_denials(KEY, at(20), at(15), at(60)), None);
        let all = forgotten.snapshot(at(11));
        assert!(!all.believes(KEY, Heard::default(), at(10)));
        assert!(all.believes(KEY, Heard::default(), at(11)));
    }
}
