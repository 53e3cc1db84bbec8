//! The state directory of the process: opened before the clock is made, restored while the admin listener answers already,
//! saved until the process ends.
//!
//! Restoring runs on threads of its own: one reads, the others put cells back, each for its groups of shards. What must
//! always hold: no request is judged before everything is restored, and nothing is saved before that either.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::saving::{SaveContext, intervals, save};
use super::start_error::StartError;
use super::state_keeper::StateKeeper;
use crate::clock::{RoundedSpan, Stopwatch, SystemClock};
use crate::config::StateSettings;
use crate::edge::ServingGate;
use crate::engine::{Engine, Restorer, SavedCells};
use crate::history::TrafficHistory;
use crate::ops::Reloader;
use crate::policy::KeySecret;
use crate::state::{
    FrameKind, GROUPS, Recovery, SaveIntervals, StateDirectory, StateMetrics, StateSummary,
};

/// Frames that wait for a thread that restores.
const MAX_WAITING_FRAMES: usize = 8;

/// A directory that this process holds, before it is restored.
pub(super) struct OpenState {
    directory: StateDirectory,
    intervals: SaveIntervals,
}

/// What restoring and saving need of the process.
pub(super) struct StateKeeping {
    pub(super) saved: SaveContext,
    pub(super) reloader: Arc<Reloader>,
    pub(super) gate: Arc<ServingGate>,
    pub(super) keeper: Arc<StateKeeper>,
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
            let StateKeeping { saved, reloader, gate, keeper } = keeping;
            let SaveContext { engine, history, metrics, .. } = &saved;
            let metrics = Arc::clone(metrics);
            let timed = Stopwatch::start();
            restore(self.directory.recovery(), engine, history, &metrics);
            let span = RoundedSpan(timed.elapsed().into());
            log::info!("{} cells restored in {span}", metrics.recovered_cells());
            reloader.republish_restored();
            // What is damaged would be read again and again.
            let lacks_cells = self.directory.summary().is_incomplete();
            keeper.set_saver(save(self.directory, (self.intervals, lacks_cells), saved));
            metrics.end_restoring();
            gate.open();
        })?;
        Ok(())
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
    match (summary.is_clean, summary.has_orderly_end) {
        _ if summary.logs.is_empty() => {}
        (true, _) => {}
        (false, true) => log::warn!(
            "state: the process before ended in an orderly way, and a part of what it wrote cannot be read; under after_crash: deny its keys count as after a crash"
        ),
        (false, false) => log::warn!(
            "state: the process before did not end in an orderly way; what it had not written is lost"
        ),
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
