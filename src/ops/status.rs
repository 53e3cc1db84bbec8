//! The state of the process for operators: whether it is ready, and how the last reload went.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::clock::{Nanos, Now};
use crate::engine::ReloadReport;
use crate::state::StateMetrics;

/// Readiness and reloads. Shared by the code that records them and the admin API.
#[derive(Debug)]
pub struct Status {
    started: Now,
    /// What is restored, taken over and saved.
    counts: Arc<StateMetrics>,
    are_saved: bool,
    ready: AtomicBool,
    applied: AtomicU64,
    refused: AtomicU64,
    /// Since the epoch; the start of the process until a reload is applied.
    last_success: AtomicU64,
    last: Mutex<Option<LastReload>>,
    /// The last one that was applied, also after others were refused.
    last_applied: Mutex<Option<LastReload>>,
}

#[derive(Clone, Debug)]
struct LastReload {
    date: Nanos,
    duration: Nanos,
    outcome: ReloadOutcome,
}

/// How a reload went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// The next generation is in force.
    Applied {
        /// Its number.
        generation: u64,
        /// Which limits continue, and which begin anew.
        report: ReloadReport,
        /// What differs from the policy before; bounded.
        changes: Vec<String>,
    },
    /// The previous generation stays in force.
    Refused {
        /// Every reason; each is one line of the log.
        errors: Vec<String>,
    },
}

impl Status {
    /// The status of a process that is not ready yet. `date`: the date of `started`.
    pub fn new(started: Now, date: Nanos) -> Self {
        Self {
            started,
            counts: Arc::default(),
            are_saved: false,
            ready: AtomicBool::new(false),
            applied: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            last_success: AtomicU64::new(date.get()),
            last: Mutex::new(None),
            last_applied: Mutex::new(None),
        }
    }

    /// The same, of a process that counts. `are_saved`: whether it has a state directory.
    pub fn with_state(self, counts: Arc<StateMetrics>, are_saved: bool) -> Self {
        Self { counts, are_saved, ..self }
    }

    /// What is restored and saved; `None` without a state directory.
    pub fn state(&self) -> Option<&Arc<StateMetrics>> {
        Some(&self.counts).filter(|_| self.are_saved)
    }

    /// Cells that the process before has handed over, and for how long requests waited then.
    pub fn handover(&self) -> (u64, Nanos) {
        self.counts.handover()
    }

    /// Sets whether the process is ready for new connections.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// Whether the process is ready for new connections.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Records how a reload went, the date of its end, and how long it took.
    pub fn reloaded(&self, date: Nanos, duration: Nanos, outcome: ReloadOutcome) {
        let ended = LastReload { date, duration, outcome };
        match &ended.outcome {
            ReloadOutcome::Applied { .. } => {
                *self.last_applied.lock() = Some(ended.clone());
                self.applied.fetch_add(1, Ordering::Relaxed);
                self.last_success.store(date.get(), Ordering::Relaxed);
            }
            ReloadOutcome::Refused { .. } => {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        *self.last.lock() = Some(ended);
    }

    /// When the process started.
    pub const fn started(&self) -> Now {
        self.started
    }

    /// How many reloads were applied and refused.
    pub fn reloads(&self) -> (u64, u64) {
        (self.applied.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    /// When a configuration was last put in force, since the epoch.
    pub fn last_success(&self) -> Nanos {
        Nanos::new(self.last_success.load(Ordering::Relaxed))
    }

    /// The date and the outcome of the last reload.
    pub fn last(&self) -> Option<(Nanos, ReloadOutcome)> {
        self.last.lock().as_ref().map(|last| (last.date, last.outcome.clone()))
    }

    /// The date and the outcome of the last reload that was applied.
    pub fn last_applied(&self) -> Option<(Nanos, ReloadOutcome)> {
        self.last_applied.lock().as_ref().map(|last| (last.date, last.outcome.clone()))
    }

    /// How long the last reload took, applied or refused; `None` before the first.
    pub fn last_duration(&self) -> Option<Nanos> {
        self.last.lock().as_ref().map(|last| last.duration)
    }
}
