//! The charges of a request as the embedded store takes them, and the result of settling them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::quotas::IssuedQuota;
use crate::limit::Verdict;
use crate::policy::KeyHash;

/// A charge to one cell of the embedded store.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedCharge<'g> {
    /// The key of the cell.
    pub key: KeyHash,
    /// The quota that judges the charge.
    pub quota: &'g Arc<IssuedQuota>,
    /// The cost, in units.
    pub cost: u32,
}

/// The verdict on each charge of a request, in the order of the charges.
pub type Verdicts = SmallVec<[Verdict; 4]>;

/// The result of settling the charges of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Whether every cell was charged. Otherwise no cell was.
    pub charged: bool,
    /// One verdict for each charge, in order.
    pub verdicts: Verdicts,
    /// The batch that has to be on the disk before the request is forwarded ([`SaveProgress`](super::SaveProgress)).
    pub save: Option<u64>,
}

/// The result of settling a single charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleSettlement {
    /// Whether the cell was charged.
    pub charged: bool,
    /// The verdict on the charge.
    pub verdict: Verdict,
    /// As in [`Settlement`].
    pub save: Option<u64>,
}
