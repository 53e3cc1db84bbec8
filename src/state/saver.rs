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
    has_failed: bool,
    /// Why, as the log was told last.
    failure: Option<String>,
    min_round: u64,
    urgent_bytes: u64,
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
            has_failed: false,
            failure: None,
            min_round: MIN_ROUND_BYTES,
            urgent_bytes: URGENT_BYTES,
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
        while saved.is_ok() && self.is_recovering() {
            saved = self.save(now, true);
        }
        let finished = saved.and_then(|_| {
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

    /// Whether a failure has lost changes that are not written anew yet.
    const fn is_recovering(&self) -> bool {
        self.has_failed && self.round.is_some()
    }

    fn save(&mut self, now: Nanos, is_urgent: bool) -> io::Result<bool> {
        if !self.log.is_open() {
            self.begin_round(self.has_failed || self.log.count() > MAX_LOGS)?;
        } else if self.round.is_none() && self.changed_bytes > self.round_bytes.max(self.min_round)
        {
            self.log.sync()?;
            self.begin_round(false)?;
        }
        let before = self.log.added();
        self.source.save_changes(&mut self.log);
        let changed = self.log.added() - before;
        self.changed_bytes += changed;
        self.continue_round(changed);
        let wrote = self.log.added() != before;
        if wrote {
            let mark = postcard::to_stdvec(&self.source.mark()).map_err(io::Error::other)?;
            self.log.add(FrameKind::Time, 0, &mark);
            self.log.flush()?;
            self.is_unsynced = true;
        }
        if let Some(round) = self.round.filter(|round| round.next_shard >= self.source.shards()) {
            self.log.complete(round.number)?;
            (self.round, self.round_bytes, self.changed_bytes) = (None, round.bytes, 0);
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
        self.source.save_common(&mut self.log);
        let number = self.log.number();
        self.round = Some(Round { number, next_shard: 0, bytes: self.log.added(), is_urgent });
        Ok(())
    }

    /// Writes as many shards as there were changes, so that a round is complete when the changes since it began are as
    /// large as everything.
    fn continue_round(&mut self, changed: u64) {
        let Some(round) = &mut self.round else {
            return;
        };
        let wanted = if round.is_urgent { self.urgent_bytes } else { changed };
        let before = self.log.added();
        while round.next_shard < self.source.shards() && self.log.added() - before < wanted {
            self.source.save_shard(round.next_shard, &mut self.log);
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

/// Tells the thread that saves to end.
#[derive(Debug, Default)]
pub struct SaverHandle {
    state: Mutex<SaverState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SaverState {
    #[default]
    Running,
    /// A request waits for the next save.
    Urgent,
    Stopping,
    /// It has ended. `true`: everything is saved.
    Ended(bool),
}

impl SaverHandle {
    /// Starts the thread. It holds the lock of the directory until it has ended.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn spawn<S: StateSource + 'static>(
        mut saver: Saver<S>,
        lock: StateLock,
    ) -> io::Result<Arc<Self>> {
        let handle = Arc::new(Self::default());
        let own = Arc::clone(&handle);
        std::thread::Builder::new().name("state".to_owned()).spawn(move || {
            while let Some(is_urgent) = own.next_step(saver.intervals.flush.into()) {
                saver.step(is_urgent);
            }
            let is_saved = saver.finish();
            drop(lock);
            *own.state.lock() = SaverState::Ended(is_saved);
            own.changed.notify_all();
        })?;
        Ok(handle)
    }

    /// Waits until the time of the next step. Returns whether it is urgent; `None`: the thread is to end.
    fn next_step(&self, time: Duration) -> Option<bool> {
        let mut state = self.state.lock();
        if *state == SaverState::Running {
            self.changed.wait_for(&mut state, time);
        }
        match *state {
            SaverState::Running => Some(false),
            SaverState::Urgent => {
                *state = SaverState::Running;
                Some(true)
            }
            SaverState::Stopping | SaverState::Ended(_) => None,
        }
    }

    /// Has the next step done now, on the disk.
    pub fn hurry(&self) {
        let mut state = self.state.lock();
        if *state == SaverState::Running {
            *state = SaverState::Urgent;
            self.changed.notify_all();
        }
    }

    /// Ends the thread after a last save. Returns whether everything is saved; `false` also when it takes longer than
    /// `deadline`.
    pub fn finish(&self, deadline: Duration) -> bool {
        let mut state = self.state.lock();
        if matches!(*state, SaverState::Running | SaverState::Urgent) {
            *state = SaverState::Stopping;
            self.changed.notify_all();
        }
        self.changed.wait_while_for(
            &mut state,
            |state| !matches!(state, SaverState::Ended(_)),
            deadline,
        );
        *state == SaverState::Ended(true)
    }
}
