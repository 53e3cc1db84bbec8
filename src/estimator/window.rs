//! A count-min sketch over a moving window, turned by our own clock.
//!
//! ```text
//!   │   previous   │   current    │
//!   ├──────────────┼──────────────┤
//!        ├────────────────┤ now         the sum of both slots covers every moving window
//! ```
//!
//! The counters are `pingora_limits`' own; its `Rate` is not used, since it reads a clock by
//! itself, and a thread that read it before another turned the window zeroes both slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use pingora_limits::estimator::Estimator;

use crate::clock::{Nanos, Now};
use crate::limit::{SKETCH_ROWS, SketchSize};
use crate::policy::KeyHash;

/// Keys that are probed for the noise.
const PROBES: u64 = 64;

/// What a key is for the rows, which hash it again, four times for each slot: half of the hash is as
/// random as the whole, and less to hash.
const fn row_key(key: KeyHash) -> u64 {
    key.low
}

/// Times that a charge follows a sketch that is turned under it. Each needs two whole windows to
/// pass between two instructions.
const MAX_FOLLOWS: usize = 8;

/// Two slots of a sketch.
#[derive(Debug)]
pub(super) struct Window {
    size: SketchSize,
    period: Nanos,
    slots: ArcSwap<Slots>,
    /// The index of the slots, once they are in place: to read it costs less than the slots do.
    newest: AtomicU64,
    /// Held by the one who turns.
    turning: Mutex<()>,
}

struct Slots {
    /// Which window `current` belongs to, counted from the epoch.
    index: u64,
    current: Arc<Estimator>,
    /// The index that `previous` had when it was the current one.
    before: u64,
    previous: Arc<Estimator>,
}

/// What was charged to which slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotReceipt {
    index: u64,
    key: KeyHash,
    cost: u32,
}

impl SlotReceipt {
    pub(super) const fn key(&self) -> KeyHash {
        self.key
    }

    pub(super) const fn cost(&self) -> u32 {
        self.cost
    }
}

impl Window {
    pub(super) fn new(size: SketchSize, period: Nanos, now: Now) -> Self {
        let index = now.wall.get() / period.get();
        let slots = Slots { index, current: empty(size), before: index, previous: empty(size) };
        Self {
            size,
            period,
            slots: ArcSwap::from_pointee(slots),
            newest: AtomicU64::new(index),
            turning: Mutex::new(()),
        }
    }

    pub(super) const fn size(&self) -> SketchSize {
        self.size
    }

    /// Adds `cost` and reads the key over both slots. Never too little: a slot that was turned
    /// away while it was charged is charged again where it counts.
    pub(super) fn charge(&self, key: KeyHash, cost: u32) -> (u64, SlotReceipt) {
        self.charge_from(self.slots.load(), key, cost)
    }

    /// `slots` may have been turned away since they were loaded.
    fn charge_from(
        &self,
        mut slots: Guard<Arc<Slots>>,
        key: KeyHash,
        cost: u32,
    ) -> (u64, SlotReceipt) {
        let mut follows = 0;
        loop {
            // (The previous slot first: a processor waits for what was added before it reads on,
            // and not for what it reads before it adds.)
            let previous = slots.previous.get(row_key(key));
            let current = slots.current.incr(row_key(key), cost as isize);
            let sum = counted(current).saturating_add(counted(previous));
            let index = slots.index;
            if self.newest.load(Ordering::SeqCst) == index {
                // Turned away once at most: not before that turn is over does this change.
                return (sum, SlotReceipt { index, key, cost });
            }
            let now = self.slots.load();
            // One turn later the charged slot is the previous one and still counts.
            if now.index == index || now.before == index || follows == MAX_FOLLOWS {
                return (sum, SlotReceipt { index, key, cost });
            }
            follows += 1;
            slots = now;
        }
    }

    /// Reads the key over both slots.
    pub(super) fn sum(&self, key: KeyHash) -> u64 {
        let slots = self.slots.load();
        let key = row_key(key);
        counted(slots.current.get(key)).saturating_add(counted(slots.previous.get(key)))
    }

    /// Takes a charge out of the slot it was made to, if that still counts.
    pub(super) fn refund(&self, receipt: SlotReceipt) {
        let slots = self.slots.load();
        if receipt.index == slots.index {
            slots.current.decr(row_key(receipt.key), receipt.cost as isize);
        } else if receipt.index == slots.before {
            slots.previous.decr(row_key(receipt.key), receipt.cost as isize);
        }
    }

    /// Puts an empty slot with new seeds in front when the window of `now` is a later one. Of
    /// several who come at once one turns.
    pub(super) fn rotate(&self, now: Now) {
        let index = now.wall.get() / self.period.get();
        if self.slots.load().index >= index {
            return;
        }
        let Some(_turning) = self.turning.try_lock() else {
            return;
        };
        let slots = self.slots.load_full();
        if slots.index >= index {
            return;
        }
        // Also after a gap of several windows: a late turn left charges of the window that has just
        // ended in the slot of an earlier one. Kept too long they only make suspects.
        let previous = Arc::clone(&slots.current);
        self.slots.store(Arc::new(Slots {
            index,
            current: empty(self.size),
            before: slots.index,
            previous,
        }));
        self.newest.store(index, Ordering::SeqCst);
    }

    /// What keys read that nobody has sent, on average.
    pub(super) fn noise(&self) -> u64 {
        // Seeds are random, so any fixed keys are as good as random ones.
        (0..PROBES).map(|probe| self.sum(KeyHash { high: probe, low: !probe })).sum::<u64>()
            / PROBES
    }
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots").field("index", &self.index).finish_non_exhaustive()
    }
}

fn empty(size: SketchSize) -> Arc<Estimator> {
    // The bound on the width keeps this within usize.
    Arc::new(Estimator::new(SKETCH_ROWS, size.width() as usize))
}

/// A counter that a race left below zero has counted nothing.
fn counted(counter: isize) -> u64 {
    u64::try_from(counter).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Rate;

    fn at(window: u64) -> Now {
        let wall = Nanos::from_secs(window);
        Now { mono: wall, wall }
    }

    fn window() -> Window {
        let rate = Rate::ONE_PER_SECOND;
        Window::new(SketchSize::new(rate, 1), rate.period(), at(100))
    }

    const KEY: KeyHash = KeyHash { high: 1, low: 2 };

    #[test]
    fn a_charge_to_slots_that_were_turned_away_is_made_again_where_it_counts() {
        for turns in 0..5 {
            let window = window();
            let stale = window.slots.load();
            (0..turns).for_each(|turn| window.rotate(at(101 + turn)));
            let (_, receipt) = window.charge_from(stale, KEY, 3);
            assert_eq!(window.sum(KEY), 3, "after {turns} turns");
            window.refund(receipt);
            assert_eq!(window.sum(KEY), 0);
        }
    }

    #[test]
    fn a_charge_counts_for_two_windows_and_longer_when_a_turn_is_late() {
        let window = window();
        window.charge(KEY, 1);
        window.rotate(at(101));
        window.charge(KEY, 1);
        assert_eq!(window.sum(KEY), 2);
        // Nobody turned for three windows: the slot holds charges of any of them.
        window.rotate(at(104));
        assert_eq!(window.sum(KEY), 1);
        window.rotate(at(105));
        assert_eq!(window.sum(KEY), 0);
        window.rotate(at(103));
        window.charge(KEY, 1);
        assert_eq!(window.sum(KEY), 1, "a time that runs back turns nothing");
    }
}
