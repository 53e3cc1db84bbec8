//! The embedded store: the cells of this process, in shards, each behind a lock.
//!
//! A key belongs to one shard, so one thread at a time writes its cell. A request with several limits locks its
//! shards in ascending order, so requests never deadlock. It judges every cell before it writes
//! the first: all cells are charged, or none. This module finds and locks shards; how a cell is judged, charged
//! and accounted for is in `accounting.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use prefetch_index::prefetch_index;
use smallvec::SmallVec;

use super::accounting::{CellAccounting, JudgedCharge};
use super::budget::{BoundedBudget, CellBudget};
use super::quotas::{IssuedQuota, QuotaSpec, budgets_of};
use super::save_progress::SaveProgress;
use super::settlement::{EmbeddedCharge, Settlement, SingleSettlement, Verdicts};
use super::sweep::sweep_table;
use super::table::{CELL_BYTES, Table};
use crate::clock::Now;
use crate::limit::{Receipt, Verdict};
use crate::policy::KeyHash;

/// The number of shards. With this many, two of a few dozen threads seldom need the same shard. Each is so small
/// that growing or sweeping it holds its lock for about ten microseconds, even among ten million cells.
pub const SHARDS: usize = 1 << SHARD_BITS;

pub(super) const SHARD_BITS: u32 = 12;

/// The embedded store.
#[derive(Debug)]
pub struct EmbeddedStore {
    shards: Arc<[CellShard]>,
    accounting: Arc<CellAccounting>,
    /// The shard at which the next sweep begins.
    cursor: AtomicUsize,
    saves: Arc<SaveProgress>,
}

/// A shard has two cache lines of its own, so neighbours do not slow each other down. The processor fetches both
/// together (see `table::INLINE_BLOCKS`).
#[derive(Debug, Default)]
#[repr(align(128))]
struct CellShard {
    table: Mutex<Table>,
}

const _: () = assert!(size_of::<CellShard>() == 128);

/// Which process has a cell.
#[must_use = "a successor has to be told what was not done here"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellOwner {
    /// This one.
    Here,
    /// The one that takes over from this one.
    Successor,
}

impl CellOwner {
    fn of(table: &Table) -> Self {
        if table.is_handed_over() { Self::Successor } else { Self::Here }
    }
}

struct LockedShard<'s> {
    index: usize,
    table: MutexGuard<'s, Table>,
}

/// The locked shards of a request, in ascending order.
struct LockedShards<'s>(SmallVec<[LockedShard<'s>; 4]>);

impl Default for EmbeddedStore {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CellShard::default()).collect(),
            accounting: Arc::default(),
            cursor: AtomicUsize::new(0),
            saves: Arc::default(),
        }
    }
}

impl EmbeddedStore {
    /// Another store with the cells of this one.
    #[cfg(feature = "bin")]
    pub(crate) fn with_same_cells(&self) -> Self {
        Self {
            shards: Arc::clone(&self.shards),
            accounting: Arc::clone(&self.accounting),
            cursor: AtomicUsize::new(0),
            saves: Arc::clone(&self.saves),
        }
    }

    /// Gives a quota its number. `previous` is the quota that the limit had before.
    pub fn issue(&self, spec: QuotaSpec, previous: Option<&Arc<IssuedQuota>>) -> Arc<IssuedQuota> {
        self.accounting.issue(spec, previous)
    }

    /// Gives quotas numbers, in their order. Numbers that nothing uses any more are given again.
    pub fn issue_all(&self, specs: Vec<QuotaSpec>) -> Vec<Arc<IssuedQuota>> {
        self.accounting.issue_all(specs)
    }

    /// Whether the limit of a budget may soon have no room for a new key.
    pub fn may_lack_room(&self, budget: &CellBudget) -> bool {
        self.accounting.may_lack_room(budget)
    }

    /// The quota of a number.
    pub fn quota_numbered(&self, number: u32) -> Option<Arc<IssuedQuota>> {
        self.accounting.quotas.list().get(number as usize).cloned()
    }

    /// The number of quotas that cells can be written under now.
    pub fn issued_quotas(&self) -> usize {
        self.accounting.quotas.list().len()
    }

    /// Divides `max_keys` among the limits of a new generation.
    pub fn set_budgets(&self, max_keys: usize, budgets: &[BoundedBudget<'_>]) {
        self.accounting.set_budgets(max_keys, budgets);
    }

    /// Asks the processor to fetch the memory in which these keys' cells lie, for all of them at once, while the
    /// caller does something else. Each access to memory outside the processor's caches takes longer than the
    /// rest of a decision. Changes nothing and waits for nothing.
    pub fn prefetch(&self, keys: impl Iterator<Item = KeyHash> + Clone) {
        for key in keys.clone() {
            prefetch_index(&self.shards, shard_of(key));
        }
        for key in keys {
            // A shard that another thread has locked is moving between two processors anyway.
            if let Some(table) = self.shards[shard_of(key)].table.try_lock() {
                table.prefetch(key);
            }
        }
    }

    /// Judges all charges, and charges all cells or none.
    ///
    /// No two charges have the same key. With `may_charge` false nothing is charged, whatever the verdicts.
    /// `when_full` is called with the index of a charge whose cell does not exist and for which there is no room;
    /// its result is the verdict on that charge. `None`: a successor has one of the cells, so nothing is judged.
    pub fn settle(
        &self,
        charges: &[EmbeddedCharge<'_>],
        may_charge: bool,
        now: Now,
        mut when_full: impl FnMut(usize) -> Verdict,
    ) -> Option<Settlement> {
        if let [charge] = charges {
            let settled = self.settle_single(charge, may_charge, now, || when_full(0))?;
            let SingleSettlement { charged, verdict, save } = settled;
            return Some(Settlement { charged, verdicts: Verdicts::from_iter([verdict]), save });
        }
        let mut locked = self.lock(charges);
        if locked.0.iter().any(|shard| shard.table.is_handed_over()) {
            return None;
        }
        Some(self.settle_locked(&mut locked, charges, may_charge, now, when_full))
    }

    /// [`EmbeddedStore::settle`] for a successor that does not answer: in the cells as they were when it got them, and with
    /// what was charged here since.
    pub fn settle_kept(
        &self,
        charges: &[EmbeddedCharge<'_>],
        may_charge: bool,
        now: Now,
        when_full: impl FnMut(usize) -> Verdict,
    ) -> Settlement {
        let mut locked = self.lock(charges);
        locked.0.iter_mut().for_each(|shard| shard.table.swap_kept());
        let settled = self.settle_locked(&mut locked, charges, may_charge, now, when_full);
        locked.0.iter_mut().for_each(|shard| shard.table.swap_kept());
        settled
    }

    fn settle_locked(
        &self,
        locked: &mut LockedShards<'_>,
        charges: &[EmbeddedCharge<'_>],
        may_charge: bool,
        now: Now,
        mut when_full: impl FnMut(usize) -> Verdict,
    ) -> Settlement {
        let mut judged_charges: SmallVec<[JudgedCharge; 4]> = SmallVec::new();
        for (index, charge) in charges.iter().enumerate() {
            let table = locked.table(charge.key);
            judged_charges.push(self.accounting.judge(table, charge, now, || when_full(index)));
        }
        let charged = may_charge && judged_charges.iter().all(|judged| judged.verdict.allowed);
        let verdicts = charges.iter().zip(&judged_charges).map(|(charge, judged)| {
            let table = locked.table(charge.key);
            self.accounting.conclude(table, charge, judged, charged, now)
        });
        let verdicts = verdicts.collect();
        let mut save = None;
        for charge in charges {
            let table = locked.table(charge.key);
            table.list_changed_key(charge.key);
            if charged {
                save = save.max(self.spend_ahead(table, charge, now));
            }
        }
        Settlement { charged, verdicts, save }
    }

    /// [`EmbeddedStore::settle`] for a single charge, as most requests have it.
    pub fn settle_single(
        &self,
        charge: &EmbeddedCharge<'_>,
        may_charge: bool,
        now: Now,
        when_full: impl FnOnce() -> Verdict,
    ) -> Option<SingleSettlement> {
        let mut table = self.lock_shard(charge.key);
        if let Some((slot, entry)) = table.find_entry(charge.key, None) {
            let settled = self.accounting.settle_entry(entry, charge, may_charge, now);
            if entry.is_unlisted() {
                table.list_changed(slot);
            }
            let save = settled.charged.then(|| self.spend_ahead(&mut table, charge, now)).flatten();
            return Some(SingleSettlement { save, ..settled });
        }
        if table.is_handed_over() {
            return None;
        }
        let judged = self.accounting.judge(&mut table, charge, now, when_full);
        let charged = may_charge && judged.verdict.allowed;
        let verdict = self.accounting.conclude(&mut table, charge, &judged, charged, now);
        table.list_changed_key(charge.key);
        let save = charged.then(|| self.spend_ahead(&mut table, charge, now)).flatten();
        Some(SingleSettlement { charged, verdict, save })
    }

    /// Refunds up to `units` of a charge to a key, as far as they still count. Returns [`CellOwner::Successor`] if a
    /// successor has the cell and has to be told.
    pub fn refund(
        &self,
        key: KeyHash,
        quota: &Arc<IssuedQuota>,
        units: u32,
        receipt: Receipt,
        now: Now,
    ) -> CellOwner {
        let mut table = self.lock_shard(key);
        if let Some((slot, entry)) = table.find_entry(key, None) {
            self.accounting.refund(entry, quota, units, receipt, now);
            table.list_changed(slot);
        }
        CellOwner::of(&table)
    }

    /// The budget that the cell of a key counts against: that of its limit. `None`: the key has no cell.
    pub fn budget_of(&self, key: KeyHash) -> Option<Arc<CellBudget>> {
        let mut table = self.lock_shard(key);
        let (_, entry) = table.find_entry(key, None)?;
        let quotas = self.accounting.quotas.list();
        quotas.get(entry.quota() as usize).map(|issued| Arc::clone(issued.budget()))
    }

    /// Forgets what a key has spent.
    pub fn reset(&self, key: KeyHash, now: Now) {
        let mut table = self.lock_shard(key);
        if let Some((slot, entry)) = table.find_entry(key, None) {
            self.accounting.reset(entry, now);
            table.list_changed(slot);
        }
    }

    /// Charges a key without a judgement and without a refusal. Units above the limit have to refill before the
    /// next charge is allowed. Returns as [`EmbeddedStore::refund`].
    pub fn debit(&self, key: KeyHash, quota: &Arc<IssuedQuota>, units: u32, now: Now) -> CellOwner {
        let mut table = self.lock_shard(key);
        if table.is_handed_over() {
            return CellOwner::Successor;
        }
        self.accounting.debit(&mut table, key, quota, units, now);
        table.list_changed_key(key);
        CellOwner::Here
    }

    /// Drops cells that equal an absent one from the next `shards` shards. Returns how many it dropped.
    pub fn sweep(&self, shards: usize, now: Now) -> usize {
        let mut dropped = 0;
        for _ in 0..shards.min(SHARDS) {
            let index = self.cursor.fetch_add(1, Ordering::Relaxed) % SHARDS;
            dropped += sweep_table(self.shards[index].table.lock(), &self.accounting, now);
        }
        if self.cursor.load(Ordering::Relaxed).is_multiple_of(SHARDS) {
            self.accounting.recount_pool();
        }
        dropped
    }

    /// Bytes of memory that all cells take, gaps in the tables and logs included.
    pub fn bytes(&self) -> usize {
        let table_bytes = |shard: &CellShard| size_of::<CellShard>() + shard.table.lock().bytes();
        let tables: usize = self.shards.iter().map(table_bytes).sum();
        let quotas = self.accounting.quotas.list();
        let heap_bytes = budgets_of(&quotas).into_iter().map(|budget| {
            let heap_weight = budget.weight().saturating_sub(budget.cells());
            heap_weight.saturating_mul(CELL_BYTES)
        });
        tables + heap_bytes.sum::<usize>()
    }

    /// How far saving has come.
    pub const fn saves(&self) -> &Arc<SaveProgress> {
        &self.saves
    }

    /// Holds a charge against what its key may spend before it is saved again. Returns the batch that has to be on the disk
    /// before the charge counts as made.
    fn spend_ahead(&self, table: &mut Table, charge: &EmbeddedCharge<'_>, now: Now) -> Option<u64> {
        if charge.cost == 0 {
            return None;
        }
        self.saves.needed(|| {
            charge.quota.ahead.is_none()
                || table.spend_ahead(charge.key, charge.cost, self.saves.saved(), now.mono)
        })
    }

    /// Takes all cells back from a successor, as they were when they were handed over.
    pub fn take_back(&self) {
        for shard in self.shards.iter() {
            shard.table.lock().take_back();
        }
    }

    #[cfg(feature = "bin")]
    pub(super) fn accounting(&self) -> &CellAccounting {
        &self.accounting
    }

    #[cfg(feature = "bin")]
    pub(super) fn lock_index(&self, shard: usize) -> MutexGuard<'_, Table> {
        self.shards[shard].table.lock()
    }

    pub(super) fn lock_shard(&self, key: KeyHash) -> MutexGuard<'_, Table> {
        self.shards[shard_of(key)].table.lock()
    }

    /// Locks the shards of all charges, in ascending order.
    fn lock(&self, charges: &[EmbeddedCharge<'_>]) -> LockedShards<'_> {
        let mut indices: SmallVec<[usize; 4]> =
            charges.iter().map(|charge| shard_of(charge.key)).collect();
        indices.sort_unstable();
        indices.dedup();
        let lock = |index: usize| LockedShard { index, table: self.shards[index].table.lock() };
        LockedShards(indices.into_iter().map(lock).collect())
    }
}

impl LockedShards<'_> {
    fn table(&mut self, key: KeyHash) -> &mut Table {
        let shard = shard_of(key);
        let position = self.0.partition_point(|locked| locked.index < shard);
        &mut self.0[position].table
    }
}

/// The first bits of a hash's high half choose the shard. Its low half chooses the slot in the shard's table.
const fn shard_of(key: KeyHash) -> usize {
    (key.high >> (u64::BITS - SHARD_BITS)) as usize
}
