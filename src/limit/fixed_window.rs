//! `fixed_window`: the limit per window, windows aligned to multiples of their length since the
//! Unix epoch. Across an edge two limits can pass back to back.

use std::fmt;

use super::{Rate, Verdict};
use crate::clock::Nanos;

/// Units spent in one window. The default has spent nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Which window, counted from the epoch: the low half of its number.
    window: u32,
    count: u32,
}

impl Counter {
    /// Units of a window, counted from the epoch.
    pub(super) const fn of(window: u64, count: u32) -> Self {
        Self { window: window as u32, count }
    }
}

/// `rate.count` units in each window of `rate.period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    rate: Rate,
}

impl FixedWindow {
    /// Every rate makes a window.
    pub const fn new(rate: Rate) -> Self {
        Self { rate }
    }

    /// Units and length of a window.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    pub(super) fn judge(&self, cell: Counter, cost: u32, now: Nanos) -> Verdict {
        let limit = self.rate.count();
        let spent = self.live(cell, now).count;
        let after = spent.saturating_add(cost);
        // (A sum that saturates at the largest limit there is does not fit into it.)
        let allowed = cost == 0 || cost <= limit.saturating_sub(spent);
        let left = if allowed { after } else { spent };
        let edge = self.edge_after(self.as_of(cell, now)).saturating_sub(now);
        Verdict {
            allowed,
            limit,
            remaining: limit.saturating_sub(left),
            wait: Nanos::ZERO,
            reset: if left == 0 { Nanos::ZERO } else { edge },
            retry_after: if allowed {
                Some(Nanos::ZERO)
            } else if cost > limit {
                None
            } else {
                Some(edge)
            },
        }
    }

    pub(super) fn charge(&self, cell: &mut Counter, cost: u32, now: Nanos) {
        *cell = self.live(*cell, now);
        cell.count = cell.count.saturating_add(cost);
    }

    /// Takes back up to `cost` units that were charged at `charged`, where they still count.
    pub(super) fn give_back(&self, cell: &mut Counter, cost: u32, charged: Nanos) {
        if cell.window == self.index(charged) {
            cell.count = cell.count.saturating_sub(cost);
        }
    }

    pub(super) fn is_idle(&self, cell: Counter, now: Nanos) -> bool {
        self.live(cell, now).count == 0
    }

    pub(super) fn convert(&self, old: &Self, cell: Counter, now: Nanos) -> Counter {
        let count = old.live(cell, now).count;
        Counter { window: self.index(old.as_of(cell, now)), count }
    }

    /// The cell as of its own window or that of `now`, whichever is later. One of a window further
    /// ahead was written before the clock was set back, and is void: nobody is locked out.
    fn live(&self, cell: Counter, now: Nanos) -> Counter {
        let window = self.index(self.as_of(cell, now));
        Counter { window, count: if cell.window == window { cell.count } else { 0 } }
    }

    /// `now`, or the edge that another thread has crossed meanwhile: it read the clock later and
    /// came first. Without this the late one would move its count back over the edge, where the
    /// next charge would forget it.
    fn as_of(&self, cell: Counter, now: Nanos) -> Nanos {
        if cell.window == self.index(now).wrapping_add(1) { self.edge_after(now) } else { now }
    }

    fn index(&self, now: Nanos) -> u32 {
        (now.get() / self.rate.period().get()) as u32
    }

    fn edge_after(&self, now: Nanos) -> Nanos {
        let period = self.rate.period();
        now.saturating_sub(Nanos::new(now.get() % period.get())).saturating_add(period)
    }
}

impl fmt::Display for FixedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "at most {} in each clock-aligned {:?}; twice that across an edge",
            self.rate.count(),
            self.rate.period()
        )
    }
}
