//! Histograms of fixed buckets in plain atomics, read by whoever shows them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Nanos;

/// How often which values came: spans in nanoseconds, or plain numbers.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    /// Upper bounds, ascending.
    bounds: [u64; N],
    buckets: [AtomicU64; N],
    count: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    /// Buckets of these upper bounds, ascending.
    pub const fn new(bounds: [u64; N]) -> Self {
        Self {
            bounds,
            buckets: [const { AtomicU64::new(0) }; N],
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }

    /// Buckets that grow from `first` by a factor.
    pub const fn exponential(first: u64, factor: u64) -> Self {
        let mut bounds = [0; N];
        let (mut place, mut bound) = (0, first);
        while place < N {
            bounds[place] = bound;
            bound *= factor;
            place += 1;
        }
        Self::new(bounds)
    }

    /// Counts one span.
    pub fn record_span(&self, span: Nanos) {
        self.record(span.get());
    }

    /// Counts one value.
    pub fn record(&self, value: u64) {
        if let Some(at) = self.bounds.iter().position(|bound| value <= *bound) {
            self.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// How many values, and their sum.
    pub fn totals(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.sum.load(Ordering::Relaxed))
    }

    /// Upper bounds with the number of values up to each, cumulative.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.buckets.iter().scan(0, |sum, bucket| {
            *sum += bucket.load(Ordering::Relaxed);
            Some(*sum)
        });
        self.bounds.iter().copied().zip(counts)
    }
}
