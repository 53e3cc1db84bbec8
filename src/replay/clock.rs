//! The time of a log: the clock of the engine that replays it, and the line on which the monotonic readings of processes stand.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;

use crate::clock::{Clock, Nanos, Now};

/// A clock that stands at the time of the event that is settled. Events of several threads of a process are in the order in which
/// they happened, so it may run back by a moment, as the readings of those threads did.
#[derive(Debug, Default)]
pub(super) struct LogClock {
    mono: AtomicU64,
    wall: AtomicU64,
}

impl LogClock {
    /// Goes to this time.
    pub(super) fn go_to(&self, at: Now) {
        self.mono.store(at.mono.get(), Ordering::Relaxed);
        self.wall.store(at.wall.get(), Ordering::Relaxed);
    }
}

impl Clock for LogClock {
    fn now(&self) -> Now {
        Now {
            mono: Nanos::new(self.mono.load(Ordering::Relaxed)),
            wall: Nanos::new(self.wall.load(Ordering::Relaxed)),
        }
    }

    fn date(&self, at: Now) -> Nanos {
        at.wall
    }
}

/// Processes whose readings can be put on the line at a time. A log of years has fewer restarts.
const MAX_RUNS: usize = 10_000;

/// The monotonic line of a replay.
///
/// Some algorithms divide the line into steps that begin at its zero, so the readings of the first process stand on it as they
/// are. Those of other processes, which begin to count anew, and times without a reading follow by the wall clock.
#[derive(Debug, Default)]
pub(super) struct TimeLine {
    /// What is added to a wall time; known with the first request.
    from_wall: Option<i128>,
    /// What is added to the readings of each process.
    runs: HashMap<Box<str>, i128>,
}

impl TimeLine {
    /// Where a wall time without a reading stands.
    pub(super) fn position_of_wall(&mut self, wall: Nanos) -> Nanos {
        let from_wall = *self.from_wall.get_or_insert(0);
        moved(wall, from_wall)
    }

    /// Processes whose readings stand on it.
    pub(super) fn processes(&self) -> usize {
        self.runs.len()
    }

    /// Where a reading of this process stands.
    pub(super) fn position(&mut self, run: &str, at: Now) -> Nanos {
        if let Some(offset) = self.runs.get(run) {
            return moved(at.mono, *offset);
        }
        let (mono, wall) = (i128::from(at.mono.get()), i128::from(at.wall.get()));
        let from_wall = *self.from_wall.get_or_insert(mono - wall);
        let offset = wall + from_wall - mono;
        if self.runs.len() >= MAX_RUNS {
            self.runs.clear();
        }
        self.runs.insert(run.into(), offset);
        moved(at.mono, offset)
    }
}

/// A reading, moved by an offset; the line begins at zero.
fn moved(reading: Nanos, offset: i128) -> Nanos {
    let moved = i128::from(reading.get()).saturating_add(offset).max(0);
    Nanos::new(u64::try_from(moved).unwrap_or(u64::MAX))
}
