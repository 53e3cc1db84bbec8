//! Charging in a store of many nodes.
//!
//! The estimate tier judges first, and what it refuses goes no further: a flood must not reach the
//! store. Cells of one place are one call. Places are charged in turn, and given back when a later
//! one refuses. Where the store does not answer, each limit says who judges instead.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::due::Due;
use super::generation::{Counter, Exact};
use super::settle::{Kinds, answer};
use super::{Decision, Engine, Generation, Outcome, VerdictKind};
use crate::clock::Nanos;
use crate::limit::Verdict;
use crate::policy::{OnStoreFailure, Tier};
use crate::store::redis::{Answered, Failure, Remote, Spend};

/// Dues whose cells lie in one place.
type Group<'d> = SmallVec<[&'d Due; 4]>;

/// What was spent, to be given back when a later one refuses.
struct Spent {
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
    ) {
        let now = decision.at;
        let tentative = self.charge_estimates(generation, dues, decision);
        let exact: Group<'_> = dues
            .iter()
            .filter(|due| generation.enforces(due))
            .filter(|due| generation.counting(due.limit).tier() == Tier::Exact)
            .collect();
        let refused = decision.refusing().next().is_some()
            || denied_at_home(remote, &exact, decision)
            || !self.settle_places(remote, generation, &exact, decision).await;
        if refused {
            if decision.outcome != Outcome::Outage {
                decision.outcome = Outcome::Limited;
            }
            self.give_back(generation, dues, &tentative, now, decision);
        }
        for due in dues.iter().filter(|due| !generation.enforces(due)) {
            match &generation.counting(due.limit).counter {
                Counter::Estimate(_) => self.watch(generation, due, !refused, now, decision),
                Counter::Exact(exact) if !refused => {
                    watch(remote, generation, exact, due, decision);
                }
                Counter::Exact(_) => {}
            }
        }
        generation.book(decision);
    }

    /// Charges place after place; says whether all went through.
    async fn settle_places(
        &self,
        remote: &Arc<Remote>,
        generation: &Generation,
        dues: &[&Due],
        decision: &mut Decision,
    ) -> bool {
        let mut spent: SmallVec<[Spent; 2]> = SmallVec::new();
        let mut alone = Group::new();
        let mut refused = false;
        let mut began = None;
        for group in groups(remote, generation, dues) {
            let spends: SmallVec<[Spend; 4]> =
                group.iter().filter_map(|due| spend(generation, due)).collect();
            let first = decision.answers.len();
            let settling = remote.settle(spends.clone(), generation.number(), decision.at);
            // The first place waits for its call; what follows has what is left of one deadline, or a
            // quarter of it where the first had to wait for its turn.
            let settled = match began {
                None => settling.await,
                Some(began) => {
                    let passed = Duration::from(self.now().mono.saturating_sub(began));
                    let left = remote.timeout().saturating_sub(passed).max(remote.timeout() / 4);
                    let settled = tokio::time::timeout(left, settling).await;
                    settled.unwrap_or(Err(Failure::Timeout))
                }
            };
            began = began.or(Some(decision.at.mono));
            match settled {
                Ok(answered) => {
                    for (due, verdict) in group.iter().zip(&answered.settlement.verdicts) {
                        decision.answers.push(answer(due, Tier::Exact, *verdict, Kinds::NORMAL));
                    }
                    refused = !answered.settlement.spent;
                    if !refused {
                        let places = first..decision.answers.len();
                        spent.push(Spent { spends, answered, places });
                    }
                }
                Err(Failure::LineFull) => {
                    if let Some((due, spend)) = group.first().zip(spends.first()) {
                        let verdict = crowded(spend, decision);
                        decision.answers.push(answer(due, Tier::Exact, verdict, Kinds::NORMAL));
                    }
                    refused = true;
                }
                Err(
                    Failure::Timeout
                    | Failure::Unreachable
                    | Failure::Refused
                    | Failure::Invalid
                    | Failure::Unreadable,
                ) => alone.extend(group),
            }
            if refused {
                break;
            }
        }
        refused = refused || !self.judge_alone(remote, generation, &alone, decision);
        if refused {
            for one in spent {
                for answer in &mut decision.answers[one.places.clone()] {
                    let verdict = &mut answer.verdict;
                    verdict.remaining =
                        verdict.remaining.saturating_add(answer.cost).min(verdict.limit);
                }
                remote.give_back(one.spends, &one.answered);
            }
        }
        !refused
    }

    /// The store does not answer for these: each limit says who judges. All or none.
    fn judge_alone(
        &self,
        remote: &Remote,
        generation: &Generation,
        dues: &[&Due],
        decision: &mut Decision,
    ) -> bool {
        let mut local = Group::new();
        let mut outage = false;
        for due in dues {
            let Counter::Exact(exact) = &generation.counting(due.limit).counter else {
                continue;
            };
            let fresh = exact.quota.quota().judge(None, due.cost, decision.at);
            let verdict = match exact.on_store_failure {
                OnStoreFailure::Local => {
                    local.push(due);
                    continue;
                }
                OnStoreFailure::Allow => Verdict { allowed: true, ..fresh },
                OnStoreFailure::Deny => {
                    outage = true;
                    Verdict { allowed: false, remaining: 0, retry_after: None, ..fresh }
                }
            };
            decision.answers.push(answer(due, Tier::Exact, verdict, Kinds::DEGRADED));
        }
        if outage {
            decision.outcome = Outcome::Outage;
            return false;
        }
        if local.is_empty() {
            return true;
        }
        let spent = self.settle_exact(generation, &local, true, Kinds::DEGRADED, decision);
        if spent {
            for spend in local.iter().filter_map(|due| spend(generation, due)) {
                remote.owe(&spend, decision.at);
            }
        }
        spent
    }
}

/// Whether one of them was denied a moment ago, and cannot succeed yet.
fn denied_at_home(remote: &Remote, dues: &[&Due], decision: &mut Decision) -> bool {
    let mut any = false;
    for due in dues {
        let (generation, now) = (decision.generation, decision.at);
        if let Some(verdict) = remote.denied_at_home(due.key, due.cost, generation, now) {
            decision.answers.push(answer(due, Tier::Exact, verdict, Kinds::NORMAL));
            any = true;
        }
    }
    any
}

/// More wait for this cell than its limit could admit: what comes on top is over it.
fn crowded(spend: &Spend, decision: &Decision) -> Verdict {
    let fresh = spend.quota.quota().judge(None, spend.cost, decision.at);
    Verdict { allowed: false, remaining: 0, retry_after: Some(Nanos::SECOND), ..fresh }
}

/// A shadow limit is asked by itself, and nobody waits for what it says.
fn watch(
    remote: &Arc<Remote>,
    generation: &Generation,
    exact: &Exact,
    due: &Due,
    decision: &Decision,
) {
    let (number, now) = (generation.number(), decision.at);
    let tally = Arc::clone(&generation.counting(due.limit).tally);
    if remote.denied_at_home(due.key, due.cost, number, now).is_some() {
        tally.count(VerdictKind::ShadowDenied);
        return;
    }
    let spends = SmallVec::from_iter([spend_of(exact, due)]);
    let remote = Arc::clone(remote);
    tokio::spawn(async move {
        let kind = match remote.settle(spends, number, now).await {
            Ok(answered) if answered.settlement.spent => VerdictKind::Allowed,
            Ok(_) | Err(Failure::LineFull) => VerdictKind::ShadowDenied,
            Err(_) => VerdictKind::DegradedAllowed,
        };
        tally.count(kind);
    });
}

/// Dues by the place of their cells, in the order of the route.
fn groups<'d>(
    remote: &Remote,
    generation: &Generation,
    dues: &[&'d Due],
) -> SmallVec<[Group<'d>; 1]> {
    let mut groups: SmallVec<[(u16, Group<'d>); 1]> = SmallVec::new();
    for due in dues {
        let place = spend(generation, due).map_or(0, |spend| remote.place(&spend));
        match groups.iter_mut().find(|(other, _)| *other == place) {
            Some((_, group)) => group.push(due),
            None => groups.push((place, Group::from_iter([*due]))),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

fn spend(generation: &Generation, due: &Due) -> Option<Spend> {
    match &generation.counting(due.limit).counter {
        Counter::Exact(exact) => Some(spend_of(exact, due)),
        Counter::Estimate(_) => None,
    }
}

fn spend_of(exact: &Exact, due: &Due) -> Spend {
    let quota = Arc::clone(&exact.quota);
    Spend { key: due.key, family: due.family, quota, cost: due.cost, before: 0 }
}
