//! Judges and charges single cells of a locked table, and accounts for their weight and their quotas.
//!
//! A request is settled in two steps. [`CellAccounting::judge`] judges one charge and reserves the weight that
//! it needs; [`CellAccounting::conclude`] then charges the cell, or releases what was reserved. This module does
//! not know shards, and takes no lock: the caller holds the table.
//!
//! What always holds between two calls: the budgets count the weight of every cell, and each quota counts the cells
//! that name its number. (After a reload during traffic, the pool may be wrong until the next sweep of all
//! shards has ended.)

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::budget::{BoundedBudget, BudgetPool, CellBudget};
use super::quotas::{IssuedQuota, QuotaSpec, Quotas, budgets_of};
use super::settlement::{EmbeddedCharge, SingleSettlement};
use super::table::{CellEntry, Table};
use super::weight::{weight, weight_of};
use crate::clock::Now;
use crate::limit::{Cell, Receipt, Verdict};
use crate::policy::KeyHash;

/// What the cells of all shards have in common.
#[derive(Debug, Default)]
pub(super) struct CellAccounting {
    pub(super) quotas: Quotas,
    pub(super) pool: BudgetPool,
}

/// A charge that was judged while its shard is locked.
pub(super) struct JudgedCharge {
    pub(super) verdict: Verdict,
    cell: JudgedCell,
    growth: Growth,
}

/// The cell that a charge was judged on.
#[derive(Clone, Copy)]
enum JudgedCell {
    /// An existing cell, and its index in the table.
    Existing(usize),
    /// A new cell, for which weight is reserved.
    New,
    /// No cell, because there is no room for a new one. The verdict is that of `when_full`.
    NoRoom,
}

/// How a cell takes one more charge.
#[derive(Clone, Copy)]
enum Growth {
    /// This much weight is reserved for it. It is released if the cell is not charged.
    Reserved(usize),
    /// There is no room to grow, so two entries of the cell are merged ([`Cell::make_room`]). Units stay counted and
    /// may count for longer. `when_full` never applies to a key that has a cell.
    MergeEntries,
}

impl Growth {
    const NONE: Self = Self::Reserved(0);

    const fn reserved_weight(self) -> usize {
        match self {
            Self::Reserved(weight) => weight,
            Self::MergeEntries => 0,
        }
    }
}

impl CellAccounting {
    /// Gives a quota a number ([`Quotas::issue`]).
    pub(super) fn issue(
        &self,
        spec: QuotaSpec,
        previous: Option<&Arc<IssuedQuota>>,
    ) -> Arc<IssuedQuota> {
        self.quotas.issue(spec, previous)
    }

    /// Gives quotas numbers ([`Quotas::issue_all`]).
    pub(super) fn issue_all(&self, specs: Vec<QuotaSpec>) -> Vec<Arc<IssuedQuota>> {
        self.quotas.issue_all(specs)
    }

    /// Whether half of what a limit may hold is taken.
    pub(super) fn may_lack_room(&self, budget: &CellBudget) -> bool {
        budget.is_half_full(&self.pool)
    }

    /// Divides `max_keys` among the limits of a new generation.
    pub(super) fn set_budgets(&self, max_keys: usize, budgets: &[BoundedBudget<'_>]) {
        self.pool.set_budgets(max_keys, budgets);
    }

    /// Computes anew what the pool lends.
    pub(super) fn recount_pool(&self) {
        let quotas = self.quotas.list();
        self.pool.recount(budgets_of(&quotas).into_iter());
    }

    /// Judges a charge and reserves the weight that it needs. `when_full` judges a charge to a new cell for
    /// which there is no room.
    pub(super) fn judge(
        &self,
        table: &mut Table,
        charge: &EmbeddedCharge<'_>,
        now: Now,
        when_full: impl FnOnce() -> Verdict,
    ) -> JudgedCharge {
        let quota = charge.quota;
        let Some((index, entry)) = table.find_entry(charge.key, None) else {
            if !quota.budget.reserve_cell(quota.new_weight, &self.pool) {
                let (cell, growth) = (JudgedCell::NoRoom, Growth::NONE);
                return JudgedCharge { verdict: when_full(), cell, growth };
            }
            let verdict = quota.quota.judge(None, charge.cost, now);
            let growth = Growth::Reserved(quota.new_weight);
            return JudgedCharge { verdict, cell: JudgedCell::New, growth };
        };
        let verdict = self.judge_entry(entry, quota, charge.cost, now);
        let growth = match verdict.allowed {
            true => self.reserve_growth(entry, charge, now),
            false => Growth::NONE,
        };
        JudgedCharge { verdict, cell: JudgedCell::Existing(index), growth }
    }

    /// Charges a cell that was judged, or, with `charge_all` false, releases what was reserved for it.
    ///
    /// Returns the verdict. Without a charge, an allowed verdict is replaced by that on a charge of nothing, so
    /// it names what remains.
    pub(super) fn conclude(
        &self,
        table: &mut Table,
        charge: &EmbeddedCharge<'_>,
        judged: &JudgedCharge,
        charge_all: bool,
        now: Now,
    ) -> Verdict {
        match charge_all {
            true => self.charge(table, charge, judged, now),
            false => self.release(table, charge, judged, now),
        }
    }

    /// Judges a charge to an existing cell and, if it is allowed and `may_charge` is true, charges it: both in one
    /// step, with a single search of the table.
    pub(super) fn settle_entry(
        &self,
        entry: &mut CellEntry,
        charge: &EmbeddedCharge<'_>,
        may_charge: bool,
        now: Now,
    ) -> SingleSettlement {
        let verdict = self.judge_entry(entry, charge.quota, charge.cost, now);
        if !verdict.allowed {
            return SingleSettlement { charged: false, verdict, save: None };
        }
        if !may_charge {
            let verdict = self.judge_entry(entry, charge.quota, 0, now);
            return SingleSettlement { charged: false, verdict, save: None };
        }
        let growth = self.reserve_growth(entry, charge, now);
        self.charge_entry(entry, charge.quota, charge.cost, growth, now);
        SingleSettlement { charged: true, verdict, save: None }
    }

    /// Refunds up to `units` of a charge to a cell, as far as they still count.
    pub(super) fn refund(
        &self,
        entry: &mut CellEntry,
        quota: &Arc<IssuedQuota>,
        units: u32,
        receipt: Receipt,
        now: Now,
    ) {
        let before = weight(&entry.cell);
        match entry.cell {
            // A bucket of several rates takes the refund under every rate.
            Cell::Buckets(_) => {}
            // A bucket of another rate has forgotten the charge.
            Cell::Bucket(_) if !self.can_read(quota, entry) => return,
            _ => self.convert(entry, quota, now),
        }
        quota.quota.refund(&quota.windows, &mut entry.cell, units, receipt, now);
        entry.set_changed();
        quota.budget.reweigh(before, weight(&entry.cell), &self.pool);
    }

    /// Charges a key without a judgement. This is never refused, also where there is no room for a new cell: the
    /// request was admitted already, and the requests in flight are bounded.
    pub(super) fn debit(
        &self,
        table: &mut Table,
        key: KeyHash,
        quota: &Arc<IssuedQuota>,
        units: u32,
        now: Now,
    ) {
        match table.find_entry(key, None) {
            Some((_, entry)) => self.charge_entry(entry, quota, units, Growth::NONE, now),
            None => {
                quota.budget.add_cell(quota.new_weight, &self.pool);
                let charge = EmbeddedCharge { key, quota, cost: units };
                self.insert(table, &charge, quota.new_weight, now);
            }
        }
    }

    /// Makes a cell equal to an absent one. The next sweep drops it.
    pub(super) fn reset(&self, entry: &mut CellEntry, now: Now) {
        let quotas = self.quotas.list();
        if let Some(issued) = quotas.get(entry.quota() as usize) {
            let before = weight(&entry.cell);
            entry.cell = issued.quota.empty_cell_for(&issued.windows, now);
            entry.set_changed();
            issued.budget.reweigh(before, weight(&entry.cell), &self.pool);
        }
    }

    fn charge(
        &self,
        table: &mut Table,
        charge: &EmbeddedCharge<'_>,
        judged: &JudgedCharge,
        now: Now,
    ) -> Verdict {
        match judged.cell {
            JudgedCell::NoRoom => {}
            JudgedCell::New => self.insert(table, charge, judged.growth.reserved_weight(), now),
            JudgedCell::Existing(index) => {
                if let Some((_, entry)) = table.find_entry(charge.key, Some(index)) {
                    self.charge_entry(entry, charge.quota, charge.cost, judged.growth, now);
                }
            }
        }
        judged.verdict
    }

    fn release(
        &self,
        table: &mut Table,
        charge: &EmbeddedCharge<'_>,
        judged: &JudgedCharge,
        now: Now,
    ) -> Verdict {
        let (quota, reserved) = (charge.quota, judged.growth.reserved_weight());
        let allowed = judged.verdict.allowed;
        match judged.cell {
            JudgedCell::NoRoom => judged.verdict,
            JudgedCell::New => {
                quota.budget.drop_cells(1, reserved, &self.pool);
                if allowed { quota.quota.judge(None, 0, now) } else { judged.verdict }
            }
            JudgedCell::Existing(index) => {
                quota.budget.drop_cells(0, reserved, &self.pool);
                match table.find_entry(charge.key, Some(index)) {
                    Some((_, entry)) if allowed => self.judge_entry(entry, quota, 0, now),
                    Some(_) | None => judged.verdict,
                }
            }
        }
    }

    /// Reserves the weight that a charge adds to a cell, if there is room for it.
    fn reserve_growth(&self, entry: &CellEntry, charge: &EmbeddedCharge<'_>, now: Now) -> Growth {
        if charge.cost == 0 || entry.cell.heap_bytes() == 0 {
            return Growth::NONE;
        }
        let more = weight_of(entry.cell.heap_bytes_after_charge(now)) - weight(&entry.cell);
        let has_room = more == 0 || charge.quota.budget.reserve_weight(more, &self.pool);
        if has_room { Growth::Reserved(more) } else { Growth::MergeEntries }
    }

    /// The verdict of a quota on a charge to a cell. A cell of another quota is converted, also when the charge
    /// is refused: the windows and rates that it gains have to keep the values with which they began.
    fn judge_entry(
        &self,
        entry: &mut CellEntry,
        quota: &Arc<IssuedQuota>,
        cost: u32,
        now: Now,
    ) -> Verdict {
        if entry.quota() != quota.number {
            let before = weight(&entry.cell);
            self.convert(entry, quota, now);
            quota.budget.reweigh(before, weight(&entry.cell), &self.pool);
        }
        quota.quota.judge(Some(&entry.cell), cost, now)
    }

    fn charge_entry(
        &self,
        entry: &mut CellEntry,
        quota: &Arc<IssuedQuota>,
        cost: u32,
        growth: Growth,
        now: Now,
    ) {
        let before = weight(&entry.cell) + growth.reserved_weight();
        self.convert(entry, quota, now);
        if matches!(growth, Growth::MergeEntries) {
            entry.cell.make_room(now);
        }
        quota.quota.charge(&mut entry.cell, cost, now);
        entry.set_changed();
        quota.budget.reweigh(before, weight(&entry.cell), &self.pool);
    }

    /// Inserts a new cell, for which `reserved` weight is counted, and charges it.
    fn insert(&self, table: &mut Table, charge: &EmbeddedCharge<'_>, reserved: usize, now: Now) {
        let quota = charge.quota;
        let mut cell = quota.quota.empty_cell_for(&quota.windows, now);
        quota.quota.charge(&mut cell, charge.cost, now);
        quota.budget.reweigh(reserved, weight(&cell), &self.pool);
        quota.cells.fetch_add(1, Ordering::Release);
        let mut entry = CellEntry::new(charge.key, cell, quota.number);
        entry.set_changed();
        table.insert(charge.key, entry);
    }

    /// Puts back a cell that was saved under a quota, and replaces the key's cell, if it has one.
    #[cfg(feature = "bin")]
    pub(super) fn restore(
        &self,
        table: &mut Table,
        key: KeyHash,
        quota: &Arc<IssuedQuota>,
        cell: Cell,
    ) -> bool {
        quota.budget.add_cell(weight(&cell), &self.pool);
        quota.cells.fetch_add(1, Ordering::Release);
        let Some((_, entry)) = table.find_entry(key, None) else {
            table.insert(key, CellEntry::new(key, cell, quota.number));
            return true;
        };
        let quotas = self.quotas.list();
        if let Some(before) = quotas.get(entry.quota() as usize) {
            before.budget.drop_cells(1, weight(&entry.cell), &self.pool);
            before.cells.fetch_sub(1, Ordering::Release);
        }
        entry.set_quota(quota.number);
        entry.cell = cell;
        false
    }

    /// Whether a quota can read a cell without converting it.
    fn can_read(&self, quota: &IssuedQuota, entry: &CellEntry) -> bool {
        entry.quota() == quota.number || {
            let quotas = self.quotas.list();
            quotas.get(entry.quota() as usize).is_some_and(|writer| quota.can_read(writer))
        }
    }

    /// Makes a cell one of `quota`.
    fn convert(&self, entry: &mut CellEntry, quota: &Arc<IssuedQuota>, now: Now) {
        if entry.quota() == quota.number {
            return;
        }
        let quotas = self.quotas.list();
        let Some(writer) = quotas.get(entry.quota() as usize) else {
            return;
        };
        if !quota.can_read(writer) {
            let cell = std::mem::replace(&mut entry.cell, quota.quota.empty_cell());
            entry.cell = quota.quota.convert(&quota.windows, &writer.quota, cell, now);
        }
        entry.set_quota(quota.number);
        entry.set_changed();
        writer.cells.fetch_sub(1, Ordering::Release);
        quota.cells.fetch_add(1, Ordering::Release);
    }
}
