//! An algorithm with its numbers: one interface over the four algorithms.
//!
//! [`Quota::judge`] never changes a cell. Callers call [`Quota::charge`] only after every limit of the request
//! has allowed it, so a refusal spends nothing anywhere.

use std::fmt;

use super::buckets::Buckets;
use super::cell::Cell;
use super::charge_log::ChargeLog;
use super::error::QuotaError;
use super::fixed_window::{FixedWindow, WindowCount};
use super::rate::Rate;
use super::refill::FullAt;
use super::sliding_log::SlidingLog;
use super::sliding_window::{SlidingWindow, WindowPair};
use super::token_bucket::TokenBucket;
use super::verdict::Verdict;
use super::window_lengths::WindowLengths;
use crate::clock::{Nanos, Now};

/// An algorithm with its numbers: what a limit promises per key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quota {
    /// See [`TokenBucket`].
    TokenBucket(TokenBucket),
    /// See [`SlidingWindow`].
    SlidingWindow(SlidingWindow),
    /// See [`SlidingLog`].
    SlidingLog(SlidingLog),
    /// See [`FixedWindow`].
    FixedWindow(FixedWindow),
}

impl Quota {
    /// The rate at which units come back.
    #[cfg(feature = "bin")]
    pub const fn rate(&self) -> Rate {
        match self {
            Self::TokenBucket(q) => q.rate(),
            Self::SlidingWindow(q) => q.rate(),
            Self::SlidingLog(q) => q.rate(),
            Self::FixedWindow(q) => q.rate(),
        }
    }

    /// The same algorithm and settings at another rate. Without `burst`, a bucket keeps that of this quota, unless it is
    /// the rate's own number: then it is that of the new rate.
    ///
    /// # Errors
    /// Those of the algorithm, and [`QuotaError::BurstOfWindow`].
    pub fn with_rate(&self, rate: Rate, burst: Option<u32>) -> Result<Self, QuotaError> {
        if burst.is_some() && self.window_length().is_some() {
            return Err(QuotaError::BurstOfWindow);
        }
        match self {
            Self::TokenBucket(bucket) => bucket.with_rate(rate, burst).map(Self::TokenBucket),
            Self::SlidingWindow(_) => Ok(Self::SlidingWindow(SlidingWindow::new(rate))),
            Self::SlidingLog(_) => SlidingLog::new(rate).map(Self::SlidingLog),
            Self::FixedWindow(_) => Ok(Self::FixedWindow(FixedWindow::new(rate))),
        }
    }

    /// Whether a charge of `cost` fits, and the numbers for the header fields. An absent cell is `None`. A cost of
    /// 0 always fits, and only reads the cell.
    pub fn judge(&self, cell: Option<&Cell>, cost: u32, now: Now) -> Verdict {
        match (self, cell) {
            (Self::TokenBucket(q), Some(Cell::Bucket(c))) => q.judge(*c, cost, now.mono),
            (Self::TokenBucket(q), Some(Cell::Buckets(c))) => q.judge(c.full_at(q), cost, now.mono),
            (Self::SlidingWindow(q), Some(Cell::WindowPair(c))) => q.judge(*c, cost, now.wall),
            (Self::SlidingLog(q), Some(Cell::Log(c))) => q.judge(c, cost, now.mono),
            (Self::FixedWindow(q), Some(Cell::WindowCount(c))) => q.judge(*c, cost, now.wall),
            (Self::SlidingWindow(q), Some(Cell::WindowPairs(c))) => {
                q.judge(c.count(q.rate().period()), cost, now.wall)
            }
            (Self::FixedWindow(q), Some(Cell::WindowCounts(c))) => {
                q.judge(c.count(q.rate().period()), cost, now.wall)
            }
            // An absent cell. A cell of another algorithm would count as absent too, but none can occur: the
            // algorithm is part of the key.
            (Self::TokenBucket(q), _) => q.judge(FullAt::default(), cost, now.mono),
            (Self::SlidingWindow(q), _) => q.judge(WindowPair::default(), cost, now.wall),
            (Self::SlidingLog(q), _) => q.judge(&ChargeLog::default(), cost, now.mono),
            (Self::FixedWindow(q), _) => q.judge(WindowCount::default(), cost, now.wall),
        }
    }

    /// Charges `cost`, whether it fits or not: call [`Quota::judge`] first.
    pub fn charge(&self, cell: &mut Cell, cost: u32, now: Now) {
        match (self, &mut *cell) {
            (Self::TokenBucket(q), Cell::Bucket(c)) if !q.is_refundable() => {
                q.charge(c, cost, now.mono);
            }
            (Self::TokenBucket(q), Cell::Bucket(c)) => {
                let mut buckets = Box::new(Buckets::single(q, *c, now.mono));
                buckets.charge(q, cost, now.mono);
                *cell = Cell::Buckets(buckets);
            }
            (Self::TokenBucket(q), Cell::Buckets(c)) => c.charge(q, cost, now.mono),
            (Self::SlidingWindow(q), Cell::WindowPair(c)) => q.charge(c, cost, now.wall),
            (Self::SlidingLog(q), Cell::Log(c)) => q.charge(c, cost, now.mono),
            (Self::FixedWindow(q), Cell::WindowCount(c)) => q.charge(c, cost, now.wall),
            (Self::SlidingWindow(q), Cell::WindowPairs(c)) => {
                c.charge::<SlidingWindow>(q.rate().period(), cost, now.wall);
            }
            (Self::FixedWindow(q), Cell::WindowCounts(c)) => {
                c.charge::<FixedWindow>(q.rate().period(), cost, now.wall);
            }
            _ => {
                *cell = self.empty_cell();
                // This recurses once: the empty cell is of this quota's kind.
                self.charge(cell, cost, now);
            }
        }
    }

    /// Units that are spent and have not come back. More than the limit where a cost became known late.
    pub fn spent(&self, cell: &Cell, now: Now) -> u32 {
        match (self, cell) {
            (Self::TokenBucket(q), Cell::Bucket(c)) => q.spent(*c, now.mono),
            (Self::TokenBucket(q), Cell::Buckets(c)) => q.spent(c.full_at(q), now.mono),
            (Self::SlidingWindow(q), Cell::WindowPair(c)) => q.spent(*c, now.wall),
            (Self::SlidingLog(q), Cell::Log(c)) => q.spent(c, now.mono),
            (Self::FixedWindow(q), Cell::WindowCount(c)) => q.spent(*c, now.wall),
            (Self::SlidingWindow(q), Cell::WindowPairs(c)) => {
                q.spent(c.count(q.rate().period()), now.wall)
            }
            (Self::FixedWindow(q), Cell::WindowCounts(c)) => {
                q.spent(c.count(q.rate().period()), now.wall)
            }
            _ => 0,
        }
    }

    /// Whether the cell equals an absent one, now and at every later time. A store may drop such a cell.
    pub fn is_idle(&self, cell: &Cell, now: Now) -> bool {
        match (self, cell) {
            (Self::TokenBucket(q), Cell::Bucket(c)) => q.is_idle(*c, now.mono),
            (Self::TokenBucket(_), Cell::Buckets(c)) => c.is_idle(now.mono),
            (Self::SlidingWindow(q), Cell::WindowPair(c)) => q.is_idle(*c, now.wall),
            (Self::SlidingLog(_), Cell::Log(c)) => c.is_idle(now.mono),
            (Self::FixedWindow(q), Cell::WindowCount(c)) => q.is_idle(*c, now.wall),
            (Self::SlidingWindow(_), Cell::WindowPairs(c)) => c.is_idle::<SlidingWindow>(now.wall),
            (Self::FixedWindow(_), Cell::WindowCounts(c)) => c.is_idle::<FixedWindow>(now.wall),
            _ => true,
        }
    }

    /// An empty cell of a limit whose variants have windows of one length.
    pub fn empty_cell(&self) -> Cell {
        match self {
            Self::TokenBucket(_) => Cell::Bucket(FullAt::default()),
            Self::SlidingWindow(_) => Cell::WindowPair(WindowPair::default()),
            Self::SlidingLog(_) => Cell::Log(Box::default()),
            Self::FixedWindow(_) => Cell::WindowCount(WindowCount::default()),
        }
    }

    /// How long a charge of `cost` counts at most, in a cell that had at most the limit's units spent before.
    pub fn charge_lifetime(&self, cost: u32) -> Nanos {
        match self {
            // A debt comes back unit by unit, however long that takes.
            Self::TokenBucket(q) => {
                q.capacity().saturating_add(q.emission().saturating_mul(cost.into()))
            }
            // A charge counts in its own window and, weighted, in the next.
            Self::SlidingWindow(_) | Self::SlidingLog(_) | Self::FixedWindow(_) => {
                self.window().saturating_mul(2)
            }
        }
    }

    /// The same quota, whose charges may or may not be refunded.
    pub const fn with_refunds(self, is_refundable: bool) -> Self {
        match self {
            Self::TokenBucket(bucket) => Self::TokenBucket(bucket.with_refunds(is_refundable)),
            // Windows and logs can refund every charge that still counts.
            other => other,
        }
    }

    /// The same quota without `max_delay`, which reads the same cells; `None` if it has no `max_delay`.
    pub fn without_delay(&self) -> Option<Self> {
        match self {
            Self::TokenBucket(bucket) if bucket.max_delay() > Nanos::ZERO => {
                Some(Self::TokenBucket(bucket.without_delay()))
            }
            _ => None,
        }
    }

    /// How long a request may wait for its units.
    pub const fn max_delay(&self) -> Nanos {
        match self {
            Self::TokenBucket(bucket) => bucket.max_delay(),
            Self::SlidingWindow(_) | Self::SlidingLog(_) | Self::FixedWindow(_) => Nanos::ZERO,
        }
    }

    /// Units that a key with a full cell can spend at once.
    pub fn limit(&self) -> u32 {
        match self {
            Self::TokenBucket(q) => q.limit(),
            Self::SlidingWindow(q) => q.rate().count(),
            Self::SlidingLog(q) => q.rate().count(),
            Self::FixedWindow(q) => q.rate().count(),
        }
    }

    /// The span in which [`Quota::limit`] units come: the window; for a bucket, its fill time plus `max_delay`.
    pub fn window(&self) -> Nanos {
        match self {
            Self::TokenBucket(q) => q.capacity(),
            Self::SlidingWindow(q) => q.rate().period(),
            Self::SlidingLog(q) => q.rate().period(),
            Self::FixedWindow(q) => q.rate().period(),
        }
    }

    /// The length of the window; a bucket has none.
    pub fn window_length(&self) -> Option<Nanos> {
        match self {
            Self::TokenBucket(_) => None,
            Self::SlidingWindow(_) | Self::SlidingLog(_) | Self::FixedWindow(_) => {
                Some(self.window())
            }
        }
    }

    /// The algorithm's name in YAML. It is part of the key's hash, so limits of different algorithms never share
    /// a cell.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "token_bucket",
            Self::SlidingWindow(_) => "sliding_window",
            Self::SlidingLog(_) => "sliding_log",
            Self::FixedWindow(_) => "fixed_window",
        }
    }
}

impl WindowLengths {
    /// The window lengths of all variants of one limit.
    pub fn of<'q>(quotas: impl IntoIterator<Item = &'q Quota>) -> Self {
        let (windows, buckets): (Vec<&Quota>, Vec<&Quota>) =
            quotas.into_iter().partition(|quota| quota.window_length().is_some());
        let is_first = |index: &usize| !buckets[..*index].contains(&buckets[*index]);
        let distinct_buckets = (0..buckets.len()).filter(is_first).count();
        Self::new(windows.into_iter().filter_map(Quota::window_length))
            .with_buckets(distinct_buckets)
    }
}

/// The promise in one line, for `tollgate check`.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenBucket(q) => q.fmt(f),
            Self::SlidingWindow(q) => q.fmt(f),
            Self::SlidingLog(q) => q.fmt(f),
            Self::FixedWindow(q) => q.fmt(f),
        }
    }
}
