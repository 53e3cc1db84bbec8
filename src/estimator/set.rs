//! A set of the confirm table: eight cells under one lock, and two atomics that are read without it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::attempt::ChargeAttempt;
use super::cell::ConfirmCell;
use super::spot::Spot;
use crate::clock::Nanos;
use crate::limit::{SlidingWindow, Verdict};
use crate::policy::KeyHash;

/// Cells of a set. All of them are compared with a key.
pub(super) const WAYS: usize = 8;

/// The tag of an unused cell.
const UNUSED: u32 = 0;

/// A set. It begins at a line of the processor's cache, so that the lock, the tags and both atomics are in one
/// line: most keys are not suspects, and that line alone shows that they have no cell.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct ConfirmSet {
    /// Until this wall time, any key whose first set this is may have sent units that no cell counts: one such key was
    /// displaced or found no cell, and which one is not recorded.
    uncounted_until: AtomicU64,
    /// Keys whose first set this is and whose cell is in their second set.
    in_second: AtomicU32,
    ways: Mutex<Ways>,
}

const _: () = assert!(size_of::<ConfirmSet>() == 512);

/// The cells of a set. (`repr(C)` keeps the tags before the cells.)
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Ways {
    /// The tag of each cell; [`UNUSED`] if it is unused.
    tags: [u32; WAYS],
    /// The number of the limit of each cell, read by lists and by the exchange of a fleet.
    limits: [u8; WAYS],
    cells: [ConfirmCell; WAYS],
}

/// A cell with the tag of its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaggedCell {
    pub(super) tag: u32,
    pub(super) limit: u8,
    pub(super) cell: ConfirmCell,
}

/// A cell of a set, with its rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankedWay {
    pub(super) way: usize,
    pub(super) rank: u64,
}

impl ConfirmSet {
    pub(super) fn lock(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock()
    }

    /// For a thread that already holds two sets: it must not wait for a third.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Ways>> {
        self.ways.try_lock()
    }

    /// Whether a key of this set may have its cell in its second set. Exact while this set is locked, except that
    /// a key which is being removed from its second set may still count.
    pub(super) fn has_keys_in_second(&self) -> bool {
        self.in_second.load(Ordering::Acquire) != 0
    }

    /// Records that a key of this set gets a cell in its second set. The caller holds the locks of both sets.
    pub(super) fn add_in_second(&self) {
        self.in_second.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that a key of this set has lost its cell in its second set.
    pub(super) fn remove_in_second(&self) {
        self.in_second.fetch_sub(1, Ordering::AcqRel);
    }

    /// Records that no cell counts the charges of a key of this set. They count in two windows of its quota.
    pub(super) fn record_uncounted(&self, quota: SlidingWindow, now: Nanos) {
        let until = now.saturating_add(quota.rate().period().saturating_mul(2)).get();
        if self.uncounted_until.load(Ordering::Acquire) < until {
            self.uncounted_until.fetch_max(until, Ordering::AcqRel);
        }
    }

    /// Whether a key of this set may have sent units that no cell counts and that are still in the window.
    pub(super) fn has_uncounted(&self, now: Nanos) -> bool {
        now.get() < self.uncounted_until.load(Ordering::Acquire)
    }
}

impl Ways {
    /// The cell of a key.
    pub(super) fn find(&mut self, spot: Spot) -> Option<&mut ConfirmCell> {
        let tagged = self.tags.iter().zip(&mut self.cells).filter(|(tag, _)| **tag == spot.tag);
        tagged.map(|(_, cell)| cell).find(|cell| cell.key() == spot.key)
    }

    /// Judges and charges the cell of a key, if it has one. The cell then has the number that its limit has now: a limit that was
    /// removed and comes back has another one.
    pub(super) fn spend(&mut self, attempt: &ChargeAttempt) -> Option<Verdict> {
        let Spot { tag, key, .. } = attempt.spot;
        let is_its = |way: &usize| self.tags[*way] == tag && self.cells[*way].key() == key;
        let way = (0..WAYS).find(is_its)?;
        self.limits[way] = attempt.limit;
        Some(self.cells[way].spend(attempt))
    }

    /// An unused cell, or else one that went idle.
    pub(super) fn vacancy(&self, now: Nanos) -> Option<usize> {
        let unused = self.tags.iter().position(|tag| *tag == UNUSED);
        unused.or_else(|| self.cells.iter().position(|cell| cell.is_idle(now)))
    }

    /// A cell that is not in use.
    #[cfg(feature = "bin")]
    pub(super) fn unused(&self) -> Option<usize> {
        self.tags.iter().position(|tag| *tag == UNUSED)
    }

    /// The cells in use, each with the number of its limit.
    pub(super) fn used(&self) -> impl Iterator<Item = (u8, &ConfirmCell)> {
        let used = (0..WAYS).filter(|way| self.tags[*way] != UNUSED);
        used.map(|way| (self.limits[way], &self.cells[way]))
    }

    /// The cells in use, to be changed.
    pub(super) fn used_mut(&mut self) -> impl Iterator<Item = &mut ConfirmCell> {
        let cells = self.tags.iter().zip(&mut self.cells);
        cells.filter(|(tag, _)| **tag != UNUSED).map(|(_, cell)| cell)
    }

    /// Converts the cells of a limit that have windows of the length `from`.
    pub(super) fn convert(&mut self, limit: u8, from: Nanos, quota: SlidingWindow, now: Nanos) {
        for way in (0..WAYS).filter(|way| self.tags[*way] != UNUSED) {
            let cell = &mut self.cells[way];
            let period = cell.quota().map(|quota| quota.rate().period());
            if self.limits[way] == limit && period == Some(from) {
                cell.convert_to(quota, now);
            }
        }
    }

    /// The keys of the cells.
    pub(super) fn keys(&self) -> [KeyHash; WAYS] {
        self.cells.map(|cell| cell.key())
    }

    /// The cells in use that the limit of this number has.
    pub(super) fn cells_of(&self, limit: u8) -> impl Iterator<Item = &ConfirmCell> {
        let used = (0..WAYS).filter(move |way| self.tags[*way] != UNUSED);
        used.filter(move |way| self.limits[*way] == limit).map(|way| &self.cells[way])
    }

    /// The cell of the smallest rank.
    pub(super) fn smallest(&self, now: Nanos) -> RankedWay {
        let ranks = self.cells.iter().map(|cell| cell.rank(now)).enumerate();
        let ranked = ranks.map(|(way, rank)| RankedWay { way, rank });
        ranked.min_by_key(|ranked| ranked.rank).unwrap_or_default()
    }

    /// Takes a cell out, if it is in use.
    pub(super) fn take(&mut self, way: usize) -> Option<TaggedCell> {
        self.replace(way, TaggedCell { tag: UNUSED, limit: 0, cell: ConfirmCell::default() })
    }

    /// Puts a cell in, and returns the cell that was there, if it was in use.
    pub(super) fn replace(&mut self, way: usize, new: TaggedCell) -> Option<TaggedCell> {
        let tag = std::mem::replace(&mut self.tags[way], new.tag);
        let limit = std::mem::replace(&mut self.limits[way], new.limit);
        let cell = std::mem::replace(&mut self.cells[way], new.cell);
        (tag != UNUSED).then_some(TaggedCell { tag, limit, cell })
    }

    /// Frees a cell that went idle, and returns its key.
    pub(super) fn free_idle(&mut self, way: usize, now: Nanos) -> Option<KeyHash> {
        if self.tags[way] == UNUSED || !self.cells[way].is_idle(now) {
            return None;
        }
        self.take(way).map(|taken| taken.cell.key())
    }
}
