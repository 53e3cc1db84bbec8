//! How the exchange of a fleet goes, for metrics and for whoever asks.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::Nanos;

/// How a call of the exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetOutcome {
    /// The store answered.
    Ok,
    /// It did not answer, or refused.
    Failed,
    /// It was not asked, since it is away.
    Away,
}

impl FleetOutcome {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Failed, Self::Away];

    /// Its label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Away => "away",
        }
    }
}

/// What the exchange has come to. Reading it never waits for the exchange.
#[derive(Debug, Default)]
pub struct FleetProgress {
    calls: [AtomicU64; FleetOutcome::ALL.len()],
    nodes: AtomicU32,
    is_running: AtomicBool,
    /// When (monotonic) the store answered last, or the exchange began.
    heard_at: AtomicU64,
    /// Chunks of other nodes that were left out.
    refused_chunks: AtomicU64,
    /// For each limit (by its tag), how far the nodes may exceed it now, in parts per million.
    errors: Mutex<HashMap<u64, u64>>,
}

impl FleetProgress {
    /// Calls that ended in this way.
    pub fn calls(&self, outcome: FleetOutcome) -> u64 {
        self.calls[outcome as usize].load(Ordering::Relaxed)
    }

    /// Live nodes, as the store told last; this one included.
    pub fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// How old the latest answer of the store is. `None`: no limit counts over the fleet.
    pub fn lag(&self, now: Nanos) -> Option<Nanos> {
        let heard_at = Nanos::new(self.heard_at.load(Ordering::Relaxed));
        self.is_running.load(Ordering::Relaxed).then(|| now.saturating_sub(heard_at))
    }

    /// Chunks of other nodes that were left out: of nodes with another key secret or a later version, or made up.
    pub fn refused_chunks(&self) -> u64 {
        self.refused_chunks.load(Ordering::Relaxed)
    }

    /// How far the nodes together may exceed a limit now, as a share of it, besides what arrives between two exchanges.
    pub fn error(&self, tag: u64) -> f64 {
        self.errors.lock().get(&tag).copied().unwrap_or_default() as f64 / 1e6
    }

    pub(super) fn record_call(&self, outcome: FleetOutcome) {
        self.calls[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn record_refused(&self, chunks: u64) {
        self.refused_chunks.fetch_add(chunks, Ordering::Relaxed);
    }

    pub(super) fn record_answer(&self, nodes: u32, now: Nanos) {
        self.nodes.store(nodes, Ordering::Relaxed);
        self.heard_at.store(now.get(), Ordering::Relaxed);
    }

    pub(super) fn set_running(&self, runs: bool, now: Nanos) {
        if !self.is_running.swap(runs, Ordering::Relaxed) && runs {
            self.heard_at.store(now.get(), Ordering::Relaxed);
        }
        if !runs {
            self.nodes.store(0, Ordering::Relaxed);
            self.errors.lock().clear();
        }
    }

    pub(super) fn set_errors(&self, errors: impl Iterator<Item = (u64, u64)>) {
        *self.errors.lock() = errors.collect();
    }
}
