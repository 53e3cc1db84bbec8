//! What a decision leaves open until the request ends: its slots in flight, and charges that the
//! answer may change.
//!
//! Without an answer the charges stay: dropping a [`PendingSettlement`] only frees the slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderMap;
use tokio::sync::oneshot;

use super::overflow::OverflowCharge;
use super::target::{FinalCost, Target};
use super::waiting::WaitingSlot;
use super::{Decision, Engine, Generation};
use crate::clock::{Nanos, Now};
use crate::limit::{self, Quota, Verdict};
use crate::policy::{KeyHash, LimitIndex, StatusRules};
use crate::store::redis::{CellCharge, SharedStore};
use crate::store::{InFlightPermit, IssuedQuota};

/// What is open of one request. Hold it until the request has ended.
#[derive(Debug, Default)]
#[must_use = "dropping it ends the request and frees its slots in flight"]
pub struct PendingSettlement {
    pub(super) slots: Vec<InFlightPermit>,
    pub(super) open: Vec<OpenCharge>,
    /// While the request waits for its turn.
    pub(super) waiting: Option<WaitingSlot>,
}

/// What is said of a request at its end.
#[derive(Clone, Copy, Debug)]
pub struct FinalResponse<'r> {
    /// The status of the answer.
    pub status: u16,
    /// Its fields.
    pub headers: &'r HeaderMap,
    /// Whether the origin answered; else this proxy did, because the origin did not.
    pub by_origin: bool,
}

/// A charge that the answer may change.
#[derive(Debug)]
pub(super) struct OpenCharge {
    limit: LimitIndex,
    final_cost: FinalCost,
    pub(super) key: KeyHash,
    family: Option<KeyHash>,
    quota: Arc<IssuedQuota>,
    cost: u32,
    charged: ChargedIn,
    /// How the shared store learns of it, if it was charged in this process because that one failed.
    pub(super) degraded: Option<Degraded>,
    /// Whether the client is told of its verdict.
    pub(super) told: bool,
}

/// Where a charge was made, and what it takes to change it there.
#[derive(Debug)]
pub(super) enum ChargedIn {
    /// Nowhere: the key passed uncounted.
    Nowhere,
    /// In the embedded store.
    Embedded(limit::Receipt),
    /// Where keys are counted for which there is no room.
    Overflow(OverflowCharge),
    /// In the shared store, at an instant of its clock; `log_chunk` is what it replied.
    Shared { at: u64, log_chunk: u64 },
    /// In the shared store, by a task that awaits its answer and then makes the change.
    Background(oneshot::Sender<(Change, InBackground)>),
}

/// How the shared store learns of a charge that was made without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Degraded {
    /// It is recorded as unreported usage.
    Unreported,
    /// It may be charged there already, and counts as such.
    Ambiguous,
}

/// Work in the background; counted until it is dropped.
#[derive(Debug)]
pub(super) struct InBackground(Arc<AtomicUsize>);

impl InBackground {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Release);
        Self(Arc::clone(count))
    }
}

impl Drop for InBackground {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// How an answer changes a charge, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Refund(u32),
    Debit(u32),
}

impl OpenCharge {
    pub(super) fn new(target: &Target, quota: &Arc<IssuedQuota>, charged: ChargedIn) -> Self {
        Self {
            limit: target.limit,
            final_cost: target.final_cost,
            key: target.key,
            family: target.family,
            quota: Arc::clone(quota),
            cost: target.cost,
            charged,
            degraded: None,
            told: !target.shadow,
        }
    }
}

impl PendingSettlement {
    /// The request waits no more: its slot in the waiting room is free.
    pub fn end_delay(&mut self) {
        self.waiting = None;
    }

    /// Whether the answer is awaited for something.
    pub fn awaits_response(&self) -> bool {
        !self.open.is_empty()
    }
}

impl Engine {
    /// Settles the charges that depend on the answer of a request, and corrects the decision. Slots in
    /// flight are held until `pending` is dropped.
    pub fn finish(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        said: &FinalResponse<'_>,
    ) {
        let Some(route) = decision.route.map(|route| generation.policy().route(route)) else {
            return;
        };
        self.settle_open(generation, decision, pending, |open, counted| {
            let told = || open.final_cost.told(route, said.headers);
            let cost = said.by_origin.then(told).flatten();
            (cost, counted.refunds(said.status, said.by_origin))
        });
    }

    /// Settles the charges of a request that passed, of which no origin was asked in the end: `status` counts
    /// as an origin's, and what an answer would have told of the cost is 0.
    pub fn finish_unforwarded(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        status: u16,
    ) {
        self.settle_open(generation, decision, pending, |open, counted| {
            (open.final_cost.unforwarded(), counted.refunds(status, true))
        });
    }

    /// `settled`: what an open charge costs in the end (`None`: what was charged), and whether all of it is
    /// given back.
    fn settle_open(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        settled: impl Fn(&OpenCharge, &StatusRules) -> (Option<u32>, bool),
    ) {
        let now = self.now();
        for open in pending.open.drain(..) {
            let (cost, refunds) =
                settled(&open, &generation.policy().limit(open.limit).status_rules);
            let change = match cost {
                _ if refunds => Change::Refund(open.cost),
                Some(cost) if cost > open.cost => Change::Debit(cost - open.cost),
                Some(cost) if cost < open.cost => Change::Refund(open.cost - cost),
                Some(_) | None => continue,
            };
            if open.told {
                let quota = *open.quota.quota();
                let told = decision.verdicts.iter_mut().filter(|answer| !answer.shadow);
                told.filter(|answer| answer.limit == open.limit)
                    .for_each(|answer| change.correct(&quota, &mut answer.verdict));
            }
            self.change(open, change, now);
        }
    }

    fn change(&self, open: OpenCharge, change: Change, now: Now) {
        self.change_unreported(&open, change, now);
        let OpenCharge { key, family, quota, cost, charged, .. } = open;
        let embedded = &self.exact.embedded;
        match (charged, change) {
            (ChargedIn::Nowhere, _) => {}
            (ChargedIn::Embedded(receipt), Change::Refund(units)) => {
                embedded.refund(key, &quota, units, receipt, now);
            }
            (ChargedIn::Embedded(_), Change::Debit(units)) => {
                embedded.debit(key, &quota, units, now);
            }
            (ChargedIn::Overflow(charge), Change::Refund(units)) => {
                charge.refund_some(&self.confirm, units, cost, now);
            }
            (ChargedIn::Overflow(charge), Change::Debit(units)) => {
                charge.debit(&self.confirm, units, now);
            }
            (ChargedIn::Shared { at, log_chunk }, change) => {
                if let Some(remote) = self.remote() {
                    let spend =
                        CellCharge { log_chunk, ..CellCharge::new(key, family, quota, cost) };
                    change.post(remote, spend, at);
                }
            }
            (ChargedIn::Background(sender), change) => {
                // The task is gone where the charge was not made: there is nothing to change.
                let _ = sender.send((change, InBackground::new(&self.background)));
            }
        }
    }

    /// Corrects what the shared store is yet to learn of a charge that was made without it.
    fn change_unreported(&self, open: &OpenCharge, change: Change, now: Now) {
        let (Some(degraded), Some(remote)) = (open.degraded, self.remote()) else {
            return;
        };
        let OpenCharge { key, family, ref quota, ref charged, .. } = *open;
        match (degraded, change) {
            (Degraded::Unreported, Change::Refund(units)) => {
                let receipt = match charged {
                    ChargedIn::Embedded(receipt) => receipt,
                    // A key without room has no receipt that fits: it is reported in full.
                    _ => return,
                };
                let spend = CellCharge::new(key, family, Arc::clone(quota), units);
                remote.refund_unreported(&spend, units, *receipt, now);
            }
            // Nobody knows whether the store has the charge: a refund could create units there.
            (Degraded::Ambiguous, Change::Refund(_)) => {}
            // The store certainly does not have what exceeds the charge.
            (_, Change::Debit(units)) => {
                remote.record_unreported(
                    &CellCharge::new(key, family, Arc::clone(quota), units),
                    now,
                );
            }
        }
    }
}

impl Change {
    /// Changes a charge of the shared store. `spend` is the whole charge, with what the store told of
    /// its cell.
    pub(super) fn post(self, remote: &Arc<SharedStore>, spend: CellCharge, at: u64) {
        match self {
            Self::Refund(units) => remote.refund_units(spend, units, at),
            Self::Debit(units) => remote.debit(CellCharge { cost: units, log_chunk: 0, ..spend }),
        }
    }

    /// Corrects a verdict as if it had been made with the changed charge.
    fn correct(self, quota: &Quota, verdict: &mut Verdict) {
        let emission = match quota {
            Quota::TokenBucket(bucket) => bucket.emission(),
            Quota::SlidingWindow(_) | Quota::SlidingLog(_) | Quota::FixedWindow(_) => Nanos::ZERO,
        };
        match self {
            Self::Refund(units) => {
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
