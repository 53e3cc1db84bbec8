//! `sliding_window`: two counters approximate a moving window.
//!
//! The grid of windows is that of `fixed_window`. What is spent is the count of the current window plus the
//! share of the previous window that the moving window still covers, rounded up:
//!
//! ```text
//!   │    previous    │    current     │
//!   ├────────────────┼────────────────┤
//!          ├─────────────────┤ now         spent = current + ceil(previous x covered / window)
//!          │ covered │
//! ```
//!
//! The share assumes that the units of the previous window came evenly. So a moving window can hold nearly
//! twice the limit at the worst position, and a charge that a log would admit may be refused for less than one
//! window. (The formula is Cloudflare's: "How we built rate limiting capable of scaling to millions of domains",
//! 2017.)

use std::fmt;

use super::counters::WindowAlgorithm;
use super::rate::Rate;
use super::verdict::{Verdict, retry_after};
use super::window_grid::{GridPosition, windows_ahead};
use crate::clock::Nanos;

/// Units spent in a window and in the one before it. The default has spent nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct WindowPair {
    /// The window that `current` belongs to, counted from the epoch modulo 2^32.
    window: u32,
    current: u32,
    previous: u32,
}

impl WindowPair {
    /// Units spent in a window, which is counted from the epoch, and in the one before it.
    pub(super) const fn new(window: u64, current: u32, previous: u32) -> Self {
        Self { window: window as u32, current, previous }
    }

    /// The window that [`Self::current`] belongs to (counted from the epoch modulo 2^32), its units, and those of the window
    /// before it.
    pub const fn counts(self) -> (u32, u32, u32) {
        (self.window, self.current, self.previous)
    }

    /// From its [`Self::counts`].
    pub const fn of_counts((window, current, previous): (u32, u32, u32)) -> Self {
        Self { window, current, previous }
    }

    /// The same counts without some of their units, of the later window first.
    #[must_use]
    pub const fn without(self, units: u32) -> Self {
        let rest = units.saturating_sub(self.current);
        let (current, previous) =
            (self.current.saturating_sub(units), self.previous.saturating_sub(rest));
        Self { current, previous, ..self }
    }

    /// Both counts together, as of the later window of the two. Units of windows that are too old then are left out.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let is_later = other.window.wrapping_sub(self.window) <= u32::MAX / 2;
        let window = if is_later { other.window } else { self.window };
        let (own, other) = (self.as_of(window), other.as_of(window));
        Self {
            window,
            current: own.current.saturating_add(other.current),
            previous: own.previous.saturating_add(other.previous),
        }
    }

    /// The same counts, so many windows earlier.
    #[must_use]
    pub const fn dated_back(self, windows: u32) -> Self {
        Self { window: self.window.wrapping_sub(windows), ..self }
    }

    /// The counts that belong to a window and to the one before it. Units of a later window are left out: they are no units
    /// of these windows.
    fn as_of(self, window: u32) -> Self {
        let (current, previous) = match window.wrapping_sub(self.window) {
            0 => (self.current, self.previous),
            1 => (0, self.current),
            u32::MAX => (self.previous, 0),
            _ => (0, 0),
        };
        Self { window, current, previous }
    }
}

/// `rate.count` units in a moving window of `rate.period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    rate: Rate,
}

/// A cell as of an instant.
struct LivePair {
    /// The cell, of its own window or of the instant's, whichever is later.
    pair: WindowPair,
    /// Time from the beginning of that window to the instant.
    elapsed: Nanos,
    /// How far that window begins after the `now` of the question; zero in the usual case.
    ahead: Nanos,
}

impl SlidingWindow {
    /// Every rate makes a window.
    pub const fn new(rate: Rate) -> Self {
        Self { rate }
    }

    /// Units and length of the window.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Whether `cost` more units fit. `now` is wall time.
    pub fn judge(&self, cell: WindowPair, cost: u32, now: Nanos) -> Verdict {
        let limit = self.rate.count();
        let live = self.live(cell, now);
        let spent = self.spent_by(&live);
        // (`spent + cost` may saturate at `u32::MAX`, so it is not compared with the limit.)
        let allowed = cost == 0 || cost <= limit.saturating_sub(spent);
        let spent_after = if allowed { spent.saturating_add(cost) } else { spent };
        let to_edge = live.ahead.saturating_add(self.rate.period().saturating_sub(live.elapsed));
        let current_counts = live.pair.current > 0 || (allowed && cost > 0);
        Verdict {
            allowed,
            limit,
            remaining: limit.saturating_sub(spent_after),
            delay: Nanos::ZERO,
            reset: match (current_counts, live.pair.previous) {
                (true, _) => to_edge.saturating_add(self.rate.period()),
                (false, 0) => Nanos::ZERO,
                (false, _) => to_edge,
            },
            retry_after: retry_after(allowed, cost, limit, || {
                self.until_fits(&live, cost).saturating_add(live.ahead)
            }),
        }
    }

    /// Charges `cost`, whether it fits or not. `now` is wall time.
    pub fn charge(&self, cell: &mut WindowPair, cost: u32, now: Nanos) {
        *cell = self.live(*cell, now).pair;
        cell.current = cell.current.saturating_add(cost);
    }

    /// Takes back up to `cost` units that were charged at `charged` (wall time), if their window still counts.
    pub fn refund(&self, cell: &mut WindowPair, cost: u32, charged: Nanos) {
        let window = GridPosition::at(charged, self.rate.period()).window;
        if cell.window == window {
            cell.current = cell.current.saturating_sub(cost);
        } else if cell.window == window.wrapping_add(1) {
            cell.previous = cell.previous.saturating_sub(cost);
        }
    }

    /// Whether the cell equals an absent one. `now` is wall time.
    pub fn is_idle(&self, cell: WindowPair, now: Nanos) -> bool {
        let live = self.live(cell, now).pair;
        live.current == 0 && live.previous == 0
    }

    /// Reads a cell of `old`, whose window may have another length: units carry over. `now` is wall time.
    pub fn convert(&self, old: &Self, cell: WindowPair, now: Nanos) -> WindowPair {
        let live = old.live(cell, now);
        if self.rate.period() == old.rate.period() {
            return live.pair;
        }
        // On another grid, what is spent moves into the current window.
        let instant = now.saturating_add(live.ahead);
        let window = GridPosition::at(instant, self.rate.period()).window;
        WindowPair { window, current: old.spent_by(&live), previous: 0 }
    }

    /// All units of both windows. Until the next window begins, only a refund lowers this sum. `now` is wall time.
    pub fn sum(&self, cell: WindowPair, now: Nanos) -> u32 {
        let live = self.live(cell, now).pair;
        live.current.saturating_add(live.previous)
    }

    /// Counts of two counters of one key, as of `now` (wall time), on one grid: shares of previous windows are added before they
    /// are rounded. Units of windows after `now` are left out.
    pub fn sum_of_counters(&self, first: WindowPair, second: WindowPair, now: Nanos) -> WindowPair {
        let window = GridPosition::at(now, self.rate.period()).window;
        first.as_of(window).plus(second.as_of(window))
    }

    /// The counter with the units that still count at `now` (wall time).
    pub fn live_counts(&self, cell: WindowPair, now: Nanos) -> WindowPair {
        self.live(cell, now).pair
    }

    /// Units that count at `now` (wall time): those of the current window and the covered share of the previous
    /// one, rounded up.
    pub fn spent(&self, cell: WindowPair, now: Nanos) -> u32 {
        self.spent_by(&self.live(cell, now))
    }

    fn spent_by(&self, live: &LivePair) -> u32 {
        if live.pair.previous == 0 {
            return live.pair.current;
        }
        let period = self.rate.period().get();
        let (previous, covered) = (u64::from(live.pair.previous), period - live.elapsed.get());
        // The product nearly always fits into 64 bits, whose division takes a third of the time.
        let share = match previous.checked_mul(covered) {
            Some(product) => product.div_ceil(period),
            None => {
                let product = u128::from(previous) * u128::from(covered);
                u64::try_from(product.div_ceil(u128::from(period))).unwrap_or(u64::MAX)
            }
        };
        live.pair.current.saturating_add(u32::try_from(share).unwrap_or(u32::MAX))
    }

    /// Time until `cost` fits: within this window if the share of the previous one can shrink enough; otherwise
    /// in the next window, where the current count is the share that shrinks.
    fn until_fits(&self, live: &LivePair, cost: u32) -> Nanos {
        let max_spent = self.rate.count().saturating_sub(cost);
        if let Some(max_share) = max_spent.checked_sub(live.pair.current) {
            return self.shrunk_at(live.pair.previous, max_share).saturating_sub(live.elapsed);
        }
        let to_edge = self.rate.period().saturating_sub(live.elapsed);
        to_edge.saturating_add(self.shrunk_at(live.pair.current, max_spent))
    }

    /// How far into a window the share of `previous` units is at most `max_share`.
    fn shrunk_at(&self, previous: u32, max_share: u32) -> Nanos {
        let period = self.rate.period();
        if previous <= max_share {
            return Nanos::ZERO;
        }
        let covered = u128::from(max_share) * u128::from(period.get()) / u128::from(previous);
        period.saturating_sub(Nanos::new(u64::try_from(covered).unwrap_or(u64::MAX)))
    }

    /// The cell as of `now`.
    ///
    /// Where a thread that read the clock later has charged the cell first and crossed edges, the cell is read
    /// as of the last edge. Otherwise the slower thread would move both counts back, and the next charge would
    /// drop the older one.
    fn live(&self, cell: WindowPair, now: Nanos) -> LivePair {
        let period = self.rate.period();
        let GridPosition { window, elapsed } = GridPosition::at(now, period);
        let (current, previous) = match window.wrapping_sub(cell.window) {
            0 => (cell.current, cell.previous),
            1 => (0, cell.current),
            _ => match windows_ahead(cell.window, window, period) {
                Some(ahead) if cell.current > 0 || cell.previous > 0 => {
                    let ahead = period.saturating_mul(ahead).saturating_sub(elapsed);
                    return LivePair { pair: cell, elapsed: Nanos::ZERO, ahead };
                }
                Some(_) | None => (0, 0),
            },
        };
        LivePair { pair: WindowPair { window, current, previous }, elapsed, ahead: Nanos::ZERO }
    }
}

impl WindowAlgorithm for SlidingWindow {
    type Count = WindowPair;

    fn of_length(length: Nanos) -> Self {
        Self::new(Rate::per(length))
    }

    fn charge(&self, count: &mut WindowPair, cost: u32, now: Nanos) {
        self.charge(count, cost, now);
    }

    fn refund(&self, count: &mut WindowPair, cost: u32, charged: Nanos) {
        self.refund(count, cost, charged);
    }

    fn is_idle(&self, count: WindowPair, now: Nanos) -> bool {
        self.is_idle(count, now)
    }

    fn convert(&self, old: &Self, count: WindowPair, now: Nanos) -> WindowPair {
        self.convert(old, count, now)
    }
}

impl fmt::Display for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, period) = (self.rate.count(), self.rate.period());
        write!(
            f,
            "about {count} in any {period:?}, under {} in the worst placed one; may refuse for \
             less than {period:?} what a log would admit",
            u64::from(count) * 2
        )
    }
}
