//! The state directory of a process that takes over from another one.
//!
//! The running process holds its directory until it has handed over and has written its last changes. A directory that is free
//! while it serves is another one, or was removed. (It is free too when that process has just ended: so it has to say that it serves
//! on after this one has locked it, and before anything is changed in it.) Then everything that is taken up is saved before this process counts, so no
//! moment is without a copy.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use super::saving::{SaveContext, SavingThread, intervals, save};
use super::start_error::StartError;
use super::state_keeper::StateKeeper;
use super::state_keeping::StateKeeping;
use crate::clock::{Clock as _, Stopwatch};
use crate::config::StateSettings;
use crate::handover::{BeginSaving, EarlySave, Greeted};
use crate::state::{
    FoundLogs, KEY_SECRET_BYTES, LockedFolder, OtherSecret, StateDirectory, StateError,
};

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

    /// Looks whether the directory is free, after everything has been copied once, and changes nothing in it. If it is, what is
    /// returned saves everything into it. Otherwise a thread waits until this process counts, and the one before has let go of it.
    pub(super) fn look(self, keeping: StateKeeping) -> BeginSaving {
        let StateKeeping { saved, keeper, .. } = keeping;
        keeper.set_before_switch(None);
        let nothing: BeginSaving = Box::new(|| EarlySave::Nothing);
        let (told, locked) = sync_channel(0);
        let (go, may_open) = channel();
        let (give, opened) = sync_channel(0);
        let early = EarlyState {
            settings: self.settings.clone(),
            running_has_state: self.running_has_state,
            saved: saved.clone(),
            keeper: Arc::clone(&keeper),
            go,
            opened,
        };
        let waiting = WaitingState { later: self, saved, keeper };
        let thread = std::thread::Builder::new().name("state-lock".to_owned());
        if let Err(error) = thread.spawn(move || waiting.run(&told, &may_open, give)) {
            log::error!("the state is not saved: no thread for it: {error}");
            return nothing;
        }
        match received(&locked) {
            Some(true) => Box::new(move || early.begin()),
            Some(false) | None => nothing,
        }
    }

    fn lock(&self) -> Result<LockedFolder, StateError> {
        LockedFolder::lock(&self.settings.directory, &self.secret, self.other)
    }

    fn open(&self, found: FoundLogs, saved: &SaveContext) -> Result<StateDirectory, StateError> {
        self.lock()?.open(found, date(saved))
    }
}

fn date(saved: &SaveContext) -> u64 {
    saved.clock.date(saved.clock.now()).secs()
}

/// A directory that was free while the process before is known to have served on. So it is not that process's.
struct EarlyState {
    settings: StateSettings,
    running_has_state: bool,
    saved: SaveContext,
    keeper: Arc<StateKeeper>,
    /// Lets the thread that has locked the directory open it. Dropped, it gives it back as it is.
    go: Sender<()>,
    opened: Receiver<StateDirectory>,
}

impl EarlyState {
    /// Saves everything, before this process counts.
    fn begin(self) -> EarlySave {
        // If the thread has ended, nothing is opened.
        let _is_heard = self.go.send(());
        let Some(directory) = received(&self.opened) else {
            return EarlySave::Nothing;
        };
        if self.running_has_state {
            log::warn!(
                "the running process does not hold {}: it saves elsewhere, or somebody has removed it; everything is saved here before this process counts",
                self.settings.directory.display()
            );
        }
        let engine = Arc::clone(&self.saved.engine);
        let Some(saver) = save(directory, (intervals(&self.settings), true), self.saved) else {
            return EarlySave::Nothing;
        };
        self.keeper.set_before_switch(Some(saver));
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
}

/// What the thread says that has to do with the directory, unless it has ended.
fn received<T>(results: &Receiver<T>) -> Option<T> {
    match results.recv_timeout(OPEN_PATIENCE) {
        Ok(result) => Some(result),
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
    /// `may_open`: something is received when the process before has told that it serves on.
    fn run(
        mut self,
        told: &SyncSender<bool>,
        may_open: &Receiver<()>,
        give: SyncSender<StateDirectory>,
    ) {
        let mut is_told = false;
        let locked = match self.later.lock() {
            Ok(locked) => Some(locked),
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
        // If it took too long, nobody listens, and it is given back.
        let is_heard = told.send(locked.is_some()).is_ok();
        if let Some(locked) = locked.filter(|_| is_heard) {
            if may_open.recv().is_err() {
                // The process before has not handed over.
                return;
            }
            match locked.open(FoundLogs::AreMoved, date(&self.saved)) {
                Ok(directory) => {
                    // If opening took too long, it is given back by this.
                    if give.send(directory).is_ok() {
                        return;
                    }
                }
                Err(error) => {
                    log::error!("the state is not saved yet: {error}");
                    is_told = true;
                }
            }
        }
        drop(give);
        self.save_once_wanted(is_told);
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
