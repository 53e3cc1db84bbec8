//! `fixed_window`: the limit per window, windows aligned to multiples of their length since the
//! Unix epoch. Across an edge two limits can pass back to back.

use std::fmt;

use super::windows::windows_ahead;
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

    pub(super) fn spent(&self, cell: Counter, now: Nanos) -> u32 {
        self.at(cell, now).0.count
    }

    pub(super) fn judge(&self, cell: Counter, cost: u32, now: Nanos) -> Verdict {
        let limit = self.rate.count();
        let (live, edge) = self.at(cell, now);
        let spent = live.count;
        let after = spent.saturating_add(cost);
        // (A sum that saturates at the largest limit there is does not fit into it.)
        let allowed = cost == 0 || cost <= limit.saturating_sub(spent);
        let left = if allowed { after } else { spent };
        Verdict {
            allowed,
            limit,
            remaining: limit.saturating_sub(left),
            delay: Nanos::ZERO,
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
        *cell = self.at(*cell, now).0;
        cell.count = cell.count.saturating_add(cost);
    }

    /// Takes back up to `cost` units that were charged at `charged`, where they still count.
    pub(super) fn refund(&self, cell: &mut Counter, cost: u32, charged: Nanos) {
        if cell.window == self.place(charged).0 {
            cell.count = cell.count.saturating_sub(cost);
        }
    }

    pub(super) fn is_idle(&self, cell: Counter, now: Nanos) -> bool {
        self.at(cell, now).0.count == 0
    }

    pub(super) fn convert(&self, old: &Self, cell: Counter, now: Nanos) -> Counter {
        let (live, edge) = old.at(cell, now);
        // Where somebody else was first, `edge` is that of its window.
        let ahead = edge.saturating_sub(old.rate.period());
        Counter { window: self.place(now.saturating_add(ahead)).0, count: live.count }
    }

    /// The cell as of its own window or that of `now`, whichever is later, and how far it is from
    /// `now` to that window's end.
    ///
    /// Somebody who read the clock later may have come first, and crossed edges: then the cell stays as
    /// it is. Without this the late one would move its count back over the edge, where the next charge
    /// would forget it. A cell of a window far ahead is void: nobody is locked out.
    fn at(&self, cell: Counter, now: Nanos) -> (Counter, Nanos) {
        let (window, elapsed) = self.place(now);
        let edge = self.rate.period().saturating_sub(elapsed);
        match windows_ahead(cell.window, window, self.rate.period()) {
            Some(ahead) if cell.count > 0 => {
                (cell, edge.saturating_add(self.rate.period().saturating_mul(ahead)))
            }
            Some(_) | None => (Counter { window, count: 0 }, edge),
        }
    }

    /// The window of an instant, and how far into it that is.
    fn place(&self, now: Nanos) -> (u32, Nanos) {
        let (now, period) = (now.get(), self.rate.period().get());
        ((now / period) as u32, Nanos::new(now % period))
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
