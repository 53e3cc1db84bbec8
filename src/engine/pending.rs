//! What a decision leaves open until the request ends: its slots in flight, its delay slot, and charges that the
//! response may change.
//!
//! These are values; `settle_response.rs` acts on them. Without a response the charges stay: dropping a
//! [`PendingSettlement`] only frees the slots.

use http::HeaderMap;

use super::delay_slots::DelaySlot;
use super::open_charge::OpenCharge;
use crate::store::InFlightPermit;

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
