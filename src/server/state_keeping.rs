//! The state directory of the process: opened before the clock is made, restored while the admin listener answers already,
//! saved until the process ends.
//!
//! Restoring runs on threads of its own: one reads, the others put cells back, each for its groups of shards. What must
//! always hold: no request is judged before everything is restored, and nothing is saved before that either.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::start_error::StartError;
use crate::clock::{Clock as _, RoundedSpan, Stopwatch, SystemClock};
use crate::config::StateSettings;
use crate::edge::ServingGate;
use crate::engine::{Engine, EngineSource, Restorer, SavedCells};
use crate::handover::{Greeted, Keeper, KeeperTask};
use crate::history::TrafficHistory;
use crate::ops::{HistorySection, Reloader};
use crate::policy::KeySecret;
use crate::state::{
    AfterTask, DirectoryIdentity, FrameKind, GROUPS, KEY_SECRET_BYTES, Recovery, SaveIntervals,
    Saver, SaverHandle, StateDirectory, StateError, StateMetrics, StateSummary,
};

/// Frames that wait for a thread that restores.
const MAX_WAITING_FRAMES: usize = 8;

/// How long the end of the process waits for the last save. A disk that does not answer must not keep the process.
const SAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the process before may still hold the directory before that is logged as an error.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// The time between two attempts to get the directory: before that, and after it.
const LOCK_RETRY: Duration = Duration::from_millis(10);
const LATE_LOCK_RETRY: Duration = Duration::from_secs(1);

/// A directory that this process saves to once the process before it has handed over.
pub(super) struct LaterState {
    settings: StateSettings,
    secret: [u8; KEY_SECRET_BYTES],
    /// Whether the process before uses it too.
    is_shared: bool,
    /// The [`run_id`](crate::state::run_id) of that process.
    running: u64,
}

/// A directory that this process holds, before it is restored.
pub(super) struct OpenState {
    folder: PathBuf,
    directory: StateDirectory,
    intervals: SaveIntervals,
}

/// What is saved, and copied for a successor.
#[derive(Clone)]
pub(super) struct SaveContext {
    pub(super) engine: Arc<Engine>,
    pub(super) history: Arc<TrafficHistory>,
    pub(super) clock: Arc<SystemClock>,
    pub(super) metrics: Arc<StateMetrics>,
}

/// What restoring and saving need of the process.
pub(super) struct StateKeeping {
    pub(super) saved: SaveContext,
    pub(super) reloader: Arc<Reloader>,
    pub(super) gate: Arc<ServingGate>,
    pub(super) keeper: Arc<StateKeeper>,
}

/// The thread that saves, once it runs.
#[derive(Default)]
pub(super) struct StateKeeper {
    saving: Mutex<Saving>,
    changed: Condvar,
}

/// Who saves.
///
/// ```text
///   Nobody ──────► Awaited ──directory──► Saver
///                  │     ▲
///             copied     failed            a process that has given its cells away waits for its directory no more
///                  ▼     │
///                  GivenAway
/// ```
#[derive(Default)]
enum Saving {
    #[default]
    Nobody,
    /// The directory is not here yet. `was_copied`: changes have been copied for a successor that failed.
    Awaited {
        was_copied: bool,
    },
    /// Meanwhile a successor is given everything.
    GivenAway,
    Saver(Arc<SaverHandle<EngineSource>>),
}

impl OpenState {
    pub(super) fn open(
        settings: &StateSettings,
        ignore: bool,
        date_secs: u64,
    ) -> Result<Self, StartError> {
        let directory = StateDirectory::open(&settings.directory, ignore, date_secs);
        let directory = directory.map_err(|error| StartError::State(Box::new(error)))?;
        let intervals = intervals(settings);
        report(directory.summary());
        Ok(Self { folder: settings.directory.clone(), directory, intervals })
    }

    /// A clock that continues that of the process which wrote the directory.
    pub(super) fn clock(&self) -> SystemClock {
        match &self.directory.summary().mark {
            Some(mark) => SystemClock::continuing(mark),
            None => SystemClock::new(),
        }
    }

    pub(super) const fn secret(&self) -> KeySecret {
        KeySecret::new(*self.directory.secret())
    }

    pub(super) fn identity(&self) -> Option<DirectoryIdentity> {
        StateDirectory::identity(&self.folder).ok()
    }

    /// Restores on threads of its own, then opens the gate and saves.
    pub(super) fn begin(self, keeping: StateKeeping) -> io::Result<()> {
        let restoring = std::thread::Builder::new().name("restore".to_owned());
        restoring.spawn(move || {
            let StateKeeping { saved, reloader, gate, keeper } = keeping;
            let SaveContext { engine, history, metrics, .. } = &saved;
            let metrics = Arc::clone(metrics);
            let timed = Stopwatch::start();
            restore(self.directory.recovery(), engine, history, &metrics);
            let span = RoundedSpan(timed.elapsed().into());
            log::info!("{} cells restored in {span}", metrics.recovered_cells());
            reloader.republish();
            // What is damaged would be read again and again.
            let lacks_cells = self.directory.summary().is_incomplete();
            keeper.set_saver(save(self.directory, (self.intervals, lacks_cells), saved));
            metrics.end_restoring();
            gate.open();
        })?;
        Ok(())
    }
}

impl LaterState {
    /// Checks that this process will be able to use the directory.
    pub(super) fn check(settings: &StateSettings, running: &Greeted) -> Result<Self, StartError> {
        StateDirectory::check_for(&settings.directory, running.secret())
            .map_err(|error| StartError::State(Box::new(error)))?;
        let own = StateDirectory::identity(&settings.directory).ok();
        let is_shared = own.is_some() && own == running.directory();
        let (settings, secret) = (settings.clone(), *running.secret());
        Ok(Self { settings, secret, is_shared, running: running.run_id() })
    }

    pub(super) const fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub(super) fn identity(&self) -> Option<DirectoryIdentity> {
        StateDirectory::identity(&self.settings.directory).ok()
    }

    /// Saves on a thread of its own, as soon as the process before has let go of the directory.
    pub(super) fn begin(self, keeping: StateKeeping) -> io::Result<()> {
        let waiting = std::thread::Builder::new().name("state-lock".to_owned());
        // From now on the end of the process waits.
        keeping.keeper.set_awaited();
        waiting.spawn(move || {
            let StateKeeping { saved, keeper, .. } = keeping;
            let (timed, mut is_told) = (Stopwatch::start(), false);
            let directory = loop {
                // Whoever has given its cells away must not save what is left.
                keeper.until_wanted();
                let opened = StateDirectory::open_after_handover(
                    &self.settings.directory,
                    &self.secret,
                    self.is_shared,
                    saved.clock.date(saved.clock.now()).secs(),
                );
                match opened {
                    Ok(directory) => break directory,
                    Err(StateError::InUse { .. }) if timed.elapsed() < LOCK_PATIENCE => {
                        std::thread::sleep(LOCK_RETRY);
                    }
                    Err(error) => {
                        if !is_told {
                            log::error!("the state is not saved yet: {error}");
                            saved.engine.set_saves_failing();
                            is_told = true;
                        }
                        std::thread::sleep(LATE_LOCK_RETRY);
                    }
                }
            };
            let intervals = intervals(&self.settings);
            // What the process before has not saved is saved by nobody else. The logs may end in an orderly way because the
            // one before that did.
            let lacks_cells = !self.is_shared || !directory.summary().was_ended_by(self.running);
            keeper.had(is_told, |was_copied| {
                save(directory, (intervals, lacks_cells || was_copied), saved)
            });
        })?;
        Ok(())
    }
}

fn intervals(settings: &StateSettings) -> SaveIntervals {
    SaveIntervals { flush: settings.flush.into(), sync: settings.sync.into() }
}

/// Starts the thread that saves. `lacks_cells`: cells that do not change may be missing in the directory.
fn save(
    directory: StateDirectory,
    (intervals, lacks_cells): (SaveIntervals, bool),
    saved: SaveContext,
) -> Option<Arc<SaverHandle<EngineSource>>> {
    let (store, metrics) = (Arc::clone(&saved.engine), Arc::clone(&saved.metrics));
    let (log, lock) = directory.into_log(Arc::clone(&metrics));
    let saver = Saver::new(saved.source(), log, intervals, metrics);
    let saver = if lacks_cells { saver.that_lacks_cells() } else { saver };
    match SaverHandle::spawn(saver, lock) {
        Ok(handle) => {
            let waiting = Arc::clone(&handle);
            store.set_save_wake(Box::new(move || waiting.hurry()));
            // Requests may have waited for the disk since before this thread was there.
            handle.hurry();
            Some(handle)
        }
        Err(error) => {
            log::error!("the state is not saved: no thread for it: {error}");
            store.set_saves_failing();
            None
        }
    }
}

impl SaveContext {
    fn source(self) -> EngineSource {
        let Self { engine, history, clock, metrics } = self;
        EngineSource::new(engine, Box::new(move || clock.mark()), metrics)
            .with_section(Box::new(HistorySection::new(history)))
    }
}

impl StateKeeper {
    /// Has a task done that copies what is counted: on the thread that saves, or on one of its own.
    pub(super) fn run(self: &Arc<Self>, task: KeeperTask, saved: SaveContext) -> io::Result<()> {
        let mut saving = self.saving.lock();
        match &*saving {
            Saving::Saver(handle) => {
                let own = Arc::clone(handle);
                handle.run(Box::new(move |saver| task(&mut Keeper::saving(saver, own))));
                return Ok(());
            }
            Saving::Awaited { .. } => *saving = Saving::GivenAway,
            Saving::Nobody | Saving::GivenAway => {}
        }
        drop(saving);
        let keeper = Arc::clone(self);
        let copying = std::thread::Builder::new().name("copy".to_owned()).spawn(move || {
            // This thread ends with the task.
            if task(&mut Keeper::copying(saved.source())) == AfterTask::GoOn {
                keeper.await_again();
            }
        });
        copying.map(drop).inspect_err(|_| self.await_again())
    }

    /// Saves the last changes, at the end of the process.
    pub(super) fn finish(&self, engine: &Engine) {
        let mut saving = self.saving.lock();
        let is_awaited = |saving: &mut Saving| matches!(saving, Saving::Awaited { .. });
        self.changed.wait_while_for(&mut saving, is_awaited, SAVE_TIMEOUT);
        let handle = match std::mem::take(&mut *saving) {
            Saving::Saver(handle) => handle,
            Saving::Awaited { .. } => {
                log::error!(
                    "nothing of what was counted since the handover is saved: the directory could not be had"
                );
                return;
            }
            Saving::Nobody | Saving::GivenAway => return,
        };
        drop(saving);
        engine.end_saves();
        if !handle.finish(SAVE_TIMEOUT) {
            log::error!(
                "the last changes of the state are not saved: what was spent since the last save can be spent again"
            );
        }
    }

    fn set_saver(&self, saver: Option<Arc<SaverHandle<EngineSource>>>) {
        *self.saving.lock() = saver.map_or(Saving::Nobody, Saving::Saver);
    }

    fn set_awaited(&self) {
        *self.saving.lock() = Saving::Awaited { was_copied: false };
    }

    /// A handover has failed: the cells are here again.
    fn await_again(&self) {
        let mut saving = self.saving.lock();
        if matches!(*saving, Saving::GivenAway) {
            *saving = Saving::Awaited { was_copied: true };
            self.changed.notify_all();
        }
    }

    /// Returns when the cells are here.
    fn until_wanted(&self) {
        let mut saving = self.saving.lock();
        self.changed.wait_while(&mut saving, |saving| matches!(saving, Saving::GivenAway));
    }

    /// The directory is here. `save` begins to save, unless the cells have been given away just now.
    fn had(
        &self,
        is_told: bool,
        save: impl FnOnce(bool) -> Option<Arc<SaverHandle<EngineSource>>>,
    ) {
        let mut saving = self.saving.lock();
        self.changed.wait_while(&mut saving, |saving| matches!(saving, Saving::GivenAway));
        if let Saving::Awaited { was_copied } = *saving {
            *saving = save(was_copied).map_or(Saving::Nobody, Saving::Saver);
            if is_told {
                log::warn!("the state is saved from now on");
            }
        }
        self.changed.notify_all();
    }
}

/// Says what was found, if anything is amiss.
fn report(summary: &StateSummary) {
    for damage in &summary.damage {
        let (log, at, bytes) = (damage.log, damage.at, damage.bytes);
        match damage.is_tail {
            true => log::warn!(
                "state: log {log} ends after {at} whole bytes; {bytes} bytes behind that are left out"
            ),
            false => log::error!(
                "state: {bytes} bytes of log {log} from byte {at} on are damaged and left out"
            ),
        }
    }
    for log in summary.logs.iter().filter(|log| log.missing > 0) {
        let (number, missing) = (log.number, log.missing);
        log::error!(
            "state: {missing} frames before the end of log {number} are missing: a file was removed or cut; keys that only they named begin anew"
        );
    }
    if !summary.logs.is_empty() && !summary.is_clean {
        log::warn!(
            "state: the process before did not end in an orderly way; what it had not written is lost"
        );
    }
}

/// Puts back everything that can be read.
fn restore(
    recovery: &Recovery,
    engine: &Arc<Engine>,
    history: &TrafficHistory,
    metrics: &Arc<StateMetrics>,
) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(GROUPS.into());
    let unreadable = std::thread::scope(|scope| {
        let (mut queues, mut restoring) = (Vec::new(), Vec::new());
        for _ in 0..threads {
            let (queue, frames) = sync_channel::<SavedCells>(MAX_WAITING_FRAMES);
            queues.push(queue);
            restoring.push(scope.spawn(|| restore_cells(engine, metrics, frames)));
        }
        let unreadable = read_frames(recovery, engine, history, metrics, &queues);
        drop(queues);
        // A thread that panicked has restored nothing more.
        let of_threads = restoring.into_iter().map(|thread| thread.join().unwrap_or(1));
        unreadable + of_threads.sum::<u64>()
    });
    if unreadable > 0 {
        log::error!("state: {unreadable} records could not be read and are left out");
    }
}

/// Reads all frames in order, and gives those with cells to the threads of their groups. Returns how many could not be
/// read.
fn read_frames(
    recovery: &Recovery,
    engine: &Arc<Engine>,
    history: &TrafficHistory,
    metrics: &Arc<StateMetrics>,
    queues: &[SyncSender<SavedCells>],
) -> u64 {
    let mut restorer = Restorer::new(Arc::clone(engine));
    let now = engine.now();
    let mut minutes = history.restorer(now.mono, engine.date(now));
    let read = recovery.replay(metrics, |frame| {
        if frame.kind == FrameKind::History {
            minutes.read(&frame.payload);
            return;
        }
        let group = frame.group;
        if let Some(cells) = restorer.read(frame) {
            // A thread that has panicked takes nothing more.
            let _ = queues[usize::from(group) % queues.len()].send(cells);
        }
    });
    if let Err(error) = read {
        log::error!("state: a log cannot be read to its end: {error}");
    }
    let unreadable = minutes.unreadable();
    history.restore(minutes);
    unreadable + restorer.finish()
}

fn restore_cells(engine: &Engine, metrics: &StateMetrics, frames: Receiver<SavedCells>) -> u64 {
    frames.into_iter().map(|cells| Restorer::restore_cells(engine, metrics, &cells)).sum()
}
