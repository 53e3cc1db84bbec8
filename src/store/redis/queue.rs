//! The queue of pending charges, by cell; and how the next batch is taken from it.
//!
//! A cell that has no call away is ready at once: a lone caller never waits. Charges on a cell that
//! has a call away wait and share the next one, unless they fill a call, or have waited for the
//! linger time: a far store must not serialize a hot cell. Ready cells are served in the order in
//! which they became ready, and one that still has charges goes to the end.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::call::{Call, MAX_CHARGES, NotAdded};
use super::failure::StoreFailure;
use super::pending::Pending;
use super::transport::Readiness;
use crate::clock::Nanos;
use crate::policy::KeyHash;

/// Pending charges of one cell at most: more than a store settles within any sensible timeout, so
/// what is above would only wait to be withdrawn.
pub(super) const MAX_PENDING_PER_CELL: usize = 16_384;

/// How many charges of a cell are looked at for one batch: some may belong into another call.
const MAX_SCANNED: usize = 256;

/// How many cells may be passed over for one batch, because their charges belong into another call.
const MAX_PASSED_OVER: usize = 64;

/// Between two searches for charges whose deadline has passed: each visits the whole queue.
const SEARCH_EVERY: Nanos = Nanos::from_millis(1);

/// A cell by its name: the key, and the family that it lies with. (While a reload changes the
/// family, a key has two cells, in two slots.) Of a charge it is the outermost part's.
pub(super) type CellName = (KeyHash, Option<KeyHash>);

/// Pending charges.
pub(super) struct Queue {
    names: HashMap<CellName, usize>,
    cells: Vec<Cell>,
    free: Vec<usize>,
    /// Cells that may be served, in order.
    ready: VecDeque<usize>,
    /// Ready cells whose server is being connected to.
    held: VecDeque<usize>,
    /// When cells become ready that wait for their call, in order; with the stamp of the wait.
    lingering: VecDeque<(Nanos, usize, u64)>,
    linger: Nanos,
    stamps: u64,
    /// No deadline of a pending charge is earlier.
    next_deadline: Option<Nanos>,
    len: usize,
}

#[derive(Default)]
struct Cell {
    name: CellName,
    slot: u16,
    waiting: VecDeque<Entry>,
    calls_away: usize,
    /// Whether it stands in `ready` or in `held`.
    listed: bool,
    stamp: u64,
}

struct Entry {
    deadline: Nanos,
    /// It shares no call: another one of its last call named a cell that cannot be read.
    alone: bool,
    pending: Arc<Pending>,
}

/// Charges that go out as one call. The call is built of exactly these, in this order.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) call: Call,
    pub(super) pending: Vec<Arc<Pending>>,
    pub(super) slot: u16,
    /// The cells that have this call away.
    pub(super) cells: SmallVec<[usize; 4]>,
    alone: bool,
}

/// What the queue is told and tells while a batch is taken.
pub(super) trait Surroundings {
    /// Whether the server of a slot would take a call now.
    fn readiness(&self, slot: u16) -> Readiness;
    /// A charge leaves the queue without having been sent.
    fn unsent(&self, pending: &Pending, failure: StoreFailure);
}

impl Queue {
    /// `linger`: how long a charge waits for the call that is away on its cell.
    pub(super) fn new(linger: Nanos) -> Self {
        Self {
            names: HashMap::new(),
            cells: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            held: VecDeque::new(),
            lingering: VecDeque::new(),
            linger,
            stamps: 0,
            next_deadline: None,
            len: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a charge at the end of its cell's line. `slot`: of the cell.
    pub(super) fn push(
        &mut self,
        pending: Arc<Pending>,
        name: CellName,
        slot: impl FnOnce() -> u16,
        now: Nanos,
        surroundings: &impl Surroundings,
    ) {
        let index = self.index_of(name, slot);
        let cell = &mut self.cells[index];
        if cell.waiting.len() >= MAX_PENDING_PER_CELL {
            surroundings.unsent(&pending, StoreFailure::QueueFull);
            return;
        }
        let deadline = pending.deadline;
        cell.waiting.push_back(Entry { deadline, alone: false, pending });
        self.len += 1;
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
        self.arrange(index, now);
    }

    fn index_of(&mut self, name: CellName, slot: impl FnOnce() -> u16) -> usize {
        if let Some(index) = self.names.get(&name) {
            return *index;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.cells.push(Cell::default());
            self.cells.len() - 1
        });
        (self.cells[index].name, self.cells[index].slot) = (name, slot());
        self.names.insert(name, index);
        index
    }

    /// Lists a cell that is ready, begins the linger time of one that has to wait, forgets one that
    /// is idle.
    fn arrange(&mut self, index: usize, now: Nanos) {
        let cell = &mut self.cells[index];
        if cell.listed {
            return;
        }
        if cell.waiting.is_empty() {
            cell.stamp = 0;
            if cell.calls_away == 0 && self.names.remove(&cell.name).is_some() {
                self.free.push(index);
            }
        } else if cell.calls_away == 0 || cell.waiting.len() >= MAX_CHARGES {
            cell.listed = true;
            cell.stamp = 0;
            self.ready.push_back(index);
        } else if cell.stamp == 0 {
            self.stamps += 1;
            cell.stamp = self.stamps;
            self.lingering.push_back((now.saturating_add(self.linger), index, self.stamps));
        }
    }

    /// When [`Queue::on_time`] has something to do, at the earliest.
    pub(super) fn next_time(&self) -> Option<Nanos> {
        let lingering = self.lingering.front().map(|(at, ..)| *at);
        lingering.into_iter().chain(self.next_deadline).min()
    }

    /// Cells become ready that have waited for long enough; charges are withdrawn whose deadline has
    /// passed.
    pub(super) fn on_time(&mut self, now: Nanos, surroundings: &impl Surroundings) {
        while let Some((at, index, stamp)) = self.lingering.front().copied()
            && at <= now
        {
            self.lingering.pop_front();
            let cell = &mut self.cells[index];
            if cell.stamp == stamp && !cell.listed {
                cell.listed = true;
                cell.stamp = 0;
                self.ready.push_back(index);
            }
        }
        if self.next_deadline.is_some_and(|next| next <= now) {
            self.withdraw_late(now, surroundings);
        }
    }

    fn withdraw_late(&mut self, now: Nanos, surroundings: &impl Surroundings) {
        let mut next: Option<Nanos> = None;
        for index in 0..self.cells.len() {
            let cell = &mut self.cells[index];
            if cell.waiting.is_empty() {
                continue;
            }
            let before = cell.waiting.len();
            cell.waiting.retain(|entry| {
                let late = entry.deadline <= now;
                if late {
                    surroundings.unsent(&entry.pending, StoreFailure::Withdrawn);
                } else {
                    next = Some(next.map_or(entry.deadline, |next| next.min(entry.deadline)));
                }
                !late
            });
            self.len -= before - cell.waiting.len();
            self.arrange(index, now);
        }
        self.next_deadline = next.map(|next| next.max(now.saturating_add(SEARCH_EVERY)));
    }

    /// The readiness of servers may have changed.
    pub(super) fn on_changed(&mut self, now: Nanos, surroundings: &impl Surroundings) {
        while let Some(index) = self.held.pop_back() {
            self.ready.push_front(index);
        }
        for index in 0..self.cells.len() {
            let cell = &self.cells[index];
            if !cell.waiting.is_empty() && surroundings.readiness(cell.slot) == Readiness::Away {
                self.fail_all(index, surroundings);
                self.arrange(index, now);
            }
        }
    }

    fn fail_all(&mut self, index: usize, surroundings: &impl Surroundings) {
        for entry in self.cells[index].waiting.drain(..) {
            self.len -= 1;
            surroundings.unsent(&entry.pending, StoreFailure::Unreachable);
        }
    }

    /// The next call's charges, if some may go.
    pub(super) fn next_batch(
        &mut self,
        now: Nanos,
        surroundings: &impl Surroundings,
    ) -> Option<Batch> {
        let mut batch = Batch::default();
        let mut passed_over: SmallVec<[usize; 8]> = SmallVec::new();
        let mut full = false;
        while !full && passed_over.len() < MAX_PASSED_OVER {
            let Some(index) = self.ready.front().copied() else {
                break;
            };
            let slot = self.cells[index].slot;
            if !batch.pending.is_empty() && slot != batch.slot {
                break;
            }
            self.ready.pop_front();
            match surroundings.readiness(slot) {
                Readiness::Ready => {}
                Readiness::Reconnecting => {
                    self.held.push_back(index);
                    continue;
                }
                Readiness::Away => self.fail_all(index, surroundings),
            }
            batch.slot = slot;
            let before = batch.pending.len();
            full = self.fill(index, &mut batch, now, surroundings);
            let cell = &mut self.cells[index];
            if batch.pending.len() > before {
                cell.calls_away += 1;
                batch.cells.push(index);
            } else if !cell.waiting.is_empty() {
                // It keeps its position.
                passed_over.push(index);
                continue;
            }
            cell.listed = false;
            self.arrange(index, now);
        }
        for index in passed_over.into_iter().rev() {
            self.ready.push_front(index);
        }
        (!batch.pending.is_empty()).then_some(batch)
    }

    /// Moves charges of a cell into a batch; what the call does not take stays at its position.
    /// Returns whether the batch is full.
    fn fill(
        &mut self,
        index: usize,
        batch: &mut Batch,
        now: Nanos,
        surroundings: &impl Surroundings,
    ) -> bool {
        let cell = &mut self.cells[index];
        let mut kept: SmallVec<[Entry; 8]> = SmallVec::new();
        let mut full = false;
        let before = cell.waiting.len();
        let mut left = before.min(MAX_SCANNED);
        while !full && left > 0 {
            left -= 1;
            let Some(entry) = cell.waiting.pop_front() else {
                break;
            };
            if entry.deadline <= now {
                surroundings.unsent(&entry.pending, StoreFailure::Withdrawn);
                continue;
            }
            match batch.add(&entry) {
                Added::Taken => full = batch.is_full(),
                Added::Left => surroundings.unsent(&entry.pending, StoreFailure::Withdrawn),
                Added::TooLarge => surroundings.unsent(&entry.pending, StoreFailure::Refused),
                Added::Kept { call_is_full } => {
                    full = call_is_full;
                    kept.push(entry);
                }
            }
        }
        for entry in kept.into_iter().rev() {
            cell.waiting.push_front(entry);
        }
        self.len -= before - cell.waiting.len();
        full
    }

    /// A call has ended; `returned` are charges of it that were certainly not executed and go back to
    /// their position, in order. `alone`: each of them is to be sent by itself.
    pub(super) fn on_done(
        &mut self,
        cells: &[usize],
        returned: Vec<Arc<Pending>>,
        alone: bool,
        now: Nanos,
        surroundings: &impl Surroundings,
    ) {
        for pending in returned.into_iter().rev() {
            let index = name_of(&pending).and_then(|name| self.names.get(&name).copied());
            match index {
                Some(index) if pending.unclaim() => {
                    let deadline = pending.deadline;
                    let next = self.next_deadline.map_or(deadline, |next| next.min(deadline));
                    self.next_deadline = Some(next);
                    self.cells[index].waiting.push_front(Entry { deadline, alone, pending });
                    self.len += 1;
                }
                Some(_) | None => surroundings.unsent(&pending, StoreFailure::Withdrawn),
            }
        }
        for index in cells.iter().copied() {
            self.cells[index].calls_away = self.cells[index].calls_away.saturating_sub(1);
            self.arrange(index, now);
        }
    }
}

/// The cell in whose line a charge waits.
pub(super) fn name_of(pending: &Pending) -> Option<CellName> {
    pending.charge.cell_charges.first().map(|outermost| (outermost.key, outermost.family))
}

/// What a batch does with a charge.
enum Added {
    Taken,
    /// Its caller has left.
    Left,
    /// Not even an empty call takes it.
    TooLarge,
    Kept {
        call_is_full: bool,
    },
}

impl Batch {
    fn add(&mut self, entry: &Entry) -> Added {
        if self.alone || (entry.alone && !self.pending.is_empty()) {
            return Added::Kept { call_is_full: self.alone };
        }
        if !entry.pending.claim() {
            return Added::Left;
        }
        match self.call.add(&entry.pending.charge) {
            Ok(()) => {
                self.alone = entry.alone;
                self.pending.push(Arc::clone(&entry.pending));
                Added::Taken
            }
            Err(_) if self.pending.is_empty() => Added::TooLarge,
            Err(_) if !entry.pending.unclaim() => Added::Left,
            Err(why) => Added::Kept { call_is_full: why == NotAdded::Full },
        }
    }

    fn is_full(&self) -> bool {
        self.alone || self.pending.len() >= MAX_CHARGES
    }
}
