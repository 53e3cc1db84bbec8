//! `fixed_window`: the limit per window, windows aligned to multiples of their length since the
//! Unix epoch. Across an edge two limits can pass back to back.

use std::fmt;

use super::{Rate, Verdict};
use crate::clock::Nanos;

/// Units spent in one window. The default has spent nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Which window, counted from the epoch.
    window: u64,
    count: u32,
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
        let allowed = cost == 0 || after <= limit;
        let left = if allowed { after } else { spent };
        let edge = self.until_edge(now);
        Verdict {
            allowed,
            limit,
            remaining: limit.saturating_sub(left),
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

    pub(super) fn is_idle(&self, cell: Counter, now: Nanos) -> bool {
        self.live(cell, now).count == 0
    }

    pub(super) fn convert(&self, old: &Self, cell: Counter, now: Nanos) -> Counter {
        Counter { window: self.index(now), count: old.live(cell, now).count }
    }

    /// The cell as of the window of `now`. A cell of a later window than the clock shows is
    /// pulled back, so that no jump of the clock locks a key out for longer than a window.
    fn live(&self, cell: Counter, now: Nanos) -> Counter {
        let window = self.index(now);
        Counter { window, count: if cell.window < window { 0 } else { cell.count } }
    }

    fn index(&self, now: Nanos) -> u64 {
        now.get() / self.rate.period().get()
    }

    fn until_edge(&self, now: Nanos) -> Nanos {
        let period = self.rate.period().get();
        Nanos::new(period - now.get() % period)
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
