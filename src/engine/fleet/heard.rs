//! What a node has heard of that makes nodes forget: it tells with each chunk how far it is, so that others know which counts
//! are of the time before. Each is the store's number of an event, and not a time of this node: a count is believed as soon as
//! its node has heard, and not before.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

/// How far a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Heard {
    /// The number of the latest change of operators that the node has made (`store/redis/key_rules.lua`).
    pub(in crate::engine) changes: u64,
    /// Up to which report of a ban the node has heard of all (`store/redis/bans.lua`).
    pub(in crate::engine) bans: u64,
}

/// Which changes this node has made.
#[derive(Debug, Default)]
pub(in crate::engine) struct MadeChanges {
    latest: AtomicU64,
    /// Whether it is known which there are.
    is_known: AtomicBool,
    /// Whether this process counts on from what was counted before it began.
    continues: AtomicBool,
    /// How often the latest was set. Whoever advances it holds the lock.
    set_count: Mutex<u64>,
}

impl Heard {
    /// Whether a node that is so far has also heard of `other`.
    pub(super) const fn includes(self, other: Self) -> bool {
        self.changes >= other.changes && self.bans >= other.bans
    }
}

impl MadeChanges {
    /// The number of the latest.
    pub(in crate::engine) fn latest(&self) -> u64 {
        self.latest.load(Ordering::Acquire)
    }

    /// Whether this node has ever been told which changes there are.
    pub(in crate::engine) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    /// How often it was set, by whatever another process had made or because it is not known any more.
    pub(in crate::engine) fn set_count(&self) -> u64 {
        *self.set_count.lock()
    }

    /// What this node counts is without all up to this one, and no others. Does `also` before anybody else changes it.
    pub(in crate::engine) fn set_latest(&self, number: u64, also: impl FnOnce()) {
        let mut set_count = self.set_count.lock();
        *set_count += 1;
        self.latest.store(number, Ordering::Release);
        self.is_known.store(true, Ordering::Release);
        also();
    }

    /// This node has made all up to this one, and does `also`, if the latest was not set since it was set so often. Returns whether it
    /// was not.
    pub(in crate::engine) fn advance(
        &self,
        set_count: u64,
        number: u64,
        also: impl FnOnce(),
    ) -> bool {
        let counted = self.set_count.lock();
        if *counted != set_count {
            return false;
        }
        self.latest.store(number, Ordering::Release);
        self.is_known.store(true, Ordering::Release);
        also();
        true
    }

    /// It is not known any more which there are, and does `also`, if the latest was not set since it was set so often. Returns whether
    /// it was not.
    pub(in crate::engine) fn forget(&self, set_count: u64, also: impl FnOnce()) -> bool {
        let mut counted = self.set_count.lock();
        if *counted != set_count {
            return false;
        }
        *counted += 1;
        self.is_known.store(false, Ordering::Release);
        self.latest.store(0, Ordering::Release);
        also();
        true
    }

    /// This process counts on from what was counted before it began.
    #[cfg(feature = "bin")]
    pub(in crate::engine) fn set_continuing(&self) {
        self.continues.store(true, Ordering::Release);
    }

    pub(in crate::engine) fn is_continuing(&self) -> bool {
        self.continues.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_over_meanwhile_is_not_forgotten() {
        let made = MadeChanges::default();
        made.set_latest(5, || {});
        let count = made.set_count();
        made.set_latest(7, || {});
        assert!(!made.forget(count, || panic!("it was set")));
        assert!(!made.advance(count, 9, || panic!("it was set")));
        assert_eq!((made.latest(), made.is_known()), (7, true));
        let mut is_done = false;
        assert!(made.forget(made.set_count(), || is_done = true));
        assert_eq!((made.latest(), made.is_known(), is_done), (0, false, true));
    }
}
