//! Requests whose token was not checked yet.
//!
//! A signature takes up to a hundred times as long as a decision, and anybody can send a forged one. So
//! the limits whose keys need no signature are asked first, without a charge: a request that one of them
//! refuses has no signature checked. Of a token that is remembered nothing is checked, and all limits are
//! asked at once.
//!
//! A refusal here is what the same limit would say a moment later. It names only the limits that were
//! asked. A limit whose plan is in the token is not asked, since its rate is not known.

use http::HeaderMap;

use super::exact::{ExactOutcome, Settled};
use super::pending::{Pending, Said};
use super::target::{self, Resolved, Targets};
use super::{Decision, Engine, Generation, Outcome, Unsettled};
use crate::policy::{Count, Facts, RouteIndex, Source};
use crate::tokens::Signatures;

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
        pending: &mut Pending,
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
        let recalled = Signatures::Recall;
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
        pending: &mut Pending,
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
        decision.answers.clear();
        false
    }

    /// A request that its limits admit is answered by this proxy all the same. Its charges stay, unless the
    /// status of the answer gives them back.
    pub(super) fn reject(
        &self,
        generation: &Generation,
        outcome: Outcome,
        decision: &mut Decision,
        pending: &mut Pending,
    ) {
        decision.outcome = outcome;
        let headers = HeaderMap::new();
        let said = Said { status: outcome.status(), headers: &headers, by_origin: false };
        self.finish(generation, decision, pending, &said);
    }
}

/// Resolves all limits, with every signature that it takes. Where a key is missing for all that, limits by the
/// client's address are charged, or forged tokens could be sent, and checked, without any limit. Others are not:
/// nobody shall spend what is not his own with a forged token, hold a slot in flight with it, or have a status
/// counted that no origin has answered.
fn check(generation: &Generation, facts: &Facts<'_>, route: RouteIndex, unsettled: &mut Unsettled) {
    let mut targets = Targets::new();
    match target::resolve(generation, facts, route, Signatures::Check, &mut targets) {
        Ok(Resolved::Whole | Resolved::Partly) => unsettled.targets = targets,
        Err(error) => {
            unsettled.rejected = Some(error.outcome());
            unsettled.targets.retain(|target| {
                let limit = generation.policy().limit(target.limit);
                let by_address = limit.key.sources().contains(&Source::ClientIp);
                let is_rate = !matches!(limit.count, Count::InFlight { .. });
                by_address && is_rate && !limit.counted.asks() && !target.final_cost.is_late()
            });
        }
    }
}
