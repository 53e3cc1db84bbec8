//! The order of charges, corrections and ends in this process, for traces of requests.
//!
//! A decision looks at bans, slots in flight, cells and sketches one after the other, each under a lock of its own, so that two
//! decisions may come to pass in one order at the bans and in another at the cells. A replay decides one request after the
//! other. What must always hold: what a request with a trace does comes to pass at once, at its number. So the events of such
//! requests wait for one another, for about a microsecond each; requests without a trace do not.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// The order of the events of requests with a trace. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct EventOrder(Arc<Mutex<u64>>);

/// An event that comes to pass. No other does before it is dropped; it must not be held across a wait.
#[must_use = "the event has passed when it is dropped"]
pub(super) struct OrderedEvent<'o>(MutexGuard<'o, u64>);

impl EventOrder {
    /// Begins an event, when the one before has passed.
    pub(super) fn begin(&self) -> OrderedEvent<'_> {
        let mut last = self.0.lock();
        *last += 1;
        OrderedEvent(last)
    }
}

impl OrderedEvent<'_> {
    /// Its position in the order, from 1.
    pub(super) fn number(&self) -> u64 {
        *self.0
    }
}
