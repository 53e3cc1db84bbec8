//! The state directory of the process: opened before the clock is made, restored while the admin listener answers already,
//! saved until the process ends.
//!
//! Restoring runs on threads of its own: one reads, the others put cells back, each for its groups of shards. What must
//! always hold: no request is judged before everything is restored, and nothing is saved before that either.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::start_error::StartError;
use crate::clock::{RoundedSpan, Stopwatch, SystemClock};
use crate::config::StateSettings;
use crate::edge::ServingGate;
use crate::engine::{Engine, EngineSource, Restorer, SavedCells};
use crate::ops::Reloader;
use crate::policy::KeySecret;
use crate::state::{
    GROUPS, Recovery, SaveIntervals, Saver, SaverHandle, StateDirectory, StateMetrics, StateSummary,
};

/// Frames that wait for a thread that restores.
const MAX_WAITING_FRAMES: usize = 8;

/// How long the end of the process waits for the last save. A disk that does not answer must not keep the process.
const SAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A directory that this process holds, before it is restored.
pub(super) struct OpenState {
    directory: StateDirectory,
    intervals: SaveIntervals,
}

/// What restoring and saving need of the process.
pub(super) struct StateKeeping {
    pub(super) engine: Arc<Engine>,
    pub(super) clock: Arc<SystemClock>,
    pub(super) reloader: Arc<Reloader>,
    pub(super) metrics: Arc<StateMetrics>,
    pub(super) gate: Arc<ServingGate>,
    pub(super) keeper: Arc<StateKeeper>,
}

/// The thread that saves, once it runs.
#[derive(Default)]
pub(super) struct StateKeeper(Mutex<Option<Arc<SaverHandle>>>);

impl OpenState {
    pub(super) fn open(
        settings: &StateSettings,
        ignore: bool,
        date_secs: u64,
    ) -> Result<Self, StartError> {
        let directory = StateDirectory::open(&settings.directory, ignore, date_secs);
        let directory = directory.map_err(|error| StartError::State(Box::new(error)))?;
        let intervals = SaveIntervals { flush: settings.flush.into(), sync: settings.sync.into() };
        report(directory.summary());
        Ok(Self { directory, intervals })
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

    /// Restores on threads of its own, then opens the gate and saves.
    pub(super) fn begin(self, keeping: StateKeeping) -> io::Result<()> {
        let restoring = std::thread::Builder::new().name("restore".to_owned());
        restoring.spawn(move || {
            let StateKeeping { engine, clock, reloader, metrics, gate, keeper } = keeping;
            let timed = Stopwatch::start();
            restore(self.directory.recovery(), &engine, &metrics);
            let span = RoundedSpan(timed.elapsed().into());
            log::info!("{} cells restored in {span}", metrics.recovered_cells());
            reloader.republish();
            let (log, lock) = self.directory.into_log(Arc::clone(&metrics));
            let mark = Box::new(move || clock.mark());
            let store = Arc::clone(&engine);
            let source = EngineSource::new(engine, mark, Arc::clone(&metrics));
            let saver = Saver::new(source, log, self.intervals, Arc::clone(&metrics));
            match SaverHandle::spawn(saver, lock) {
                Ok(handle) => {
                    let waiting = Arc::clone(&handle);
                    store.set_save_wake(Box::new(move || waiting.hurry()));
                    *keeper.0.lock() = Some(handle);
                }
                Err(error) => {
                    log::error!("the state is not saved: no thread for it: {error}");
                    store.set_saves_failing();
                }
            }
            metrics.end_restoring();
            gate.open();
        })?;
        Ok(())
    }
}

impl StateKeeper {
    /// Saves the last changes, at the end of the process.
    pub(super) fn finish(&self, engine: &Engine) {
        let Some(handle) = self.0.lock().take() else {
            return;
        };
        engine.end_saves();
        if !handle.finish(SAVE_TIMEOUT) {
            log::error!("the last changes of the state are not saved");
        }
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
    if !summary.logs.is_empty() && !summary.is_clean {
        log::warn!(
            "state: the process before did not end in an orderly way; what it had not written is lost"
        );
    }
}

/// Puts back everything that can be read.
fn restore(recovery: &Recovery, engine: &Arc<Engine>, metrics: &Arc<StateMetrics>) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(GROUPS.into());
    let unreadable = std::thread::scope(|scope| {
        let (mut queues, mut restoring) = (Vec::new(), Vec::new());
        for _ in 0..threads {
            let (queue, frames) = sync_channel::<SavedCells>(MAX_WAITING_FRAMES);
            queues.push(queue);
            restoring.push(scope.spawn(|| restore_cells(engine, metrics, frames)));
        }
        let unreadable = read_frames(recovery, engine, metrics, &queues);
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
    metrics: &Arc<StateMetrics>,
    queues: &[SyncSender<SavedCells>],
) -> u64 {
    let mut restorer = Restorer::new(Arc::clone(engine));
    let read = recovery.replay(metrics, |frame| {
        let group = frame.group;
        if let Some(cells) = restorer.read(frame) {
            // A thread that has panicked takes nothing more.
            let _ = queues[usize::from(group) % queues.len()].send(cells);
        }
    });
    if let Err(error) = read {
        log::error!("state: a log cannot be read to its end: {error}");
    }
    restorer.finish()
}

fn restore_cells(engine: &Engine, metrics: &StateMetrics, frames: Receiver<SavedCells>) -> u64 {
    frames.into_iter().map(|cells| Restorer::restore_cells(engine, metrics, &cells)).sum()
}
