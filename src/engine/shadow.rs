//! Limits that watch, and candidates: judged beside the enforcing limits, they refuse nothing.

use super::background::Background;
use super::counters::VerdictKinds;
use super::exact::{ExactPart, ExactRequest, Settled};
use super::generation::Counter;
use super::pending::PendingSettlement;
use super::target::Target;
use super::tentative::in_flight;
use super::{Decision, Engine, Generation, LimitVerdict, Outcome, VerdictKind};
use crate::store::Acquired;

impl Engine {
    /// Asks every shadow limit, each for itself. It is charged only if the request passes.
    pub(super) fn watch_all(
        &self,
        generation: &Generation,
        targets: &[Target],
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        let passes = decision.outcome == Outcome::Allowed;
        for target in targets.iter().filter(|target| target.shadow) {
            let part = ExactPart::new(generation, target, true).filter(|_| !target.denied);
            match (self.remote(), part) {
                (Some(remote), Some(part)) if passes => {
                    Background { engine: self, remote, generation, part }.watch(decision, pending);
                }
                // No request waits for a shadow limit, and a refused one does not charge it.
                (Some(_), Some(_)) => {}
                (None, Some(part)) => self.watch_exact(part, passes, decision, pending),
                (_, None) => self.watch(generation, target, passes, decision, pending),
            }
        }
    }

    /// A shadow limit that needs no store.
    fn watch(
        &self,
        generation: &Generation,
        target: &Target,
        passes: bool,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        let now = decision.at;
        let counting = generation.counting(target.limit);
        let verdict = match &counting.counter {
            Counter::Estimate(estimate) if !target.denied => {
                let (verdict, receipt) =
                    estimate.charge(&self.confirm, target.key, target.cost, now);
                if verdict.allowed && !passes {
                    estimate.refund(&self.confirm, receipt);
                }
                verdict
            }
            Counter::InFlight(table, max) if !target.denied => {
                let Acquired { permit: slot, held } =
                    table.acquire(target.key, target.cost, *max, true);
                if passes {
                    pending.slots.extend(slot);
                }
                in_flight(*max, held, target.cost, held <= u64::from(*max))
            }
            // An exact limit is here only for a key that an override denies.
            Counter::Estimate(_) | Counter::InFlight(..) | Counter::Exact(_) => {
                generation.denied(target, now)
            }
        };
        let answer = LimitVerdict::new(target, counting.tier(), verdict, VerdictKinds::NORMAL);
        decision.verdicts.push(as_shadow(answer));
    }

    /// A shadow limit of the embedded store.
    fn watch_exact(
        &self,
        part: ExactPart<'_>,
        passes: bool,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        let mut settled = self.charge_alone(part, passes, decision);
        decision.verdicts.extend(settled.verdicts.drain(..).map(as_shadow));
        pending.open.append(&mut settled.open);
    }

    /// Asks candidates, each as if it stood in the place of its limit.
    pub(super) fn try_candidates(
        &self,
        generation: &Generation,
        targets: &[Target],
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        for target in targets {
            let Some((limit, quota, trial)) = generation.trial(target, decision) else {
                continue;
            };
            let passes = trial.would_pass(decision);
            let target = &trial.target(target);
            let may_change = generation.counting(target.limit).may_change;
            let overflow = limit.candidate_overflow.as_ref().unwrap_or(&limit.overflow);
            let part = ExactPart { target, limit, quota, may_change, overflow, lacks_slot: false };
            match self.remote() {
                Some(remote) if passes => Background { engine: self, remote, generation, part }
                    .try_candidate(&trial, pending),
                Some(_) => continue,
                None => {
                    let mut settled = self.charge_alone(part, passes, decision);
                    let allowed = settled.verdicts.iter().all(|answer| answer.verdict.allowed);
                    trial.answered(&generation.counting(target.limit).counters, allowed);
                    settled.open.iter_mut().for_each(|open| open.told = false);
                    pending.open.append(&mut settled.open);
                }
            }
            decision.candidates.push(trial);
        }
    }

    /// Judges one cell of the embedded store, and charges it if `may_charge`.
    pub(super) fn charge_alone(
        &self,
        part: ExactPart<'_>,
        may_charge: bool,
        decision: &Decision,
    ) -> Settled {
        let request = ExactRequest {
            parts: std::iter::once(part).collect(),
            may_charge,
            generation: decision.generation,
            confirm: &self.confirm,
            now: decision.at,
            clock: &*self.clock,
        };
        let mut settled = Settled::default();
        let kinds = VerdictKinds::NORMAL;
        self.exact.charge_embedded(&request, &request.parts, may_charge, kinds, &mut settled);
        settled
    }
}

fn as_shadow(mut answer: LimitVerdict) -> LimitVerdict {
    answer.shadow = true;
    if !answer.verdict.allowed {
        answer.kind = VerdictKind::ShadowDenied;
    }
    answer
}
