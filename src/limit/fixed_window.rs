//! `fixed_window`: the limit per window, windows aligned to multiples of their length since the Unix epoch. Up
//! to twice the limit can pass within one window length across an edge.

use std::fmt;

use super::counters::WindowAlgorithm;
use super::rate::Rate;
use super::verdict::{Verdict, retry_after};
use super::window_grid::{GridPosition, windows_ahead};
use crate::clock::Nanos;

/// Units spent in one window. The default has spent nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct WindowCount {
    /// The window, counted from the epoch modulo 2^32.
    window: u32,
    units: u32,
}

impl WindowCount {
    /// `units` spent in a window, which is counted from the epoch.
    pub(super) const fn new(window: u64, units: u32) -> Self {
        Self { window: window as u32, units }
    }
}

/// `rate.count` units in each window of `rate.period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    rate: Rate,
}

/// A cell as of an instant.
struct LiveCount {
    /// The cell, of its own window or of the instant's, whichever is later.
    count: WindowCount,
    /// Time from the instant to the end of that window.
    to_edge: Nanos,
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

    pub(super) fn spent(&self, cell: WindowCount, now: Nanos) -> u32 {
        self.live(cell, now).count.units
    }

    pub(super) fn judge(&self, cell: WindowCount, cost: u32, now: Nanos) -> Verdict {
        let limit = self.rate.count();
        let LiveCount { count, to_edge } = self.live(cell, now);
        let spent = count.units;
        // (`spent + cost` may saturate at `u32::MAX`, so it is not compared with the limit.)
        let allowed = cost == 0 || cost <= limit.saturating_sub(spent);
        let spent_after = if allowed { spent.saturating_add(cost) } else { spent };
        Verdict {
            allowed,
            limit,
            remaining: limit.saturating_sub(spent_after),
            delay: Nanos::ZERO,
            reset: if spent_after == 0 { Nanos::ZERO } else { to_edge },
            retry_after: retry_after(allowed, cost, limit, || to_edge),
        }
    }

    pub(super) fn charge(&self, cell: &mut WindowCount, cost: u32, now: Nanos) {
        *cell = self.live(*cell, now).count;
        cell.units = cell.units.saturating_add(cost);
    }

    /// Takes back up to `cost` units that were charged at `charged`, if their window still counts.
    pub(super) fn refund(&self, cell: &mut WindowCount, cost: u32, charged: Nanos) {
        if cell.window == GridPosition::at(charged, self.rate.period()).window {
            cell.units = cell.units.saturating_sub(cost);
        }
    }

    pub(super) fn is_idle(&self, cell: WindowCount, now: Nanos) -> bool {
        self.live(cell, now).count.units == 0
    }

    /// Reads a cell of `old`, whose windows may have another length: units carry over.
    pub(super) fn convert(&self, old: &Self, cell: WindowCount, now: Nanos) -> WindowCount {
        let LiveCount { count, to_edge } = old.live(cell, now);
        // More than zero where the cell's window is ahead of `now`.
        let ahead = to_edge.saturating_sub(old.rate.period());
        let position = GridPosition::at(now.saturating_add(ahead), self.rate.period());
        WindowCount { window: position.window, units: count.units }
    }

    /// The cell as of `now`.
    ///
    /// Where a thread that read the clock later has charged the cell first and crossed edges, the cell stays as
    /// it is. Otherwise the slower thread would move the count back over the edge, and the next charge would
    /// drop it.
    fn live(&self, cell: WindowCount, now: Nanos) -> LiveCount {
        let period = self.rate.period();
        let GridPosition { window, elapsed } = GridPosition::at(now, period);
        let to_edge = period.saturating_sub(elapsed);
        match windows_ahead(cell.window, window, period) {
            Some(ahead) if cell.units > 0 => LiveCount {
                count: cell,
                to_edge: to_edge.saturating_add(period.saturating_mul(ahead)),
            },
            Some(_) | None => LiveCount { count: WindowCount { window, units: 0 }, to_edge },
        }
    }
}

impl WindowAlgorithm for FixedWindow {
    type Count = WindowCount;

    fn of_length(length: Nanos) -> Self {
        Self::new(Rate::per(length))
    }

    fn charge(&self, count: &mut WindowCount, cost: u32, now: Nanos) {
        self.charge(count, cost, now);
    }

    fn refund(&self, count: &mut WindowCount, cost: u32, charged: Nanos) {
        self.refund(count, cost, charged);
    }

    fn is_idle(&self, count: WindowCount, now: Nanos) -> bool {
        self.is_idle(count, now)
    }

    fn convert(&self, old: &Self, count: WindowCount, now: Nanos) -> WindowCount {
        self.convert(old, count, now)
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
