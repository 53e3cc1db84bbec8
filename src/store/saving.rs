//! The embedded store as a state directory and a successor see it: which cells have changed, all cells of a shard, and
//! cells that come back.
//!
//! Each call locks one shard at a time, for as long as it takes to copy the cells that it reports. A cell is named by a
//! key of which 20 bits are 0, because the table does not keep them ([`super::table`]).

use std::sync::Arc;

use hashbrown::HashMap;

use super::changed_keys::EntryOrder;
use super::embedded::{EmbeddedStore, SHARD_BITS, SHARDS};
use super::quotas::{HeldQuotas, IssuedQuota};
use super::table::CellEntry;
use super::written_ahead::{Grant, KeyGrants};
use crate::clock::Now;
use crate::limit::Cell;
use crate::policy::KeyHash;

/// A cell that is to be saved.
#[derive(Clone, Copy, Debug)]
pub struct SavedCell<'c> {
    /// The key, less 20 bits.
    pub key: KeyHash,
    /// The number of the quota that wrote the cell, and the cell. `None`: the key has no cell any more.
    pub cell: Option<(u32, &'c Cell)>,
    /// What the key may spend before its cell is saved again (`after_crash: deny`).
    pub grant: Option<Grant>,
}

/// The batch in which cells are copied.
#[derive(Clone, Copy, Debug)]
pub struct SaveBatch {
    /// Its number ([`SaveProgress::begin`](super::SaveProgress::begin)).
    pub number: u64,
    /// When it began.
    pub began: Now,
}

type Grants = HashMap<EntryOrder, KeyGrants>;

/// Bytes of what is kept of a key that is spent from under `after_crash: deny`, at the usual load of a table.
pub const GRANT_BYTES: usize = size_of::<(EntryOrder, KeyGrants)>() * 11 / 8;

impl<'c> SavedCell<'c> {
    /// `batch`: `None` for a copy that is not for the disk, so that nothing can be granted with it.
    fn of(
        shard: usize,
        entry: &'c CellEntry,
        quotas: &[Arc<IssuedQuota>],
        batch: Option<SaveBatch>,
        grants: Option<&mut Grants>,
    ) -> Self {
        let issued = quotas.get(entry.quota() as usize);
        let grant = batch.zip(issued).zip(grants).and_then(|((batch, issued), grants)| {
            // A key that has spent nothing in this process needs none, and a crash must not take one from it.
            let grants = grants.get_mut(&entry.order())?;
            let until = batch.began.mono.saturating_add(issued.quota.window());
            let grant = Grant { units: issued.ahead?.get(), until };
            grants.record_copy(batch.number, grant);
            Some(grant)
        });
        let cell = Some((entry.quota(), &entry.cell));
        Self { key: entry.key(shard_bits(shard)), cell, grant }
    }

    /// `entry`: `None` if the key has no cell any more.
    fn of_change(
        shard: usize,
        (low, high): EntryOrder,
        entry: Option<&'c CellEntry>,
        quotas: &[Arc<IssuedQuota>],
        batch: SaveBatch,
        grants: &mut Grants,
    ) -> Self {
        match entry {
            Some(entry) => Self::of(shard, entry, quotas, Some(batch), Some(grants)),
            None => {
                let key = KeyHash { high: shard_bits(shard) | u64::from(high), low };
                Self { key, cell: None, grant: None }
            }
        }
    }
}

impl EmbeddedStore {
    /// From now on the store knows which cells have changed.
    pub fn track_changes(&self) {
        for shard in 0..SHARDS {
            self.lock_index(shard).track_changes();
        }
    }

    /// Calls `save` with every cell of a shard that has changed since the last call.
    pub fn take_changed(
        &self,
        shard: usize,
        batch: SaveBatch,
        mut save: impl FnMut(SavedCell<'_>),
    ) {
        let mut table = self.lock_index(shard);
        if !table.has_changes() {
            return;
        }
        // Read under the lock, as in a sweep.
        let quotas = self.accounting().quotas.list();
        table.take_changed(|order, entry, grants| {
            save(SavedCell::of_change(shard, order, entry, &quotas, batch, grants));
        });
    }

    /// [`EmbeddedStore::take_changed`] for the last time: in the same instant the shard's cells become the successor's.
    /// Whoever needs one of them then is told so, until [`EmbeddedStore::take_back`].
    pub fn hand_over(&self, shard: usize, batch: SaveBatch, mut save: impl FnMut(SavedCell<'_>)) {
        let mut table = self.lock_index(shard);
        let quotas = self.accounting().quotas.list();
        table.hand_over(|order, entry, grants| {
            save(SavedCell::of_change(shard, order, entry, &quotas, batch, grants));
        });
    }

    /// Calls `save` with every cell of a shard. `batch`: `None` if the copies are not for the disk.
    pub fn visit_cells(
        &self,
        shard: usize,
        batch: Option<SaveBatch>,
        mut save: impl FnMut(SavedCell<'_>),
    ) {
        let mut table = self.lock_index(shard);
        let quotas = self.accounting().quotas.list();
        table
            .visit_saved(|entry, grants| save(SavedCell::of(shard, entry, &quotas, batch, grants)));
    }

    /// Puts back a cell that was saved, and replaces the key's cell, if it has one. It counts against the budget of its
    /// limit, with or without room. Returns whether the key had no cell.
    ///
    /// `grant`: what the key may have spent after the cell was copied, and has to be taken for spent. It is charged as late
    /// as it can have been spent, because a later charge counts for longer.
    pub fn restore_cell(
        &self,
        key: KeyHash,
        quota: &Arc<IssuedQuota>,
        mut cell: Cell,
        grant: Option<Grant>,
        now: Now,
    ) -> bool {
        if let Some(Grant { units, until }) = grant {
            let ago = now.mono.saturating_sub(until);
            let at = Now { mono: now.mono.min(until), wall: now.wall.saturating_sub(ago) };
            quota.quota.charge(&mut cell, units, at);
        }
        let mut table = self.lock_shard(key);
        let is_new = self.accounting().restore(&mut table, key, quota, cell);
        drop(table);
        if grant.is_some() {
            // The next process must not take it for less again, also if this one ends in an orderly way.
            self.list_restored(key);
        }
        is_new
    }

    /// Lists the cell of a key, if it has one, as one that has to be saved.
    pub fn list_restored(&self, key: KeyHash) {
        let mut table = self.lock_shard(key);
        if let Some((slot, entry)) = table.find_entry(key, None) {
            entry.set_changed();
            table.list_changed(slot);
        }
    }

    /// Forgets what a saved key has spent. Its empty cell is dropped by a sweep.
    pub fn restore_absence(&self, key: KeyHash, now: Now) {
        if let Some((_, entry)) = self.lock_shard(key).find_entry(key, None) {
            self.accounting().reset(entry, now);
        }
    }

    /// All quotas that cells may name now. While they are held, no number is given to another quota.
    pub fn hold_quotas(&self) -> HeldQuotas {
        self.accounting().quotas.hold()
    }
}

/// The number of a shard as the first bits of its keys.
const fn shard_bits(shard: usize) -> u64 {
    (shard as u64) << (u64::BITS - SHARD_BITS)
}
