//! Room for requests that wait for their turn (`max_delay`).
//!
//! A request takes its slot before it is charged. Without one it is judged as if its limits delayed
//! nobody, so that a request that cannot wait is not charged for a turn that it will not take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most requests that wait at once: each holds its connection.
const MAX_WAITING: usize = 10_000;

/// How many wait.
#[derive(Debug, Default)]
pub(super) struct WaitingRoom(Arc<AtomicUsize>);

/// A slot in the waiting room, free again when it is dropped.
#[derive(Debug)]
pub(super) struct WaitingSlot(Arc<AtomicUsize>);

impl WaitingRoom {
    /// A slot, if there is one.
    pub(super) fn enter(&self) -> Option<WaitingSlot> {
        let waiting = self.0.fetch_add(1, Ordering::Relaxed);
        // Above the bound, dropping it takes back what was added.
        let slot = WaitingSlot(Arc::clone(&self.0));
        (waiting < MAX_WAITING).then_some(slot)
    }

    /// Requests that have a slot.
    pub(super) fn waiting(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for WaitingSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
