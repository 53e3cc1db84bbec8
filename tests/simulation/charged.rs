//! What the oracle books of a decision: which cells were charged, for sure or perhaps.

use tollgate::engine::{Decision, LimitVerdict, Outcome, VerdictKind};

use super::cell::Entry;
use super::draw::{Algorithm, OnFailure};
use super::oracle::{Change, Oracle, Place, Request, TRAVEL, Told, local};
use super::request::Due;

impl Oracle {
    /// Records what a decision charged; says where.
    pub(super) fn charge(
        &mut self,
        id: u64,
        request: &Request,
        told: Told,
        due: &Due,
        answer: Option<&LimitVerdict>,
        decision: &Decision,
    ) -> Option<Place> {
        let through = decision.outcome == Outcome::Allowed;
        if due.variant.algorithm == Algorithm::InFlight {
            let key = (request.node, due.limit, due.key.clone());
            if let Some(held) = self.held.get_mut(&key) {
                held.remove(&id);
                if through && answer.is_some_and(|one| one.verdict.allowed || one.shadow) {
                    held.insert(id, (due.cost, answer.is_some_and(|one| one.verdict.allowed)));
                }
            }
            return None;
        }
        if due.refused {
            return None;
        }
        let counts = answer.is_some_and(|one| {
            decision.outcome == Outcome::Limited
                && one.refuses()
                && matches!(one.kind, VerdictKind::Denied | VerdictKind::DegradedDenied)
        });
        if counts {
            self.denials.push((due.limit, due.key.clone(), told.at));
        }
        if !self.store {
            let one = answer?;
            let overflown =
                matches!(one.kind, VerdictKind::OverflowAllowed | VerdictKind::OverflowDenied);
            if through && one.verdict.allowed && !overflown {
                let at = local(due, decision.at);
                let to = at + self.ahead(request.node, due);
                // (The clock may have been set back since the request was asked.)
                let from = at.saturating_sub(self.ahead(request.node, due));
                let entry = Entry::new(id, &due.variant, (from, to), (due.cost, 0));
                self.cell(Place::Node(request.node), due).entries.push(entry);
                return Some(Place::Node(request.node));
            }
            return None;
        }
        self.charge_store(id, request, told, due, answer, decision)
    }

    fn charge_store(
        &mut self,
        id: u64,
        request: &Request,
        told: Told,
        due: &Due,
        answer: Option<&LimitVerdict>,
        decision: &Decision,
    ) -> Option<Place> {
        let through = decision.outcome == Outcome::Allowed;
        let (now, slack) = (self.base + told.at, self.slack);
        let delays = due.variant.delays();
        let watches = answer.map_or(due.shadow || due.rolled_out, |one| one.shadow);
        let late = now + TRAVEL + slack;
        let (sure, maybe, to, place) = match answer.map(|one| one.kind) {
            _ if watches && through => (0, due.cost, late, Some(Place::Store)),
            _ if watches => (0, 0, 0, None),
            Some(VerdictKind::Allowed) if through => (due.cost, 0, now + slack, Some(Place::Store)),
            // What delays requests is not given back when another slot refuses.
            Some(VerdictKind::Allowed) if self.cluster && delays => (0, due.cost, late, None),
            Some(VerdictKind::Allowed) if self.cluster => {
                let cell = (Place::Store, due.limit, due.key.clone());
                let (node, units) = (request.node, due.cost);
                let change =
                    Change { node, since: told.at, cell, request: id, units, debit: false };
                if self.forgot.is_some_and(|at| at >= request.began) {
                    self.cell(Place::Store, due).robbed += due.cost;
                }
                self.changes.push(change);
                (0, due.cost, late, None)
            }
            _ if told.ambiguous => (0, due.cost, late, None),
            _ => (0, 0, 0, None),
        };
        if sure + maybe == 0 {
            self.forget(Place::Store, due, id);
        }
        // Of a request that is refused, what other slots charged comes back.
        let comes_back = if through || delays { 0 } else { maybe };
        for entry in self.own(Place::Store, due, id) {
            (entry.sure, entry.maybe, entry.to) = (sure, maybe, to);
            entry.back += comes_back;
        }
        let degraded = answer.is_some_and(|one| one.kind == VerdictKind::DegradedAllowed);
        if !(through && degraded && due.on_failure == OnFailure::Local) {
            return place;
        }
        let to = local(due, told.now) + self.ahead(request.node, due);
        let from = local(due, decision.at).saturating_sub(self.ahead(request.node, due));
        let entry = Entry::new(id, &due.variant, (from, to), (due.cost, 0));
        self.cell(Place::Node(request.node), due).entries.push(entry);
        // It is told to the store later, as far as it still counts.
        let to = late + due.variant.memory();
        let entry = Entry::new(id, &due.variant, (now - slack, to), (0, due.cost));
        self.cell(Place::Store, due).entries.push(entry);
        Some(Place::Node(request.node))
    }
}
