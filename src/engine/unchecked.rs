//! Finds the targets of a request. If the signature of its token was not checked yet, this module decides when it is.
//!
//! Checking a signature is expensive ([`SignatureCheck`]), and anyone can send a forged token. So the limits whose keys
//! need no signature are asked first, without a charge; if one of them refuses, no signature is checked. For a token
//! that was checked before, nothing is checked and all limits are asked at once.
//!
//! A refusal here is the refusal that the same limit would give a moment later. It names only the limits that were
//! asked. A limit whose plan is in the token is not asked, since its rate is not known.
//!
//! A check in vain is charged to the limits by the client's address, even if the request is refused or rejected. So
//! they bound how many forged tokens of a client are checked.

use http::HeaderMap;

use super::background::BackgroundCharge;
use super::decision::{Decision, Outcome};
use super::event_order::OrderedEvent;
use super::exact::{ExactCharge, ExactOutcome, ExactVerdicts};
use super::generation::Generation;
use super::loaded_limit::TierState;
use super::pending::{FinalResponse, PendingSettlement};
use super::resolve::{self, Completeness};
use super::state::Engine;
use super::target::Target;
use super::tentative::JudgedElsewhere;
use super::unsettled::Unsettled;
use crate::limit::Verdict;
use crate::policy::{ConditionResults, Count, Facts, RouteIndex, Source, Unreadable};
use crate::tokens::SignatureCheck;

/// What [`Engine::find_targets`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetLookup {
    /// Targets to judge.
    Found,
    /// Nothing to judge: the request is decided.
    Decided,
}

impl Engine {
    /// Finds the route and the targets of its limits. All keys are read before any is charged, so a request that lacks
    /// a required key is charged nothing, unless its token had to be checked.
    pub(super) fn find_targets(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
        unsettled: &mut Unsettled,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) -> TargetLookup {
        let policy = generation.policy();
        decision.date = facts.now;
        let route = match policy.find(facts) {
            Ok(Some(route)) => route,
            Ok(None) => return TargetLookup::Decided,
            Err(Unreadable) => {
                decision.outcome = Outcome::UnreadableCondition;
                return TargetLookup::Decided;
            }
        };
        decision.route = Some(route);
        let rewrite = policy.route(route).rewrite.as_ref();
        if !resolve::is_unambiguous(generation, facts, route)
            || rewrite.is_some_and(|rewrite| !rewrite.admits(facts))
        {
            decision.outcome = Outcome::AmbiguousPath;
            return TargetLookup::Decided;
        }
        decision.outcome = Outcome::Allowed;
        if policy.route(route).limits.is_empty() {
            return TargetLookup::Decided;
        }
        let recalled = SignatureCheck::Recall;
        match resolve::resolve(generation, facts, route, recalled, &mut unsettled.targets) {
            Ok(Completeness::Complete) => {}
            Ok(Completeness::Partial) => {
                if !facts.conditions.is_some_and(ConditionResults::is_asked_again)
                    && self.refuse_unchecked(generation, unsettled, decision, pending)
                {
                    return TargetLookup::Decided;
                }
                check_token(generation, facts, route, unsettled);
            }
            Err(error) => {
                decision.outcome = error.outcome();
                return TargetLookup::Decided;
            }
        }
        if !unsettled.targets.is_empty() {
            return TargetLookup::Found;
        }
        decision.outcome = unsettled.rejected.unwrap_or(Outcome::Allowed);
        TargetLookup::Decided
    }

    /// Asks the limits that need no signature. `true`: one of them refuses, and the request is decided. Otherwise
    /// nothing is charged, and `unsettled` holds the targets that could be judged.
    fn refuse_unchecked(
        &self,
        generation: &Generation,
        unsettled: &mut Unsettled,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) -> bool {
        let event = generation.recorder.as_ref().map(|_| self.events.begin());
        unsettled.asked.before_check = event.as_ref().map(OrderedEvent::number);
        if self.refuse_banned(generation, &unsettled.targets, decision) {
            self.finish_decision(generation, &unsettled.targets, decision);
            return true;
        }
        unsettled
            .targets
            .retain(|target| !target.unknown_rate || (target.denied && !target.shadow));
        let Unsettled { targets, tentative, .. } = &mut *unsettled;
        // Where a successor counts, no limit is known to refuse before the token is checked.
        let _ = self.charge_tentatively(
            generation,
            targets,
            JudgedElsewhere::Nothing,
            decision,
            tentative,
        );
        let mut results = ExactVerdicts::default();
        let refused = {
            let request = self.exact_request(generation, unsettled, decision);
            let refused = self.exact.peek(&request, &mut results);
            refused.or_else(|| (!request.may_charge).then_some(ExactOutcome::Refused))
        };
        if let Some(outcome) = refused {
            self.conclude(generation, unsettled, outcome, results, decision, pending);
            return true;
        }
        let tentative = std::mem::take(&mut unsettled.tentative);
        self.refund_tentative(generation, &unsettled.targets, tentative, decision);
        decision.verdicts.clear();
        false
    }

    /// Charges the limits by the client's address for a token that was checked in vain, each independently. Another
    /// limit has refused the request, so it was charged nothing; without this charge a client could send forged
    /// tokens without end. No request waits for a shared store here.
    pub(super) fn charge_token_check(
        &self,
        generation: &Generation,
        targets: &[Target],
        decision: &mut Decision,
    ) {
        let enforced = targets.iter().filter(|target| !target.shadow && !target.denied);
        for target in enforced.filter(|target| is_charged_for_checks(generation, target)) {
            let Some(verdict) = self.charge_target(generation, target, decision) else {
                continue;
            };
            let mut admitting = decision
                .verdicts
                .iter_mut()
                .filter(|limit_verdict| limit_verdict.verdict.allowed && !limit_verdict.shadow);
            if let Some(limit_verdict) =
                admitting.find(|limit_verdict| limit_verdict.limit == target.limit)
            {
                limit_verdict.verdict = Verdict { allowed: true, ..verdict };
            }
        }
    }

    /// Charges one target. `None`: the verdict is not known yet.
    fn charge_target(
        &self,
        generation: &Generation,
        target: &Target,
        decision: &Decision,
    ) -> Option<Verdict> {
        if let TierState::Estimate(estimate) = &generation.loaded(target.limit).state {
            if !self.succession.is_here() {
                self.tell_charge(generation, target);
                return None;
            }
            let (verdict, _) = estimate.charge(&self.confirm, target.key, target.cost, decision.at);
            return Some(verdict);
        }
        // A limit that delays is charged as for a request with a delay slot.
        let charge = ExactCharge::new(generation.loaded(target.limit), target, true)?;
        match self.remote() {
            Some(shared) if !shared.is_away(&charge.cell_charge()) => {
                BackgroundCharge { engine: self, shared, generation, charge }.charge_unrecorded();
                None
            }
            Some(_) | None => {
                let results = self.charge_single_cell(charge, true, decision);
                if results.verdicts.is_empty() {
                    self.tell_charge(generation, target);
                }
                results.verdicts.first().map(|limit_verdict| limit_verdict.verdict)
            }
        }
    }

    /// Rejects a request that all its limits admit. Its charges stay, unless the status of the response refunds them.
    pub(super) fn reject(
        &self,
        generation: &Generation,
        outcome: Outcome,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        decision.outcome = outcome;
        let headers = HeaderMap::new();
        let response =
            FinalResponse { status: outcome.status(), headers: &headers, by_origin: false };
        self.finish(generation, decision, pending, &response);
    }
}

/// Resolves all limits and checks every signature that this needs. If a limit rejects the request then, for want of a
/// key, limits by the client's address are still charged; otherwise forged tokens could be checked without any limit.
fn check_token(
    generation: &Generation,
    facts: &Facts<'_>,
    route: RouteIndex,
    unsettled: &mut Unsettled,
) {
    let Unsettled { targets, rejected, failed_token_check, .. } = unsettled;
    targets.clear();
    let resolved = resolve::resolve(generation, facts, route, SignatureCheck::Verify, targets);
    if let Err(error) = resolved {
        *rejected = Some(error.outcome());
        targets.retain(|target| is_charged_for_checks(generation, target));
    }
    let policy = generation.policy();
    let reads_token = |source: &Source| source.claim().is_some();
    let sources = policy.sources(policy.route(route), reads_token);
    *failed_token_check =
        !sources.iter().filter_map(Source::claim).any(|claim| claim.is_known_valid(facts));
}

/// Whether a token that was checked in vain is charged to this target. Only cells that certainly belong to the
/// client are charged: a forged token must not use up the units of other clients, hold a slot in flight, or have a
/// status counted that no origin has sent.
fn is_charged_for_checks(generation: &Generation, target: &Target) -> bool {
    let limit = generation.policy().limit(target.limit);
    let is_rate = !matches!(limit.count, Count::InFlight { .. });
    let is_final =
        !limit.status_rules.depends_on_status() && !target.final_cost.depends_on_response();
    target.by_address && is_rate && is_final
}
