//! A batch: pending charges that go out as one call.
//!
//! It claims the charges that its call takes, and does not know the queue that they come from. The call contains
//! exactly the charges of the batch, in their order, so that its reply can be matched to them by position.

use std::sync::Arc;

use smallvec::SmallVec;

use super::call::{Call, CallFull};
use super::pending::PendingCharge;
use crate::clock::Nanos;

/// A charge in the queue.
pub(super) struct QueuedCharge {
    /// The deadline of `pending`, for searches of the queue.
    pub(super) deadline: Nanos,
    /// Whether it is sent in a call by itself, because an earlier call that carried it named a cell that cannot be
    /// read: its own, or that of another charge.
    pub(super) isolated: bool,
    pub(super) pending: Arc<PendingCharge>,
}

/// Charges that go out as one call.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) call: Call,
    /// The charges of the call, in its order.
    pub(super) pending: Vec<Arc<PendingCharge>>,
    /// The slot of all of its cells.
    pub(super) slot: u16,
    /// The cells of the queue that charges were taken from. Each counts this call as away until it has ended.
    pub(super) cells: SmallVec<[usize; 4]>,
    is_full: bool,
}

/// A call that has ended.
pub(super) struct EndedCall {
    /// [`Batch::cells`].
    pub(super) cells: SmallVec<[usize; 4]>,
    /// How many charges the call had.
    pub(super) charges: usize,
    /// Charges that were certainly not executed and go back to the queue, in order.
    pub(super) returned: Vec<Arc<PendingCharge>>,
    /// Whether each of those goes in a call by itself.
    pub(super) isolated: bool,
}

/// What a batch did with a charge.
pub(super) enum BatchOutcome {
    /// The batch has taken it.
    Taken,
    /// Its caller has left.
    CallerLeft,
    /// Not even an empty call takes it.
    TooLarge,
    /// It belongs in another call, and stays queued.
    Kept,
}

impl Batch {
    /// Whether no more charges are to be added.
    pub(super) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Adds a charge, if it fits and its caller waits.
    pub(super) fn add(&mut self, queued: &QueuedCharge) -> BatchOutcome {
        if queued.isolated && !self.pending.is_empty() {
            return BatchOutcome::Kept;
        }
        if !queued.pending.claim() {
            return BatchOutcome::CallerLeft;
        }
        match self.call.add(&queued.pending.charge) {
            Ok(()) => {
                self.is_full = queued.isolated || self.call.is_full();
                self.pending.push(Arc::clone(&queued.pending));
                BatchOutcome::Taken
            }
            Err(CallFull) if self.pending.is_empty() => BatchOutcome::TooLarge,
            Err(CallFull) if !queued.pending.unclaim() => BatchOutcome::CallerLeft,
            Err(CallFull) => {
                self.is_full = true;
                BatchOutcome::Kept
            }
        }
    }
}
