//! `sliding_log`: never more than the limit in any window, whatever the timing.
//!
//! One time and cost per admitted charge. A charge counts from its instant until one window later,
//! that instant excluded.

use std::collections::VecDeque;
use std::fmt;

use super::{QuotaError, Rate, Verdict};
use crate::clock::Nanos;

/// The largest limit of a log: 10,000 times are 160 KB for one key.
pub const MAX_LOG_LIMIT: u32 = 10_000;

/// Admitted charges, oldest first: when (monotonic), and how much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log(VecDeque<(Nanos, u32)>);

impl Log {
    /// How many charges are kept.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A log that was never charged in this process: these charges, oldest first.
    pub(super) fn of(charges: impl IntoIterator<Item = (Nanos, u32)>) -> Self {
        Self(charges.into_iter().filter(|(_, cost)| *cost > 0).collect())
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// `rate.count` units in any window of `rate.period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    rate: Rate,
}

impl SlidingLog {
    /// Refuses a limit above [`MAX_LOG_LIMIT`].
    pub const fn new(rate: Rate) -> Result<Self, QuotaError> {
        if rate.count() > MAX_LOG_LIMIT {
            return Err(QuotaError::LogTooLarge);
        }
        Ok(Self { rate })
    }

    /// Units and length of the window.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    pub(super) fn judge(&self, cell: &Log, cost: u32, now: Nanos) -> Verdict {
        let limit = self.rate.count();
        let spent = self.live(cell, now).fold(0u32, |sum, (_, cost)| sum.saturating_add(cost));
        let after = spent.saturating_add(cost);
        let allowed = cost == 0 || after <= limit;
        let left = if allowed { after } else { spent };
        let last = cell.0.back().map(|(at, _)| *at);
        // As it will be charged: never before an older one.
        let newest = if allowed && cost > 0 { last.max(Some(now)) } else { last };
        Verdict {
            allowed,
            limit,
            remaining: limit.saturating_sub(left),
            wait: Nanos::ZERO,
            reset: newest.map_or(Nanos::ZERO, |at| self.until_gone(at, now)),
            retry_after: if allowed {
                Some(Nanos::ZERO)
            } else if cost > limit {
                None
            } else {
                Some(self.wait(cell, after - limit, now))
            },
        }
    }

    pub(super) fn charge(&self, cell: &mut Log, cost: u32, now: Nanos) {
        while cell.0.front().is_some_and(|(at, _)| self.until_gone(*at, now) == Nanos::ZERO) {
            cell.0.pop_front();
        }
        if cost == 0 {
            return;
        }
        // A clock that ran back must not put a time before an older one.
        let at = cell.0.back().map_or(now, |(last, _)| now.max(*last));
        match cell.0.back_mut() {
            Some((last, sum)) if *last == at => *sum = sum.saturating_add(cost),
            _ => cell.0.push_back((at, cost)),
        }
    }

    /// Takes back up to `cost` units that stand at `charged`; what has left the window is not
    /// there any more, and nobody else's units are taken for it.
    pub(super) fn give_back(&self, cell: &mut Log, cost: u32, charged: Nanos) {
        let Ok(place) = cell.0.binary_search_by_key(&charged, |(at, _)| *at) else {
            return;
        };
        let (_, sum) = &mut cell.0[place];
        *sum = sum.saturating_sub(cost);
        if *sum == 0 {
            cell.0.remove(place);
        }
    }

    pub(super) fn is_idle(&self, cell: &Log, now: Nanos) -> bool {
        self.live(cell, now).next().is_none()
    }

    /// Until at least `excess` units have left the window.
    fn wait(&self, cell: &Log, excess: u32, now: Nanos) -> Nanos {
        let mut freed = 0u32;
        for (at, cost) in self.live(cell, now) {
            freed = freed.saturating_add(cost);
            if freed >= excess {
                return self.until_gone(at, now);
            }
        }
        Nanos::ZERO
    }

    fn live<'c>(&self, cell: &'c Log, now: Nanos) -> impl Iterator<Item = (Nanos, u32)> + use<'c> {
        let this = *self;
        cell.0.iter().copied().skip_while(move |(at, _)| this.until_gone(*at, now) == Nanos::ZERO)
    }

    fn until_gone(&self, at: Nanos, now: Nanos) -> Nanos {
        at.saturating_add(self.rate.period()).saturating_sub(now)
    }
}

impl fmt::Display for SlidingLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "never more than {} in any {:?}", self.rate.count(), self.rate.period())
    }
}
