//! Requests and refusals over time, in a fixed number of buckets whose width doubles as the span grows.
//!
//! ```text
//!   width 1 s   | 5 | 2 | 0 | 7 |       buckets begin at multiples of their width since the epoch,
//!   width 2 s   |   7   |   7   |       so two of them become exactly one
//! ```

use crate::clock::Nanos;

/// TimeBuckets of a plot.
pub const MAX_BUCKETS: usize = 240;
const MAX_INDEX: u64 = MAX_BUCKETS as u64 - 1;

/// The width before it is doubled.
const FIRST_WIDTH: u64 = Nanos::SECOND.get();

/// What happened in one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Requests, or requests that a limit judged.
    pub requests: u64,
    /// Refusals with effect.
    pub refused: u64,
    /// Refusals in shadow mode.
    pub shadow_refused: u64,
}

impl Bucket {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.refused += other.refused;
        self.shadow_refused += other.shadow_refused;
    }
}

/// Counts over time.
pub(super) type TimeBuckets = Vec<Bucket>;

/// The times of all buckets of a tally.
#[derive(Clone, Debug)]
pub(super) struct TimeAxis {
    width: u64,
    /// The first bucket begins after so many widths since the epoch.
    base: u64,
    /// TimeBuckets up to the latest time.
    len: u64,
    /// The bucket of the last time, to spare the division.
    begin: u64,
    index: usize,
}

/// How buckets move when the axis changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisChange {
    from_base: u64,
    to_base: u64,
    doublings: u32,
}

impl TimeAxis {
    pub(super) const fn new() -> Self {
        Self { width: FIRST_WIDTH, base: 0, len: 0, begin: 0, index: 0 }
    }

    /// The index of the bucket of a time. If there is a change, all buckets have to follow it first.
    pub(super) fn bucket(&mut self, at: Nanos) -> (usize, Option<AxisChange>) {
        let passed = at.get().checked_sub(self.begin);
        if self.len > 0 && passed.is_some_and(|passed| passed < self.width) {
            return (self.index, None);
        }
        let change = self.extend(at.get());
        let number = at.get() / self.width;
        self.begin = number * self.width;
        // The index is less than the number of buckets.
        self.index = (number - self.base) as usize;
        (self.index, change)
    }

    fn extend(&mut self, at: u64) -> Option<AxisChange> {
        let number = at / self.width;
        if self.len == 0 {
            (self.base, self.len) = (number, 1);
            return None;
        }
        let (mut first, mut last) = (self.base.min(number), (self.base + self.len - 1).max(number));
        let mut change = AxisChange { from_base: self.base, to_base: self.base, doublings: 0 };
        while last - first > MAX_INDEX {
            (first, last) = (first / 2, last / 2);
            self.width *= 2;
            change.doublings += 1;
        }
        let is_changed = change.doublings > 0 || first != self.base;
        (self.base, self.len) = (first, last - first + 1);
        change.to_base = first;
        is_changed.then_some(change)
    }

    /// When the first bucket begins, and how long each is.
    pub(super) const fn origin(&self) -> (Nanos, Nanos) {
        (Nanos::new(self.base * self.width), Nanos::new(self.width))
    }

    /// All buckets up to the latest time.
    pub(super) fn filled(&self, mut buckets: TimeBuckets) -> TimeBuckets {
        buckets.resize(self.len as usize, Bucket::default());
        buckets
    }
}

impl AxisChange {
    pub(super) fn apply(self, buckets: &mut TimeBuckets) {
        let mut moved = TimeBuckets::with_capacity(buckets.capacity());
        for (bucket, number) in buckets.iter().zip(self.from_base..) {
            let index = ((number >> self.doublings) - self.to_base) as usize;
            count(&mut moved, index, *bucket);
        }
        *buckets = moved;
    }
}

/// Adds to a bucket.
pub(super) fn count(buckets: &mut TimeBuckets, index: usize, counts: Bucket) {
    if index >= buckets.len() {
        buckets.resize(index + 1, Bucket::default());
    }
    buckets[index].add(counts);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn check(times: &[u64]) {
        let (mut axis, mut buckets) = (TimeAxis::new(), TimeBuckets::new());
        for at in times {
            let (index, change) = axis.bucket(Nanos::new(*at));
            if let Some(change) = change {
                change.apply(&mut buckets);
            }
            count(&mut buckets, index, Bucket { requests: 1, refused: 2, shadow_refused: 3 });
        }
        let (from, width) = axis.origin();
        let buckets = axis.filled(buckets);
        assert!(buckets.len() <= MAX_BUCKETS);
        let mut expected = BTreeMap::<u64, u64>::new();
        times
            .iter()
            .for_each(|at| *expected.entry((at - from.get()) / width.get()).or_default() += 1);
        for (index, bucket) in (0..).zip(&buckets) {
            let requests = expected.get(&index).copied().unwrap_or(0);
            let counts = Bucket { requests, refused: 2 * requests, shadow_refused: 3 * requests };
            assert_eq!(*bucket, counts, "{index} of {times:?}");
        }
        assert_eq!(buckets.iter().map(|b| b.requests).sum::<u64>(), times.len() as u64);
    }

    proptest::proptest! {
        #[test]
        fn no_request_leaves_its_time(
            times in proptest::collection::vec((0_u64..=u64::MAX, 0_u32..64), 0..60),
        ) {
            check(&times.iter().map(|(at, shift)| at >> shift).collect::<Vec<_>>());
        }
    }

    #[test]
    fn spans_of_all_lengths_fit() {
        const S: u64 = 1_000_000_000;
        check(&[]);
        check(&[5 * S]);
        check(&[1_000 * S, 1_239 * S, 1_240 * S]);
        check(&[1_001 * S, 1_240 * S, 1_241 * S, 1_000 * S]);
        check(&[0, u64::MAX, 1]);
        check(&[u64::MAX, 0]);
    }
}
