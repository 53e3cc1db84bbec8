//! Who saves: nobody, this process, or the one that takes over from it.
//!
//! What must always hold: what a successor counts is saved by nobody else; the end of the process waits for the last save, but
//! not for a disk that does not answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::saving::{SaveContext, SavingThread};
use crate::clock::Stopwatch;
use crate::engine::Engine;
use crate::handover::{Keeper, KeeperTask};
use crate::state::{AfterTask, LastSave, StateDirectory};

/// How long the end of the process waits for the last save. A disk that does not answer must not keep the process.
pub(super) const SAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The thread that saves, once it runs.
#[derive(Default)]
pub(super) struct StateKeeper {
    saving: Mutex<Saving>,
    changed: Condvar,
}

/// Who saves.
///
/// ```text
///   Nobody        no state directory, or none yet
///     │ run --upgrade
///   BeforeSwitch ──────counts──────► Awaited ◄────failed──── GivenAway ────taken────► HandedOver
///     │                                │ └───────copied─────────▲
///     └──counts, has its directory─► Saver ◄──has its directory
/// ```
///
/// A saver whose process hands over ends by itself.
#[derive(Default)]
enum Saving {
    #[default]
    Nobody,
    /// The process before counts. What this one takes up is saved already, if the directory is free.
    BeforeSwitch(Option<SavingThread>),
    /// The directory is not here yet. `was_copied`: changes have been copied for a successor that failed.
    Awaited {
        was_copied: bool,
    },
    /// Meanwhile a successor is given everything.
    GivenAway,
    /// A successor has everything.
    HandedOver,
    Saver(SavingThread),
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
            Saving::Nobody | Saving::BeforeSwitch(_) | Saving::GivenAway | Saving::HandedOver => {}
        }
        drop(saving);
        let keeper = Arc::clone(self);
        let copying = std::thread::Builder::new().name("copy".to_owned()).spawn(move || {
            // This thread ends with the task.
            let after = task(&mut Keeper::copying(saved.source()));
            keeper.end_giving(after);
        });
        copying.map(drop).inspect_err(|_| self.end_giving(AfterTask::GoOn))
    }

    /// Saves the last changes, at the end of the process.
    pub(super) fn finish(&self, engine: &Engine) {
        let timed = Stopwatch::start();
        let mut saving = self.saving.lock();
        let is_open =
            |saving: &mut Saving| matches!(saving, Saving::Awaited { .. } | Saving::GivenAway);
        self.changed.wait_while_for(&mut saving, is_open, SAVE_TIMEOUT);
        let handle = match &*saving {
            Saving::Saver(handle) => Arc::clone(handle),
            Saving::Awaited { .. } | Saving::GivenAway => {
                log::error!(
                    "nothing of what was counted since the handover is saved: the directory could not be had"
                );
                return;
            }
            Saving::Nobody | Saving::BeforeSwitch(_) | Saving::HandedOver => return,
        };
        drop(saving);
        engine.end_saves();
        match handle.finish(SAVE_TIMEOUT.saturating_sub(timed.elapsed())) {
            LastSave::Saved | LastSave::LeftToSuccessor => {}
            LastSave::NotSaved => log::error!(
                "the end of the state is not saved: what is not on the disk can be spent again"
            ),
        }
    }

    /// This process restores from its directory, and saves to it from now on.
    pub(super) fn set_saver(&self, saver: Option<SavingThread>) {
        *self.saving.lock() = saver.map_or(Saving::Nobody, Saving::Saver);
    }

    /// The process before counts. `saver`: what saves already what this one takes up.
    pub(super) fn set_before_switch(&self, saver: Option<SavingThread>) {
        *self.saving.lock() = Saving::BeforeSwitch(saver);
    }

    /// This process counts from now on. Returns whether it has a directory that it cannot save to yet.
    pub(super) fn set_counting(&self) -> bool {
        let mut saving = self.saving.lock();
        if let Saving::BeforeSwitch(saver) = &mut *saving {
            let saver = saver.take();
            *saving = saver.map_or(Saving::Awaited { was_copied: false }, Saving::Saver);
        }
        self.changed.notify_all();
        matches!(*saving, Saving::Awaited { .. })
    }

    /// A handover has ended. After a failure the cells are here again.
    fn end_giving(&self, after: AfterTask) {
        let mut saving = self.saving.lock();
        if matches!(*saving, Saving::GivenAway) {
            *saving = match after {
                AfterTask::GoOn => Saving::Awaited { was_copied: true },
                AfterTask::HandedOver => Saving::HandedOver,
            };
        }
        self.changed.notify_all();
    }

    /// Returns when this process counts and has its cells: `true`. `false`: they have gone for good.
    pub(super) fn until_wanted(&self) -> bool {
        let mut saving = self.saving.lock();
        let is_undecided =
            |saving: &mut Saving| matches!(saving, Saving::BeforeSwitch(_) | Saving::GivenAway);
        self.changed.wait_while(&mut saving, is_undecided);
        matches!(*saving, Saving::Awaited { .. })
    }

    /// The directory is here. `save` begins to save, and is told whether changes were copied for a successor that failed.
    /// If the cells have been given away just now, the directory comes back: the successor may want it.
    pub(super) fn had(
        &self,
        directory: StateDirectory,
        save: impl FnOnce(StateDirectory, bool) -> Option<SavingThread>,
    ) -> Option<StateDirectory> {
        let mut saving = self.saving.lock();
        let Saving::Awaited { was_copied } = *saving else {
            return Some(directory);
        };
        *saving = save(directory, was_copied).map_or(Saving::Nobody, Saving::Saver);
        self.changed.notify_all();
        None
    }
}
