//! The cost of a request after its response.
//!
//! Several limits of a route can lead to one cell, by `missing_key`. The cell is charged once: the largest of their
//! costs. Some of these costs are known before forwarding; others only with the response.

use http::HeaderMap;

use crate::policy::{Cost, MAX_LIMITS_PER_ROUTE, Route};

/// The cost of a request for one cell when the response is known: the largest of all limits of the route that lead
/// to the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FinalCost {
    /// The largest cost that no response changes; 0 if there is none.
    fixed: u32,
    /// The limits of the route whose cost a response may change: one bit for each, by its index.
    limits_from_response: u16,
}

const _: () = assert!(MAX_LIMITS_PER_ROUTE <= u16::BITS as usize);

impl FinalCost {
    /// Whether a response may change it.
    pub(super) const fn depends_on_response(self) -> bool {
        self.limits_from_response != 0
    }

    /// The final cost for one limit of a route, by its index. `upfront`: what it charges before forwarding.
    pub(super) const fn of(index: usize, cost: &Cost, upfront: u32) -> Self {
        match cost.depends_on_response() {
            true => Self { fixed: 0, limits_from_response: 1 << index },
            false => Self { fixed: upfront, limits_from_response: 0 },
        }
    }

    /// The larger of two final costs.
    pub(super) const fn max(self, other: Self) -> Self {
        let fixed = if self.fixed > other.fixed { self.fixed } else { other.fixed };
        let limits_from_response = self.limits_from_response | other.limits_from_response;
        Self { fixed, limits_from_response }
    }

    /// The cost if no origin was reached; `None`: the charge is final.
    pub(super) fn unforwarded(self) -> Option<u32> {
        self.depends_on_response().then_some(self.fixed)
    }

    /// The cost after a response with these headers; `None`: the charge is final.
    pub(super) fn in_response(&self, route: &Route, headers: &HeaderMap) -> Option<u32> {
        let mut named: Option<u32> = None;
        let mut reserved = self.fixed;
        for (index, limit) in route.limits.iter().enumerate() {
            if self.limits_from_response & (1 << index) == 0 {
                continue;
            }
            match limit.cost.read_response(headers) {
                Some(cost) => named = named.max(Some(cost)),
                None => reserved = reserved.max(limit.cost.minimum()),
            }
        }
        named.map(|named| named.max(reserved))
    }
}
