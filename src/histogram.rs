//! Histograms of fixed buckets in plain atomics. A histogram does not know what it counts, nor who reads it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Nanos;

/// How often values occurred, by size. Values are nanoseconds or plain numbers.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    /// Upper bounds, ascending.
    bounds: [u64; N],
    /// Values of each bucket alone. A value above all bounds is in none.
    buckets: [AtomicU64; N],
    count: AtomicU64,
    sum: AtomicU64,
}

/// All values of a histogram together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistogramTotals {
    /// How many values were recorded.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
}

/// A bucket together with all smaller ones, as Prometheus expects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CumulativeBucket {
    /// The largest value that is counted.
    pub upper_bound: u64,
    /// How many values up to `upper_bound` were recorded.
    pub count: u64,
}

impl<const N: usize> Histogram<N> {
    /// Buckets with these upper bounds, ascending.
    pub const fn new(bounds: [u64; N]) -> Self {
        Self {
            bounds,
            buckets: [const { AtomicU64::new(0) }; N],
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }

    /// Buckets whose upper bounds are `first`, `first x factor`, `first x factor²`, and so on.
    pub const fn exponential(first: u64, factor: u64) -> Self {
        let mut bounds = [0; N];
        let (mut index, mut bound) = (0, first);
        while index < N {
            bounds[index] = bound;
            bound *= factor;
            index += 1;
        }
        Self::new(bounds)
    }

    /// Records a span, in nanoseconds.
    pub fn record_span(&self, span: Nanos) {
        self.record(span.get());
    }

    /// Records a value.
    pub fn record(&self, value: u64) {
        if let Some(index) = self.bounds.iter().position(|bound| value <= *bound) {
            self.buckets[index].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// The number of all values, and their sum.
    pub fn totals(&self) -> HistogramTotals {
        HistogramTotals {
            count: self.count.load(Ordering::Relaxed),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }

    /// The buckets, ascending, each with all smaller ones.
    pub fn cumulative(&self) -> impl Iterator<Item = CumulativeBucket> {
        let mut count = 0;
        self.bounds.iter().zip(&self.buckets).map(move |(upper_bound, bucket)| {
            count += bucket.load(Ordering::Relaxed);
            CumulativeBucket { upper_bound: *upper_bound, count }
        })
    }
}
