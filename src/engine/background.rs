//! Charges in the shared store that no request waits for: of shadow limits and of candidates.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::exact::ExactPart;
use super::pending::{ChargedIn, InBackground, PendingSettlement};
use super::{CandidateVerdict, Decision, Engine, Generation, VerdictKind};
use crate::clock::Nanos;
use crate::store::redis::{
    CellCharge, ChargeReply, Operation, SharedStore, StoreCharge, StoreFailure,
};

/// The result of a charge.
type Answer = Result<ChargeReply, StoreFailure>;

/// One cell that is charged while the request goes on.
pub(super) struct Background<'a> {
    pub(super) engine: &'a Engine,
    pub(super) remote: &'a Arc<SharedStore>,
    pub(super) generation: &'a Generation,
    pub(super) part: ExactPart<'a>,
}

impl Background<'_> {
    /// Charges a shadow limit and counts its verdict.
    pub(super) fn watch(self, decision: &Decision, pending: &mut PendingSettlement) {
        let counters = Arc::clone(&self.generation.counting(self.part.target.limit).counters);
        let number = self.generation.number();
        if self.remote.cached_denial(&self.part.spend(), number, decision.at.mono).is_some() {
            counters.record(VerdictKind::ShadowDenied);
            return;
        }
        self.charge(pending, move |answer| {
            counters.record(match answer {
                Ok(answered) if answered.charged => VerdictKind::Allowed,
                Ok(_) => VerdictKind::ShadowDenied,
                Err(_) => VerdictKind::DegradedAllowed,
            });
        });
    }

    /// Charges a candidate and counts its verdict. While the store fails a candidate says nothing.
    pub(super) fn try_candidate(self, trial: &CandidateVerdict, pending: &mut PendingSettlement) {
        let counters = Arc::clone(&self.generation.counting(self.part.target.limit).counters);
        let trial = trial.clone();
        self.charge(pending, move |answer| {
            if let Ok(answered) = answer {
                trial.answered(&counters, answered.charged);
            }
        });
    }

    /// Charges a limit whose verdict is not asked for. The store's denial is remembered, as every one.
    pub(super) fn charge_unseen(self) {
        self.charge(&mut PendingSettlement::default(), |_| {});
    }

    /// Charges. What the answer of the origin changes is sent once the store has answered.
    fn charge(self, pending: &mut PendingSettlement, count: impl FnOnce(&Answer) + Send + 'static) {
        let spend = self.part.spend();
        let change = self.part.may_change.then(|| {
            let (sender, change) = oneshot::channel();
            let mut open = self.part.open(ChargedIn::Background(sender));
            open.told = false;
            pending.open.push(open);
            change
        });
        let (number, remote) = (self.generation.number(), Arc::clone(self.remote));
        // The request has used up a part of its own time, for a far store most of it.
        let now = self.engine.now().mono;
        let deadline = now.saturating_add(Nanos::from(remote.timeout()));
        let in_background = InBackground::new(&self.engine.background);
        tokio::spawn(async move {
            let charge = StoreCharge {
                operation: Operation::Charge,
                cell_charges: SmallVec::from_iter([spend.clone()]),
            };
            let answer = remote.settle(charge, number, deadline, now).await;
            count(&answer);
            drop(in_background);
            if let (Ok(answered), Some(change)) = (answer, change)
                && let (true, Some(cell)) = (answered.charged, answered.cells.first())
                && let Ok((change, _in_background)) = change.await
            {
                change.post(
                    &remote,
                    CellCharge { log_chunk: cell.log_chunk, ..spend },
                    answered.at,
                );
            }
        });
    }
}
