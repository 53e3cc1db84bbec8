//! Decides a request in three steps, which are the same for every store.
//!
//! - `begin` finds the route, resolves all keys, asks bans, and judges what needs no store. It also settles the exact
//!   limits if that needs no wait.
//! - `settle` waits for the shared store. Only a request that this store has to judge gets here.
//! - `conclude` combines the verdicts into the decision, refunds if the request is refused, charges shadow limits and
//!   candidates, and records metrics and penalties.
//!
//! A refused request keeps no charge of an enforcing limit, except for a token that was checked in vain.

use super::decision::{Decision, Outcome};
use super::event_order::OrderedEvent;
use super::exact::{ExactCharge, ExactOutcome, ExactRequest, ExactVerdicts};
use super::generation::Generation;
use super::pending::PendingSettlement;
use super::state::Engine;
use super::target::Target;
use super::trace::{OpenTrace, RequestTrace};
use super::unchecked::TargetLookup;
use super::unsettled::Unsettled;
use crate::clock::Nanos;
use crate::policy::{Facts, Tier};

/// One decision in this many is timed; a power of two.
const DECISIONS_PER_SAMPLE: u64 = 64;

impl Engine {
    /// Decides a request. It waits only if an exact limit counts in the shared store, and no longer than that store's
    /// timeout.
    ///
    /// Hold the [`PendingSettlement`] until the request has ended, and pass the response to [`Engine::finish`].
    pub async fn decide(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
    ) -> (Decision, PendingSettlement) {
        let mut decision = generation.undecided(self.now());
        let mut pending = PendingSettlement::default();
        let unsettled = self.begin(generation, facts, &mut decision, &mut pending);
        if let Some(unsettled) = unsettled {
            self.settle(generation, unsettled, &mut decision, &mut pending).await;
        }
        (decision, pending)
    }

    /// Decides a request without any wait. Exact limits of a shared store are judged as their `on_store_failure`
    /// says.
    pub fn decide_now(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
    ) -> (Decision, PendingSettlement) {
        let mut decision = generation.undecided(self.now());
        let mut pending = PendingSettlement::default();
        let unsettled = self.begin(generation, facts, &mut decision, &mut pending);
        if let Some(mut unsettled) = unsettled {
            let mut results = ExactVerdicts::default();
            let request = self.exact_request(generation, &unsettled, &decision);
            let outcome = self.exact.settle_without_store(&request, &mut results);
            drop(request);
            self.conclude(
                generation,
                &mut unsettled,
                outcome,
                results,
                &mut decision,
                &mut pending,
            );
        }
        (decision, pending)
    }

    /// The part of [`Engine::decide`] that needs no wait. `decision` is [`Generation::undecided`] and `pending` empty.
    /// `None`: the request is decided. Otherwise the shared store has to be asked, by [`Engine::settle`].
    ///
    /// This is not an async function: a future that holds facts and decision would double the cost of a decision.
    pub(crate) fn begin(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) -> Option<Unsettled> {
        let mut unsettled = Unsettled::default();
        let is_decided = self.begin_with(generation, facts, &mut unsettled, decision, pending);
        if let Some(recorder) = &generation.recorder {
            let mut values = recorder.record(generation.policy(), facts);
            values.token_failed = unsettled.failed_token_check;
            values.asked_again =
                unsettled.asked.charging.and(unsettled.asked.before_check).is_some();
            let order = unsettled.asked.charging.or(unsettled.asked.before_check);
            let order = order.unwrap_or_else(|| self.events.begin().number());
            let trace = RequestTrace::new(decision, order, values);
            pending.trace = Some(Box::new(OpenTrace { trace, events: self.events.clone() }));
        }
        (!is_decided).then_some(unsettled)
    }

    /// [`Engine::begin`] without a trace. Returns whether the request is decided.
    fn begin_with(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
        unsettled: &mut Unsettled,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) -> bool {
        match self.find_targets(generation, facts, unsettled, decision, pending) {
            TargetLookup::Found => {}
            TargetLookup::Decided => return true,
        }
        let event = generation.recorder.as_ref().map(|_| self.events.begin());
        unsettled.asked.charging = event.as_ref().map(OrderedEvent::number);
        let Unsettled { targets, failed_token_check, .. } = &mut *unsettled;
        if self.remote().is_none() {
            let exact = targets.iter().filter(|target| generation.loaded(target.limit).is_exact());
            self.exact.embedded.prefetch(exact.map(|target| target.key));
        }
        if self.refuse_banned(generation, targets, decision) {
            if *failed_token_check {
                self.charge_token_check(generation, targets, decision);
            }
            self.finish_decision(generation, targets, decision);
            return true;
        }
        let settled = self.settle_now(generation, unsettled, decision);
        let Some((outcome, results)) = settled else {
            return false;
        };
        self.conclude(generation, unsettled, outcome, results, decision, pending);
        true
    }

    /// Finishes what [`Engine::begin`] began: waits for the shared store, or for a successor.
    pub(crate) async fn settle(
        &self,
        generation: &Generation,
        mut unsettled: Unsettled,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        let was_elsewhere = unsettled.is_handed_over;
        while unsettled.is_handed_over {
            if self.settle_elsewhere(generation, &mut unsettled, decision, pending).await {
                return;
            }
        }
        let mut results = ExactVerdicts::default();
        let outcome = {
            let mut request = self.exact_request(generation, &unsettled, decision);
            if was_elsewhere {
                // The wait for a successor takes nothing of the time that the store has.
                request.now = self.now();
            }
            self.exact.settle(&request, &mut results).await
        };
        self.conclude(generation, &mut unsettled, outcome, results, decision, pending);
    }

    /// The request to the exact tier. It charges only if no other limit has refused.
    pub(super) fn exact_request<'r>(
        &'r self,
        generation: &'r Generation,
        unsettled: &'r Unsettled,
        decision: &Decision,
    ) -> ExactRequest<'r> {
        let Unsettled { targets, tentative, .. } = unsettled;
        let may_delay = tentative.delay_slot.is_some();
        let charge = |&index: &usize| {
            let target = &targets[index];
            ExactCharge::new(generation.loaded(target.limit), target, may_delay)
        };
        ExactRequest {
            charges: tentative.exact.iter().filter_map(charge).collect(),
            may_charge: decision.refusing().next().is_none(),
            generation: generation.epoch(),
            confirm: &self.confirm,
            now: decision.at,
            clock: &*self.clock,
        }
    }

    /// Completes the decision from the verdicts of all tiers, then charges shadow limits and candidates.
    pub(super) fn conclude(
        &self,
        generation: &Generation,
        unsettled: &mut Unsettled,
        outcome: ExactOutcome,
        mut results: ExactVerdicts,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        let (targets, mut tentative) =
            (&unsettled.targets, std::mem::take(&mut unsettled.tentative));
        decision.verdicts.extend(results.verdicts);
        let late = unsettled.late.take();
        match outcome {
            ExactOutcome::Charged => {
                self.tell_left_out(generation, targets, &mut tentative);
                tentative.keep(decision.wait() > Nanos::ZERO, pending);
                pending.open.append(&mut results.open);
                decision.save = results.save;
            }
            ExactOutcome::Refused | ExactOutcome::Outage | ExactOutcome::HandedOver => {
                decision.outcome = match outcome {
                    ExactOutcome::Outage => Outcome::Outage,
                    ExactOutcome::Charged | ExactOutcome::Refused | ExactOutcome::HandedOver => {
                        Outcome::Limited
                    }
                };
                self.refund_tentative(generation, targets, tentative, decision);
                if let Some((held, request)) = late.and_then(|late| late.set_refused()) {
                    self.refund_late(held, &request);
                }
                if unsettled.failed_token_check {
                    self.charge_token_check(generation, targets, decision);
                }
            }
        }
        self.charge_shadow_limits(generation, targets, decision, pending);
        self.charge_candidates(generation, targets, decision, pending);
        self.finish_decision(generation, targets, decision);
        if let (Outcome::Allowed, Some(rejected)) = (decision.outcome, unsettled.rejected) {
            self.reject(generation, rejected, decision, pending);
        }
    }

    /// Sorts the verdicts in the order of the route, and records metrics, penalties and the duration.
    pub(super) fn finish_decision(
        &self,
        generation: &Generation,
        targets: &[Target],
        decision: &mut Decision,
    ) {
        if decision.verdicts.len() > 1 {
            let index = |limit| targets.iter().position(|target| target.limit == limit);
            decision.verdicts.sort_by_key(|limit_verdict| index(limit_verdict.limit));
        }
        self.record_denials(generation, targets, decision);
        generation.record(decision);
        self.record_duration(decision);
    }

    /// Times one decision in [`DECISIONS_PER_SAMPLE`], chosen by the low bits of its own time.
    fn record_duration(&self, decision: &Decision) {
        let began = decision.at.mono;
        if (began.get() / 8).is_multiple_of(DECISIONS_PER_SAMPLE) {
            let mut verdicts = decision.verdicts.iter();
            let is_exact = verdicts.any(|limit_verdict| limit_verdict.tier == Tier::Exact);
            let tier = if is_exact { Tier::Exact } else { Tier::Estimate };
            self.durations.of(tier).record_span(self.now().mono.saturating_sub(began));
        }
    }
}
