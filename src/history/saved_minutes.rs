//! Minutes as bytes, for a state directory.
//!
//! A minute has the number of the monotonic clock, which the next process continues, so nothing is converted while the
//! clocks of the machine are left alone. Minutes begin with those of the dates; when the date was set between two
//! processes, they begin elsewhere, and the minutes of the process before count as the nearest ones of the new grid:
//!
//! ```text
//!   before     |  7  |  8  |  9  |          the date is set by 20 seconds while nothing runs
//!   after        |  7  |  8  |  9  | 10  |   each minute moves by less than half a minute
//! ```
//!
//! Bytes come from outside, so a payload that no process can have written is left out, and what is kept of the others is
//! bounded: the names and minutes of one day.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::{
    KeptMinutes, LIMIT_COUNTS, MAX_LIMITS, MAX_ROUTES, MINUTE, MINUTES, OTHERS, ROUTE_COUNTS,
    TrafficHistory,
};
use crate::clock::Nanos;

/// Minutes in one payload: less than a megabyte, if all routes and limits count in each.
const PAYLOAD_MINUTES: usize = 60;

/// The longest name in a payload, in bytes. A configuration allows 64.
const MAX_NAME: usize = 256;

/// Minutes that may lie ahead of the present one, moved there from another grid. They are shown as the present one until
/// it is as far.
const MAX_AHEAD: u64 = 2;

/// Some minutes, each with all its numbers.
#[derive(Serialize, Deserialize)]
struct MinutesRecord {
    /// The time by which minutes begin earlier than those of the monotonic clock.
    phase: Nanos,
    /// How many numbers each route and each limit has. More may be added behind them.
    route_counts: u8,
    limit_counts: u8,
    routes: Vec<String>,
    limits: Vec<String>,
    minutes: Vec<MinuteRecord>,
}

#[derive(Serialize, Deserialize)]
struct MinuteRecord {
    number: u64,
    /// The index of a name, and its numbers; again and again.
    routes: Vec<u32>,
    limits: Vec<u32>,
}

/// Names by their index in a payload.
#[derive(Default)]
struct NameList {
    names: Vec<String>,
    indexes: HashMap<Arc<str>, u32>,
}

impl NameList {
    fn flattened<const N: usize>(&mut self, numbers: &[(Arc<str>, [u32; N])]) -> Vec<u32> {
        let mut flat = Vec::with_capacity(numbers.len() * (N + 1));
        for (name, counts) in numbers {
            let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
            let index = *self.indexes.entry(Arc::clone(name)).or_insert(next);
            if index == next {
                self.names.push(name.to_string());
            }
            flat.push(index);
            flat.extend(counts);
        }
        flat
    }
}

impl TrafficHistory {
    /// Calls `add` with the payloads of the minutes that have ended since the last call, or of all.
    pub fn save(&self, all: bool, mut add: impl FnMut(&[u8])) {
        let mut first = if all { Some(0) } else { self.take_unsaved() };
        while let Some(from) = first {
            // The lock is held for one payload at a time: operators read meanwhile.
            let payload;
            (payload, first) = match &*self.0.lock() {
                Some(kept) => kept.payload(from),
                None => return,
            };
            if let Some(payload) = payload {
                add(&payload);
            }
        }
    }

    /// All minutes have to be saved again.
    pub fn set_unsaved(&self) {
        if let Some(kept) = self.0.lock().as_mut() {
            kept.unsaved_from = Some(0);
        }
    }

    /// The first minute that has ended since the last call.
    fn take_unsaved(&self) -> Option<u64> {
        self.0.lock().as_mut()?.unsaved_from.take()
    }

    /// Begins to read what was saved. `date`: that of `now` (monotonic).
    pub fn restorer(&self, now: Nanos, date: Nanos) -> RestoredMinutes {
        let mut kept = self.0.lock();
        let kept = kept.get_or_insert_with(|| KeptMinutes::new(now, date));
        RestoredMinutes {
            present: (kept.phase, kept.minute_of(now)),
            phase: kept.phase,
            minutes: BTreeMap::new(),
            names: [HashMap::new(), HashMap::new()],
            unreadable: 0,
        }
    }

    /// Adds what was read. Minutes that lie in the future or more than a day back are left out.
    pub fn restore(&self, mut restored: RestoredMinutes) {
        let mut kept = self.0.lock();
        let Some(kept) = kept.as_mut() else {
            return;
        };
        restored.move_to(kept.phase);
        let present = kept.minute.max(restored.present.1);
        let oldest = (present + 1).saturating_sub(MINUTES as u64);
        for (number, SavedMinute { routes, limits }) in restored.minutes {
            if (oldest..=present + MAX_AHEAD).contains(&number) {
                kept.routes.add(number, oldest, routes);
                kept.limits.add(number, oldest, limits);
            }
        }
    }
}

impl KeptMinutes {
    /// The payload of the minutes from this one on, if there are any; and where the next one begins.
    fn payload(&self, from: u64) -> (Option<Vec<u8>>, Option<u64>) {
        let (mut routes, mut limits) = (NameList::default(), NameList::default());
        let (mut minutes, mut next) = (Vec::new(), None);
        let oldest = (self.minute + 1).saturating_sub(MINUTES as u64);
        for number in from.max(oldest)..=self.minute + MAX_AHEAD {
            if minutes.len() == PAYLOAD_MINUTES {
                next = Some(number);
                break;
            }
            let (of_routes, of_limits) = (self.routes.minute(number), self.limits.minute(number));
            if !of_routes.is_empty() || !of_limits.is_empty() {
                minutes.push(MinuteRecord {
                    number,
                    routes: routes.flattened(&of_routes),
                    limits: limits.flattened(&of_limits),
                });
            }
        }
        if minutes.is_empty() {
            return (None, next);
        }
        let record = MinutesRecord {
            phase: self.phase,
            route_counts: ROUTE_COUNTS.len() as u8,
            limit_counts: LIMIT_COUNTS.len() as u8,
            routes: routes.names,
            limits: limits.names,
            minutes,
        };
        (postcard::to_stdvec(&record).ok(), next)
    }
}

struct SavedMinute {
    routes: Vec<(Arc<str>, [u32; ROUTE_COUNTS.len()])>,
    limits: Vec<(Arc<str>, [u32; LIMIT_COUNTS.len()])>,
}

/// Minutes that were read and are not in the history yet. Payloads are read in their order: a later one replaces what an
/// earlier one says of the same minute.
pub struct RestoredMinutes {
    /// Where minutes begin in this process, and the number of the present one.
    present: (Nanos, u64),
    /// Where those that were read begin.
    phase: Nanos,
    minutes: BTreeMap<u64, SavedMinute>,
    /// Names of routes, and of limits, that minutes refer to.
    names: [HashMap<String, Arc<str>>; 2],
    unreadable: u64,
}

impl RestoredMinutes {
    /// Reads a payload.
    pub fn read(&mut self, payload: &[u8]) {
        let Some(record) = postcard::from_bytes::<MinutesRecord>(payload).ok().filter(is_bounded)
        else {
            self.unreadable += 1;
            return;
        };
        self.move_to(Nanos::new(record.phase.get() % MINUTE.get()));
        let [routes, limits] = &mut self.names;
        let routes = known_names(routes, MAX_ROUTES, &record.routes);
        let limits = known_names(limits, MAX_LIMITS, &record.limits);
        // A minute near an end of the day may still move.
        let present = moved(self.present.1, minutes_between(self.present.0, self.phase));
        let first = present.saturating_sub(MINUTES as u64 + MAX_AHEAD);
        for minute in record.minutes {
            let numbers = (
                numbers(&minute.routes, record.route_counts, &routes),
                numbers(&minute.limits, record.limit_counts, &limits),
            );
            match numbers {
                (Some(routes), Some(limits)) => {
                    if (first..=present + 2 * MAX_AHEAD).contains(&minute.number) {
                        self.minutes.insert(minute.number, SavedMinute { routes, limits });
                    }
                }
                _ => self.unreadable += 1,
            }
        }
    }

    /// How many minutes were read.
    pub fn count(&self) -> usize {
        self.minutes.len()
    }

    /// Payloads and minutes that no process can have written.
    pub const fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Counts the minutes as those that begin with another phase.
    fn move_to(&mut self, phase: Nanos) {
        let shift = minutes_between(self.phase, phase);
        self.phase = phase;
        if shift != 0 {
            let minutes = std::mem::take(&mut self.minutes).into_iter();
            self.minutes = minutes.map(|(number, minute)| (moved(number, shift), minute)).collect();
        }
    }
}

/// The minutes by which numbers of one phase are to be moved to be those of another: minus one, zero or one.
fn minutes_between(from: Nanos, to: Nanos) -> i64 {
    let minute = MINUTE.get().cast_signed();
    let difference = to.get().cast_signed() - from.get().cast_signed();
    (difference + minute / 2).div_euclid(minute)
}

const fn moved(number: u64, shift: i64) -> u64 {
    number.saturating_add_signed(shift)
}

fn is_bounded(record: &MinutesRecord) -> bool {
    let MinutesRecord { routes, limits, minutes, .. } = record;
    let is_named = |names: &[String], max: usize| {
        names.len() <= max + 1 && names.iter().all(|name| name.len() <= MAX_NAME)
    };
    minutes.len() <= PAYLOAD_MINUTES && is_named(routes, MAX_ROUTES) && is_named(limits, MAX_LIMITS)
}

/// The names of a payload, each kept once. Beyond the most names of a day, they count as the others.
fn known_names(
    known: &mut HashMap<String, Arc<str>>,
    max: usize,
    names: &[String],
) -> Vec<Arc<str>> {
    let name = |name: &String| match known.get(name) {
        Some(known) => Arc::clone(known),
        None if known.len() > max => Arc::from(OTHERS),
        None => {
            let shared: Arc<str> = name.as_str().into();
            known.insert(name.clone(), Arc::clone(&shared));
            shared
        }
    };
    names.iter().map(name).collect()
}

/// The numbers of one minute by name. `None`: no process writes them so.
fn numbers<const N: usize>(
    flat: &[u32],
    counts: u8,
    names: &[Arc<str>],
) -> Option<Vec<(Arc<str>, [u32; N])>> {
    let width = usize::from(counts) + 1;
    if !flat.len().is_multiple_of(width) || flat.len() / width > names.len() {
        return None;
    }
    let numbers = flat.chunks_exact(width).map(|chunk| {
        let (index, counts) = chunk.split_first()?;
        let name = names.get(usize::try_from(*index).ok()?)?;
        // Numbers that a later version adds are not known here; those that an earlier one lacked were zero.
        let counts = std::array::from_fn(|at| counts.get(at).copied().unwrap_or(0));
        Some((Arc::clone(name), counts))
    });
    numbers.collect()
}
