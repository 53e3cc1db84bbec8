//! Counts calls to the store and the charges that they carry, in plain atomics. This module does not know the
//! exporter that reads them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::histogram::Histogram;

/// How a call ended. Only calls that were sent are counted: neither charges that failed in the queue nor calls that
/// found no connection ([`StoreFailure::Unreachable`](super::StoreFailure::Unreachable)) are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The reply was valid, whatever the verdicts are.
    Ok,
    /// See [`StoreFailure::Timeout`](super::StoreFailure::Timeout).
    Timeout,
    /// See [`StoreFailure::Lost`](super::StoreFailure::Lost).
    Unreachable,
    /// See [`StoreFailure::Refused`](super::StoreFailure::Refused).
    Refused,
    /// See [`StoreFailure::Invalid`](super::StoreFailure::Invalid) and
    /// [`StoreFailure::Unreadable`](super::StoreFailure::Unreadable).
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

/// Counters of calls and of the charges that they carry.
#[derive(Debug)]
pub struct StoreMetrics {
    calls: [AtomicU64; CallOutcome::ALL.len()],
    /// How long calls took, whatever their outcome, in nanoseconds.
    pub durations: Histogram<12>,
    /// Charges per call.
    pub batches: Histogram<7>,
    unreported_lost: AtomicU64,
}

impl Default for StoreMetrics {
    fn default() -> Self {
        Self {
            calls: Default::default(),
            // From 50 microseconds, the round trip of a loopback, to a tenth of a second.
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

    /// The number of calls with this outcome.
    pub fn calls(&self, outcome: CallOutcome) -> u64 {
        self.calls[outcome as usize].load(Ordering::Relaxed)
    }

    /// Units that were admitted, refunded or debited without the store and will never be reported to it, because
    /// the list of unreported usage was full.
    pub fn unreported_lost(&self) -> u64 {
        self.unreported_lost.load(Ordering::Relaxed)
    }
}
