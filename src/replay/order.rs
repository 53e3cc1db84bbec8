//! Puts the requests of logs into the order in which they were judged.
//!
//! A server writes a line when a request ends, and several logs are read at once. A bounded number of requests waits here, so a
//! line may come that much too late. A long request whose line comes later still is judged at the time of the last one; a line that
//! is out of order is not judged, because among the requests of another time its verdict would be another one. Both are counted. tollgate's own log has the order of each process; requests of several processes, and of other servers, are in
//! the order of their times.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::entry::{Lateness, LogEntry};
use crate::clock::Nanos;

/// Requests that wait: about 100 MB of lines of ordinary length.
pub const MAX_WAITING: usize = 200_000;

/// Bytes of requests that wait. Where lines are longer, fewer wait.
const MAX_WAITING_BYTES: usize = 192 << 20;

/// Processes whose order is kept at a time. The requests of more are in the order of their times.
const MAX_RUNS: usize = 256;

/// Requests in the order in which they were judged.
pub struct Ordering {
    /// Requests of tollgate's own log, by the name of the process.
    runs: HashMap<Box<str>, WaitingEntries>,
    /// All others, by time.
    timed: WaitingEntries,
    waiting: usize,
    waiting_bytes: usize,
    max_waiting: usize,
    arrived: u64,
    /// When the last one that was given out began.
    given: Nanos,
    /// The position of the last one of each process that was given out.
    given_of_runs: HashMap<Box<str>, u64>,
    counts: OrderCounts,
}

/// Requests that are not in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderCounts {
    /// Requests that came too late to be judged in order.
    pub late: u64,
    /// Requests of tollgate's own log that came twice, and are judged once.
    pub repeated: u64,
}

/// Requests that wait, by their order in their process, or by their time; and then by when they came. Logs are nearly in order, so
/// a tree is asked at its two ends, which stay in the processor's cache; a heap is not.
type WaitingEntries = BTreeMap<(u64, u64), Box<LogEntry>>;

impl Ordering {
    /// An empty order in which this many requests wait at a time.
    pub fn new(max_waiting: usize) -> Self {
        Self {
            runs: HashMap::new(),
            timed: WaitingEntries::new(),
            waiting: 0,
            waiting_bytes: 0,
            max_waiting: max_waiting.max(1),
            arrived: 0,
            given: Nanos::ZERO,
            given_of_runs: HashMap::new(),
            counts: OrderCounts::default(),
        }
    }

    /// Adds a request. Returns the first one, if more would wait than may.
    pub fn push(&mut self, mut entry: Box<LogEntry>) -> Option<Box<LogEntry>> {
        if self.is_repeated(&entry) {
            self.counts.repeated += 1;
            return None;
        }
        entry.lateness = self.lateness(&entry);
        self.counts.late += u64::from(entry.lateness != Lateness::InTime);
        let arrived = self.arrived;
        self.arrived += 1;
        self.waiting += 1;
        self.waiting_bytes += entry.bytes();
        let has_room = self.runs.len() < MAX_RUNS;
        let ordered = entry.trace.as_ref().map(|trace| (trace.run.clone(), trace.order));
        match ordered {
            Some((run, order)) if has_room || self.runs.contains_key(run.as_str()) => {
                let run = self.runs.entry(run.into_boxed_str()).or_default();
                run.insert((order, arrived), entry);
            }
            Some(_) | None => {
                self.timed.insert((entry.at.wall.get(), arrived), entry);
            }
        }
        let is_full = self.waiting > self.max_waiting || self.waiting_bytes > MAX_WAITING_BYTES;
        if is_full { self.pop() } else { None }
    }

    /// The first of those that wait.
    pub fn pop(&mut self) -> Option<Box<LogEntry>> {
        let (_, entry) = match self.first_run() {
            Some(run) => {
                let waiting = self.runs.get_mut(&*run)?;
                let first = waiting.pop_first();
                if waiting.is_empty() {
                    self.runs.remove(&*run);
                }
                first
            }
            None => self.timed.pop_first(),
        }?;
        self.waiting -= 1;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(entry.bytes());
        self.given = self.given.max(entry.at.wall);
        if let Some(trace) = &entry.trace {
            let has_room = self.given_of_runs.len() < MAX_RUNS;
            match self.given_of_runs.get_mut(trace.run.as_str()) {
                Some(last) => *last = trace.order.max(*last),
                None if has_room => {
                    self.given_of_runs.insert(trace.run.as_str().into(), trace.order);
                }
                None => {}
            }
        }
        Some(entry)
    }

    /// The process whose request is next, if it is one of tollgate's own log.
    fn first_run(&self) -> Option<Box<str>> {
        if self.runs.is_empty() {
            return None;
        }
        let first =
            |waiting: &WaitingEntries| waiting.first_key_value().map(|(_, entry)| entry.at.wall);
        let begins = self.runs.iter().map(|(run, waiting)| (run, first(waiting)));
        let (run, begins) = begins.min_by_key(|(_, at)| *at)?;
        let is_next = first(&self.timed).is_none_or(|timed| begins.is_some_and(|at| at <= timed));
        is_next.then(|| run.clone())
    }

    /// Whether requests that come after this one have been given out.
    fn lateness(&self, entry: &LogEntry) -> Lateness {
        let is_late = match &entry.trace {
            Some(trace) => {
                self.given_of_runs.get(trace.run.as_str()).is_some_and(|last| trace.order < *last)
            }
            None => entry.at.wall < self.given,
        };
        match (is_late, entry.end() >= self.given) {
            (false, _) => Lateness::InTime,
            (true, true) => Lateness::Long,
            (true, false) => Lateness::OutOfOrder,
        }
    }

    /// Whether the same request of tollgate's own log waits, or was the last of its process to be given out. Two files that
    /// overlap are merged by time, so a line that stands in both comes twice in a row.
    fn is_repeated(&self, entry: &LogEntry) -> bool {
        let Some(trace) = &entry.trace else {
            return false;
        };
        let run = trace.run.as_str();
        let same = (trace.order, 0)..=(trace.order, u64::MAX);
        self.given_of_runs.get(run) == Some(&trace.order)
            || self.runs.get(run).is_some_and(|run| run.range(same).next().is_some())
    }

    /// How many requests were not in order.
    pub const fn counts(&self) -> OrderCounts {
        self.counts
    }
}
