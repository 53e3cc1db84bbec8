//! The batcher: one worker owns the queue and builds calls of what is ready. Each call has a task
//! (`carry`), which sends it and matches the reply to the charges that the call was built of.
//!
//! Time in the queue counts against a charge's deadline: one that misses it before it is sent is
//! withdrawn, unspent. A call has the whole timeout of the store from when it is sent, so a charge
//! that had to wait blames no healthy server.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::call::{ChargeReply, StoreCharge};
use super::failure::StoreFailure;
use super::metrics::{CallOutcome, StoreMetrics};
use super::pending::{Outcome, Pending, Waiting};
use super::queue::{Batch, Queue, Surroundings, name_of};
use super::slots;
use super::transport::{Readiness, Transport};
use super::unreported::UnreportedUsage;
use crate::clock::{Clock, Nanos};

/// Charges that wait or are away at most: more than a store settles within any sensible timeout, so
/// what is above would only wait to be withdrawn.
const MAX_PENDING: usize = 65_536;

/// Calls that may be away at once to one server: enough that nobody waits for a server that is
/// merely far, few enough that those who wait for a busy one share a call.
const MAX_CALLS_AWAY: usize = 16;

/// The same for all servers of a Cluster. A call is of one slot there and carries less, so more are
/// needed; a server that hangs can hold all of them for one timeout, then it is away.
const MAX_CALLS_AWAY_CLUSTER: usize = 256;

/// What is shared by callers, the worker and the tasks of calls.
pub(super) struct Batcher {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: StoreMetrics,
    pub(super) unreported: UnreportedUsage,
    pub(super) prefix: String,
    pub(super) timeout: Duration,
    /// The same as the transport's, which does not change.
    pub(super) has_slots: bool,
    inbox: Mutex<Vec<Event>>,
    wake: Notify,
    /// Charges that wait or are away.
    unfinished: AtomicUsize,
    closed: AtomicBool,
    next_call: AtomicU32,
}

/// What the worker is told.
enum Event {
    Charge(Arc<Pending>),
    Done(Done),
}

/// A call has ended.
struct Done {
    cells: SmallVec<[usize; 4]>,
    charges: usize,
    returned: Vec<Arc<Pending>>,
    alone: bool,
}

impl Batcher {
    /// Starts the worker, on the runtime that this is called in. It ends after [`Batcher::close`].
    pub(super) fn start(
        transport: Arc<dyn Transport>,
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
        let max_calls = if batcher.has_slots { MAX_CALLS_AWAY_CLUSTER } else { MAX_CALLS_AWAY };
        // As many calls of one cell as may be away follow each other within one timeout.
        let linger = timeout / MAX_CALLS_AWAY as u32;
        let worker = Worker {
            queue: Queue::new(linger.into()),
            calls_away: 0,
            max_calls,
            events: Vec::new(),
            batcher: Arc::clone(&batcher),
        };
        tokio::spawn(worker.run());
        batcher
    }

    /// The worker ends when nothing is pending any more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// The slot of a cell; 0 where there are none.
    pub(super) fn slot(&self, (key, family): super::queue::CellName) -> u16 {
        if self.has_slots { slots::cell_slot(&self.prefix, key, family) } else { 0 }
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
    ) -> Result<Waiting, StoreFailure> {
        self.check(&charge)?;
        let pending = Pending::new(charge, deadline, true);
        self.push(Event::Charge(Arc::clone(&pending)));
        Ok(Waiting(pending))
    }

    /// Queues a charge that nobody waits for. What is certainly not executed is sent again later.
    pub(super) fn submit_unattended(&self, charge: StoreCharge, deadline: Nanos) {
        if self.check(&charge).is_err() {
            self.unreported.record_correction(charge, self.clock.now(), &self.metrics);
            return;
        }
        self.push(Event::Charge(Pending::new(charge, deadline, false)));
    }

    /// Counts a charge that may be queued.
    fn check(&self, charge: &StoreCharge) -> Result<(), StoreFailure> {
        let outermost = charge.cell_charges.first().ok_or(StoreFailure::Refused)?;
        let slot = self.slot((outermost.key, outermost.family));
        if self.transport.readiness(slot) == Readiness::Away {
            return Err(StoreFailure::Unreachable);
        }
        if self.unfinished.fetch_add(1, Ordering::AcqRel) >= MAX_PENDING {
            self.unfinished.fetch_sub(1, Ordering::AcqRel);
            return Err(StoreFailure::QueueFull);
        }
        Ok(())
    }

    fn push(&self, event: Event) {
        let mut inbox = self.inbox.lock();
        let first = inbox.is_empty();
        inbox.push(event);
        drop(inbox);
        if first {
            self.wake.notify_one();
        }
    }

    /// The outcome of a charge.
    fn settle(&self, pending: &Pending, outcome: Outcome) {
        let executed = match &outcome {
            Ok(_) => true,
            Err(failure) => failure.may_have_charged(),
        };
        if !pending.settle(outcome) {
            return;
        }
        if !pending.attended && !executed {
            self.unreported.record_correction(
                pending.charge.clone(),
                self.clock.now(),
                &self.metrics,
            );
        }
    }

    /// Sends a batch and settles its charges.
    async fn carry(self: Arc<Self>, batch: Batch) {
        let Batch { call, pending, slot, cells, .. } = batch;
        let charges = pending.len();
        let done = Done { cells, charges, returned: Vec::new(), alone: false };
        let mut ended = Ended { batcher: &self, pending, done: Some(done) };
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        let arguments = call.arguments(number, &self.prefix, self.has_slots);
        let began = self.clock.now().mono;
        let calling = self.transport.call(slot, &arguments, self.timeout);
        let reply = self.until_replied(calling, &ended.pending, began).await;
        let answers = reply.and_then(|reply| {
            let answers = call.read_reply(number, &reply);
            answers.filter(|answers| answers.len() == charges).ok_or_else(|| {
                self.transport.record_invalid_reply(slot);
                StoreFailure::Invalid
            })
        });
        self.record(&answers, charges, began);
        match answers {
            Ok(answers) => {
                for (pending, answered) in ended.pending.iter().zip(answers) {
                    self.settle(pending, Ok(answered));
                }
            }
            // Nothing was executed: the charges that did not cause it shall not suffer from it.
            Err(StoreFailure::Unreadable) if charges > 1 => ended.hand_back(true),
            // It was not sent: a connection that is opened again may be in time.
            Err(StoreFailure::Unreachable) => {
                ended.pending.retain(|pending| {
                    let again = pending.may_resend();
                    if !again {
                        self.settle(pending, Err(StoreFailure::Unreachable));
                    }
                    again
                });
                ended.hand_back(false);
            }
            Err(failure) => {
                for pending in &ended.pending {
                    self.settle(pending, Err(failure));
                }
            }
        }
    }

    /// Waits for a reply. Callers whose deadline passes meanwhile do not.
    async fn until_replied(
        &self,
        mut calling: impl Future<Output = Result<Vec<u64>, StoreFailure>> + Unpin,
        pending: &[Arc<Pending>],
        began: Nanos,
    ) -> Result<Vec<u64>, StoreFailure> {
        let deadlines = || pending.iter().filter(|one| one.attended).map(|one| one.deadline);
        let mut now = began;
        let mut next = deadlines().min();
        while let Some(deadline) = next {
            let left = deadline.saturating_sub(now).into();
            if let Ok(reply) = tokio::time::timeout(left, &mut calling).await {
                return reply;
            }
            now = self.clock.now().mono;
            for late in pending.iter().filter(|one| one.attended && one.deadline <= now) {
                self.settle(late, Err(StoreFailure::Timeout));
            }
            next = deadlines().filter(|deadline| *deadline > now).min();
        }
        calling.await
    }

    fn record(
        &self,
        answers: &Result<Vec<ChargeReply>, StoreFailure>,
        charges: usize,
        began: Nanos,
    ) {
        let outcome = match answers {
            Ok(_) => CallOutcome::Ok,
            // It was no call.
            Err(StoreFailure::Unreachable) => return,
            Err(failure) => failure.outcome(),
        };
        self.metrics.batches.record(charges as u64);
        self.metrics.durations.record_span(self.clock.now().mono.saturating_sub(began));
        self.metrics.record_call(outcome);
    }
}

impl Surroundings for Batcher {
    fn readiness(&self, slot: u16) -> Readiness {
        self.transport.readiness(slot)
    }

    fn unsent(&self, pending: &Pending, failure: StoreFailure) {
        self.unfinished.fetch_sub(1, Ordering::AcqRel);
        self.settle(pending, Err(failure));
    }
}

/// Tells the worker that a call has ended. After a panic nobody waits for ever, either.
struct Ended<'b> {
    batcher: &'b Batcher,
    pending: Vec<Arc<Pending>>,
    done: Option<Done>,
}

impl Ended<'_> {
    /// The charges go back to the queue; `alone`: each is to be sent by itself.
    fn hand_back(&mut self, alone: bool) {
        if let Some(done) = &mut self.done {
            (done.returned, done.alone) = (std::mem::take(&mut self.pending), alone);
        }
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for pending in &self.pending {
                self.batcher.settle(pending, Err(StoreFailure::Invalid));
            }
        }
        if let Some(done) = self.done.take() {
            self.batcher.push(Event::Done(done));
        }
    }
}

/// The owner of the queue.
struct Worker {
    batcher: Arc<Batcher>,
    queue: Queue,
    calls_away: usize,
    max_calls: usize,
    /// The inbox's other half.
    events: Vec<Event>,
}

impl Worker {
    async fn run(mut self) {
        let batcher = Arc::clone(&self.batcher);
        let mut changed = batcher.transport.readiness_changed();
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        let mut armed: Option<Nanos> = None;
        loop {
            // Registered before readiness is read, so that no change is missed.
            while poll_fn(|context| Poll::Ready(changed.as_mut().poll(context).is_ready())).await {
                changed = batcher.transport.readiness_changed();
                self.queue.on_changed(self.now(), &*batcher);
            }
            let now = self.now();
            self.take_events(now);
            if self.queue.next_time().is_some_and(|next| next <= now) {
                self.queue.on_time(now, &*batcher);
            }
            self.send_ready(now);
            let closed = batcher.closed.load(Ordering::Acquire);
            if closed && self.queue.is_empty() && self.calls_away == 0 {
                return;
            }
            if let Some(next) = self.queue.next_time()
                && armed.is_none_or(|armed| next < armed)
            {
                timer.set(tokio::time::sleep(next.saturating_sub(now).into()));
                armed = Some(next);
            }
            tokio::select! {
                biased;
                () = batcher.wake.notified() => {}
                () = &mut changed => {
                    changed = batcher.transport.readiness_changed();
                    self.queue.on_changed(self.now(), &*batcher);
                }
                () = &mut timer, if armed.is_some() => armed = None,
            }
        }
    }

    fn now(&self) -> Nanos {
        self.batcher.clock.now().mono
    }

    fn take_events(&mut self, now: Nanos) {
        std::mem::swap(&mut self.events, &mut *self.batcher.inbox.lock());
        if self.events.is_empty() {
            return;
        }
        let batcher = &*self.batcher;
        for event in self.events.drain(..) {
            match event {
                Event::Charge(pending) => match name_of(&pending) {
                    Some(name) => {
                        self.queue.push(pending, name, || batcher.slot(name), now, batcher);
                    }
                    None => batcher.unsent(&pending, StoreFailure::Refused),
                },
                Event::Done(done) => {
                    self.calls_away -= 1;
                    let finished = done.charges - done.returned.len();
                    batcher.unfinished.fetch_sub(finished, Ordering::AcqRel);
                    self.queue.on_done(&done.cells, done.returned, done.alone, now, batcher);
                }
            }
        }
    }

    fn send_ready(&mut self, now: Nanos) {
        if self.queue.is_empty() || self.calls_away >= self.max_calls {
            return;
        }
        while self.calls_away < self.max_calls
            && let Some(batch) = self.queue.next_batch(now, &*self.batcher)
        {
            self.calls_away += 1;
            tokio::spawn(Arc::clone(&self.batcher).carry(batch));
        }
    }
}
