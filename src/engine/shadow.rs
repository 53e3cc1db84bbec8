//! Limits in shadow mode and candidates. They are judged like enforcing limits and never refuse a request.
//!
//! A shadow limit is charged only if the request passes. With a shared store they are charged in the background
//! (`background.rs`), since no request waits for them.

use std::sync::Arc;

use super::background::BackgroundCharge;
use super::candidate::CandidateVerdict;
use super::counters::{VerdictKind, VerdictKinds};
use super::decision::{Decision, LimitVerdict, Outcome};
use super::exact::{ExactCharge, ExactRequest, ExactVerdicts};
use super::generation::Generation;
use super::loaded_limit::{ExactLimit, TierState};
use super::pending::PendingSettlement;
use super::state::Engine;
use super::target::Target;
use super::tentative::in_flight_verdict;
use crate::policy::KeyHash;
use crate::store::{Acquired, IssuedQuota};

impl Engine {
    /// Judges every shadow limit, each independently, and charges it if the request passes.
    pub(super) fn charge_shadow_limits(
        &self,
        generation: &Generation,
        targets: &[Target],
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        let passes = decision.outcome == Outcome::Allowed;
        for target in targets.iter().filter(|target| target.shadow) {
            let charge = ExactCharge::new(generation.loaded(target.limit), target, true)
                .filter(|_| !target.denied);
            match (self.remote(), charge) {
                (Some(shared), Some(charge)) if passes => {
                    BackgroundCharge { engine: self, shared, generation, charge }
                        .charge_shadow(decision, pending);
                }
                // A refused request does not charge the shared store.
                (Some(_), Some(_)) => {}
                (None, Some(charge)) => {
                    self.charge_shadow_exact(charge, passes, decision, pending);
                }
                (_, None) => {
                    self.charge_shadow_local(generation, target, passes, decision, pending);
                }
            }
        }
    }

    /// Charges a shadow limit that needs no store.
    fn charge_shadow_local(
        &self,
        generation: &Generation,
        target: &Target,
        passes: bool,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        let now = decision.at;
        let loaded = generation.loaded(target.limit);
        let verdict = match &loaded.state {
            TierState::Estimate(estimate) if !target.denied => {
                let (verdict, receipt) =
                    estimate.charge(&self.confirm, target.key, target.cost, now);
                if verdict.allowed && !passes {
                    estimate.refund(&self.confirm, receipt);
                }
                verdict
            }
            TierState::InFlight { table, max } if !target.denied => {
                let acquired = table.acquire(target.key, target.cost, *max, true);
                let Some(Acquired { permit, held }) = acquired else {
                    return;
                };
                if passes {
                    pending.permits.extend(permit);
                }
                in_flight_verdict(*max, held, target.cost, held <= u64::from(*max))
            }
            // An exact limit is here only for a key that an override denies.
            TierState::Estimate(_) | TierState::InFlight { .. } | TierState::Exact(_) => {
                generation.denied(target, now)
            }
        };
        let verdict = LimitVerdict::new(target, loaded.tier(), verdict, VerdictKinds::NORMAL);
        decision.verdicts.push(as_shadow(verdict));
    }

    /// Charges a shadow limit in the embedded store.
    fn charge_shadow_exact(
        &self,
        charge: ExactCharge<'_>,
        passes: bool,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        let mut results = self.charge_single_cell(charge, passes, decision);
        decision.verdicts.extend(results.verdicts.drain(..).map(as_shadow));
        pending.open.append(&mut results.open);
    }

    /// Judges every candidate as if it replaced its limit, and charges it if no other limit refuses.
    pub(super) fn charge_candidates(
        &self,
        generation: &Generation,
        targets: &[Target],
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        for target in targets {
            let Some(candidate) = CandidateJudgment::of(generation, target, decision) else {
                continue;
            };
            let CandidateJudgment { limit, quota, verdict } = candidate;
            let others_admit = decision.refusing().all(|denial| denial.limit == target.limit);
            let target = &candidate_target(target);
            let loaded = generation.loaded(target.limit);
            let charge = ExactCharge {
                target,
                limit,
                quota,
                may_change: loaded.may_change,
                overflow: limit.candidate_overflow.as_ref().unwrap_or(&limit.overflow),
                lacks_delay_slot: false,
            };
            match self.remote() {
                Some(shared) if others_admit => {
                    BackgroundCharge { engine: self, shared, generation, charge }
                        .charge_candidate(&verdict, pending);
                }
                Some(_) => continue,
                None => {
                    let mut results = self.charge_single_cell(charge, others_admit, decision);
                    if results.verdicts.is_empty() {
                        // A successor has the cell.
                        continue;
                    }
                    verdict.record(&loaded.counters, !results.has_denial());
                    for open in &mut results.open {
                        (open.is_reported, open.is_candidate) = (false, true);
                    }
                    pending.open.append(&mut results.open);
                }
            }
            decision.candidates.push(verdict);
        }
    }

    /// Judges one cell of the embedded store, and charges it if `may_charge`. No verdict: a successor has the cell.
    pub(super) fn charge_single_cell(
        &self,
        charge: ExactCharge<'_>,
        may_charge: bool,
        decision: &Decision,
    ) -> ExactVerdicts {
        let request = ExactRequest {
            charges: std::iter::once(charge).collect(),
            may_charge,
            generation: decision.generation,
            confirm: &self.confirm,
            now: decision.at,
            clock: &*self.clock,
        };
        let mut results = ExactVerdicts::default();
        let kinds = VerdictKinds::NORMAL;
        // The results tell.
        let _ =
            self.exact.charge_embedded(&request, &request.charges, may_charge, kinds, &mut results);
        results
    }
}

/// Marks a verdict as that of a shadow limit.
fn as_shadow(mut limit_verdict: LimitVerdict) -> LimitVerdict {
    limit_verdict.shadow = true;
    if !limit_verdict.verdict.allowed {
        limit_verdict.kind = VerdictKind::ShadowDenied;
    }
    limit_verdict
}

/// The candidate of a limit for one request.
struct CandidateJudgment<'g> {
    limit: &'g ExactLimit,
    quota: &'g Arc<IssuedQuota>,
    verdict: CandidateVerdict,
}

impl<'g> CandidateJudgment<'g> {
    /// `None` if the limit has no candidate, or if the key has a rate of its own.
    fn of(generation: &'g Generation, target: &Target, decision: &Decision) -> Option<Self> {
        let TierState::Exact(limit) = &generation.loaded(target.limit).state else {
            return None;
        };
        let quota = limit.candidate.as_ref().filter(|_| target.rate == 0 && !target.denied)?;
        let mut verdicts = decision.verdicts.iter();
        let live = verdicts.find(|limit_verdict| limit_verdict.limit == target.limit)?;
        let verdict = CandidateVerdict {
            limit: target.limit,
            live: live.verdict.allowed,
            candidate: Arc::default(),
        };
        Some(Self { limit, quota, verdict })
    }
}

/// The target of a candidate: that of its limit with another cell.
fn candidate_target(target: &Target) -> Target {
    Target { key: candidate_key(target.key), ..*target }
}

/// The key of the cell of a limit's candidate.
pub(super) const fn candidate_key(key: KeyHash) -> KeyHash {
    /// Separates a candidate's cells from those of its limit. Keys are hashes, so a key that differs by a constant
    /// collides no more often than any other.
    const CANDIDATE_CELLS: u64 = 0x9e37_79b9_7f4a_7c15;
    KeyHash { high: key.high ^ CANDIDATE_CELLS, low: key.low ^ CANDIDATE_CELLS }
}
