//! The log of what was asked, told and charged, and what must hold of it.
//!
//! Every promise is checked the moment a decision is told. A charge whose fate nobody knows counts
//! towards the most that a key may have spent, and not towards the least.

use std::collections::{BTreeMap, BTreeSet};

use tollgate::clock::Now;
use tollgate::engine::{Decision, LimitVerdict, Outcome, VerdictKind};

use super::cell::{Entry, OPEN, Variant, verdict};
use super::coverage::Coverage;
use super::draw::{Algorithm, OnFailure, Penalty, Policy, SECOND};
use super::request::{Asked, Due};

/// As long as a message may travel: a charge that nobody waits for is made by then.
pub(crate) const TRAVEL: u64 = 3 * SECOND;

/// As long as a denial may be answered from memory.
const REMEMBERED: u64 = SECOND;

/// How late timers of the runtime go off: each at a whole millisecond, and as far behind that as the
/// clock was when it was last turned by hand; one may start another.
const TIMER: u64 = 4 * super::world::MILLISECOND;

/// Where a key is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Store,
    Node(usize),
}

/// A cell: where, of which limit, of which key.
pub(crate) type CellId = (Place, usize, String);

/// Requests that hold places in flight: what each weighs, and whether it holds it for sure.
type Held = BTreeMap<u64, (u32, bool)>;

/// Of all rates under which a cell was asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slowest {
    /// The longest time between two units.
    pub(crate) unit: u64,
    /// The longest time between two refills.
    pub(crate) step: u64,
}

/// What a cell was charged.
#[derive(Debug, Default)]
pub(crate) struct Charges {
    pub(crate) entries: Vec<Entry>,
    pub(crate) slowest: Slowest,
    /// Units of charges that a server forgot, and that were given back all the same: they are
    /// missing from the others.
    pub(crate) robbed: u32,
}

/// A request that was sent.
pub(crate) struct Request {
    pub(crate) node: usize,
    pub(crate) began: u64,
    pub(crate) dues: Result<Vec<Due>, ()>,
    /// Of each due, where it is charged, once that is told.
    pub(crate) charged: Vec<Option<Place>>,
}

/// Something that is on its way to the store, which nobody tells the end of.
pub(crate) struct Change {
    pub(crate) node: usize,
    pub(crate) since: u64,
    pub(crate) cell: CellId,
    pub(crate) request: u64,
    pub(crate) units: u32,
    /// More is charged; else something comes back.
    pub(crate) debit: bool,
}

/// What happened, and whether it may have.
pub(crate) struct Oracle {
    pub(crate) store: bool,
    /// Whether cells lie on several servers.
    pub(crate) cluster: bool,
    /// Whether there is room for a few keys only.
    pub(crate) crowded: bool,
    /// Wall time of the beginning.
    pub(crate) base: u64,
    /// How far a server's clock may be off.
    pub(crate) slack: u64,
    pub(crate) timeout: u64,
    pub(crate) tick: u64,
    pub(crate) cells: BTreeMap<CellId, Charges>,
    pub(crate) requests: BTreeMap<u64, Request>,
    pub(crate) changes: Vec<Change>,
    /// When something went wrong last, of each node.
    pub(crate) disturbed: Vec<Option<u64>>,
    /// The lengths of windows of each limit, in the beginning.
    pub(crate) windows: Vec<BTreeSet<u64>>,
    /// Whether generations of a limit differ in the lengths of its windows.
    pub(crate) mixed: Vec<bool>,
    /// By how much wall clocks were set back.
    pub(crate) back: Vec<u64>,
    /// When a server forgot something last.
    pub(crate) forgot: Option<u64>,
    /// Denials that count towards a ban.
    pub(crate) denials: Vec<(usize, String, u64)>,
    /// Requests in flight, of each node, limit and key.
    pub(crate) held: BTreeMap<(usize, usize, String), Held>,
    pub(crate) penalties: Vec<Option<Penalty>>,
    /// For each cell a request that leads to it alone.
    pub(crate) samples: BTreeMap<(usize, String), Asked>,
    pub(crate) seen: Coverage,
}

/// When a decision was asked for and told, and whether the store may have been charged unseen.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    pub(crate) at: u64,
    /// The same by the node's clock, which may have been set meanwhile.
    pub(crate) now: Now,
    pub(crate) ambiguous: bool,
}

impl Oracle {
    /// A node is about to decide.
    pub(crate) fn asked(&mut self, id: u64, node: usize, asked: &Asked, policy: &Policy, now: u64) {
        let dues = asked.dues(policy, self.tick);
        for due in dues.iter().flatten() {
            let alone = Asked { route: 2 + due.limit, ..asked.clone() };
            self.samples.entry((due.limit, due.key.clone())).or_insert(alone);
            if due.variant.algorithm == Algorithm::InFlight {
                let held = self.held.entry((node, due.limit, due.key.clone())).or_default();
                held.insert(id, (due.cost, false));
                continue;
            }
            let from = (self.base + now).saturating_sub(self.slack);
            let entry = Entry::new(id, &due.variant, (from, OPEN), (0, due.cost));
            for place in [Place::Store, Place::Node(node)] {
                let cell = self.cell(place, due);
                cell.slowest.unit = cell.slowest.unit.max(due.variant.unit);
                cell.slowest.step = cell.slowest.step.max(due.variant.step);
            }
            if self.store && !due.refused {
                self.cell(Place::Store, due).entries.push(entry);
            }
        }
        let charged = dues.iter().flatten().map(|_| None).collect();
        let request = Request { node, began: now, dues, charged };
        self.requests.insert(id, request);
    }

    /// The client left before the node had decided.
    pub(crate) fn left(&mut self, id: u64, now: u64) {
        let Some(request) = self.requests.remove(&id) else { return };
        for due in request.dues.iter().flatten() {
            self.release(request.node, due, id);
            let to = self.base + now + TRAVEL + self.slack;
            for entry in self.own(Place::Store, due, id) {
                entry.to = to;
            }
        }
    }

    /// The node has decided.
    pub(crate) fn decided(
        &mut self,
        id: u64,
        told: Told,
        decision: &Decision,
    ) -> Result<(), String> {
        let Some(mut request) = self.requests.remove(&id) else { return Ok(()) };
        let took = told.at - request.began;
        if took > self.timeout + TIMER {
            return Err(format!("deadline: a decision took {} us", took / 1_000));
        }
        self.seen.decided(decision);
        let dues = match &request.dues {
            Ok(dues) => dues.clone(),
            Err(()) => {
                let lacks = matches!(decision.outcome, Outcome::MissingKey { .. });
                return if lacks {
                    Ok(())
                } else {
                    Err("a key is missing, and it passes".to_owned())
                };
            }
        };
        if decision.is_banned() {
            for due in &dues {
                self.release(request.node, due, id);
                self.forget(Place::Store, due, id);
            }
            return self.check_ban(&dues, decision, told.at);
        }
        let refuses = decision.refusing().next().is_some();
        let mut wrong = match decision.outcome {
            Outcome::Limited if !refuses => Err("refused, and no limit refuses".to_owned()),
            _ => Ok(()),
        };
        for (n, due) in dues.iter().enumerate() {
            let answer = decision.verdicts.iter().find(|one| one.limit.0 == due.limit);
            let checked = self.check(id, &request, told, due, answer, decision);
            request.charged[n] = self.charge(id, &request, told, due, answer, decision);
            wrong = wrong.and(checked);
        }
        if decision.outcome == Outcome::Allowed {
            self.requests.insert(id, request);
        }
        wrong
    }

    fn check(
        &self,
        id: u64,
        request: &Request,
        told: Told,
        due: &Due,
        answer: Option<&LimitVerdict>,
        decision: &Decision,
    ) -> Result<(), String> {
        let through = decision.outcome == Outcome::Allowed;
        let who = format!("l{} {}", due.limit, due.key);
        let Some(answer) = answer else {
            // Of a limit that watches the store is asked later; where one refuses, others may not be
            // asked at all.
            let watches = due.shadow || due.rolled_out;
            let fine = !through || (watches && self.store);
            return if fine { Ok(()) } else { Err(format!("{who}: not asked, and it passes")) };
        };
        if due.refused {
            let fine = !answer.verdict.allowed && (!through || answer.shadow);
            return if fine {
                Ok(())
            } else {
                Err(format!("{who}: denied by the file, and passes"))
            };
        }
        if through && answer.refuses() {
            return Err(format!("{who} refuses, and it passes"));
        }
        if due.variant.algorithm == Algorithm::InFlight {
            return self.check_held(id, request, due, answer, through);
        }
        let place = match answer.kind {
            VerdictKind::OverflowAllowed | VerdictKind::OverflowDenied => return Ok(()),
            // A limit that watches does not say whether it was for lack of room.
            VerdictKind::ShadowDenied if self.crowded => return Ok(()),
            VerdictKind::DegradedAllowed | VerdictKind::DegradedDenied => {
                if !self.store {
                    return Err(format!("{who}: degraded without a store"));
                }
                match due.on_failure {
                    OnFailure::Local => Place::Node(request.node),
                    OnFailure::Allow => return Ok(()),
                    OnFailure::Deny => {
                        let fine = decision.outcome == Outcome::Outage;
                        return if fine {
                            Ok(())
                        } else {
                            Err(format!("{who}: an outage is told as {:?}", decision.outcome))
                        };
                    }
                }
            }
            VerdictKind::Allowed | VerdictKind::Denied | VerdictKind::ShadowDenied => self.place(),
        };
        let (lo, hi) = self.interval(place, request, told, due, answer, decision);
        let (least, most) = match self.cells.get(&(place, due.limit, due.key.clone())) {
            None => (0, 0),
            Some(cell) => {
                let others = cell.entries.iter().filter(|one| one.request != id);
                match self.mixed[due.limit] {
                    // Counters of one length begin with those of another: what exactly they begin
                    // with is no promise.
                    true => (0, others.map(|one| u64::from(one.sure + one.maybe)).sum()),
                    false => {
                        let (least, most) = due.variant.spent(others, cell.slowest, lo, hi);
                        let robbed = u64::from(cell.robbed) * due.variant.unit;
                        (least.saturating_sub(robbed), most)
                    }
                }
            }
        };
        // A log that finds no room joins its oldest times, which then count for longer; so does what a
        // bucket remembers.
        let joins = due.variant.algorithm == Algorithm::Log || due.variant.is_bucket();
        let most = if joins && self.crowded { most.max(due.variant.most) } else { most };
        let allowed = answer.verdict.allowed;
        let told = verdict(due, answer, through && allowed, least, most);
        // What delays requests stays charged when another slot refuses, if it was charged by then.
        let may_stay = self.cluster && !through && allowed && due.variant.delays();
        told.or_else(|why| match may_stay {
            true => {
                // A request that is refused does not wait.
                let variant = Variant { full: due.variant.most, ..due.variant };
                verdict(&Due { variant, ..due.clone() }, answer, true, least, most)
            }
            false => Err(why),
        })
        .map_err(|why| format!("{who} at {place:?}: {why}"))
    }

    /// Between which instants the cell was judged, on its own time line.
    fn interval(
        &self,
        place: Place,
        request: &Request,
        told: Told,
        due: &Due,
        answer: &LimitVerdict,
        decision: &Decision,
    ) -> (u64, u64) {
        if place == Place::Store {
            let remembered = if answer.verdict.allowed { 0 } else { REMEMBERED };
            let lo = (self.base + request.began).saturating_sub(self.slack + remembered);
            return (lo, self.base + told.at + self.slack);
        }
        (local(due, decision.at), local(due, told.now))
    }

    fn check_held(
        &self,
        id: u64,
        request: &Request,
        due: &Due,
        answer: &LimitVerdict,
        through: bool,
    ) -> Result<(), String> {
        let who = format!("l{} {} in flight", due.limit, due.key);
        let held = self.held.get(&(request.node, due.limit, due.key.clone()));
        let others = || held.into_iter().flatten().filter(|(other, _)| **other != id);
        let sure: u32 = others().filter(|(_, (_, sure))| *sure).map(|(_, (cost, _))| cost).sum();
        let most: u32 = others().map(|(_, (cost, _))| cost).sum();
        let limit = due.variant.limit;
        // Where it only watches, it holds places above the limit too.
        if answer.verdict.allowed && through && !answer.shadow && sure + due.cost > limit {
            return Err(format!("{who}: bound: {sure} + {} of {limit}", due.cost));
        }
        if !answer.verdict.allowed && most + due.cost <= limit {
            return Err(format!("{who}: false refusal: {most} + {} of {limit}", due.cost));
        }
        Ok(())
    }

    fn check_ban(&mut self, dues: &[Due], decision: &Decision, now: u64) -> Result<(), String> {
        let Some(banned) = decision.verdicts.iter().find(|one| one.banned) else { return Ok(()) };
        let Some(due) = dues.iter().find(|due| due.limit == banned.limit.0) else {
            return Err("banned by a limit that it does not meet".to_owned());
        };
        let Some(Penalty { after, within, .. }) = self.penalties[due.limit] else {
            return Err("banned by a limit without a penalty".to_owned());
        };
        let own =
            self.denials.iter().filter(|(limit, key, _)| *limit == due.limit && *key == due.key);
        let times: Vec<u64> = own.map(|(_, _, at)| *at).collect();
        let enough = times
            .windows(after as usize)
            .any(|some| some[some.len() - 1] - some[0] < within * SECOND + self.timeout + TIMER);
        let count = times.len();
        let who = format!("l{} {}", due.limit, due.key);
        if enough { Ok(()) } else { Err(format!("{who}: banned after {count} denials at {now}")) }
    }

    /// How far a window may lie ahead of the clock, which was set back: what comes then is counted
    /// in that one.
    pub(crate) fn ahead(&self, node: usize, due: &Due) -> u64 {
        match due.variant.algorithm {
            Algorithm::Fixed | Algorithm::Sliding => self.back[node],
            _ => 0,
        }
    }

    pub(crate) const fn place(&self) -> Place {
        if self.store { Place::Store } else { Place::Node(0) }
    }

    pub(crate) fn cell(&mut self, place: Place, due: &Due) -> &mut Charges {
        self.cells.entry((place, due.limit, due.key.clone())).or_default()
    }

    pub(crate) fn own(
        &mut self,
        place: Place,
        due: &Due,
        id: u64,
    ) -> impl Iterator<Item = &mut Entry> {
        let cell = self.cells.get_mut(&(place, due.limit, due.key.clone()));
        cell.into_iter()
            .flat_map(|cell| cell.entries.iter_mut())
            .filter(move |one| one.request == id)
    }

    pub(super) fn forget(&mut self, place: Place, due: &Due, id: u64) {
        if let Some(cell) = self.cells.get_mut(&(place, due.limit, due.key.clone())) {
            cell.entries.retain(|one| one.request != id);
        }
    }

    pub(crate) fn release(&mut self, node: usize, due: &Due, id: u64) {
        if let Some(held) = self.held.get_mut(&(node, due.limit, due.key.clone())) {
            held.remove(&id);
        }
    }
}

/// An instant at which a node judged by itself, on the time line of the algorithm.
pub(crate) fn local(due: &Due, at: Now) -> u64 {
    match due.variant.algorithm {
        Algorithm::Fixed | Algorithm::Sliding => at.wall.get(),
        _ => at.mono.get(),
    }
}
