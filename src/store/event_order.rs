//! The order of charges, corrections and ends in this process, for traces of requests.
//!
//! Two readings of the clock do not tell which of two threads came first: a thread may be stopped between its reading and its
//! charge. So an event is counted under the lock of the cell, or of the shard of requests in flight, that it changes: for one key
//! the numbers are in the order in which the events happened. The numbers stay with the thread until they are taken, so that no
//! function has to hand them on that does not know of traces. Without traces nothing is counted.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static IS_COUNTED: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static MARKED: Cell<EventOrder> = const { Cell::new(EventOrder { cells: None, slots: None }) };
}

/// The numbers of what a thread did for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventOrder {
    /// That of the first change of cells. (Limits in shadow mode are charged after those that refuse.)
    pub cells: Option<u64>,
    /// That of the first change of what is in flight.
    pub slots: Option<u64>,
}

/// Counts events from now on, as long as the process lives.
pub fn count_events() {
    IS_COUNTED.store(true, Ordering::Relaxed);
}

/// Counts a change of cells by this thread. The caller holds their locks.
#[inline]
pub(super) fn mark_cells() {
    if IS_COUNTED.load(Ordering::Relaxed) {
        let marked = MARKED.get();
        MARKED.set(EventOrder { cells: marked.cells.or_else(|| Some(next_event())), ..marked });
    }
}

/// Counts a change of what is in flight by this thread. The caller holds its lock.
#[inline]
pub(super) fn mark_slots() {
    if IS_COUNTED.load(Ordering::Relaxed) {
        let marked = MARKED.get();
        MARKED.set(EventOrder { slots: marked.slots.or_else(|| Some(next_event())), ..marked });
    }
}

/// Forgets what this thread did: what follows belongs to another event.
pub fn begin_event() {
    MARKED.set(EventOrder::default());
}

/// What this thread did since it began the event.
pub fn marked_event() -> EventOrder {
    MARKED.get()
}

/// A number of its own for an event that changed nothing that is counted.
pub fn next_event() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}
