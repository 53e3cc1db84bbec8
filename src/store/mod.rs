//! Where the cells of the exact tier live.
//!
//! The seam is narrow: a store is asked to settle a few charges at once, all or none
//! ([`EmbeddedStore::settle`]), and to give room back over time ([`EmbeddedStore::sweep`]). It knows keys as
//! hashes and limits as numbers; what a limit means is in [`crate::limit`].

mod bans;
mod budget;
mod embedded;
mod in_flight;
mod quotas;
pub mod redis;
mod table;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::limit::Verdict;
use crate::policy::KeyHash;

pub use bans::{Ban, Bans};
pub use budget::{BoundedBudget, CellBudget};
pub use embedded::{EmbeddedStore, SHARDS};
pub use in_flight::{Acquired, InFlightCounts, InFlightPermit};
pub use quotas::{IssuedQuota, QuotaSpec};
pub use table::CELL_BYTES;

/// One limit's part of a request.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedCharge<'g> {
    /// Whose cell.
    pub key: KeyHash,
    /// Under which quota.
    pub quota: &'g Arc<IssuedQuota>,
    /// How much.
    pub cost: u32,
}

/// What became of each charge, in the order of the charges.
pub type Verdicts = SmallVec<[Verdict; 4]>;

/// What became of a request's charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Whether every charge was spent; otherwise none was.
    pub charged: bool,
    /// One per charge, in order.
    pub verdicts: Verdicts,
}
