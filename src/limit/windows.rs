//! Limits whose variants (own rate, plans, overrides) have windows of different length.
//!
//! A key then has one counter for each length: a charge is judged on the counter of its own variant
//! and written to all of them. So under every variant at most its limit is admitted in its own
//! window, whatever the key spent under the others. To move one counter from window to window
//! instead would be wrong in both directions: from a short window into a long one, units that had
//! expired count again and again; from a long one into a short one, units are forgotten.
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
//! A reload, or a node on another generation, may need a length that the cell does not have: one is
//! made, and begins with what is known (see [`Counters::align`]). Lengths that nobody needs any more
//! are kept for a while, so that generations that alternate on one key lose nothing.

use std::sync::Arc;

use super::{Counter, FixedWindow, Quota, Rate, SlidingWindow, WindowPair};
use crate::clock::{Nanos, Now};

/// Most distinct window lengths among the variants of one limit: each is written by every charge.
pub const MAX_WINDOWS: usize = 8;

/// Most counters of one cell, those of other generations included.
const MAX_COUNTERS: usize = 2 * MAX_WINDOWS;

/// How long a counter that no variant of the present generation needs is kept after the last charge
/// that was judged on it, at least. (And for two of its windows.)
const KEEP_UNUSED: Nanos = Nanos::from_secs(3_600);

/// The distinct window lengths of all variants of one limit; of buckets, how many rates they have.
/// (Cells do not depend on that number: two are equal when their lengths are.)
#[derive(Clone, Debug, Default)]
pub struct WindowLengths {
    /// Ascending; none for a bucket.
    lengths: Arc<[Nanos]>,
    /// Distinct buckets.
    buckets: usize,
}

impl PartialEq for WindowLengths {
    fn eq(&self, other: &Self) -> bool {
        self.lengths == other.lengths
    }
}

impl Eq for WindowLengths {}

impl WindowLengths {
    /// Of these lengths, in any order.
    pub fn new(lengths: impl IntoIterator<Item = Nanos>) -> Self {
        let mut all: Vec<Nanos> = lengths.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        Self { lengths: all.into(), buckets: 0 }
    }

    /// Of all variants of one limit.
    pub fn of<'q>(quotas: impl IntoIterator<Item = &'q Quota>) -> Self {
        let (windows, buckets): (Vec<&Quota>, Vec<&Quota>) =
            quotas.into_iter().partition(|quota| quota.window_length().is_some());
        let distinct = |n: &usize| !buckets[..*n].contains(&buckets[*n]);
        let buckets = (0..buckets.len()).filter(distinct).count();
        Self { buckets, ..Self::new(windows.into_iter().filter_map(Quota::window_length)) }
    }

    /// The lengths, ascending.
    pub fn lengths(&self) -> &[Nanos] {
        &self.lengths
    }

    /// How many different buckets a key may have.
    pub const fn buckets(&self) -> usize {
        self.buckets
    }

    /// The longest; zero where there is none.
    pub(super) fn longest(&self) -> Nanos {
        self.lengths.last().copied().unwrap_or_default()
    }
}

/// A window algorithm of which only the length of its window matters.
pub(super) trait WindowAlgorithm: Copy {
    /// What it keeps for one window length.
    type Counter: Copy + Default + PartialEq;

    /// The algorithm with windows of another length.
    fn of_length(length: Nanos) -> Self;

    /// Spends.
    fn spend(&self, counter: &mut Self::Counter, cost: u32, now: Nanos);

    /// Takes back what was charged at `charged`, where it still counts.
    fn remove(&self, counter: &mut Self::Counter, cost: u32, charged: Nanos);

    /// Whether the counter equals an absent one.
    fn is_unused(&self, counter: Self::Counter, now: Nanos) -> bool;

    /// What this counter would be with windows of the length of `self`: units carry over.
    fn read(&self, old: &Self, counter: Self::Counter, now: Nanos) -> Self::Counter;
}

impl WindowAlgorithm for SlidingWindow {
    type Counter = WindowPair;

    fn of_length(length: Nanos) -> Self {
        Self::new(Rate::per(length))
    }

    fn spend(&self, counter: &mut WindowPair, cost: u32, now: Nanos) {
        self.charge(counter, cost, now);
    }

    fn remove(&self, counter: &mut WindowPair, cost: u32, charged: Nanos) {
        self.refund(counter, cost, charged);
    }

    fn is_unused(&self, counter: WindowPair, now: Nanos) -> bool {
        self.is_idle(counter, now)
    }

    fn read(&self, old: &Self, counter: WindowPair, now: Nanos) -> WindowPair {
        self.convert(old, counter, now)
    }
}

impl WindowAlgorithm for FixedWindow {
    type Counter = Counter;

    fn of_length(length: Nanos) -> Self {
        Self::new(Rate::per(length))
    }

    fn spend(&self, counter: &mut Counter, cost: u32, now: Nanos) {
        self.charge(counter, cost, now);
    }

    fn remove(&self, counter: &mut Counter, cost: u32, charged: Nanos) {
        self.refund(counter, cost, charged);
    }

    fn is_unused(&self, counter: Counter, now: Nanos) -> bool {
        self.is_idle(counter, now)
    }

    fn read(&self, old: &Self, counter: Counter, now: Nanos) -> Counter {
        self.convert(old, counter, now)
    }
}

/// The counters of one key by window length, ascending; no length stands twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters<C>(Vec<OfLength<C>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OfLength<C> {
    length: Nanos,
    counter: C,
    /// When a charge was last judged on it (wall time, whole seconds): see [`KEEP_UNUSED`].
    judged: u32,
}

/// How late somebody may come who has read the clock, at most, and still find what was counted meanwhile:
/// longer than a thread is held up between the two.
const LATE: Nanos = Nanos::SECOND;

/// How many windows the window `cell` is ahead of `now`, both counted modulo 2^32; `None`: it has passed, or
/// is so far ahead that it was counted before a clock ran back, and is void.
pub(super) fn windows_ahead(cell: u32, now: u32, length: Nanos) -> Option<u64> {
    match cell.wrapping_sub(now) {
        // Nearly always; and whatever the length is, one ahead is an edge that somebody has crossed.
        ahead @ 0..=1 => Some(ahead.into()),
        ahead if ahead > u32::MAX / 2 => None,
        ahead => Some(ahead.into()).filter(|ahead| *ahead <= LATE.get() / length.get()),
    }
}

impl<C: Copy + Default + PartialEq> Counters<C> {
    /// Of these lengths; nothing is spent.
    pub(super) fn fresh(windows: &WindowLengths, now_secs: u32) -> Self {
        let of =
            |length: &Nanos| OfLength { length: *length, counter: C::default(), judged: now_secs };
        Self(windows.lengths().iter().map(of).collect())
    }

    /// One counter that was kept alone.
    pub(super) fn single(length: Nanos, counter: C, now_secs: u32) -> Self {
        Self(vec![OfLength { length, counter, judged: now_secs }])
    }

    /// The counter of a length; one that is not there has spent nothing.
    pub(super) fn of(&self, length: Nanos) -> C {
        let found = self.0.iter().find(|one| one.length == length);
        found.map_or(C::default(), |one| one.counter)
    }

    /// The only counter, if it is of this length.
    pub(super) fn alone(&self, length: Nanos) -> Option<C> {
        match self.0.as_slice() {
            [one] if one.length == length => Some(one.counter),
            _ => None,
        }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.0.capacity() * size_of::<OfLength<C>>()
    }

    /// Adds a charge, judged on the counter of `length`, to all.
    pub(super) fn charge<A>(&mut self, length: Nanos, cost: u32, now: Nanos)
    where
        A: WindowAlgorithm<Counter = C>,
    {
        for one in &mut self.0 {
            A::of_length(one.length).spend(&mut one.counter, cost, now);
            if one.length == length {
                one.judged = whole_secs(now);
            }
        }
    }

    /// Takes back a charge where it still counts: in the windows that its limit had then, since others
    /// may have begun later.
    pub(super) fn refund<A>(&mut self, windows: &WindowLengths, cost: u32, charged: Nanos)
    where
        A: WindowAlgorithm<Counter = C>,
    {
        for one in self.0.iter_mut().filter(|one| windows.lengths().contains(&one.length)) {
            A::of_length(one.length).remove(&mut one.counter, cost, charged);
        }
    }

    /// Whether every counter equals an absent one.
    pub(super) fn is_idle<A>(&self, now: Nanos) -> bool
    where
        A: WindowAlgorithm<Counter = C>,
    {
        self.0.iter().all(|one| A::of_length(one.length).is_unused(one.counter, now))
    }

    /// Gives the cell the lengths that a generation needs, and drops those that nobody has needed for
    /// a while.
    ///
    /// A new length begins with what is known of it: with the units of the shortest window that
    /// covers it, which are at least those it would have counted; without one, with those of the
    /// longest, which are at most those.
    pub(super) fn align<A>(&mut self, windows: &WindowLengths, now: Nanos)
    where
        A: WindowAlgorithm<Counter = C>,
    {
        let known = self.0.len();
        for length in windows.lengths() {
            if self.0[..known].iter().any(|one| one.length == *length) {
                continue;
            }
            let source = self.0[..known].iter().find(|one| one.length > *length);
            let counter = source.or(self.0[..known].last()).map_or(C::default(), |source| {
                A::of_length(*length).read(&A::of_length(source.length), source.counter, now)
            });
            self.0.push(OfLength { length: *length, counter, judged: whole_secs(now) });
        }
        self.0.sort_unstable_by_key(|one| one.length);
        self.drop_unused(windows, now);
    }

    /// Drops lengths that the present generation does not need: those that no charge has been judged
    /// on for long, or for which there is no room, the longest unused first.
    fn drop_unused(&mut self, windows: &WindowLengths, now: Nanos) {
        let needed = |one: &OfLength<C>| windows.lengths().contains(&one.length);
        self.0.retain(|one| {
            let unused = u64::from(whole_secs(now).saturating_sub(one.judged));
            needed(one) || unused <= keeps_for(one.length)
        });
        while self.0.len() > MAX_COUNTERS {
            let foreign = self.0.iter().enumerate().filter(|(_, one)| !needed(one));
            let Some((index, _)) = foreign.min_by_key(|(_, one)| one.judged) else {
                return;
            };
            self.0.remove(index);
        }
    }
}

/// How long a window of this length is kept after it was last needed, in seconds.
pub(super) fn keeps_for(length: Nanos) -> u64 {
    (2 * length.secs()).max(KEEP_UNUSED.secs())
}

/// Whole seconds of a clock, saturating. (Wall time saturates in the year 2106.)
pub(super) fn whole_secs(now: Nanos) -> u32 {
    u32::try_from(now.secs()).unwrap_or(u32::MAX)
}

/// The wall time of an instant, in whole seconds.
pub(super) fn wall_secs(now: Now) -> u32 {
    whole_secs(now.wall)
}
