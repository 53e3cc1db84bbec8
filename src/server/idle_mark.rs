//! Whether a connection waits for a request, and whether it is to close to make room for another one.
//!
//! The connection writes the mark, twice a request; it is read only when there is no room left. So the
//! mark is a number of its own for each connection, and no list that all requests would have to lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use crate::clock::Nanos;

/// A request is served, or what comes before requests: TLS, a PROXY header.
const BUSY: u64 = 0;

/// The connection is to close.
const SHED: u64 = u64::MAX;

/// The mark of one connection.
#[derive(Debug)]
pub(super) struct IdleMark {
    /// [`BUSY`], [`SHED`], or since when the connection has been idle.
    state: AtomicU64,
    /// Wakes the connection's task when it is to close.
    waker: AtomicWaker,
    /// Of the connection's client: whether any of its connections may be idle.
    some_idle: Arc<AtomicBool>,
    /// Of all clients: connections that are to close and have not yet.
    closing: Arc<AtomicUsize>,
    /// Where the connection stands in its client's list, under that list's lock.
    pub(super) place: AtomicUsize,
}

impl IdleMark {
    /// The mark of a busy connection.
    pub(super) fn new(some_idle: Arc<AtomicBool>, closing: Arc<AtomicUsize>, place: usize) -> Self {
        Self {
            state: AtomicU64::new(BUSY),
            waker: AtomicWaker::new(),
            some_idle,
            closing,
            place: AtomicUsize::new(place),
        }
    }

    /// The connection waits for a request from now on (monotonic).
    pub(super) fn idle(&self, now: Nanos) {
        // In this order, and in one order with those of `search`: else a search between the two lines
        // could miss the connection, and nobody would look for it again.
        self.state.store(now.get().clamp(BUSY + 1, SHED - 1), Ordering::SeqCst);
        if !self.some_idle.load(Ordering::SeqCst) {
            self.some_idle.store(true, Ordering::SeqCst);
        }
    }

    /// A request has come: the connection stays, even if it was to close.
    pub(super) fn busy(&self) {
        if self.state.swap(BUSY, Ordering::SeqCst) == SHED {
            self.closing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Since when the connection has been idle, if it is.
    pub(super) fn idle_since(&self) -> Option<Nanos> {
        let state = self.state.load(Ordering::SeqCst);
        (state != BUSY && state != SHED).then_some(Nanos::new(state))
    }

    /// Tells the connection to close if it is still idle since then.
    pub(super) fn shed(&self, since: Nanos) -> bool {
        let told = self
            .state
            .compare_exchange(since.get(), SHED, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        if told {
            self.closing.fetch_add(1, Ordering::Relaxed);
            self.waker.wake();
        }
        told
    }

    /// Whether the connection is to close.
    pub(super) fn is_shed(&self) -> bool {
        self.state.load(Ordering::SeqCst) == SHED
    }

    /// Ready when the connection is to close.
    pub(super) fn poll_shed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.is_shed() { Poll::Ready(()) } else { Poll::Pending }
    }
}
