//! Whether a connection waits for its client, and whether it is to close to make room for another one.
//!
//! The connection writes its mark twice per request; the mark is read only when no permit is free. Therefore each
//! connection has an atomic of its own, and requests lock no shared list. The mark does not know why room is needed.
//! What must always hold: a connection that becomes busy stays open, even if it was told to close a moment before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use crate::clock::Nanos;

/// A request is served.
const BUSY: u64 = 0;

/// The connection is to close.
const SHED: u64 = u64::MAX;

/// Flag in a state: the client has begun something and has not finished it. It takes the last bit of the time in
/// nanoseconds.
const UNFINISHED: u64 = 1;

/// When a connection began to wait for its client, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitingSince(u64);

impl WaitingSince {
    /// Whether the client has begun a handshake or a head and not finished it.
    pub(super) const fn is_unfinished(self) -> bool {
        self.0 & UNFINISHED != 0
    }

    /// When the wait began (monotonic; at most a nanosecond too late).
    pub(super) const fn at(self) -> Nanos {
        Nanos::new(self.0)
    }
}

/// The mark of one connection.
#[derive(Debug)]
pub(in crate::edge) struct IdleMark {
    /// [`BUSY`], [`SHED`], or a [`WaitingSince`].
    state: AtomicU64,
    /// Wakes the connection's task when it is to close.
    waker: AtomicWaker,
    /// Shared by the client's connections: whether any of them may wait for it.
    may_have_idle: Arc<AtomicBool>,
    /// Shared by all clients: the number of connections that were told to close and have not closed yet.
    closing: Arc<AtomicUsize>,
    /// The connection's index in its client's list; guarded by that list's lock.
    pub(super) index: AtomicUsize,
}

impl IdleMark {
    /// The mark of a busy connection.
    pub(super) fn new(
        may_have_idle: Arc<AtomicBool>,
        closing: Arc<AtomicUsize>,
        index: usize,
    ) -> Self {
        Self {
            state: AtomicU64::new(BUSY),
            waker: AtomicWaker::new(),
            may_have_idle,
            closing,
            index: AtomicUsize::new(index),
        }
    }

    /// From `now` (monotonic) on the connection waits for a request.
    pub(in crate::edge) fn set_idle(&self, now: Nanos) {
        self.set_waiting(now.get() & !UNFINISHED);
    }

    /// From `now` (monotonic) on the connection waits for the rest of a head, or of what comes before requests.
    pub(in crate::edge) fn set_unfinished(&self, now: Nanos) {
        self.set_waiting(now.get() | UNFINISHED);
    }

    fn set_waiting(&self, state: u64) {
        // The state is written before the flag, and both are sequentially consistent with the search
        // (`ClientConnections::shed_longest_waiting`). Otherwise a search between the two writes could miss the
        // connection, and no later search would look at it.
        let state = state.clamp(BUSY + 2, SHED - 1);
        let before = self.state.load(Ordering::SeqCst);
        let is_shed = before == SHED
            || self
                .state
                .compare_exchange(before, state, Ordering::SeqCst, Ordering::SeqCst)
                .is_err();
        if !is_shed && !self.may_have_idle.load(Ordering::SeqCst) {
            self.may_have_idle.store(true, Ordering::SeqCst);
        }
    }

    /// A request has arrived: the connection stays open, even if it was to close.
    pub(in crate::edge) fn set_busy(&self) {
        if self.state.swap(BUSY, Ordering::SeqCst) == SHED {
            self.closing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Since when the connection waits for its client. `None` if it is busy or to close already.
    pub(super) fn waiting_since(&self) -> Option<WaitingSince> {
        let state = self.state.load(Ordering::SeqCst);
        (state != BUSY && state != SHED).then_some(WaitingSince(state))
    }

    /// Tells the connection to close, unless its state has changed since `since` was read. Returns whether it was told.
    pub(super) fn try_shed(&self, since: WaitingSince) -> bool {
        let is_told =
            self.state.compare_exchange(since.0, SHED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_told {
            self.closing.fetch_add(1, Ordering::Relaxed);
            self.waker.wake();
        }
        is_told
    }

    /// Whether the connection is to close.
    pub(super) fn is_shed(&self) -> bool {
        self.state.load(Ordering::SeqCst) == SHED
    }

    /// Ready when the connection is to close.
    pub(in crate::edge) fn poll_shed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.is_shed() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Runs a future that waits for the client. `None` if the connection is to close before the future is ready.
pub(in crate::edge) async fn unless_shed<T>(
    mark: Option<Arc<IdleMark>>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let Some(mark) = mark else {
        return Some(future.await);
    };
    tokio::select! {
        biased;
        output = future => Some(output),
        () = std::future::poll_fn(|cx| mark.poll_shed(cx)) => None,
    }
}
