//! Charges in a store of many nodes that no request waits for: of limits that only watch, and of
//! candidates.

use std::sync::Arc;

use smallvec::smallvec;
use tokio::sync::oneshot;

use super::due::Due;
use super::pending::{OnTheWay, Open, Pending, Spent};
use super::{Decision, Engine, Generation, Trial, VerdictKind};
use crate::clock::Now;
use crate::store::Issued;
use crate::store::redis::{Answered, Charge, Failure, Order, Remote, Spend};

/// What came of a charge.
type Settled = Result<Answered, Failure>;

/// One cell that is charged while the request goes on.
pub(super) struct Aside<'a> {
    pub(super) engine: &'a Engine,
    pub(super) remote: &'a Arc<Remote>,
    pub(super) generation: &'a Generation,
    pub(super) due: &'a Due,
    pub(super) quota: &'a Arc<Issued>,
}

impl Aside<'_> {
    /// For a limit that only watches.
    pub(super) fn watch(self, decision: &Decision, pending: &mut Pending) {
        let tally = Arc::clone(&self.generation.counting(self.due.limit).tally);
        let (number, now) = (self.generation.number(), decision.at);
        if self.remote.cached_denial(&self.spend(), number, now.mono).is_some() {
            tally.count(VerdictKind::ShadowDenied);
            return;
        }
        self.ask(now, pending, move |settled| {
            tally.count(match settled {
                Ok(answered) if answered.settlement.spent => VerdictKind::Allowed,
                Ok(_) => VerdictKind::ShadowDenied,
                Err(_) => VerdictKind::DegradedAllowed,
            });
        });
    }

    /// For a candidate.
    pub(super) fn try_out(self, trial: &Trial, decision: &Decision, pending: &mut Pending) {
        let tally = Arc::clone(&self.generation.counting(self.due.limit).tally);
        let trial = trial.clone();
        self.ask(decision.at, pending, move |settled| match settled {
            Ok(answered) => trial.answered(&tally, answered.settlement.spent),
            // Without the store a candidate says nothing.
            Err(_) => {}
        });
    }

    fn spend(&self) -> Spend {
        let Self { due, quota, .. } = self;
        let returns = self.generation.counting(due.limit).returns;
        let spend = Spend::of(due.key, due.family, Arc::clone(quota), due.cost);
        Spend { returns, ..spend }
    }

    /// Charges. What the answer changes is told once the store has answered.
    fn ask(self, now: Now, pending: &mut Pending, count: impl FnOnce(&Settled) + Send + 'static) {
        let Self { due, quota, .. } = self;
        let spend = self.spend();
        let change = spend.returns.then(|| {
            let (tell, told) = oneshot::channel();
            let spent = Spent::Awaited(tell);
            pending.open.push(Open { told: false, ..Open::of(due, quota, spent) });
            told
        });
        let (number, remote) = (self.generation.number(), Arc::clone(self.remote));
        let on_the_way = OnTheWay::new(&self.engine.asides);
        tokio::spawn(async move {
            let charge = Charge { order: Order::Spend, spends: smallvec![spend.clone()] };
            let deadline = now.mono.saturating_add(remote.timeout().into());
            let settled = remote.settle(charge, number, deadline, now.mono).await;
            count(&settled);
            drop(on_the_way);
            if let (Ok(answered), Some(told)) = (settled, change)
                && let (true, Some(before)) = (answered.settlement.spent, answered.before.first())
                && let Ok((change, _on_the_way)) = told.await
            {
                change.post(&remote, Spend { before: *before, ..spend }, answered.at);
            }
        });
    }
}
