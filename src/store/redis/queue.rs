//! The queue of pending charges, by cell, and how the next batch is taken from it.
//!
//! It does not know servers or clocks. It asks its [`QueueContext`] for readiness, and tells it of charges that leave
//! unsent. A cell that has no call away is ready at once, so a lone caller never waits. Charges on a cell
//! that has a call away wait and share the next one, unless they fill a call or have waited for the linger time: a
//! distant store must not serialize a hot cell. Ready cells are served in the order in which they became ready; a cell
//! that still has charges goes to the end. Charges of one cell leave in their order, except those that belong in
//! another call.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::batch::{Batch, BatchOutcome, EndedCall, QueuedCharge};
use super::call::fills_a_call;
use super::cell_name::CellName;
use super::failure::StoreFailure;
use super::pending::PendingCharge;
use super::transport::Readiness;
use crate::clock::Nanos;

/// Maximum pending charges of one cell: more than a store settles within any sensible timeout. More would only wait
/// to be withdrawn.
const MAX_PENDING_PER_CELL: usize = 16_384;

/// Maximum charges of a cell that are considered for one batch; some may belong in another call.
const MAX_SCANNED: usize = 256;

/// Maximum cells that are passed over for one batch, because their charges belong in another call.
const MAX_PASSED_OVER: usize = 64;

/// Minimum time between two searches for charges whose deadline has passed: each visits the whole queue.
const SEARCH_EVERY: Nanos = Nanos::from_millis(1);

/// Pending charges. Cells are named by their index in `cells`.
pub(super) struct Queue {
    cells: Vec<CellQueue>,
    by_name: HashMap<CellName, usize>,
    /// Cells that are not in use.
    free: Vec<usize>,
    /// Cells that may be served, in order.
    ready: VecDeque<usize>,
    /// Ready cells whose server is being reconnected.
    held: VecDeque<usize>,
    /// Cells that wait for their call, in the order in which their linger time ends.
    lingering: VecDeque<Lingering>,
    linger: Nanos,
    last_stamp: u64,
    /// No deadline of a pending charge is earlier.
    next_deadline: Option<Nanos>,
    len: usize,
}

/// The pending charges of one cell.
#[derive(Default)]
struct CellQueue {
    name: CellName,
    slot: u16,
    charges: VecDeque<QueuedCharge>,
    calls_away: usize,
    /// Whether it is in `ready` or in `held`.
    listed: bool,
    /// The stamp of its entry in `lingering`; 0 if none is valid.
    stamp: u64,
}

/// A cell that becomes ready at `until`, if it still has this stamp.
#[derive(Clone, Copy)]
struct Lingering {
    until: Nanos,
    index: usize,
    stamp: u64,
}

/// What surrounds the queue.
pub(super) trait QueueContext {
    /// Whether the server of a slot would take a call now.
    fn readiness(&self, slot: u16) -> Readiness;
    /// Ends a charge that leaves the queue without having been sent.
    fn fail_unsent(&self, pending: &PendingCharge, failure: StoreFailure);
}

impl Queue {
    /// `linger`: how long a charge waits for the call that is away on its cell.
    pub(super) fn new(linger: Nanos) -> Self {
        Self {
            cells: Vec::new(),
            by_name: HashMap::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            held: VecDeque::new(),
            lingering: VecDeque::new(),
            linger,
            last_stamp: 0,
            next_deadline: None,
            len: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a charge to the queue of its outermost cell. `slot` is called for the slot of a cell that is new here.
    pub(super) fn push(
        &mut self,
        pending: Arc<PendingCharge>,
        slot: impl FnOnce(CellName) -> u16,
        now: Nanos,
        context: &impl QueueContext,
    ) {
        let Some(name) = pending.charge.outermost_cell() else {
            context.fail_unsent(&pending, StoreFailure::Refused);
            return;
        };
        let index = self.index_or_insert(name, slot);
        let cell = &mut self.cells[index];
        if cell.charges.len() >= MAX_PENDING_PER_CELL {
            context.fail_unsent(&pending, StoreFailure::QueueFull);
            return;
        }
        let deadline = pending.deadline;
        cell.charges.push_back(QueuedCharge { deadline, isolated: false, pending });
        self.count_added(deadline);
        self.reschedule(index, now);
    }

    /// When [`Queue::on_timer`] has something to do, at the earliest.
    pub(super) fn next_timer(&self) -> Option<Nanos> {
        let lingering = self.lingering.front().map(|lingering| lingering.until);
        lingering.into_iter().chain(self.next_deadline).min()
    }

    /// Makes cells ready whose linger time has ended, and withdraws charges whose deadline has passed.
    pub(super) fn on_timer(&mut self, now: Nanos, context: &impl QueueContext) {
        while let Some(Lingering { until, index, stamp }) = self.lingering.front().copied()
            && until <= now
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
            self.withdraw_late(now, context);
        }
    }

    /// Looks again at cells whose server was not ready.
    pub(super) fn on_readiness_changed(&mut self, now: Nanos, context: &impl QueueContext) {
        while let Some(index) = self.held.pop_back() {
            self.ready.push_front(index);
        }
        for index in 0..self.cells.len() {
            let cell = &self.cells[index];
            if !cell.charges.is_empty() && context.readiness(cell.slot) == Readiness::Away {
                self.fail_all(index, context);
                self.reschedule(index, now);
            }
        }
    }

    /// Takes the charges of the next call; `None` if none can be sent now.
    pub(super) fn next_batch(&mut self, now: Nanos, context: &impl QueueContext) -> Option<Batch> {
        let mut batch = Batch::default();
        let mut passed_over: SmallVec<[usize; 8]> = SmallVec::new();
        while !batch.is_full() && passed_over.len() < MAX_PASSED_OVER {
            let Some(index) = self.ready.front().copied() else {
                break;
            };
            let slot = self.cells[index].slot;
            if !batch.pending.is_empty() && slot != batch.slot {
                break;
            }
            self.ready.pop_front();
            match context.readiness(slot) {
                Readiness::Ready => {}
                Readiness::Reconnecting => {
                    self.held.push_back(index);
                    continue;
                }
                Readiness::Away => self.fail_all(index, context),
            }
            batch.slot = slot;
            let taken_before = batch.pending.len();
            self.fill_batch(&mut batch, index, now, context);
            let cell = &mut self.cells[index];
            if batch.pending.len() > taken_before {
                cell.calls_away += 1;
                batch.cells.push(index);
            } else if !cell.charges.is_empty() {
                // It keeps its position.
                passed_over.push(index);
                continue;
            }
            cell.listed = false;
            self.reschedule(index, now);
        }
        for index in passed_over.into_iter().rev() {
            self.ready.push_front(index);
        }
        (!batch.pending.is_empty()).then_some(batch)
    }

    /// Takes back what a call did not execute, and frees its cells for the next one.
    pub(super) fn on_call_ended(
        &mut self,
        ended: EndedCall,
        now: Nanos,
        context: &impl QueueContext,
    ) {
        for pending in ended.returned.into_iter().rev() {
            let name = pending.charge.outermost_cell();
            let index = name.and_then(|name| self.by_name.get(&name).copied());
            match index {
                Some(index) if pending.unclaim() => {
                    let deadline = pending.deadline;
                    let queued = QueuedCharge { deadline, isolated: ended.isolated, pending };
                    self.cells[index].charges.push_front(queued);
                    self.count_added(deadline);
                }
                Some(_) | None => context.fail_unsent(&pending, StoreFailure::Withdrawn),
            }
        }
        for index in ended.cells {
            self.cells[index].calls_away = self.cells[index].calls_away.saturating_sub(1);
            self.reschedule(index, now);
        }
    }

    fn index_or_insert(&mut self, name: CellName, slot: impl FnOnce(CellName) -> u16) -> usize {
        if let Some(index) = self.by_name.get(&name) {
            return *index;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.cells.push(CellQueue::default());
            self.cells.len() - 1
        });
        (self.cells[index].name, self.cells[index].slot) = (name, slot(name));
        self.by_name.insert(name, index);
        index
    }

    fn count_added(&mut self, deadline: Nanos) {
        self.len += 1;
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
    }

    /// Lists a cell that is ready, starts the linger time of one that has to wait, and frees one that is idle.
    fn reschedule(&mut self, index: usize, now: Nanos) {
        let cell = &mut self.cells[index];
        if cell.listed {
            return;
        }
        if cell.charges.is_empty() {
            cell.stamp = 0;
            if cell.calls_away == 0 && self.by_name.remove(&cell.name).is_some() {
                self.free.push(index);
            }
        } else if cell.calls_away == 0 || fills_a_call(cell.charges.len()) {
            cell.listed = true;
            cell.stamp = 0;
            self.ready.push_back(index);
        } else if cell.stamp == 0 {
            self.last_stamp += 1;
            let stamp = self.last_stamp;
            cell.stamp = stamp;
            let until = now.saturating_add(self.linger);
            self.lingering.push_back(Lingering { until, index, stamp });
        }
    }

    fn withdraw_late(&mut self, now: Nanos, context: &impl QueueContext) {
        let mut next: Option<Nanos> = None;
        for index in 0..self.cells.len() {
            let cell = &mut self.cells[index];
            if cell.charges.is_empty() {
                continue;
            }
            let len_before = cell.charges.len();
            cell.charges.retain(|queued| {
                let is_late = queued.deadline <= now;
                if is_late {
                    context.fail_unsent(&queued.pending, StoreFailure::Withdrawn);
                } else {
                    next = Some(next.map_or(queued.deadline, |next| next.min(queued.deadline)));
                }
                !is_late
            });
            self.len -= len_before - cell.charges.len();
            self.reschedule(index, now);
        }
        self.next_deadline = next.map(|next| next.max(now.saturating_add(SEARCH_EVERY)));
    }

    fn fail_all(&mut self, index: usize, context: &impl QueueContext) {
        for queued in self.cells[index].charges.drain(..) {
            self.len -= 1;
            context.fail_unsent(&queued.pending, StoreFailure::Unreachable);
        }
    }

    /// Moves charges of a cell into a batch. Those that belong in another call keep their position.
    fn fill_batch(
        &mut self,
        batch: &mut Batch,
        index: usize,
        now: Nanos,
        context: &impl QueueContext,
    ) {
        let cell = &mut self.cells[index];
        let mut kept: SmallVec<[QueuedCharge; 8]> = SmallVec::new();
        let len_before = cell.charges.len();
        for _ in 0..len_before.min(MAX_SCANNED) {
            let Some(queued) = cell.charges.pop_front() else {
                break;
            };
            if queued.deadline <= now {
                context.fail_unsent(&queued.pending, StoreFailure::Withdrawn);
                continue;
            }
            match batch.add(&queued) {
                BatchOutcome::Taken => {}
                BatchOutcome::CallerLeft => {
                    context.fail_unsent(&queued.pending, StoreFailure::Withdrawn);
                }
                BatchOutcome::TooLarge => {
                    context.fail_unsent(&queued.pending, StoreFailure::Refused);
                }
                BatchOutcome::Kept => kept.push(queued),
            }
            if batch.is_full() {
                break;
            }
        }
        for queued in kept.into_iter().rev() {
            cell.charges.push_front(queued);
        }
        self.len -= len_before - cell.charges.len();
    }
}
