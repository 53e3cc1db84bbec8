//! The confirm table: exact counts for the few keys that are suspected of having reached a limit.
//!
//! There is one per process. It is set-associative: a key may have its cell in one of two sets, which a secret of
//! the process chooses.
//!
//! ```text
//!   key ──► first set: 8 cells ──► found, or no key with this first set is in its second set: done
//!                              └─► second set: 8 cells, with both sets locked
//! ```
//!
//! A key is denied only for what its cell has certainly counted, so no key is denied for what others sent. A
//! suspect takes an unused cell. When both sets are full, a cell that has room in its other set moves there with
//! its counts (cuckoo hashing, one step). If that fails too, the newcomer displaces the smallest cell, provided
//! that it is more than twice as heavy, and then only with the probability of the randomized admission policy (Ben
//! Basat and others, 2017). So heavy keys keep their counts, and equally heavy keys do not displace one another
//! alternately. A newcomer without a cell passes. What it sends then is in the sketch, which never reads too
//! little; that is how far it can exceed its limit, and the caller learns it ([`AttemptResult::uncounted`]).

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::MutexGuard;
use prefetch_index::prefetch_index;

use super::attempt::{AttemptResult, ChargeAttempt, Spending, Suspect};
use super::cell::{ConfirmCell, share};
use super::set::{ConfirmSet, TaggedCell, WAYS, Ways};
use super::shared_clock::SharedClock;
use super::spot::{Spot, SpotHasher};
use crate::clock::{Nanos, Now};
use crate::limit::{SlidingWindow, Verdict, WindowPair};
use crate::policy::KeyHash;

/// Cells of the table: 4 MiB.
pub const CONFIRM_CELLS: usize = 65_536;

/// The fewest sets: a key has two.
const MIN_SETS: usize = 2;

/// Sets per sweep. Housekeeping sweeps the whole table in about a second.
const SWEEP_SETS: usize = CONFIRM_CELLS / WAYS / 8;

/// A newcomer that displaces a cell must be more than this many times as heavy. With two, keys that send at about
/// the same rate keep their cells, and a key that sends much more gets one.
const MIN_WEIGHT_RATIO: u64 = 2;

/// A move is tried only while more than one in this many cells is unused. In a fuller table the search would nearly
/// always fail, and each step of it costs a cache line.
const MOVE_FREE_DIVISOR: usize = 64;

/// The table.
#[derive(Debug)]
pub struct ConfirmTable {
    pub(super) sets: Box<[ConfirmSet]>,
    hasher: SpotHasher,
    /// Cells in use. It may be too high: a cell that went idle counts until it is swept.
    pub(super) live: AtomicUsize,
    /// Where the next sweep begins.
    cursor: AtomicUsize,
    clock: SharedClock,
}

/// A cell of a set that is locked.
struct LockedCell<'w> {
    ways: &'w mut Ways,
    set: usize,
    way: usize,
}

/// Both sets of a key, locked.
struct LockedSets<'t> {
    first: MutexGuard<'t, Ways>,
    second: MutexGuard<'t, Ways>,
}

impl Default for ConfirmTable {
    fn default() -> Self {
        Self::new(CONFIRM_CELLS)
    }
}

impl ConfirmTable {
    /// A table of at least `cells` cells, with a new secret.
    pub fn new(cells: usize) -> Self {
        let sets = cells.div_ceil(WAYS).next_power_of_two().max(MIN_SETS);
        Self {
            sets: (0..sets).map(|_| ConfirmSet::default()).collect(),
            hasher: SpotHasher::random(sets),
            live: AtomicUsize::new(0),
            cursor: AtomicUsize::new(0),
            clock: SharedClock::default(),
        }
    }

    /// Cells in use.
    pub fn live_cells(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Cells in all, used or not.
    pub fn cells(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// The sum in the sketch from which a key is watched: 1 while at least a quarter of the table is free, 2 while
    /// an eighth is, 4 while a sixteenth is, and so on.
    pub fn threshold(&self) -> u64 {
        self.cells().div_ceil(4 * self.free_cells().max(1)).next_power_of_two() as u64
    }

    fn free_cells(&self) -> usize {
        self.cells().saturating_sub(self.live_cells())
    }

    /// Where the cell of a key may be. Prefetches the first set, so that the caller can do other work meanwhile.
    pub(super) fn locate(&self, key: KeyHash) -> Spot {
        let spot = self.hasher.spot(key);
        prefetch_index(&self.sets, spot.first);
        spot
    }

    /// Judges, and charges if allowed. A suspect without a cell gets one if possible.
    pub(super) fn charge(&self, attempt: ChargeAttempt) -> AttemptResult {
        let ChargeAttempt { spot, suspect, at, .. } = attempt;
        let now = at.earliest;
        let set = &self.sets[spot.first];
        let mut ways = set.lock();
        if let Some(verdict) = ways.spend(&attempt) {
            return AttemptResult { verdict, uncounted: None };
        }
        if !set.has_keys_in_second() {
            let Some(suspect) = suspect else {
                return attempt.result_without_cell();
            };
            if let Some(way) = ways.vacancy(now) {
                let vacancy = LockedCell { ways: &mut ways, set: spot.first, way };
                return self.admit(vacancy, 0, attempt, suspect);
            }
        }
        drop(ways);
        self.charge_in_both(attempt)
    }

    /// What a key certainly sent to this node.
    pub(super) fn counted(&self, key: KeyHash, quota: SlidingWindow, now: Nanos) -> WindowPair {
        self.with_cell(key, |cell| cell.counted(quota, now)).unwrap_or_default()
    }

    /// The time by which windows are divided.
    pub const fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// Takes back what was charged at `charged` (wall time), if the key still has a cell.
    pub(super) fn refund(&self, key: KeyHash, cost: u32, charged: Nanos) {
        self.with_cell(key, |cell| cell.refund(cost, charged));
    }

    /// Forgets what a key certainly sent. What the sketch counted of it refuses nobody.
    pub fn reset(&self, key: KeyHash) {
        self.with_cell(key, ConfirmCell::reset);
    }

    /// Forgets what all keys certainly sent. It locks every set in turn.
    pub fn reset_all(&self) {
        for set in &self.sets {
            set.lock().used_mut().for_each(ConfirmCell::reset);
        }
    }

    /// Dates all counts back by at least this time, because the clock of the table has gone back: no unit may count for longer
    /// than it would have. It locks every set in turn.
    pub fn date_back(&self, back: Nanos) {
        if back == Nanos::ZERO {
            return;
        }
        for set in &self.sets {
            set.lock().used_mut().for_each(|cell| cell.date_back(back));
        }
    }

    /// Converts the cells of a limit whose windows had another length before. It locks every set in turn.
    pub(super) fn convert(&self, limit: u8, from: Nanos, quota: SlidingWindow, now: Nanos) {
        for set in &self.sets {
            set.lock().convert(limit, from, quota, now);
        }
    }

    /// Frees cells that went idle, in the next sets of the table.
    pub fn sweep(&self, now: Now) {
        let now = self.clock.read(now).earliest;
        for _ in 0..SWEEP_SETS.min(self.sets.len()) {
            let index = self.cursor.fetch_add(1, Ordering::Relaxed) % self.sets.len();
            let mut ways = self.sets[index].lock();
            for way in 0..WAYS {
                if let Some(key) = ways.free_idle(way, now) {
                    self.live.fetch_sub(1, Ordering::Relaxed);
                    self.record_removal(index, key);
                }
            }
        }
    }

    /// Charges with both sets locked: the key may have its cell in the second set, or the first set is full.
    fn charge_in_both(&self, attempt: ChargeAttempt) -> AttemptResult {
        let ChargeAttempt { spot, suspect, at, .. } = attempt;
        let now = at.earliest;
        let mut sets = self.lock_both(spot);
        // The first set was unlocked for a moment: another thread may have admitted the key.
        if let Some(verdict) = sets.spend(&attempt) {
            return AttemptResult { verdict, uncounted: None };
        }
        let Some(suspect) = suspect else {
            return attempt.result_without_cell();
        };
        if let Some(vacancy) = self.vacancy(&mut sets, spot, now) {
            return self.admit(vacancy, 0, attempt, suspect);
        }
        self.contend(sets, attempt, suspect)
    }

    /// An unused or idle cell in one of the sets, after a move if necessary.
    fn vacancy<'s>(
        &self,
        sets: &'s mut LockedSets<'_>,
        spot: Spot,
        now: Nanos,
    ) -> Option<LockedCell<'s>> {
        let may_move = self.free_cells() > self.cells() / MOVE_FREE_DIVISOR;
        let LockedSets { first, second } = sets;
        if let Some(way) = first.vacancy(now) {
            return Some(LockedCell { ways: first, set: spot.first, way });
        }
        if let Some(way) = second.vacancy(now) {
            return Some(LockedCell { ways: second, set: spot.second, way });
        }
        if !may_move {
            return None;
        }
        if let Some(way) = self.move_to_other_set(first, spot.first, now) {
            return Some(LockedCell { ways: first, set: spot.first, way });
        }
        let way = self.move_to_other_set(second, spot.second, now)?;
        Some(LockedCell { ways: second, set: spot.second, way })
    }

    /// Moves a cell of `set`, which is full and locked, to the other set of its key. Returns the freed way. It skips
    /// sets that are locked: a thread that holds two locks never waits for a third.
    fn move_to_other_set(&self, ways: &mut Ways, set: usize, now: Nanos) -> Option<usize> {
        for (way, key) in ways.keys().into_iter().enumerate() {
            let spot = self.hasher.spot(key);
            let other = if spot.first == set { spot.second } else { spot.first };
            let Some(mut others) = self.sets[other].try_lock() else {
                continue;
            };
            let Some(vacancy) = others.vacancy(now) else {
                continue;
            };
            let moved = ways.take(way)?;
            self.live.fetch_sub(1, Ordering::Relaxed);
            self.record_removal(set, key);
            let target = LockedCell { ways: &mut others, set: other, way: vacancy };
            self.put(target, spot.first, moved);
            return Some(way);
        }
        None
    }

    /// Both sets are full: the newcomer displaces the smallest cell, or passes without one.
    fn contend(
        &self,
        mut sets: LockedSets<'_>,
        attempt: ChargeAttempt,
        suspect: Suspect,
    ) -> AttemptResult {
        let ChargeAttempt { spot, quota, spending, at, .. } = attempt;
        let now = at.earliest;
        let cost = spending.cost();
        let (in_first, in_second) = (sets.first.smallest(now), sets.second.smallest(now));
        let (smallest, rank) = if in_second.rank < in_first.rank {
            let way = in_second.way;
            (LockedCell { ways: &mut sets.second, set: spot.second, way }, in_second.rank)
        } else {
            let way = in_first.way;
            (LockedCell { ways: &mut sets.first, set: spot.first, way }, in_first.rank)
        };
        let heaviness = share(suspect.sent.saturating_add(cost), quota);
        let weight = share(cost.min(quota.rate().count()), quota);
        let is_heavier = heaviness > rank.saturating_mul(MIN_WEIGHT_RATIO);
        if is_heavier && fastrand::u64(..rank.saturating_add(weight).max(1)) < weight {
            self.evict(smallest.set, smallest.ways.take(smallest.way), now);
            return self.admit(smallest, rank, attempt, suspect);
        }
        let passed = attempt.result_without_cell();
        if !passed.verdict.allowed && matches!(spending, Spending::Charge(_)) {
            // The cost alone is larger than the limit.
            return passed;
        }
        let uncounted = self.max_uncounted(spot, suspect, now).saturating_add(cost);
        self.sets[spot.first].record_uncounted(quota, now);
        AttemptResult { uncounted: Some(uncounted), ..passed }
    }

    /// Drops a cell that was taken out of `set`, which is locked: its key loses its count.
    fn evict(&self, set: usize, taken: Option<TaggedCell>, now: Nanos) {
        let Some(TaggedCell { cell, .. }) = taken else {
            return;
        };
        self.live.fetch_sub(1, Ordering::Relaxed);
        if let Some(quota) = cell.quota() {
            // Before the removal is recorded: until then the next charge of this key also searches this set, and
            // waits for its lock.
            self.sets[self.hasher.spot(cell.key()).first].record_uncounted(quota, now);
        }
        self.record_removal(set, cell.key());
    }

    /// Gives a newcomer a cell that is unused, idle or just evicted, and charges it there. `rank`: that of the cell it
    /// displaced, or zero.
    fn admit(
        &self,
        cell: LockedCell<'_>,
        rank: u64,
        attempt: ChargeAttempt,
        suspect: Suspect,
    ) -> AttemptResult {
        let ChargeAttempt { spot, quota, at, .. } = attempt;
        let now = at.earliest;
        let uncounted = self.max_uncounted(spot, suspect, now);
        let mut newcomer = ConfirmCell::new(spot.key, quota, rank, now);
        let verdict = newcomer.spend(&attempt);
        let tagged = TaggedCell { tag: spot.tag, limit: attempt.limit, cell: newcomer };
        self.put(cell, spot.first, tagged);
        AttemptResult { verdict, uncounted: Some(uncounted) }
    }

    /// Puts a cell where there is none or an idle one. `first`: the first set of its key.
    fn put(&self, target: LockedCell<'_>, first: usize, new: TaggedCell) {
        if target.set != first {
            self.sets[first].add_in_second();
        }
        match target.ways.replace(target.way, new) {
            Some(idle) => self.record_removal(target.set, idle.cell.key()),
            None => {
                self.live.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Records that a key has lost its cell in `set`, which is locked.
    fn record_removal(&self, set: usize, key: KeyHash) {
        let first = self.hasher.spot(key).first;
        if first != set {
            self.sets[first].remove_in_second();
        }
    }

    /// The largest number of units that a suspect without a cell may have sent before. Normally this is what a key can
    /// send below the threshold. It is all that the suspect sent if a key with the same first set was displaced or
    /// found no cell within the last two windows of that key's limit: the suspect may be that key.
    fn max_uncounted(&self, spot: Spot, suspect: Suspect, now: Nanos) -> u32 {
        if self.sets[spot.first].has_uncounted(now) {
            suspect.sent
        } else {
            suspect.sent.min(suspect.unwatched)
        }
    }

    fn with_cell<T>(&self, key: KeyHash, act: impl FnOnce(&mut ConfirmCell) -> T) -> Option<T> {
        let spot = self.hasher.spot(key);
        let set = &self.sets[spot.first];
        let mut ways = set.lock();
        if let Some(cell) = ways.find(spot) {
            return Some(act(cell));
        }
        if !set.has_keys_in_second() {
            return None;
        }
        drop(ways);
        self.lock_both(spot).find(spot).map(act)
    }

    /// Locks both sets of a key. Every thread locks the lower index first.
    fn lock_both(&self, spot: Spot) -> LockedSets<'_> {
        if spot.first < spot.second {
            let first = self.sets[spot.first].lock();
            LockedSets { first, second: self.sets[spot.second].lock() }
        } else {
            let second = self.sets[spot.second].lock();
            LockedSets { first: self.sets[spot.first].lock(), second }
        }
    }
}

impl LockedSets<'_> {
    fn find(&mut self, spot: Spot) -> Option<&mut ConfirmCell> {
        self.first.find(spot).or_else(|| self.second.find(spot))
    }

    fn spend(&mut self, attempt: &ChargeAttempt) -> Option<Verdict> {
        self.first.spend(attempt).or_else(|| self.second.spend(attempt))
    }
}
