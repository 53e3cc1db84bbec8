//! Charging in this process: the enforcing limits all or none, the watching ones each for itself.

use std::sync::Arc;

use smallvec::SmallVec;

use super::due::Due;
use super::generation::{Counter, Counting, Exact};
use super::pending::{Open, Pending, Spent};
use super::{Answer, Decision, Engine, Generation, Outcome, VerdictKind};
use crate::clock::{Nanos, Now};
use crate::estimator::Receipt;
use crate::limit::Verdict;
use crate::policy::{LimitIndex, Tier, WhenFull};
use crate::store::{Charge, Issued, Slot};

/// What was charged before the exact tier was asked, and is given back if that refuses.
#[derive(Default)]
pub(super) struct Tentative<'d> {
    estimates: SmallVec<[(usize, LimitIndex, Receipt); 4]>,
    slots: Vec<(usize, Slot)>,
    /// What the exact tier is to be asked for: the enforcing limits that count in a store, but for
    /// keys that are refused without.
    pub(super) exact: SmallVec<[&'d Due; 4]>,
}

/// Where the charges of the exact tier were spent, in the order of the dues, or nothing where no
/// answer can change them; `None`: refused.
pub(super) type SpentAll = Option<Vec<Spent>>;

impl Engine {
    /// Charges the enforcing limits all or none, then asks the watching ones, each for itself.
    pub(super) fn settle(
        &self,
        generation: &Generation,
        dues: &[Due],
        decision: &mut Decision,
        pending: &mut Pending,
    ) {
        let mut first = Tentative::default();
        self.charge_first(generation, dues, decision, &mut first);
        let may_spend = decision.refusing().next().is_none();
        let spent = if first.exact.is_empty() {
            may_spend.then(Vec::new)
        } else {
            self.settle_exact(generation, &first.exact, may_spend, Kinds::NORMAL, decision)
        };
        let goes_through = spent.is_some();
        match spent {
            Some(spent) => first.keep(generation, spent, pending),
            None => {
                decision.outcome = Outcome::Limited;
                self.give_back(generation, dues, &mut first, decision);
            }
        }
        for due in dues.iter().filter(|due| due.shadow) {
            self.watch(generation, due, goes_through, decision, pending);
        }
        self.try_candidates(generation, dues, decision, pending);
    }

    /// What needs no store: keys that an exception refuses, limits of the estimate tier, places in
    /// flight. Each for itself. `first`, which is empty, keeps what was charged and what is left.
    pub(super) fn charge_first<'d>(
        &self,
        generation: &Generation,
        dues: &'d [Due],
        decision: &mut Decision,
        first: &mut Tentative<'d>,
    ) {
        let now = decision.at;
        for due in dues.iter().filter(|due| !due.shadow) {
            let place = decision.answers.len();
            let counting = generation.counting(due.limit);
            let verdict = match &counting.counter {
                _ if due.refused => generation.refused(due, now),
                Counter::Estimate(estimate) => {
                    let (verdict, receipt) = estimate.charge(&self.confirm, due.key, due.cost, now);
                    if verdict.allowed {
                        first.estimates.push((place, due.limit, receipt));
                    }
                    verdict
                }
                Counter::InFlight(table, most) => {
                    let (slot, held) = table.take(due.key, due.cost, *most, false);
                    let verdict = places(*most, held, due.cost, slot.is_some());
                    first.slots.extend(slot.map(|slot| (place, slot)));
                    verdict
                }
                Counter::Exact(_) => {
                    first.exact.push(due);
                    continue;
                }
            };
            decision.answers.push(answer(due, counting.tier(), verdict, Kinds::NORMAL));
        }
    }

    /// Charges cells of the embedded store all or none. `kinds`: how the verdicts are booked.
    pub(super) fn settle_exact(
        &self,
        generation: &Generation,
        dues: &[&Due],
        may_spend: bool,
        kinds: Kinds,
        decision: &mut Decision,
    ) -> SpentAll {
        if let [due] = dues
            && let Counting { counter: Counter::Exact(exact), returns: false, .. } =
                generation.counting(due.limit)
        {
            return self.settle_one(exact, due, may_spend, kinds, decision);
        }
        let now = decision.at;
        let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
        let mut limits: SmallVec<[&Exact; 4]> = SmallVec::new();
        for due in dues {
            if let Counter::Exact(exact) = &generation.counting(due.limit).counter {
                let quota = exact.quota(due.rate);
                charges.push(Charge { key: due.key, quota, cost: due.cost });
                limits.push(exact);
            }
        }
        let mut overflown: SmallVec<[(usize, Option<Receipt>); 2]> = SmallVec::new();
        let settlement = self.store.settle(&charges, may_spend, now, |place| {
            let (verdict, receipt) = self.overflow(limits[place], dues[place], now);
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
                    limits[place].overflow(dues[place].rate, now).give_back(&self.confirm, receipt);
                }
            }
            return None;
        }
        if !generation.may_return(dues) {
            return Some(Vec::new());
        }
        let spent = charges.iter().zip(&settlement.verdicts).enumerate().map(
            |(place, (charge, verdict))| match overflown.iter().find(|(over, _)| *over == place) {
                None => Spent::Embedded(charge.quota.quota().receipt(verdict, charge.cost, now)),
                Some((_, None)) => Spent::Nowhere,
                Some((_, Some(receipt))) => {
                    let estimate = limits[place].overflow(dues[place].rate, now);
                    Spent::Overflow(Arc::clone(estimate), *receipt)
                }
            },
        );
        Some(spent.collect())
    }

    /// The same of one cell that no answer changes, as most requests have it.
    fn settle_one(
        &self,
        exact: &Exact,
        due: &Due,
        may_spend: bool,
        kinds: Kinds,
        decision: &mut Decision,
    ) -> SpentAll {
        let now = decision.at;
        let charge = Charge { key: due.key, quota: exact.quota(due.rate), cost: due.cost };
        let mut overflown = None;
        let (spent, verdict) = self.store.settle_one(&charge, may_spend, now, || {
            let (verdict, receipt) = self.overflow(exact, due, now);
            overflown = Some(receipt);
            verdict
        });
        let kinds = if overflown.is_some() { Kinds::OVERFLOW } else { kinds };
        decision.answers.push(answer(due, Tier::Exact, verdict, kinds));
        if let Some(Some(receipt)) = overflown.filter(|_| !spent) {
            exact.overflow(due.rate, now).give_back(&self.confirm, receipt);
        }
        spent.then(Vec::new)
    }

    /// A new key for which there is no room. The receipt is there when something was spent.
    fn overflow(&self, exact: &Exact, due: &Due, now: Now) -> (Verdict, Option<Receipt>) {
        let fresh = exact.quota(due.rate).quota().judge(None, due.cost, now);
        match exact.when_full {
            WhenFull::Allow => (fresh, None),
            WhenFull::Deny => {
                // Room comes when a cell has refilled; the next second is the honest guess.
                let retry_after = Some(Nanos::SECOND);
                (Verdict { allowed: false, remaining: 0, retry_after, ..fresh }, None)
            }
            WhenFull::Estimate => {
                let estimate = exact.overflow(due.rate, now);
                let (verdict, receipt) = estimate.charge(&self.confirm, due.key, due.cost, now);
                let receipt = verdict.allowed.then_some(receipt);
                (verdict, receipt)
            }
        }
    }

    /// Takes back what was charged first, and tells what is there without it.
    pub(super) fn give_back(
        &self,
        generation: &Generation,
        dues: &[Due],
        first: &mut Tentative<'_>,
        decision: &mut Decision,
    ) {
        for (place, limit, receipt) in first.estimates.drain(..) {
            let Counter::Estimate(estimate) = &generation.counting(limit).counter else {
                continue;
            };
            estimate.give_back(&self.confirm, receipt);
            if let Some(due) = dues.iter().find(|due| due.limit == limit) {
                decision.answers[place].verdict =
                    estimate.judge(&self.confirm, due.key, decision.at);
            }
        }
        for (place, slot) in first.slots.drain(..) {
            drop(slot);
            let answer = &mut decision.answers[place];
            let left = answer.verdict.remaining.saturating_add(answer.cost);
            answer.verdict.remaining = left.min(answer.verdict.limit);
        }
    }

    /// A watching limit is asked by itself, and charged only when the request goes through.
    pub(super) fn watch(
        &self,
        generation: &Generation,
        due: &Due,
        goes_through: bool,
        decision: &mut Decision,
        pending: &mut Pending,
    ) {
        let now = decision.at;
        let mut kinds = Kinds::NORMAL;
        let verdict = match &generation.counting(due.limit).counter {
            _ if due.refused => generation.refused(due, now),
            Counter::Estimate(estimate) => {
                let (verdict, receipt) = estimate.charge(&self.confirm, due.key, due.cost, now);
                if verdict.allowed && !goes_through {
                    estimate.give_back(&self.confirm, receipt);
                }
                verdict
            }
            Counter::InFlight(table, most) => {
                let (slot, held) = table.take(due.key, due.cost, *most, true);
                if goes_through {
                    pending.slots.extend(slot);
                }
                places(*most, held, due.cost, held <= u64::from(*most))
            }
            Counter::Exact(exact) => {
                let quota = exact.quota(due.rate);
                let (verdict, spent, overflown) =
                    self.watch_exact(exact, quota, due, goes_through, now);
                if overflown {
                    kinds = Kinds::OVERFLOW;
                }
                if let Some(spent) = spent
                    && generation.counting(due.limit).returns
                {
                    pending.open.push(Open::of(due, quota, spent));
                }
                verdict
            }
        };
        let mut answer = answer(due, generation.counting(due.limit).tier(), verdict, kinds);
        answer.shadow = true;
        if !verdict.allowed {
            answer.kind = VerdictKind::ShadowDenied;
        }
        decision.answers.push(answer);
    }

    /// One cell of the embedded store, for itself. Says whether there was no room for it.
    fn watch_exact(
        &self,
        exact: &Exact,
        quota: &Arc<Issued>,
        due: &Due,
        goes_through: bool,
        now: Now,
    ) -> (Verdict, Option<Spent>, bool) {
        let charge = Charge { key: due.key, quota, cost: due.cost };
        let mut overflown = None;
        let settlement = self.store.settle(&[charge], goes_through, now, |_| {
            let (verdict, receipt) = self.overflow(exact, due, now);
            overflown = Some(receipt);
            verdict
        });
        let verdict = settlement.verdicts[0];
        let spent = match overflown {
            None => Spent::Embedded(quota.quota().receipt(&verdict, due.cost, now)),
            Some(None) => Spent::Nowhere,
            Some(Some(receipt)) => {
                let estimate = exact.overflow(due.rate, now);
                if !settlement.spent {
                    estimate.give_back(&self.confirm, receipt);
                }
                Spent::Overflow(Arc::clone(estimate), receipt)
            }
        };
        (verdict, settlement.spent.then_some(spent), overflown.is_some())
    }

    /// Asks candidates of this process, each as if it stood in the place of its limit.
    fn try_candidates(
        &self,
        generation: &Generation,
        dues: &[Due],
        decision: &mut Decision,
        pending: &mut Pending,
    ) {
        for due in dues {
            let Some((exact, quota, trial)) = generation.trial(due, decision) else {
                continue;
            };
            let goes_through = trial.would_go_through(decision);
            let due = trial.due(due);
            let (verdict, spent, _) =
                self.watch_exact(exact, quota, &due, goes_through, decision.at);
            trial.answered(&generation.counting(due.limit).tally, verdict.allowed);
            if let Some(spent) = spent
                && generation.counting(due.limit).returns
            {
                pending.open.push(Open { told: false, ..Open::of(&due, quota, spent) });
            }
            decision.trials.push(trial);
        }
    }
}

impl Tentative<'_> {
    /// The request goes through: places are held, and what the answer may change stays open.
    pub(super) fn keep(
        &mut self,
        generation: &Generation,
        spent: Vec<Spent>,
        pending: &mut Pending,
    ) {
        if self.slots.is_empty() && spent.is_empty() {
            return;
        }
        pending.slots.extend(self.slots.drain(..).map(|(_, slot)| slot));
        for (due, spent) in self.exact.iter().zip(spent) {
            let counting = generation.counting(due.limit);
            if counting.returns
                && let Counter::Exact(exact) = &counting.counter
            {
                pending.open.push(Open::of(due, exact.quota(due.rate), spent));
            }
        }
    }
}

impl Generation {
    /// Whether an answer may change what one of these is charged.
    pub(super) fn may_return(&self, dues: &[&Due]) -> bool {
        dues.iter().any(|due| self.counting(due.limit).returns)
    }

    /// Whether one of these counts in a store.
    pub(super) fn any_stored(&self, dues: &[Due]) -> bool {
        dues.iter().any(|due| self.is_stored(due))
    }

    /// Whether it counts in a store.
    pub(super) fn is_stored(&self, due: &Due) -> bool {
        matches!(self.counting(due.limit).counter, Counter::Exact(_))
    }

    /// What a key is told that an exception refuses: it never will be let through.
    fn refused(&self, due: &Due, now: Now) -> Verdict {
        let fresh = match &self.counting(due.limit).counter {
            Counter::Exact(exact) => exact.quota(due.rate).quota().judge(None, 0, now),
            Counter::Estimate(estimate) => estimate.fresh(now),
            Counter::InFlight(_, most) => places(*most, 0, 0, true),
        };
        Verdict { allowed: false, remaining: 0, retry_after: None, ..fresh }
    }
}

/// The verdict on places in flight, of which the key holds `held` now. When one will be free
/// nobody knows: the next second is the honest guess.
fn places(most: u32, held: u64, cost: u32, allowed: bool) -> Verdict {
    let held = u32::try_from(held).unwrap_or(u32::MAX);
    Verdict {
        allowed,
        limit: most,
        remaining: most.saturating_sub(held),
        wait: Nanos::ZERO,
        reset: Nanos::ZERO,
        retry_after: match allowed {
            true => Some(Nanos::ZERO),
            false => (cost <= most).then_some(Nanos::SECOND),
        },
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
        rate: due.rate,
        tier,
        kind: if verdict.allowed { kinds.allowed } else { kinds.denied },
        verdict,
        cost: due.cost,
        shadow: false,
        banned: false,
        authenticated: due.authenticated,
    }
}
