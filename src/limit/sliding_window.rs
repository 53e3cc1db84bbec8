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
        let live = self.live(cell, now);
        let spent = self.spent(live, now);
        let as_of = self.as_of(cell, now);
        let after = spent.saturating_add(cost);
        // (A sum that saturates at the largest limit there is does not fit into it.)
        let allowed = cost == 0 || cost <= limit.saturating_sub(spent);
        let left = if allowed { after } else { spent };
        let to_edge = self.edge_after(as_of).saturating_sub(now);
        let charged = live.current > 0 || (allowed && cost > 0);
        Verdict {
            allowed,
            limit,
            remaining: limit.saturating_sub(left),
            wait: Nanos::ZERO,
            reset: match (charged, live.previous) {
                (true, _) => to_edge.saturating_add(self.rate.period()),
                (false, 0) => Nanos::ZERO,
                (false, _) => to_edge,
            },
            retry_after: if allowed {
                Some(Nanos::ZERO)
            } else if cost > limit {
                None
            } else {
                Some(self.wait(live, cost, as_of).saturating_add(as_of.saturating_sub(now)))
            },
        }
    }

    /// Spends `cost`, whether it fits or not. `now` is wall time.
    pub fn charge(&self, cell: &mut WindowPair, cost: u32, now: Nanos) {
        *cell = self.live(*cell, now);
        cell.current = cell.current.saturating_add(cost);
    }

    /// Takes back up to `cost` units that were charged at `charged`, where they still count.
    pub fn give_back(&self, cell: &mut WindowPair, cost: u32, charged: Nanos) {
        let window = self.index(charged);
        if cell.window == window {
            cell.current = cell.current.saturating_sub(cost);
        } else if cell.window == window.wrapping_add(1) {
            cell.previous = cell.previous.saturating_sub(cost);
        }
    }

    /// Whether the cell equals an absent one. `now` is wall time.
    pub fn is_idle(&self, cell: WindowPair, now: Nanos) -> bool {
        let live = self.live(cell, now);
        live.current == 0 && live.previous == 0
    }

    /// Reads a cell of `old` as one of this quota: units carry over.
    pub fn convert(&self, old: &Self, cell: WindowPair, now: Nanos) -> WindowPair {
        let live = old.live(cell, now);
        if self.rate.period() == old.rate.period() {
            return live;
        }
        // Another grid of windows: the estimate is carried into the current one.
        let window = self.index(old.as_of(cell, now));
        WindowPair { window, current: old.spent(live, now), previous: 0 }
    }

    /// Units of both windows, the previous one whole: never falls before the next window begins.
    pub fn sum(&self, cell: WindowPair, now: Nanos) -> u32 {
        let live = self.live(cell, now);
        live.current.saturating_add(live.previous)
    }

    /// Units that count now: the current window's and the covered share of the previous one's.
    pub fn spent(&self, cell: WindowPair, now: Nanos) -> u32 {
        let live = self.live(cell, now);
        let period = u128::from(self.rate.period().get());
        let covered = period - u128::from(self.elapsed(self.as_of(cell, now)).get());
        let share = (u128::from(live.previous) * covered).div_ceil(period);
        live.current.saturating_add(u32::try_from(share).unwrap_or(u32::MAX))
    }

    /// Until `cost` fits: in this window if the previous one's share can shrink enough, else in
    /// the next one, where the current count is the share that shrinks.
    fn wait(&self, live: WindowPair, cost: u32, now: Nanos) -> Nanos {
        let period = self.rate.period();
        let elapsed = self.elapsed(now);
        let room = self.rate.count().saturating_sub(cost);
        if let Some(room) = room.checked_sub(live.current) {
            return self.shrunk_at(live.previous, room).saturating_sub(elapsed);
        }
        let to_edge = period.saturating_sub(elapsed);
        to_edge.saturating_add(self.shrunk_at(live.current, room))
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

    /// The cell as of its own window or that of `now`, whichever is later. One of a window further
    /// ahead was written before the clock was set back, and is void: nobody is locked out.
    fn live(&self, cell: WindowPair, now: Nanos) -> WindowPair {
        let window = self.index(self.as_of(cell, now));
        match window.wrapping_sub(cell.window) {
            0 => cell,
            1 => WindowPair { window, current: 0, previous: cell.current },
            _ => WindowPair { window, current: 0, previous: 0 },
        }
    }

    /// `now`, or the edge that another thread has crossed meanwhile: it read the clock later and
    /// came first. Without this the late one would move both counts back by a window, and the
    /// next charge would forget the older.
    fn as_of(&self, cell: WindowPair, now: Nanos) -> Nanos {
        if cell.window == self.index(now).wrapping_add(1) { self.edge_after(now) } else { now }
    }

    fn edge_after(&self, now: Nanos) -> Nanos {
        let period = self.rate.period();
        now.saturating_sub(self.elapsed(now)).saturating_add(period)
    }

    fn index(&self, now: Nanos) -> u32 {
        (now.get() / self.rate.period().get()) as u32
    }

    fn elapsed(&self, now: Nanos) -> Nanos {
        Nanos::new(now.get() % self.rate.period().get())
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
