//! `sliding_log`: never more than the limit in any window, whatever the timing.
//!
//! One time and cost per admitted charge. A charge counts from its instant until one window later,
//! that instant excluded. Variants of a limit share the log: each sums over its own window, and times
//! are kept for the longest of them.

use std::collections::VecDeque;
use std::fmt;

use super::windows::keeps_for;
use super::{QuotaError, Rate, Verdict};
use crate::clock::Nanos;

/// The largest limit of a log. It keeps at most `MAX_LOG_TIMES`, 12,500, times: 200 KB for one key.
pub const MAX_LOG_LIMIT: u32 = 10_000;

/// Most times that a log keeps. Beyond it the two oldest become one, at the later of both: no variant
/// admits more than [`MAX_LOG_LIMIT`] units, so what lies that far back only counts again when a
/// quarter of a full log is given back, and then for too long rather than too short.
const MAX_LOG_TIMES: usize = MAX_LOG_LIMIT as usize * 5 / 4;

/// A log grows by this many times at least, and by a quarter.
const GROWTH: usize = 4;

/// Bytes that a log of so many times holds, with the room that it keeps for more.
pub const fn log_bytes(times: usize) -> usize {
    let room = if times / 4 > GROWTH { times / 8 } else { GROWTH };
    size_of::<Log>() + (times + room) * size_of::<(Nanos, u32)>()
}

/// Admitted charges, oldest first: when (monotonic), and how much.
#[derive(Clone, Debug, Default)]
pub struct Log {
    times: VecDeque<(Nanos, u32)>,
    /// How long a time is kept.
    keep: Nanos,
    /// When a charge last needed times to be kept so long (monotonic): a generation with shorter
    /// windows keeps them for a while yet, since another one may still ask.
    needed: Nanos,
}

/// Logs are equal if their charges are equal.
impl PartialEq for Log {
    fn eq(&self, other: &Self) -> bool {
        self.times == other.times
    }
}

impl Eq for Log {}

impl Log {
    /// An empty log. `keep`: the longest window of the limit's variants.
    pub(super) fn keeping(keep: Nanos, now: Nanos) -> Self {
        Self { keep, needed: now, ..Self::default() }
    }

    /// How many charges are kept.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// A log that was never charged in this process: these charges, oldest first.
    pub(super) fn of(charges: impl IntoIterator<Item = (Nanos, u32)>) -> Self {
        let times = charges.into_iter().filter(|(_, cost)| *cost > 0).collect();
        Self { times, ..Self::default() }
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// The windows of the limit have changed: from now on times are kept for the longest of them, and
    /// for longer where that was needed of late.
    pub(super) fn keep(&mut self, longest: Nanos, now: Nanos) {
        let unused = now.secs().saturating_sub(self.needed.secs());
        if longest >= self.keep || unused > keeps_for(self.keep) {
            (self.keep, self.needed) = (longest, now);
        }
    }

    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        self.times.back().is_none_or(|(at, _)| at.saturating_add(self.keep) <= now)
    }

    /// Drops times that have left every window, and memory that a burst has left behind.
    pub(super) fn tidy(&mut self, now: Nanos) {
        self.drop_expired(now);
        if self.times.capacity() > 2 * (self.times.len() + GROWTH) {
            self.times.shrink_to(self.times.len() + GROWTH);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.times.capacity() * size_of::<(Nanos, u32)>()
    }

    /// Bytes after one more charge at `now`.
    pub(super) fn heap_bytes_after_charge(&self, now: Nanos) -> usize {
        let full = self.times.len() == self.times.capacity();
        let first_stays =
            self.times.front().is_none_or(|(at, _)| at.saturating_add(self.keep) > now);
        let more = if full && first_stays { self.growth() } else { 0 };
        self.heap_bytes() + more * size_of::<(Nanos, u32)>()
    }

    /// How many times more a full log makes room for.
    fn growth(&self) -> usize {
        (self.times.len() / 4).max(GROWTH).min(MAX_LOG_TIMES.saturating_sub(self.times.len()))
    }

    fn drop_expired(&mut self, now: Nanos) {
        let keep = self.keep;
        while self.times.front().is_some_and(|(at, _)| at.saturating_add(keep) <= now) {
            self.times.pop_front();
        }
    }

    /// Makes room for one more time without more memory.
    pub(super) fn make_room(&mut self, now: Nanos) {
        self.drop_expired(now);
        if self.times.len() == self.times.capacity() {
            self.join_oldest();
        }
    }

    fn join_oldest(&mut self) {
        if self.times.len() > 1
            && let Some((_, oldest)) = self.times.pop_front()
            && let Some((_, next)) = self.times.front_mut()
        {
            *next = next.saturating_add(oldest);
        }
    }

    fn push(&mut self, at: Nanos, cost: u32) {
        if self.times.len() >= MAX_LOG_TIMES {
            self.join_oldest();
        }
        if self.times.len() == self.times.capacity() {
            self.times.reserve_exact(self.growth().max(1));
        }
        self.times.push_back((at, cost));
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

    pub(super) fn spent(&self, cell: &Log, now: Nanos) -> u32 {
        self.live(cell, now).fold(0u32, |sum, (_, cost)| sum.saturating_add(cost))
    }

    pub(super) fn judge(&self, cell: &Log, cost: u32, now: Nanos) -> Verdict {
        let limit = self.rate.count();
        let spent = self.spent(cell, now);
        let after = spent.saturating_add(cost);
        let allowed = cost == 0 || after <= limit;
        let left = if allowed { after } else { spent };
        let last = cell.times.back().map(|(at, _)| *at);
        // As it will be charged: never before an older one.
        let newest = if allowed && cost > 0 { last.max(Some(now)) } else { last };
        Verdict {
            allowed,
            limit,
            remaining: limit.saturating_sub(left),
            delay: Nanos::ZERO,
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
        if self.rate.period() >= cell.keep {
            (cell.keep, cell.needed) = (self.rate.period(), now);
        }
        cell.drop_expired(now);
        if cost == 0 {
            return;
        }
        // A clock that ran back must not put a time before an older one.
        let at = cell.times.back().map_or(now, |(last, _)| now.max(*last));
        match cell.times.back_mut() {
            Some((last, sum)) if *last == at => *sum = sum.saturating_add(cost),
            _ => cell.push(at, cost),
        }
    }

    /// Takes back up to `cost` units that stand at `charged`; what has left the window is not
    /// there any more, and nobody else's units are taken for it.
    pub(super) fn refund(&self, cell: &mut Log, cost: u32, charged: Nanos) {
        let Ok(index) = cell.times.binary_search_by_key(&charged, |(at, _)| *at) else {
            return;
        };
        let (_, sum) = &mut cell.times[index];
        *sum = sum.saturating_sub(cost);
        if *sum == 0 {
            cell.times.remove(index);
        }
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

    /// The charges in the window, which may be shorter than times are kept.
    fn live<'c>(&self, cell: &'c Log, now: Nanos) -> impl Iterator<Item = (Nanos, u32)> + use<'c> {
        let first = match cell.times.front() {
            Some((at, _)) if self.until_gone(*at, now) == Nanos::ZERO => {
                cell.times.partition_point(|(at, _)| self.until_gone(*at, now) == Nanos::ZERO)
            }
            Some(_) | None => 0,
        };
        cell.times.range(first..).copied()
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
