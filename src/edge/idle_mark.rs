//! Whether a connection waits for its client, and whether it is to close to make room for another one.
//!
//! The connection writes the mark, twice a request; it is read only when there is no room left. So the
//! mark is a number of its own for each connection, and no list that all requests would have to lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use crate::clock::Nanos;

/// A request is served.
const BUSY: u64 = 0;

/// The connection is to close.
const SHED: u64 = u64::MAX;

/// Set in a state: the connection is not idle, but has no whole request either. (The last bit of a time in
/// nanoseconds.)
const UNFINISHED: u64 = 1;

/// Since when a connection waits for its client, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since(u64);

impl Since {
    /// Whether the client has begun something and not ended it.
    pub(crate) const fn is_unfinished(self) -> bool {
        self.0 & UNFINISHED != 0
    }

    /// Since when (monotonic; a nanosecond too late at most).
    pub(crate) const fn at(self) -> Nanos {
        Nanos::new(self.0)
    }
}

/// The mark of one connection.
#[derive(Debug)]
pub(crate) struct IdleMark {
    /// [`BUSY`], [`SHED`], or a [`Since`].
    state: AtomicU64,
    /// Wakes the connection's task when it is to close.
    waker: AtomicWaker,
    /// Of the connection's client: whether any of its connections may wait for it.
    some_idle: Arc<AtomicBool>,
    /// Of all clients: connections that are to close and have not yet.
    closing: Arc<AtomicUsize>,
    /// Where the connection stands in its client's list, under that list's lock.
    pub(crate) place: AtomicUsize,
}

impl IdleMark {
    /// The mark of a busy connection.
    pub(crate) fn new(some_idle: Arc<AtomicBool>, closing: Arc<AtomicUsize>, place: usize) -> Self {
        Self {
            state: AtomicU64::new(BUSY),
            waker: AtomicWaker::new(),
            some_idle,
            closing,
            place: AtomicUsize::new(place),
        }
    }

    /// The connection waits for a request from now on (monotonic).
    pub(crate) fn idle(&self, now: Nanos) {
        self.wait(now.get() & !UNFINISHED);
    }

    /// The connection has yet to send the rest of a request's head, or of what comes before requests.
    pub(crate) fn unfinished(&self, now: Nanos) {
        self.wait(now.get() | UNFINISHED);
    }

    fn wait(&self, state: u64) {
        // In this order, and in one order with those of `search`: else a search between the two steps
        // could miss the connection, and nobody would look for it again.
        let state = state.clamp(BUSY + 2, SHED - 1);
        let before = self.state.load(Ordering::SeqCst);
        let is_shed = before == SHED
            || self
                .state
                .compare_exchange(before, state, Ordering::SeqCst, Ordering::SeqCst)
                .is_err();
        if !is_shed && !self.some_idle.load(Ordering::SeqCst) {
            self.some_idle.store(true, Ordering::SeqCst);
        }
    }

    /// A request has come: the connection stays, even if it was to close.
    pub(crate) fn busy(&self) {
        if self.state.swap(BUSY, Ordering::SeqCst) == SHED {
            self.closing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Since when the connection may be closed for another one, if it may.
    pub(crate) fn waits_since(&self) -> Option<Since> {
        let state = self.state.load(Ordering::SeqCst);
        (state != BUSY && state != SHED).then_some(Since(state))
    }

    /// Tells the connection to close if it still waits since then.
    pub(crate) fn shed(&self, since: Since) -> bool {
        let told =
            self.state.compare_exchange(since.0, SHED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if told {
            self.closing.fetch_add(1, Ordering::Relaxed);
            self.waker.wake();
        }
        told
    }

    /// Whether the connection is to close.
    pub(crate) fn is_shed(&self) -> bool {
        self.state.load(Ordering::SeqCst) == SHED
    }

    /// Ready when the connection is to close.
    pub(crate) fn poll_shed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.is_shed() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Does something that waits for the client. `None`: the connection is to close before that is done.
pub(crate) async fn unless_shed<T>(
    mark: Option<Arc<IdleMark>>,
    doing: impl Future<Output = T>,
) -> Option<T> {
    let Some(mark) = mark else {
        return Some(doing.await);
    };
    tokio::select! {
        biased;
        done = doing => Some(done),
        () = std::future::poll_fn(|cx| mark.poll_shed(cx)) => None,
    }
}
