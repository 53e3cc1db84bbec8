//! Requests whose token was not checked yet.
//!
//! A signature takes up to a hundred times as long as a decision, and anybody can send a forged one. So
//! the limits whose keys need no signature are asked first, without a charge: a request that one of them
//! refuses has no signature checked. Of a token that is remembered nothing is checked, and all limits are
//! asked at once.
//!
//! A refusal here is what the same limit would say a moment later. It names only the limits that were
//! asked. A limit whose plan is in the token is not asked, since its rate is not known.
//!
//! A check that was in vain is paid for: limits by the client's address are charged for it, also where the
//! request is refused or rejected. So they bound how many forged tokens of a client are checked.

use http::HeaderMap;

use super::background::Background;
use super::exact::{ExactOutcome, ExactPart, Settled};
use super::generation::Counter;
use super::pending::{FinalResponse, PendingSettlement};
use super::target::{self, Resolved, Target};
use super::{Decision, Engine, Generation, Outcome, Unsettled};
use crate::limit::Verdict;
use crate::policy::{Count, Facts, RouteIndex, Source};
use crate::tokens::SignatureCheck;

/// What [`Engine::find_targets`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The targets of a request that is to be judged.
    Targets,
    /// Nothing to judge: the decision stands.
    Decided,
}

impl Engine {
    /// Finds the route, and the targets of its limits. All keys are read before any is charged, so a
    /// request without a key that it needs is charged nothing, unless its token had to be checked.
    pub(super) fn find_targets(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
        unsettled: &mut Unsettled,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) -> Found {
        let policy = generation.policy();
        decision.date = facts.now;
        let Some(route) = policy.find(facts) else {
            return Found::Decided;
        };
        decision.route = Some(route);
        if !target::reads_alike(generation, facts, route) {
            decision.outcome = Outcome::AmbiguousPath;
            return Found::Decided;
        }
        decision.outcome = Outcome::Allowed;
        if policy.route(route).limits.is_empty() {
            return Found::Decided;
        }
        let recalled = SignatureCheck::Recall;
        match target::resolve(generation, facts, route, recalled, &mut unsettled.targets) {
            Ok(Resolved::Whole) => {}
            Ok(Resolved::Partly) => {
                if self.refuse_unchecked(generation, unsettled, decision, pending) {
                    return Found::Decided;
                }
                check(generation, facts, route, unsettled);
            }
            Err(error) => {
                decision.outcome = error.outcome();
                return Found::Decided;
            }
        }
        if !unsettled.targets.is_empty() {
            return Found::Targets;
        }
        decision.outcome = unsettled.rejected.unwrap_or(Outcome::Allowed);
        Found::Decided
    }

    /// Asks the limits that need no signature. `true`: one of them refuses, and the decision stands.
    /// Otherwise nothing is charged, and `unsettled` holds the targets that could be judged.
    fn refuse_unchecked(
        &self,
        generation: &Generation,
        unsettled: &mut Unsettled,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) -> bool {
        if self.banned(generation, &unsettled.targets, decision) {
            self.end(generation, &unsettled.targets, decision);
            return true;
        }
        unsettled.targets.retain(|target| !target.unrated || (target.denied && !target.shadow));
        let Unsettled { targets, tentative, .. } = &mut *unsettled;
        self.charge_tentatively(generation, targets, decision, tentative);
        let mut settled = Settled::default();
        let refused = {
            let request = self.exact_request(generation, unsettled, decision);
            let refused = self.exact.peek(&request, &mut settled);
            refused.or_else(|| (!request.may_charge).then_some(ExactOutcome::Refused))
        };
        if let Some(outcome) = refused {
            self.conclude(generation, unsettled, (outcome, settled), decision, pending);
            return true;
        }
        let tentative = std::mem::take(&mut unsettled.tentative);
        self.give_back(generation, &unsettled.targets, tentative, decision);
        decision.verdicts.clear();
        false
    }

    /// Charges the limits by the client's address for a token that was checked in vain, each for itself: another
    /// limit has refused the request, so it was charged nothing, and a sender of forged tokens could go on for
    /// ever. No request waits for a shared store here.
    pub(super) fn charge_check(
        &self,
        generation: &Generation,
        targets: &[Target],
        decision: &mut Decision,
    ) {
        let enforced = targets.iter().filter(|target| !target.shadow && !target.denied);
        for target in enforced.filter(|target| pays_for_checks(generation, target)) {
            let Some(verdict) = self.charge_target(generation, target, decision) else {
                continue;
            };
            let mut admitting = decision
                .verdicts
                .iter_mut()
                .filter(|answer| answer.verdict.allowed && !answer.shadow);
            if let Some(answer) = admitting.find(|answer| answer.limit == target.limit) {
                answer.verdict = Verdict { allowed: true, ..verdict };
            }
        }
    }

    /// Charges one target. `None`: nothing tells yet what is left there.
    fn charge_target(
        &self,
        generation: &Generation,
        target: &Target,
        decision: &Decision,
    ) -> Option<Verdict> {
        if let Counter::Estimate(estimate) = &generation.counting(target.limit).counter {
            let (verdict, _) = estimate.charge(&self.confirm, target.key, target.cost, decision.at);
            return Some(verdict);
        }
        // A limit that delays is charged as for a request that waits.
        let part = ExactPart::new(generation, target, true)?;
        match self.remote() {
            Some(remote) if !remote.is_away(&part.spend()) => {
                Background { engine: self, remote, generation, part }.charge_unseen();
                None
            }
            Some(_) | None => {
                let settled = self.charge_alone(part, true, decision);
                settled.verdicts.first().map(|answer| answer.verdict)
            }
        }
    }

    /// A request that its limits admit is answered by this proxy all the same. Its charges stay, unless the
    /// status of the answer gives them back.
    pub(super) fn reject(
        &self,
        generation: &Generation,
        outcome: Outcome,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        decision.outcome = outcome;
        let headers = HeaderMap::new();
        let said = FinalResponse { status: outcome.status(), headers: &headers, by_origin: false };
        self.finish(generation, decision, pending, &said);
    }
}

/// Resolves all limits, with every signature that it takes. A request that a limit rejects then, for want of a
/// key, is still charged to limits by the client's address, or forged tokens could be sent, and checked, without
/// any limit.
fn check(generation: &Generation, facts: &Facts<'_>, route: RouteIndex, unsettled: &mut Unsettled) {
    let Unsettled { targets, rejected, owes_check, .. } = unsettled;
    targets.clear();
    let resolved = target::resolve(generation, facts, route, SignatureCheck::Verify, targets);
    if let Err(error) = resolved {
        *rejected = Some(error.outcome());
        targets.retain(|target| pays_for_checks(generation, target));
    }
    let policy = generation.policy();
    let reads_token = |source: &Source| source.claim().is_some();
    let sources = policy.sources(policy.route(route), reads_token);
    *owes_check = !sources.iter().filter_map(Source::claim).any(|claim| claim.is_believed(facts));
}

/// Whether a token that was checked in vain is charged to this: to what is certainly the client's own. Nobody
/// shall spend with a forged token what others need, hold a slot in flight with it, or have a status counted
/// that no origin has answered.
fn pays_for_checks(generation: &Generation, target: &Target) -> bool {
    let limit = generation.policy().limit(target.limit);
    let is_rate = !matches!(limit.count, Count::InFlight { .. });
    let is_settled =
        !limit.status_rules.depends_on_status() && !target.final_cost.depends_on_response();
    target.by_address && is_rate && is_settled
}
