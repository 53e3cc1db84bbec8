//! A set of the confirm table: eight cells under one lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::confirm::Spending;
use super::spot::Spot;
use crate::clock::Nanos;
use crate::limit::{SlidingWindow, Verdict, WindowPair};
use crate::policy::KeyHash;

/// Cells of a set: as many as are compared for one key.
pub(super) const WAYS: usize = 8;

/// The tag of an unused cell.
const UNUSED: u32 = 0;

/// What is looked at first for one key. Begins a line of the processor's cache, so that the lock,
/// the tags and the two numbers before them are one line: most keys are no suspects, and are known
/// to be absent by that line alone.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Set {
    /// Until when a key whose first set this is may have sent something that no cell counts: one
    /// of them was displaced, or found no cell. Wall time.
    spilled_until: AtomicU64,
    /// Keys that have this as their first set and a cell in their second one.
    away: AtomicU32,
    ways: Mutex<Ways>,
}

const _: () = assert!(size_of::<Set>() == 512);

/// (Laid out as it is written: the tags stand before the cells.)
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Ways {
    /// Of each cell; [`UNUSED`] where there is none.
    tags: [u32; WAYS],
    cells: [ConfirmCell; WAYS],
}

/// One key under one limit. Unused without a quota.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConfirmCell {
    key: KeyHash,
    quota: Option<SlidingWindow>,
    /// What the key certainly sent since it is here.
    counted: WindowPair,
    /// What was refused, and the rank of the cell that the key displaced: only ranks the cell.
    weight: WindowPair,
}

impl Set {
    pub(super) fn lock(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock()
    }

    /// For a thread that already holds two sets, and must not wait for a third.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Ways>> {
        self.ways.try_lock()
    }

    /// Whether a key of this set may have a cell in its second set. Exact while this set is
    /// locked, except that a key which is just being removed there may still count.
    pub(super) fn has_away(&self) -> bool {
        self.away.load(Ordering::Acquire) != 0
    }

    /// A key of this set gets a cell in its second set. Both sets are locked.
    pub(super) fn goes_away(&self) {
        self.away.fetch_add(1, Ordering::AcqRel);
    }

    /// A key of this set has lost its cell in its second set.
    pub(super) fn left_away(&self) {
        self.away.fetch_sub(1, Ordering::AcqRel);
    }

    /// From now on charges of a key of this set are missing from every cell. They count in two
    /// windows of its quota.
    pub(super) fn spill(&self, quota: SlidingWindow, now: Nanos) {
        let until = now.saturating_add(quota.rate().period().saturating_mul(2)).get();
        if self.spilled_until.load(Ordering::Acquire) < until {
            self.spilled_until.fetch_max(until, Ordering::AcqRel);
        }
    }

    /// Whether charges of some key of this set are missing and still count.
    pub(super) fn has_spilled(&self, now: Nanos) -> bool {
        now.get() < self.spilled_until.load(Ordering::Acquire)
    }
}

impl Ways {
    pub(super) fn find(&mut self, spot: Spot) -> Option<&mut ConfirmCell> {
        let tagged = self.tags.iter().zip(&mut self.cells).filter(|(tag, _)| **tag == spot.tag);
        tagged.map(|(_, cell)| cell).find(|cell| cell.key == spot.key)
    }

    /// A cell that is unused, or else one that went idle.
    pub(super) fn vacancy(&self, now: Nanos) -> Option<usize> {
        let unused = self.tags.iter().position(|tag| *tag == UNUSED);
        unused.or_else(|| self.cells.iter().position(|cell| cell.is_idle(now)))
    }

    /// The keys of the cells.
    pub(super) fn keys(&self) -> [KeyHash; WAYS] {
        self.cells.map(|cell| cell.key)
    }

    /// Takes a cell out.
    pub(super) fn take(&mut self, way: usize) -> Option<(u32, ConfirmCell)> {
        let tag = self.tags[way];
        self.replace(way, UNUSED, ConfirmCell::default()).map(|cell| (tag, cell))
    }

    /// The cell of the smallest rank, and that rank.
    pub(super) fn smallest(&self, now: Nanos) -> (usize, u64) {
        let ranks = self.cells.iter().map(|cell| cell.rank(now)).enumerate();
        ranks.min_by_key(|(_, rank)| *rank).unwrap_or((0, 0))
    }

    /// Puts a cell in, and returns the one that was there.
    pub(super) fn replace(
        &mut self,
        way: usize,
        tag: u32,
        cell: ConfirmCell,
    ) -> Option<ConfirmCell> {
        let before = std::mem::replace(&mut self.tags[way], tag);
        let old = std::mem::replace(&mut self.cells[way], cell);
        (before != UNUSED).then_some(old)
    }

    /// Frees a cell that went idle, and returns its key.
    pub(super) fn free_idle(&mut self, way: usize, now: Nanos) -> Option<KeyHash> {
        if self.tags[way] == UNUSED || !self.cells[way].is_idle(now) {
            return None;
        }
        self.take(way).map(|(_, cell)| cell.key)
    }
}

impl ConfirmCell {
    /// A cell that has counted nothing and ranks as `rank` does.
    pub(super) fn new(key: KeyHash, quota: SlidingWindow, rank: u64, now: Nanos) -> Self {
        let mut weight = WindowPair::default();
        quota.charge(&mut weight, units(rank, quota), now);
        Self { key, quota: Some(quota), counted: WindowPair::default(), weight }
    }

    pub(super) const fn key(&self) -> KeyHash {
        self.key
    }

    pub(super) const fn quota(&self) -> Option<SlidingWindow> {
        self.quota
    }

    /// Judges, and spends.
    pub(super) fn spend(
        &mut self,
        quota: SlidingWindow,
        spending: Spending,
        now: Nanos,
    ) -> Verdict {
        self.read_as(quota, now);
        let cost = spending.cost();
        let verdict = quota.judge(self.counted, cost, now);
        if verdict.allowed || matches!(spending, Spending::Debit(_)) {
            quota.charge(&mut self.counted, cost, now);
        } else {
            // A single cost beyond the limit shall not keep a cell for long.
            quota.charge(&mut self.weight, cost.min(quota.rate().count()), now);
        }
        verdict
    }

    /// Where the key stands.
    pub(super) fn judge(&mut self, quota: SlidingWindow, now: Nanos) -> Verdict {
        self.read_as(quota, now);
        quota.judge(self.counted, 0, now)
    }

    /// Takes back what was charged at `charged`.
    pub(super) fn refund(&mut self, cost: u32, charged: Nanos) {
        if let Some(quota) = self.quota {
            quota.refund(&mut self.counted, cost, charged);
        }
    }

    /// Makes the cell one of `quota`: after a reload a limit may count otherwise.
    fn read_as(&mut self, quota: SlidingWindow, now: Nanos) {
        match self.quota {
            Some(old) if old != quota => {
                self.counted = quota.convert(&old, self.counted, now);
                self.weight = quota.convert(&old, self.weight, now);
                self.quota = Some(quota);
            }
            Some(_) | None => {}
        }
    }

    fn is_idle(&self, now: Nanos) -> bool {
        self.quota
            .is_none_or(|quota| quota.is_idle(self.counted, now) && quota.is_idle(self.weight, now))
    }

    /// How heavy the key is, beside the keys of other limits: what it tried to send in this window
    /// and the one before, as a [`share`] of its limit.
    fn rank(&self, now: Nanos) -> u64 {
        self.quota.map_or(0, |quota| {
            let sum = quota.sum(self.counted, now).saturating_add(quota.sum(self.weight, now));
            share(sum, quota)
        })
    }
}

/// Binary digits of a [`share`] after the point: the largest number of units fits under the
/// smallest limit.
const SHARE_BITS: u32 = 32;

/// Units as a share of the limit.
pub(super) fn share(units: u32, quota: SlidingWindow) -> u64 {
    (u64::from(units) << SHARE_BITS) / u64::from(quota.rate().count())
}

/// Units of a share of the limit.
fn units(share: u64, quota: SlidingWindow) -> u32 {
    let units = (u128::from(share) * u128::from(quota.rate().count())) >> SHARE_BITS;
    u32::try_from(units).unwrap_or(u32::MAX)
}
