//! The state directory of a process that takes over from another one.
//!
//! The running process holds its directory until it has handed over and has written its last changes. A directory that is free
//! while it serves is another one, or was removed: then everything that is taken up is saved before this process counts, so no
//! moment is without a copy.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::saving::{SaveContext, SavingThread, intervals, save};
use super::start_error::StartError;
use super::state_keeper::StateKeeper;
use super::state_keeping::StateKeeping;
use crate::clock::{Clock as _, Stopwatch};
use crate::config::StateSettings;
use crate::handover::{EarlySave, Greeted};
use crate::state::{FoundLogs, KEY_SECRET_BYTES, OtherSecret, StateDirectory, StateError};

/// How long a directory is waited for. Together with [`SAVE_PATIENCE`] it is less than the 10 s that the running process waits to be
/// told that this one is prepared.
const OPEN_PATIENCE: Duration = Duration::from_secs(2);

/// How long everything that was taken up may take to be saved before this process counts.
const SAVE_PATIENCE: Duration = Duration::from_secs(5);

/// How long the process before may still hold the directory before that is logged as an error.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// The time between two attempts to get the directory: before that, and after it.
const LOCK_RETRY: Duration = Duration::from_millis(10);
const LATE_LOCK_RETRY: Duration = Duration::from_secs(1);

/// A directory that this process saves to once it counts.
pub(super) struct LaterState {
    settings: StateSettings,
    secret: [u8; KEY_SECRET_BYTES],
    other: OtherSecret,
    /// The [`run_id`](crate::state::run_id) of the process before, and whether it has a state directory.
    running: u64,
    running_has_state: bool,
}

impl LaterState {
    /// Checks that this process will be able to use the directory. `other`: what becomes of that of another secret.
    pub(super) fn check(
        settings: &StateSettings,
        running: &Greeted,
        other: OtherSecret,
    ) -> Result<Self, StartError> {
        let (folder, secret) = (settings.directory.clone(), *running.secret());
        let (tell, told) = sync_channel(1);
        let checking = std::thread::Builder::new().name("state-check".to_owned());
        let checking = checking.spawn(move || {
            // Nobody waits any more if it took too long.
            let _is_heard = tell.send(StateDirectory::check_for(&folder, &secret, other));
        });
        let checked = match checking {
            Ok(_) => told
                .recv_timeout(OPEN_PATIENCE)
                .unwrap_or_else(|_| Err(StateError::Silent { folder: settings.directory.clone() })),
            Err(error) => return Err(StartError::Restore(error)),
        };
        checked.map_err(|error| StartError::State(Box::new(error)))?;
        let (running, running_has_state) = (running.run_id(), running.has_state());
        Ok(Self { settings: settings.clone(), secret, other, running, running_has_state })
    }

    /// Begins to save, after everything has been copied once and before this process counts. If the directory is free, returns
    /// when everything is saved. Otherwise a thread waits until this process counts, and the one before has let go of it.
    pub(super) fn begin(self, keeping: StateKeeping) -> EarlySave {
        let StateKeeping { saved, keeper, .. } = keeping;
        keeper.set_before_switch(None);
        let (tell, had) = sync_channel(0);
        let (settings, has_other) = (self.settings.clone(), self.running_has_state);
        let waiting =
            WaitingState { later: self, saved: saved.clone(), keeper: Arc::clone(&keeper) };
        let thread = std::thread::Builder::new().name("state-lock".to_owned());
        if let Err(error) = thread.spawn(move || waiting.run(&tell)) {
            log::error!("the state is not saved: no thread for it: {error}");
            return EarlySave::Nothing;
        }
        let Some(directory) = received(&had) else {
            return EarlySave::Nothing;
        };
        drop(had);
        if has_other {
            log::warn!(
                "the running process does not hold {}: it saves elsewhere, or somebody has removed it; everything is saved here before this process counts",
                settings.directory.display()
            );
        }
        let engine = Arc::clone(&saved.engine);
        let Some(saver) = save(directory, (intervals(&settings), true), saved) else {
            return EarlySave::Nothing;
        };
        keeper.set_before_switch(Some(saver));
        match engine.save_within(SAVE_PATIENCE) {
            true => EarlySave::Everything,
            false => {
                log::warn!(
                    "what was taken up is not saved within {SAVE_PATIENCE:?}; until it is, a sudden end of this process loses it"
                );
                EarlySave::Incomplete
            }
        }
    }

    fn open(&self, found: FoundLogs, saved: &SaveContext) -> Result<StateDirectory, StateError> {
        let date = saved.clock.date(saved.clock.now()).secs();
        let found = (found, self.other);
        StateDirectory::open_for_handover(&self.settings.directory, &self.secret, found, date)
    }
}

/// The directory, if it is free.
fn received(had: &Receiver<Option<StateDirectory>>) -> Option<StateDirectory> {
    match had.recv_timeout(OPEN_PATIENCE) {
        Ok(directory) => directory,
        Err(RecvTimeoutError::Timeout) => {
            log::error!("the state directory does not answer; the handover goes on without it");
            None
        }
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

/// What the thread needs that waits for the directory.
struct WaitingState {
    later: LaterState,
    saved: SaveContext,
    keeper: Arc<StateKeeper>,
}

impl WaitingState {
    fn run(mut self, tell: &SyncSender<Option<StateDirectory>>) {
        let mut is_told = false;
        let first = match self.later.open(FoundLogs::AreMoved, &self.saved) {
            Ok(directory) => Some(directory),
            Err(StateError::InUse { .. }) => {
                // Held with another secret, it is not the process before that holds it: its files are not ignored.
                self.later.other = OtherSecret::IsRefused;
                None
            }
            Err(error) => {
                log::error!("the state is not saved yet: {error}");
                is_told = true;
                None
            }
        };
        let is_free = first.is_some();
        // If it is not taken, because opening it took too long, it is given back by this.
        if tell.send(first).is_err() || !is_free {
            self.save_once_wanted(is_told);
        }
    }

    /// Waits until this process counts, and gets the directory. `is_told`: why it is not had yet is in the log.
    fn save_once_wanted(self, mut is_told: bool) {
        let mut waits = None;
        // Whoever has given its cells away must not save what is left.
        while self.keeper.until_wanted() {
            let timed = waits.get_or_insert_with(Stopwatch::start);
            let wait = match self.later.open(FoundLogs::Stay, &self.saved) {
                Ok(directory) => match self.keeper.had(directory, |directory, was_copied| {
                    self.save(directory, was_copied, is_told)
                }) {
                    None => return,
                    Some(unwanted) => {
                        drop(unwanted);
                        continue;
                    }
                },
                Err(StateError::InUse { .. }) if timed.elapsed() < LOCK_PATIENCE => LOCK_RETRY,
                Err(error) => {
                    self.saved.metrics.record(error.outcome());
                    self.saved.engine.set_saves_failing();
                    if !std::mem::replace(&mut is_told, true) {
                        log::error!("the state is not saved yet: {error}");
                    }
                    LATE_LOCK_RETRY
                }
            };
            std::thread::sleep(wait);
        }
    }

    fn save(
        &self,
        directory: StateDirectory,
        was_copied: bool,
        is_told: bool,
    ) -> Option<SavingThread> {
        if is_told {
            log::warn!("the state is saved from now on");
        }
        // What the process before has not saved is saved by nobody else. The logs may end in an orderly way because the one
        // before that did.
        let lacks_cells = was_copied || !directory.summary().was_ended_by(self.later.running);
        save(directory, (intervals(&self.later.settings), lacks_cells), self.saved.clone())
    }
}
