//! The counters of one key under a limit whose variants (own rate, plans, overrides) have windows of several
//! lengths.
//!
//! A key has one counter per length. A charge is judged on the counter of its own variant and added to all.
//! So every variant admits at most its limit in its own window, whatever the key spends under the others. A
//! single counter that moves between windows would be wrong in both directions: from a short window into a
//! long one, expired units count again; from a long one into a short one, units are lost.
//!
//! ```text
//!   rate: 60/1m, plans: { gold: 1000/1d }
//!
//!                 ┌ 1m │ 12 units in this minute   ◄── judges requests without the plan
//!   key ─ cell ───┤
//!                 └ 1d │ 430 units in this day     ◄── judges requests of gold
//!                        every charge adds to both
//! ```
//!
//! A reload, or a node on another generation, may need a length that the cell does not have. The cell then adds
//! a counter that begins with what the others know ([`CountersByLength::align`]). It keeps unused lengths for a
//! while ([`super::retention`]).

use super::retention::{retention_secs, saturating_secs};
use super::window_lengths::{MAX_WINDOWS, WindowLengths};
use crate::clock::Nanos;

/// The largest number of counters of one cell, those of other generations included.
const MAX_COUNTERS: usize = 2 * MAX_WINDOWS;

/// A window algorithm of which only the length of its window matters.
pub(super) trait WindowAlgorithm: Copy {
    /// What it keeps for one window length.
    type Count: Copy + Default + PartialEq;

    /// The algorithm with windows of this length.
    fn of_length(length: Nanos) -> Self;

    /// Charges `cost`, whether it fits or not.
    fn charge(&self, count: &mut Self::Count, cost: u32, now: Nanos);

    /// Takes back up to `cost` units that were charged at `charged`, if they still count.
    fn refund(&self, count: &mut Self::Count, cost: u32, charged: Nanos);

    /// Whether the count equals an absent one.
    fn is_idle(&self, count: Self::Count, now: Nanos) -> bool;

    /// Reads a count of `old`, whose windows may have another length: units carry over.
    fn convert(&self, old: &Self, count: Self::Count, now: Nanos) -> Self::Count;
}

/// The counters of one key, by ascending window length. Each length occurs once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct CountersByLength<C>(Vec<LengthCounter<C>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
struct LengthCounter<C> {
    length: Nanos,
    count: C,
    /// When a charge was last judged on this counter: wall time in full seconds.
    last_judged: u32,
}

impl<C: Copy + Default + PartialEq> CountersByLength<C> {
    /// Counters of these lengths, nothing spent.
    pub(super) fn empty(windows: &WindowLengths, now_secs: u32) -> Self {
        let counter = |length: &Nanos| LengthCounter {
            length: *length,
            count: C::default(),
            last_judged: now_secs,
        };
        Self(windows.lengths().iter().map(counter).collect())
    }

    /// A single counter, which was a cell by itself before.
    pub(super) fn single(length: Nanos, count: C, now_secs: u32) -> Self {
        Self(vec![LengthCounter { length, count, last_judged: now_secs }])
    }

    /// The count of a length; an absent counter has spent nothing.
    pub(super) fn count(&self, length: Nanos) -> C {
        let found = self.0.iter().find(|counter| counter.length == length);
        found.map_or(C::default(), |counter| counter.count)
    }

    /// The only count, if the cell has one counter and it is of this length.
    pub(super) fn only_count(&self, length: Nanos) -> Option<C> {
        match self.0.as_slice() {
            [only] if only.length == length => Some(only.count),
            _ => None,
        }
    }

    /// Whether counters that were read from bytes keep the bounds of this file.
    #[cfg(feature = "bin")]
    pub(super) fn is_sound(&self) -> bool {
        let lengths = 1..=MAX_COUNTERS;
        let is_length = |counter: &LengthCounter<C>| {
            Nanos::ZERO < counter.length && counter.length <= super::rate::MAX_PERIOD
        };
        lengths.contains(&self.0.len())
            && self.0.iter().all(is_length)
            && self.0.is_sorted_by(|first, second| first.length < second.length)
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.0.capacity() * size_of::<LengthCounter<C>>()
    }

    /// Adds a charge, which was judged on the counter of `length`, to all counters.
    pub(super) fn charge<A>(&mut self, length: Nanos, cost: u32, now: Nanos)
    where
        A: WindowAlgorithm<Count = C>,
    {
        for counter in &mut self.0 {
            A::of_length(counter.length).charge(&mut counter.count, cost, now);
            if counter.length == length {
                counter.last_judged = saturating_secs(now);
            }
        }
    }

    /// Takes back a charge where it still counts. `windows`: the lengths that the limit had when it was charged;
    /// counters of other lengths may have begun later.
    pub(super) fn refund<A>(&mut self, windows: &WindowLengths, cost: u32, charged: Nanos)
    where
        A: WindowAlgorithm<Count = C>,
    {
        let had_then = |counter: &&mut LengthCounter<C>| windows.contains(counter.length);
        for counter in self.0.iter_mut().filter(had_then) {
            A::of_length(counter.length).refund(&mut counter.count, cost, charged);
        }
    }

    /// Whether every counter equals an absent one.
    pub(super) fn is_idle<A>(&self, now: Nanos) -> bool
    where
        A: WindowAlgorithm<Count = C>,
    {
        self.0.iter().all(|counter| A::of_length(counter.length).is_idle(counter.count, now))
    }

    /// Adds the lengths that a generation needs, and drops those that have not been needed for a while.
    ///
    /// A new length begins with the units of the shortest longer window, which are at least those it would have
    /// counted. If no window is longer, it begins with those of the longest, which are at most those it would
    /// have counted.
    pub(super) fn align<A>(&mut self, windows: &WindowLengths, now: Nanos)
    where
        A: WindowAlgorithm<Count = C>,
    {
        let known = self.0.len();
        for length in windows.lengths() {
            if self.0[..known].iter().any(|counter| counter.length == *length) {
                continue;
            }
            let longer = self.0[..known].iter().find(|counter| counter.length > *length);
            let count = longer.or(self.0[..known].last()).map_or(C::default(), |source| {
                A::of_length(*length).convert(&A::of_length(source.length), source.count, now)
            });
            let last_judged = saturating_secs(now);
            self.0.push(LengthCounter { length: *length, count, last_judged });
        }
        self.0.sort_unstable_by_key(|counter| counter.length);
        self.drop_unused(windows, now);
    }

    /// Drops lengths that `windows` does not have: those whose retention has passed; above [`MAX_COUNTERS`] also
    /// others, the longest unused first.
    fn drop_unused(&mut self, windows: &WindowLengths, now: Nanos) {
        self.0.retain(|counter| {
            let unused = u64::from(saturating_secs(now).saturating_sub(counter.last_judged));
            windows.contains(counter.length) || unused <= retention_secs(counter.length)
        });
        while self.0.len() > MAX_COUNTERS {
            let counters = self.0.iter().enumerate();
            let foreign = counters.filter(|(_, counter)| !windows.contains(counter.length));
            let Some((index, _)) = foreign.min_by_key(|(_, counter)| counter.last_judged) else {
                return;
            };
            self.0.remove(index);
        }
    }
}
