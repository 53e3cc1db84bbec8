//! Charging in a store of many nodes.
//!
//! The estimate tier judges first, and what it refuses goes no further: a flood must not reach the
//! store. Cells of one place are one call. Places are charged in turn, and given back when a later
//! one refuses. Where the store does not answer, each limit says who judges instead.

use std::sync::Arc;

use smallvec::SmallVec;

use super::aside::Aside;
use super::due::Due;
use super::generation::Counter;
use super::pending::{Pending, Spent};
use super::settle::{Kinds, Tentative, answer};
use super::{Decision, Engine, Generation, Outcome};
use crate::clock::Nanos;
use crate::limit::Verdict;
use crate::policy::{OnStoreFailure, Tier};
use crate::store::redis::{Answered, Charge, Order, Remote, Spend};

/// Dues whose cells lie in one place.
type Group<'d> = SmallVec<[&'d Due; 4]>;

/// What was spent in one place, to be given back when a later one refuses.
struct Paid<'d> {
    dues: Group<'d>,
    spends: SmallVec<[Spend; 4]>,
    answered: Answered,
    /// Where its answers stand.
    places: std::ops::Range<usize>,
}

impl Engine {
    pub(super) async fn settle_remote(
        &self,
        remote: &Arc<Remote>,
        generation: &Generation,
        dues: &[Due],
        decision: &mut Decision,
        pending: &mut Pending,
    ) {
        let mut first = Tentative::default();
        self.charge_first(generation, dues, decision, &mut first);
        let refused = decision.refusing().next().is_some()
            || cached_denials(remote, generation, &first.exact, decision);
        let spent = match refused {
            true => None,
            false => self.settle_places(remote, generation, &first.exact, decision).await,
        };
        let goes_through = spent.is_some();
        match spent {
            Some((exact, spent)) => {
                // In the order in which the places were asked.
                first.exact = exact;
                first.keep(generation, spent, pending);
            }
            None => {
                if decision.outcome != Outcome::Outage {
                    decision.outcome = Outcome::Limited;
                }
                self.give_back(generation, dues, &mut first, decision);
            }
        }
        for due in dues.iter().filter(|due| due.shadow) {
            match &generation.counting(due.limit).counter {
                Counter::Exact(exact) if !due.refused => {
                    if goes_through {
                        let quota = exact.quota(due.rate);
                        Aside { engine: self, remote, generation, due, quota }
                            .watch(decision, pending);
                    }
                }
                _ => self.watch(generation, due, goes_through, decision, pending),
            }
        }
        for due in dues {
            if let Some((_, quota, trial)) = generation.trial(due, decision)
                && trial.would_go_through(decision)
            {
                let due = &trial.due(due);
                Aside { engine: self, remote, generation, due, quota }
                    .try_out(&trial, decision, pending);
                decision.trials.push(trial);
            }
        }
    }

    /// Charges place after place. Where everything was spent, if it was.
    async fn settle_places<'d>(
        &self,
        remote: &Arc<Remote>,
        generation: &Generation,
        dues: &[&'d Due],
        decision: &mut Decision,
    ) -> Option<(Group<'d>, Vec<Spent>)> {
        let mut paid: SmallVec<[Paid<'d>; 2]> = SmallVec::new();
        // Where the store does not answer; of these, what it may have charged all the same.
        let (mut alone, mut charged) = (Group::new(), Group::new());
        let mut refused = false;
        let deadline = decision.at.mono.saturating_add(Nanos::from(remote.timeout()));
        for group in groups(remote, generation, dues) {
            let spends: SmallVec<[Spend; 4]> =
                group.iter().filter_map(|due| spend(generation, due)).collect();
            let first = decision.answers.len();
            let charge = Charge { order: Order::Spend, spends: spends.clone() };
            let settled =
                remote.settle(charge, generation.number(), deadline, decision.at.mono).await;
            match settled {
                Ok(answered) => {
                    for (due, verdict) in group.iter().zip(&answered.settlement.verdicts) {
                        decision.answers.push(answer(due, Tier::Exact, *verdict, Kinds::NORMAL));
                    }
                    refused = !answered.settlement.spent;
                    if !refused {
                        let places = first..decision.answers.len();
                        paid.push(Paid { dues: group, spends, answered, places });
                    }
                }
                Err(failure) => {
                    if failure.may_have_charged() {
                        charged.extend(group.iter().copied());
                    }
                    alone.extend(group);
                }
            }
            if refused {
                break;
            }
        }
        let judged = match refused {
            true => None,
            false => self.judge_alone(remote, generation, &alone, &charged, decision),
        };
        let Some((mut all, mut spent)) = judged else {
            for one in paid {
                for answer in &mut decision.answers[one.places.clone()] {
                    let verdict = &mut answer.verdict;
                    verdict.remaining =
                        verdict.remaining.saturating_add(answer.cost).min(verdict.limit);
                }
                remote.refund(one.spends, &one.answered);
            }
            return None;
        };
        if !generation.may_return(dues) {
            return Some((all, Vec::new()));
        }
        for one in paid {
            let at = one.answered.at;
            spent.extend(one.answered.before.iter().map(|&before| Spent::Remote { at, before }));
            all.extend(one.dues);
        }
        Some((all, spent))
    }

    /// The store does not answer for these: each limit says who judges. All or none.
    fn judge_alone<'d>(
        &self,
        remote: &Remote,
        generation: &Generation,
        dues: &[&'d Due],
        charged: &[&'d Due],
        decision: &mut Decision,
    ) -> Option<(Group<'d>, Vec<Spent>)> {
        let mut local = Group::new();
        let mut outage = false;
        for due in dues {
            let Counter::Exact(exact) = &generation.counting(due.limit).counter else {
                continue;
            };
            let fresh = exact.quota(due.rate).quota().judge(None, due.cost, decision.at);
            let verdict = match exact.on_store_failure {
                OnStoreFailure::Local => {
                    local.push(due);
                    continue;
                }
                OnStoreFailure::Allow => Verdict { allowed: true, wait: Nanos::ZERO, ..fresh },
                OnStoreFailure::Deny => {
                    outage = true;
                    Verdict { allowed: false, remaining: 0, retry_after: None, ..fresh }
                }
            };
            decision.answers.push(answer(due, Tier::Exact, verdict, Kinds::DEGRADED));
        }
        if outage {
            decision.outcome = Outcome::Outage;
            return None;
        }
        if local.is_empty() {
            return Some((local, Vec::new()));
        }
        let mut spent = self.settle_exact(generation, &local, true, Kinds::DEGRADED, decision)?;
        let certainly_not = |due: &&&Due| !charged.iter().any(|other| std::ptr::eq(*other, **due));
        let uncharged = local.iter().filter(certainly_not);
        for spend in uncharged.filter_map(|due| spend(generation, due)) {
            remote.record_unreported(&spend, decision.at);
        }
        for spent in &mut spent {
            if let Spent::Embedded(receipt) = spent {
                *spent = Spent::Owed(*receipt);
            }
        }
        if spent.is_empty() {
            // No answer can change them.
            local.clear();
        }
        Some((local, spent))
    }
}

/// Whether one of them was denied a moment ago, and cannot succeed yet.
fn cached_denials(
    remote: &Remote,
    generation: &Generation,
    dues: &[&Due],
    decision: &mut Decision,
) -> bool {
    let mut any = false;
    for due in dues {
        let (number, now) = (decision.generation, decision.at.mono);
        let denied =
            spend(generation, due).and_then(|spend| remote.cached_denial(&spend, number, now));
        if let Some(verdict) = denied {
            decision.answers.push(answer(due, Tier::Exact, verdict, Kinds::NORMAL));
            any = true;
        }
    }
    any
}

/// Dues by the place of their cells, in the order of the route.
fn groups<'d>(
    remote: &Remote,
    generation: &Generation,
    dues: &[&'d Due],
) -> SmallVec<[Group<'d>; 1]> {
    let mut groups: SmallVec<[(u16, Group<'d>); 1]> = SmallVec::new();
    for due in dues {
        let place = spend(generation, due).map_or(0, |spend| remote.slot(&spend));
        match groups.iter_mut().find(|(other, _)| *other == place) {
            Some((_, group)) => group.push(due),
            None => groups.push((place, Group::from_iter([*due]))),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

fn spend(generation: &Generation, due: &Due) -> Option<Spend> {
    let counting = generation.counting(due.limit);
    match &counting.counter {
        Counter::Exact(exact) => {
            let quota = Arc::clone(exact.quota(due.rate));
            let spend = Spend::of(due.key, due.family, quota, due.cost);
            Some(Spend { returns: counting.returns, ..spend })
        }
        Counter::Estimate(_) | Counter::InFlight(..) => None,
    }
}
