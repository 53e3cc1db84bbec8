//! Corrects charges when the response of a request is known.
//!
//! A response may refund a charge (its status is not counted) or change its cost (a header names it). The correction
//! is applied where the charge was made: in the embedded store, the overflow sketches, or the shared store. A
//! correction never creates units that were not charged.

use std::sync::Arc;

use http::HeaderMap;

use super::decision::Decision;
use super::generation::Generation;
use super::open_charge::{
    BackgroundGuard, ChargeCorrection, ChargedIn, DegradedCharge, OpenCharge,
};
use super::pending::{FinalResponse, PendingSettlement};
use super::state::Engine;
use crate::clock::Now;
use crate::policy::StatusRules;
use crate::store::redis::CellCharge;

/// What a response makes of an open charge.
struct SettledCost {
    /// The cost in the end; `None`: what was charged.
    cost: Option<u32>,
    /// Whether all of it is refunded.
    is_refunded: bool,
}

impl Engine {
    /// Settles the charges that depend on the response of a request, and corrects the decision. Slots in flight are
    /// held until `pending` is dropped.
    pub fn finish(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        response: &FinalResponse<'_>,
    ) {
        let Some(route) = decision.route.map(|route| generation.policy().route(route)) else {
            return;
        };
        self.settle_open(generation, decision, pending, |open, rules| {
            let named = || open.final_cost.in_response(route, response.headers);
            SettledCost {
                cost: response.by_origin.then(named).flatten(),
                is_refunded: rules.refunds(response.status, response.by_origin),
            }
        });
    }

    /// Settles the charges of a request that passed but reached no origin. `status` is treated as an origin's, and
    /// a cost that a response would have named is 0.
    pub fn finish_unforwarded(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        status: u16,
    ) {
        self.finish_local(generation, decision, pending, status, &HeaderMap::new());
    }

    /// The same for a request that the program around the engine has answered itself. A cost that its answer names
    /// counts.
    pub fn finish_local(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        status: u16,
        headers: &HeaderMap,
    ) {
        let route = decision.route.map(|route| generation.policy().route(route));
        self.settle_open(generation, decision, pending, |open, rules| {
            let named = route.and_then(|route| open.final_cost.in_response(route, headers));
            SettledCost {
                cost: named.or_else(|| open.final_cost.unforwarded()),
                is_refunded: rules.refunds(status, true),
            }
        });
    }

    fn settle_open(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        settled: impl Fn(&OpenCharge, &StatusRules) -> SettledCost,
    ) {
        let now = self.now();
        for open in pending.open.drain(..) {
            let rules = &generation.policy().limit(open.limit).status_rules;
            let correction = match settled(&open, rules) {
                SettledCost { is_refunded: true, .. } => ChargeCorrection::Refund(open.cost),
                SettledCost { cost: Some(cost), .. } if cost > open.cost => {
                    ChargeCorrection::Debit(cost - open.cost)
                }
                SettledCost { cost: Some(cost), .. } if cost < open.cost => {
                    ChargeCorrection::Refund(open.cost - cost)
                }
                SettledCost { .. } => continue,
            };
            if open.is_reported {
                let quota = *open.quota.quota();
                let enforced = decision.verdicts.iter_mut().filter(|verdict| !verdict.shadow);
                for limit_verdict in enforced.filter(|verdict| verdict.limit == open.limit) {
                    correction.correct(&quota, &mut limit_verdict.verdict);
                }
            }
            self.apply(open, correction, now);
        }
    }

    fn apply(&self, open: OpenCharge, correction: ChargeCorrection, now: Now) {
        self.correct_unreported(&open, correction, now);
        let OpenCharge { key, family, quota, cost, charged, .. } = open;
        let embedded = &self.exact.embedded;
        match (charged, correction) {
            (ChargedIn::Nowhere, _) => {}
            (ChargedIn::Embedded(receipt), ChargeCorrection::Refund(units)) => {
                embedded.refund(key, &quota, units, receipt, now);
            }
            (ChargedIn::Embedded(_), ChargeCorrection::Debit(units)) => {
                embedded.debit(key, &quota, units, now);
            }
            (ChargedIn::Overflow(charge), ChargeCorrection::Refund(units)) => {
                charge.refund_units(&self.confirm, units, cost, now);
            }
            (ChargedIn::Overflow(charge), ChargeCorrection::Debit(units)) => {
                charge.debit(&self.confirm, units, now);
            }
            (ChargedIn::Shared { at, log_chunk }, correction) => {
                if let Some(shared) = self.remote() {
                    let charge =
                        CellCharge { log_chunk, ..CellCharge::new(key, family, quota, cost) };
                    correction.send(shared, charge, at);
                }
            }
            (ChargedIn::Background(sender), correction) => {
                // If the charge failed, the task has ended, and there is nothing to correct.
                let _ = sender.send((correction, BackgroundGuard::new(&self.background)));
            }
        }
    }

    /// Corrects the unreported usage of a charge that was made while the shared store failed.
    fn correct_unreported(&self, open: &OpenCharge, correction: ChargeCorrection, now: Now) {
        let (Some(degraded), Some(shared)) = (open.degraded, self.remote()) else {
            return;
        };
        let OpenCharge { key, family, ref quota, ref charged, .. } = *open;
        match (degraded, correction) {
            (DegradedCharge::Unreported, ChargeCorrection::Refund(units)) => {
                let receipt = match charged {
                    ChargedIn::Embedded(receipt) => receipt,
                    // A key without room has no receipt that fits: it is reported in full.
                    ChargedIn::Nowhere
                    | ChargedIn::Overflow(_)
                    | ChargedIn::Shared { .. }
                    | ChargedIn::Background(_) => return,
                };
                let charge = CellCharge::new(key, family, Arc::clone(quota), units);
                shared.refund_unreported(&charge, units, *receipt, now);
            }
            // The store may not have the charge; a refund could create units there.
            (DegradedCharge::Ambiguous, ChargeCorrection::Refund(_)) => {}
            // The store certainly lacks the units above the charge.
            (_, ChargeCorrection::Debit(units)) => {
                let charge = CellCharge::new(key, family, Arc::clone(quota), units);
                shared.record_unreported(&charge, now);
            }
        }
    }
}
