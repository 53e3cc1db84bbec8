//! Charging: the enforcing limits all or none, the shadow ones each for itself.

use smallvec::SmallVec;

use super::due::Due;
use super::generation::{Counter, Exact};
use super::{Answer, Decision, Engine, Generation, Outcome, VerdictKind};
use crate::clock::{Nanos, Now};
use crate::estimator::Receipt;
use crate::limit::Verdict;
use crate::policy::{LimitIndex, Tier, WhenFull};
use crate::store::Charge;

/// A charge of the estimate tier that may have to be given back.
pub(super) struct Tentative {
    /// Its place among the answers.
    place: usize,
    limit: LimitIndex,
    receipt: Receipt,
}

impl Engine {
    /// Charges the enforcing limits all or none, then asks the shadow ones, each for itself.
    pub(super) fn settle(&self, generation: &Generation, dues: &[Due], decision: &mut Decision) {
        let now = decision.at;
        let enforced = |due: &&Due| generation.enforces(due);
        let tentative = self.charge_estimates(generation, dues, decision);
        let may_spend = decision.refusing().next().is_none();
        let exact: SmallVec<[&Due; 4]> = dues
            .iter()
            .filter(enforced)
            .filter(|due| generation.counting(due.limit).tier() == Tier::Exact)
            .collect();
        let spent = exact.is_empty() && may_spend
            || !exact.is_empty()
                && self.settle_exact(generation, &exact, may_spend, Kinds::NORMAL, decision);
        if !spent {
            decision.outcome = Outcome::Limited;
            self.give_back(generation, dues, &tentative, now, decision);
        }
        for due in dues.iter().filter(|due| !enforced(due)) {
            self.watch(generation, due, spent, now, decision);
        }
        generation.book(decision);
    }

    /// Charges the enforcing limits of the estimate tier, each for itself.
    pub(super) fn charge_estimates(
        &self,
        generation: &Generation,
        dues: &[Due],
        decision: &mut Decision,
    ) -> SmallVec<[Tentative; 4]> {
        let now = decision.at;
        let mut tentative: SmallVec<[Tentative; 4]> = SmallVec::new();
        for due in dues.iter().filter(|due| generation.enforces(due)) {
            if let Counter::Estimate(estimate) = &generation.counting(due.limit).counter {
                let (verdict, receipt) = estimate.charge(&self.confirm, due.key, due.cost, now);
                if verdict.allowed {
                    let place = decision.answers.len();
                    tentative.push(Tentative { place, limit: due.limit, receipt });
                }
                decision.answers.push(answer(due, Tier::Estimate, verdict, Kinds::NORMAL));
            }
        }
        tentative
    }

    /// Charges cells of the embedded store all or none. `kinds`: how the verdicts are booked.
    pub(super) fn settle_exact(
        &self,
        generation: &Generation,
        dues: &[&Due],
        may_spend: bool,
        kinds: Kinds,
        decision: &mut Decision,
    ) -> bool {
        let now = decision.at;
        let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
        let mut limits: SmallVec<[&Exact; 4]> = SmallVec::new();
        for due in dues {
            if let Counter::Exact(exact) = &generation.counting(due.limit).counter {
                charges.push(Charge { key: due.key, quota: &exact.quota, cost: due.cost });
                limits.push(exact);
            }
        }
        let mut overflown: SmallVec<[(usize, Option<Receipt>); 2]> = SmallVec::new();
        let settlement = self.store.settle(&charges, may_spend, now, |place| {
            let (verdict, receipt) = self.overflow(limits[place], &charges[place], now);
            overflown.push((place, receipt));
            verdict
        });
        for (place, (due, verdict)) in dues.iter().zip(&settlement.verdicts).enumerate() {
            let over = overflown.iter().any(|(over, _)| *over == place);
            let kinds = if over { Kinds::OVERFLOW } else { kinds };
            decision.answers.push(answer(due, Tier::Exact, *verdict, kinds));
        }
        if !settlement.spent {
            for (place, receipt) in overflown {
                if let Some(receipt) = receipt {
                    limits[place].overflow(now).give_back(&self.confirm, receipt);
                }
            }
        }
        settlement.spent
    }

    /// A new key for which there is no room. The receipt is there when something was spent.
    fn overflow(&self, exact: &Exact, charge: &Charge<'_>, now: Now) -> (Verdict, Option<Receipt>) {
        let fresh = exact.quota.quota().judge(None, charge.cost, now);
        match exact.when_full {
            WhenFull::Allow => (fresh, None),
            WhenFull::Deny => {
                // Room comes when a cell has refilled; the next second is the honest guess.
                let retry_after = Some(Nanos::SECOND);
                (Verdict { allowed: false, remaining: 0, retry_after, ..fresh }, None)
            }
            WhenFull::Estimate => {
                let estimate = exact.overflow(now);
                let (verdict, receipt) =
                    estimate.charge(&self.confirm, charge.key, charge.cost, now);
                let receipt = verdict.allowed.then_some(receipt);
                (verdict, receipt)
            }
        }
    }

    /// Takes back what the estimate tier was charged, and tells what is there without it.
    pub(super) fn give_back(
        &self,
        generation: &Generation,
        dues: &[Due],
        tentative: &[Tentative],
        now: Now,
        decision: &mut Decision,
    ) {
        for charged in tentative {
            let Counter::Estimate(estimate) = &generation.counting(charged.limit).counter else {
                continue;
            };
            estimate.give_back(&self.confirm, charged.receipt);
            if let Some(due) = dues.iter().find(|due| due.limit == charged.limit) {
                decision.answers[charged.place].verdict =
                    estimate.judge(&self.confirm, due.key, now);
            }
        }
    }

    /// A shadow limit is asked by itself, and charged only when the request goes through.
    pub(super) fn watch(
        &self,
        generation: &Generation,
        due: &Due,
        goes_through: bool,
        now: Now,
        decision: &mut Decision,
    ) {
        let mut overflown = None;
        let (verdict, tier) = match &generation.counting(due.limit).counter {
            Counter::Estimate(estimate) => {
                let (verdict, receipt) = estimate.charge(&self.confirm, due.key, due.cost, now);
                if verdict.allowed && !goes_through {
                    estimate.give_back(&self.confirm, receipt);
                }
                (verdict, Tier::Estimate)
            }
            Counter::Exact(exact) => {
                let charge = Charge { key: due.key, quota: &exact.quota, cost: due.cost };
                let settlement = self.store.settle(&[charge], goes_through, now, |_| {
                    let (verdict, receipt) = self.overflow(exact, &charge, now);
                    overflown = Some(receipt);
                    verdict
                });
                if !settlement.spent
                    && let Some(Some(receipt)) = overflown
                {
                    exact.overflow(now).give_back(&self.confirm, receipt);
                }
                match settlement.verdicts.first() {
                    Some(verdict) => (*verdict, Tier::Exact),
                    None => return,
                }
            }
        };
        let kinds = if overflown.is_some() { Kinds::OVERFLOW } else { Kinds::NORMAL };
        let mut answer = answer(due, tier, verdict, kinds);
        answer.shadow = true;
        if !verdict.allowed {
            answer.kind = VerdictKind::ShadowDenied;
        }
        decision.answers.push(answer);
    }
}

/// How verdicts are booked.
#[derive(Clone, Copy)]
pub(super) struct Kinds {
    allowed: VerdictKind,
    denied: VerdictKind,
}

impl Kinds {
    /// By who is meant to count.
    pub(super) const NORMAL: Self =
        Self { allowed: VerdictKind::Allowed, denied: VerdictKind::Denied };

    /// There was no room for the key.
    const OVERFLOW: Self =
        Self { allowed: VerdictKind::OverflowAllowed, denied: VerdictKind::OverflowDenied };

    /// The store was away.
    pub(super) const DEGRADED: Self =
        Self { allowed: VerdictKind::DegradedAllowed, denied: VerdictKind::DegradedDenied };
}

pub(super) fn answer(due: &Due, tier: Tier, verdict: Verdict, kinds: Kinds) -> Answer {
    Answer {
        limit: due.limit,
        tier,
        kind: if verdict.allowed { kinds.allowed } else { kinds.denied },
        verdict,
        cost: due.cost,
        shadow: false,
        authenticated: due.authenticated,
    }
}
