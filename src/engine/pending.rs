//! What a decision leaves open until the request ends: its slots in flight, its delay slot, and charges that the
//! response may change.
//!
//! These are values; `settle_response.rs` acts on them. Without a response the charges stay: dropping a
//! [`PendingSettlement`] only frees the slots.

use std::sync::Arc;

use http::HeaderMap;
use tokio::sync::oneshot;

use super::background::BackgroundGuard;
use super::delay_slots::DelaySlot;
use super::final_cost::FinalCost;
use super::overflow::OverflowCharge;
use super::settle_response::ChargeCorrection;
use super::target::Target;
use crate::limit;
use crate::policy::{KeyHash, LimitIndex};
use crate::store::{InFlightPermit, IssuedQuota};

/// What is open of one request. Hold it until the request has ended.
#[derive(Debug, Default)]
#[must_use = "dropping it ends the request and frees its slots in flight"]
pub struct PendingSettlement {
    pub(super) permits: Vec<InFlightPermit>,
    pub(super) open: Vec<OpenCharge>,
    /// Held while the request is delayed.
    pub(super) delay_slot: Option<DelaySlot>,
}

/// The response that ends a request.
#[derive(Clone, Copy, Debug)]
pub struct FinalResponse<'r> {
    /// Its status.
    pub status: u16,
    /// Its header fields.
    pub headers: &'r HeaderMap,
    /// Whether the origin sent it; otherwise this proxy did, because the origin sent none.
    pub by_origin: bool,
}

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
}

/// Where a charge was made, and what is needed to change it there.
#[derive(Debug)]
pub(super) enum ChargedIn {
    /// Nowhere: the key passed uncounted.
    Nowhere,
    /// In the embedded store.
    Embedded(limit::Receipt),
    /// In the overflow sketches, because the embedded store had no room.
    Overflow(OverflowCharge),
    /// In the shared store, at a time of its clock; `log_chunk` is from its reply.
    Shared { at: u64, log_chunk: u64 },
    /// In the shared store, by a task that receives the correction and applies it.
    Background(oneshot::Sender<(ChargeCorrection, BackgroundGuard)>),
}

/// How the shared store learns of a charge that this process made while that store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DegradedCharge {
    /// It is recorded as unreported usage.
    Unreported,
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
        }
    }
}

impl PendingSettlement {
    /// Frees the delay slot: the request is no longer delayed.
    pub fn end_delay(&mut self) {
        self.delay_slot = None;
    }

    /// Whether the response may change a charge.
    pub fn awaits_response(&self) -> bool {
        !self.open.is_empty()
    }
}
