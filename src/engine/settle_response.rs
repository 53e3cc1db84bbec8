//! Corrects charges when the response of a request is known.
//!
//! A response may refund a charge (its status is not counted) or change its cost (its head, body or trailers name it). A
//! charge is corrected once: by the head of the response, or by its end if the rest of it may name a cost. The correction
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
use super::succession::{HandedEvent, HandedKey};
use super::trace::{AnsweredBy, Settled, TracedAnswer, TracedCosts};
use crate::clock::Now;
use crate::policy::{ResponseCosts, Route};
use crate::store::redis::CellCharge;

/// What a response makes of an open charge.
enum ResponseEffect {
    /// All of it is refunded.
    Refunded,
    /// This is the cost in the end; `None`: what was charged.
    Settled(Option<u32>),
    /// The rest of the response may name the cost.
    Open,
}

impl Engine {
    /// Settles the charges that depend on the response of a request by its head, and corrects the decision. Those whose
    /// cost may follow stay open ([`PendingSettlement::awaits_rest`]). Slots in flight are held until `pending` is
    /// dropped.
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
        if pending.awaits_rest() {
            // Only the first head counts.
            return;
        }
        let costs = response.by_origin.then(|| pending.costs_of_head(route, response));
        let by = if response.by_origin { AnsweredBy::Origin } else { AnsweredBy::Proxy };
        let named = pending.trace.as_ref().and(costs.as_ref());
        let named = named.map(|costs| TracedCosts::of(route, costs)).unwrap_or_default();
        let event = pending.trace.as_ref().map(|_| self.events.begin());
        let now = self.now();
        self.finish_by(generation, decision, pending, (response.status, costs), now);
        if let (Some(open), Some(event)) = (&mut pending.trace, event) {
            let settled = Settled { now, order: event.number() };
            open.trace.answered(settled, (response.status, by), named);
        }
    }

    /// Settles the charges by the head of a response that a log names.
    pub fn finish_logged(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        answer: &TracedAnswer,
    ) {
        let Some(route) = decision.route.map(|route| generation.policy().route(route)) else {
            return;
        };
        match answer.by {
            AnsweredBy::Unforwarded => {
                self.finish_unforwarded(generation, decision, pending, answer.status);
            }
            AnsweredBy::Proxy => {
                self.finish_by(generation, decision, pending, (answer.status, None), self.now());
            }
            AnsweredBy::Origin => {
                let costs = answer.costs.of_route(route, false);
                let head = (answer.status, Some(costs));
                self.finish_by(generation, decision, pending, head, self.now());
            }
        }
    }

    /// Settles what [`Engine::finish_logged`] left open by the end of a response that a log names.
    pub fn finish_rest_logged(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        end: &TracedCosts,
    ) {
        let (Some(route), Some(_)) = (decision.route, pending.costs.take()) else {
            return;
        };
        let route = generation.policy().route(route);
        let costs = end.of_route(route, true);
        self.settle_open(generation, decision, pending, self.now(), |open| {
            self.settled(generation, open, route, &costs)
        });
    }

    /// Settles the charges by a status and by the costs that the head of a response names. `costs`: `None` if the origin sent
    /// none.
    fn finish_by(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        (status, costs): (u16, Option<ResponseCosts>),
        now: Now,
    ) {
        let Some(route) = decision.route.map(|route| generation.policy().route(route)) else {
            return;
        };
        let by_origin = costs.is_some();
        self.settle_open(generation, decision, pending, now, |open| {
            let rules = &generation.policy().limit(open.limit).status_rules;
            match &costs {
                _ if rules.refunds(status, by_origin) => ResponseEffect::Refunded,
                None => ResponseEffect::Settled(None),
                Some(costs) if !open.final_cost.is_named(costs) => ResponseEffect::Open,
                Some(costs) => self.settled(generation, open, route, costs),
            }
        });
        if pending.awaits_response() {
            pending.costs = costs.map(Box::new);
        }
    }

    /// Reads the next bytes of the body of the response.
    pub fn read_body(
        &self,
        generation: &Generation,
        decision: &Decision,
        pending: &mut PendingSettlement,
        bytes: &[u8],
    ) {
        if let (Some(route), Some(costs)) = (decision.route, &mut pending.costs) {
            costs.read_body(generation.policy().route(route), bytes);
        }
    }

    /// Reads the trailers of the response.
    pub fn read_trailers(
        &self,
        generation: &Generation,
        decision: &Decision,
        pending: &mut PendingSettlement,
        trailers: &HeaderMap,
    ) {
        if let (Some(route), Some(costs)) = (decision.route, &mut pending.costs) {
            costs.read_trailers(generation.policy().route(route), trailers);
        }
    }

    /// Settles the charges that [`Engine::finish`] left open: the response has ended. `is_complete`: it has come to its
    /// end. Otherwise nothing is given back, but what it named above the reserve is charged.
    pub fn finish_rest(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        is_complete: bool,
    ) {
        let (Some(route), Some(mut costs)) = (decision.route, pending.costs.take()) else {
            return;
        };
        let route = generation.policy().route(route);
        costs.finish(route, is_complete);
        let event = pending.trace.as_ref().map(|_| self.events.begin());
        let now = self.now();
        self.settle_open(generation, decision, pending, now, |open| {
            self.settled(generation, open, route, &costs)
        });
        if let (Some(open), Some(event)) = (&mut pending.trace, event) {
            let settled = Settled { now, order: event.number() };
            open.trace.rest_ended(settled, TracedCosts::of(route, &costs));
        }
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

    /// The same for a request that the program around the engine has answered itself. A cost that the head of its answer
    /// names counts.
    pub fn finish_local(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        status: u16,
        headers: &HeaderMap,
    ) {
        let route = decision.route.map(|route| generation.policy().route(route));
        let response = FinalResponse { status, headers, by_origin: true };
        let event = pending.trace.as_ref().map(|_| self.events.begin());
        let now = self.now();
        let costs = route.map(|route| (route, pending.costs_of_head(route, &response)));
        self.settle_open(generation, decision, pending, now, |open| {
            let rules = &generation.policy().limit(open.limit).status_rules;
            if rules.refunds(status, true) {
                return ResponseEffect::Refunded;
            }
            let named = costs
                .as_ref()
                .and_then(|(route, costs)| open.final_cost.after_response(route, costs));
            ResponseEffect::Settled(named.or_else(|| open.final_cost.unforwarded()))
        });
        if let (Some(open), Some(event)) = (&mut pending.trace, event) {
            let settled = Settled { now, order: event.number() };
            let answer = (status, AnsweredBy::Unforwarded);
            open.trace.answered(settled, answer, TracedCosts::default());
        }
    }

    /// The cost of a charge after its response, and the counters of costs that it does not tell.
    fn settled(
        &self,
        generation: &Generation,
        open: &OpenCharge,
        route: &Route,
        costs: &ResponseCosts,
    ) -> ResponseEffect {
        if !open.is_candidate {
            let counters = generation.counters(open.limit);
            open.final_cost.unread(costs).for_each(|reason| counters.record_unread_cost(reason));
        }
        ResponseEffect::Settled(open.final_cost.after_response(route, costs))
    }

    fn settle_open(
        &self,
        generation: &Generation,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
        now: Now,
        result: impl Fn(&OpenCharge) -> ResponseEffect,
    ) {
        for open in std::mem::take(&mut pending.open) {
            let correction = match result(&open) {
                ResponseEffect::Open => {
                    pending.open.push(open);
                    continue;
                }
                ResponseEffect::Refunded => ChargeCorrection::Refund(open.cost),
                ResponseEffect::Settled(Some(cost)) if cost > open.cost => {
                    ChargeCorrection::Debit(cost - open.cost)
                }
                ResponseEffect::Settled(Some(cost)) if cost < open.cost => {
                    ChargeCorrection::Refund(open.cost - cost)
                }
                ResponseEffect::Settled(_) => continue,
            };
            let OpenCharge { limit, is_candidate, is_reported, .. } = open;
            let quota = *open.quota.quota();
            if !self.apply(open, correction, now) {
                continue;
            }
            if !is_candidate {
                correction.record(generation.counters(limit));
            }
            if is_reported {
                let enforced = decision.verdicts.iter_mut().filter(|verdict| !verdict.shadow);
                for limit_verdict in enforced.filter(|verdict| verdict.limit == limit) {
                    correction.correct(&quota, &mut limit_verdict.verdict);
                    limit_verdict.charged = correction.corrected(limit_verdict.charged);
                }
            }
        }
    }

    /// Corrects a charge wherever it counts. Returns whether the correction counts now: not if the shared store may keep
    /// what is refunded, if nothing keeps the charge, or if a task in the background counts it once it has applied it.
    fn apply(&self, open: OpenCharge, correction: ChargeCorrection, now: Now) -> bool {
        let is_applied = self.correct_unreported(&open, correction, now);
        let is_degraded = open.degraded.is_some();
        let OpenCharge { key, family, quota, cost, charged, .. } = open;
        let embedded = &self.exact.embedded;
        match (charged, correction) {
            // Without a store that is told later, nothing keeps the key.
            (ChargedIn::Nowhere, _) => return is_applied && is_degraded,
            (ChargedIn::Embedded(receipt), ChargeCorrection::Refund(units)) => {
                let (number, sent) = (quota.number(), HandedKey::of(key));
                let event = HandedEvent::Refund { quota: number, key: sent, units, receipt };
                self.do_where_counted(event, || embedded.refund(key, &quota, units, receipt, now));
            }
            (ChargedIn::Embedded(_), ChargeCorrection::Debit(units)) => {
                let (number, sent) = (quota.number(), HandedKey::of(key));
                let event = HandedEvent::Debit { quota: number, key: sent, units };
                self.do_where_counted(event, || embedded.debit(key, &quota, units, now));
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
                return false;
            }
        }
        is_applied
    }

    /// Corrects what the shared store learns, or has learned, of a charge that was made while it failed. Returns
    /// whether it can be corrected there.
    fn correct_unreported(
        &self,
        open: &OpenCharge,
        correction: ChargeCorrection,
        now: Now,
    ) -> bool {
        let (Some(degraded), Some(shared)) = (&open.degraded, self.remote()) else {
            return true;
        };
        match (degraded, correction) {
            (DegradedCharge::Unreported(Some(charge)), ChargeCorrection::Refund(units)) => {
                shared.refund_unreported(charge, units, now)
            }
            (DegradedCharge::Unreported(None), ChargeCorrection::Refund(_)) => true,
            // The store may not have the charge; a refund could create units there.
            (DegradedCharge::Ambiguous, ChargeCorrection::Refund(_)) => false,
            // The store certainly lacks the units above the charge.
            (_, ChargeCorrection::Debit(units)) => {
                let OpenCharge { key, family, ref quota, .. } = *open;
                let charge = CellCharge::new(key, family, Arc::clone(quota), units);
                shared.record_unreported(&charge, now);
                true
            }
        }
    }
}
