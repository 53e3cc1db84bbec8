//! Charges that the response of a request may still change, and the change itself.
//!
//! These are values: `exact.rs` and its stores make them, `settle_response.rs` settles them. A correction never creates
//! units that were not charged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::counters::LimitCounters;
use super::final_cost::FinalCost;
use super::overflow::OverflowCharge;
use super::target::Target;
use crate::clock::Nanos;
use crate::limit::{Quota, Receipt, Verdict};
use crate::policy::{KeyHash, LimitIndex};
use crate::store::IssuedQuota;
use crate::store::redis::{CellCharge, SharedStore, UnreportedReceipt};

/// A charge that the response may change.
#[derive(Debug)]
pub(super) struct OpenCharge {
    pub(super) limit: LimitIndex,
    pub(super) final_cost: FinalCost,
    pub(super) key: KeyHash,
    pub(super) family: Option<KeyHash>,
    pub(super) quota: Arc<IssuedQuota>,
    /// The units charged.
    pub(super) cost: u32,
    pub(super) charged: ChargedIn,
    /// Set if the charge was made in this process because the shared store failed.
    pub(super) degraded: Option<DegradedCharge>,
    /// Whether the client sees the verdict, so that a correction must change it too.
    pub(super) is_reported: bool,
    /// Whether it is the charge of a candidate, which the counters of charged units leave out.
    pub(super) is_candidate: bool,
}

/// Where a charge was made, and what is needed to change it there.
#[derive(Debug)]
pub(super) enum ChargedIn {
    /// Nowhere: the key passed uncounted.
    Nowhere,
    /// In the embedded store.
    Embedded(Receipt),
    /// In the overflow sketches, because the embedded store had no room.
    Overflow(OverflowCharge),
    /// In the shared store, at a time of its clock; `log_chunk` is from its reply.
    Shared { at: u64, log_chunk: u64 },
    /// In the shared store, by a task that receives the correction and applies it.
    Background(oneshot::Sender<(ChargeCorrection, BackgroundGuard)>),
}

/// How the shared store learns of a charge that this process made while that store failed.
#[derive(Clone, Debug)]
pub(super) enum DegradedCharge {
    /// It is recorded as unreported usage. `None`: there was no room, and the store is never told.
    Unreported(Option<UnreportedReceipt>),
    /// The store may have made the charge too, so it is not reported.
    Ambiguous,
}

impl OpenCharge {
    pub(super) fn new(target: &Target, quota: &Arc<IssuedQuota>, charged: ChargedIn) -> Self {
        Self {
            limit: target.limit,
            final_cost: target.final_cost,
            key: target.key,
            family: target.family,
            quota: Arc::clone(quota),
            cost: target.cost,
            charged,
            degraded: None,
            is_reported: !target.shadow,
            is_candidate: false,
        }
    }
}

/// How a response changes a charge, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChargeCorrection {
    Refund(u32),
    Debit(u32),
}

/// A unit of background work; it is counted until it is dropped.
#[derive(Debug)]
pub(super) struct BackgroundGuard(Arc<AtomicUsize>);

impl BackgroundGuard {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Release);
        Self(Arc::clone(count))
    }
}

impl Drop for BackgroundGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl ChargeCorrection {
    /// Counts it.
    pub(super) fn record(self, counters: &LimitCounters) {
        match self {
            Self::Refund(units) => counters.record_refunded(units),
            Self::Debit(units) => counters.record_charged(units),
        }
    }

    /// Units that are charged after it.
    pub(super) const fn corrected(self, charged: u32) -> u32 {
        match self {
            Self::Refund(units) => charged.saturating_sub(units),
            Self::Debit(units) => charged.saturating_add(units),
        }
    }

    /// Corrects a charge of the shared store. `charge` is the complete charge, with the `log_chunk` of the reply; `at`
    /// is the time of the charge on the store's clock.
    pub(super) fn send(self, shared: &Arc<SharedStore>, charge: CellCharge, at: u64) {
        match self {
            Self::Refund(units) => shared.refund_units(charge, units, at),
            Self::Debit(units) => shared.debit(CellCharge { cost: units, log_chunk: 0, ..charge }),
        }
    }

    /// Corrects a verdict as if it had been made with the corrected charge.
    pub(super) fn correct(self, quota: &Quota, verdict: &mut Verdict) {
        let emission = match quota {
            Quota::TokenBucket(bucket) => bucket.emission(),
            Quota::SlidingWindow(_) | Quota::SlidingLog(_) | Quota::FixedWindow(_) => Nanos::ZERO,
        };
        match self {
            Self::Refund(units) => {
                let span = emission.saturating_mul(u64::from(units));
                verdict.reset = verdict.reset.saturating_sub(span);
                verdict.remaining = verdict.remaining.saturating_add(units).min(verdict.limit);
                if verdict.remaining == verdict.limit {
                    verdict.reset = Nanos::ZERO;
                }
            }
            Self::Debit(units) => {
                let span = emission.saturating_mul(u64::from(units));
                verdict.reset = verdict.reset.saturating_add(span);
                verdict.remaining = verdict.remaining.saturating_sub(units);
            }
        }
    }
}
