//! The confirm table: exact counts for the few keys that are suspected of having reached a limit.
//!
//! One per process, set-associative: a key has two sets, which a secret of the process chooses.
//!
//! ```text
//!   key ──► first set: 8 cells ──► found, or no cell of this set's keys is away: done, one line
//!                              └─► second set: 8 cells, with both sets locked
//! ```
//!
//! A key is denied only on what its cell has certainly counted, so nobody is denied for what
//! others sent. A suspect takes an unused cell; when both sets are full, a cell that has room in
//! its other set moves there, with its counts (cuckoo hashing, one step). Only when that fails too
//! does a newcomer displace the smallest cell, if it is more than twice as heavy, and then only
//! with the probability of the randomized admission policy (Ben Basat and others, 2017): heavy
//! keys keep their counts, and equally heavy keys do not displace one another in turns. A newcomer
//! without a cell passes. What it sends then is in the sketch, which never reads too little, and
//! that is how far it can exceed its limit: the caller is told ([`Charged::unseen`]).

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::MutexGuard;
use prefetch_index::prefetch_index;

use super::set::{ConfirmCell, Set, WAYS, Ways, share};
use super::spot::{Placement, Spot};
use crate::clock::{Nanos, Now};
use crate::limit::{SlidingWindow, Verdict, WindowPair};
use crate::policy::KeyHash;

/// Cells of the table: 4 MiB.
pub const CONFIRM_CELLS: usize = 65_536;

/// Fewest sets: a key has two.
const MIN_SETS: usize = 2;

/// Sets that one turn of the housekeeping looks at: the whole table in about a second.
const SWEEP_SETS: usize = CONFIRM_CELLS / WAYS / 8;

/// A newcomer that would displace a cell must be more than this many times as heavy. Two: keys
/// that send at about the same rate keep their places, and one that sends much more gets in.
const HEAVIER: u64 = 2;

/// The share of the cells, one of this many, that must be unused for a move to be tried. In a
/// fuller table the search would nearly always be in vain, and each step of it costs a cache line.
const FREE_TO_MOVE: usize = 64;

/// The table.
#[derive(Debug)]
pub struct ConfirmTable {
    sets: Box<[Set]>,
    placement: Placement,
    /// Cells in use. Errs on the high side: one that went idle counts until it is swept.
    live: AtomicUsize,
    /// Where the next sweep begins.
    cursor: AtomicUsize,
}

/// What a key tries to spend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) spot: Spot,
    pub(super) quota: SlidingWindow,
    pub(super) spending: Spending,
    /// A suspect gets a cell where there is one.
    pub(super) suspect: Option<Suspect>,
    /// Wall time.
    pub(super) now: Nanos,
}

/// How units are spent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spending {
    /// If they fit.
    Charge(u32),
    /// Whether they fit or not.
    Debit(u32),
}

impl Spending {
    /// The units.
    pub(super) const fn cost(self) -> u32 {
        match self {
            Self::Charge(cost) | Self::Debit(cost) => cost,
        }
    }
}

/// What the sketch knows of a suspect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    /// What it sent before at most, in both windows.
    pub(super) sent: u32,
    /// What it can have sent below the threshold at most.
    pub(super) unwatched: u32,
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charged {
    pub(super) verdict: Verdict,
    /// What a suspect may have sent at most that no cell counts, when this may have grown.
    pub(super) unseen: Option<u32>,
}

/// A cell of a set that is locked.
struct Slot<'w> {
    ways: &'w mut Ways,
    set: usize,
    way: usize,
}

/// Both sets of a key, locked.
struct Pair<'t> {
    first: MutexGuard<'t, Ways>,
    second: MutexGuard<'t, Ways>,
}

impl Default for ConfirmTable {
    fn default() -> Self {
        Self::new(CONFIRM_CELLS)
    }
}

impl ConfirmTable {
    /// A table of at least `cells` cells, with a secret of its own.
    pub fn new(cells: usize) -> Self {
        let sets = cells.div_ceil(WAYS).next_power_of_two().max(MIN_SETS);
        Self {
            sets: (0..sets).map(|_| Set::default()).collect(),
            placement: Placement::random(sets),
            live: AtomicUsize::new(0),
            cursor: AtomicUsize::new(0),
        }
    }

    /// Cells in use.
    pub fn live_cells(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Memory of the table.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// The sum in the sketch at which a key is watched: 1 while at least a quarter of the table is
    /// free, 2 while an eighth is, 4 while a sixteenth is, and so on.
    pub fn threshold(&self) -> u64 {
        self.cells().div_ceil(4 * self.free_cells().max(1)).next_power_of_two() as u64
    }

    fn cells(&self) -> usize {
        self.sets.len() * WAYS
    }

    fn free_cells(&self) -> usize {
        self.cells().saturating_sub(self.live_cells())
    }

    /// Where a key may stand. Asks the processor for its first set, while something else is done.
    pub(super) fn locate(&self, key: KeyHash) -> Spot {
        let spot = self.placement.spot(key);
        prefetch_index(&self.sets, spot.first);
        spot
    }

    /// Judges, and charges when allowed. A suspect without a cell gets one if it can.
    pub(super) fn charge(&self, attempt: Attempt) -> Charged {
        let Attempt { spot, quota, spending, suspect, now } = attempt;
        let set = &self.sets[spot.first];
        let mut ways = set.lock();
        if let Some(cell) = ways.find(spot) {
            return Charged { verdict: cell.spend(quota, spending, now), unseen: None };
        }
        if !set.has_away() {
            let Some(suspect) = suspect else {
                return attempt.uncounted();
            };
            if let Some(way) = ways.vacancy(now) {
                let slot = Slot { ways: &mut ways, set: spot.first, way };
                return self.admit(slot, attempt, suspect);
            }
        }
        drop(ways);
        self.charge_in_both(attempt)
    }

    /// Where a key stands.
    pub(super) fn judge(&self, key: KeyHash, quota: SlidingWindow, now: Nanos) -> Verdict {
        self.with_cell(key, |cell| cell.judge(quota, now))
            .unwrap_or_else(|| quota.judge(WindowPair::default(), 0, now))
    }

    /// Takes back what was charged at `charged`, if the key is still here.
    pub(super) fn refund(&self, key: KeyHash, cost: u32, charged: Nanos) {
        self.with_cell(key, |cell| cell.refund(cost, charged));
    }

    /// Frees cells that went idle, in the next part of the table.
    pub fn sweep(&self, now: Now) {
        for _ in 0..SWEEP_SETS.min(self.sets.len()) {
            let index = self.cursor.fetch_add(1, Ordering::Relaxed) % self.sets.len();
            let mut ways = self.sets[index].lock();
            for way in 0..WAYS {
                if let Some(key) = ways.free_idle(way, now.wall) {
                    self.live.fetch_sub(1, Ordering::Relaxed);
                    self.leave(index, key);
                }
            }
        }
    }

    /// The key was not found in its first set alone, or that is full.
    fn charge_in_both(&self, attempt: Attempt) -> Charged {
        let Attempt { spot, quota, spending, suspect, now } = attempt;
        let mut pair = self.lock_both(spot);
        // The first set was let go meanwhile: another thread may have admitted the key.
        if let Some(cell) = pair.find(spot) {
            return Charged { verdict: cell.spend(quota, spending, now), unseen: None };
        }
        let Some(suspect) = suspect else {
            return attempt.uncounted();
        };
        if let Some(slot) = self.room(&mut pair, spot, now) {
            return self.admit(slot, attempt, suspect);
        }
        self.contend(pair, attempt, suspect)
    }

    /// A cell that is unused or idle in one of the sets, if need be after a move.
    fn room<'p>(&self, pair: &'p mut Pair<'_>, spot: Spot, now: Nanos) -> Option<Slot<'p>> {
        let movable = self.free_cells() > self.cells() / FREE_TO_MOVE;
        let Pair { first, second } = pair;
        if let Some(way) = first.vacancy(now) {
            return Some(Slot { ways: first, set: spot.first, way });
        }
        if let Some(way) = second.vacancy(now) {
            return Some(Slot { ways: second, set: spot.second, way });
        }
        if !movable {
            return None;
        }
        if let Some(way) = self.make_room(first, spot.first, now) {
            return Some(Slot { ways: first, set: spot.first, way });
        }
        let way = self.make_room(second, spot.second, now)?;
        Some(Slot { ways: second, set: spot.second, way })
    }

    /// Moves a cell of `set`, which is full and locked, to the other set of its key. Returns the
    /// way that is free now. Sets that are locked already are passed over: a thread that holds two
    /// never waits for a third.
    fn make_room(&self, ways: &mut Ways, set: usize, now: Nanos) -> Option<usize> {
        for (way, key) in ways.keys().into_iter().enumerate() {
            let spot = self.placement.spot(key);
            let other = if spot.first == set { spot.second } else { spot.first };
            let Some(mut others) = self.sets[other].try_lock() else {
                continue;
            };
            let Some(vacancy) = others.vacancy(now) else {
                continue;
            };
            let (tag, cell) = ways.take(way)?;
            self.live.fetch_sub(1, Ordering::Relaxed);
            self.leave(set, key);
            self.put(Slot { ways: &mut others, set: other, way: vacancy }, spot.first, tag, cell);
            return Some(way);
        }
        None
    }

    /// Both sets are full: the newcomer displaces the smallest cell, or passes without one.
    fn contend(&self, mut pair: Pair<'_>, attempt: Attempt, suspect: Suspect) -> Charged {
        let Attempt { spot, quota, spending, now, .. } = attempt;
        let cost = spending.cost();
        let (way, least) = pair.first.smallest(now);
        let (way_in_second, least_of_second) = pair.second.smallest(now);
        let (slot, least) = if least_of_second < least {
            let way = way_in_second;
            (Slot { ways: &mut pair.second, set: spot.second, way }, least_of_second)
        } else {
            (Slot { ways: &mut pair.first, set: spot.first, way }, least)
        };
        let heaviness = share(suspect.sent.saturating_add(cost), quota);
        let weight = share(cost.min(quota.rate().count()), quota);
        let heavier = heaviness > least.saturating_mul(HEAVIER);
        if heavier && fastrand::u64(..least.saturating_add(weight).max(1)) < weight {
            self.evict(slot.set, slot.ways.take(slot.way), now);
            return self.admit_at(slot, least, attempt, suspect);
        }
        let passed = attempt.uncounted();
        if !passed.verdict.allowed && matches!(spending, Spending::Charge(_)) {
            // The cost alone is more than the limit.
            return passed;
        }
        let unseen = self.unseen(spot, suspect, now).saturating_add(cost);
        self.sets[spot.first].spill(quota, now);
        Charged { unseen: Some(unseen), ..passed }
    }

    /// A key loses what was counted for it in `set`, which is locked.
    fn evict(&self, set: usize, cell: Option<(u32, ConfirmCell)>, now: Nanos) {
        let Some((_, cell)) = cell else {
            return;
        };
        self.live.fetch_sub(1, Ordering::Relaxed);
        if let Some(quota) = cell.quota() {
            // Before the key is no longer away: until then its next charge looks at this set too,
            // and waits for its lock.
            self.sets[self.placement.spot(cell.key()).first].spill(quota, now);
        }
        self.leave(set, cell.key());
    }

    /// Gives a newcomer a cell that is unused or idle, and charges it there.
    fn admit(&self, slot: Slot<'_>, attempt: Attempt, suspect: Suspect) -> Charged {
        self.admit_at(slot, 0, attempt, suspect)
    }

    /// The same, beginning with the rank of the cell that it displaced.
    fn admit_at(&self, slot: Slot<'_>, rank: u64, attempt: Attempt, suspect: Suspect) -> Charged {
        let Attempt { spot, quota, spending, now, .. } = attempt;
        let unseen = self.unseen(spot, suspect, now);
        let mut cell = ConfirmCell::new(spot.key, quota, rank, now);
        let verdict = cell.spend(quota, spending, now);
        self.put(slot, spot.first, spot.tag, cell);
        Charged { verdict, unseen: Some(unseen) }
    }

    /// Puts a cell where none is or an idle one. `first`: the first set of its key.
    fn put(&self, slot: Slot<'_>, first: usize, tag: u32, cell: ConfirmCell) {
        if slot.set != first {
            self.sets[first].goes_away();
        }
        match slot.ways.replace(slot.way, tag, cell) {
            Some(idle) => self.leave(slot.set, idle.key()),
            None => {
                self.live.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A key has lost its cell in `set`, which is locked.
    fn leave(&self, set: usize, key: KeyHash) {
        let first = self.placement.spot(key).first;
        if first != set {
            self.sets[first].left_away();
        }
    }

    /// What a suspect without a cell may have sent before, at most. If in the last two windows no key
    /// with the same first set was displaced or found no cell (two windows of that key's limit), only
    /// what it sent below the threshold.
    fn unseen(&self, spot: Spot, suspect: Suspect, now: Nanos) -> u32 {
        if self.sets[spot.first].has_spilled(now) {
            suspect.sent
        } else {
            suspect.sent.min(suspect.unwatched)
        }
    }

    fn with_cell<T>(&self, key: KeyHash, act: impl FnOnce(&mut ConfirmCell) -> T) -> Option<T> {
        let spot = self.placement.spot(key);
        let set = &self.sets[spot.first];
        let mut ways = set.lock();
        if let Some(cell) = ways.find(spot) {
            return Some(act(cell));
        }
        if !set.has_away() {
            return None;
        }
        drop(ways);
        self.lock_both(spot).find(spot).map(act)
    }

    /// Locks both sets of a key, the lower index first, as every thread does.
    fn lock_both(&self, spot: Spot) -> Pair<'_> {
        if spot.first < spot.second {
            let first = self.sets[spot.first].lock();
            Pair { first, second: self.sets[spot.second].lock() }
        } else {
            let second = self.sets[spot.second].lock();
            Pair { first: self.sets[spot.first].lock(), second }
        }
    }
}

impl Pair<'_> {
    fn find(&mut self, spot: Spot) -> Option<&mut ConfirmCell> {
        self.first.find(spot).or_else(|| self.second.find(spot))
    }
}

impl Attempt {
    /// The verdict of a key without a cell: nothing is certain of it.
    fn uncounted(self) -> Charged {
        let verdict = self.quota.judge(WindowPair::default(), self.spending.cost(), self.now);
        Charged { verdict, unseen: None }
    }
}
