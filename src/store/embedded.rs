//! The embedded store: shards of cells, each under a lock that is its mailbox.
//!
//! A key belongs to one shard, so it has one writer at a time. A request with several limits locks
//! its shards in ascending order (no two requests can wait for each other), judges every cell,
//! and only then writes: all or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use prefetch_index::prefetch_index;
use smallvec::SmallVec;

use super::budget::Pool;
use super::quotas::Quotas;
use super::table::{CELL_BYTES, Entry, Place, Table};
use super::{
    BoundedBudget, CellBudget, EmbeddedCharge, IssuedQuota, QuotaSpec, Settlement, Verdicts,
};
use crate::clock::Now;
use crate::limit::{Cell, Receipt, Verdict};
use crate::policy::KeyHash;

/// How many shards: with this many, two of some dozen threads seldom meet at one, and each is so
/// small that growing or sweeping it holds its lock for some ten microseconds, of ten million
/// cells too.
pub const SHARDS: usize = 1 << SHARD_BITS;

const SHARD_BITS: u32 = 12;

/// The embedded store.
#[derive(Debug)]
pub struct EmbeddedStore {
    shards: Box<[Shard]>,
    quotas: Quotas,
    pool: Pool,
    /// Where the next sweep begins.
    cursor: AtomicUsize,
}

/// Lines of the processor's cache of its own, so that neighbours do not slow each other; two, which
/// are fetched together (see `table::NEAR`).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    cells: Mutex<Table>,
}

const _: () = assert!(size_of::<Shard>() == 128);

type Locked<'s> = SmallVec<[(usize, MutexGuard<'s, Table>); 4]>;

impl Default for EmbeddedStore {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            quotas: Quotas::default(),
            pool: Pool::default(),
            cursor: AtomicUsize::new(0),
        }
    }
}

/// What is known of one charge while its shard is locked.
struct Judged {
    verdict: Verdict,
    found: Found,
    /// What the charge adds.
    growth: Growth,
}

/// How a cell makes room for one more charge.
#[derive(Clone, Copy)]
enum Growth {
    /// So much weight was taken for it; given back if it is not spent.
    Taken(usize),
    /// There is none, so two entries become one, at the later of both times: a log joins its two oldest
    /// times, a bucket that remembers charges joins the two sums that are closest in time. (An only sum
    /// is no longer remembered.) What is spent stays counted, and may count for longer; a key that is
    /// known is never handed to `when_full`.
    InPlace,
}

impl Growth {
    const fn weight(self) -> usize {
        match self {
            Self::Taken(weight) => weight,
            Self::InPlace => 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The cell exists.
    Cell(Place),
    /// It does not, and room was taken for it.
    New,
    /// It does not, and there is no room: somebody else judged.
    Nowhere,
}

impl EmbeddedStore {
    /// Gives a quota its number. `previous`: what the limit had before.
    pub fn issue(&self, claim: QuotaSpec, previous: Option<&Arc<IssuedQuota>>) -> Arc<IssuedQuota> {
        self.quotas.issue(claim, previous)
    }

    /// Quotas that cells can be written under now.
    pub fn issued_quotas(&self) -> usize {
        self.quotas.all().len()
    }

    /// Shares `max_keys` out to the limits of a new generation, each with its own bound.
    pub fn set_budgets(&self, max_keys: usize, budgets: &[BoundedBudget<'_>]) {
        self.pool.set_budgets(max_keys, budgets);
        self.pool.recount(budgets.iter().map(|bounded| bounded.budget));
    }

    /// Asks the processor to fetch what these keys' cells lie in, all at once, while something else
    /// is done: each step to memory that is not in its cache takes longer than the rest of a
    /// decision. Changes nothing, and waits for nothing.
    pub fn prefetch(&self, keys: impl Iterator<Item = KeyHash> + Clone) {
        for key in keys.clone() {
            prefetch_index(&self.shards, shard_of(key));
        }
        for key in keys {
            // What somebody else has locked is on its way between two cores anyway.
            if let Some(table) = self.shards[shard_of(key)].cells.try_lock() {
                table.prefetch(key);
            }
        }
    }

    /// Judges all charges and spends all or none.
    ///
    /// No two charges have the same key. With `may_spend` false nothing is spent whatever the
    /// verdicts. `when_full` is asked for a charge (by its place) whose cell does not exist and
    /// for which there is no room; what it answers counts as that limit's verdict.
    pub fn settle(
        &self,
        charges: &[EmbeddedCharge<'_>],
        may_spend: bool,
        now: Now,
        mut when_full: impl FnMut(usize) -> Verdict,
    ) -> Settlement {
        if let [charge] = charges {
            let (spent, verdict) = self.settle_single(charge, may_spend, now, || when_full(0));
            return Settlement { charged: spent, verdicts: Verdicts::from_iter([verdict]) };
        }
        let mut locked = self.lock(charges);
        let mut judged: SmallVec<[Judged; 4]> = SmallVec::new();
        for (place, charge) in charges.iter().enumerate() {
            let table = table_of(&mut locked, charge.key);
            judged.push(self.judge(table, charge, now, || when_full(place)));
        }
        let spent = may_spend && judged.iter().all(|one| one.verdict.allowed);
        let verdicts = charges.iter().zip(&judged).map(|(charge, one)| {
            let table = table_of(&mut locked, charge.key);
            self.conclude(table, charge, one, spent, now)
        });
        Settlement { charged: spent, verdicts: verdicts.collect() }
    }

    /// The same of one charge; whether it was spent.
    pub fn settle_single(
        &self,
        charge: &EmbeddedCharge<'_>,
        may_spend: bool,
        now: Now,
        when_full: impl FnOnce() -> Verdict,
    ) -> (bool, Verdict) {
        let mut table = self.shards[shard_of(charge.key)].cells.lock();
        if let Some((entry, _)) = find(&mut table, charge.key, None) {
            return self.settle_entry(entry, charge, may_spend, now);
        }
        let judged = self.judge(&mut table, charge, now, when_full);
        let spent = may_spend && judged.verdict.allowed;
        (spent, self.conclude(&mut table, charge, &judged, spent, now))
    }

    /// The same where the cell exists: it is looked for once.
    fn settle_entry(
        &self,
        entry: &mut Entry,
        charge: &EmbeddedCharge<'_>,
        may_spend: bool,
        now: Now,
    ) -> (bool, Verdict) {
        let verdict = self.judge_entry(entry, charge.quota, charge.cost, now);
        if !verdict.allowed {
            return (false, verdict);
        }
        if !may_spend {
            return (false, self.judge_entry(entry, charge.quota, 0, now));
        }
        let growth = self.take_growth(entry, charge, now);
        self.spend_entry(entry, charge.quota, charge.cost, growth, now);
        (true, verdict)
    }

    /// Takes back up to `units` of what a key was charged, where they still count.
    pub fn refund(
        &self,
        key: KeyHash,
        quota: &Arc<IssuedQuota>,
        units: u32,
        receipt: Receipt,
        now: Now,
    ) {
        let mut table = self.shards[shard_of(key)].cells.lock();
        if let Some((entry, _)) = find(&mut table, key, None) {
            let before = weight(&entry.cell);
            match entry.cell {
                // Of all rates.
                Cell::Buckets(_) => {}
                Cell::Bucket(_) if !self.is_of(entry, quota) => return,
                _ => self.adopt(entry, quota, now),
            }
            quota.quota.refund(&quota.windows, &mut entry.cell, units, receipt, now);
            quota.budget.reweigh(before, weight(&entry.cell), &self.pool);
        }
    }

    /// Charges a key without asking: what is above the limit has to come back first. Never refused,
    /// also where there is no room: its request was admitted, and those in flight are bounded.
    pub fn debit(&self, key: KeyHash, quota: &Arc<IssuedQuota>, units: u32, now: Now) {
        let mut table = self.shards[shard_of(key)].cells.lock();
        match find(&mut table, key, None) {
            Some((entry, _)) => {
                self.spend_entry(entry, quota, units, Growth::Taken(0), now);
            }
            None => {
                quota.budget.add_cell(quota.new_weight, &self.pool);
                let charge = EmbeddedCharge { key, quota, cost: units };
                self.insert(&mut table, &charge, quota.new_weight, now);
            }
        }
    }

    /// Drops cells that equal an absent one from the next `shards` shards. Returns how many.
    pub fn sweep(&self, shards: usize, now: Now) -> usize {
        let mut dropped = 0;
        for _ in 0..shards.min(SHARDS) {
            let index = self.cursor.fetch_add(1, Ordering::Relaxed) % SHARDS;
            dropped += self.sweep_shard(&self.shards[index], now);
        }
        if self.cursor.load(Ordering::Relaxed).is_multiple_of(SHARDS) {
            let quotas = self.quotas.all();
            self.pool.recount(rooms(&quotas).into_iter());
        }
        dropped
    }

    fn sweep_shard(&self, shard: &Shard, now: Now) -> usize {
        /// What is dropped of one quota; told to all at once, since all cores write there.
        struct Dropped {
            quota: u32,
            cells: usize,
            weight: usize,
        }
        let mut cells = shard.cells.lock();
        // Read under the lock: a number that a cell of this shard names is not given to another quota
        // before the cell has gone.
        let quotas = self.quotas.all();
        let quota_of = |number: u32| quotas.get(number as usize);
        cells.for_each(|entry| {
            if entry.cell.heap_bytes() > 0
                && let Some(issued) = quota_of(entry.quota())
            {
                let before = weight(&entry.cell);
                if issued.quota.tidy(&issued.windows, &mut entry.cell, now) {
                    issued.budget.reweigh(before, weight(&entry.cell), &self.pool);
                }
            }
        });
        let mut all: SmallVec<[Dropped; 8]> = SmallVec::new();
        let mut count = |entry: &Entry| {
            let (quota, weight) = (entry.quota(), weight(&entry.cell));
            match all.iter_mut().find(|one| one.quota == quota) {
                Some(one) => (one.cells, one.weight) = (one.cells + 1, one.weight + weight),
                None => all.push(Dropped { quota, cells: 1, weight }),
            }
        };
        let idle = |entry: &Entry| {
            quota_of(entry.quota()).is_some_and(|one| one.quota.is_idle(&entry.cell, now))
        };
        cells.sweep(idle, &mut count);
        drop(cells);
        for Dropped { quota, cells, weight } in &all {
            if let Some(issued) = quota_of(*quota) {
                issued.budget.drop_cells(*cells, *weight, &self.pool);
                issued.cells.fetch_sub(*cells, Ordering::Release);
            }
        }
        all.iter().map(|one| one.cells).sum()
    }

    /// Memory of all cells, gaps and logs included.
    pub fn bytes(&self) -> usize {
        let tables: usize =
            self.shards.iter().map(|shard| size_of::<Shard>() + shard.cells.lock().bytes()).sum();
        let quotas = self.quotas.all();
        let heaps = rooms(&quotas)
            .into_iter()
            .map(|room| room.weight().saturating_sub(room.cells()).saturating_mul(CELL_BYTES));
        tables + heaps.sum::<usize>()
    }

    /// Locks the shards of all charges, in ascending order.
    fn lock(&self, charges: &[EmbeddedCharge<'_>]) -> Locked<'_> {
        let mut places: SmallVec<[usize; 4]> =
            charges.iter().map(|charge| shard_of(charge.key)).collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|place| (place, self.shards[place].cells.lock())).collect()
    }

    fn judge(
        &self,
        table: &mut Table,
        charge: &EmbeddedCharge<'_>,
        now: Now,
        when_full: impl FnOnce() -> Verdict,
    ) -> Judged {
        let wanted = charge.quota;
        let Some((entry, place)) = find(table, charge.key, None) else {
            let taken = wanted.new_weight;
            if !wanted.budget.take_cell(taken, &self.pool) {
                let growth = Growth::Taken(0);
                return Judged { verdict: when_full(), found: Found::Nowhere, growth };
            }
            let verdict = wanted.quota.judge(None, charge.cost, now);
            return Judged { verdict, found: Found::New, growth: Growth::Taken(taken) };
        };
        let verdict = self.judge_entry(entry, wanted, charge.cost, now);
        let growth = match verdict.allowed {
            true => self.take_growth(entry, charge, now),
            false => Growth::Taken(0),
        };
        Judged { verdict, found: Found::Cell(place), growth }
    }

    /// Takes room for what a charge adds to a cell, if there is any.
    fn take_growth(&self, entry: &Entry, charge: &EmbeddedCharge<'_>, now: Now) -> Growth {
        if charge.cost == 0 || entry.cell.heap_bytes() == 0 {
            return Growth::Taken(0);
        }
        let more = weight_of(entry.cell.heap_bytes_after_charge(now)) - weight(&entry.cell);
        let has_room = more == 0 || charge.quota.budget.take_weight(more, &self.pool);
        if has_room { Growth::Taken(more) } else { Growth::InPlace }
    }

    /// What a quota says of a charge to a cell. Windows and rates that the cell does not have yet are
    /// added for good, also when the charge is refused: what they begin with is to be read once.
    fn judge_entry(
        &self,
        entry: &mut Entry,
        wanted: &Arc<IssuedQuota>,
        cost: u32,
        now: Now,
    ) -> Verdict {
        if entry.quota() != wanted.number {
            let before = weight(&entry.cell);
            self.adopt(entry, wanted, now);
            wanted.budget.reweigh(before, weight(&entry.cell), &self.pool);
        }
        wanted.quota.judge(Some(&entry.cell), cost, now)
    }

    fn spend_entry(
        &self,
        entry: &mut Entry,
        quota: &Arc<IssuedQuota>,
        cost: u32,
        growth: Growth,
        now: Now,
    ) {
        let before = weight(&entry.cell) + growth.weight();
        self.adopt(entry, quota, now);
        if matches!(growth, Growth::InPlace) {
            entry.cell.make_room(now);
        }
        quota.quota.charge(&mut entry.cell, cost, now);
        quota.budget.reweigh(before, weight(&entry.cell), &self.pool);
    }

    /// Whether a cell can be read by a quota as it is.
    fn is_of(&self, entry: &Entry, wanted: &IssuedQuota) -> bool {
        let is_same = entry.quota() == wanted.number;
        is_same
            || self.quotas.all().get(entry.quota() as usize).is_some_and(|one| reads(wanted, one))
    }

    /// Makes a cell one of `wanted`.
    fn adopt(&self, entry: &mut Entry, wanted: &Arc<IssuedQuota>, now: Now) {
        if entry.quota() == wanted.number {
            return;
        }
        let quotas = self.quotas.all();
        let Some(written) = quotas.get(entry.quota() as usize) else {
            return;
        };
        if !reads(wanted, written) {
            let cell = std::mem::replace(&mut entry.cell, wanted.quota.empty_cell());
            entry.cell = wanted.quota.convert(&wanted.windows, &written.quota, cell, now);
        }
        entry.set_quota(wanted.number);
        written.cells.fetch_sub(1, Ordering::Release);
        wanted.cells.fetch_add(1, Ordering::Release);
    }

    fn conclude(
        &self,
        table: &mut Table,
        charge: &EmbeddedCharge<'_>,
        judged: &Judged,
        spent: bool,
        now: Now,
    ) -> Verdict {
        match spent {
            true => self.spend(table, charge, judged, now),
            false => self.leave(table, charge, judged, now),
        }
    }

    fn spend(
        &self,
        table: &mut Table,
        charge: &EmbeddedCharge<'_>,
        judged: &Judged,
        now: Now,
    ) -> Verdict {
        match judged.found {
            Found::Nowhere => {}
            Found::New => self.insert(table, charge, judged.growth.weight(), now),
            Found::Cell(place) => {
                if let Some((entry, _)) = find(table, charge.key, Some(place)) {
                    self.spend_entry(entry, charge.quota, charge.cost, judged.growth, now);
                }
            }
        }
        judged.verdict
    }

    /// A new cell, for which `taken` was taken.
    fn insert(&self, table: &mut Table, charge: &EmbeddedCharge<'_>, taken: usize, now: Now) {
        let quota = charge.quota;
        let mut cell = quota.quota.empty_cell_for(&quota.windows, now);
        quota.quota.charge(&mut cell, charge.cost, now);
        quota.budget.reweigh(taken, weight(&cell), &self.pool);
        quota.cells.fetch_add(1, Ordering::Release);
        table.insert(charge.key, Entry::new(charge.key, cell, quota.number));
    }

    /// Nothing is spent: an allowed verdict is asked again for what is there without the charge.
    fn leave(
        &self,
        table: &mut Table,
        charge: &EmbeddedCharge<'_>,
        judged: &Judged,
        now: Now,
    ) -> Verdict {
        let quota = charge.quota;
        let allowed = judged.verdict.allowed;
        match judged.found {
            Found::Nowhere => judged.verdict,
            Found::New => {
                quota.budget.drop_cells(1, judged.growth.weight(), &self.pool);
                if allowed { quota.quota.judge(None, 0, now) } else { judged.verdict }
            }
            Found::Cell(place) => {
                quota.budget.drop_cells(0, judged.growth.weight(), &self.pool);
                match find(table, charge.key, Some(place)) {
                    Some((entry, _)) if allowed => self.judge_entry(entry, quota, 0, now),
                    Some(_) | None => judged.verdict,
                }
            }
        }
    }
}

/// What a cell costs of `max_keys`: one, and one more for every [`CELL_BYTES`] that it holds besides,
/// so that `max_keys` bounds memory.
fn weight(cell: &Cell) -> usize {
    weight_of(cell.heap_bytes())
}

/// The weight of a cell with so many bytes besides itself.
pub(super) const fn weight_of(heap_bytes: usize) -> usize {
    1 + heap_bytes.div_ceil(CELL_BYTES)
}

/// Whether a cell that `written` wrote can be read by `wanted` as it is.
fn reads(wanted: &IssuedQuota, written: &IssuedQuota) -> bool {
    wanted.quota.can_read(&written.quota) && wanted.windows == written.windows
}

/// The rooms of these quotas, each once.
fn rooms(quotas: &[Arc<IssuedQuota>]) -> Vec<&CellBudget> {
    let mut rooms: Vec<&Arc<CellBudget>> = quotas.iter().map(|issued| &issued.budget).collect();
    rooms.sort_by_key(|room| Arc::as_ptr(room));
    rooms.dedup_by_key(|room| Arc::as_ptr(room));
    rooms.into_iter().map(|room| &**room).collect()
}

/// The first bits of the high half choose the shard, the low half the place within.
const fn shard_of(key: KeyHash) -> usize {
    (key.high >> (u64::BITS - SHARD_BITS)) as usize
}

/// A key's entry; `hint`: where it was before others were inserted.
fn find(table: &mut Table, key: KeyHash, hint: Option<Place>) -> Option<(&mut Entry, Place)> {
    let place = table.find(key, hint);
    let Place::At(at) = place else {
        return None;
    };
    Some((table.get_mut(at)?, place))
}

fn table_of<'l>(locked: &'l mut Locked<'_>, key: KeyHash) -> &'l mut Table {
    let shard = shard_of(key);
    let place = locked.partition_point(|(place, _)| *place < shard);
    &mut locked[place].1
}
