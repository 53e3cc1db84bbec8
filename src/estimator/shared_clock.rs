//! The time by which all nodes of a fleet divide windows: that of their store.
//!
//! Between two replies of the store a node knows its time only within bounds. Charges are dated by the earliest time that
//! it can be, and sums over nodes are judged at the latest: a unit then counts at most as long as it would on a node that
//! knew the time. Until the first reply, and without a fleet, the node's own wall time is used.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Nanos, Now};

/// Bounds of the store's time, as offsets from the monotonic time. Each bound is true by itself, so a reader that sees one of
/// them a moment earlier than the other reads no wrong time.
#[derive(Debug, Default)]
pub struct SharedClock {
    /// Zero: not known.
    earliest: AtomicU64,
    latest: AtomicU64,
}

/// An instant by a [`SharedClock`] (wall time).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedInstant {
    /// The earliest time that it can be.
    pub earliest: Nanos,
    /// The latest.
    pub latest: Nanos,
}

impl SharedClock {
    /// Sets the bounds of the store's time less the monotonic time.
    pub fn set(&self, earliest: Nanos, latest: Nanos) {
        self.latest.store(latest.get(), Ordering::Relaxed);
        self.earliest.store(earliest.get(), Ordering::Release);
    }

    /// The bounds that were set.
    pub fn bounds(&self) -> Option<(Nanos, Nanos)> {
        match self.earliest.load(Ordering::Acquire) {
            0 => None,
            earliest => {
                Some((Nanos::new(earliest), Nanos::new(self.latest.load(Ordering::Relaxed))))
            }
        }
    }

    /// What an instant is by this clock.
    pub fn read(&self, now: Now) -> SharedInstant {
        match self.bounds() {
            None => SharedInstant { earliest: now.wall, latest: now.wall },
            Some((earliest, latest)) => SharedInstant {
                earliest: now.mono.saturating_add(earliest),
                latest: now.mono.saturating_add(latest),
            },
        }
    }
}
