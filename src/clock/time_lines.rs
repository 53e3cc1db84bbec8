//! The two time lines of a clock, and how they follow the system's clock.
//!
//! `wall` and the date differ after the system's clock is set back. The date follows at once. `wall` never runs back:
//! otherwise windows would count twice, or keys would be locked out until the time of their window came again. Instead,
//! it slews:
//!
//! ```text
//!   wall                          the system's clock was ahead from a to b
//!    │           ┌──────────────────··  while ahead, a thousandth slower than mono
//!    │           │        ··──
//!    │           │   .─'' the date
//!    │         .─│─''
//!    └─────────a─b──────────────────► mono
//! ```
//!
//! So no count is lost and no key is locked out. While `wall` slews, a window lasts a thousandth longer, and the
//! `Retry-After` of a window may be too short by as much.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::nanos::Nanos;
use super::now::Now;

/// While `wall` is ahead of the system's clock, it is slower than `mono` by one part of this many. A bucket's rate may be
/// rounded by the same thousandth. A step of one minute is corrected in 17 hours. A faster slew would refuse keys that
/// keep to their limit; a slower one would have no benefit.
pub(super) const SLEW_DIVISOR: u64 = 1_000;

/// Smaller differences are ignored: if a thread is interrupted between the readings of the two clocks, this looks like a
/// step of some milliseconds.
pub(super) const SLEW_TOLERANCE: u64 = 100_000_000;

/// The time between the decision to slew and the beginning of the slew. Until then, all threads agree on `wall`.
const SLEW_NOTICE: u64 = Nanos::SECOND.get();

/// The value of the offset while `wall` is slewing.
const SLEWING: u64 = u64::MAX;

/// `wall` and the date as functions of `mono`. The functions change only when the system's clock is read.
#[derive(Debug)]
pub(super) struct TimeLines {
    /// `wall - mono`, or [`SLEWING`].
    offset: AtomicU64,
    /// `date - mono`.
    date_offset: AtomicU64,
    /// The present slew while `offset` is [`SLEWING`]. At other times it is locked only once per second.
    slew: RwLock<Slew>,
}

/// `wall - mono` while it shrinks, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Slew {
    /// The offset before the slew.
    offset: u64,
    /// When (on `mono`) it begins to shrink.
    from: u64,
    /// By how much it shrinks in total.
    by: u64,
}

impl Slew {
    const fn offset(self, mono: u64) -> u64 {
        let shrunk = mono.saturating_sub(self.from) / SLEW_DIVISOR;
        let shrunk = if shrunk < self.by { shrunk } else { self.by };
        self.offset.saturating_sub(shrunk)
    }
}

impl TimeLines {
    pub(super) fn new(offset: u64) -> Self {
        Self {
            offset: AtomicU64::new(offset),
            date_offset: AtomicU64::new(offset),
            slew: RwLock::default(),
        }
    }

    pub(super) fn at(&self, mono: u64) -> Now {
        let offset = match self.offset.load(Ordering::Acquire) {
            SLEWING => self.slewing(mono),
            offset => offset,
        };
        Now { mono: Nanos::new(mono), wall: Nanos::new(mono.saturating_add(offset)) }
    }

    /// (A function of its own, so that the code that every decision runs stays small.)
    #[cold]
    fn slewing(&self, mono: u64) -> u64 {
        self.slew.read().offset(mono)
    }

    pub(super) fn date(&self, at: Now) -> Nanos {
        Nanos::new(at.mono.get().saturating_add(self.date_offset.load(Ordering::Relaxed)))
    }

    /// Follows the system's clock, which reads `system` at `mono`: `wall` goes forwards at once, and back by a slew. A slew
    /// ends before another begins.
    pub(super) fn follow(&self, mono: u64, system: u64) {
        let wanted = system.saturating_sub(mono);
        self.date_offset.store(wanted, Ordering::Relaxed);
        let mut slew = self.slew.write();
        let before = self.offset.load(Ordering::Relaxed);
        let (offset, steady) = match before {
            SLEWING => (slew.offset(mono), slew.offset(mono) == slew.offset(u64::MAX)),
            offset => (offset, true),
        };
        if wanted >= offset {
            self.offset.store(wanted, Ordering::Release);
        } else if steady && offset - wanted > SLEW_TOLERANCE {
            *slew = Slew { offset, from: mono.saturating_add(SLEW_NOTICE), by: offset - wanted };
            self.offset.store(SLEWING, Ordering::Release);
        } else if steady {
            self.offset.store(offset, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Nanos = Nanos::from_secs(1_800_000_000);

    #[test]
    fn threads_agree_on_the_wall_while_a_slew_begins() {
        let lines = TimeLines::new(EPOCH.get());
        let before = lines.at(5 * Nanos::SECOND.get() + SLEW_NOTICE).wall;
        lines.follow(5 * Nanos::SECOND.get(), EPOCH.get());
        // A thread that read its offset before the step, and one that reads it after.
        assert_eq!(lines.at(5 * Nanos::SECOND.get() + SLEW_NOTICE).wall, before);
    }
}
