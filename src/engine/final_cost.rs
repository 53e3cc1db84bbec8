//! The cost of a request after its response.
//!
//! Several limits of a route can lead to one cell, by `missing_key`. The cell is charged once: the largest of their
//! costs. Some of these costs are known before forwarding; others only with the response.

use crate::policy::{Cost, MAX_LIMITS_PER_ROUTE, NamedCost, ResponseCosts, Route, UnreadCost};

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

    /// The limits of the route whose cost a response may change: a bit for each, by its index.
    pub(super) const fn limits_from_response(self) -> u16 {
        self.limits_from_response
    }

    /// Whether the response has named every cost that it depends on, or cannot name it any more.
    pub(super) fn is_named(self, costs: &ResponseCosts) -> bool {
        self.indices().all(|index| costs.named(index).is_some())
    }

    /// The cost after a response that says this; `None`: the charge is final.
    pub(super) fn after_response(self, route: &Route, costs: &ResponseCosts) -> Option<u32> {
        let mut named: Option<u32> = None;
        let mut reserved = self.fixed;
        for index in self.indices() {
            let reserve = route.limits.get(index).map_or(0, |limit| limit.cost.minimum());
            match costs.named(index) {
                Some(NamedCost::Final(cost)) => named = named.max(Some(cost)),
                // Nothing of the reserve is given back, but what is known to be spent above it counts.
                Some(NamedCost::AtLeast(cost, _)) => named = named.max(Some(cost.max(reserve))),
                Some(NamedCost::Unread(_)) | None => reserved = reserved.max(reserve),
            }
        }
        named.map(|named| named.max(reserved))
    }

    /// Why costs that it depends on are not known.
    pub(super) fn unread(self, costs: &ResponseCosts) -> impl Iterator<Item = UnreadCost> {
        self.indices().filter_map(|index| match costs.named(index)? {
            NamedCost::Final(_) => None,
            NamedCost::AtLeast(_, reason) | NamedCost::Unread(reason) => Some(reason),
        })
    }

    fn indices(self) -> impl Iterator<Item = usize> {
        (0..MAX_LIMITS_PER_ROUTE).filter(move |index| self.limits_from_response & 1 << index != 0)
    }
}
