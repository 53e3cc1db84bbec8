//! One charge on its way through the queue and a call.
//!
//! A pending charge is shared by its caller, the queue and the task of its call. It does not know cells, calls or
//! servers. It is either sent or withdrawn, and it gets at most one result:
//!
//! ```text
//!            claim                settle
//!   Queued ---------> Sent ----------------> Closed
//!    |  ^              |  |                    ^
//!    |  '-- unclaim ---'  '-- caller leaves    |
//!    |                          Abandoned -----'  it stays charged, and is not sent again
//!    '-- settle (withdrawn), or caller leaves -'
//! ```

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::charge::{ChargeReply, StoreCharge};
use super::failure::StoreFailure;
use crate::clock::Nanos;

/// The result of a charge.
pub(super) type ChargeResult = Result<ChargeReply, StoreFailure>;

/// Maximum number of times that a charge is put into another call after one that was certainly not sent. Without this
/// bound, a transport that seems ready and sends nothing would keep the worker busy.
const MAX_RESENDS: u8 = 3;

/// A charge on its way through the queue.
pub(super) struct PendingCharge {
    pub(super) charge: StoreCharge,
    /// When it is withdrawn if it was not sent; otherwise when its caller stops waiting for the reply.
    pub(super) deadline: Nanos,
    /// Whether a caller waits for the result.
    pub(super) attended: bool,
    progress: Mutex<ChargeProgress>,
}

struct ChargeProgress {
    phase: ChargePhase,
    resends: u8,
    result: Option<ChargeResult>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChargePhase {
    /// It may be sent or withdrawn.
    Queued,
    /// A call carries it.
    Sent,
    /// A call carries it, and its caller has left: it stays charged and is not sent again.
    Abandoned,
    /// Its result is known, or its caller left before it was sent.
    Closed,
}

impl PendingCharge {
    pub(super) fn new(charge: StoreCharge, deadline: Nanos, attended: bool) -> Arc<Self> {
        let progress =
            ChargeProgress { phase: ChargePhase::Queued, resends: 0, result: None, waker: None };
        Arc::new(Self { charge, deadline, attended, progress: Mutex::new(progress) })
    }

    /// Claims the charge for a call. Returns false if it was withdrawn.
    #[must_use]
    pub(super) fn claim(&self) -> bool {
        let mut progress = self.progress.lock();
        let is_queued = progress.phase == ChargePhase::Queued;
        if is_queued {
            progress.phase = ChargePhase::Sent;
        }
        is_queued
    }

    /// Undoes [`PendingCharge::claim`] where no call was made. Returns false if its caller has left.
    #[must_use]
    pub(super) fn unclaim(&self) -> bool {
        let mut progress = self.progress.lock();
        let is_sent = progress.phase == ChargePhase::Sent;
        progress.phase = if is_sent { ChargePhase::Queued } else { ChargePhase::Closed };
        is_sent
    }

    /// Counts one more attempt after a call that was certainly not sent. Returns whether the charge may be sent again.
    #[must_use]
    pub(super) fn record_resend(&self) -> bool {
        let mut progress = self.progress.lock();
        progress.resends = progress.resends.saturating_add(1);
        progress.resends <= MAX_RESENDS
    }

    /// Sets the result, unless the charge is closed or its caller has left. Returns whether it did.
    pub(super) fn settle(&self, result: ChargeResult) -> bool {
        let mut progress = self.progress.lock();
        let is_open = matches!(progress.phase, ChargePhase::Queued | ChargePhase::Sent);
        progress.phase = ChargePhase::Closed;
        if !is_open {
            return false;
        }
        progress.result = Some(result);
        let waker = progress.waker.take();
        drop(progress);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

/// Waits for the result of a charge. Dropping it withdraws a charge that was not sent.
pub(super) struct ChargeFuture(pub(super) Arc<PendingCharge>);

impl Future for ChargeFuture {
    type Output = ChargeResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ChargeResult> {
        let mut progress = self.0.progress.lock();
        if let Some(result) = progress.result.take() {
            return Poll::Ready(result);
        }
        match &mut progress.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for ChargeFuture {
    fn drop(&mut self) {
        let mut progress = self.0.progress.lock();
        progress.phase = match progress.phase {
            ChargePhase::Queued | ChargePhase::Closed => ChargePhase::Closed,
            ChargePhase::Sent | ChargePhase::Abandoned => ChargePhase::Abandoned,
        };
    }
}
