//! The arithmetic of limits: what a key has spent, and whether it may spend more.
//!
//! One algorithm per file. Each is a value (the *quota*) whose functions take a cell, a cost and
//! the time, and answer a [`Verdict`]. Nothing here knows a key, a store, a lock or a clock;
//! integers only. An absent cell and a cell that has refilled completely are the same thing:
//! [`Quota::is_idle`] is what lets a store drop the second.
//!
//! [`Quota::judge`] never changes a cell and [`Quota::charge`] is only called after every limit of
//! the request has allowed it, so a refusal spends nothing anywhere.

mod buckets;
mod fixed_window;
mod reading;
mod receipt;
mod sketch;
mod sliding_log;
mod sliding_window;
mod token_bucket;
mod windows;

use std::fmt;
use std::num::NonZeroU32;

use crate::clock::{Nanos, Now};

pub use buckets::{Buckets, MAX_RATES};
pub use fixed_window::{Counter, FixedWindow};
pub use reading::MICROSECOND;
pub use receipt::Receipt;
pub use sketch::{SKETCH_ROWS, SketchSize};
pub use sliding_log::{Log, MAX_LOG_LIMIT, SlidingLog, log_bytes};
pub use sliding_window::{SlidingWindow, WindowPair};
pub use token_bucket::{FullAt, TokenBucket};
use windows::wall_secs;

pub use windows::{Counters, MAX_WINDOWS, WindowLengths};

/// The longest span a rate may be written over: 366 days. Keeps every product of the arithmetic
/// far from the end of 64 bits.
pub const MAX_PERIOD: Nanos = Nanos::from_secs(366 * 86_400);

/// `count` units per `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: NonZeroU32,
    period: Nanos,
}

impl Rate {
    /// One unit a second.
    pub const ONE_PER_SECOND: Self = Self { count: NonZeroU32::MIN, period: Nanos::SECOND };

    /// A rate, if `count` is at least 1 and `period` is between 1 ms and [`MAX_PERIOD`].
    pub fn new(count: u32, period: Nanos) -> Result<Self, QuotaError> {
        let count = NonZeroU32::new(count).ok_or(QuotaError::ZeroRate)?;
        if period < Nanos::from_millis(1) || period > MAX_PERIOD {
            return Err(QuotaError::Period);
        }
        Ok(Self { count, period })
    }

    /// One unit per period, where only the period matters; it comes from a rate.
    pub(crate) const fn per(period: Nanos) -> Self {
        Self { count: NonZeroU32::MIN, period }
    }

    /// Units per period.
    pub const fn count(self) -> u32 {
        self.count.get()
    }

    /// The period.
    pub const fn period(self) -> Nanos {
        self.period
    }
}

/// Why a quota cannot be built. The configuration adds the place and the cure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// A rate of nothing.
    #[error("a rate needs at least 1 unit")]
    ZeroRate,
    /// A period that is too short or too long.
    #[error("a rate's period is between 1ms and 366d")]
    Period,
    /// A bucket that holds nothing.
    #[error("a burst is at least 1")]
    ZeroBurst,
    /// The time between two units is so short that rounding it up to a whole unit of the clock
    /// errs by more than 0.1 %.
    #[error("this rate errs by more than 0.1 % in the clock's unit")]
    TooFast,
    /// A bucket that takes more than a hundred years to fill.
    #[error("a full burst may take at most 100 years to refill")]
    TooLong,
    /// Units that come in steps, and requests that wait for them one by one.
    #[error("refill_every and max_delay do not go together")]
    DelayedSteps,
    /// `refill_every` is not a span that brings a whole number of units.
    #[error("refill_every brings no whole number of units")]
    UnevenRefill,
    /// A log of this many times per key costs too much memory.
    #[error("a sliding log holds at most {MAX_LOG_LIMIT} units per window")]
    LogTooLarge,
}

/// What one limit answers to one charge. All spans are counted from the `now` of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the charge fits.
    pub allowed: bool,
    /// The most a key can spend at once: the burst, or the units of a window.
    pub limit: u32,
    /// What can be spent at once after this verdict (after the charge, when it is allowed).
    pub remaining: u32,
    /// How long the request waits for its turn, if it is allowed. Only a bucket with `max_delay` delays
    /// requests.
    pub delay: Nanos,
    /// Until the cell is full again, if nothing more is spent.
    pub reset: Nanos,
    /// Until the same charge can first succeed, if nobody else spends. `Some(0)` when allowed;
    /// `None` when it never can, being larger than the limit.
    pub retry_after: Option<Nanos>,
}

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

/// What one key has spent under one limit. A cell is read by the quota that wrote it, by another one
/// of the same limit that [reads](Quota::can_read) it, or it is converted first ([`Quota::convert`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Of a [`TokenBucket`].
    Bucket(FullAt),
    /// Of a [`TokenBucket`] of a key that has been charged under several rates, or whose charges may be
    /// given back.
    Buckets(Box<Buckets>),
    /// Of a [`SlidingWindow`].
    WindowPair(WindowPair),
    /// Of a [`SlidingLog`]; boxed, so that the other cells stay small.
    Log(Box<Log>),
    /// Of a [`FixedWindow`].
    Counter(Counter),
    /// Of a [`SlidingWindow`] whose limit has windows of several lengths.
    WindowPairs(Box<Counters<WindowPair>>),
    /// Of a [`FixedWindow`] whose limit has windows of several lengths.
    WindowCounters(Box<Counters<Counter>>),
}

impl Quota {
    /// Whether a charge of `cost` fits, and what the headers shall say. An absent cell is `None`.
    /// A cost of 0 always fits and only asks.
    pub fn judge(&self, cell: Option<&Cell>, cost: u32, now: Now) -> Verdict {
        match (self, cell) {
            (Self::TokenBucket(q), Some(Cell::Bucket(c))) => q.judge(*c, cost, now.mono),
            (Self::TokenBucket(q), Some(Cell::Buckets(c))) => q.judge(c.full(q), cost, now.mono),
            (Self::SlidingWindow(q), Some(Cell::WindowPair(c))) => q.judge(*c, cost, now.wall),
            (Self::SlidingLog(q), Some(Cell::Log(c))) => q.judge(c, cost, now.mono),
            (Self::FixedWindow(q), Some(Cell::Counter(c))) => q.judge(*c, cost, now.wall),
            (Self::SlidingWindow(q), Some(Cell::WindowPairs(all))) => {
                q.judge(all.of(q.rate().period()), cost, now.wall)
            }
            (Self::FixedWindow(q), Some(Cell::WindowCounters(all))) => {
                q.judge(all.of(q.rate().period()), cost, now.wall)
            }
            // Absent. A cell of another algorithm cannot be met, since the algorithm is in the key; it
            // would count as absent.
            (Self::TokenBucket(q), _) => q.judge(FullAt::default(), cost, now.mono),
            (Self::SlidingWindow(q), _) => q.judge(WindowPair::default(), cost, now.wall),
            (Self::SlidingLog(q), _) => q.judge(&Log::default(), cost, now.mono),
            (Self::FixedWindow(q), _) => q.judge(Counter::default(), cost, now.wall),
        }
    }

    /// Units that are spent and have not come back: more than the limit where a cost was told late.
    pub fn spent(&self, cell: &Cell, now: Now) -> u32 {
        match (self, cell) {
            (Self::TokenBucket(q), Cell::Bucket(c)) => q.spent(*c, now.mono),
            (Self::TokenBucket(q), Cell::Buckets(c)) => q.spent(c.full(q), now.mono),
            (Self::SlidingWindow(q), Cell::WindowPair(c)) => q.spent(*c, now.wall),
            (Self::SlidingLog(q), Cell::Log(c)) => q.spent(c, now.mono),
            (Self::FixedWindow(q), Cell::Counter(c)) => q.spent(*c, now.wall),
            (Self::SlidingWindow(q), Cell::WindowPairs(all)) => {
                q.spent(all.of(q.rate().period()), now.wall)
            }
            (Self::FixedWindow(q), Cell::WindowCounters(all)) => {
                q.spent(all.of(q.rate().period()), now.wall)
            }
            _ => 0,
        }
    }

    /// How long a charge of `cost` counts at most, after the cell held the limit's units.
    pub fn charge_lifetime(&self, cost: u32) -> Nanos {
        match self {
            // A debt comes back unit by unit, however long that takes.
            Self::TokenBucket(q) => {
                q.capacity().saturating_add(q.emission().saturating_mul(cost.into()))
            }
            // In the window that it was made in and, weighted, in the next.
            Self::SlidingWindow(_) | Self::SlidingLog(_) | Self::FixedWindow(_) => {
                self.window().saturating_mul(2)
            }
        }
    }

    /// Spends `cost`, whether it fits or not: ask [`Quota::judge`] first.
    pub fn charge(&self, cell: &mut Cell, cost: u32, now: Now) {
        match (self, &mut *cell) {
            (Self::TokenBucket(q), Cell::Bucket(c)) if !q.is_refundable() => {
                q.charge(c, cost, now.mono);
            }
            (Self::TokenBucket(q), Cell::Bucket(c)) => {
                let mut buckets = Box::new(Buckets::of(q, *c, now.mono));
                buckets.charge(q, cost, now.mono);
                *cell = Cell::Buckets(buckets);
            }
            (Self::TokenBucket(q), Cell::Buckets(c)) => c.charge(q, cost, now.mono),
            (Self::SlidingWindow(q), Cell::WindowPair(c)) => q.charge(c, cost, now.wall),
            (Self::SlidingLog(q), Cell::Log(c)) => q.charge(c, cost, now.mono),
            (Self::FixedWindow(q), Cell::Counter(c)) => q.charge(c, cost, now.wall),
            (Self::SlidingWindow(q), Cell::WindowPairs(all)) => {
                all.charge::<SlidingWindow>(q.rate().period(), cost, now.wall);
            }
            (Self::FixedWindow(q), Cell::WindowCounters(all)) => {
                all.charge::<FixedWindow>(q.rate().period(), cost, now.wall);
            }
            _ => {
                *cell = self.empty_cell();
                // `empty_cell` is of this quota's kind, so this goes one level deep.
                self.charge(cell, cost, now);
            }
        }
    }

    /// A cell that has spent nothing, of a limit whose variants have windows of one length.
    pub fn empty_cell(&self) -> Cell {
        match self {
            Self::TokenBucket(_) => Cell::Bucket(FullAt::default()),
            Self::SlidingWindow(_) => Cell::WindowPair(WindowPair::default()),
            Self::SlidingLog(_) => Cell::Log(Box::default()),
            Self::FixedWindow(_) => Cell::Counter(Counter::default()),
        }
    }

    /// A cell that has spent nothing. `windows`: of all variants of the limit.
    pub fn empty_cell_for(&self, windows: &WindowLengths, now: Now) -> Cell {
        match self {
            Self::SlidingWindow(_) if windows.lengths().len() > 1 => {
                Cell::WindowPairs(Box::new(Counters::fresh(windows, wall_secs(now))))
            }
            Self::FixedWindow(_) if windows.lengths().len() > 1 => {
                Cell::WindowCounters(Box::new(Counters::fresh(windows, wall_secs(now))))
            }
            Self::SlidingLog(q) => {
                let longest = windows.longest().max(q.rate().period());
                Cell::Log(Box::new(Log::keeping(longest, now.mono)))
            }
            Self::TokenBucket(q) if q.is_refundable() => {
                Cell::Buckets(Box::new(Buckets::of(q, FullAt::default(), now.mono)))
            }
            _ => self.empty_cell(),
        }
    }

    /// The same, whose charges may be given back.
    pub const fn with_refunds(self, returns: bool) -> Self {
        match self {
            Self::TokenBucket(bucket) => Self::TokenBucket(bucket.with_refunds(returns)),
            // A window gives back what was charged in it, whatever came since.
            other => other,
        }
    }

    /// The same without `max_delay`; `None` where nobody waits anyway. Both read the same cells.
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

    /// Whether the cell equals an absent one, now and for ever after.
    pub fn is_idle(&self, cell: &Cell, now: Now) -> bool {
        match (self, cell) {
            (Self::TokenBucket(q), Cell::Bucket(c)) => q.is_idle(*c, now.mono),
            (Self::TokenBucket(_), Cell::Buckets(c)) => c.is_idle(now.mono),
            (Self::SlidingWindow(q), Cell::WindowPair(c)) => q.is_idle(*c, now.wall),
            (Self::SlidingLog(_), Cell::Log(c)) => c.is_idle(now.mono),
            (Self::FixedWindow(q), Cell::Counter(c)) => q.is_idle(*c, now.wall),
            (Self::SlidingWindow(_), Cell::WindowPairs(all)) => {
                all.is_idle::<SlidingWindow>(now.wall)
            }
            (Self::FixedWindow(_), Cell::WindowCounters(all)) => {
                all.is_idle::<FixedWindow>(now.wall)
            }
            _ => true,
        }
    }

    /// Whether cells that `old` wrote can be read by this quota as they are, if the windows of both
    /// limits are the same.
    pub fn can_read(&self, old: &Self) -> bool {
        match (self, old) {
            (Self::TokenBucket(q), Self::TokenBucket(old)) => q.refill() == old.refill(),
            (Self::SlidingWindow(_), Self::SlidingWindow(_))
            | (Self::SlidingLog(_), Self::SlidingLog(_))
            | (Self::FixedWindow(_), Self::FixedWindow(_)) => true,
            _ => false,
        }
    }

    /// Reads a cell that was written under `old` as a cell of this quota: what was spent stays
    /// spent, in units. Raising a limit helps at once by the difference; lowering it leaves what
    /// is above as debt in a window, and empties a bucket. `windows`: of all variants of this quota's
    /// limit; lengths that the cell does not have yet are added. An idle cell starts afresh.
    pub fn convert(&self, windows: &WindowLengths, old: &Self, cell: Cell, now: Now) -> Cell {
        if old.is_idle(&cell, now) {
            return self.empty_cell_for(windows, now);
        }
        match (self, old, cell) {
            (Self::TokenBucket(q), Self::TokenBucket(old), Cell::Bucket(c)) => {
                let mut buckets = Box::new(Buckets::of(old, c, now.mono));
                buckets.add(q, now.mono);
                Cell::Buckets(buckets)
            }
            (Self::TokenBucket(q), Self::TokenBucket(_), Cell::Buckets(mut buckets)) => {
                buckets.add(q, now.mono);
                Cell::Buckets(buckets)
            }
            (Self::SlidingWindow(q), Self::SlidingWindow(old), Cell::WindowPair(c)) => {
                let of = Counters::single(old.rate().period(), c, wall_secs(now));
                q.aligned(Box::new(of), windows, now)
            }
            (Self::SlidingWindow(q), Self::SlidingWindow(_), Cell::WindowPairs(all)) => {
                q.aligned(all, windows, now)
            }
            (Self::FixedWindow(q), Self::FixedWindow(old), Cell::Counter(c)) => {
                let of = Counters::single(old.rate().period(), c, wall_secs(now));
                q.aligned(Box::new(of), windows, now)
            }
            (Self::FixedWindow(q), Self::FixedWindow(_), Cell::WindowCounters(all)) => {
                q.aligned(all, windows, now)
            }
            (Self::SlidingLog(q), Self::SlidingLog(_), Cell::Log(mut log)) => {
                log.keep(windows.longest().max(q.rate().period()), now.mono);
                Cell::Log(log)
            }
            _ => self.empty_cell_for(windows, now),
        }
    }

    /// Gives back memory that the cell does not need any more. Says whether there was any.
    pub fn tidy(&self, windows: &WindowLengths, cell: &mut Cell, now: Now) -> bool {
        let before = cell.heap_bytes();
        match (self, &mut *cell) {
            (Self::SlidingLog(q), Cell::Log(log)) => {
                log.keep(windows.longest().max(q.rate().period()), now.mono);
                log.tidy(now.mono);
            }
            (_, Cell::WindowPairs(_) | Cell::WindowCounters(_)) => {
                let old = std::mem::replace(cell, Cell::Bucket(FullAt::default()));
                *cell = self.convert(windows, self, old, now);
            }
            _ => {}
        }
        cell.heap_bytes() != before
    }

    /// The most a key can spend at once.
    pub fn limit(&self) -> u32 {
        match self {
            Self::TokenBucket(q) => q.limit(),
            Self::SlidingWindow(q) => q.rate().count(),
            Self::SlidingLog(q) => q.rate().count(),
            Self::FixedWindow(q) => q.rate().count(),
        }
    }

    /// The span that [`Quota::limit`] belongs to: the window; for a bucket, the time in which its `limit`
    /// units come, which is its fill time plus `max_delay`.
    pub fn window(&self) -> Nanos {
        match self {
            Self::TokenBucket(q) => q.capacity(),
            Self::SlidingWindow(q) => q.rate().period(),
            Self::SlidingLog(q) => q.rate().period(),
            Self::FixedWindow(q) => q.rate().period(),
        }
    }

    /// The length of its window; a bucket has none.
    pub fn window_length(&self) -> Option<Nanos> {
        match self {
            Self::TokenBucket(_) => None,
            Self::SlidingWindow(q) => Some(q.rate().period()),
            Self::SlidingLog(q) => Some(q.rate().period()),
            Self::FixedWindow(q) => Some(q.rate().period()),
        }
    }

    /// The algorithm's word. It is part of the key's hash, so limits of different algorithms never meet
    /// the same cell.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "token_bucket",
            Self::SlidingWindow(_) => "sliding_window",
            Self::SlidingLog(_) => "sliding_log",
            Self::FixedWindow(_) => "fixed_window",
        }
    }
}

impl Cell {
    /// Bytes that the cell holds besides itself.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Bucket(_) | Self::WindowPair(_) | Self::Counter(_) => 0,
            Self::Buckets(buckets) => buckets.heap_bytes(),
            Self::Log(log) => log.heap_bytes(),
            Self::WindowPairs(all) => all.heap_bytes(),
            Self::WindowCounters(all) => all.heap_bytes(),
        }
    }

    /// Makes room for one more charge without more memory: in a list that is full two entries become
    /// one, at the later of both times. A log joins its two oldest, a bucket those closest in time.
    pub fn make_room(&mut self, now: Now) {
        match self {
            Self::Log(log) => log.make_room(now.mono),
            Self::Buckets(buckets) => buckets.make_room(now.mono),
            _ => {}
        }
    }

    /// Bytes that it will hold besides itself after one more charge: a list that is full grows.
    pub fn heap_bytes_after_charge(&self, now: Now) -> usize {
        match self {
            Self::Log(log) => log.heap_bytes_after_charge(now.mono),
            Self::Buckets(buckets) => buckets.heap_bytes_after_charge(now.mono),
            _ => self.heap_bytes(),
        }
    }
}

impl SlidingWindow {
    fn aligned(
        &self,
        mut all: Box<Counters<WindowPair>>,
        windows: &WindowLengths,
        now: Now,
    ) -> Cell {
        all.align::<Self>(windows, now.wall);
        match all.alone(self.rate().period()) {
            Some(alone) => Cell::WindowPair(alone),
            None => Cell::WindowPairs(all),
        }
    }
}

impl FixedWindow {
    fn aligned(&self, mut all: Box<Counters<Counter>>, windows: &WindowLengths, now: Now) -> Cell {
        all.align::<Self>(windows, now.wall);
        match all.alone(self.rate().period()) {
            Some(alone) => Cell::Counter(alone),
            None => Cell::WindowCounters(all),
        }
    }
}

/// The promise in a line, for `check`.
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

/// `N/DURATION` as it is written in a configuration.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:?}", self.count, self.period)
    }
}
