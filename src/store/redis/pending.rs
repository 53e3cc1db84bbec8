//! A pending charge: it is queued, then sent or withdrawn, and only one side wins.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::call::{ChargeReply, StoreCharge};
use super::failure::StoreFailure;
use crate::clock::Nanos;

/// What becomes of a charge.
pub(super) type Outcome = Result<ChargeReply, StoreFailure>;

/// How often a call that was certainly not sent is tried again: a transport that is ready and
/// sends nothing must not keep the worker busy.
const MAX_RESENDS: u8 = 3;

/// A charge on its way through the queue.
pub(super) struct Pending {
    pub(super) charge: StoreCharge,
    /// When it is withdrawn, or its caller stops waiting for the reply.
    pub(super) deadline: Nanos,
    /// Whether a caller waits for the outcome.
    pub(super) attended: bool,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    resends: u8,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It may be sent or withdrawn.
    Queued,
    /// It is part of a call.
    Sent,
    /// The same, and its caller has left: it stays charged, and is not sent again.
    Abandoned,
    /// Its outcome is known, or its caller left before it was sent.
    Closed,
}

impl Pending {
    pub(super) fn new(charge: StoreCharge, deadline: Nanos, attended: bool) -> Arc<Self> {
        let state = State { phase: Phase::Queued, resends: 0, outcome: None, waker: None };
        Arc::new(Self { charge, deadline, attended, state: Mutex::new(state) })
    }

    /// Claims it for a call. False: it was withdrawn.
    #[must_use]
    pub(super) fn claim(&self) -> bool {
        let mut state = self.state.lock();
        let queued = state.phase == Phase::Queued;
        if queued {
            state.phase = Phase::Sent;
        }
        queued
    }

    /// Undoes [`Pending::claim`] where no call was made of it. False: nobody waits any more.
    #[must_use]
    pub(super) fn unclaim(&self) -> bool {
        let mut state = self.state.lock();
        let sent = state.phase == Phase::Sent;
        state.phase = if sent { Phase::Queued } else { Phase::Closed };
        sent
    }

    /// Whether a call that was certainly not sent may be tried once more.
    #[must_use]
    pub(super) fn may_resend(&self) -> bool {
        let mut state = self.state.lock();
        state.resends = state.resends.saturating_add(1);
        state.resends <= MAX_RESENDS
    }

    /// Sets the outcome, unless there is one already or the caller has left. Returns whether it did.
    pub(super) fn settle(&self, outcome: Outcome) -> bool {
        let mut state = self.state.lock();
        let open = matches!(state.phase, Phase::Queued | Phase::Sent);
        state.phase = Phase::Closed;
        if !open {
            return false;
        }
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

/// Waits for an outcome. Dropping it withdraws a charge that was not sent.
pub(super) struct Waiting(pub(super) Arc<Pending>);

impl Future for Waiting {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.0.state.lock();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.phase = match state.phase {
            Phase::Queued | Phase::Closed => Phase::Closed,
            Phase::Sent | Phase::Abandoned => Phase::Abandoned,
        };
    }
}
