//! What a decision leaves open until the request ends: its slots in flight, its delay slot, and charges that the
//! response may change, with what the response has named of their costs so far.
//!
//! These are values; `settle_response.rs` acts on them. Without a response the charges stay: dropping a
//! [`PendingSettlement`] only frees the slots.

use http::HeaderMap;

use super::delay_slots::DelaySlot;
use super::open_charge::OpenCharge;
use super::trace::{OpenTrace, RequestTrace};
use crate::policy::{ResponseCosts, Route};
use crate::store::InFlightPermit;

/// What is open of one request. Hold it until the request has ended.
#[derive(Debug, Default)]
#[must_use = "dropping it ends the request and frees its slots in flight"]
pub struct PendingSettlement {
    pub(super) permits: Vec<InFlightPermit>,
    pub(super) open: Vec<OpenCharge>,
    /// What the head of the response says, if the rest of the response may name a cost.
    pub(super) costs: Option<Box<ResponseCosts>>,
    /// Held while the request is delayed.
    pub(super) delay_slot: Option<DelaySlot>,
    /// What a replay needs, if the policy has that written.
    pub(super) trace: Option<Box<OpenTrace>>,
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
    /// Ends the slots in flight of a request that has its answer, and gives its trace, if the policy has traces written.
    pub fn take_trace(&mut self) -> Option<RequestTrace> {
        let OpenTrace { mut trace, events } = *self.trace.take()?;
        if self.holds_slots() {
            let event = events.begin();
            self.permits.clear();
            trace.ended = Some(event.number());
        }
        Some(trace)
    }

    /// Frees the delay slot: the request is no longer delayed.
    pub fn end_delay(&mut self) {
        self.delay_slot = None;
    }

    /// Whether anything is open: a charge, a slot in flight, or the slot of a delay.
    pub const fn is_open(&self) -> bool {
        self.holds_slots() || self.awaits_response() || self.delay_slot.is_some()
    }

    /// Whether it holds slots in flight.
    pub const fn holds_slots(&self) -> bool {
        !self.permits.is_empty()
    }

    /// Whether the response may change a charge.
    pub const fn awaits_response(&self) -> bool {
        !self.open.is_empty()
    }

    /// What the head of the response says of the costs that open charges depend on.
    pub(super) fn costs_of_head(
        &self,
        route: &Route,
        response: &FinalResponse<'_>,
    ) -> ResponseCosts {
        let limits = self.open.iter().map(|open| open.final_cost.limits_from_response());
        let limits = limits.fold(0, std::ops::BitOr::bitor);
        ResponseCosts::of_head(route, limits, response.status, response.headers)
    }

    /// Whether the head of the response is known and the rest of it may change a charge.
    pub const fn awaits_rest(&self) -> bool {
        self.costs.is_some()
    }
}
