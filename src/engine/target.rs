//! The cells that a request would be charged to, as values. `resolve.rs` finds them.

use smallvec::SmallVec;

use super::final_cost::FinalCost;
use crate::clock::Nanos;
use crate::policy::{KeyHash, LimitIndex, RateIndex, RateSource};

/// One cell that a request would be charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The limit.
    pub(super) limit: LimitIndex,
    /// The key of the cell.
    pub(super) key: KeyHash,
    /// The key of the limit's family. It selects the slot of the cell in a shared store with slots.
    pub(super) family: Option<KeyHash>,
    /// The cost of the request in units.
    pub(super) cost: u32,
    /// Whether the key came from a credential.
    pub(super) authenticated: bool,
    /// Whether the client's address is the key or a part of it, so that no other client can charge the cell.
    pub(super) by_address: bool,
    /// The rate that applies, by index.
    pub(super) rate: RateIndex,
    /// Which terms of the limit gave the rate.
    pub(super) rate_source: RateSource,
    /// Whether the rate is in a token that is not checked yet. The limit cannot be judged then, but a ban and an
    /// override that denies the key hold under every rate.
    pub(super) unknown_rate: bool,
    /// Whether the limit is in shadow mode for this key.
    pub(super) shadow: bool,
    /// Whether an override denies the key.
    pub(super) denied: bool,
    /// How long an operator's ban of the key still lasts; zero without one.
    pub(super) banned_for: Nanos,
    /// The cost after the response.
    pub(super) final_cost: FinalCost,
}

/// The targets of a request, each with another key.
pub(super) type Targets = SmallVec<[Target; 4]>;
