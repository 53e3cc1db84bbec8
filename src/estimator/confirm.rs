//! The confirm table: exact counts for the few keys that are suspected of having reached a limit.
//!
//! One per process, set-associative. A newcomer to a full set replaces the smallest cell and
//! inherits its count as *uncertainty* (the Space-Saving rule of Metwally, Agrawal and El Abbadi,
//! 2005): what the newcomer may have sent before, unseen, is at most that. A key is denied only on
//! what it certainly sent, so nobody is denied for what others sent; and it can exceed its limit
//! by at most its uncertainty. What it sent before it became a suspect is uncertain too.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use prefetch_index::prefetch_index;

use crate::clock::{Nanos, Now};
use crate::limit::{SlidingWindow, Verdict, WindowPair};
use crate::policy::KeyHash;

/// Cells of the table: 4 MiB.
pub const CONFIRM_CELLS: usize = 65_536;

/// Cells of a set: as many as are compared for one key.
const WAYS: usize = 8;

/// Sets that one turn of the housekeeping looks at: the whole table in about a second.
const SWEEP_SETS: usize = CONFIRM_CELLS / WAYS / 8;

/// The table.
#[derive(Debug)]
pub struct ConfirmTable {
    sets: Box<[Set]>,
    /// Cells in use. Errs on the high side: one that went idle counts until it is swept.
    live: AtomicUsize,
    /// Where the next sweep begins.
    broom: AtomicUsize,
}

/// What is looked at for one key. Begins a line of the processor's cache, so that the lock and the
/// tags are one: most keys are no suspects, and are known to be absent by that line alone.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set {
    ways: Mutex<Ways>,
}

const _: () = assert!(size_of::<Set>() == 512);

/// (Laid out as it is written: the tags stand before the cells.)
#[derive(Debug, Default)]
#[repr(C)]
struct Ways {
    /// Of each cell; [`UNUSED`] where there is none.
    tags: [u32; WAYS],
    cells: [ConfirmCell; WAYS],
}

/// The tag of a cell that nobody uses.
const UNUSED: u32 = 0;

/// One key under one limit. Unused without a quota.
#[derive(Clone, Copy, Debug, Default)]
struct ConfirmCell {
    key: KeyHash,
    quota: Option<SlidingWindow>,
    /// What the key certainly sent since it is here.
    counted: WindowPair,
    /// What it may have sent before, at most.
    inherited: WindowPair,
}

/// What became of a charge.
pub(super) struct Charged {
    pub(super) verdict: Verdict,
    /// The uncertainty that a newcomer was given.
    pub(super) inherited: Option<u32>,
}

impl Default for ConfirmTable {
    fn default() -> Self {
        Self::new(CONFIRM_CELLS)
    }
}

impl ConfirmTable {
    /// A table of at least `cells` cells.
    pub fn new(cells: usize) -> Self {
        let sets = cells.div_ceil(WAYS).next_power_of_two();
        Self {
            sets: (0..sets).map(|_| Set::default()).collect(),
            live: AtomicUsize::new(0),
            broom: AtomicUsize::new(0),
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

    /// The sum in the sketch at which a key is watched: 1 while at least half of the table is
    /// free, 2 while a quarter is, 4 while an eighth is, and so on.
    pub fn threshold(&self) -> u64 {
        let cells = self.sets.len() * WAYS;
        let free = cells.saturating_sub(self.live_cells()).max(1);
        cells.div_ceil(2 * free).next_power_of_two() as u64
    }

    /// Asks the processor for what a key is looked for in, while something else is done.
    pub(super) fn prefetch(&self, key: KeyHash) {
        prefetch_index(&self.sets, self.place(key));
    }

    /// Judges, and charges when allowed. A key without a cell gets one if it is a suspect:
    /// `unseen` is then what it may have sent before without being watched.
    pub(super) fn charge(
        &self,
        key: KeyHash,
        quota: SlidingWindow,
        cost: u32,
        unseen: Option<u32>,
        now: Nanos,
    ) -> Charged {
        let mut ways = self.ways(key).lock();
        let mut inherited = None;
        let cell = match (ways.find(key), unseen) {
            (Some(cell), _) => cell,
            (None, Some(unseen)) => {
                let (cell, uncertain) = self.admit(&mut ways, key, quota, unseen, now);
                inherited = Some(uncertain);
                cell
            }
            (None, None) => {
                let verdict = quota.judge(WindowPair::default(), cost, now);
                return Charged { verdict, inherited };
            }
        };
        cell.read_as(quota, now);
        let verdict = quota.judge(cell.counted, cost, now);
        if verdict.allowed {
            quota.charge(&mut cell.counted, cost, now);
        }
        Charged { verdict, inherited }
    }

    /// Where a key stands.
    pub(super) fn judge(&self, key: KeyHash, quota: SlidingWindow, now: Nanos) -> Verdict {
        let mut ways = self.ways(key).lock();
        let counted = ways.find(key).map(|cell| {
            cell.read_as(quota, now);
            cell.counted
        });
        quota.judge(counted.unwrap_or_default(), 0, now)
    }

    /// Takes back what was charged at `charged`, if the key is still here.
    pub(super) fn give_back(&self, key: KeyHash, cost: u32, charged: Nanos) {
        let mut ways = self.ways(key).lock();
        if let Some(cell) = ways.find(key)
            && let Some(quota) = cell.quota
        {
            quota.give_back(&mut cell.counted, cost, charged);
        }
    }

    /// Frees cells that went idle, in the next part of the table.
    pub fn sweep(&self, now: Now) {
        for _ in 0..SWEEP_SETS.min(self.sets.len()) {
            let place = self.broom.fetch_add(1, Ordering::Relaxed) % self.sets.len();
            let mut ways = self.sets[place].ways.lock();
            let Ways { tags, cells } = &mut *ways;
            for (tag, cell) in tags.iter_mut().zip(cells).filter(|(tag, _)| **tag != UNUSED) {
                if cell.is_idle(now.wall) {
                    (*tag, *cell) = (UNUSED, ConfirmCell::default());
                    self.live.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Gives a newcomer a cell: an unused one, an idle one, or the smallest.
    fn admit<'s>(
        &self,
        ways: &'s mut Ways,
        key: KeyHash,
        quota: SlidingWindow,
        unseen: u32,
        now: Nanos,
    ) -> (&'s mut ConfirmCell, u32) {
        let mut smallest = 0;
        let mut least = u32::MAX;
        for (place, (tag, cell)) in ways.tags.iter().zip(&ways.cells).enumerate() {
            if *tag == UNUSED {
                self.live.fetch_add(1, Ordering::Relaxed);
                (smallest, least) = (place, 0);
                break;
            }
            let total = cell.total(now);
            if total < least {
                (smallest, least) = (place, total);
            }
        }
        let uncertain = least.max(unseen);
        let mut inherited = WindowPair::default();
        quota.charge(&mut inherited, uncertain, now);
        ways.tags[smallest] = tag(key);
        let cell = &mut ways.cells[smallest];
        *cell = ConfirmCell { key, quota: Some(quota), counted: WindowPair::default(), inherited };
        (cell, uncertain)
    }

    fn ways(&self, key: KeyHash) -> &Mutex<Ways> {
        &self.sets[self.place(key)].ways
    }

    fn place(&self, key: KeyHash) -> usize {
        // A power of two of sets; the high half is as random as the low one.
        key.high as usize & (self.sets.len() - 1)
    }
}

impl Ways {
    fn find(&mut self, key: KeyHash) -> Option<&mut ConfirmCell> {
        let wanted = tag(key);
        let tagged = self.tags.iter().zip(&mut self.cells).filter(|(tag, _)| **tag == wanted);
        tagged.map(|(_, cell)| cell).find(|cell| cell.key == key)
    }
}

/// What tells the keys of a set apart, but for one pair in two thousand million.
const fn tag(key: KeyHash) -> u32 {
    (key.low >> 32) as u32 | 1
}

impl ConfirmCell {
    /// Makes the cell one of `quota`: after a reload a limit may count otherwise.
    fn read_as(&mut self, quota: SlidingWindow, now: Nanos) {
        match self.quota {
            Some(old) if old != quota => {
                self.counted = quota.convert(&old, self.counted, now);
                self.inherited = quota.convert(&old, self.inherited, now);
                self.quota = Some(quota);
            }
            Some(_) | None => {}
        }
    }

    fn is_idle(&self, now: Nanos) -> bool {
        self.quota.is_none_or(|quota| {
            quota.is_idle(self.counted, now) && quota.is_idle(self.inherited, now)
        })
    }

    /// What the key sent at most, in this window and the one before. Not weighted by age: within a
    /// window it never falls, so neither does the smallest of a set, and a key that comes back to
    /// a set inherits no less than it left with.
    fn total(&self, now: Nanos) -> u32 {
        self.quota.map_or(0, |quota| {
            quota.sum(self.counted, now).saturating_add(quota.sum(self.inherited, now))
        })
    }
}
