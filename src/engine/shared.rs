//! The exact tier in the store that many nodes share.
//!
//! Parts whose cells are in one slot are one call. Slots are charged in turn; after a refusal the
//! slots that were not charged are asked without charging, so that the answer names every refusing
//! limit, and the charged ones are refunded. All of it ends by one deadline: the arrival of the
//! request plus the store's timeout.
//!
//! A part whose slot does not answer is judged as its limit's `on_store_failure` says.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::exact::{ExactOutcome, ExactPart, ExactRequest, ExactTier, Parts, Settled};
use super::pending::{ChargedIn, Degraded};
use super::tally::VerdictKinds;
use crate::clock::Nanos;
use crate::limit::Verdict;
use crate::policy::OnStoreFailure;
use crate::store::redis::{Answered, Charge, Failure, Order, Remote};

/// Parts whose cells are in one slot.
struct SlotParts<'r> {
    slot: u16,
    parts: Parts<'r>,
}

/// How far a request has come.
#[derive(Default)]
struct Progress<'r> {
    charged: SmallVec<[(Parts<'r>, Answered); 2]>,
    /// Parts that the store did not judge.
    failed: SmallVec<[(ExactPart<'r>, Failure); 4]>,
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
            Some(remote) => ask_slots(remote, request, &mut progress, settled).await,
            // `settle_now` settles everything then.
            None => progress.fail(&request.parts, Failure::Unreachable),
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
        progress.fail(&request.parts, Failure::Withdrawn);
        self.conclude(request, progress, settled)
    }

    /// Judges what the store did not, then keeps all charges or refunds them.
    fn conclude(
        &self,
        request: &ExactRequest<'_>,
        mut progress: Progress<'_>,
        settled: &mut Settled,
    ) -> ExactOutcome {
        let outage = progress.is_outage();
        let may_charge = !outage && !progress.refused;
        let charged = self.judge_local(request, &progress, may_charge, settled);
        progress.refused |= settled.answers.iter().any(|answer| !answer.verdict.allowed);
        let refused = progress.refused;
        for (part, _) in &progress.failed {
            let cost = if charged { part.target.cost } else { 0 };
            let fresh = part.quota.quota().judge(None, cost, request.now);
            let verdict = match part.limit.on_store_failure {
                OnStoreFailure::Local => continue,
                OnStoreFailure::Allow => Verdict { allowed: true, wait: Nanos::ZERO, ..fresh },
                // Another limit refuses for sure: the client is told of that one, and when it will
                // admit, which says nothing of this one.
                OnStoreFailure::Deny if refused => continue,
                OnStoreFailure::Deny => {
                    Verdict { allowed: false, remaining: 0, retry_after: None, ..fresh }
                }
            };
            settled.answers.push(part.answer(verdict, VerdictKinds::DEGRADED));
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
        for (part, failure) in local {
            let degraded = match failure.may_have_charged() {
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

/// Charges slot after slot. Once it is clear that the request will not pass, the rest is only asked.
async fn ask_slots<'r>(
    remote: &Arc<Remote>,
    request: &ExactRequest<'r>,
    progress: &mut Progress<'r>,
    settled: &mut Settled,
) {
    let deadline = request.now.mono.saturating_add(Nanos::from(remote.timeout()));
    let mut slots = slots(remote, &request.parts).into_iter();
    for slot in slots.by_ref() {
        let answer = settle(remote, request, Order::Spend, &slot.parts, deadline).await;
        match answer {
            Ok(answered) if answered.settlement.spent => {
                progress.charged.push((slot.parts, answered));
            }
            Ok(answered) => progress.refuse(&slot.parts, &answered, settled),
            Err(failure) => progress.fail(&slot.parts, failure),
        }
        if progress.refused || progress.is_outage() {
            break;
        }
    }
    let rest: SmallVec<[SlotParts<'r>; 2]> = slots.collect();
    let asked = rest.iter().map(|slot| settle(remote, request, Order::Ask, &slot.parts, deadline));
    for (slot, answer) in rest.iter().zip(join_all(asked).await) {
        match answer {
            Ok(answered) => progress.refuse(&slot.parts, &answered, settled),
            Err(failure) => progress.fail(&slot.parts, failure),
        }
    }
}

async fn settle(
    remote: &Arc<Remote>,
    request: &ExactRequest<'_>,
    order: Order,
    parts: &[ExactPart<'_>],
    deadline: Nanos,
) -> Result<Answered, Failure> {
    let charge = Charge { order, spends: parts.iter().map(ExactPart::spend).collect() };
    let answered = remote.settle(charge, request.generation, deadline, request.now.mono).await?;
    // Every part is told of: `call.rs` finds a reply invalid that says otherwise.
    match answered.settlement.verdicts.len() == parts.len() {
        true => Ok(answered),
        false => Err(Failure::Invalid),
    }
}

/// Parts by the slot of their cells, in the order of the route.
fn slots<'r>(remote: &Remote, parts: &[ExactPart<'r>]) -> SmallVec<[SlotParts<'r>; 1]> {
    let mut slots: SmallVec<[SlotParts<'r>; 1]> = SmallVec::new();
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

    fn fail(&mut self, parts: &[ExactPart<'r>], failure: Failure) {
        self.failed.extend(parts.iter().map(|part| (*part, failure)));
    }

    /// Keeps what the store says of parts that it did not charge.
    fn refuse(&mut self, parts: &[ExactPart<'r>], answered: &Answered, settled: &mut Settled) {
        for (index, part) in parts.iter().enumerate() {
            let verdict = answered.settlement.verdicts[index];
            self.refused |= !verdict.allowed;
            let without = answered.without.get(index).filter(|_| verdict.allowed);
            let verdict = *without.unwrap_or(&verdict);
            settled.answers.push(part.answer(verdict, VerdictKinds::NORMAL));
        }
    }

    /// Refunds what was charged. The answers say what is left without it.
    fn refund(self, remote: &Arc<Remote>, settled: &mut Settled) {
        for (parts, answered) in self.charged {
            for (part, verdict) in parts.iter().zip(&answered.without) {
                settled.answers.push(part.answer(*verdict, VerdictKinds::NORMAL));
            }
            remote.refund(parts.iter().map(ExactPart::spend).collect(), &answered);
        }
    }

    /// Keeps what was charged. Charges that the answer of the origin may change stay open.
    fn keep(self, settled: &mut Settled) {
        for (parts, answered) in self.charged {
            let at = answered.at;
            let told = answered.settlement.verdicts.iter().zip(&answered.before);
            for (part, (verdict, before)) in parts.iter().zip(told) {
                settled.answers.push(part.answer(*verdict, VerdictKinds::NORMAL));
                if part.may_change {
                    settled.open.push(part.open(ChargedIn::Shared { at, before: *before }));
                }
            }
        }
    }
}
