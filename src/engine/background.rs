//! Charges in the shared store that no request waits for: those of shadow limits and candidates, and of tokens that
//! were checked in vain.
//!
//! Each charge is a task. It records the verdict itself, and afterwards applies the correction that the response of
//! the origin makes. Nothing here can refuse or delay a request.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::candidate::CandidateVerdict;
use super::counters::VerdictKind;
use super::decision::Decision;
use super::exact::ExactCharge;
use super::generation::Generation;
use super::open_charge::{BackgroundGuard, ChargedIn};
use super::pending::PendingSettlement;
use super::state::Engine;
use crate::clock::Nanos;
use crate::store::redis::{
    CellCharge, ChargeReply, Operation, SharedStore, StoreCharge, StoreFailure,
};

/// One cell that is charged while the request goes on.
pub(super) struct BackgroundCharge<'a> {
    pub(super) engine: &'a Engine,
    pub(super) shared: &'a Arc<SharedStore>,
    pub(super) generation: &'a Generation,
    pub(super) charge: ExactCharge<'a>,
}

impl BackgroundCharge<'_> {
    /// Charges a shadow limit and records its verdict.
    pub(super) fn charge_shadow(self, decision: &Decision, pending: &mut PendingSettlement) {
        let counters = Arc::clone(&self.generation.loaded(self.charge.target.limit).counters);
        let (number, now) = (self.generation.epoch(), decision.at.mono);
        if self.shared.cached_denial(&self.charge.cell_charge(), number, now).is_some() {
            counters.record(VerdictKind::ShadowDenied);
            return;
        }
        let cost = self.charge.target.cost;
        self.spawn(pending, false, move |reply| {
            let kind = match reply {
                Ok(reply) if reply.charged => VerdictKind::Allowed,
                Ok(_) => VerdictKind::ShadowDenied,
                Err(_) => VerdictKind::DegradedAllowed,
            };
            counters.record(kind);
            if kind == VerdictKind::Allowed {
                counters.record_charged(cost);
            }
        });
    }

    /// Charges a candidate and records its verdict. If the store fails, there is no verdict.
    pub(super) fn charge_candidate(
        self,
        candidate: &CandidateVerdict,
        pending: &mut PendingSettlement,
    ) {
        let counters = Arc::clone(&self.generation.loaded(self.charge.target.limit).counters);
        let candidate = candidate.clone();
        self.spawn(pending, true, move |reply| {
            if let Ok(reply) = reply {
                candidate.record(&counters, reply.charged);
            }
        });
    }

    /// Charges a limit without recording its verdict. A denial still enters the denial cache.
    pub(super) fn charge_unrecorded(self) {
        self.spawn(&mut PendingSettlement::default(), false, |_| {});
    }

    /// Starts the task. The correction that the response makes is applied after the store has replied, and counted if
    /// the store has charged.
    fn spawn(
        self,
        pending: &mut PendingSettlement,
        is_candidate: bool,
        record: impl FnOnce(&Result<ChargeReply, StoreFailure>) + Send + 'static,
    ) {
        let cell_charge = self.charge.cell_charge();
        let correction = self.charge.may_change.then(|| {
            let (sender, correction) = oneshot::channel();
            let mut open = self.charge.open(ChargedIn::Background(sender));
            (open.is_reported, open.is_candidate) = (false, is_candidate);
            pending.open.push(open);
            correction
        });
        let (number, shared) = (self.generation.epoch(), Arc::clone(self.shared));
        let counters = Arc::clone(&self.generation.loaded(self.charge.target.limit).counters);
        // The request may already have used up its own deadline, so this charge has another.
        let now = self.engine.now().mono;
        let deadline = now.saturating_add(Nanos::from(shared.timeout()));
        let guard = BackgroundGuard::new(&self.engine.background);
        tokio::spawn(async move {
            let charge = StoreCharge {
                operation: Operation::Charge,
                cell_charges: SmallVec::from_iter([cell_charge.clone()]),
            };
            let reply = shared.settle(charge, number, deadline, now).await;
            record(&reply);
            drop(guard);
            if let (Ok(reply), Some(correction)) = (reply, correction)
                && let (true, Some(cell)) = (reply.charged, reply.cells.first())
                && let Ok((correction, _guard)) = correction.await
            {
                let charged = CellCharge { log_chunk: cell.log_chunk, ..cell_charge };
                if !is_candidate {
                    correction.record(&counters);
                }
                correction.send(&shared, charged, reply.at);
            }
        });
    }
}
