//! Metrics of the store: how calls and charges end. Plain atomics, read by the exporter.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::histogram::Histogram;

/// How a call ended. Only calls that were sent are counted: no charge that failed in the queue, and no call
/// that found no connection ([`StoreFailure::Unreachable`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The reply was valid, whatever it said of the charges.
    Ok,
    /// See [`StoreFailure::Timeout`].
    Timeout,
    /// See [`StoreFailure::Lost`]. ([`StoreFailure::Unreachable`] is not counted.)
    Unreachable,
    /// See [`StoreFailure::Refused`].
    Refused,
    /// See [`StoreFailure::Invalid`] and [`StoreFailure::Unreadable`].
    Invalid,
}

impl CallOutcome {
    /// Every outcome, in the order of the counters.
    pub const ALL: [Self; 5] =
        [Self::Ok, Self::Timeout, Self::Unreachable, Self::Refused, Self::Invalid];

    /// The label value in the metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Invalid => "invalid",
        }
    }
}

/// Counters of calls and of the charges they carry.
#[derive(Debug)]
pub struct StoreMetrics {
    calls: [AtomicU64; CallOutcome::ALL.len()],
    /// How long calls took, whatever their outcome.
    pub durations: Histogram<12>,
    /// Charges in a call.
    pub batches: Histogram<7>,
    unreported_lost: AtomicU64,
}

impl Default for StoreMetrics {
    fn default() -> Self {
        Self {
            calls: Default::default(),
            // From 50 microseconds, a loopback's round trip, to a tenth of a second.
            durations: Histogram::exponential(50_000, 2),
            batches: Histogram::exponential(1, 2),
            unreported_lost: AtomicU64::new(0),
        }
    }
}

impl StoreMetrics {
    pub(super) fn record_call(&self, outcome: CallOutcome) {
        self.calls[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn record_unreported_lost(&self, units: u64) {
        self.unreported_lost.fetch_add(units, Ordering::Relaxed);
    }

    /// How many calls ended so.
    pub fn calls(&self, outcome: CallOutcome) -> u64 {
        self.calls[outcome as usize].load(Ordering::Relaxed)
    }

    /// Units that were admitted, refunded or debited without the store and will never be reported
    /// to it, because the list of what is unreported was full.
    pub fn unreported_lost(&self) -> u64 {
        self.unreported_lost.load(Ordering::Relaxed)
    }
}
