//! Brings what is written to the disk, on a thread of its own, while more is written.
//!
//! A disk may take long to confirm that it has everything. Writing goes on meanwhile, so the sudden end of a process loses
//! what changed within `flush`, however slow the disk is. What must always hold: there is one sync at a time, and it
//! covers what was written before it began.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use super::disk::{DiskFile, StateDisk};

/// What a sync covers.
pub struct SyncJob {
    pub(super) disk: Arc<dyn StateDisk>,
    /// Names of files of which nobody knows whether they are on the disk.
    pub(super) inherited: Vec<String>,
    /// Files that were written to.
    pub(super) files: Vec<Arc<dyn DiskFile>>,
    /// Whether names of files have changed.
    pub(super) names: bool,
}

impl SyncJob {
    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.inherited.is_empty() && !self.names
    }

    /// Returns when everything is on the disk.
    ///
    /// # Errors
    /// What the system says, or a file has lost its name, or the directory its lock or its secret: then nothing will find it
    /// again.
    pub fn run(&self) -> io::Result<()> {
        for name in &self.inherited {
            match self.disk.sync_file(name) {
                // It was removed meanwhile, because it is not needed any more.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        for file in &self.files {
            file.sync()?;
        }
        if self.names {
            self.disk.sync_names()?;
        }
        for file in &self.files {
            if !file.is_linked()? {
                return Err(io::Error::other("the file was removed while it was written"));
            }
        }
        self.disk.check_folder()
    }
}

/// Runs syncs, one after the other.
pub trait SyncRunner: Send {
    /// Begins. Nothing else runs.
    fn start(&mut self, job: SyncJob);

    /// The result of what was started, once, when it is there.
    fn take_result(&mut self) -> Option<io::Result<()>>;

    /// Waits for the result of what was started.
    ///
    /// # Errors
    /// That of the sync, or its thread has ended.
    fn wait(&mut self) -> io::Result<()>;
}

/// Runs syncs at once, for steps that are taken one by one.
#[derive(Debug, Default)]
pub(super) struct SyncAtOnce(Option<io::Result<()>>);

impl SyncRunner for SyncAtOnce {
    fn start(&mut self, job: SyncJob) {
        self.0 = Some(job.run());
    }

    fn take_result(&mut self) -> Option<io::Result<()>> {
        self.0.take()
    }

    fn wait(&mut self) -> io::Result<()> {
        self.0.take().unwrap_or(Ok(()))
    }
}

/// Runs syncs on a thread of its own.
pub(super) struct SyncThread {
    jobs: Sender<SyncJob>,
    results: Receiver<io::Result<()>>,
}

impl SyncThread {
    /// Starts the thread. It ends when this value is dropped, after the sync that it runs. `wake` is called after each sync.
    pub(super) fn spawn(wake: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (jobs, receiver) = channel::<SyncJob>();
        let (sender, results) = channel();
        std::thread::Builder::new().name("state-sync".to_owned()).spawn(move || {
            for job in receiver {
                // Nobody listens any more when the process ends.
                if sender.send(job.run()).is_err() {
                    return;
                }
                wake();
            }
        })?;
        Ok(Self { jobs, results })
    }
}

impl SyncRunner for SyncThread {
    fn start(&mut self, job: SyncJob) {
        // A thread that has ended is told with the result.
        let _is_taken = self.jobs.send(job);
    }

    fn take_result(&mut self) -> Option<io::Result<()>> {
        match self.results.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(thread_ended())),
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        self.results.recv().unwrap_or_else(|_| Err(thread_ended()))
    }
}

fn thread_ended() -> io::Error {
    io::Error::other("the thread that brings writes to the disk has ended")
}
