//! The batcher: callers hand it charges, and it sends those that are ready together.
//!
//! This is what callers, the worker (`worker.rs`) and the tasks of calls (`call_task.rs`) share. It knows how many
//! charges are unfinished, and nothing of limits or servers. The time in the queue counts against the deadline of a
//! charge: one that misses it before it is sent is withdrawn and not charged. A call has the whole timeout of the store
//! from when it is sent, so that a charge that had to wait does not count against a healthy server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::batch::EndedCall;
use super::cell_name::CellName;
use super::charge::StoreCharge;
use super::failure::StoreFailure;
use super::metrics::StoreMetrics;
use super::pending::{ChargeFuture, ChargeResult, PendingCharge};
use super::queue::QueueContext;
use super::transport::{Readiness, StoreTransport};
use super::unreported::UnreportedUsage;
use super::usage_progress::Refunds;
use super::worker::Worker;
use crate::clock::{Clock, Nanos};

/// Maximum charges that wait or are away: more than a store settles within any sensible timeout. More would only wait
/// to be withdrawn.
const MAX_UNFINISHED: usize = 65_536;

/// How long a refund or a debit may wait in the queue. It is longer than for a decision, because no request waits
/// for it, and a late one is still correct.
pub(super) const UNATTENDED_TIMEOUT: Nanos = Nanos::SECOND;

/// What callers, the worker and the tasks of calls share.
pub(super) struct Batcher {
    pub(super) transport: Arc<dyn StoreTransport>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: StoreMetrics,
    pub(super) unreported: UnreportedUsage,
    pub(super) prefix: String,
    pub(super) timeout: Duration,
    /// [`StoreTransport::has_slots`], which does not change.
    pub(super) has_slots: bool,
    inbox: Mutex<Vec<WorkerEvent>>,
    wake: Notify,
    /// Charges that wait or are away.
    unfinished: AtomicUsize,
    closed: AtomicBool,
    next_call: AtomicU32,
}

/// What the worker has to do.
pub(super) enum WorkerEvent {
    Queue(Arc<PendingCharge>),
    CallEnded(EndedCall),
}

impl Batcher {
    /// Starts the worker on the current runtime. It ends after [`Batcher::close`].
    pub(super) fn start(
        transport: Arc<dyn StoreTransport>,
        prefix: String,
        timeout: Duration,
        clock: Arc<dyn Clock>,
        first_call: u32,
    ) -> Arc<Self> {
        let batcher = Arc::new(Self {
            has_slots: transport.has_slots(),
            transport,
            clock,
            metrics: StoreMetrics::default(),
            unreported: UnreportedUsage::default(),
            prefix,
            timeout,
            inbox: Mutex::default(),
            wake: Notify::new(),
            unfinished: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            next_call: AtomicU32::new(first_call),
        });
        tokio::spawn(Worker::new(Arc::clone(&batcher)).run());
        batcher
    }

    /// Ends the worker once no charge is unfinished.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The slot of a cell; 0 where there are none.
    pub(super) fn slot(&self, cell: CellName) -> u16 {
        if self.has_slots { cell.slot(&self.prefix) } else { 0 }
    }

    /// Whether no charge waits or is away.
    pub(super) fn is_quiet(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) == 0
    }

    /// Queues a charge that its caller waits for.
    pub(super) fn submit(
        &self,
        charge: StoreCharge,
        deadline: Nanos,
    ) -> Result<ChargeFuture, StoreFailure> {
        self.count_submitted(&charge)?;
        let pending = PendingCharge::new(charge, deadline, true);
        self.push_event(WorkerEvent::Queue(Arc::clone(&pending)));
        Ok(ChargeFuture(pending))
    }

    /// Queues a charge without a caller. If it is certainly not executed, it is sent again later.
    pub(super) fn submit_unattended(&self, charge: StoreCharge, deadline: Nanos) {
        if self.count_submitted(&charge).is_err() {
            self.unreported.record_correction(charge, self.clock.now(), &self.metrics);
            return;
        }
        self.push_event(WorkerEvent::Queue(PendingCharge::new(charge, deadline, false)));
    }

    /// Queues refunds of usage that was reported.
    pub(super) fn send_refunds(&self, refunds: Refunds) {
        let deadline = self.clock.now().mono.saturating_add(UNATTENDED_TIMEOUT);
        for refund in refunds {
            self.submit_unattended(refund, deadline);
        }
    }

    /// Counts a charge as unfinished, or says why it cannot be queued.
    fn count_submitted(&self, charge: &StoreCharge) -> Result<(), StoreFailure> {
        let outermost = charge.outermost_cell().ok_or(StoreFailure::Refused)?;
        if self.transport.readiness(self.slot(outermost)) == Readiness::Away {
            return Err(StoreFailure::Unreachable);
        }
        if self.unfinished.fetch_add(1, Ordering::AcqRel) >= MAX_UNFINISHED {
            self.count_finished(1);
            return Err(StoreFailure::QueueFull);
        }
        Ok(())
    }

    pub(super) fn count_finished(&self, charges: usize) {
        self.unfinished.fetch_sub(charges, Ordering::AcqRel);
    }

    /// The number of the next call.
    pub(super) fn take_call_number(&self) -> u32 {
        self.next_call.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn push_event(&self, event: WorkerEvent) {
        let mut inbox = self.inbox.lock();
        let was_empty = inbox.is_empty();
        inbox.push(event);
        drop(inbox);
        if was_empty {
            self.wake.notify_one();
        }
    }

    /// Swaps the events that have arrived for an empty list.
    pub(super) fn swap_events(&self, events: &mut Vec<WorkerEvent>) {
        std::mem::swap(events, &mut *self.inbox.lock());
    }

    /// Returns when events have arrived or the batcher was closed.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Gives a charge its result. One without a caller that was certainly not executed is reported later.
    pub(super) fn settle(&self, pending: &PendingCharge, result: ChargeResult) {
        let may_be_executed = match &result {
            Ok(_) => true,
            Err(failure) => failure.may_have_charged(),
        };
        if pending.settle(result) && !pending.attended && !may_be_executed {
            let charge = pending.charge.clone();
            self.unreported.record_correction(charge, self.clock.now(), &self.metrics);
        }
    }
}

impl QueueContext for Batcher {
    fn readiness(&self, slot: u16) -> Readiness {
        self.transport.readiness(slot)
    }

    fn fail_unsent(&self, pending: &PendingCharge, failure: StoreFailure) {
        self.count_finished(1);
        self.settle(pending, Err(failure));
    }
}
