//! `sliding_window`: two counters stand for a moving window.
//!
//! Windows are aligned as those of `fixed_window`. What is spent is the count of the current window
//! plus the share of the previous one that the moving window still covers, rounded up:
//!
//! ```text
//!   │    previous    │    current     │
//!   ├────────────────┼────────────────┤
//!          ├─────────────────┤ now         spent = current + ceil(previous x covered / window)
//!          │ covered │
//! ```
//!
//! The share assumes that the previous window's units came evenly. So a worst placed window can
//! hold nearly 2 x the limit, and a charge may be refused, for less than one window, that a log
//! would admit. (The same formula as NGINX's and Cloudflare's counters; theirs round down.)

use std::fmt;

use super::windows::windows_ahead;
use super::{Rate, Verdict};
use crate::clock::Nanos;

/// Units spent in a window and in the one before it. The default has spent nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowPair {
    /// Which window `current` belongs to, counted from the epoch: the low half of its number, which
    /// is enough to tell it from its neighbours.
    window: u32,
    current: u32,
    previous: u32,
}

impl WindowPair {
    /// Units of a window (counted from the epoch) and of the one before it.
    pub(super) const fn of(window: u64, current: u32, previous: u32) -> Self {
        Self { window: window as u32, current, previous }
    }
}

/// `rate.count` units in a moving window of `rate.period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    rate: Rate,
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

    /// Whether `cost` more fits. `now` is wall time.
    pub fn judge(&self, cell: WindowPair, cost: u32, now: Nanos) -> Verdict {
        let limit = self.rate.count();
        let at = self.at(cell, now);
        let spent = self.spent_at(&at);
        let after = spent.saturating_add(cost);
        // (A sum that saturates at the largest limit there is does not fit into it.)
        let allowed = cost == 0 || cost <= limit.saturating_sub(spent);
        let left = if allowed { after } else { spent };
        let to_edge = at.ahead.saturating_add(self.rate.period().saturating_sub(at.elapsed));
        let charged = at.live.current > 0 || (allowed && cost > 0);
        Verdict {
            allowed,
            limit,
            remaining: limit.saturating_sub(left),
            delay: Nanos::ZERO,
            reset: match (charged, at.live.previous) {
                (true, _) => to_edge.saturating_add(self.rate.period()),
                (false, 0) => Nanos::ZERO,
                (false, _) => to_edge,
            },
            retry_after: if allowed {
                Some(Nanos::ZERO)
            } else if cost > limit {
                None
            } else {
                Some(self.wait(&at, cost).saturating_add(at.ahead))
            },
        }
    }

    /// Spends `cost`, whether it fits or not. `now` is wall time.
    pub fn charge(&self, cell: &mut WindowPair, cost: u32, now: Nanos) {
        *cell = self.at(*cell, now).live;
        cell.current = cell.current.saturating_add(cost);
    }

    /// Takes back up to `cost` units that were charged at `charged`, where they still count.
    pub fn refund(&self, cell: &mut WindowPair, cost: u32, charged: Nanos) {
        let (window, _) = self.place(charged);
        if cell.window == window {
            cell.current = cell.current.saturating_sub(cost);
        } else if cell.window == window.wrapping_add(1) {
            cell.previous = cell.previous.saturating_sub(cost);
        }
    }

    /// Whether the cell equals an absent one. `now` is wall time.
    pub fn is_idle(&self, cell: WindowPair, now: Nanos) -> bool {
        let live = self.at(cell, now).live;
        live.current == 0 && live.previous == 0
    }

    /// Reads a cell of `old` as one of this quota: units carry over.
    pub fn convert(&self, old: &Self, cell: WindowPair, now: Nanos) -> WindowPair {
        let at = old.at(cell, now);
        if self.rate.period() == old.rate.period() {
            return at.live;
        }
        // Another grid of windows: the estimate is carried into the current one.
        let (window, _) = self.place(now.saturating_add(at.ahead));
        WindowPair { window, current: old.spent_at(&at), previous: 0 }
    }

    /// Units of both windows, the previous one whole: never falls before the next window begins.
    pub fn sum(&self, cell: WindowPair, now: Nanos) -> u32 {
        let live = self.at(cell, now).live;
        live.current.saturating_add(live.previous)
    }

    /// Units that count now: the current window's and the covered share of the previous one's.
    pub fn spent(&self, cell: WindowPair, now: Nanos) -> u32 {
        self.spent_at(&self.at(cell, now))
    }

    fn spent_at(&self, at: &AsOf) -> u32 {
        if at.live.previous == 0 {
            return at.live.current;
        }
        let period = self.rate.period().get();
        let (previous, covered) = (u64::from(at.live.previous), period - at.elapsed.get());
        // Nearly always within 64 bits, whose division takes a third of the time.
        let share = match previous.checked_mul(covered) {
            Some(product) => product.div_ceil(period),
            None => {
                let product = u128::from(previous) * u128::from(covered);
                u64::try_from(product.div_ceil(u128::from(period))).unwrap_or(u64::MAX)
            }
        };
        at.live.current.saturating_add(u32::try_from(share).unwrap_or(u32::MAX))
    }

    /// Until `cost` fits: in this window if the previous one's share can shrink enough, else in
    /// the next one, where the current count is the share that shrinks.
    fn wait(&self, at: &AsOf, cost: u32) -> Nanos {
        let room = self.rate.count().saturating_sub(cost);
        if let Some(room) = room.checked_sub(at.live.current) {
            return self.shrunk_at(at.live.previous, room).saturating_sub(at.elapsed);
        }
        let to_edge = self.rate.period().saturating_sub(at.elapsed);
        to_edge.saturating_add(self.shrunk_at(at.live.current, room))
    }

    /// How far into a window `count` of the previous one is worth at most `room`.
    fn shrunk_at(&self, count: u32, room: u32) -> Nanos {
        let period = self.rate.period();
        if count <= room {
            return Nanos::ZERO;
        }
        let covered = u128::from(room) * u128::from(period.get()) / u128::from(count);
        period.saturating_sub(Nanos::new(u64::try_from(covered).unwrap_or(u64::MAX)))
    }

    /// The cell as of its own window or that of `now`, whichever is later.
    ///
    /// Somebody who read the clock later may have come first, and crossed edges: then the cell is read as
    /// of the last one. Without this the late one would move both counts back, and the next charge would
    /// forget the older. A cell of a window far ahead is void: nobody is locked out.
    fn at(&self, cell: WindowPair, now: Nanos) -> AsOf {
        let (window, elapsed) = self.place(now);
        let (current, previous) = match window.wrapping_sub(cell.window) {
            0 => (cell.current, cell.previous),
            1 => (0, cell.current),
            _ => match windows_ahead(cell.window, window, self.rate.period()) {
                Some(ahead) if cell.current > 0 || cell.previous > 0 => {
                    let ahead = self.rate.period().saturating_mul(ahead).saturating_sub(elapsed);
                    return AsOf { live: cell, elapsed: Nanos::ZERO, ahead };
                }
                Some(_) | None => (0, 0),
            },
        };
        AsOf { live: WindowPair { window, current, previous }, elapsed, ahead: Nanos::ZERO }
    }

    /// The window of an instant, and how far into it that is.
    fn place(&self, now: Nanos) -> (u32, Nanos) {
        let (now, period) = (now.get(), self.rate.period().get());
        ((now / period) as u32, Nanos::new(now % period))
    }
}

/// A cell as of an instant, which is worked out once for all that is asked of it.
struct AsOf {
    /// The cell, of the instant's window.
    live: WindowPair,
    /// How far into that window the instant is.
    elapsed: Nanos,
    /// How far it is ahead of the `now` that was asked for.
    ahead: Nanos,
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
