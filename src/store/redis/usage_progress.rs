//! Where unreported usage has got to, so that a charge in it can be refunded at any time.
//!
//! The usage of a key is shared by the list and by the charges in it that a response may still change:
//!
//! ```text
//!            a report is sent             it is executed
//!   Listed -------------------> Sent ----------------------> Reported
//!     ^  |                      |  |
//!     |  '-> Merged             |  '--> Lost: nobody knows whether it was executed
//!     '-------------------------'  it was certainly not executed
//! ```
//!
//! A refund changes the listed usage, waits for the report that is on its way, or corrects the store. What always
//! holds: it takes back no more than the store charged for the report. All changes are made under the lock of the list.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::charge::{CellCharge, Operation, StoreCharge};
use crate::clock::Now;
use crate::limit::{Cell, Receipt};

/// A refund that waits for a report: units, and the charge that they were part of.
pub(super) type WaitingRefund = (u32, Receipt);

/// Refunds of the store; mostly one.
pub(super) type Refunds = SmallVec<[StoreCharge; 2]>;

/// Where the usage of one key under one quota has got to.
#[derive(Debug, Default)]
pub(super) struct UsageProgress(pub(super) Mutex<UsagePhase>);

#[derive(Debug, Default)]
pub(super) enum UsagePhase {
    /// It is in the list, unless it has refilled there.
    #[default]
    Listed,
    /// It is in the list, as part of other usage of the key.
    Merged(Arc<UsageProgress>),
    /// A report is on its way. The refunds wait for its outcome.
    Sent(Vec<WaitingRefund>),
    /// The store was told of it.
    Reported(Box<ReportedUsage>),
    /// It may have been reported. A refund could create units that the store never charged.
    Lost,
}

/// Usage that the store was told of.
#[derive(Debug)]
pub(super) struct ReportedUsage {
    /// The usage when it was reported.
    pub(super) cell: Cell,
    /// When that was, on the clock of this node.
    pub(super) taken: Now,
    /// Any charge of the key: the one that refunds are made of.
    pub(super) charge: CellCharge,
    /// What the store charged of the units up to the limit.
    pub(super) report: ReportedUnits,
    /// What it charged of the units above the limit.
    pub(super) debt: ReportedUnits,
}

/// Units that were charged at an instant of the store's clock, and are not refunded yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReportedUnits {
    pub(super) at: u64,
    pub(super) units: u32,
}

impl UsageProgress {
    /// Sets the phase. Returns the refunds that have waited.
    pub(super) fn enter(&self, phase: UsagePhase) -> Vec<WaitingRefund> {
        match std::mem::replace(&mut *self.0.lock(), phase) {
            UsagePhase::Sent(waiting) => waiting,
            UsagePhase::Listed
            | UsagePhase::Merged(_)
            | UsagePhase::Reported(_)
            | UsagePhase::Lost => Vec::new(),
        }
    }
}

impl ReportedUsage {
    /// Takes back what the store would not have charged without these units.
    ///
    /// Without them the usage that was reported had been smaller. Units above the limit were charged in full, those up
    /// to it as far as they fitted with the usage of other nodes.
    pub(super) fn refund(&mut self, (units, receipt): WaitingRefund) -> Refunds {
        let (quota, windows) = (*self.charge.quota.quota(), self.charge.quota.windows().clone());
        quota.refund(&windows, &mut self.cell, units, receipt, self.taken);
        let (usage, limit) = (quota.spent(&self.cell, self.taken), quota.limit());
        let debt = self.debt.reduce_to(usage.saturating_sub(limit));
        let report = self.report.reduce_to(usage.min(limit));
        let refunds = [debt, report].into_iter().flatten();
        refunds.map(|part| self.refund_of(part)).collect()
    }

    fn refund_of(&self, ReportedUnits { at, units }: ReportedUnits) -> StoreCharge {
        let charge = CellCharge { cost: units, ..self.charge.clone() };
        StoreCharge { operation: Operation::Refund(at), cell_charges: smallvec![charge] }
    }
}

impl ReportedUnits {
    /// Keeps at most `left` units. Returns those that are taken back.
    fn reduce_to(&mut self, left: u32) -> Option<Self> {
        let units = self.units.checked_sub(left).filter(|units| *units > 0)?;
        self.units = left;
        Some(Self { units, ..*self })
    }
}
