//! The thread that saves: when it saves next, what it does in between, and how it ends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::directory::StateLock;
use super::saver::{Saver, StateSource};
use super::sync::SyncThread;
use crate::clock::Stopwatch;

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
    /// A successor has the cells: it ends after a last save.
    HandedOver,
}

/// How saving has ended.
#[must_use = "what is not saved can be spent again"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastSave {
    /// Everything is saved.
    Saved,
    /// A successor has the cells and saves them.
    LeftToSuccessor,
    /// The last changes are not saved, or not yet.
    NotSaved,
}

struct SaverState<S> {
    phase: Phase,
    /// Whether a sync has ended.
    is_synced: bool,
    /// Taken by the thread.
    task: Option<SaverTask<S>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// A request waits for the next save.
    Urgent,
    Stopping,
    Ended(LastSave),
}

/// What the thread does next.
enum NextStep<S> {
    Save { is_urgent: bool },
    PollSync,
    Task(SaverTask<S>),
    Finish,
}

/// What the thread owns. When it is dropped, also because the thread panics, the handle tells that the thread has ended.
struct SaverThread<S: StateSource> {
    saver: Saver<S>,
    handle: Arc<SaverHandle<S>>,
    /// Given back at the end.
    lock: Option<StateLock>,
}

impl<S: StateSource> SaverThread<S> {
    fn run(mut self) {
        let last = match self.save_on() {
            AfterTask::HandedOver => {
                let lock = self.lock.take();
                // If it is not saved here, the successor writes everything anew.
                self.saver.finish_handed_over(|| drop(lock));
                LastSave::LeftToSuccessor
            }
            AfterTask::GoOn if self.saver.finish() => LastSave::Saved,
            AfterTask::GoOn => LastSave::NotSaved,
        };
        drop(self.lock.take());
        self.handle.end(last);
    }

    /// Saves until the thread is told to end, or a successor has the cells.
    fn save_on(&mut self) -> AfterTask {
        let mut saved = Stopwatch::start();
        loop {
            let interval = Duration::from(self.saver.flush_interval());
            match self.handle.next_step(interval.saturating_sub(saved.elapsed())) {
                NextStep::Save { is_urgent } => {
                    saved = Stopwatch::start();
                    self.saver.step(is_urgent);
                }
                NextStep::PollSync => self.saver.poll_sync(),
                NextStep::Task(task) => match task(&mut self.saver) {
                    AfterTask::GoOn => {}
                    AfterTask::HandedOver => return AfterTask::HandedOver,
                },
                NextStep::Finish => return AfterTask::GoOn,
            }
        }
    }
}

impl<S: StateSource> Drop for SaverThread<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::error!("the state is not saved any more: the thread that saves has panicked");
            self.saver.abandon();
        }
        self.handle.end(LastSave::NotSaved);
    }
}

impl<S: StateSource + 'static> SaverHandle<S> {
    /// Starts the thread. It holds the lock of the directory until it has ended.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn spawn(mut saver: Saver<S>, lock: StateLock) -> io::Result<Arc<Self>> {
        let state = SaverState { phase: Phase::Running, is_synced: false, task: None };
        let handle = Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() });
        let (own, woken) = (Arc::clone(&handle), Arc::clone(&handle));
        saver = saver.with_sync_runner(Box::new(SyncThread::spawn(move || woken.set_synced())?));
        let thread = SaverThread { saver, handle: own, lock: Some(lock) };
        std::thread::Builder::new().name("state".to_owned()).spawn(move || thread.run())?;
        Ok(handle)
    }
}

impl<S: StateSource> SaverHandle<S> {
    /// Waits until the time of the next step.
    fn next_step(&self, time: Duration) -> NextStep<S> {
        let mut state = self.state.lock();
        if state.phase == Phase::Running && state.task.is_none() && !state.is_synced {
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
                None if std::mem::take(&mut state.is_synced) => NextStep::PollSync,
                None => NextStep::Save { is_urgent: false },
            },
        }
    }

    fn end(&self, last: LastSave) {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Ended(_)) {
            state.phase = Phase::Ended(last);
        }
        self.changed.notify_all();
    }

    fn set_synced(&self) {
        self.state.lock().is_synced = true;
        self.changed.notify_all();
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

    /// Ends the thread after a last save, and waits for that as long as `patience`.
    pub fn finish(&self, patience: Duration) -> LastSave {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Running | Phase::Urgent) {
            state.phase = Phase::Stopping;
            self.changed.notify_all();
        }
        let is_running = |state: &mut SaverState<S>| !matches!(state.phase, Phase::Ended(_));
        self.changed.wait_while_for(&mut state, is_running, patience);
        match state.phase {
            Phase::Ended(last) => last,
            Phase::Running | Phase::Urgent | Phase::Stopping => LastSave::NotSaved,
        }
    }
}
