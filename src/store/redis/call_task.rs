//! The task of one call: sends a batch, and settles its charges with the reply.
//!
//! It does not know the queue or the script. Replies are matched to the charges that the call was built of. Only
//! charges that were certainly not executed go back to the queue, and the worker hears of the end of every call, after
//! a panic too.

use std::sync::Arc;

use super::batch::{Batch, EndedCall};
use super::batcher::{Batcher, WorkerEvent};
use super::charge::ChargeReply;
use super::failure::StoreFailure;
use super::metrics::CallOutcome;
use super::pending::PendingCharge;
use crate::clock::Nanos;

impl Batcher {
    /// Sends a batch and settles its charges.
    pub(super) async fn run_call(self: Arc<Self>, batch: Batch) {
        let Batch { call, pending, slot, cells, .. } = batch;
        let charges = pending.len();
        let ended = EndedCall { cells, charges, returned: Vec::new(), isolated: false };
        let mut guard = CallGuard { batcher: &self, pending, ended: Some(ended) };
        let number = self.take_call_number();
        let arguments = call.arguments(number, &self.prefix, self.has_slots);
        let began = self.clock.now().mono;
        let calling = self.transport.call(slot, &arguments, self.timeout);
        let reply = self.await_reply(calling, &guard.pending, began).await;
        let replies = reply.and_then(|reply| {
            let replies = call.read_reply(number, &reply);
            replies.filter(|replies| replies.len() == charges).ok_or_else(|| {
                self.transport.record_invalid_reply(slot);
                StoreFailure::Invalid
            })
        });
        self.record_call(&replies, charges, began);
        self.settle_call(replies, &mut guard);
    }

    fn settle_call(
        &self,
        replies: Result<Vec<ChargeReply>, StoreFailure>,
        guard: &mut CallGuard<'_>,
    ) {
        match replies {
            Ok(replies) => {
                for (pending, reply) in guard.pending.iter().zip(replies) {
                    self.settle(pending, Ok(reply));
                }
            }
            // Nothing was executed. Each charge is sent by itself, so that only the one that names the unreadable
            // cell fails.
            Err(StoreFailure::Unreadable) if guard.pending.len() > 1 => guard.return_charges(true),
            // Nothing was sent. A connection that is opened again may be in time.
            Err(StoreFailure::Unreachable) => {
                guard.pending.retain(|pending| {
                    let may_resend = pending.record_resend();
                    if !may_resend {
                        self.settle(pending, Err(StoreFailure::Unreachable));
                    }
                    may_resend
                });
                guard.return_charges(false);
            }
            Err(failure) => {
                for pending in &guard.pending {
                    self.settle(pending, Err(failure));
                }
            }
        }
    }

    /// Waits for the reply. A caller whose deadline passes meanwhile gets a timeout then.
    async fn await_reply(
        &self,
        mut calling: impl Future<Output = Result<Vec<u64>, StoreFailure>> + Unpin,
        pending: &[Arc<PendingCharge>],
        began: Nanos,
    ) -> Result<Vec<u64>, StoreFailure> {
        let attended = || pending.iter().filter(|pending| pending.attended);
        let deadlines = || attended().map(|pending| pending.deadline);
        let mut now = began;
        let mut next = deadlines().min();
        while let Some(deadline) = next {
            let left = deadline.saturating_sub(now).into();
            if let Ok(reply) = tokio::time::timeout(left, &mut calling).await {
                return reply;
            }
            now = self.clock.now().mono;
            for late in attended().filter(|pending| pending.deadline <= now) {
                self.settle(late, Err(StoreFailure::Timeout));
            }
            next = deadlines().filter(|deadline| *deadline > now).min();
        }
        calling.await
    }

    fn record_call(
        &self,
        replies: &Result<Vec<ChargeReply>, StoreFailure>,
        charges: usize,
        began: Nanos,
    ) {
        let outcome = match replies {
            Ok(_) => CallOutcome::Ok,
            // Nothing was sent, so there was no call.
            Err(StoreFailure::Unreachable) => return,
            Err(failure) => failure.outcome(),
        };
        self.metrics.batches.record(charges as u64);
        self.metrics.durations.record_span(self.clock.now().mono.saturating_sub(began));
        self.metrics.record_call(outcome);
    }
}

/// Tells the worker that a call has ended, when it is dropped. After a panic it also fails the charges, so that no
/// caller waits for ever.
struct CallGuard<'b> {
    batcher: &'b Batcher,
    pending: Vec<Arc<PendingCharge>>,
    ended: Option<EndedCall>,
}

impl CallGuard<'_> {
    /// Gives the charges back to the queue. `isolated`: each is to be sent by itself.
    fn return_charges(&mut self, isolated: bool) {
        if let Some(ended) = &mut self.ended {
            (ended.returned, ended.isolated) = (std::mem::take(&mut self.pending), isolated);
        }
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for pending in &self.pending {
                self.batcher.settle(pending, Err(StoreFailure::Invalid));
            }
        }
        if let Some(ended) = self.ended.take() {
            self.batcher.push_event(WorkerEvent::CallEnded(ended));
        }
    }
}
