//! The exact tier in the store that many nodes share.
//!
//! Cells in one slot are charged by one call. With several slots, all are first checked concurrently; if all
//! admit, all are charged concurrently. Another request may charge between the two rounds; then the charged slots
//! are refunded. One deadline bounds both rounds: the arrival of the request plus the store's timeout. A limit
//! whose slot does not answer is judged as its `on_store_failure` says. This module does not know how a call is
//! sent, or to which server.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::counters::VerdictKinds;
use super::exact::{
    ExactCharge, ExactCharges, ExactOutcome, ExactRequest, ExactTier, ExactVerdicts,
};
use super::open_charge::{ChargedIn, DegradedCharge};
use crate::clock::Nanos;
use crate::limit::Verdict;
use crate::policy::OnStoreFailure;
use crate::store::redis::{
    CellCharge, ChargeReply, Operation, SharedStore, StoreCharge, StoreFailure,
};

/// The charges of a request whose cells are in one slot.
struct SlotCharges<'r> {
    slot: u16,
    charges: ExactCharges<'r>,
}

/// The charges of a request by slot, in the order of the route.
type SlotList<'r> = SmallVec<[SlotCharges<'r>; 1]>;

/// One slot's charges with what the store replied.
struct SlotReply<'r> {
    charges: ExactCharges<'r>,
    reply: ChargeReply,
}

/// A charge that the store did not judge.
struct FailedCharge<'r> {
    charge: ExactCharge<'r>,
    /// Whether the store may have charged it nevertheless.
    may_have_charged: bool,
}

/// What is known of a request while the store is asked.
#[derive(Default)]
struct SharedProgress<'r> {
    charged: SmallVec<[SlotReply<'r>; 2]>,
    failed: SmallVec<[FailedCharge<'r>; 4]>,
    /// Whether a limit refuses.
    refused: bool,
}

impl ExactTier {
    /// Settles a request that [`ExactTier::settle_now`] left to the shared store.
    pub(super) async fn settle(
        &self,
        request: &ExactRequest<'_>,
        results: &mut ExactVerdicts,
    ) -> ExactOutcome {
        let mut progress = SharedProgress::default();
        match &self.shared {
            Some(shared) => charge_slots(shared, request, &mut progress, results).await,
            // Unreachable: without a shared store `settle_now` settles every request.
            None => progress.fail(&request.charges, false),
        }
        self.conclude(request, progress, results)
    }

    /// Settles a request as if the shared store failed.
    pub(super) fn settle_without_store(
        &self,
        request: &ExactRequest<'_>,
        results: &mut ExactVerdicts,
    ) -> ExactOutcome {
        let mut progress = SharedProgress::default();
        progress.fail(&request.charges, false);
        self.conclude(request, progress, results)
    }

    /// Judges the charges whose servers are known to be unavailable, as [`ExactTier::settle`] would, and charges
    /// nothing. `None`: none of them refuses.
    pub(super) fn peek_unavailable(
        &self,
        shared: &SharedStore,
        request: &ExactRequest<'_>,
        results: &mut ExactVerdicts,
    ) -> Option<ExactOutcome> {
        let unavailable =
            request.charges.iter().filter(|charge| shared.is_away(&charge.cell_charge()));
        let charges: ExactCharges<'_> = unavailable.copied().collect();
        if charges.is_empty() {
            return None;
        }
        let request = ExactRequest { charges, may_charge: false, ..request.clone() };
        let mut judged = ExactVerdicts::default();
        let outcome = self.settle_without_store(&request, &mut judged);
        if !judged.has_denial() {
            return None;
        }
        results.verdicts.extend(judged.verdicts);
        Some(outcome)
    }

    /// Judges the charges that the store did not judge, then keeps all charges or refunds all.
    fn conclude(
        &self,
        request: &ExactRequest<'_>,
        mut progress: SharedProgress<'_>,
        results: &mut ExactVerdicts,
    ) -> ExactOutcome {
        // The wait for the store may have been long. Judged at its time of arrival, the request would read cells
        // that later requests have charged.
        let request = &ExactRequest { now: request.clock.now(), ..request.clone() };
        let outage = progress.is_outage();
        let may_charge = request.may_charge && !outage && !progress.refused;
        let charged = self.judge_local(request, &progress, may_charge, results);
        progress.refused |= results.has_denial();
        let refused = progress.refused;
        for FailedCharge { charge, may_have_charged } in &progress.failed {
            let cost = if charged { charge.target.cost } else { 0 };
            let fresh = charge.quota.quota().judge(None, cost, request.now);
            let verdict = match charge.limit.on_store_failure {
                OnStoreFailure::Local => continue,
                OnStoreFailure::Allow => Verdict { allowed: true, delay: Nanos::ZERO, ..fresh },
                // Another limit certainly refuses. The response names that one and its retry time, which says
                // nothing about this limit.
                OnStoreFailure::Deny if refused => continue,
                OnStoreFailure::Deny => {
                    Verdict { allowed: false, remaining: 0, retry_after: None, ..fresh }
                }
            };
            let mut limit_verdict = charge.limit_verdict(verdict, VerdictKinds::DEGRADED);
            if !may_have_charged {
                // Nothing keeps the units, and the store is not told of them.
                limit_verdict.charged = 0;
            }
            results.verdicts.push(limit_verdict);
        }
        match &self.shared {
            Some(shared) if !charged => progress.refund(shared, results),
            _ => progress.keep(results),
        }
        match (charged, refused) {
            (true, _) => ExactOutcome::Charged,
            (false, true) => ExactOutcome::Refused,
            (false, false) => ExactOutcome::Outage,
        }
    }

    /// Judges the failed charges with `on_store_failure: local` in the embedded store. Returns whether the request
    /// is charged there; without such charges, `may_charge`.
    fn judge_local(
        &self,
        request: &ExactRequest<'_>,
        progress: &SharedProgress<'_>,
        may_charge: bool,
        results: &mut ExactVerdicts,
    ) -> bool {
        let is_local = |failed: &&FailedCharge<'_>| {
            failed.charge.limit.on_store_failure == OnStoreFailure::Local
        };
        let local = progress.failed.iter().filter(is_local);
        let charges: ExactCharges<'_> = local.clone().map(|failed| failed.charge).collect();
        if charges.is_empty() {
            return may_charge;
        }
        let kinds = VerdictKinds::DEGRADED;
        // With a shared store, the cells of this process are never a successor's.
        let charged = self.charge_embedded(request, &charges, may_charge, kinds, results);
        if charged == Some(false) {
            return false;
        }
        for FailedCharge { charge, may_have_charged } in local {
            let degraded = match (may_have_charged, &self.shared) {
                // It counts as charged in the store, where it cannot be changed.
                (true, _) => DegradedCharge::Ambiguous,
                (false, Some(shared)) => DegradedCharge::Unreported(
                    shared.record_unreported(&charge.cell_charge(), request.now),
                ),
                (false, None) => DegradedCharge::Unreported(None),
            };
            let mut verdicts = results.verdicts.iter_mut();
            if let Some(verdict) = verdicts.find(|verdict| verdict.limit == charge.target.limit) {
                // The store is told, or has it already, also of a key that this node has no room for.
                verdict.charged = charge.target.cost;
            }
            let open = results.open.iter_mut().find(|open| open.key == charge.target.key);
            if let Some(open) = open {
                open.degraded = Some(degraded);
            }
        }
        true
    }
}

/// Charges all slots. Several slots are checked first, so that a request that will be refused mostly charges nothing.
/// Until a charge is refunded, other requests may be refused because of it.
async fn charge_slots<'r>(
    shared: &Arc<SharedStore>,
    request: &ExactRequest<'r>,
    progress: &mut SharedProgress<'r>,
    results: &mut ExactVerdicts,
) {
    let mut slots = by_slot(shared, &request.charges);
    let refundable = slots.len() > 1;
    if refundable {
        slots = check_slots(shared, request, slots, progress, results).await;
    }
    let replies = call_slots(shared, request, Operation::Charge, refundable, slots).await;
    for (SlotCharges { charges, .. }, reply) in replies {
        match reply {
            Ok(reply) if reply.charged => progress.charged.push(SlotReply { charges, reply }),
            Ok(reply) => progress.refuse(&charges, &reply, results),
            Err(failure) => progress.fail(&charges, failure.may_have_charged()),
        }
    }
}

/// Checks all slots without charging. Returns the slots to charge: all that answered, or none if the request is
/// refused.
async fn check_slots<'r>(
    shared: &Arc<SharedStore>,
    request: &ExactRequest<'r>,
    slots: SlotList<'r>,
    progress: &mut SharedProgress<'r>,
    results: &mut ExactVerdicts,
) -> SlotList<'r> {
    let mut checked = Vec::with_capacity(slots.len());
    for (slot, reply) in call_slots(shared, request, Operation::Check, false, slots).await {
        match reply {
            Ok(reply) => checked.push((slot, reply)),
            Err(_) => progress.fail(&slot.charges, false),
        }
    }
    let admits = |(_, reply): &(SlotCharges<'_>, ChargeReply)| {
        reply.cells.iter().all(|cell| cell.verdict.allowed)
    };
    if checked.iter().all(admits) && !progress.is_outage() {
        return checked.into_iter().map(|(slot, _)| slot).collect();
    }
    for (slot, reply) in &checked {
        progress.refuse(&slot.charges, reply, results);
    }
    SlotList::new()
}

/// Sends one operation to all slots concurrently. `refundable`: the charge may be refunded at once, so a denial holds
/// for a moment only and must not be cached.
async fn call_slots<'r>(
    shared: &Arc<SharedStore>,
    request: &ExactRequest<'_>,
    operation: Operation,
    refundable: bool,
    slots: SlotList<'r>,
) -> Vec<(SlotCharges<'r>, Result<ChargeReply, StoreFailure>)> {
    let deadline = request.now.mono.saturating_add(Nanos::from(shared.timeout()));
    let (generation, now) = (request.generation, request.now.mono);
    let replies = slots.iter().map(async |slot| {
        let cells = slot.charges.iter().map(ExactCharge::cell_charge);
        let cells =
            cells.map(|cell| CellCharge { refundable: cell.refundable || refundable, ..cell });
        let charge = StoreCharge { operation, cell_charges: cells.collect() };
        let reply = shared.settle(charge, generation, deadline, now).await?;
        // A reply has one entry for each cell: `call/reply.rs` refuses any other.
        match reply.cells.len() == slot.charges.len() {
            true => Ok(reply),
            false => Err(StoreFailure::Invalid),
        }
    });
    let replies = join_all(replies).await;
    slots.into_iter().zip(replies).collect()
}

/// Groups charges by the slot of their cells, in the order of the route.
fn by_slot<'r>(shared: &SharedStore, charges: &[ExactCharge<'r>]) -> SlotList<'r> {
    let mut slots = SlotList::new();
    for charge in charges {
        let slot = shared.slot(&charge.cell_charge());
        match slots.iter_mut().find(|other| other.slot == slot) {
            Some(other) => other.charges.push(*charge),
            None => slots.push(SlotCharges { slot, charges: ExactCharges::from_iter([*charge]) }),
        }
    }
    slots
}

impl<'r> SharedProgress<'r> {
    /// Whether the store failed for a limit that requires it.
    fn is_outage(&self) -> bool {
        self.failed
            .iter()
            .any(|failed| failed.charge.limit.on_store_failure == OnStoreFailure::Deny)
    }

    /// Records charges that the store did not judge.
    fn fail(&mut self, charges: &[ExactCharge<'r>], may_have_charged: bool) {
        let failed =
            charges.iter().map(|charge| FailedCharge { charge: *charge, may_have_charged });
        self.failed.extend(failed);
    }

    /// Records the verdicts of a slot that the store did not charge.
    fn refuse(
        &mut self,
        charges: &[ExactCharge<'r>],
        reply: &ChargeReply,
        results: &mut ExactVerdicts,
    ) {
        for (charge, cell) in charges.iter().zip(&reply.cells) {
            self.refused |= !cell.verdict.allowed;
            let verdict = if cell.verdict.allowed { cell.verdict_before } else { cell.verdict };
            results.verdicts.push(charge.limit_verdict(verdict, VerdictKinds::NORMAL));
        }
    }

    /// Refunds what was charged. The verdicts are those without the charges.
    ///
    /// A charge under `max_delay` is kept: later requests may already have been given later departure times, so
    /// refunding this one's would let two requests leave at the same time.
    fn refund(self, shared: &Arc<SharedStore>, results: &mut ExactVerdicts) {
        for SlotReply { charges, reply } in self.charged {
            let mut refunds = SmallVec::new();
            for (charge, cell) in charges.iter().zip(&reply.cells) {
                let verdict = match charge.limit.delays() {
                    true => Verdict { delay: Nanos::ZERO, ..cell.verdict },
                    false => {
                        refunds
                            .push(CellCharge { log_chunk: cell.log_chunk, ..charge.cell_charge() });
                        cell.verdict_before
                    }
                };
                results.verdicts.push(charge.limit_verdict(verdict, VerdictKinds::NORMAL));
            }
            if !refunds.is_empty() {
                shared.refund(refunds, reply.at);
            }
        }
    }

    /// Keeps what was charged. Charges that the response of the origin may change stay open.
    fn keep(self, results: &mut ExactVerdicts) {
        for SlotReply { charges, reply } in self.charged {
            let at = reply.at;
            for (charge, cell) in charges.iter().zip(&reply.cells) {
                results.verdicts.push(charge.limit_verdict(cell.verdict, VerdictKinds::NORMAL));
                if charge.may_change {
                    let charged = ChargedIn::Shared { at, log_chunk: cell.log_chunk };
                    results.open.push(charge.open(charged));
                }
            }
        }
    }
}
