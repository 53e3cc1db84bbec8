//! The peak rate of a key: the largest number of units in a window of its limit's length, in fixed memory.
//!
//! ```text
//!   slots of an eighth of the window      | 3 | 0 | 9 | 4 | 4 | 0 | 0 | 7 | 5 |
//!   the window that ends with this slot       +---------- 24 units ----------+
//! ```
//!
//! An approximation: windows begin at multiples of an eighth of their length, so the peak is a lower bound. It is at
//! least half of the true peak, because any window lies in nine slots and two groups of eight cover these. It is exact
//! for requests that lie within seven eighths of a window, as a burst does.

use crate::clock::Nanos;

/// Slots of a window.
const SLOTS: usize = 8;
/// The same, for times.
const SLOTS_OF_WINDOW: u64 = 8;

/// The units of one key in the last slots.
#[derive(Clone, Debug, Default)]
pub(super) struct PeakWindow {
    /// The latest slot that was counted in.
    latest: u64,
    units: [u32; SLOTS],
}

impl PeakWindow {
    /// Counts units in a slot, and gives the units of the window that ends with the latest slot. Sums end at the largest
    /// `u32`.
    pub(super) fn add(&mut self, slot: u64, cost: u32) -> u32 {
        if slot > self.latest {
            self.advance(slot);
        } else if self.latest - slot >= SLOTS_OF_WINDOW {
            // A late request, from a window that has passed.
            return 0;
        }
        let units = &mut self.units[index(slot)];
        *units = units.saturating_add(cost);
        let sum: u64 = self.units.iter().map(|units| u64::from(*units)).sum();
        u32::try_from(sum).unwrap_or(u32::MAX)
    }

    fn advance(&mut self, slot: u64) {
        if slot - self.latest >= SLOTS_OF_WINDOW {
            self.units = [0; SLOTS];
        } else {
            for passed in self.latest + 1..=slot {
                self.units[index(passed)] = 0;
            }
        }
        self.latest = slot;
    }
}

/// The remainder is less than the number of slots.
fn index(slot: u64) -> usize {
    (slot % SLOTS_OF_WINDOW) as usize
}

/// Gives the slots of times. Times of one slot cost no division.
#[derive(Clone, Debug)]
pub(super) struct SlotClock {
    width: u64,
    /// When the slot of the last time began.
    begin: u64,
    slot: u64,
}

impl SlotClock {
    pub(super) fn new(window: Nanos) -> Self {
        Self { width: (window.get() / SLOTS_OF_WINDOW).max(1), begin: 0, slot: 0 }
    }

    pub(super) fn slot(&mut self, at: Nanos) -> u64 {
        let is_same = at.get().checked_sub(self.begin).is_some_and(|passed| passed < self.width);
        if !is_same {
            self.slot = at.get() / self.width;
            self.begin = self.slot * self.width;
        }
        self.slot
    }
}
