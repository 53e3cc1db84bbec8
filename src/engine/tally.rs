//! What is counted of decisions: plain atomics, read by whoever shows them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Nanos;
use crate::policy::Tier;

/// How one limit's verdict went into the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictKind {
    /// The charge fits.
    Allowed,
    /// It does not.
    Denied,
    /// It does not, and the limit is in shadow mode.
    ShadowDenied,
    /// No room for a new key; it passes.
    OverflowAllowed,
    /// No room for a new key; it is refused.
    OverflowDenied,
}

impl VerdictKind {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 5] = [
        Self::Allowed,
        Self::Denied,
        Self::ShadowDenied,
        Self::OverflowAllowed,
        Self::OverflowDenied,
    ];

    /// The word of the metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::ShadowDenied => "shadow_denied",
            Self::OverflowAllowed => "overflow_allowed",
            Self::OverflowDenied => "overflow_denied",
        }
    }
}

/// The verdicts of one limit, over all generations.
#[derive(Debug, Default)]
pub struct Tally([AtomicU64; VerdictKind::ALL.len()]);

impl Tally {
    pub(super) fn count(&self, kind: VerdictKind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many verdicts of a kind there were.
    pub fn get(&self, kind: VerdictKind) -> u64 {
        self.0[kind as usize].load(Ordering::Relaxed)
    }
}

/// A histogram of spans: fixed buckets, plain atomics.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    /// Upper bounds, ascending.
    bounds: [Nanos; N],
    buckets: [AtomicU64; N],
    count: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    /// Buckets of these upper bounds, ascending.
    pub const fn new(bounds: [Nanos; N]) -> Self {
        Self {
            bounds,
            buckets: [const { AtomicU64::new(0) }; N],
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }

    /// Counts one span.
    pub fn observe(&self, span: Nanos) {
        if let Some(at) = self.bounds.iter().position(|bound| span <= *bound) {
            self.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(span.get(), Ordering::Relaxed);
    }

    /// How many spans, and their sum.
    pub fn totals(&self) -> (u64, Nanos) {
        (self.count.load(Ordering::Relaxed), Nanos::new(self.sum.load(Ordering::Relaxed)))
    }

    /// Upper bounds with the number of spans up to each, cumulative.
    pub fn cumulative(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let counts = self.buckets.iter().scan(0, |sum, bucket| {
            *sum += bucket.load(Ordering::Relaxed);
            Some(*sum)
        });
        self.bounds.iter().copied().zip(counts)
    }
}

/// How long decisions take, by the dearest tier they asked.
#[derive(Debug)]
pub struct Durations {
    estimate: Histogram<10>,
    exact: Histogram<10>,
}

impl Default for Durations {
    fn default() -> Self {
        // From a quarter of a microsecond in steps of four: an embedded decision takes some
        // hundred nanoseconds, one that waits for a store some hundred microseconds.
        const BOUNDS: [Nanos; 10] = {
            let mut bounds = [Nanos::ZERO; 10];
            let (mut i, mut bound) = (0, 250);
            while i < bounds.len() {
                bounds[i] = Nanos::new(bound);
                bound *= 4;
                i += 1;
            }
            bounds
        };
        Self { estimate: Histogram::new(BOUNDS), exact: Histogram::new(BOUNDS) }
    }
}

impl Durations {
    /// The histogram of a tier.
    pub const fn of(&self, tier: Tier) -> &Histogram<10> {
        match tier {
            Tier::Estimate => &self.estimate,
            Tier::Exact => &self.exact,
        }
    }
}
