//! What a caller asks of the shared store, and what it learns.
//!
//! A [`StoreCharge`] is one operation on a few cells, usually those of one request's limits. It does not know how it
//! is written as arguments of the script (`call/`), which call carries it (`batch.rs`), or which server answers. It
//! names at least one cell and no key twice; the store changes all of its cells or none.

use std::sync::Arc;

use smallvec::SmallVec;

use super::cell_name::CellName;
use super::denial_cache::DenialKey;
use crate::limit::Verdict;
use crate::policy::KeyHash;
use crate::store::{IssuedQuota, Verdicts};

/// A charge to one cell: the part of one limit in a [`StoreCharge`].
#[derive(Clone, Debug)]
pub struct CellCharge {
    /// The key that is charged.
    pub key: KeyHash,
    /// The key of the family: all cells of a family are in one slot. `None` if the cell has no family.
    pub family: Option<KeyHash>,
    /// The quota that it is charged under.
    pub quota: Arc<IssuedQuota>,
    /// The cost, in units.
    pub cost: u32,
    /// For the refund of a sliding log: [`CellReply::log_chunk`] of the charge. Otherwise 0.
    pub log_chunk: u64,
    /// Whether the charge may be refunded. Its denial is then not cached, because a refund ends it.
    pub refundable: bool,
}

impl CellCharge {
    /// A charge that is not refunded.
    pub const fn new(
        key: KeyHash,
        family: Option<KeyHash>,
        quota: Arc<IssuedQuota>,
        cost: u32,
    ) -> Self {
        Self { key, family, quota, cost, log_chunk: 0, refundable: false }
    }

    pub(super) const fn cell_name(&self) -> CellName {
        CellName { key: self.key, family: self.family }
    }

    /// What its denial is cached by.
    pub(super) fn denial_key(&self) -> DenialKey {
        DenialKey { key: self.key, quota_number: self.quota.number(), cost: self.cost }
    }

    /// The same charge with at most `units`: what a refund of a part gives back.
    pub(super) fn limited_to(self, units: u32) -> Self {
        Self { cost: units.min(self.cost), ..self }
    }
}

/// What the store does with the cells of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Judge, and charge if all cells admit.
    Charge,
    /// Judge, and charge nothing.
    Check,
    /// Charge without judging, up to the limit: usage that a node admitted while the store was away.
    Report,
    /// Charge without judging, above the limit too: what a request cost beyond what it was charged.
    Debit,
    /// Refund what was charged at this instant of the server's clock, in microseconds since the epoch.
    Refund(u64),
}

impl Operation {
    /// Whether the reply has verdicts.
    pub(super) const fn judges(self) -> bool {
        match self {
            Self::Charge | Self::Check => true,
            Self::Report | Self::Debit | Self::Refund(_) => false,
        }
    }
}

/// An operation on the cells of one request: all or none.
#[derive(Clone, Debug)]
pub struct StoreCharge {
    /// What is done.
    pub operation: Operation,
    /// The cells, at least one, no two with the same key; the outermost limit first.
    pub cell_charges: SmallVec<[CellCharge; 4]>,
}

impl StoreCharge {
    /// The cell of the outermost limit: the charge waits in the queue of this one. `None` if it names no cell.
    pub(super) fn outermost_cell(&self) -> Option<CellName> {
        self.cell_charges.first().map(CellCharge::cell_name)
    }
}

/// What the store did with a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeReply {
    /// Whether every cell was charged; otherwise none was. An operation that does not judge always succeeds.
    pub charged: bool,
    /// When, on the server's clock, in microseconds since the epoch.
    pub at: u64,
    /// A reply for each cell of the charge, in its order; empty for an operation that does not judge.
    pub cells: SmallVec<[CellReply; 4]>,
    /// Of a report, how many units every cell was charged: as many as fitted. Otherwise 0.
    pub reported: u32,
}

impl ChargeReply {
    /// The verdict of each cell, in the order of the charge.
    pub fn verdicts(&self) -> Verdicts {
        self.cells.iter().map(|cell| cell.verdict).collect()
    }
}

/// What the store says of one cell of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellReply {
    /// The verdict. If another cell refuses the charge, it is the verdict on a charge of 0.
    pub verdict: Verdict,
    /// The verdict on a charge of 0 before this one: what is left once the charge is refunded.
    pub verdict_before: Verdict,
    /// Of a sliding log, the chunk that holds the charge, which a refund needs. Of other algorithms it is the first
    /// number of the reading and has no use.
    pub log_chunk: u64,
}
