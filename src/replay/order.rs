//! Puts the requests of logs into the order in which they were judged.
//!
//! A server writes a line when a request ends, and several logs are read at once. A bounded number of requests waits here, so a
//! line may come that much too late. One that comes later still is judged at once, at the time that the clock of the log shows,
//! and counted. tollgate's own log has the order of each process; requests of several processes, and of other servers, are in
//! the order of their times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use super::entry::LogEntry;
use crate::clock::Nanos;

/// Requests that wait: about 100 MB of lines of ordinary length.
pub const MAX_WAITING: usize = 200_000;

/// Processes whose order is kept at a time. The requests of more are in the order of their times.
const MAX_RUNS: usize = 256;

/// Requests in the order in which they were judged.
pub struct Ordering {
    /// Requests of tollgate's own log, by the name of the process.
    runs: HashMap<Box<str>, BinaryHeap<Reverse<WaitingEntry>>>,
    /// All others, by time.
    timed: BinaryHeap<Reverse<WaitingEntry>>,
    waiting: usize,
    max_waiting: usize,
    arrived: u64,
    /// When the last one that was given out began.
    given: Nanos,
    /// The position of the last one of each process that was given out.
    given_of_runs: HashMap<Box<str>, u64>,
    late: u64,
}

/// A request that waits, by its order in its process, or by its time.
struct WaitingEntry {
    rank: (u64, u64),
    entry: Box<LogEntry>,
}

impl Ordering {
    /// An empty order in which this many requests wait at a time.
    pub fn new(max_waiting: usize) -> Self {
        Self {
            runs: HashMap::new(),
            timed: BinaryHeap::new(),
            waiting: 0,
            max_waiting: max_waiting.max(1),
            arrived: 0,
            given: Nanos::ZERO,
            given_of_runs: HashMap::new(),
            late: 0,
        }
    }

    /// Adds a request. Returns the first one, if more would wait than may.
    pub fn push(&mut self, mut entry: Box<LogEntry>) -> Option<Box<LogEntry>> {
        entry.is_late = self.is_late(&entry);
        self.late += u64::from(entry.is_late);
        let arrived = self.arrived;
        self.arrived += 1;
        self.waiting += 1;
        let waits =
            |position: u64, entry| Reverse(WaitingEntry { rank: (position, arrived), entry });
        let has_room = self.runs.len() < MAX_RUNS;
        let ordered = entry.trace.as_ref().map(|trace| (trace.run.clone(), trace.order));
        match ordered {
            Some((run, order)) if has_room || self.runs.contains_key(run.as_str()) => {
                self.runs.entry(run.into_boxed_str()).or_default().push(waits(order, entry));
            }
            Some(_) | None => self.timed.push(waits(entry.at.wall.get(), entry)),
        }
        if self.waiting > self.max_waiting { self.pop() } else { None }
    }

    /// The first of those that wait.
    pub fn pop(&mut self) -> Option<Box<LogEntry>> {
        let entry = match self.first_run() {
            Some(run) => {
                let heap = self.runs.get_mut(&*run)?;
                let entry = heap.pop();
                if heap.is_empty() {
                    self.runs.remove(&*run);
                }
                entry
            }
            None => self.timed.pop(),
        };
        let entry = entry.map(|Reverse(waiting)| waiting.entry)?;
        self.waiting -= 1;
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
        let first = |heap: &BinaryHeap<Reverse<WaitingEntry>>| {
            heap.peek().map(|Reverse(waiting)| waiting.entry.at.wall)
        };
        let (run, begins) =
            self.runs.iter().map(|(run, heap)| (run, first(heap))).min_by_key(|(_, at)| *at)?;
        let is_next = first(&self.timed).is_none_or(|timed| begins.is_some_and(|at| at <= timed));
        is_next.then(|| run.clone())
    }

    /// Whether a request that comes after this one has been given out.
    fn is_late(&self, entry: &LogEntry) -> bool {
        match &entry.trace {
            Some(trace) => {
                self.given_of_runs.get(trace.run.as_str()).is_some_and(|last| trace.order < *last)
            }
            None => entry.at.wall < self.given,
        }
    }

    /// Requests that came too late to be judged in order.
    pub const fn late(&self) -> u64 {
        self.late
    }
}

impl PartialEq for WaitingEntry {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl Eq for WaitingEntry {}

impl PartialOrd for WaitingEntry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WaitingEntry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}
