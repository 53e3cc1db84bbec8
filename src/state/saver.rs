//! When what is written: one thread that nobody waits for.
//!
//! Every `flush` it writes what has changed, and a part of everything, in proportion; every `sync` it brings both to the
//! disk. When the disk fails, it says so, keeps what is written, and tries again with a new round: what changes meanwhile
//! stays listed in the store.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::directory::StateLock;
use super::frame::FrameKind;
use super::log::{FrameSink, StateLog};
use super::progress::{SaveOutcome, StateMetrics};
use super::shared_sink::{CellsFor, Guest, SharedSink};
use crate::clock::{Nanos, TimeMark};

/// The smallest number of bytes of changes after which a round begins.
const MIN_ROUND_BYTES: u64 = 16 * 1024 * 1024;

/// How many bytes of a round are written in one step after a failure, when nothing that was written before can be relied
/// on.
const URGENT_BYTES: u64 = 32 * 1024 * 1024;

/// Logs after which a round is written without regard to how much has changed: each start of the process makes one.
const MAX_LOGS: usize = 8;

/// The time between attempts on a disk that fails: the first, and the longest.
const FIRST_RETRY: Nanos = Nanos::from_millis(500);
const LAST_RETRY: Nanos = Nanos::from_secs(10);

/// What is saved.
pub trait StateSource: Send {
    /// The present instant.
    fn mark(&self) -> TimeMark;

    /// The number of shards.
    fn shards(&self) -> usize;

    /// Adds what has changed since the last call.
    fn save_changes(&mut self, sink: &mut dyn FrameSink);

    /// Everything that was added is on the disk.
    fn set_saved(&mut self);

    /// What was added may be lost, and nothing can be saved for a while.
    fn set_failing(&mut self);

    /// Adds everything that is not in a shard.
    fn save_common(&mut self, sink: &mut dyn FrameSink);

    /// Adds everything in a shard.
    fn save_shard(&mut self, shard: usize, sink: &mut dyn FrameSink);
}

/// How often.
#[derive(Clone, Copy, Debug)]
pub struct SaveIntervals {
    /// Between two writes.
    pub flush: Nanos,
    /// Between two times that writes are brought to the disk.
    pub sync: Nanos,
}

/// Everything that is being written once.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// The log with which it began.
    number: u64,
    next_shard: usize,
    /// Bytes of it that are written.
    bytes: u64,
    /// Whether it follows a failure.
    is_urgent: bool,
}

/// Saves until it is told to stop. One step is one function, so that tests turn the clock.
pub struct Saver<S> {
    source: S,
    log: StateLog,
    intervals: SaveIntervals,
    metrics: Arc<StateMetrics>,
    round: Option<Round>,
    /// Bytes of changes since the latest round was complete, and bytes of that round.
    changed_bytes: u64,
    round_bytes: u64,
    synced_at: Nanos,
    retry_at: Nanos,
    retry_after: Nanos,
    is_unsynced: bool,
    /// Whether something was added since the last step.
    has_more: bool,
    has_failed: bool,
    /// Why, as the log was told last.
    failure: Option<String>,
    /// Whether the logs lack what has not changed.
    is_anew: bool,
    is_handed_over: bool,
    min_round: u64,
    urgent_bytes: u64,
    /// Whoever takes over from this process.
    guest: Option<Guest>,
}

impl<S: StateSource> Saver<S> {
    /// A saver that begins with its first step.
    pub fn new(
        source: S,
        log: StateLog,
        intervals: SaveIntervals,
        metrics: Arc<StateMetrics>,
    ) -> Self {
        // Nothing has changed yet that is not saved.
        metrics.saved_at.store(source.mark().mono.get(), Ordering::Relaxed);
        Self {
            source,
            log,
            intervals,
            metrics,
            round: None,
            changed_bytes: 0,
            round_bytes: 0,
            synced_at: Nanos::ZERO,
            retry_at: Nanos::ZERO,
            retry_after: FIRST_RETRY,
            is_unsynced: false,
            has_more: false,
            has_failed: false,
            failure: None,
            is_anew: false,
            is_handed_over: false,
            min_round: MIN_ROUND_BYTES,
            urgent_bytes: URGENT_BYTES,
            guest: None,
        }
    }

    /// The same, with so many bytes of a round in one step after a failure.
    pub const fn with_urgent_bytes(mut self, bytes: u64) -> Self {
        self.urgent_bytes = bytes;
        self
    }

    /// The same, with a round after this many bytes of changes, or as many as everything takes.
    pub const fn with_min_round(mut self, bytes: u64) -> Self {
        self.min_round = bytes;
        self
    }

    /// The same, for a log that lacks what has not changed: everything is written at once.
    pub const fn with_everything_unsaved(mut self) -> Self {
        self.is_anew = true;
        self
    }

    /// From now on, what is saved because it has changed goes to a successor too; `None`: no more.
    pub fn set_guest(&mut self, guest: Option<Guest>) {
        self.guest = guest;
    }

    /// Adds to what the successor gets; cells of which the log gets no copy.
    pub fn copy_to_guest(&mut self, add: impl FnOnce(&mut S, &mut dyn FrameSink)) {
        self.share(CellsFor::Guest, add);
    }

    /// Adds to what the successor and the log get.
    pub fn save_with_guest(&mut self, add: impl FnOnce(&mut S, &mut dyn FrameSink)) {
        self.share(CellsFor::Both, add);
    }

    /// Whether a successor has the cells. Meanwhile there is nothing to be seen of those that have not changed, so no round
    /// goes on, and none is completed.
    pub const fn set_handed_over(&mut self, is_handed_over: bool) {
        self.is_handed_over = is_handed_over;
    }

    /// The time of the next step.
    pub const fn flush_interval(&self) -> Nanos {
        self.intervals.flush
    }

    fn share(&mut self, cells: CellsFor, add: impl FnOnce(&mut S, &mut dyn FrameSink)) {
        let before = self.log.added();
        let log = self.log.is_open().then_some(&mut self.log);
        add(&mut self.source, &mut SharedSink { log, guest: self.guest.as_mut(), cells });
        // The next step writes it.
        self.has_more |= self.log.added() != before;
    }

    /// The number of shards of the source.
    pub fn shards(&self) -> usize {
        self.source.shards()
    }

    /// Saves what has changed until now. `is_urgent`: a request waits for it to be on the disk.
    pub fn step(&mut self, is_urgent: bool) {
        let now = self.source.mark().mono;
        if !self.log.is_open() && now < self.retry_at {
            return;
        }
        let before = self.log.added();
        match self.save(now, is_urgent) {
            Ok(wrote) => {
                if wrote || self.log.added() != before {
                    self.metrics.record(SaveOutcome::Ok);
                }
                if self.is_recovering() {
                    return;
                }
                self.metrics.saved_at.store(now.get(), Ordering::Relaxed);
                if self.has_failed {
                    self.has_failed = false;
                    self.failure = None;
                    log::warn!("the state is saved again");
                }
                self.retry_after = FIRST_RETRY;
            }
            Err(error) => self.fail(&error, now),
        }
    }

    /// Saves the last changes of a process that ends in an orderly way. Returns whether that succeeded.
    pub fn finish(&mut self) -> bool {
        let now = self.source.mark().mono;
        let mut saved = self.save(now, true);
        while saved.is_ok() && self.is_recovering() && !self.is_handed_over {
            saved = self.save(now, true);
        }
        let finished = saved.and_then(|_| {
            if self.is_handed_over && self.round.is_some_and(|round| round.is_urgent) {
                return Err(io::Error::other("cells that did not change are not written"));
            }
            self.log.add(FrameKind::CleanStop, 0, &[]);
            self.log.sync()
        });
        match finished {
            Ok(()) => true,
            Err(error) => {
                self.fail(&error, now);
                false
            }
        }
    }

    /// Whether the logs lack cells that a failure has lost, or that nobody has written yet.
    const fn is_recovering(&self) -> bool {
        (self.has_failed || self.is_anew) && self.round.is_some()
    }

    fn save(&mut self, now: Nanos, is_urgent: bool) -> io::Result<bool> {
        if self.is_handed_over {
            if !self.log.is_open() {
                return Err(io::Error::other("the successor has the cells"));
            }
        } else if !self.log.is_open() {
            let is_urgent = self.has_failed || self.is_anew || self.log.count() > MAX_LOGS;
            self.begin_round(is_urgent)?;
        } else if self.round.is_none() && self.changed_bytes > self.round_bytes.max(self.min_round)
        {
            self.log.sync()?;
            self.begin_round(false)?;
        }
        let before = self.log.added();
        let (cells, guest) = (CellsFor::Both, self.guest.as_mut());
        self.source.save_changes(&mut SharedSink { log: Some(&mut self.log), guest, cells });
        let changed = self.log.added() - before;
        self.changed_bytes += changed;
        self.continue_round(changed);
        let wrote = self.log.added() != before || std::mem::take(&mut self.has_more);
        if wrote {
            let mark = postcard::to_stdvec(&self.source.mark()).map_err(io::Error::other)?;
            self.log.add(FrameKind::Time, 0, &mark);
            self.log.flush()?;
            self.is_unsynced = true;
        }
        let is_complete = |round: &Round| round.next_shard >= self.source.shards();
        if let Some(round) = self.round.filter(is_complete).filter(|_| !self.is_handed_over) {
            self.log.complete(round.number)?;
            (self.round, self.round_bytes, self.changed_bytes) = (None, round.bytes, 0);
            self.is_anew = false;
            (self.synced_at, self.is_unsynced) = (now, false);
            self.source.set_saved();
        } else if is_urgent || now >= self.synced_at.saturating_add(self.intervals.sync) {
            if self.is_unsynced {
                self.log.sync()?;
            }
            (self.synced_at, self.is_unsynced) = (now, false);
            if !self.is_recovering() {
                self.source.set_saved();
            }
        }
        Ok(wrote)
    }

    fn begin_round(&mut self, is_urgent: bool) -> io::Result<()> {
        self.log.begin(None)?;
        let (cells, guest) = (CellsFor::Log, self.guest.as_mut());
        self.source.save_common(&mut SharedSink { log: Some(&mut self.log), guest, cells });
        let number = self.log.number();
        self.round = Some(Round { number, next_shard: 0, bytes: self.log.added(), is_urgent });
        Ok(())
    }

    /// Writes as many shards as there were changes, so that a round is complete when the changes since it began are as
    /// large as everything.
    fn continue_round(&mut self, changed: u64) {
        let Some(round) = self.round.as_mut().filter(|_| !self.is_handed_over) else {
            return;
        };
        let wanted = if round.is_urgent { self.urgent_bytes } else { changed };
        let before = self.log.added();
        while round.next_shard < self.source.shards() && self.log.added() - before < wanted {
            let (cells, guest) = (CellsFor::Log, self.guest.as_mut());
            let mut sink = SharedSink { log: Some(&mut self.log), guest, cells };
            self.source.save_shard(round.next_shard, &mut sink);
            round.next_shard += 1;
        }
        round.bytes += self.log.added() - before;
    }

    fn fail(&mut self, error: &io::Error, now: Nanos) {
        let is_full =
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        self.metrics.record(if is_full { SaveOutcome::Full } else { SaveOutcome::Error });
        if is_full {
            self.log.make_room();
            // What the log before it holds is written anew each time, so attempts that failed only take room.
            if let Some(round) = self.round.filter(|_| self.has_failed) {
                self.log.discard_from(round.number);
            }
        }
        let reason = error.to_string();
        if self.failure.as_ref() != Some(&reason) {
            log::error!(
                "the state cannot be saved: {reason}; requests are judged as before, and a restart would lose what is spent from now on"
            );
            self.failure = Some(reason);
        }
        self.source.set_failing();
        self.has_failed = true;
        self.round = None;
        self.is_unsynced = false;
        self.retry_at = now.saturating_add(self.retry_after);
        self.retry_after = self.retry_after.saturating_mul(2).min(LAST_RETRY);
    }
}

/// The thread that saves, as others see it.
pub struct SaverHandle<S> {
    state: Mutex<SaverState<S>>,
    changed: Condvar,
}

/// Work with the saver that is done between two steps, on its thread.
pub type SaverTask<S> = Box<dyn FnOnce(&mut Saver<S>) -> AfterTask + Send>;

/// Whether the thread goes on after a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterTask {
    /// It saves on.
    GoOn,
    /// It ends after a last save.
    Finish,
}

struct SaverState<S> {
    phase: Phase,
    /// Taken by the thread.
    task: Option<SaverTask<S>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// A request waits for the next save.
    Urgent,
    Stopping,
    /// It has ended. `true`: everything is saved.
    Ended(bool),
}

/// What the thread does next.
enum NextStep<S> {
    Save { is_urgent: bool },
    Task(SaverTask<S>),
    Finish,
}

impl<S: StateSource + 'static> SaverHandle<S> {
    /// Starts the thread. It holds the lock of the directory until it has ended.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn spawn(mut saver: Saver<S>, lock: StateLock) -> io::Result<Arc<Self>> {
        let state = Mutex::new(SaverState { phase: Phase::Running, task: None });
        let handle = Arc::new(Self { state, changed: Condvar::new() });
        let own = Arc::clone(&handle);
        std::thread::Builder::new().name("state".to_owned()).spawn(move || {
            loop {
                match own.next_step(saver.intervals.flush.into()) {
                    NextStep::Save { is_urgent } => saver.step(is_urgent),
                    NextStep::Task(task) => match task(&mut saver) {
                        AfterTask::GoOn => {}
                        AfterTask::Finish => break,
                    },
                    NextStep::Finish => break,
                }
            }
            let is_saved = saver.finish();
            drop(lock);
            own.state.lock().phase = Phase::Ended(is_saved);
            own.changed.notify_all();
        })?;
        Ok(handle)
    }

    /// Waits until the time of the next step.
    fn next_step(&self, time: Duration) -> NextStep<S> {
        let mut state = self.state.lock();
        if state.phase == Phase::Running && state.task.is_none() {
            self.changed.wait_for(&mut state, time);
        }
        match state.phase {
            Phase::Stopping | Phase::Ended(_) => NextStep::Finish,
            Phase::Urgent => {
                state.phase = Phase::Running;
                NextStep::Save { is_urgent: true }
            }
            Phase::Running => match state.task.take() {
                Some(task) => NextStep::Task(task),
                None => NextStep::Save { is_urgent: false },
            },
        }
    }

    /// Has the next step done now, on the disk.
    pub fn hurry(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Running {
            state.phase = Phase::Urgent;
            self.changed.notify_all();
        }
    }

    /// Whether a request waits for the next save. A task that takes long asks now and then, and saves.
    pub fn take_urgent(&self) -> bool {
        let mut state = self.state.lock();
        let is_urgent = state.phase == Phase::Urgent;
        if is_urgent {
            state.phase = Phase::Running;
        }
        is_urgent
    }

    /// Whether the thread was told to end. A task that takes long asks now and then, and gives up.
    pub fn is_stopping(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Stopping | Phase::Ended(_))
    }

    /// Has something done on the thread. It is dropped undone if the thread ends first.
    pub fn run(&self, task: SaverTask<S>) {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Stopping | Phase::Ended(_)) {
            state.task = Some(task);
            self.changed.notify_all();
        }
    }

    /// Ends the thread after a last save. Returns whether everything is saved; `false` also when it takes longer than
    /// `deadline`.
    pub fn finish(&self, deadline: Duration) -> bool {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Running | Phase::Urgent) {
            state.phase = Phase::Stopping;
            self.changed.notify_all();
        }
        let has_ended = |state: &mut SaverState<S>| matches!(state.phase, Phase::Ended(_));
        self.changed.wait_while_for(&mut state, |state| !has_ended(state), deadline);
        state.phase == Phase::Ended(true)
    }
}
