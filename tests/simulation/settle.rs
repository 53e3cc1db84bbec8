//! What changes after a decision: answers that give back or charge more, changes that arrive, and
//! servers that forget.

use super::cell::Entry;
use super::draw::{Policy, SECOND};
use super::oracle::{Change, Oracle, Place, TRAVEL};
use super::request::Due;

/// As long as a denial that was true before a change may be remembered.
const REMEMBERED: u64 = SECOND;

/// What the origin, or the node in its place, answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) used: Option<u32>,
    pub(crate) by_origin: bool,
}

impl Answered {
    /// What a charge comes to after the answer.
    fn cost(self, due: &Due) -> u32 {
        let not_counted = self.by_origin && due.counts_401 && self.status != 401;
        let back = not_counted || (due.refunds_5xx && (500..=599).contains(&self.status));
        match (due.late, self.used) {
            _ if back => 0,
            (Some(max), Some(used)) if self.by_origin => used.min(max).max(due.fixed),
            _ => due.cost,
        }
    }
}

impl Oracle {
    /// The request has its answer, and has ended.
    pub(crate) fn answered(&mut self, id: u64, answered: Answered, walls: &[u64], now: u64) {
        let Some(request) = self.requests.remove(&id) else { return };
        let node = request.node;
        for (due, charged) in request.dues.iter().flatten().zip(&request.charged) {
            self.release(node, due, id);
            let Some(place) = *charged else { continue };
            let cost = answered.cost(due);
            if cost < due.cost {
                self.seen.count("refund", 1);
                self.give_back(id, node, due, place, due.cost - cost, now);
            } else if cost > due.cost {
                self.seen.count("debit", 1);
                self.debit(id, node, due, place, cost - due.cost, walls, now);
            }
        }
    }

    /// The request has ended without an answer.
    pub(crate) fn ended(&mut self, id: u64) {
        let Some(request) = self.requests.remove(&id) else { return };
        for due in request.dues.iter().flatten() {
            self.release(request.node, due, id);
        }
    }

    fn give_back(&mut self, id: u64, node: usize, due: &Due, place: Place, units: u32, now: u64) {
        // A window that lies ahead of a clock which was set back is not found again. A bucket forgets
        // what it was charged long ago, and what it was charged before it met another rate. A window
        // that a reload brought may have begun after the charge.
        let stepped = self.slack > 0 || self.back[node] > 0;
        let keeps = stepped
            || self.mixed[due.limit]
            || (due.variant.is_bucket() && !self.is_remembered(id, due, place, now));
        let mut missing = units;
        for entry in self.own(place, due, id) {
            let part = units.min(entry.sure);
            missing = missing.saturating_sub(part);
            entry.sure -= part;
            entry.back += part;
            if place == Place::Store || keeps {
                entry.maybe += part;
            }
        }
        if place == Place::Store {
            self.cell(place, due).robbed += missing;
        }
        if place == Place::Store && !keeps {
            let cell = (place, due.limit, due.key.clone());
            let change = Change { node, since: now, cell, request: id, units, debit: false };
            self.changes.push(change);
        }
    }

    fn is_remembered(&self, id: u64, due: &Due, place: Place, now: u64) -> bool {
        let cell = self.cells.get(&(place, due.limit, due.key.clone()));
        let all = || cell.into_iter().flat_map(|cell| &cell.entries);
        let begin = if place == Place::Store { self.base } else { super::world::MONO };
        let own = |one: &&Entry| one.request == id;
        let remembered =
            |one: &Entry| due.variant.remembers((begin + now + TRAVEL).saturating_sub(one.from));
        all().all(|one| one.rate == due.variant.rate()) && all().filter(own).all(remembered)
    }

    #[expect(clippy::too_many_arguments, reason = "one caller")]
    fn debit(
        &mut self,
        id: u64,
        node: usize,
        due: &Due,
        place: Place,
        units: u32,
        walls: &[u64],
        now: u64,
    ) {
        let store_from = (self.base + now).saturating_sub(self.slack);
        let store_to = self.base + now + TRAVEL + self.slack;
        match place {
            Place::Node(_) => {
                use super::draw::Algorithm::{Fixed, Sliding};
                let windows = matches!(due.variant.algorithm, Fixed | Sliding);
                let at = if windows { walls[node] } else { now + super::world::MONO };
                let to = at + self.ahead(node, due);
                let entry = Entry::new(id, &due.variant, (at, to), (units, 0));
                self.cell(place, due).entries.push(entry);
                if self.store {
                    let to = store_to + due.variant.memory();
                    let entry = Entry::new(id, &due.variant, (store_from, to), (0, units));
                    self.cell(Place::Store, due).entries.push(entry);
                }
            }
            Place::Store => {
                // What a store does not answer to is told to it later, and counts from then on.
                let late = if self.disturbed[node].is_some() { due.variant.memory() } else { 0 };
                let entry = Entry::new(id, &due.variant, (store_from, store_to + late), (0, units));
                self.cell(place, due).entries.push(entry);
                let watches = due.shadow || due.rolled_out;
                if !watches {
                    let cell = (place, due.limit, due.key.clone());
                    let change = Change { node, since: now, cell, request: id, units, debit: true };
                    self.changes.push(change);
                }
            }
        }
    }

    /// Nothing of a node is on its way: what it sent has arrived, if nothing went wrong since.
    pub(crate) fn quiet(&mut self, node: usize, now: u64) {
        let disturbed = self.disturbed[node];
        let (mine, others): (Vec<Change>, Vec<Change>) = std::mem::take(&mut self.changes)
            .into_iter()
            .partition(|one| one.node == node && one.since + REMEMBERED < now);
        self.changes = others;
        for change in mine {
            let since = |at: u64| at >= change.since;
            if disturbed.is_some_and(since) || self.forgot.is_some_and(since) {
                continue;
            }
            let Some(cell) = self.cells.get_mut(&change.cell) else { continue };
            let own = cell.entries.iter_mut().filter(|one| one.request == change.request);
            for entry in own {
                if change.debit {
                    if entry.sure == 0 && entry.maybe == change.units {
                        (entry.sure, entry.maybe) = (entry.maybe, 0);
                        break;
                    }
                } else {
                    entry.maybe = entry.maybe.saturating_sub(change.units);
                    break;
                }
            }
        }
    }

    /// A server forgot what it knew: nothing of it is sure any more.
    pub(crate) fn forgot(&mut self, now: u64) {
        self.forgot = Some(now);
        for change in self.changes.iter().filter(|change| !change.debit) {
            if let Some(cell) = self.cells.get_mut(&change.cell) {
                cell.robbed += change.units;
            }
        }
        for ((place, _, _), cell) in &mut self.cells {
            if *place == Place::Store {
                cell.entries.iter_mut().for_each(unsure);
            }
        }
    }

    /// A node has another policy now.
    pub(crate) fn reloaded(&mut self, policy: &Policy) {
        for (n, limit) in policy.limits.iter().enumerate() {
            self.mixed[n] |= limit.windows() != self.windows[n];
        }
    }

    /// The wall clock of a node was set back: windows that it counted in lie ahead.
    pub(crate) fn stepped_back(&mut self, node: usize, by: u64) {
        self.back[node] += by;
        for ((place, _, _), cell) in &mut self.cells {
            if *place == Place::Node(node) {
                for entry in &mut cell.entries {
                    entry.from = entry.from.saturating_sub(by);
                    unsure(entry);
                }
            }
        }
    }
}

fn unsure(entry: &mut Entry) {
    entry.maybe += entry.sure;
    entry.sure = 0;
}
