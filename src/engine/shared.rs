//! The exact tier in the store that many nodes share.
//!
//! Parts whose cells are in one slot are one call. Several slots are first asked, all at once; if all
//! admit, they are charged, all at once. Between the two another request may have taken what was there:
//! the charged ones are refunded then. All of it ends by one deadline: the arrival of the request plus
//! the store's timeout.
//!
//! A part whose slot does not answer is judged as its limit's `on_store_failure` says.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::counters::VerdictKinds;
use super::exact::{ExactOutcome, ExactPart, ExactRequest, ExactTier, Parts, Settled};
use super::pending::{ChargedIn, Degraded};
use crate::clock::Nanos;
use crate::limit::Verdict;
use crate::policy::OnStoreFailure;
use crate::store::redis::{
    CellCharge, ChargeReply, Operation, SharedStore, StoreCharge, StoreFailure,
};

/// Parts whose cells are in one slot.
struct SlotParts<'r> {
    slot: u16,
    parts: Parts<'r>,
}

type Slots<'r> = SmallVec<[SlotParts<'r>; 1]>;

/// How far a request has come.
#[derive(Default)]
struct Progress<'r> {
    charged: SmallVec<[(Parts<'r>, ChargeReply); 2]>,
    /// Parts that the store did not judge, and whether it may have charged them all the same.
    failed: SmallVec<[(ExactPart<'r>, bool); 4]>,
    /// Whether a limit refuses.
    refused: bool,
}

impl ExactTier {
    /// Settles a request of which [`ExactTier::settle_now`] says that the shared store has to judge it.
    pub(super) async fn settle(
        &self,
        request: &ExactRequest<'_>,
        settled: &mut Settled,
    ) -> ExactOutcome {
        let mut progress = Progress::default();
        match &self.shared {
            Some(remote) => charge_slots(remote, request, &mut progress, settled).await,
            // `settle_now` settles everything then.
            None => progress.fail(&request.parts, false),
        }
        self.conclude(request, progress, settled)
    }

    /// Settles a request without the shared store, as while that store fails.
    pub(super) fn settle_without(
        &self,
        request: &ExactRequest<'_>,
        settled: &mut Settled,
    ) -> ExactOutcome {
        let mut progress = Progress::default();
        progress.fail(&request.parts, false);
        self.conclude(request, progress, settled)
    }

    /// Judges the parts whose servers are known to be away, as [`ExactTier::settle`] would, and charges
    /// nothing. `None`: none of them refuses.
    pub(super) fn peek_away(
        &self,
        remote: &SharedStore,
        request: &ExactRequest<'_>,
        settled: &mut Settled,
    ) -> Option<ExactOutcome> {
        let away = request.parts.iter().filter(|part| remote.is_away(&part.spend()));
        let parts: Parts<'_> = away.copied().collect();
        if parts.is_empty() {
            return None;
        }
        let request = ExactRequest { parts, may_charge: false, ..request.clone() };
        let mut judged = Settled::default();
        let outcome = self.settle_without(&request, &mut judged);
        if !judged.has_denial() {
            return None;
        }
        settled.verdicts.extend(judged.verdicts);
        Some(outcome)
    }

    /// Judges what the store did not, then keeps all charges or refunds them.
    fn conclude(
        &self,
        request: &ExactRequest<'_>,
        mut progress: Progress<'_>,
        settled: &mut Settled,
    ) -> ExactOutcome {
        // The wait for the store may have been long: judged at its arrival, a request would find the cells
        // of those that came after it.
        let request = &ExactRequest { now: request.clock.now(), ..request.clone() };
        let outage = progress.is_outage();
        let may_charge = request.may_charge && !outage && !progress.refused;
        let charged = self.judge_local(request, &progress, may_charge, settled);
        progress.refused |= settled.has_denial();
        let refused = progress.refused;
        for (part, _) in &progress.failed {
            let cost = if charged { part.target.cost } else { 0 };
            let fresh = part.quota.quota().judge(None, cost, request.now);
            let verdict = match part.limit.on_store_failure {
                OnStoreFailure::Local => continue,
                OnStoreFailure::Allow => Verdict { allowed: true, delay: Nanos::ZERO, ..fresh },
                // Another limit refuses for sure: the client is told of that one, and when it will
                // admit, which says nothing of this one.
                OnStoreFailure::Deny if refused => continue,
                OnStoreFailure::Deny => {
                    Verdict { allowed: false, remaining: 0, retry_after: None, ..fresh }
                }
            };
            settled.verdicts.push(part.answer(verdict, VerdictKinds::DEGRADED));
        }
        match &self.shared {
            Some(remote) if !charged => progress.refund(remote, settled),
            _ => progress.keep(settled),
        }
        match (charged, refused) {
            (true, _) => ExactOutcome::Charged,
            (false, true) => ExactOutcome::Refused,
            (false, false) => ExactOutcome::Outage,
        }
    }

    /// Judges in this process the failed parts whose limits say so, and says whether the request may
    /// pass as far as they are concerned.
    fn judge_local(
        &self,
        request: &ExactRequest<'_>,
        progress: &Progress<'_>,
        may_charge: bool,
        settled: &mut Settled,
    ) -> bool {
        let is_local = |part: &ExactPart<'_>| part.limit.on_store_failure == OnStoreFailure::Local;
        let local = progress.failed.iter().filter(|(part, _)| is_local(part));
        let parts: Parts<'_> = local.clone().map(|(part, _)| *part).collect();
        if parts.is_empty() {
            return may_charge;
        }
        let kinds = VerdictKinds::DEGRADED;
        let charged = self.charge_embedded(request, &parts, may_charge, kinds, settled);
        if !charged {
            return false;
        }
        for (part, may_have_charged) in local {
            let degraded = match may_have_charged {
                // It counts as charged in the store, where nothing of it can be changed.
                true => Degraded::Ambiguous,
                false => Degraded::Unreported,
            };
            if let (Degraded::Unreported, Some(remote)) = (degraded, &self.shared) {
                remote.record_unreported(&part.spend(), request.now);
            }
            let open = settled.open.iter_mut().find(|open| open.key == part.target.key);
            if let Some(open) = open {
                open.degraded = Some(degraded);
            }
        }
        true
    }
}

/// Charges the parts. Those of several slots are asked first, so that a request that will not pass
/// charges nothing, not even for the moment until it is refunded: in that moment others would be refused.
async fn charge_slots<'r>(
    remote: &Arc<SharedStore>,
    request: &ExactRequest<'r>,
    progress: &mut Progress<'r>,
    settled: &mut Settled,
) {
    let mut slots = slots(remote, &request.parts);
    let returns = slots.len() > 1;
    if returns {
        slots = ask_slots(remote, request, slots, progress, settled).await;
    }
    for (slot, answer) in settle(remote, request, Operation::Charge, returns, slots).await {
        match answer {
            Ok(answered) if answered.charged => {
                progress.charged.push((slot.parts, answered));
            }
            Ok(answered) => progress.refuse(&slot.parts, &answered, settled),
            Err(failure) => progress.fail(&slot.parts, failure.may_have_charged()),
        }
    }
}

/// Asks all slots without charging. The slots that are to be charged then; none, if the request does not
/// pass.
async fn ask_slots<'r>(
    remote: &Arc<SharedStore>,
    request: &ExactRequest<'r>,
    slots: Slots<'r>,
    progress: &mut Progress<'r>,
    settled: &mut Settled,
) -> Slots<'r> {
    let mut asked = Vec::with_capacity(slots.len());
    for (slot, answer) in settle(remote, request, Operation::Check, false, slots).await {
        match answer {
            Ok(answered) => asked.push((slot, answered)),
            Err(_) => progress.fail(&slot.parts, false),
        }
    }
    let admits = |(_, answered): &(SlotParts<'_>, ChargeReply)| {
        answered.cells.iter().all(|cell| cell.verdict.allowed)
    };
    if asked.iter().all(admits) && !progress.is_outage() {
        return asked.into_iter().map(|(slot, _)| slot).collect();
    }
    for (slot, answered) in &asked {
        progress.refuse(&slot.parts, answered, settled);
    }
    Slots::new()
}

/// Charges or asks slots, all at once. `returns`: what is charged may be refunded at once, so a denial is
/// true for a moment only.
async fn settle<'r>(
    remote: &Arc<SharedStore>,
    request: &ExactRequest<'_>,
    order: Operation,
    returns: bool,
    slots: Slots<'r>,
) -> Vec<(SlotParts<'r>, Result<ChargeReply, StoreFailure>)> {
    let deadline = request.now.mono.saturating_add(Nanos::from(remote.timeout()));
    let (generation, now) = (request.generation, request.now.mono);
    let answers = slots.iter().map(async |slot| {
        let spends = slot.parts.iter().map(ExactPart::spend);
        let spends =
            spends.map(|spend| CellCharge { refundable: spend.refundable || returns, ..spend });
        let charge = StoreCharge { operation: order, cell_charges: spends.collect() };
        let answered = remote.settle(charge, generation, deadline, now).await?;
        // Every part is told of: `call/reply.rs` finds a reply invalid that says otherwise.
        match answered.cells.len() == slot.parts.len() {
            true => Ok(answered),
            false => Err(StoreFailure::Invalid),
        }
    });
    let answers = join_all(answers).await;
    slots.into_iter().zip(answers).collect()
}

/// Parts by the slot of their cells, in the order of the route.
fn slots<'r>(remote: &SharedStore, parts: &[ExactPart<'r>]) -> Slots<'r> {
    let mut slots = Slots::new();
    for part in parts {
        let slot = remote.slot(&part.spend());
        match slots.iter_mut().find(|other| other.slot == slot) {
            Some(other) => other.parts.push(*part),
            None => slots.push(SlotParts { slot, parts: Parts::from_iter([*part]) }),
        }
    }
    slots
}

impl<'r> Progress<'r> {
    /// Whether a limit requires a store that fails.
    fn is_outage(&self) -> bool {
        let requires = |part: &ExactPart<'_>| part.limit.on_store_failure == OnStoreFailure::Deny;
        self.failed.iter().any(|(part, _)| requires(part))
    }

    fn fail(&mut self, parts: &[ExactPart<'r>], may_have_charged: bool) {
        self.failed.extend(parts.iter().map(|part| (*part, may_have_charged)));
    }

    /// Keeps what the store says of parts that it did not charge.
    fn refuse(&mut self, parts: &[ExactPart<'r>], answered: &ChargeReply, settled: &mut Settled) {
        for (part, cell) in parts.iter().zip(&answered.cells) {
            self.refused |= !cell.verdict.allowed;
            let verdict = if cell.verdict.allowed { cell.verdict_before } else { cell.verdict };
            settled.verdicts.push(part.answer(verdict, VerdictKinds::NORMAL));
        }
    }

    /// Refunds what was charged. The answers say what is left without it.
    ///
    /// A charge under `max_delay` stays: requests behind it may have been given later turns by now, and its turn,
    /// given back, would be given once more beside theirs.
    fn refund(self, remote: &Arc<SharedStore>, settled: &mut Settled) {
        for (parts, answered) in self.charged {
            let mut refunds = SmallVec::new();
            for (part, cell) in parts.iter().zip(&answered.cells) {
                let verdict = match part.limit.delays() {
                    true => Verdict { delay: Nanos::ZERO, ..cell.verdict },
                    false => {
                        refunds.push(CellCharge { log_chunk: cell.log_chunk, ..part.spend() });
                        cell.verdict_before
                    }
                };
                settled.verdicts.push(part.answer(verdict, VerdictKinds::NORMAL));
            }
            if !refunds.is_empty() {
                remote.refund(refunds, answered.at);
            }
        }
    }

    /// Keeps what was charged. Charges that the answer of the origin may change stay open.
    fn keep(self, settled: &mut Settled) {
        for (parts, answered) in self.charged {
            let at = answered.at;
            for (part, cell) in parts.iter().zip(&answered.cells) {
                settled.verdicts.push(part.answer(cell.verdict, VerdictKinds::NORMAL));
                if part.may_change {
                    settled
                        .open
                        .push(part.open(ChargedIn::Shared { at, log_chunk: cell.log_chunk }));
                }
            }
        }
    }
}
