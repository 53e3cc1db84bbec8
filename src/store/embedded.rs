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

use super::quotas::Quotas;
use super::room::Pool;
use super::table::{Entry, Place, Table};
use super::{Charge, Claim, Issued, Room, Settlement, Verdicts};
use crate::clock::Now;
use crate::limit::{Cell, Quota, Receipt, Verdict};
use crate::policy::KeyHash;

/// How many shards: with this many, two of some dozen threads seldom meet at one, and each is so
/// small that growing or sweeping it holds its lock for some ten microseconds, of ten million
/// cells too.
pub const SHARDS: usize = 1 << SHARD_BITS;

const SHARD_BITS: u32 = 12;

/// The embedded store.
#[derive(Debug)]
pub struct Embedded {
    shards: Box<[Shard]>,
    quotas: Quotas,
    pool: Pool,
    /// Where the next sweep begins.
    broom: AtomicUsize,
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

impl Default for Embedded {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            quotas: Quotas::default(),
            pool: Pool::default(),
            broom: AtomicUsize::new(0),
        }
    }
}

/// What is known of one charge while its shard is locked.
struct Judged {
    verdict: Verdict,
    /// The quota the cell is kept under, where it is a later one than the charge's.
    later: Option<Arc<Issued>>,
    found: Found,
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

impl Embedded {
    /// Gives a quota its number. `previous`: what the limit had before.
    pub fn issue(&self, claim: Claim, previous: Option<&Arc<Issued>>) -> Arc<Issued> {
        self.quotas.issue(claim, previous)
    }

    /// Quotas that cells can be written under now.
    pub fn issued_quotas(&self) -> usize {
        self.quotas.all().len()
    }

    /// Shares `max_keys` out to the limits of a new generation, each with its own bound.
    pub fn share_out(&self, max_keys: usize, rooms: &[(&Room, Option<usize>)]) {
        self.pool.share_out(max_keys, rooms);
        self.pool.recount(rooms.iter().map(|(room, _)| *room));
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
        charges: &[Charge<'_>],
        may_spend: bool,
        now: Now,
        mut when_full: impl FnMut(usize) -> Verdict,
    ) -> Settlement {
        if let [charge] = charges {
            let (spent, verdict) = self.settle_one(charge, may_spend, now, || when_full(0));
            return Settlement { spent, verdicts: Verdicts::from_iter([verdict]) };
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
        Settlement { spent, verdicts: verdicts.collect() }
    }

    /// The same of one charge; whether it was spent.
    pub fn settle_one(
        &self,
        charge: &Charge<'_>,
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
        charge: &Charge<'_>,
        may_spend: bool,
        now: Now,
    ) -> (bool, Verdict) {
        let (verdict, later) = self.judge_entry(entry, charge, now);
        let quota = later.as_ref().unwrap_or(charge.quota);
        match (verdict.allowed, may_spend) {
            (true, true) => self.spend_entry(entry, quota, charge.cost, now),
            (true, false) => return (false, quota.quota.judge(Some(&entry.cell), 0, now)),
            (false, _) => {}
        }
        (verdict.allowed, verdict)
    }

    /// Takes back up to `units` of what a key was charged, where they still count.
    pub fn give_back(
        &self,
        key: KeyHash,
        quota: &Arc<Issued>,
        units: u32,
        receipt: Receipt,
        now: Now,
    ) {
        let mut table = self.shards[shard_of(key)].cells.lock();
        if let Some((entry, _)) = find(&mut table, key, None) {
            let later = self.read_as(entry, quota, now);
            let quota = later.as_ref().unwrap_or(quota);
            let before = entry.cell.weight();
            quota.quota.give_back(&mut entry.cell, units, receipt, now);
            quota.room.reweigh(before, entry.cell.weight(), &self.pool);
        }
    }

    /// Charges a key without asking: what is above the limit has to come back first. Says whether
    /// there was room for it.
    pub fn debit(&self, key: KeyHash, quota: &Arc<Issued>, units: u32, now: Now) -> bool {
        let charge = Charge { key, quota, cost: units };
        let mut table = self.shards[shard_of(key)].cells.lock();
        let judged = self.judge(&mut table, &charge, now, || quota.quota.judge(None, units, now));
        self.spend(&mut table, &charge, &judged, now);
        judged.found != Found::Nowhere
    }

    /// Drops cells that equal an absent one from the next `shards` shards. Returns how many.
    pub fn sweep(&self, shards: usize, now: Now) -> usize {
        let mut dropped = 0;
        let quotas = self.quotas.all();
        for _ in 0..shards.min(SHARDS) {
            let place = self.broom.fetch_add(1, Ordering::Relaxed) % SHARDS;
            dropped += self.sweep_shard(&self.shards[place], &quotas, now);
        }
        if self.broom.load(Ordering::Relaxed).is_multiple_of(SHARDS) {
            let mut rooms: Vec<&Arc<Room>> = quotas.iter().map(|issued| &issued.room).collect();
            rooms.sort_by_key(|room| Arc::as_ptr(room));
            rooms.dedup_by_key(|room| Arc::as_ptr(room));
            self.pool.recount(rooms.into_iter().map(|room| &**room));
        }
        dropped
    }

    fn sweep_shard(&self, shard: &Shard, quotas: &[Arc<Issued>], now: Now) -> usize {
        /// What is dropped of one quota; told to all at once, since all cores write there.
        struct Dropped {
            quota: u32,
            cells: usize,
            weight: usize,
        }
        let quota_of = |number: u32| quotas.get(number as usize);
        let mut all: SmallVec<[Dropped; 8]> = SmallVec::new();
        let mut count = |entry: &Entry| {
            let (quota, weight) = (entry.quota(), entry.cell.weight());
            match all.iter_mut().find(|one| one.quota == quota) {
                Some(one) => (one.cells, one.weight) = (one.cells + 1, one.weight + weight),
                None => all.push(Dropped { quota, cells: 1, weight }),
            }
        };
        let idle = |entry: &Entry| {
            quota_of(entry.quota()).is_some_and(|one| one.quota.is_idle(&entry.cell, now))
        };
        shard.cells.lock().sweep(idle, &mut count);
        for Dropped { quota, cells, weight } in &all {
            if let Some(issued) = quota_of(*quota) {
                issued.room.drop_cells(*cells, *weight, &self.pool);
                issued.cells.fetch_sub(*cells, Ordering::Release);
            }
        }
        all.iter().map(|one| one.cells).sum()
    }

    /// Memory of all cells, gaps included; logs' times are not counted.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| size_of::<Shard>() + shard.cells.lock().bytes()).sum()
    }

    /// Locks the shards of all charges, in ascending order.
    fn lock(&self, charges: &[Charge<'_>]) -> Locked<'_> {
        let mut places: SmallVec<[usize; 4]> =
            charges.iter().map(|charge| shard_of(charge.key)).collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|place| (place, self.shards[place].cells.lock())).collect()
    }

    fn judge(
        &self,
        table: &mut Table,
        charge: &Charge<'_>,
        now: Now,
        when_full: impl FnOnce() -> Verdict,
    ) -> Judged {
        let wanted = charge.quota;
        let Some((entry, place)) = find(table, charge.key, None) else {
            if !wanted.room.take_cell(&self.pool) {
                return Judged { verdict: when_full(), later: None, found: Found::Nowhere };
            }
            let verdict = wanted.quota.judge(None, charge.cost, now);
            return Judged { verdict, later: None, found: Found::New };
        };
        let (verdict, later) = self.judge_entry(entry, charge, now);
        Judged { verdict, later, found: Found::Cell(place) }
    }

    /// What is said of a charge to a cell; and the quota it is kept under, where that is a later one.
    fn judge_entry(
        &self,
        entry: &mut Entry,
        charge: &Charge<'_>,
        now: Now,
    ) -> (Verdict, Option<Arc<Issued>>) {
        let later = self.read_as(entry, charge.quota, now);
        let quota = later.as_ref().unwrap_or(charge.quota);
        (quota.quota.judge(Some(&entry.cell), charge.cost, now), later)
    }

    fn spend_entry(&self, entry: &mut Entry, quota: &Issued, cost: u32, now: Now) {
        let before = entry.cell.weight();
        quota.quota.charge(&mut entry.cell, cost, now);
        quota.room.reweigh(before, entry.cell.weight(), &self.pool);
    }

    /// Makes a cell one of `wanted`, unless a later generation has already made it its own: then
    /// that one's quota.
    fn read_as(&self, entry: &mut Entry, wanted: &Arc<Issued>, now: Now) -> Option<Arc<Issued>> {
        if entry.quota() == wanted.number {
            return None;
        }
        let quotas = self.quotas.all();
        let written = quotas.get(entry.quota() as usize)?;
        if written.generation > wanted.generation {
            return Some(Arc::clone(written));
        }
        let before = entry.cell.weight();
        let cell = std::mem::replace(&mut entry.cell, wanted.quota.fresh());
        entry.cell = wanted.quota.convert(&written.quota, cell, now);
        entry.set_quota(wanted.number);
        wanted.room.reweigh(before, entry.cell.weight(), &self.pool);
        written.cells.fetch_sub(1, Ordering::Release);
        wanted.cells.fetch_add(1, Ordering::Release);
        None
    }

    fn conclude(
        &self,
        table: &mut Table,
        charge: &Charge<'_>,
        judged: &Judged,
        spent: bool,
        now: Now,
    ) -> Verdict {
        match spent {
            true => self.spend(table, charge, judged, now),
            false => self.leave(table, charge, judged, now),
        }
    }

    fn spend(&self, table: &mut Table, charge: &Charge<'_>, judged: &Judged, now: Now) -> Verdict {
        let quota = judged.later.as_ref().unwrap_or(charge.quota);
        match judged.found {
            Found::Nowhere => {}
            Found::New => {
                let mut cell = quota.quota.fresh();
                quota.quota.charge(&mut cell, charge.cost, now);
                quota.room.reweigh(1, cell.weight(), &self.pool);
                quota.cells.fetch_add(1, Ordering::Release);
                table.insert(charge.key, Entry::new(charge.key, cell, quota.number));
            }
            Found::Cell(place) => {
                if let Some((entry, _)) = find(table, charge.key, Some(place)) {
                    self.spend_entry(entry, quota, charge.cost, now);
                }
            }
        }
        judged.verdict
    }

    /// Nothing is spent: an allowed verdict is asked again for what is there without the charge.
    fn leave(&self, table: &mut Table, charge: &Charge<'_>, judged: &Judged, now: Now) -> Verdict {
        let quota = judged.later.as_ref().unwrap_or(charge.quota);
        let peek = |quota: &Quota, cell: Option<&Cell>| match judged.verdict.allowed {
            true => quota.judge(cell, 0, now),
            false => judged.verdict,
        };
        match judged.found {
            Found::Nowhere => judged.verdict,
            Found::New => {
                quota.room.drop_cells(1, 1, &self.pool);
                peek(&quota.quota, None)
            }
            Found::Cell(_) if !judged.verdict.allowed => judged.verdict,
            Found::Cell(place) => {
                let found = find(table, charge.key, Some(place));
                peek(&quota.quota, found.map(|(entry, _)| &entry.cell))
            }
        }
    }
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
