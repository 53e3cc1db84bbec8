//! What is judged before the exact tier: keys that an override denies, estimate limits, and requests
//! in flight. What they are charged is given back when the request is refused. A request that an exact
//! limit may delay takes its slot in the waiting room here too.

use smallvec::SmallVec;

use super::counters::VerdictKinds;
use super::generation::Counter;
use super::pending::PendingSettlement;
use super::target::Target;
use super::waiting::WaitingSlot;
use super::{Decision, Engine, Generation, LimitVerdict};
use crate::clock::{Nanos, Now};
use crate::estimator::EstimateReceipt;
use crate::limit::Verdict;
use crate::store::{Acquired, InFlightPermit};

/// What a request was charged before the exact tier.
#[derive(Default)]
pub(super) struct Tentative {
    /// Each with the indices of its answer and of its target.
    estimates: SmallVec<[(usize, usize, EstimateReceipt); 4]>,
    /// Each with the index of its answer.
    slots: Vec<(usize, InFlightPermit)>,
    /// Of a request that may have to wait, if there was one.
    pub(super) waiting: Option<WaitingSlot>,
    /// The indices of the targets that the exact tier judges.
    pub(super) exact: SmallVec<[usize; 4]>,
}

impl Engine {
    /// Judges the enforcing limits that need no store, each for itself. `tentative` is empty.
    pub(super) fn charge_tentatively(
        &self,
        generation: &Generation,
        targets: &[Target],
        decision: &mut Decision,
        tentative: &mut Tentative,
    ) {
        let now = decision.at;
        for (index, target) in targets.iter().enumerate().filter(|(_, target)| !target.shadow) {
            let answer = decision.verdicts.len();
            let counting = generation.counting(target.limit);
            let verdict = match &counting.counter {
                _ if target.denied => generation.denied(target, now),
                Counter::Estimate(estimate) => {
                    let (verdict, receipt) =
                        estimate.charge(&self.confirm, target.key, target.cost, now);
                    if verdict.allowed {
                        tentative.estimates.push((answer, index, receipt));
                    }
                    verdict
                }
                Counter::InFlight(table, max) => {
                    let Acquired { permit: slot, held } =
                        table.acquire(target.key, target.cost, *max, false);
                    let verdict = in_flight(*max, held, target.cost, slot.is_some());
                    tentative.slots.extend(slot.map(|slot| (answer, slot)));
                    verdict
                }
                Counter::Exact(limit) => {
                    if limit.delays() && tentative.waiting.is_none() {
                        tentative.waiting = self.waiting_room.enter();
                    }
                    tentative.exact.push(index);
                    continue;
                }
            };
            let kinds = VerdictKinds::NORMAL;
            decision.verdicts.push(LimitVerdict::new(target, counting.tier(), verdict, kinds));
        }
    }

    /// Gives back what was charged, since the request is refused. The answers then say what is left
    /// without it.
    pub(super) fn give_back(
        &self,
        generation: &Generation,
        targets: &[Target],
        tentative: Tentative,
        decision: &mut Decision,
    ) {
        for (answer, target, receipt) in tentative.estimates {
            let target = &targets[target];
            if let Counter::Estimate(estimate) = &generation.counting(target.limit).counter {
                estimate.refund(&self.confirm, receipt);
                decision.verdicts[answer].verdict =
                    estimate.judge(&self.confirm, target.key, decision.at);
            }
        }
        for (answer, slot) in tentative.slots {
            drop(slot);
            let answer = &mut decision.verdicts[answer];
            let left = answer.verdict.remaining.saturating_add(answer.cost);
            answer.verdict.remaining = left.min(answer.verdict.limit);
        }
    }
}

impl Tentative {
    /// The request passes: it holds its slots in flight until it ends, and the one in the waiting room
    /// if it waits.
    pub(super) fn keep(self, waits: bool, pending: &mut PendingSettlement) {
        pending.slots.extend(self.slots.into_iter().map(|(_, slot)| slot));
        pending.waiting = self.waiting.filter(|_| waits);
    }
}

impl Generation {
    /// The verdict on a key that an override denies: it can never succeed.
    pub(super) fn denied(&self, target: &Target, now: Now) -> Verdict {
        let fresh = match &self.counting(target.limit).counter {
            Counter::Exact(exact) => exact.quota(target.rate).quota().judge(None, 0, now),
            Counter::Estimate(estimate) => estimate.unused_verdict(now),
            Counter::InFlight(_, max) => in_flight(*max, 0, 0, true),
        };
        Verdict { allowed: false, remaining: 0, retry_after: None, ..fresh }
    }
}

/// The verdict on requests in flight, of which the key holds `held` now. Nobody knows when one ends,
/// so `retry_after` is a guess: one second.
pub(super) fn in_flight(max: u32, held: u64, cost: u32, allowed: bool) -> Verdict {
    let held = u32::try_from(held).unwrap_or(u32::MAX);
    Verdict {
        allowed,
        limit: max,
        remaining: max.saturating_sub(held),
        delay: Nanos::ZERO,
        reset: Nanos::ZERO,
        retry_after: match allowed {
            true => Some(Nanos::ZERO),
            false => (cost <= max).then_some(Nanos::SECOND),
        },
    }
}
