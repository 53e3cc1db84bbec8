//! What one key has spent under one limit, and how much memory that takes. A cell knows neither its key nor its
//! quota.

use super::buckets::Buckets;
use super::charge_log::ChargeLog;
use super::counters::CountersByLength;
use super::fixed_window::WindowCount;
use super::refill::FullAt;
use super::sliding_window::WindowPair;
use crate::clock::Now;

/// What one key has spent under one limit.
///
/// A cell is read by the quota that wrote it, or by another quota of the same limit that
/// [can read it](super::Quota::can_read). For any other quota it is [converted](super::Quota::convert) first. A
/// cell that has refilled completely equals an absent one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub enum Cell {
    /// Of a [`TokenBucket`](super::TokenBucket).
    Bucket(FullAt),
    /// Of a [`TokenBucket`](super::TokenBucket) whose key has been charged under several rates, or whose charges
    /// may be refunded.
    Buckets(Box<Buckets>),
    /// Of a [`SlidingWindow`](super::SlidingWindow).
    WindowPair(WindowPair),
    /// Of a [`SlidingLog`](super::SlidingLog); boxed, so that the other cells stay small.
    Log(Box<ChargeLog>),
    /// Of a [`FixedWindow`](super::FixedWindow).
    WindowCount(WindowCount),
    /// Of a [`SlidingWindow`](super::SlidingWindow) whose limit has windows of several lengths.
    WindowPairs(Box<CountersByLength<WindowPair>>),
    /// Of a [`FixedWindow`](super::FixedWindow) whose limit has windows of several lengths.
    WindowCounts(Box<CountersByLength<WindowCount>>),
}

impl Cell {
    /// Bytes that the cell holds on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Bucket(_) | Self::WindowPair(_) | Self::WindowCount(_) => 0,
            Self::Buckets(buckets) => buckets.heap_bytes(),
            Self::Log(log) => log.heap_bytes(),
            Self::WindowPairs(counters) => counters.heap_bytes(),
            Self::WindowCounts(counters) => counters.heap_bytes(),
        }
    }

    /// Bytes that the cell will hold on the heap after one more charge: a full list grows.
    pub fn heap_bytes_after_charge(&self, now: Now) -> usize {
        match self {
            Self::Log(log) => log.heap_bytes_after_charge(now.mono),
            Self::Buckets(buckets) => buckets.heap_bytes_after_charge(now.mono),
            _ => self.heap_bytes(),
        }
    }

    /// Makes room for one more charge without more memory: in a full list, two entries become one at the later of
    /// both times. A log joins its two oldest. A bucket joins the two sums closest in time, or moves its only sum
    /// so that the charge joins it.
    pub fn make_room(&mut self, now: Now) {
        match self {
            Self::Log(log) => log.make_room(now.mono),
            Self::Buckets(buckets) => buckets.make_room(now.mono),
            _ => {}
        }
    }
}
