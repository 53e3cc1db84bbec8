//! Requests that have been judged and have not ended: their answers, the rest of them, and their ends, in order.
//!
//! tollgate's own log has the order of these events in their process; they are settled before the first request that came after
//! them in that order. All other events are settled at their times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use hashbrown::HashMap;

use super::entry::LogEntry;
use crate::clock::{Nanos, Now};
use crate::engine::{
    AnsweredBy, Decision, Engine, Generation, Outcome, PendingSettlement, RequestTrace,
    TracedAnswer, TracedCosts,
};

/// Open requests that are kept. A hostile log could have any number of requests without end; the one that would end first is
/// ended early then, and counted.
const MAX_OPEN: usize = 100_000;

/// Processes whose events are settled in their order at a time; those of more are settled at their times. Each is looked at for every
/// request of another.
const MAX_ORDERED_RUNS: usize = 64;

/// The open requests of one policy.
#[derive(Default)]
pub(super) struct OpenRequests {
    requests: HashMap<u64, OpenRequest>,
    /// By time.
    timed: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    /// By process and by order in it.
    ordered: HashMap<Box<str>, BTreeMap<u64, (u64, Event)>>,
    next: u64,
    ended_early: u64,
}

/// One open request.
pub(super) struct OpenRequest {
    pub(super) decision: Decision,
    pub(super) pending: PendingSettlement,
    /// The answer, until it is settled; `None` too if there was none.
    answer: Option<TracedAnswer>,
    /// The costs in the rest of the answer, until they are settled.
    rest: Option<TracedCosts>,
    at: Now,
    /// When it is judged, on the time line of the replay.
    mono: Nanos,
    schedule: Schedule,
}

/// When the events of a request are settled.
struct Schedule {
    run: Option<Box<str>>,
    answered: Option<EventTime>,
    rest: Option<EventTime>,
    end: EventTime,
}

/// When an event is settled: after this time since the request was judged, and in this order of the process if it is known.
#[derive(Clone, Copy)]
struct EventTime {
    after: Nanos,
    order: Option<u64>,
}

/// What happens to an open request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// Its delay is over.
    DelayEnds,
    /// The head of its answer comes.
    Answered,
    /// The rest of its answer has come.
    RestEnds,
    /// It ends.
    Ends,
}

/// An event that is to be settled now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settling {
    pub(super) request: u64,
    pub(super) event: Event,
    pub(super) at: Now,
}

impl OpenRequest {
    /// A request that was judged.
    pub(super) fn new(decision: Decision, pending: PendingSettlement, entry: &LogEntry) -> Self {
        let trace = entry.trace.as_deref();
        let rest = trace.and_then(|trace| trace.end.as_ref());
        let answer = answer(entry);
        let order = |order: u64| (order > 0).then_some(order);
        let answered = answer.as_ref().map(|answer| EventTime {
            after: Nanos::new(answer.after),
            order: order(answer.order),
        });
        let schedule = Schedule {
            run: trace.map(|trace| trace.run.as_str().into()),
            answered,
            rest: rest
                .map(|rest| EventTime { after: Nanos::new(rest.after), order: order(rest.order) }),
            end: EventTime {
                after: entry.duration.unwrap_or_default(),
                order: trace.and_then(|trace| trace.ended),
            },
        };
        Self {
            at: entry.at,
            mono: decision.at.mono,
            rest: rest.map(|rest| rest.costs.clone()),
            answer,
            decision,
            pending,
            schedule,
        }
    }

    /// Settles the head of the answer, unless it is settled.
    pub(super) fn settle_answer(&mut self, engine: &Engine, generation: &Generation) {
        let Some(answer) = self.answer.take() else {
            return;
        };
        engine.finish_logged(generation, &mut self.decision, &mut self.pending, &answer);
        if self.rest.is_none() {
            // The log does not have what the rest of the answer says.
            self.rest = Some(TracedCosts::default());
            self.settle_rest(engine, generation);
        }
    }

    /// Settles the rest of the answer, unless it is settled.
    pub(super) fn settle_rest(&mut self, engine: &Engine, generation: &Generation) {
        if let Some(rest) = self.rest.take() {
            engine.finish_rest_logged(generation, &mut self.decision, &mut self.pending, &rest);
        }
    }

    /// The time of an event, on the time line of the replay.
    fn time_of(&self, event: Event) -> Now {
        let time = match event {
            Event::DelayEnds => None,
            Event::Answered => self.schedule.answered,
            Event::RestEnds => self.schedule.rest,
            Event::Ends => Some(self.schedule.end),
        };
        let after = time.map_or_else(|| self.decision.wait(), |time| time.after);
        Now { mono: self.mono.saturating_add(after), wall: self.at.wall.saturating_add(after) }
    }
}

/// The answer that a log has. For a policy that depends on the answer though the proxy's own did not, it is the logged status,
/// from the origin, at the end of the request.
fn answer(entry: &LogEntry) -> Option<TracedAnswer> {
    let traced = entry.trace.as_ref().and_then(|trace| trace.answer.clone());
    traced.or_else(|| {
        // tollgate writes 0 for a request whose client left before there was an answer.
        let status = entry.status.filter(|status| *status != 0)?;
        Some(TracedAnswer {
            after: entry.duration.unwrap_or_default().get(),
            order: 0,
            status,
            by: AnsweredBy::Origin,
            costs: TracedCosts::default(),
        })
    })
}

/// Whether anything of a request is open after it was judged.
pub(super) fn is_open(decision: &Decision, pending: &PendingSettlement) -> bool {
    decision.outcome == Outcome::Allowed && pending.is_open()
}

impl OpenRequests {
    /// Keeps a request that is open.
    pub(super) fn keep(&mut self, open: OpenRequest) {
        let id = self.next;
        self.next += 1;
        if open.decision.wait() > Nanos::ZERO {
            self.add(id, &open, Event::DelayEnds, None);
        }
        if open.pending.awaits_response() {
            if let Some(answered) = open.schedule.answered {
                self.add(id, &open, Event::Answered, answered.order);
            }
            if let Some(rest) = open.schedule.rest {
                self.add(id, &open, Event::RestEnds, rest.order);
            }
        }
        let order = open.schedule.end.order;
        // Without a slot its end changes nothing, but what is open is kept until then.
        self.add(id, &open, Event::Ends, order.filter(|_| open.pending.holds_slots()));
        self.requests.insert(id, open);
    }

    fn add(&mut self, id: u64, open: &OpenRequest, event: Event, order: Option<u64>) {
        let has_room = self.ordered.len() < MAX_ORDERED_RUNS;
        match (&open.schedule.run, order) {
            (Some(run), Some(order)) if has_room || self.ordered.contains_key(run) => {
                let of_run = match self.ordered.get_mut(run) {
                    Some(of_run) => of_run,
                    None => self.ordered.entry(run.clone()).or_default(),
                };
                of_run.insert(order, (id, event));
            }
            (_, _) => self.timed.push(Reverse((open.time_of(event).wall, id, event))),
        }
    }

    /// The next event before a request that begins at this time, with this trace.
    pub(super) fn next_before(
        &mut self,
        begins: Nanos,
        trace: Option<&RequestTrace>,
    ) -> Option<Settling> {
        if let Some(trace) = trace
            && let Some(events) = self.ordered.get_mut(trace.run.as_str())
            && let Some(first) = events.first_entry()
            && *first.key() < trace.order
        {
            let (request, event) = first.remove();
            return Some(self.settling(request, event));
        }
        if let Some(settling) = self.next_of_other_runs(begins, trace) {
            return Some(settling);
        }
        let Reverse((at, _, _)) = self.timed.peek()?;
        if *at > begins { None } else { self.pop_timed() }
    }

    /// The next event of a process other than that of the trace, by time: their orders cannot be compared.
    fn next_of_other_runs(
        &mut self,
        begins: Nanos,
        trace: Option<&RequestTrace>,
    ) -> Option<Settling> {
        let own = trace.map(|trace| trace.run.as_str());
        self.ordered.retain(|run, events| !events.is_empty() || Some(&**run) == own);
        let mut others = self.ordered.iter_mut().filter(|(run, _)| Some(&***run) != own);
        let requests = &self.requests;
        let (request, event) = others.find_map(|(_, events)| {
            let first = events.first_entry()?;
            let (request, event) = *first.get();
            let at = requests.get(&request).map(|open| open.time_of(event).wall);
            at.is_none_or(|at| at <= begins).then(|| first.remove())
        })?;
        Some(self.settling(request, event))
    }

    /// The next of all events that are left.
    pub(super) fn next_left(&mut self) -> Option<Settling> {
        loop {
            let Some(run) = self.ordered.keys().next().cloned() else {
                return self.pop_timed();
            };
            match self.ordered.get_mut(&run).and_then(BTreeMap::pop_first) {
                Some((_, (request, event))) => return Some(self.settling(request, event)),
                None => drop(self.ordered.remove(&run)),
            }
        }
    }

    /// The event that is settled early, if too many requests are open.
    pub(super) fn surplus(&mut self) -> Option<Settling> {
        if self.requests.len() <= MAX_OPEN {
            return None;
        }
        let settling = self.next_left();
        let ends = settling.is_some_and(|settling| settling.event == Event::Ends);
        self.ended_early += u64::from(ends);
        settling
    }

    /// An open request.
    pub(super) fn request(&mut self, id: u64) -> Option<&mut OpenRequest> {
        self.requests.get_mut(&id)
    }

    /// Ends a request.
    pub(super) fn end(&mut self, id: u64) {
        self.requests.remove(&id);
    }

    pub(super) const fn ended_early(&self) -> u64 {
        self.ended_early
    }

    fn pop_timed(&mut self) -> Option<Settling> {
        let Reverse((_, request, event)) = self.timed.pop()?;
        Some(self.settling(request, event))
    }

    fn settling(&self, request: u64, event: Event) -> Settling {
        // An event of a request that has ended changes nothing, whatever its time.
        let ended = Now { mono: Nanos::ZERO, wall: Nanos::ZERO };
        let at = self.requests.get(&request).map_or(ended, |open| open.time_of(event));
        Settling { request, event, at }
    }
}
