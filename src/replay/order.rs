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
    /// By the name of the process; the others have none.
    runs: HashMap<Box<str>, BinaryHeap<Reverse<WaitingEntry>>>,
    waiting: usize,
    max_waiting: usize,
    arrived: u64,
    /// When the last one that was given out began.
    given: Nanos,
    late: u64,
}

/// A request that waits, by its order in its process, or by its time.
struct WaitingEntry {
    rank: (u64, u64),
    entry: LogEntry,
}

impl Ordering {
    /// An empty order in which this many requests wait at a time.
    pub fn new(max_waiting: usize) -> Self {
        Self {
            runs: HashMap::new(),
            waiting: 0,
            max_waiting: max_waiting.max(1),
            arrived: 0,
            given: Nanos::ZERO,
            late: 0,
        }
    }

    /// Adds a request. Returns the first one, if more would wait than may.
    pub fn push(&mut self, entry: LogEntry) -> Option<LogEntry> {
        let (run, position) = match &entry.trace {
            Some(trace) if self.runs.len() < MAX_RUNS || self.runs.contains_key(&*trace.run) => {
                (trace.run.as_str(), trace.order)
            }
            Some(_) | None => {
                self.late += u64::from(entry.at.wall < self.given);
                ("", entry.at.wall.get())
            }
        };
        let rank = (position, self.arrived);
        self.arrived += 1;
        self.waiting += 1;
        match self.runs.get_mut(run) {
            Some(heap) => heap.push(Reverse(WaitingEntry { rank, entry })),
            None => {
                let run = Box::from(run);
                self.runs
                    .insert(run, BinaryHeap::from_iter([Reverse(WaitingEntry { rank, entry })]));
            }
        }
        if self.waiting > self.max_waiting { self.pop() } else { None }
    }

    /// The first of those that wait.
    pub fn pop(&mut self) -> Option<LogEntry> {
        let first = |heap: &BinaryHeap<Reverse<WaitingEntry>>| {
            heap.peek().map(|Reverse(waiting)| waiting.entry.at.wall)
        };
        let (run, heap) = self.runs.iter_mut().min_by_key(|(_, heap)| first(heap))?;
        let entry = heap.pop().map(|Reverse(waiting)| waiting.entry)?;
        if heap.is_empty() {
            let run = run.clone();
            self.runs.remove(&run);
        }
        self.waiting -= 1;
        self.given = self.given.max(entry.at.wall);
        Some(entry)
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
