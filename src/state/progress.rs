//! What can be watched of a state directory: numbers that other threads read.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock::Nanos;

/// How an attempt to save ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// It is written.
    Ok,
    /// The disk is full.
    Full,
    /// It failed in another way.
    Error,
}

impl SaveOutcome {
    /// How an attempt ended that failed with this.
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Error,
        }
    }

    /// All outcomes.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Full, Self::Error];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Full => "full",
            Self::Error => "error",
        }
    }
}

/// Numbers of a state directory, written by the threads that restore and save.
#[derive(Debug, Default)]
pub struct StateMetrics {
    outcomes: [AtomicU64; SaveOutcome::ALL.len()],
    /// Bytes of the logs in the directory.
    pub(super) bytes: AtomicU64,
    /// Bytes written since the start.
    pub(super) written: AtomicU64,
    /// When what is on the disk was collected (monotonic).
    pub(super) saved_at: AtomicU64,
    /// Whether the last attempt failed.
    pub(super) is_failing: AtomicBool,
    /// The longest time that a shard was locked to be saved, in nanoseconds.
    pub(super) longest_lock: AtomicU64,
    recovered_cells: AtomicU64,
    /// Bytes that are restored, and bytes that are to be restored.
    restored: AtomicU64,
    to_restore: AtomicU64,
    is_restored: AtomicBool,
    /// Cells that the process before handed over, and for how long requests waited then, in nanoseconds.
    handed_over: AtomicU64,
    pause: AtomicU64,
}

impl StateMetrics {
    /// Records how an attempt to save ended.
    pub fn record(&self, outcome: SaveOutcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
        self.is_failing.store(outcome != SaveOutcome::Ok, Ordering::Relaxed);
    }

    /// Attempts to save that ended in this way.
    pub fn outcomes(&self, outcome: SaveOutcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Bytes of the logs in the directory.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that this process has written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Nothing of what changes from now on is saved, until something is (monotonic).
    pub fn begin_unsaved(&self, now: Nanos) {
        self.saved_at.store(now.get().max(1), Ordering::Relaxed);
    }

    /// Nothing has changed yet that is not saved, unless something is unsaved since before.
    pub(super) fn begin_saving(&self, now: Nanos) {
        // Another value means that.
        let _is_first =
            self.saved_at.compare_exchange(0, now.get(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The time of which changes would be lost now, if the process were killed.
    pub fn age(&self, now: Nanos) -> Nanos {
        match self.saved_at.load(Ordering::Relaxed) {
            // Nothing is saved in this process.
            0 => Nanos::ZERO,
            saved_at => now.saturating_sub(Nanos::new(saved_at)),
        }
    }

    /// Whether the last attempt to save failed.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Cells that were restored at the start.
    pub fn recovered_cells(&self) -> u64 {
        self.recovered_cells.load(Ordering::Relaxed)
    }

    /// Adds restored cells.
    pub fn add_recovered_cells(&self, cells: u64) {
        self.recovered_cells.fetch_add(cells, Ordering::Relaxed);
    }

    /// The longest time that a shard was locked to be saved.
    pub fn longest_lock(&self) -> Nanos {
        Nanos::new(self.longest_lock.load(Ordering::Relaxed))
    }

    /// Records for how long a shard was locked.
    pub fn record_lock(&self, span: Nanos) {
        self.longest_lock.fetch_max(span.get(), Ordering::Relaxed);
    }

    /// Records what the process before has handed over.
    pub fn record_handover(&self, cells: u64, pause: Nanos) {
        self.handed_over.store(cells, Ordering::Relaxed);
        self.pause.store(pause.get(), Ordering::Relaxed);
    }

    /// Cells that the process before has handed over, and for how long requests waited then.
    pub fn handover(&self) -> (u64, Nanos) {
        let pause = Nanos::new(self.pause.load(Ordering::Relaxed));
        (self.handed_over.load(Ordering::Relaxed), pause)
    }

    pub(super) fn begin_restoring(&self, bytes: u64) {
        self.to_restore.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_restored(&self, bytes: u64) {
        self.restored.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Everything that can be restored is restored.
    pub fn end_restoring(&self) {
        self.is_restored.store(true, Ordering::Release);
    }

    /// How much of the state is restored, in percent. `None`: all of it.
    pub fn restoring_percent(&self) -> Option<u64> {
        if self.is_restored.load(Ordering::Acquire) {
            return None;
        }
        let restored = self.restored.load(Ordering::Relaxed);
        Some(
            (restored * 100)
                .checked_div(self.to_restore.load(Ordering::Relaxed))
                .unwrap_or(0)
                .min(99),
        )
    }
}
