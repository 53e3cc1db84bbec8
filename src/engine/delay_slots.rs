//! Bounds how many requests are delayed at once (`max_delay`).
//!
//! A request takes a slot before it is charged. Without a free slot it is judged under the same quotas without their
//! delay, so that a request that cannot wait is not charged for a later departure.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest number of requests that are delayed at once. Each of them holds its connection.
const MAX_DELAYED: usize = 10_000;

/// Counts the taken slots.
#[derive(Debug, Default)]
pub(super) struct DelaySlots(Arc<AtomicUsize>);

/// A taken slot; dropping it frees it.
#[derive(Debug)]
pub(super) struct DelaySlot(Arc<AtomicUsize>);

impl DelaySlots {
    /// Takes a slot, if one is free.
    pub(super) fn take(&self) -> Option<DelaySlot> {
        let taken = self.0.fetch_add(1, Ordering::Relaxed);
        // Above the bound, dropping the slot undoes the increment.
        let slot = DelaySlot(Arc::clone(&self.0));
        (taken < MAX_DELAYED).then_some(slot)
    }

    /// The number of taken slots.
    pub(super) fn taken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for DelaySlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
