//! What an engine does for the process before it, which still serves old connections.
//!
//! That process finds the keys and quotas of a request, under its own policy; this engine judges and charges. What must always
//! hold: all charges of a request are made or none; what it counts as in flight ends with an event, or with the predecessor; charges
//! of estimate limits are not published to a fleet before an event says whether they count.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::fleet::TentativeHold;
use super::generation::Generation;
use super::loaded_limit::TierState;
use super::restored_state::SavedQuotas;
use super::state::Engine;
use super::succession::{
    HandedCharge, HandedCount, HandedEvent, HandedJudgment, HandedKey, HandedRequest,
};
use super::tentative::in_flight_verdict;
use crate::clock::{Nanos, Now};
use crate::estimator::{EstimateLimit, EstimateReceipt};
use crate::limit::Verdict;
use crate::policy::{KeyHash, WhenFull};
use crate::store::{Acquired, EmbeddedCharge, InFlightCounts, InFlightPermit, IssuedQuota};

/// The process before this one, as this engine sees it. Dropping it ends what it has in flight.
pub struct Predecessor {
    engine: Arc<Engine>,
    quotas: Arc<SavedQuotas>,
    in_flight: Mutex<HashMap<(String, KeyHash), Permits>>,
    /// Charges of estimate limits for requests that may yet be refused there.
    estimates: Mutex<HashMap<(String, KeyHash), TentativeEstimates>>,
    /// Where limits are counted that it has and this process's policy has no more: what is in flight there still counts.
    counts: Mutex<HashMap<String, Arc<InFlightCounts>>>,
}

/// What one key has in flight there.
type Permits = SmallVec<[InFlightPermit; 1]>;

/// What requests of one key were charged under one estimate limit.
type TentativeEstimates = SmallVec<[(EstimateReceipt, TentativeHold); 1]>;

/// What a request was charged before its cells.
#[derive(Default)]
struct TentativeCharges<'g> {
    estimates: Vec<ChargedEstimate<'g>>,
    permits: Vec<(String, InFlightPermit)>,
}

/// A charge of an estimate limit.
struct ChargedEstimate<'g> {
    /// The index of its charge in the request.
    charge: usize,
    limit: &'g EstimateLimit,
    receipt: EstimateReceipt,
    held: TentativeHold,
}

impl Predecessor {
    pub(super) fn new(engine: Arc<Engine>, quotas: Arc<SavedQuotas>) -> Self {
        let (in_flight, estimates, counts) = Default::default();
        Self { engine, quotas, in_flight, estimates, counts }
    }

    /// Waits until a batch is on the disk, but not for a disk that fails.
    pub async fn until_saved(&self, batch: u64) {
        // A failing disk must not refuse requests.
        let _is_saved = self.engine.exact.embedded.saves().wait(batch).await;
    }

    /// Does what has happened to a request there.
    pub fn apply(&self, generation: &Generation, event: HandedEvent) {
        let now = self.engine.now();
        let embedded = &self.engine.exact.embedded;
        match event {
            HandedEvent::Refund { quota, key, units, receipt } => {
                if let Some(quota) = self.quotas.get(&quota) {
                    let here = || embedded.refund(key.hash(), quota, units, receipt, now);
                    let event = HandedEvent::Refund { quota: quota.number(), key, units, receipt };
                    self.engine.do_where_counted(event, here);
                }
            }
            HandedEvent::Debit { quota, key, units } => {
                if let Some(quota) = self.quotas.get(&quota) {
                    let here = || embedded.debit(key.hash(), quota, units, now);
                    let event = HandedEvent::Debit { quota: quota.number(), key, units };
                    self.engine.do_where_counted(event, here);
                }
            }
            HandedEvent::Ended { limit, key, cost } => self.end(limit, key.hash(), cost),
            HandedEvent::Denied { limit, key } => {
                let found = generation.policy().indexed_limits();
                let mut named = found.filter(|(_, known)| *known.name == *limit);
                if let Some((index, known)) = named.next()
                    && let Some(rule) = &known.penalty
                    && self
                        .engine
                        .count_denial(generation.loaded(index), key.hash(), rule, now)
                        .is_some()
                {
                    generation.counters(index).record_ban();
                }
            }
            HandedEvent::Charge(charge) => {
                let settled = match &charge.count {
                    HandedCount::Estimate { limit } => Some((limit.clone(), charge.key.hash())),
                    HandedCount::Exact { .. } | HandedCount::InFlight { .. } => None,
                };
                let cost = charge.cost;
                let request = HandedRequest { charges: vec![charge], may_charge: true };
                // Nobody waits for the verdict.
                let (judgment, _) = self.judge_now(generation, &request);
                if let Some(id) = settled.filter(|_| judgment.charged) {
                    self.settle_estimate(generation, id, cost, false);
                }
            }
            HandedEvent::Settled { limit, key, cost, is_refused } => {
                self.settle_estimate(generation, (limit, key.hash()), cost, is_refused);
            }
        }
    }

    /// Counts requests as in flight there.
    pub(super) fn hold(&self, generation: &Generation, limit: &str, key: HandedKey, count: u64) {
        let counts = self.counts_of(generation, limit);
        let permit = counts.admitted(key.hash(), u32::try_from(count).unwrap_or(u32::MAX));
        self.keep(limit.to_owned(), key.hash(), permit);
    }

    /// Where a limit of requests in flight is counted: with the limit of that name here. Without one, where it was counted last,
    /// so old connections stay within their number whatever the new file says.
    fn counts_of(&self, generation: &Generation, limit: &str) -> Arc<InFlightCounts> {
        let mut counts = self.counts.lock();
        if let Some(TierState::InFlight { table, .. }) = generation.state_named(limit) {
            counts.insert(limit.to_owned(), Arc::clone(table));
            return Arc::clone(table);
        }
        Arc::clone(counts.entry(limit.to_owned()).or_default())
    }

    fn keep(&self, limit: String, key: KeyHash, permit: InFlightPermit) {
        self.in_flight.lock().entry((limit, key)).or_default().push(permit);
    }

    /// Lets a charge count, or takes it back.
    fn settle_estimate(
        &self,
        generation: &Generation,
        id: (String, KeyHash),
        cost: u32,
        is_refused: bool,
    ) {
        let mut estimates = self.estimates.lock();
        let Some(charges) = estimates.get_mut(&id) else {
            return;
        };
        let charge = charges.iter().position(|(receipt, _)| receipt.cost() == cost);
        let Some((receipt, held)) = charge.map(|index| charges.swap_remove(index)) else {
            return;
        };
        if charges.is_empty() {
            estimates.remove(&id);
        }
        if is_refused && let Some(TierState::Estimate(limit)) = generation.state_named(&id.0) {
            limit.refund(&self.engine.confirm, receipt);
        }
        drop(held);
    }

    fn end(&self, limit: String, key: KeyHash, cost: u32) {
        let mut in_flight = self.in_flight.lock();
        let id = (limit, key);
        if let Some(permits) = in_flight.get_mut(&id) {
            permits.iter_mut().fold(cost, |left, permit| permit.end_some(left));
            permits.retain(|permit| !permit.is_ended());
            if permits.is_empty() {
                in_flight.remove(&id);
            }
        }
    }

    /// Judges without waiting. Returns also the batch that has to be on the disk first.
    pub fn judge_now(
        &self,
        generation: &Generation,
        request: &HandedRequest,
    ) -> (HandedJudgment, Option<u64>) {
        let now = self.engine.now();
        let mut judgment = HandedJudgment {
            charged: false,
            at: now,
            verdicts: vec![None; request.charges.len()],
            uncounted: Vec::new(),
            banned: self.ban(request, now.mono),
        };
        if judgment.banned.is_some() {
            return (judgment, None);
        }
        let mut tentative = TentativeCharges::default();
        for (index, charge) in request.charges.iter().enumerate() {
            judgment.verdicts[index] =
                self.charge_tentatively(generation, index, charge, now, &mut tentative);
        }
        let is_refused = judgment.verdicts.iter().flatten().any(|verdict| !verdict.allowed);
        let may_charge = request.may_charge && !is_refused;
        let save = self.settle_cells(request, may_charge, &mut judgment);
        let charged = judgment.charged;
        match charged {
            true => self.keep_tentative(request, tentative),
            false => self.refund(request, tentative, now, &mut judgment.verdicts),
        }
        (judgment, save.filter(|_| charged))
    }

    /// Keeps what a request was charged: until it ends, or until it is settled.
    fn keep_tentative(&self, request: &HandedRequest, tentative: TentativeCharges<'_>) {
        for (limit, permit) in tentative.permits {
            self.keep(limit, permit.key(), permit);
        }
        let mut estimates = self.estimates.lock();
        for ChargedEstimate { charge, receipt, held, .. } in tentative.estimates {
            let HandedCharge { key, count, .. } = &request.charges[charge];
            if let HandedCount::Estimate { limit } = count {
                estimates.entry((limit.clone(), key.hash())).or_default().push((receipt, held));
            }
        }
    }

    /// The first charge whose key is banned.
    fn ban(&self, request: &HandedRequest, now: Nanos) -> Option<(u32, Nanos)> {
        let charges = (0..).zip(&request.charges).filter(|(_, charge)| charge.may_be_banned);
        let bans = &self.engine.bans;
        charges
            .map(|(index, charge)| (index, bans.remaining(charge.key.hash(), now)))
            .find_map(|(index, left)| Some((index, left?)))
    }

    fn charge_tentatively<'g>(
        &self,
        generation: &'g Generation,
        index: usize,
        charge: &HandedCharge,
        now: Now,
        tentative: &mut TentativeCharges<'g>,
    ) -> Option<Verdict> {
        let key = charge.key.hash();
        match &charge.count {
            HandedCount::Exact { .. } => None,
            HandedCount::InFlight { limit, max } => {
                let counts = self.counts_of(generation, limit);
                let Acquired { permit, held } = counts.acquire(key, charge.cost, *max, false)?;
                let verdict = in_flight_verdict(*max, held, charge.cost, permit.is_some());
                tentative.permits.extend(permit.map(|permit| (limit.clone(), permit)));
                Some(verdict)
            }
            HandedCount::Estimate { limit } => {
                let Some(TierState::Estimate(limit)) = generation.state_named(limit) else {
                    return None;
                };
                let held = self.engine.fleet().tentative.hold(key, charge.cost);
                let (verdict, receipt) = limit.charge(&self.engine.confirm, key, charge.cost, now);
                if verdict.allowed {
                    let charge = ChargedEstimate { charge: index, limit, receipt, held };
                    tentative.estimates.push(charge);
                }
                Some(verdict)
            }
        }
    }

    /// Charges all cells or none. Returns the batch that has to be on the disk then. A charge under a quota that was not
    /// handed over has no verdict.
    fn settle_cells(
        &self,
        request: &HandedRequest,
        may_charge: bool,
        judgment: &mut HandedJudgment,
    ) -> Option<u64> {
        let now = judgment.at;
        judgment.charged = may_charge;
        let mut cells: SmallVec<[(usize, &Arc<IssuedQuota>, WhenFull); 4]> = SmallVec::new();
        for (index, charge) in request.charges.iter().enumerate() {
            if let HandedCount::Exact { quota, denies_when_full } = &charge.count
                && let Some(quota) = self.quotas.get(quota)
            {
                let when_full = if *denies_when_full { WhenFull::Deny } else { WhenFull::Allow };
                cells.push((index, quota, when_full));
            }
        }
        let charges: SmallVec<[EmbeddedCharge<'_>; 4]> = cells
            .iter()
            .map(|(index, quota, _)| {
                let charge = &request.charges[*index];
                EmbeddedCharge { key: charge.key.hash(), quota, cost: charge.cost }
            })
            .collect();
        if charges.is_empty() {
            return None;
        }
        let settled = self.engine.exact.embedded.settle(&charges, may_charge, now, |n| {
            let (index, quota, when_full) = &cells[n];
            let fresh = quota.quota().judge(None, request.charges[*index].cost, now);
            judgment.uncounted.extend(u32::try_from(*index));
            let allowed = fresh.allowed && *when_full != WhenFull::Deny;
            Verdict { allowed, ..fresh }
        });
        // No process hands over while it has a predecessor, so there is a settlement.
        let settled = settled?;
        for ((index, ..), verdict) in cells.iter().zip(&settled.verdicts) {
            judgment.verdicts[*index] = Some(*verdict);
        }
        judgment.charged = settled.charged;
        settled.save
    }

    /// Takes back what a refused request was charged. The verdicts are then those without the charges.
    fn refund(
        &self,
        request: &HandedRequest,
        tentative: TentativeCharges<'_>,
        now: Now,
        verdicts: &mut [Option<Verdict>],
    ) {
        for ChargedEstimate { charge, limit, receipt, held } in tentative.estimates {
            limit.refund(&self.engine.confirm, receipt);
            let key = request.charges[charge].key.hash();
            verdicts[charge] = Some(limit.judge(&self.engine.confirm, key, now));
            drop(held);
        }
        drop(tentative.permits);
        for (charge, verdict) in request.charges.iter().zip(verdicts) {
            if let (HandedCount::InFlight { .. }, Some(verdict)) = (&charge.count, verdict)
                && verdict.allowed
            {
                verdict.remaining =
                    verdict.remaining.saturating_add(charge.cost).min(verdict.limit);
            }
        }
    }
}
