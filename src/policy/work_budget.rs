//! How much work the conditions of one request may be, whatever the policy and the values are.
//!
//! Work is counted before or while it is done, in units of some nanoseconds: a byte that is read, a state of a pattern that
//! is visited, a test. Counts depend on the values alone. The states of lazy automata are the exception: building one takes
//! microseconds and pays only if later values use it, so that has an allowance of time, and without it patterns are
//! simulated, which is counted again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Stopwatch;

use super::unreadable::Unreadable;

/// The work of all conditions of one request. A unit takes 1 to 4 ns, and up to 14 ns where hundreds of large patterns do
/// not fit into the caches of a processor. Five hundred patterns that name a text take a tenth of it on an ordinary value.
const MAX_WORK: u64 = 1 << 20;

/// The bytes that a search for a text reads for one unit. (Even a value that is made against it takes less than a nanosecond
/// a byte.)
pub(super) const TEXT_BYTES_PER_UNIT: usize = 16;

/// The bytes that a search for many texts at once reads for one unit.
pub(super) const TEXTS_BYTES_PER_UNIT: usize = 2;

/// How long automata may build states during one request. A policy whose automata are new needs less for an ordinary
/// value; a value that leads to new states throughout would need seconds.
const MAX_BUILDING_TIME: Duration = Duration::from_millis(2);

/// What a step of building counts at most, and for each state of the patterns that it may visit. Steps are shorter; a longer
/// one is a pause of the thread, which is not the value's fault.
const MAX_STEP_TIME: Duration = Duration::from_micros(5);
const MAX_STATE_TIME: Duration = Duration::from_nanos(10);

/// What is left for one request. One thread at a time judges a request, so the counts need no lock.
#[derive(Debug)]
pub(super) struct WorkBudget {
    max_work: u64,
    work: AtomicU64,
    max_building: Duration,
    building_nanos: AtomicU64,
}

/// The time of building between two looks at the clock.
pub(super) struct BuildingTime<'b> {
    budget: &'b WorkBudget,
    max_step: Duration,
    step: Stopwatch,
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self {
            max_work: MAX_WORK,
            work: AtomicU64::new(0),
            max_building: MAX_BUILDING_TIME,
            building_nanos: AtomicU64::new(0),
        }
    }
}

impl WorkBudget {
    /// For values that no client chooses.
    pub(super) fn unlimited() -> Self {
        Self { max_work: u64::MAX, ..Self::default() }
    }

    /// Counts work.
    ///
    /// # Errors
    /// It is more than one request may cause.
    pub(super) fn charge(&self, units: usize) -> Result<(), Unreadable> {
        let units = u64::try_from(units).unwrap_or(u64::MAX);
        let work = self.work.load(Ordering::Relaxed).saturating_add(units);
        self.work.store(work, Ordering::Relaxed);
        if work <= self.max_work { Ok(()) } else { Err(Unreadable) }
    }

    /// The units that were charged.
    pub(super) fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

    /// One that builds states without end.
    #[cfg(test)]
    pub(super) fn with_building() -> Self {
        Self { max_building: Duration::MAX, ..Self::default() }
    }

    /// One that builds no state.
    #[cfg(test)]
    pub(super) fn without_building() -> Self {
        Self { max_building: Duration::ZERO, ..Self::default() }
    }

    /// Begins to build states of an automaton whose patterns have so many.
    pub(super) fn building(&self, states: usize) -> BuildingTime<'_> {
        let states = u32::try_from(states).unwrap_or(u32::MAX);
        let max_step = MAX_STEP_TIME.saturating_add(MAX_STATE_TIME.saturating_mul(states));
        BuildingTime { budget: self, max_step, step: Stopwatch::start() }
    }
}

impl BuildingTime<'_> {
    /// Begins a step.
    pub(super) fn start_step(&mut self) {
        self.step = Stopwatch::start();
    }

    /// Ends the step.
    pub(super) fn end_step(&self) {
        let step = self.step.elapsed().min(self.max_step);
        let nanos = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        let used = &self.budget.building_nanos;
        let total = used.load(Ordering::Relaxed).saturating_add(nanos);
        used.store(total, Ordering::Relaxed);
    }

    /// Whether the request has used up its time.
    pub(super) fn is_over(&self) -> bool {
        let used = self.budget.building_nanos.load(Ordering::Relaxed);
        Duration::from_nanos(used) >= self.budget.max_building
    }
}
