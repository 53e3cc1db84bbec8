//! Decides when changes and rounds are written, and when the disk is to have them.
//!
//! Every `flush` it writes what has changed, and a part of everything, in proportion; every `sync` it has both brought to
//! the disk, while it writes on. When the disk fails, it says so, keeps what is written, and tries again with a new round:
//! what changes meanwhile stays listed in the store.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::frame::FrameKind;
use super::log::{FrameSink, StateLog};
use super::progress::{SaveOutcome, StateMetrics};
use super::room::{RoundPace, least, next_round};
use super::run_id::run_id;
use super::shared_sink::{CellsFor, SharedSink, SuccessorSink};
use super::sync::{SyncAtOnce, SyncRunner};
use crate::clock::{Nanos, TimeMark};

/// The smallest number of bytes of changes after which a round begins, on a volume that is not small.
const MIN_ROUND_BYTES: u64 = 16 * 1024 * 1024;

/// How many bytes of a round are written in one step after a failure, when nothing that was written before can be relied
/// on, and where the volume has little room.
const URGENT_BYTES: u64 = 32 * 1024 * 1024;

/// Logs after which a round is written without regard to how much has changed: each start of the process makes one.
const MAX_LOGS: usize = 8;

/// The same, in bytes: as many as so many rounds.
const MAX_ROUNDS_IN_LOGS: u64 = 4;

/// How long a sync may take before what is written since counts as unsaved, so that an operator is told.
const SLOW_SYNC: Nanos = Nanos::from_secs(10);

/// How often the end of the process is saved at most.
const LAST_ATTEMPTS: u32 = 2;

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

    /// The number of the batch that was added last.
    fn batch(&self) -> u64;

    /// Everything up to this batch is on the disk.
    fn set_saved(&mut self, batch: u64);

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
    pace: RoundPace,
    /// Whether all of it is written.
    is_written: bool,
}

/// A sync that has been started.
#[derive(Clone, Copy, Debug)]
struct RunningSync {
    began: Nanos,
    /// The last batch that it covers.
    batch: u64,
    /// The round that is complete with it.
    completes: Option<Round>,
    /// Whether something else has failed since, so that its result says nothing any more.
    is_abandoned: bool,
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
    runner: Box<dyn SyncRunner>,
    sync: Option<RunningSync>,
    /// Whether another one has to follow.
    wants_sync: bool,
    synced_at: Nanos,
    /// The last batch that is written.
    written_batch: u64,
    retry_at: Nanos,
    retry_after: Nanos,
    /// Whether something was added since the last step.
    has_more: bool,
    has_failed: bool,
    /// Why, as the log was told last.
    failure: Option<String>,
    /// Whether the log was told that the volume is too small.
    is_told_small: bool,
    /// Whether the logs lack what has not changed.
    lacks_cells: bool,
    is_handed_over: bool,
    min_round: u64,
    urgent_bytes: u64,
    /// Whoever takes over from this process.
    successor: Option<SuccessorSink>,
}

impl RunningSync {
    /// Whether the disk takes long. It is not given up: what takes long once would take long again.
    const fn is_slow(&self, now: Nanos) -> bool {
        now.saturating_sub(self.began).get() > SLOW_SYNC.get()
    }
}

impl<S: StateSource> Saver<S> {
    /// A saver that begins with its first step.
    pub fn new(
        source: S,
        log: StateLog,
        intervals: SaveIntervals,
        metrics: Arc<StateMetrics>,
    ) -> Self {
        metrics.begin_saving(source.mark().mono);
        // Until a round is complete, what the directory held tells how much room one needs.
        let round_bytes = log.found_round_bytes();
        Self {
            source,
            log,
            intervals,
            metrics,
            round: None,
            changed_bytes: 0,
            round_bytes,
            runner: Box::new(SyncAtOnce::default()),
            sync: None,
            wants_sync: false,
            synced_at: Nanos::ZERO,
            written_batch: 0,
            retry_at: Nanos::ZERO,
            retry_after: FIRST_RETRY,
            has_more: false,
            has_failed: false,
            failure: None,
            is_told_small: false,
            lacks_cells: false,
            is_handed_over: false,
            min_round: MIN_ROUND_BYTES,
            urgent_bytes: URGENT_BYTES,
            successor: None,
        }
    }

    /// The same, with so many bytes of a round in one step after a failure.
    pub const fn with_urgent_bytes(mut self, bytes: u64) -> Self {
        self.urgent_bytes = bytes;
        self
    }

    /// The same, with syncs that this runs. Without it they run within the steps.
    pub fn with_sync_runner(mut self, runner: Box<dyn SyncRunner>) -> Self {
        self.runner = runner;
        self
    }

    /// The same, with a round after this many bytes of changes, or as many as everything takes.
    pub const fn with_min_round(mut self, bytes: u64) -> Self {
        self.min_round = bytes;
        self
    }

    /// The same, for a log that lacks what has not changed: everything is written at once.
    pub const fn that_lacks_cells(mut self) -> Self {
        self.lacks_cells = true;
        self
    }

    /// From now on, what is saved because it has changed goes to a successor too; `None`: no more.
    pub fn set_successor_sink(&mut self, successor: Option<SuccessorSink>) {
        self.successor = successor;
    }

    /// Adds to what the successor gets; cells of which the log gets no copy.
    pub fn copy_to_successor(&mut self, add: impl FnOnce(&mut S, &mut dyn FrameSink)) {
        self.share(CellsFor::Successor, add);
    }

    /// Adds to what the successor and the log get.
    pub fn save_with_successor(&mut self, add: impl FnOnce(&mut S, &mut dyn FrameSink)) {
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
        // Requests may wait for what is added, and must not wait for the disk.
        self.log.collect(true);
        let log = self.log.is_open().then_some(&mut self.log);
        add(&mut self.source, &mut SharedSink { log, successor: self.successor.as_mut(), cells });
        // Without a log nobody has written what is not listed as changed any more.
        self.lacks_cells |= cells == CellsFor::Both && !self.log.is_open();
        // The next step writes it.
        self.log.collect(false);
        self.has_more |= self.log.added() != before || self.log.has_failed();
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
                let is_slow = self.sync.is_some_and(|sync| sync.is_slow(now));
                if !is_slow && !self.is_recovering() {
                    self.metrics.saved_at.store(now.get(), Ordering::Relaxed);
                }
            }
            Err(error) => self.fail(&error, now),
        }
    }

    /// Saves the last changes of a process that ends in an orderly way. Returns whether that succeeded.
    pub fn finish(&mut self) -> bool {
        // What a failure has lost is written anew: somebody may have removed the directory just before.
        (0..LAST_ATTEMPTS).any(|_| {
            let now = self.source.mark().mono;
            let saved = self.save_rest(now);
            saved.map_err(|error| self.fail(&error, now)).is_ok()
        })
    }

    /// The same for a process whose successor has the cells. `let_go` is called as soon as everything is written: from then
    /// on the successor saves, whose spending must not wait for the disk to confirm this one's. It brings the logs to the
    /// disk too.
    pub fn finish_handed_over(&mut self, let_go: impl FnOnce()) -> bool {
        let now = self.source.mark().mono;
        let written = self.write_rest(now);
        let_go();
        let saved = written.and_then(|()| self.await_sync());
        saved.map_err(|error| self.fail(&error, now)).is_ok()
    }

    fn save_rest(&mut self, now: Nanos) -> io::Result<()> {
        loop {
            self.save(now, true)?;
            self.await_sync()?;
            if !self.is_recovering() {
                break;
            }
        }
        self.add_end(now)?;
        self.await_sync()
    }

    fn write_rest(&mut self, now: Nanos) -> io::Result<()> {
        self.save(now, true)?;
        if self.round.is_some_and(|round| round.is_urgent) {
            return Err(io::Error::other("cells that did not change are not written"));
        }
        self.add_end(now)
    }

    /// Writes that the process ends in an orderly way.
    fn add_end(&mut self, now: Nanos) -> io::Result<()> {
        self.log.add(FrameKind::CleanStop, 0, &run_id().to_le_bytes());
        self.log.flush()?;
        self.wants_sync = true;
        self.begin_sync(now);
        Ok(())
    }

    /// Whether the logs lack cells that a failure has lost, or that nobody has written yet.
    const fn is_recovering(&self) -> bool {
        (self.has_failed || self.lacks_cells) && self.round.is_some()
    }

    fn save(&mut self, now: Nanos, is_urgent: bool) -> io::Result<bool> {
        self.end_sync()?;
        self.open_log()?;
        let before = self.log.added();
        let (cells, successor) = (CellsFor::Both, self.successor.as_mut());
        self.source.save_changes(&mut SharedSink { log: Some(&mut self.log), successor, cells });
        let changed = self.log.added() - before;
        self.changed_bytes += changed;
        self.continue_round(changed)?;
        let has_more = std::mem::take(&mut self.has_more) || self.log.has_failed();
        let wrote = self.log.added() != before || has_more;
        if wrote {
            let mark = postcard::to_stdvec(&self.source.mark()).map_err(io::Error::other)?;
            self.log.add(FrameKind::Time, 0, &mark);
            self.log.flush()?;
        }
        self.written_batch = self.source.batch();
        let is_complete = self.round.is_some_and(|round| round.is_written);
        let is_time = now >= self.synced_at.saturating_add(self.intervals.sync);
        self.wants_sync |= is_urgent || is_time || is_complete;
        self.begin_sync(now);
        self.end_sync()?;
        Ok(wrote)
    }

    /// Opens a log if none is open, or everything has to be written once more.
    fn open_log(&mut self) -> io::Result<()> {
        match (self.is_handed_over, self.log.is_open()) {
            (true, true) => Ok(()),
            (true, false) => Err(io::Error::other("the disk has failed before")),
            (false, false) => {
                let is_urgent = self.has_failed || self.lacks_cells || self.log.count() > MAX_LOGS;
                self.begin_round(is_urgent, self.first_pace())
            }
            (false, true) if self.round.is_some() => Ok(()),
            (false, true) => match self.next_round() {
                Some(pace) => {
                    // What was collected for a successor belongs to the log before.
                    self.log.flush()?;
                    self.begin_round(false, pace)
                }
                None => Ok(()),
            },
        }
    }

    /// The pace of the first round of a process, or of one after a failure. Each process begins one, and many a one is not completed:
    /// their logs add up.
    fn first_pace(&self) -> RoundPace {
        let is_scarce = self.log.room().is_some_and(|room| room.is_scarce(self.round_bytes));
        let is_much = self.log.bytes() > MAX_ROUNDS_IN_LOGS * self.round_bytes.max(MIN_ROUND_BYTES);
        if is_scarce || is_much { RoundPace::AtOnce } else { RoundPace::Proportional }
    }

    fn next_round(&self) -> Option<RoundPace> {
        next_round(self.round_bytes, self.changed_bytes, self.min_round, || self.log.room())
    }

    /// Has what is written brought to the disk, if that is wanted and nothing is on its way there.
    fn begin_sync(&mut self, now: Nanos) {
        if self.sync.is_some() || !std::mem::take(&mut self.wants_sync) {
            return;
        }
        self.synced_at = now;
        let completes = self.round.filter(|round| round.is_written);
        let sync =
            RunningSync { began: now, batch: self.written_batch, completes, is_abandoned: false };
        let job = self.log.take_sync_job();
        if job.is_empty() {
            self.set_synced(sync);
        } else {
            self.sync = Some(sync);
            self.runner.start(job);
        }
    }

    /// Takes the result of a sync, if it is there.
    fn end_sync(&mut self) -> io::Result<()> {
        let Some(sync) = self.sync else {
            return Ok(());
        };
        match self.runner.take_result() {
            Some(result) => self.take_synced(sync, result),
            None => Ok(()),
        }
    }

    /// Waits until everything that is wanted has been brought to the disk.
    fn await_sync(&mut self) -> io::Result<()> {
        while let Some(sync) = self.sync {
            let result = self.runner.wait();
            self.take_synced(sync, result)?;
            self.begin_sync(self.synced_at);
        }
        Ok(())
    }

    fn take_synced(&mut self, sync: RunningSync, result: io::Result<()>) -> io::Result<()> {
        self.sync = None;
        if !sync.is_abandoned {
            result?;
            self.set_synced(sync);
        }
        Ok(())
    }

    fn set_synced(&mut self, sync: RunningSync) {
        if let Some(round) = sync.completes {
            self.log.set_complete(round.number);
            (self.round, self.round_bytes, self.lacks_cells) = (None, round.bytes, false);
            self.look_at_room();
            self.retry_after = FIRST_RETRY;
            if std::mem::take(&mut self.has_failed) {
                self.failure = None;
                log::warn!("the state is saved again");
            }
        }
        if !self.is_recovering() {
            self.source.set_saved(sync.batch);
        }
    }

    /// A round is complete. Where room is scarce, the copy before it makes way for the next one.
    fn look_at_room(&mut self) {
        let Some(room) = self.log.room() else {
            return;
        };
        if room.is_scarce(self.round_bytes) {
            self.log.make_room();
        }
        if room.is_too_small(self.round_bytes) && !std::mem::replace(&mut self.is_told_small, true)
        {
            let (offered, least) = (room.offered() >> 10, least(self.round_bytes) >> 10);
            log::warn!(
                "the state may not fit on its volume for long: it has {offered} KiB for it, and {least} KiB are needed; free space, or use a larger volume"
            );
        }
    }

    /// Nothing is saved any more, so no request waits for it.
    pub(super) fn abandon(&mut self) {
        self.source.set_failing();
    }

    /// Takes the result of a sync, and begins the next if one is wanted. For the time between two steps.
    pub fn poll_sync(&mut self) {
        let now = self.source.mark().mono;
        match self.end_sync() {
            Ok(()) => self.begin_sync(now),
            Err(error) => self.fail(&error, now),
        }
    }

    fn begin_round(&mut self, is_urgent: bool, pace: RoundPace) -> io::Result<()> {
        self.log.begin()?;
        let (cells, successor) = (CellsFor::Log, self.successor.as_mut());
        self.source.save_common(&mut SharedSink { log: Some(&mut self.log), successor, cells });
        let number = self.log.number();
        let bytes = self.log.added();
        let round = Round { number, next_shard: 0, bytes, is_urgent, pace, is_written: false };
        self.round = Some(round);
        Ok(())
    }

    /// Writes as many shards as there were changes, so that a round is complete when the changes since it began are as
    /// large as everything; and all of them where room becomes scarce.
    fn continue_round(&mut self, changed: u64) -> io::Result<()> {
        let may_go_on = |round: &&mut Round| !self.is_handed_over && !round.is_written;
        let Some(round) = self.round.as_mut().filter(may_go_on) else {
            return Ok(());
        };
        let expected = self.round_bytes.max(round.bytes);
        if self.log.room().is_some_and(|room| room.is_scarce(expected)) {
            round.pace = RoundPace::AtOnce;
        }
        let wanted = match round.pace {
            RoundPace::Proportional if !round.is_urgent => changed,
            RoundPace::Proportional | RoundPace::AtOnce => self.urgent_bytes,
        };
        let before = self.log.added();
        while round.next_shard < self.source.shards() && self.log.added() - before < wanted {
            let (cells, successor) = (CellsFor::Log, self.successor.as_mut());
            let mut sink = SharedSink { log: Some(&mut self.log), successor, cells };
            self.source.save_shard(round.next_shard, &mut sink);
            round.next_shard += 1;
        }
        round.bytes += self.log.added() - before;
        if round.next_shard >= self.source.shards() {
            round.is_written = true;
            self.changed_bytes = 0;
            self.log.add_complete(round.number)?;
        }
        Ok(())
    }

    fn fail(&mut self, error: &io::Error, now: Nanos) {
        let outcome = SaveOutcome::of(error);
        self.metrics.record(outcome);
        let is_full = outcome == SaveOutcome::Full;
        if is_full {
            self.log.make_room();
        }
        // A round after a failure writes everything anew, so the logs of an earlier attempt that failed only take room.
        if let Some(round) = self.round.filter(|_| self.has_failed) {
            self.log.discard_from(round.number);
        }
        let cure = if is_full { "; free space there" } else { "" };
        let reason = format!("{error}{cure}");
        if self.failure.as_ref() != Some(&reason) {
            match self.is_handed_over {
                true => log::warn!(
                    "the last changes of the state cannot be saved here: {reason}; the successor has them, and saves everything anew"
                ),
                false => log::error!(
                    "the state cannot be saved: {reason}; requests are judged as before, and a restart would lose what is spent from now on"
                ),
            }
            self.failure = Some(reason);
        }
        self.source.set_failing();
        self.has_failed = true;
        self.round = None;
        self.log.close();
        self.wants_sync = false;
        if let Some(sync) = &mut self.sync {
            sync.is_abandoned = true;
        }
        self.retry_at = now.saturating_add(self.retry_after);
        self.retry_after = self.retry_after.saturating_mul(2).min(LAST_RETRY);
    }
}
