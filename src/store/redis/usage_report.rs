//! Unreported usage and corrections as items that are reported, and what becomes of a report.
//!
//! These are values; `unreported.rs` keeps and takes them, `reporter.rs` sends them.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::charge::{CellCharge, Operation, StoreCharge};
use super::usage_progress::{UsagePhase, UsageProgress, WaitingRefund};
use crate::clock::{Nanos, Now};
use crate::limit::Cell;

/// The unreported usage of one key under one quota.
#[derive(Debug)]
pub(super) struct KeyUsage {
    /// A charge of the key: the one that reports are made of.
    pub(super) charge: CellCharge,
    pub(super) cell: Cell,
    /// Shared with the charges in it that may still be refunded.
    pub(super) progress: Arc<UsageProgress>,
}

/// A refund or a debit, and when it was made.
#[derive(Debug)]
pub(super) struct Correction {
    pub(super) charge: StoreCharge,
    pub(super) since: Nanos,
}

/// An item of the list, with the charges that report it. [`UnreportedUsage::conclude`] is told what became of them.
#[derive(Debug)]
pub(super) struct UsageReport {
    pub(super) item: UnreportedItem,
    /// One charge, and for usage above the limit a second one, which follows the first: the store charges a report
    /// only as far as it fits.
    pub(super) charges: SmallVec<[StoreCharge; 1]>,
}

/// An item of the list that was taken out to be reported.
#[derive(Debug)]
pub(super) enum UnreportedItem {
    /// Units that were admitted.
    Usage(Box<SentUsage>),
    /// A refund or a debit.
    Correction(Box<Correction>),
}

/// Usage whose report is on its way.
#[derive(Debug)]
pub(super) struct SentUsage {
    pub(super) usage: KeyUsage,
    pub(super) taken: Now,
    /// Units above the limit. They come from costs that were known late, which the store charges whether they fit
    /// or not.
    pub(super) debt: u32,
}

/// What became of a charge that reports an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportOutcome {
    /// The store charged as many units of it, at this instant of its clock.
    Charged {
        /// The instant, in microseconds since the epoch.
        at: u64,
        /// Of a report, the units that fitted.
        units: u32,
    },
    /// It was certainly not executed.
    NotExecuted,
    /// It may have been executed.
    Unknown,
}

impl UsageReport {
    pub(super) fn of_correction(correction: Correction) -> Self {
        let charges = smallvec![correction.charge.clone()];
        Self { item: UnreportedItem::Correction(Box::new(correction)), charges }
    }

    /// The store charges as many of the units as fit, since other nodes may have admitted as many.
    pub(super) fn of_usage(usage: KeyUsage, now: Now) -> Self {
        let (spent, limit) = (usage.spent(now), usage.limit(now));
        let debt = spent.saturating_sub(limit);
        let mut charges = smallvec![usage.store_charge(Operation::Report, spent.min(limit))];
        if debt > 0 {
            charges.push(usage.store_charge(Operation::Debit, debt));
        }
        usage.progress.enter(UsagePhase::Sent(Vec::new()));
        let sent = Box::new(SentUsage { usage, taken: now, debt });
        Self { item: UnreportedItem::Usage(sent), charges }
    }
}

impl SentUsage {
    /// The usage without the units above the limit.
    pub(super) fn up_to_limit(mut self) -> KeyUsage {
        let (quota, limit) = (*self.usage.charge.quota.quota(), self.usage.limit(self.taken));
        self.usage.cell = quota.empty_cell();
        quota.charge(&mut self.usage.cell, limit, self.taken);
        self.usage
    }
}

impl KeyUsage {
    /// Units that have not refilled.
    pub(super) fn spent(&self, now: Now) -> u32 {
        self.charge.quota.quota().spent(&self.cell, now)
    }

    pub(super) fn limit(&self, now: Now) -> u32 {
        self.charge.quota.quota().judge(None, 0, now).limit
    }

    pub(super) fn refund(&mut self, (units, receipt): WaitingRefund, now: Now) {
        let (quota, windows) = (*self.charge.quota.quota(), self.charge.quota.windows());
        quota.refund(windows, &mut self.cell, units, receipt, now);
    }

    pub(super) fn store_charge(&self, operation: Operation, cost: u32) -> StoreCharge {
        let charge = CellCharge { cost, ..self.charge.clone() };
        StoreCharge { operation, cell_charges: smallvec![charge] }
    }
}

impl Correction {
    pub(super) fn has_refilled(&self, now: Now) -> bool {
        let lifetime = |charge: &CellCharge| charge.quota.quota().charge_lifetime(charge.cost);
        let longest = self.charge.cell_charges.iter().map(lifetime).max().unwrap_or_default();
        self.since.saturating_add(longest) <= now.mono
    }
}
