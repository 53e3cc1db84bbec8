//! Requests whose cells a successor has: they are judged there, and concluded here.
//!
//! A request may find out at any of its limits that the cells have just changed hands. What it was charged here until then is
//! taken back, and all of its limits are judged by the successor. Shadow limits, candidates and the sketches of this process
//! do not see these requests. With a shared store, requests in flight and estimate limits are the successor's; what it admits goes
//! on to the store, and is taken back there if the store refuses.

use smallvec::SmallVec;

use super::counters::VerdictKinds;
use super::decision::{Decision, GUESSED_RETRY_AFTER, LimitVerdict};
use super::exact::{ExactCharge, ExactOutcome, ExactVerdicts};
use super::generation::Generation;
use super::loaded_limit::TierState;
use super::open_charge::ChargedIn;
use super::pending::PendingSettlement;
use super::state::Engine;
use super::succession::{
    HandedCharge, HandedCount, HandedEvent, HandedKey, HandedRequest, HeldJudgment,
    SuccessorAnswer, Told,
};
use super::target::Target;
use super::tentative::{JudgedElsewhere, Tentative, in_flight_verdict};
use super::unsettled::Unsettled;
use crate::clock::Now;
use crate::limit::Verdict;
use crate::policy::{KeyHash, WhenFull};
use crate::store::{Acquired, CellOwner};

/// What the successor is asked.
struct Asked {
    request: HandedRequest,
    /// The targets of its charges, by index.
    targets: SmallVec<[usize; 4]>,
    /// What is taken here for the request: its delay slot.
    tentative: Tentative,
}

impl Engine {
    /// Settles a request whose cells changed hands. Returns whether it is decided. If it is not, it is to be settled again:
    /// elsewhere as long as `unsettled.is_handed_over`, else in the shared store.
    pub(super) async fn settle_elsewhere(
        &self,
        generation: &Generation,
        unsettled: &mut Unsettled,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) -> bool {
        let successor = match self.succession.successor().await {
            Ok(Some(successor)) => successor,
            Ok(None) => return self.settle_here(generation, unsettled, decision, pending),
            Err(_) => return self.settle_unanswered(generation, unsettled, decision, pending),
        };
        let asked = self.ask(generation, unsettled, decision);
        match successor.judge(asked.request.clone()).await {
            SuccessorAnswer::Judged(held) => {
                unsettled.tentative = asked.tentative;
                let judged = JudgedThere { held, targets: asked.targets };
                self.conclude_judged(generation, unsettled, judged, decision, pending)
            }
            SuccessorAnswer::Silent(late) => {
                unsettled.late = Some(late);
                self.settle_unanswered(generation, unsettled, decision, pending)
            }
            SuccessorAnswer::Gone => {
                self.take_back_abandoned();
                false
            }
        }
    }

    /// Settles a request in this process, which counts again.
    fn settle_here(
        &self,
        generation: &Generation,
        unsettled: &mut Unsettled,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) -> bool {
        unsettled.is_handed_over = false;
        let settled = self.settle_now(generation, unsettled, decision);
        let Some((outcome, results)) = settled else {
            return false;
        };
        self.conclude(generation, unsettled, outcome, results, decision, pending);
        true
    }

    /// Judges the enforcing limits as far as that needs no wait. `None`: it needs one, for a successor if
    /// `unsettled.is_handed_over`, else for the shared store.
    pub(super) fn settle_now(
        &self,
        generation: &Generation,
        unsettled: &mut Unsettled,
        decision: &mut Decision,
    ) -> Option<(ExactOutcome, ExactVerdicts)> {
        let Unsettled { targets, tentative, .. } = &mut *unsettled;
        let nothing = JudgedElsewhere::Nothing;
        // What is charged here is held before it is asked again: so the switch waits for it, or it is charged elsewhere.
        let is_complete = !self.has_estimates_elsewhere(generation, targets)
            && self.charge_tentatively(generation, targets, nothing, decision, tentative)
            && !self.has_estimates_elsewhere(generation, targets);
        if self.succession.is_abandoned() {
            let refused = self.refuse_unknown(generation, &unsettled.targets, decision.at);
            if refused.has_denial() {
                return Some((ExactOutcome::Refused, refused));
            }
        }
        let mut results = ExactVerdicts::default();
        let outcome = is_complete.then(|| {
            let request = self.exact_request(generation, unsettled, decision);
            self.exact.settle_now(&request, &mut results)
        });
        match outcome {
            Some(None) => None,
            Some(Some(outcome)) if outcome != ExactOutcome::HandedOver => Some((outcome, results)),
            None | Some(Some(_)) => {
                let tentative = std::mem::take(&mut unsettled.tentative);
                self.refund_tentative(generation, &unsettled.targets, tentative, decision);
                decision.verdicts.clear();
                unsettled.is_handed_over = true;
                None
            }
        }
    }

    /// Whether a successor judges estimate limits of this request.
    fn has_estimates_elsewhere(&self, generation: &Generation, targets: &[Target]) -> bool {
        let is_estimate = |target: &Target| {
            let loaded = generation.loaded(target.limit);
            !target.shadow && matches!(loaded.state, TierState::Estimate(_))
        };
        !self.succession.is_here() && targets.iter().any(is_estimate)
    }

    /// What the successor has to judge: all enforcing limits, but not the exact ones if a shared store has them.
    fn ask(
        &self,
        generation: &Generation,
        unsettled: &Unsettled,
        decision: &mut Decision,
    ) -> Asked {
        let mut asked = Asked {
            request: HandedRequest { charges: Vec::new(), may_charge: true },
            targets: SmallVec::new(),
            tentative: Tentative::default(),
        };
        let enforced = unsettled.targets.iter().enumerate().filter(|(_, target)| !target.shadow);
        for (index, target) in enforced {
            let loaded = generation.loaded(target.limit);
            if target.denied {
                let verdict = generation.denied(target, decision.at);
                let kinds = VerdictKinds::NORMAL;
                decision.verdicts.push(LimitVerdict::new(target, loaded.tier(), verdict, kinds));
                asked.request.may_charge = false;
                continue;
            }
            let limit = || generation.policy().limit(target.limit).name.to_string();
            let count = match &loaded.state {
                TierState::InFlight { max, .. } => {
                    HandedCount::InFlight { limit: limit(), max: *max }
                }
                TierState::Exact(_) if self.remote().is_some() => continue,
                TierState::Estimate(_) => HandedCount::Estimate { limit: limit() },
                TierState::Exact(exact) => {
                    if exact.delays() && asked.tentative.delay_slot.is_none() {
                        asked.tentative.delay_slot = self.delay_slots.take();
                    }
                    let may_delay = asked.tentative.delay_slot.is_some();
                    let Some(charge) = ExactCharge::new(loaded, target, may_delay) else {
                        continue;
                    };
                    charge.handed()
                }
            };
            asked.targets.push(index);
            asked.request.charges.push(HandedCharge {
                key: HandedKey::of(target.key),
                cost: target.cost,
                count,
                may_be_banned: generation.policy().limit(target.limit).penalty.is_some(),
            });
        }
        asked
    }

    /// Concludes a request that the successor has judged.
    fn conclude_judged(
        &self,
        generation: &Generation,
        unsettled: &mut Unsettled,
        judged: JudgedThere,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) -> bool {
        let JudgedThere { held, targets } = judged;
        let (judgment, estimates) = held.take();
        if let Some((charge, left)) = judgment.banned {
            let target = targets.get(charge as usize).and_then(|n| unsettled.targets.get(*n));
            if let Some(target) = target {
                decision.verdicts.clear();
                self.refuse_as_banned(generation, target, left, decision);
            }
            if unsettled.failed_token_check {
                self.charge_token_check(generation, &unsettled.targets, decision);
            }
            self.finish_decision(generation, &unsettled.targets, decision);
            return true;
        }
        let mut results = ExactVerdicts::default();
        let mut estimates = estimates.into_iter();
        for (number, (index, verdict)) in (0..).zip(targets.iter().zip(&judgment.verdicts)) {
            let target = &unsettled.targets[*index];
            let loaded = generation.loaded(target.limit);
            let Some(verdict) = *verdict else {
                continue;
            };
            let position = decision.verdicts.len();
            match &loaded.state {
                TierState::InFlight { table, .. } if judgment.charged => {
                    unsettled.tentative.hold(position, table.admitted(target.key, target.cost));
                }
                TierState::Estimate(_) => {
                    let charge = estimates.next();
                    charge.into_iter().for_each(|charge| {
                        unsettled.tentative.hold_handed(position, charge);
                    });
                }
                TierState::InFlight { .. } | TierState::Exact(_) => {}
            }
            let may_delay = unsettled.tentative.delay_slot.is_some();
            let kinds = VerdictKinds::NORMAL;
            match ExactCharge::new(loaded, target, may_delay) {
                Some(charge) => {
                    let is_counted = !judgment.uncounted.contains(&number);
                    if judgment.charged && charge.may_change && is_counted {
                        let quota = charge.quota.quota();
                        let receipt = quota.receipt(&verdict, target.cost, judgment.at);
                        results.open.push(charge.open(ChargedIn::Embedded(receipt)));
                    }
                    results.verdicts.push(charge.limit_verdict(verdict, kinds));
                }
                None => {
                    decision.verdicts.push(LimitVerdict::new(target, loaded.tier(), verdict, kinds))
                }
            }
        }
        if self.remote().is_some() && judgment.charged {
            let elsewhere = JudgedElsewhere::AllButExact;
            return self.go_on_in_shared_store(generation, unsettled, elsewhere, decision);
        }
        let outcome = match judgment.charged {
            true => ExactOutcome::Charged,
            false => ExactOutcome::Refused,
        };
        self.conclude(generation, unsettled, outcome, results, decision, pending);
        true
    }

    /// After what is judged elsewhere was admitted, the other limits are judged here and in the shared store.
    fn go_on_in_shared_store(
        &self,
        generation: &Generation,
        unsettled: &mut Unsettled,
        elsewhere: JudgedElsewhere,
        decision: &mut Decision,
    ) -> bool {
        let Unsettled { targets, tentative, .. } = &mut *unsettled;
        // Only requests in flight may be incomplete, and they are left out.
        let _ = self.charge_tentatively(generation, targets, elsewhere, decision, tentative);
        unsettled.is_handed_over = false;
        false
    }

    /// Settles a request that the successor did not answer: by what was counted here until it began to count, and since.
    /// What it has admitted is not known, so limits with `after_crash: deny` refuse, and of requests in flight those of this process
    /// are counted.
    /// Returns whether the request is decided; otherwise the shared store has to judge it.
    fn settle_unanswered(
        &self,
        generation: &Generation,
        unsettled: &mut Unsettled,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) -> bool {
        self.succession.record_unanswered();
        unsettled.tentative = Tentative::default();
        decision.verdicts.clear();
        let is_admitted = Self::count_in_flight_alone(generation, unsettled, decision);
        let elsewhere = JudgedElsewhere::InFlight;
        if self.remote().is_some() && is_admitted {
            return self.go_on_in_shared_store(generation, unsettled, elsewhere, decision);
        }
        let mut outcome = ExactOutcome::Refused;
        let mut results = match self.remote() {
            Some(_) => ExactVerdicts::default(),
            None => self.refuse_unknown(generation, &unsettled.targets, decision.at),
        };
        if is_admitted && !results.has_denial() {
            let Unsettled { targets, tentative, .. } = &mut *unsettled;
            // Only requests in flight are left out, so the rest is complete.
            let _ = self.charge_tentatively(generation, targets, elsewhere, decision, tentative);
            let request = self.exact_request(generation, unsettled, decision);
            if self.exact.charge_kept(&request, &mut results) {
                outcome = ExactOutcome::Charged;
            }
        }
        self.conclude(generation, unsettled, outcome, results, decision, pending);
        true
    }

    /// Has the successor take back what a judgment has charged that came too late: the request was refused here meanwhile.
    pub fn refund_late(&self, mut held: HeldJudgment, request: &HandedRequest) {
        held.refuse_estimates();
        let judgment = held.judgment();
        if !judgment.charged {
            return;
        }
        for (number, (charge, verdict)) in (0..).zip(request.charges.iter().zip(&judgment.verdicts))
        {
            let HandedCount::Exact { quota, .. } = charge.count else {
                continue;
            };
            let Some(issued) = self.exact.embedded.quota_numbered(quota) else {
                continue;
            };
            if let Some(verdict) = verdict.filter(|_| !judgment.uncounted.contains(&number)) {
                let receipt = issued.quota().receipt(&verdict, charge.cost, judgment.at);
                let (key, units) = (charge.key, charge.cost);
                held.successor().tell(HandedEvent::Refund { quota, key, units, receipt });
            }
        }
    }

    /// Counts a request in flight among those of this process. Adds the verdicts, and holds its slots. Returns whether all limits
    /// admit it.
    fn count_in_flight_alone(
        generation: &Generation,
        unsettled: &mut Unsettled,
        decision: &mut Decision,
    ) -> bool {
        let Unsettled { targets, tentative, .. } = unsettled;
        let mut is_admitted = true;
        for target in targets.iter().filter(|target| !target.shadow && !target.denied) {
            let loaded = generation.loaded(target.limit);
            if let TierState::InFlight { table, max } = &loaded.state {
                let Acquired { permit, held } = table.acquire_alone(target.key, target.cost, *max);
                let verdict = in_flight_verdict(*max, held, target.cost, permit.is_some());
                let kinds = VerdictKinds::DEGRADED;
                let verdict = LimitVerdict::new(target, loaded.tier(), verdict, kinds);
                is_admitted &= permit.is_some();
                if let Some(permit) = permit {
                    tentative.hold(decision.verdicts.len(), permit);
                }
                decision.verdicts.push(LimitVerdict { charged: 0, ..verdict });
            }
        }
        is_admitted
    }

    /// Has a charge made by whoever counts: for a token that was checked in vain, or for a request that the switch met.
    pub(super) fn tell_charge(&self, generation: &Generation, target: &Target) {
        let loaded = generation.loaded(target.limit);
        let count = match ExactCharge::new(loaded, target, true) {
            Some(charge) => charge.handed(),
            None => {
                let limit = generation.policy().limit(target.limit).name.to_string();
                HandedCount::Estimate { limit }
            }
        };
        let (key, cost) = (HandedKey::of(target.key), target.cost);
        let event = HandedEvent::Charge(HandedCharge { key, cost, count, may_be_banned: false });
        // If this process counts again, the client has gained one charge.
        let (Told::There | Told::Here) = self.succession.tell(event);
    }

    /// Tells the successor, if there is one, that a limit has refused a request.
    pub(super) fn tell_denial(&self, limit: &str, key: KeyHash) {
        if !self.succession.is_here() {
            let event = HandedEvent::Denied { limit: limit.to_owned(), key: HandedKey::of(key) };
            // The caller records it here in any case.
            let (Told::There | Told::Here) = self.succession.tell(event);
        }
    }

    /// Does something to a cell here, or tells the successor to, if that has the cell.
    pub(super) fn do_where_counted(&self, event: HandedEvent, here: impl Fn() -> CellOwner) {
        while here() == CellOwner::Successor {
            if self.succession.tell(event.clone()) == Told::There {
                return;
            }
            // The cell has come back in between.
        }
    }

    /// Counts in this process again, after a successor that counted has gone. What it admitted is not known here, and nothing
    /// is saved any more, so limits with `after_crash: deny` refuse from now on.
    pub fn take_back_abandoned(&self) {
        self.succession.set_abandoned();
        self.take_back();
    }

    /// The verdicts of the limits that refuse because nobody tells what a successor has admitted.
    fn refuse_unknown(
        &self,
        generation: &Generation,
        targets: &[Target],
        now: Now,
    ) -> ExactVerdicts {
        let mut refused = ExactVerdicts::default();
        for target in targets.iter().filter(|target| !target.shadow && !target.denied) {
            let Some(charge) = ExactCharge::new(generation.loaded(target.limit), target, true)
                .filter(|charge| charge.quota.denies_after_crash())
            else {
                continue;
            };
            let fresh = charge.quota.quota().judge(None, 0, now);
            let retry_after = Some(GUESSED_RETRY_AFTER);
            let verdict = Verdict { allowed: false, remaining: 0, retry_after, ..fresh };
            refused.verdicts.push(charge.limit_verdict(verdict, VerdictKinds::DEGRADED));
        }
        refused
    }

    /// Counts in this process again. Idempotent.
    pub fn take_back(&self) {
        let events = self.succession.take_back(|| {
            self.exact.embedded.take_back();
            self.handed_in_flight.lock().drain(..).for_each(|counts| counts.take_back());
        });
        let now = self.now();
        for event in events {
            self.apply_event(event, now);
        }
    }

    /// Does what has happened to a request. Events that name a quota that does not exist are left out.
    pub(super) fn apply_event(&self, event: HandedEvent, now: Now) {
        let embedded = &self.exact.embedded;
        let owner = match event {
            HandedEvent::Refund { quota, key, units, receipt } => embedded
                .quota_numbered(quota)
                .map(|quota| embedded.refund(key.hash(), &quota, units, receipt, now)),
            HandedEvent::Debit { quota, key, units } => embedded
                .quota_numbered(quota)
                .map(|quota| embedded.debit(key.hash(), &quota, units, now)),
            // Permits and bans of this process have been kept here meanwhile.
            // What a successor that has gone has charged is gone too.
            HandedEvent::Ended { .. }
            | HandedEvent::Denied { .. }
            | HandedEvent::Charge(_)
            | HandedEvent::Settled { .. } => None,
        };
        if owner == Some(CellOwner::Successor) {
            log::error!("a cell is neither here nor with the successor");
        }
    }
}

/// A judgment with the targets of its charges, by index.
struct JudgedThere {
    held: HeldJudgment,
    targets: SmallVec<[usize; 4]>,
}

impl ExactCharge<'_> {
    /// How the successor counts it.
    fn handed(&self) -> HandedCount {
        HandedCount::Exact {
            quota: self.quota.number(),
            denies_when_full: self.limit.when_full == WhenFull::Deny,
        }
    }
}
