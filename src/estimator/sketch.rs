//! A count-min sketch over a moving window, in two slots.
//!
//! ```text
//!   │   previous   │   current    │
//!   ├──────────────┼──────────────┤
//!        ├────────────────┤ now         the sum of both slots covers every moving window
//! ```
//!
//! The sketch never reads too little: it only over-counts. It knows no limit and reads no clock; housekeeping
//! rotates its slots. The counters are those of `pingora_limits`. Its `Rate` is not used: that type reads a clock by
//! itself, and a thread that read the clock before another thread rotated the window zeroes both slots.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use pingora_limits::estimator::Estimator;

use crate::clock::{Nanos, Now};
use crate::limit::{SKETCH_ROWS, SketchSize};
use crate::policy::KeyHash;

/// Keys that are read to estimate the noise.
const NOISE_PROBES: u64 = 64;

/// A time that is behind by so much was set back. By less, the bounds of a shared time have moved.
const SET_BACK: Nanos = Nanos::from_secs(60);

/// How often a charge is repeated because the slots were rotated meanwhile. For each repetition, two windows must begin
/// between two instructions.
const MAX_FOLLOWS: usize = 8;

/// The sketch of one limit.
#[derive(Debug)]
pub(super) struct Sketch {
    size: SketchSize,
    period: Nanos,
    slots: ArcSwap<SketchSlots>,
    /// The window of `slots`, written after them. Reading it costs less than loading the slots.
    newest: AtomicU64,
    /// Held by the thread that rotates.
    rotating: Mutex<()>,
}

struct SketchSlots {
    /// The window that `current` belongs to, counted from the epoch.
    window: u64,
    current: Arc<Estimator>,
    /// The window that `previous` belonged to when it was the current slot.
    previous_window: u64,
    previous: Arc<Estimator>,
}

/// What was charged to which slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SketchReceipt {
    window: u64,
    key: KeyHash,
    cost: u32,
}

/// A charge in the sketch.
#[derive(Clone, Copy, Debug)]
pub(super) struct SketchCharge {
    /// Units that the key reads over both slots, the charge included.
    pub(super) sum: u64,
    pub(super) receipt: SketchReceipt,
}

impl SketchReceipt {
    pub(super) const fn key(&self) -> KeyHash {
        self.key
    }

    pub(super) const fn cost(&self) -> u32 {
        self.cost
    }
}

impl Sketch {
    pub(super) fn new(size: SketchSize, period: Nanos, now: Now) -> Self {
        let window = now.wall.get() / period.get();
        let slots = SketchSlots {
            window,
            current: empty(size),
            previous_window: window,
            previous: empty(size),
        };
        Self {
            size,
            period,
            slots: ArcSwap::from_pointee(slots),
            newest: AtomicU64::new(window),
            rotating: Mutex::new(()),
        }
    }

    pub(super) const fn size(&self) -> SketchSize {
        self.size
    }

    /// Adds `cost` and reads the key over both slots. The sum is never too small: a charge to a slot that is rotated
    /// out meanwhile is made again in the slots that count.
    pub(super) fn charge(&self, key: KeyHash, cost: u32) -> SketchCharge {
        self.charge_from(self.slots.load(), key, cost)
    }

    /// Charges `slots`, which may have been rotated out since they were loaded.
    fn charge_from(
        &self,
        mut slots: Guard<Arc<SketchSlots>>,
        key: KeyHash,
        cost: u32,
    ) -> SketchCharge {
        let mut follows = 0;
        loop {
            // The previous slot is read first: an atomic addition makes the processor wait before later reads, but
            // not for earlier ones.
            let previous = slots.previous.get(row_key(key));
            let current = slots.current.incr(row_key(key), cost as isize);
            let sum = counted(current).saturating_add(counted(previous));
            let window = slots.window;
            let charge = SketchCharge { sum, receipt: SketchReceipt { window, key, cost } };
            if self.newest.load(Ordering::SeqCst) == window {
                // The slots were rotated at most once: `newest` changes only after a rotation.
                return charge;
            }
            let latest = self.slots.load();
            // One rotation later the charged slot is the previous one and still counts.
            let still_counts = latest.window == window || latest.previous_window == window;
            if still_counts || follows == MAX_FOLLOWS {
                return charge;
            }
            follows += 1;
            slots = latest;
        }
    }

    /// Reads the key over both slots.
    pub(super) fn sum(&self, key: KeyHash) -> u64 {
        let slots = self.slots.load();
        let key = row_key(key);
        counted(slots.current.get(key)).saturating_add(counted(slots.previous.get(key)))
    }

    /// Takes a charge out of its slot, if that still counts.
    pub(super) fn refund(&self, receipt: SketchReceipt) {
        let slots = self.slots.load();
        if receipt.window == slots.window {
            slots.current.decr(row_key(receipt.key), receipt.cost as isize);
        } else if receipt.window == slots.previous_window {
            slots.previous.decr(row_key(receipt.key), receipt.cost as isize);
        }
    }

    /// Begins the window of `now` (the time of the confirm table) with an empty slot with new seeds, if that window is later than
    /// the current one, or the time was set back. Of several threads that call this at once, one rotates.
    pub(super) fn rotate(&self, now: Nanos) {
        let window = now.get() / self.period.get();
        let newest = window.saturating_add(SET_BACK.get() / self.period.get() + 1);
        let is_current = |slots: &SketchSlots| (window..=newest).contains(&slots.window);
        if is_current(&self.slots.load()) {
            return;
        }
        let Some(_rotating) = self.rotating.try_lock() else {
            return;
        };
        let slots = self.slots.load_full();
        if is_current(&slots) {
            return;
        }
        // The current slot becomes the previous one, also after a gap of several windows: when a rotation is late, the
        // slot of an earlier window holds charges of the window that has just ended. Charges that are kept too long
        // only make suspects.
        let previous = Arc::clone(&slots.current);
        self.slots.store(Arc::new(SketchSlots {
            window,
            current: empty(self.size),
            previous_window: slots.window,
            previous,
        }));
        self.newest.store(window, Ordering::SeqCst);
    }

    /// Units that keys read on average although they sent nothing.
    pub(super) fn noise(&self) -> u64 {
        // Seeds are random, so any fixed keys are as good as random ones.
        (0..NOISE_PROBES).map(|probe| self.sum(KeyHash { high: probe, low: !probe })).sum::<u64>()
            / NOISE_PROBES
    }
}

impl fmt::Debug for SketchSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SketchSlots").field("window", &self.window).finish_non_exhaustive()
    }
}

fn empty(size: SketchSize) -> Arc<Estimator> {
    // The largest width fits into a usize.
    Arc::new(Estimator::new(SKETCH_ROWS, size.width() as usize))
}

/// What identifies a key in the rows. They hash it again, four times per slot; half of the key's hash is random enough
/// and takes less time.
const fn row_key(key: KeyHash) -> u64 {
    key.low
}

/// The value of a counter. A counter that a race left below zero has counted nothing.
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

    fn sketch() -> Sketch {
        let rate = Rate::PER_SECOND;
        Sketch::new(SketchSize::new(rate, 1), rate.period(), at(100))
    }

    const KEY: KeyHash = KeyHash { high: 1, low: 2 };

    #[test]
    fn a_charge_to_slots_that_were_rotated_out_is_repeated_in_the_slots_that_count() {
        for rotations in 0..5 {
            let sketch = sketch();
            let stale = sketch.slots.load();
            (0..rotations).for_each(|rotation| sketch.rotate(at(101 + rotation).wall));
            let charge = sketch.charge_from(stale, KEY, 3);
            assert_eq!(sketch.sum(KEY), 3, "after {rotations} rotations");
            sketch.refund(charge.receipt);
            assert_eq!(sketch.sum(KEY), 0);
        }
    }

    #[test]
    fn a_charge_counts_for_two_windows_and_for_longer_when_a_rotation_is_late() {
        let sketch = sketch();
        sketch.charge(KEY, 1);
        sketch.rotate(at(101).wall);
        sketch.charge(KEY, 1);
        assert_eq!(sketch.sum(KEY), 2);
        // Three windows without a rotation: the slot holds charges of each of them.
        sketch.rotate(at(104).wall);
        assert_eq!(sketch.sum(KEY), 1);
        sketch.rotate(at(105).wall);
        assert_eq!(sketch.sum(KEY), 0);
        sketch.rotate(at(103).wall);
        sketch.charge(KEY, 1);
        assert_eq!(sketch.sum(KEY), 1, "a time that runs back a little rotates nothing");
        // The clock was set back.
        sketch.rotate(at(43).wall);
        sketch.rotate(at(44).wall);
        assert_eq!(sketch.sum(KEY), 0);
    }
}
