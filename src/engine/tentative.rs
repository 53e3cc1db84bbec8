//! Judges what needs no store, before the exact tier: keys that an override denies, estimate limits, and requests in
//! flight.
//!
//! These charges are tentative: they are refunded if the request is refused later. A request that an exact limit may
//! delay also takes its delay slot here.

use smallvec::SmallVec;

use super::counters::VerdictKinds;
use super::decision::{Decision, GUESSED_RETRY_AFTER, LimitVerdict};
use super::delay_slots::DelaySlot;
use super::fleet::TentativeHold;
use super::generation::Generation;
use super::loaded_limit::TierState;
use super::pending::PendingSettlement;
use super::state::Engine;
use super::succession::HandedEstimate;
use super::target::Target;
use crate::clock::{Nanos, Now};
use crate::estimator::EstimateReceipt;
use crate::limit::Verdict;
use crate::store::{Acquired, InFlightPermit};

/// What a request was charged before the exact tier.
#[derive(Default)]
pub(super) struct Tentative {
    estimates: SmallVec<[TentativeEstimate; 4]>,
    permits: Vec<TentativePermit>,
    /// What a successor has charged under estimate limits.
    handed: Vec<TentativeHanded>,
    /// The slot of a request that may be delayed; `None` if no limit delays it, or no slot was free.
    pub(super) delay_slot: Option<DelaySlot>,
    /// The targets that the exact tier judges, by index.
    pub(super) exact: SmallVec<[usize; 4]>,
}

/// A charge of an estimate limit.
struct TentativeEstimate {
    /// The index of its verdict in the decision.
    verdict: usize,
    /// The index of its target.
    target: usize,
    receipt: EstimateReceipt,
    /// Keeps the units from being published, and from going to a successor, until the request is judged.
    held: Option<TentativeHold>,
    /// Whether it was made before cells changed hands.
    is_before_switch: bool,
}

/// A slot in flight that a request holds.
struct TentativePermit {
    /// The index of its verdict in the decision.
    verdict: usize,
    permit: InFlightPermit,
}

/// A charge of an estimate limit that a successor has made.
struct TentativeHanded {
    /// The index of its verdict in the decision.
    verdict: usize,
    charge: HandedEstimate,
}

/// Which limits are judged elsewhere, and left out here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JudgedElsewhere {
    /// None.
    Nothing,
    /// Requests in flight.
    InFlight,
    /// All but the exact limits: a successor has judged them.
    AllButExact,
}

impl Engine {
    /// Judges the enforcing limits that need no store, each independently. `tentative` has no charges. Returns whether all
    /// could be judged: not if a successor counts the requests in flight.
    pub(super) fn charge_tentatively(
        &self,
        generation: &Generation,
        targets: &[Target],
        elsewhere: JudgedElsewhere,
        decision: &mut Decision,
        tentative: &mut Tentative,
    ) -> bool {
        let now = decision.at;
        let may_be_refused_later = targets.iter().filter(|target| !target.shadow).nth(1).is_some();
        let waits_for_store = may_be_refused_later
            && self.remote().is_some()
            && targets.iter().any(|target| generation.loaded(target.limit).is_exact());
        for (index, target) in targets.iter().enumerate().filter(|(_, target)| !target.shadow) {
            let verdict_index = decision.verdicts.len();
            let loaded = generation.loaded(target.limit);
            let verdict = match &loaded.state {
                _ if target.denied => generation.denied(target, now),
                TierState::Estimate(_) if elsewhere == JudgedElsewhere::AllButExact => continue,
                TierState::Estimate(estimate) => {
                    let is_held =
                        may_be_refused_later && (waits_for_store || estimate.fleet().is_some());
                    let held =
                        is_held.then(|| self.fleet().tentative.hold(target.key, target.cost));
                    let is_before_switch = is_held && self.succession.is_here();
                    let (verdict, receipt) =
                        estimate.charge(&self.confirm, target.key, target.cost, now);
                    if verdict.allowed {
                        tentative.estimates.push(TentativeEstimate {
                            verdict: verdict_index,
                            target: index,
                            receipt,
                            held,
                            is_before_switch,
                        });
                    }
                    verdict
                }
                TierState::InFlight { .. } if elsewhere != JudgedElsewhere::Nothing => continue,
                TierState::InFlight { table, max } => {
                    let acquired = table.acquire(target.key, target.cost, *max, false);
                    let Some(Acquired { permit, held }) = acquired else {
                        return false;
                    };
                    let verdict = in_flight_verdict(*max, held, target.cost, permit.is_some());
                    if let Some(permit) = permit {
                        tentative.hold(verdict_index, permit);
                    }
                    verdict
                }
                TierState::Exact(limit) => {
                    if limit.delays() && tentative.delay_slot.is_none() {
                        tentative.delay_slot = self.delay_slots.take();
                    }
                    tentative.exact.push(index);
                    continue;
                }
            };
            let kinds = VerdictKinds::NORMAL;
            decision.verdicts.push(LimitVerdict::new(target, loaded.tier(), verdict, kinds));
        }
        true
    }

    /// Tells a successor what a request that passes was charged under estimate limits, as far as that was left out of what went over.
    pub(super) fn tell_left_out(
        &self,
        generation: &Generation,
        targets: &[Target],
        tentative: &mut Tentative,
    ) {
        for charge in tentative.estimates.iter_mut().filter(|charge| charge.is_before_switch) {
            if charge.held.take().is_some_and(TentativeHold::settle) {
                self.tell_charge(generation, &targets[charge.target]);
            }
        }
    }

    /// Refunds what was charged, because the request is refused. The verdicts are then those without the charges.
    pub(super) fn refund_tentative(
        &self,
        generation: &Generation,
        targets: &[Target],
        tentative: Tentative,
        decision: &mut Decision,
    ) {
        for TentativeEstimate { verdict, target, receipt, held, .. } in tentative.estimates {
            let target = &targets[target];
            if let TierState::Estimate(estimate) = &generation.loaded(target.limit).state {
                estimate.refund(&self.confirm, receipt);
                decision.verdicts[verdict].verdict =
                    estimate.judge(&self.confirm, target.key, decision.at);
            }
            drop(held);
        }
        for TentativeHanded { verdict, charge } in tentative.handed {
            charge.refuse();
            decision.verdicts[verdict].add_back_cost();
        }
        for TentativePermit { verdict, permit } in tentative.permits {
            drop(permit);
            decision.verdicts[verdict].add_back_cost();
        }
    }
}

impl Tentative {
    /// Adds a slot in flight that was taken elsewhere. `verdict`: the index of its verdict in the decision.
    pub(super) fn hold(&mut self, verdict: usize, permit: InFlightPermit) {
        self.permits.push(TentativePermit { verdict, permit });
    }

    /// Adds what a successor has charged. `verdict`: the index of its verdict in the decision.
    pub(super) fn hold_handed(&mut self, verdict: usize, charge: HandedEstimate) {
        self.handed.push(TentativeHanded { verdict, charge });
    }

    /// Keeps the charges, because the request passes. It holds its slots in flight until it ends, and the delay slot
    /// if it is delayed.
    pub(super) fn keep(self, is_delayed: bool, pending: &mut PendingSettlement) {
        pending.permits.extend(self.permits.into_iter().map(|tentative| tentative.permit));
        pending.delay_slot = self.delay_slot.filter(|_| is_delayed);
    }
}

impl Generation {
    /// The verdict for a key that an override denies. It has no retry time: the request can never succeed.
    pub(super) fn denied(&self, target: &Target, now: Now) -> Verdict {
        let fresh = match &self.loaded(target.limit).state {
            TierState::Exact(exact) => exact.quota(target.rate).quota().judge(None, 0, now),
            TierState::Estimate(estimate) => estimate.unused_verdict(now),
            TierState::InFlight { max, .. } => in_flight_verdict(*max, 0, 0, true),
        };
        Verdict { allowed: false, remaining: 0, retry_after: None, ..fresh }
    }
}

/// The verdict of a `max_in_flight` limit for a key that holds `held` slots now.
pub(super) fn in_flight_verdict(max: u32, held: u64, cost: u32, allowed: bool) -> Verdict {
    let held = u32::try_from(held).unwrap_or(u32::MAX);
    Verdict {
        allowed,
        limit: max,
        remaining: max.saturating_sub(held),
        delay: Nanos::ZERO,
        reset: Nanos::ZERO,
        retry_after: match allowed {
            true => Some(Nanos::ZERO),
            false => (cost <= max).then_some(GUESSED_RETRY_AFTER),
        },
    }
}
