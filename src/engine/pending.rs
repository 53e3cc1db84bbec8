//! What a decision leaves open until the request ends: places of requests in flight, and charges
//! that the answer may change.
//!
//! No answer means spent: dropping a [`Pending`] frees the places and leaves the charges.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderMap;
use tokio::sync::oneshot;

use super::due::Due;
use super::{Decision, Engine, Generation};
use crate::clock::{Nanos, Now};
use crate::estimator::{self, EstimateLimit};
use crate::limit::{self, Quota, Verdict};
use crate::policy::{KeyHash, LimitIndex};
use crate::store::redis::{Remote, Spend};
use crate::store::{Issued, Slot};

/// What is open of one request. Hold it until the request has ended.
#[derive(Debug, Default)]
#[must_use = "dropping it ends the request: its places in flight are free"]
pub struct Pending {
    pub(super) slots: Vec<Slot>,
    pub(super) open: Vec<Open>,
}

/// What is said of a request at its end.
#[derive(Clone, Copy, Debug)]
pub struct Said<'r> {
    /// The status of the answer.
    pub status: u16,
    /// Its fields.
    pub headers: &'r HeaderMap,
    /// Whether the origin answered; else this proxy did, because the origin did not.
    pub by_origin: bool,
}

/// A charge that may change.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) limit: LimitIndex,
    /// Which of the route's uses of limits led there.
    pub(super) used: u32,
    pub(super) key: KeyHash,
    pub(super) family: Option<KeyHash>,
    pub(super) quota: Arc<Issued>,
    pub(super) cost: u32,
    pub(super) spent: Spent,
    /// Whether its verdict is told to the client.
    pub(super) told: bool,
}

/// Where a charge was spent, and what it takes to change it there.
#[derive(Debug)]
pub(super) enum Spent {
    /// Nowhere: the key passed uncounted.
    Nowhere,
    /// In this process.
    Embedded(limit::Receipt),
    /// In this process, while the store was away: it is to be told to it.
    Owed(limit::Receipt),
    /// In the sketch that counts keys for which there is no room.
    Overflow(Arc<EstimateLimit>, estimator::Receipt),
    /// In the store, at an instant of its clock.
    Remote { at: u64, before: u64 },
    /// Somebody waits for the store, and is told what to change then.
    Awaited(oneshot::Sender<(Change, OnTheWay)>),
}

/// Something that is on its way to the store; counted until it is dropped.
#[derive(Debug)]
pub(super) struct OnTheWay(Arc<AtomicUsize>);

impl OnTheWay {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Release);
        Self(Arc::clone(count))
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// What the answer changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    GiveBack(u32),
    Debit(u32),
}

impl Open {
    pub(super) fn of(due: &Due, quota: &Arc<Issued>, spent: Spent) -> Self {
        Self {
            limit: due.limit,
            used: due.used,
            key: due.key,
            family: due.family,
            quota: Arc::clone(quota),
            cost: due.cost,
            spent,
            told: !due.shadow,
        }
    }
}

impl Pending {
    /// Whether the answer is awaited for something.
    pub fn asks(&self) -> bool {
        !self.open.is_empty()
    }
}

impl Engine {
    /// The request has its answer: charges that depend on it are settled, and the decision says so.
    /// Places in flight are held until `pending` is dropped.
    pub fn finish(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut Pending,
        said: &Said<'_>,
    ) {
        let policy = generation.policy();
        let Some(route) = decision.route.map(|route| policy.route(route)) else {
            return;
        };
        let now = self.now();
        for open in pending.open.drain(..) {
            let counted = &policy.limit(open.limit).counted;
            let back = counted.gives_back(said.status, said.by_origin);
            let late = route.limits.get(open.used as usize).filter(|_| said.by_origin);
            let change = match late.and_then(|one| one.cost.of_answer(said.headers)) {
                _ if back => Change::GiveBack(open.cost),
                Some(cost) if cost > open.cost => Change::Debit(cost - open.cost),
                Some(cost) if cost < open.cost => Change::GiveBack(open.cost - cost),
                Some(_) | None => continue,
            };
            if open.told {
                let quota = *open.quota.quota();
                let told = decision.answers.iter_mut().filter(|one| !one.shadow);
                told.filter(|one| one.limit == open.limit)
                    .for_each(|one| change.tell(&quota, &mut one.verdict));
            }
            self.change(open, change, now);
        }
    }

    fn change(&self, open: Open, change: Change, now: Now) {
        let Open { key, family, quota, cost, spent, .. } = open;
        match (spent, change) {
            (Spent::Nowhere, _) => {}
            (Spent::Embedded(receipt), Change::GiveBack(units)) => {
                self.store.give_back(key, &quota, units, receipt, now);
            }
            (Spent::Embedded(_), Change::Debit(units)) => {
                self.store.debit(key, &quota, units, now);
            }
            (Spent::Owed(receipt), Change::GiveBack(units)) => {
                self.store.give_back(key, &quota, units, receipt, now);
                if let Some(remote) = &self.remote {
                    remote.reduce_unreported(key, units, receipt, now);
                }
            }
            (Spent::Owed(_), Change::Debit(units)) => {
                self.store.debit(key, &quota, units, now);
                if let Some(remote) = &self.remote {
                    remote.record_unreported(&Spend::of(key, family, quota, units), now);
                }
            }
            (Spent::Overflow(estimate, receipt), Change::GiveBack(units)) => {
                // A sketch takes back whole charges: of a part, the rest is charged again.
                estimate.give_back(&self.confirm, receipt);
                if units < cost {
                    estimate.charge(&self.confirm, key, cost - units, now);
                }
            }
            (Spent::Overflow(estimate, _), Change::Debit(units)) => {
                estimate.charge(&self.confirm, key, units, now);
            }
            (Spent::Remote { at, before }, change) => {
                if let Some(remote) = &self.remote {
                    let spend = Spend { before, ..Spend::of(key, family, quota, cost) };
                    change.post(remote, spend, at);
                }
            }
            (Spent::Awaited(tell), change) => {
                // Where nobody is there any more the charge was not spent: nothing is to be changed.
                let _ = tell.send((change, OnTheWay::new(&self.asides)));
            }
        }
    }
}

impl Change {
    /// Tells the store. `spend` is the whole charge, with what the store told of its cell.
    pub(super) fn post(self, remote: &Arc<Remote>, spend: Spend, at: u64) {
        match self {
            Self::GiveBack(units) => remote.refund_some(spend, units, at),
            Self::Debit(units) => remote.debit(Spend { cost: units, before: 0, ..spend }),
        }
    }

    /// What a client is told after it.
    fn tell(self, quota: &Quota, verdict: &mut Verdict) {
        let emission = match quota {
            Quota::TokenBucket(bucket) => bucket.emission(),
            Quota::SlidingWindow(_) | Quota::SlidingLog(_) | Quota::FixedWindow(_) => Nanos::ZERO,
        };
        match self {
            Self::GiveBack(units) => {
                let span = emission.saturating_mul(u64::from(units));
                verdict.reset = verdict.reset.saturating_sub(span);
                verdict.remaining = verdict.remaining.saturating_add(units).min(verdict.limit);
                if verdict.remaining == verdict.limit {
                    verdict.reset = Nanos::ZERO;
                }
            }
            Self::Debit(units) => {
                let span = emission.saturating_mul(u64::from(units));
                verdict.reset = verdict.reset.saturating_add(span);
                verdict.remaining = verdict.remaining.saturating_sub(units);
            }
        }
    }
}
