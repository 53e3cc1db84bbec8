//! The embedded store: shards of cells, each under a lock that is its mailbox.
//!
//! A key belongs to one shard, so it has one writer at a time. A request with several limits locks
//! its shards in ascending order (no two requests can wait for each other), judges every cell,
//! and only then writes: all or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::quotas::Quotas;
use super::room::Pool;
use super::{Charge, Claim, Issued, Room, Settlement, Verdicts};
use crate::clock::Now;
use crate::limit::{Cell, Quota, Receipt, Verdict};
use crate::policy::KeyHash;

/// How many shards: with this many, two of some dozen threads seldom meet at one, and a shard of
/// a store with a million cells still grows within a millisecond.
pub const SHARDS: usize = 256;

/// Cells that a sweep looks at before it lets a shard go.
const SWEEP_STEP: usize = 4_096;

/// The embedded store.
#[derive(Debug)]
pub struct Embedded {
    shards: Box<[Shard]>,
    quotas: Quotas,
    pool: Pool,
    /// Where the next sweep begins.
    broom: AtomicUsize,
}

/// A line of the processor's cache of its own, so that neighbours do not slow each other.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    cells: Mutex<HashTable<Entry>>,
}

/// Memory of one cell in a table that is between half full and full, its byte of control included;
/// a log needs 16 bytes more for each charge.
pub const CELL_BYTES: usize = (size_of::<Entry>() + 1) * 3 / 2;

#[derive(Debug)]
struct Entry {
    key: KeyHash,
    cell: Cell,
    quota: u32,
}

type Locked<'s> = SmallVec<[(usize, MutexGuard<'s, HashTable<Entry>>); 4]>;

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
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The cell exists.
    Cell,
    /// It does not, and room was taken for it.
    New,
    /// It does not, and there is no room: somebody else judged.
    Elsewhere,
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
        let mut locked = self.lock(charges);
        let mut judged: SmallVec<[Judged; 4]> = SmallVec::new();
        for (place, charge) in charges.iter().enumerate() {
            let table = table_of(&mut locked, charge.key);
            judged.push(self.judge(table, charge, now, || when_full(place)));
        }
        let spent = may_spend && judged.iter().all(|one| one.verdict.allowed);
        let verdicts = charges
            .iter()
            .zip(&judged)
            .map(|(charge, one)| {
                let table = table_of(&mut locked, charge.key);
                if spent {
                    self.spend(table, charge, one, now)
                } else {
                    self.leave(table, charge, one, now)
                }
            })
            .collect::<Verdicts>();
        Settlement { spent, verdicts }
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
        if let Some(entry) = find(&mut table, key) {
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
        judged.place != Place::Elsewhere
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

    /// Walks the buckets of a shard in steps, letting waiting requests in between. A table that is
    /// rebuilt meanwhile may have cells skipped: the next sweep meets them.
    fn sweep_shard(&self, shard: &Shard, quotas: &[Arc<Issued>], now: Now) -> usize {
        let mut dropped = 0;
        let mut next = 0;
        let mut cells = shard.cells.lock();
        while next < cells.num_buckets() {
            let end = (next + SWEEP_STEP).min(cells.num_buckets());
            for bucket in next..end {
                let idle = cells.get_bucket(bucket).and_then(|entry| {
                    let issued = quotas.get(entry.quota as usize)?;
                    issued.quota.is_idle(&entry.cell, now).then_some(issued)
                });
                if let Some(issued) = idle
                    && let Ok(found) = cells.get_bucket_entry(bucket)
                {
                    let (entry, _) = found.remove();
                    issued.room.drop_cell(entry.cell.weight(), &self.pool);
                    issued.cells.fetch_sub(1, Ordering::Release);
                    dropped += 1;
                }
            }
            next = end;
            MutexGuard::bump(&mut cells);
        }
        let (used, held) = (cells.len(), cells.capacity());
        if held > 64 && used < held / 8 {
            cells.shrink_to(used * 2, |entry| entry.key.low);
        }
        dropped
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
        table: &mut HashTable<Entry>,
        charge: &Charge<'_>,
        now: Now,
        when_full: impl FnOnce() -> Verdict,
    ) -> Judged {
        let wanted = charge.quota;
        let Some(entry) = find(table, charge.key) else {
            if !wanted.room.take_cell(&self.pool) {
                return Judged { verdict: when_full(), later: None, place: Place::Elsewhere };
            }
            let verdict = wanted.quota.judge(None, charge.cost, now);
            return Judged { verdict, later: None, place: Place::New };
        };
        let later = self.read_as(entry, wanted, now);
        let quota = later.as_ref().unwrap_or(wanted);
        let verdict = quota.quota.judge(Some(&entry.cell), charge.cost, now);
        Judged { verdict, later, place: Place::Cell }
    }

    /// Makes a cell one of `wanted`, unless a later generation has already made it its own: then
    /// that one's quota.
    fn read_as(&self, entry: &mut Entry, wanted: &Arc<Issued>, now: Now) -> Option<Arc<Issued>> {
        if entry.quota == wanted.number {
            return None;
        }
        let quotas = self.quotas.all();
        let written = quotas.get(entry.quota as usize)?;
        if written.generation > wanted.generation {
            return Some(Arc::clone(written));
        }
        let before = entry.cell.weight();
        let cell = std::mem::replace(&mut entry.cell, wanted.quota.fresh());
        entry.cell = wanted.quota.convert(&written.quota, cell, now);
        entry.quota = wanted.number;
        wanted.room.reweigh(before, entry.cell.weight(), &self.pool);
        written.cells.fetch_sub(1, Ordering::Release);
        wanted.cells.fetch_add(1, Ordering::Release);
        None
    }

    fn spend(
        &self,
        table: &mut HashTable<Entry>,
        charge: &Charge<'_>,
        judged: &Judged,
        now: Now,
    ) -> Verdict {
        let quota = judged.later.as_ref().unwrap_or(charge.quota);
        match judged.place {
            Place::Elsewhere => {}
            Place::New => {
                let mut cell = quota.quota.fresh();
                quota.quota.charge(&mut cell, charge.cost, now);
                quota.room.reweigh(1, cell.weight(), &self.pool);
                quota.cells.fetch_add(1, Ordering::Release);
                let entry = Entry { key: charge.key, cell, quota: quota.number };
                table.insert_unique(charge.key.low, entry, |entry| entry.key.low);
            }
            Place::Cell => {
                if let Some(entry) = find(table, charge.key) {
                    let before = entry.cell.weight();
                    quota.quota.charge(&mut entry.cell, charge.cost, now);
                    quota.room.reweigh(before, entry.cell.weight(), &self.pool);
                }
            }
        }
        judged.verdict
    }

    /// Nothing is spent: an allowed verdict is asked again for what is there without the charge.
    fn leave(
        &self,
        table: &mut HashTable<Entry>,
        charge: &Charge<'_>,
        judged: &Judged,
        now: Now,
    ) -> Verdict {
        let quota = judged.later.as_ref().unwrap_or(charge.quota);
        let peek = |quota: &Quota, cell: Option<&Cell>| match judged.verdict.allowed {
            true => quota.judge(cell, 0, now),
            false => judged.verdict,
        };
        match judged.place {
            Place::Elsewhere => judged.verdict,
            Place::New => {
                quota.room.drop_cell(1, &self.pool);
                peek(&quota.quota, None)
            }
            Place::Cell => peek(&quota.quota, find(table, charge.key).map(|entry| &entry.cell)),
        }
    }
}

/// The high half chooses the shard, the low half the place within.
const fn shard_of(key: KeyHash) -> usize {
    (key.high % SHARDS as u64) as usize
}

fn find(table: &mut HashTable<Entry>, key: KeyHash) -> Option<&mut Entry> {
    table.find_mut(key.low, |entry| entry.key == key)
}

fn table_of<'l>(locked: &'l mut Locked<'_>, key: KeyHash) -> &'l mut HashTable<Entry> {
    let shard = shard_of(key);
    let place = locked.partition_point(|(place, _)| *place < shard);
    &mut locked[place].1
}
