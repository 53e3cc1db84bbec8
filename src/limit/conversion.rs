//! Cells across variants and generations: which quota reads which cell, and how a cell of one becomes a cell of
//! another.
//!
//! Units that are spent stay spent. Raising a limit gives a key the difference at once. Lowering it leaves the
//! excess as debt in a window, and empties a bucket.

use super::buckets::Buckets;
use super::cell::Cell;
use super::charge_log::ChargeLog;
use super::counters::CountersByLength;
use super::fixed_window::{FixedWindow, WindowCount};
use super::quota::Quota;
use super::refill::FullAt;
use super::retention::wall_secs;
use super::sliding_window::{SlidingWindow, WindowPair};
use super::window_lengths::WindowLengths;
use crate::clock::Now;

impl Quota {
    /// An empty cell. `windows`: the lengths of all variants of the limit.
    pub fn empty_cell_for(&self, windows: &WindowLengths, now: Now) -> Cell {
        match self {
            Self::SlidingWindow(_) if windows.lengths().len() > 1 => {
                Cell::WindowPairs(Box::new(CountersByLength::empty(windows, wall_secs(now))))
            }
            Self::FixedWindow(_) if windows.lengths().len() > 1 => {
                Cell::WindowCounts(Box::new(CountersByLength::empty(windows, wall_secs(now))))
            }
            Self::SlidingLog(q) => {
                let longest = windows.longest().max(q.rate().period());
                Cell::Log(Box::new(ChargeLog::empty(longest, now.mono)))
            }
            Self::TokenBucket(q) if q.is_refundable() => {
                Cell::Buckets(Box::new(Buckets::single(q, FullAt::default(), now.mono)))
            }
            _ => self.empty_cell(),
        }
    }

    /// Whether this quota can read cells that `old` wrote without a conversion, if the windows of both limits are
    /// equal.
    pub fn can_read(&self, old: &Self) -> bool {
        match (self, old) {
            (Self::TokenBucket(q), Self::TokenBucket(old)) => q.refill() == old.refill(),
            (Self::SlidingWindow(_), Self::SlidingWindow(_))
            | (Self::SlidingLog(_), Self::SlidingLog(_))
            | (Self::FixedWindow(_), Self::FixedWindow(_)) => true,
            _ => false,
        }
    }

    /// Turns a cell that `old` wrote into a cell of this quota. An idle cell becomes an empty one. `windows`: the
    /// lengths of all variants of this quota's limit; lengths that the cell does not have are added.
    pub fn convert(&self, windows: &WindowLengths, old: &Self, cell: Cell, now: Now) -> Cell {
        if old.is_idle(&cell, now) {
            return self.empty_cell_for(windows, now);
        }
        match (self, old, cell) {
            (Self::TokenBucket(q), Self::TokenBucket(old), Cell::Bucket(c)) => {
                let mut buckets = Box::new(Buckets::single(old, c, now.mono));
                buckets.add_rate(q, now.mono);
                Cell::Buckets(buckets)
            }
            (Self::TokenBucket(q), Self::TokenBucket(_), Cell::Buckets(mut buckets)) => {
                buckets.add_rate(q, now.mono);
                Cell::Buckets(buckets)
            }
            (Self::SlidingWindow(q), Self::SlidingWindow(old), Cell::WindowPair(c)) => {
                let single = CountersByLength::single(old.rate().period(), c, wall_secs(now));
                aligned_pairs(q, Box::new(single), windows, now)
            }
            (Self::SlidingWindow(q), Self::SlidingWindow(_), Cell::WindowPairs(c)) => {
                aligned_pairs(q, c, windows, now)
            }
            (Self::FixedWindow(q), Self::FixedWindow(old), Cell::WindowCount(c)) => {
                let single = CountersByLength::single(old.rate().period(), c, wall_secs(now));
                aligned_counts(q, Box::new(single), windows, now)
            }
            (Self::FixedWindow(q), Self::FixedWindow(_), Cell::WindowCounts(c)) => {
                aligned_counts(q, c, windows, now)
            }
            (Self::SlidingLog(q), Self::SlidingLog(_), Cell::Log(mut log)) => {
                log.keep_for(windows.longest().max(q.rate().period()), now.mono);
                Cell::Log(log)
            }
            _ => self.empty_cell_for(windows, now),
        }
    }

    /// Releases memory that the cell no longer needs. Returns whether it released any.
    pub fn tidy(&self, windows: &WindowLengths, cell: &mut Cell, now: Now) -> bool {
        let before = cell.heap_bytes();
        match (self, &mut *cell) {
            (Self::SlidingLog(q), Cell::Log(log)) => {
                log.keep_for(windows.longest().max(q.rate().period()), now.mono);
                log.shrink(now.mono);
            }
            (_, Cell::WindowPairs(_) | Cell::WindowCounts(_)) => {
                let old = std::mem::replace(cell, Cell::Bucket(FullAt::default()));
                *cell = self.convert(windows, self, old, now);
            }
            _ => {}
        }
        cell.heap_bytes() != before
    }
}

fn aligned_pairs(
    quota: &SlidingWindow,
    mut counters: Box<CountersByLength<WindowPair>>,
    windows: &WindowLengths,
    now: Now,
) -> Cell {
    counters.align::<SlidingWindow>(windows, now.wall);
    match counters.only_count(quota.rate().period()) {
        Some(only) => Cell::WindowPair(only),
        None => Cell::WindowPairs(counters),
    }
}

fn aligned_counts(
    quota: &FixedWindow,
    mut counters: Box<CountersByLength<WindowCount>>,
    windows: &WindowLengths,
    now: Now,
) -> Cell {
    counters.align::<FixedWindow>(windows, now.wall);
    match counters.only_count(quota.rate().period()) {
        Some(only) => Cell::WindowCount(only),
        None => Cell::WindowCounts(counters),
    }
}
