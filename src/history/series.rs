//! The numbers of many names, minute by minute.
//!
//! Names have slots, so that a minute holds a few small numbers for each. It does not know what is counted. What must
//! always hold: a slot gets another name only when no minute that is kept refers to it; what has no slot is summed.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;

use super::{MINUTES, OTHERS};

/// The slot of everything that has none of its own.
const OTHERS_SLOT: u16 = u16::MAX;

/// The numbers of one name in one minute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted<const N: usize> {
    slot: u16,
    counts: [u32; N],
}

/// The minutes of all names.
#[derive(Debug)]
pub(super) struct Series<const N: usize> {
    max_names: usize,
    /// The totals when the last minute ended. Counters of names that no configuration has now go on when it returns.
    totals: HashMap<Arc<str>, [u64; N]>,
    slots: Vec<NamedSlot>,
    by_name: HashMap<Arc<str>, u16>,
    /// Minutes in which something happened with their numbers, the oldest first.
    minutes: VecDeque<(u64, Box<[Counted<N>]>)>,
}

#[derive(Debug)]
struct NamedSlot {
    name: Arc<str>,
    /// The last minute that refers to it.
    last: u64,
}

impl<const N: usize> Series<N> {
    pub(super) fn new(max_names: usize) -> Self {
        Self {
            max_names: max_names.min(usize::from(OTHERS_SLOT)),
            totals: HashMap::new(),
            slots: Vec::new(),
            by_name: HashMap::new(),
            minutes: VecDeque::new(),
        }
    }

    /// Adds the differences between these totals and those before to a minute.
    pub(super) fn end_minute(&mut self, minute: u64, totals: &[(Arc<str>, [u64; N])]) {
        let oldest = (minute + 1).saturating_sub(MINUTES as u64);
        while self.minutes.front().is_some_and(|(kept, _)| *kept < oldest) {
            self.minutes.pop_front();
        }
        let mut numbers = Vec::new();
        for (name, total) in totals {
            let before = self.totals.insert(Arc::clone(name), *total).unwrap_or([0; N]);
            let counts = difference(total, &before);
            if counts != [0; N] {
                numbers.push((Arc::clone(name), counts));
            }
        }
        self.add(minute, oldest, numbers);
    }

    /// Adds numbers to a minute. `oldest`: the oldest minute that is kept.
    pub(super) fn add(&mut self, minute: u64, oldest: u64, numbers: Vec<(Arc<str>, [u32; N])>) {
        if numbers.is_empty() {
            return;
        }
        let found = self.minutes.binary_search_by_key(&minute, |(kept, _)| *kept);
        let mut counted = match found {
            Ok(index) => self.minutes[index].1.to_vec(),
            Err(_) => Vec::new(),
        };
        let mut others = [0; N];
        for (name, counts) in &numbers {
            let slot = if **name == *OTHERS { None } else { self.slot(name, minute, oldest) };
            let known = slot.and_then(|slot| counted.iter_mut().find(|known| known.slot == slot));
            match (slot, known) {
                (_, Some(known)) => add(&mut known.counts, counts),
                (Some(slot), None) => counted.push(Counted { slot, counts: *counts }),
                (None, None) => add(&mut others, counts),
            }
        }
        if others != [0; N] {
            match counted.iter_mut().find(|known| known.slot == OTHERS_SLOT) {
                Some(known) => add(&mut known.counts, &others),
                None => counted.push(Counted { slot: OTHERS_SLOT, counts: others }),
            }
        }
        match found {
            Ok(index) => self.minutes[index].1 = counted.into(),
            Err(index) => self.minutes.insert(index, (minute, counted.into())),
        }
    }

    /// The numbers of a minute that goes on: what is kept of it and of minutes ahead of it, and the differences since.
    pub(super) fn unended(
        &self,
        minute: u64,
        totals: &[(Arc<str>, [u64; N])],
    ) -> Vec<(Arc<str>, [u32; N])> {
        let mut numbers = self.minute(minute);
        let first = self.minutes.partition_point(|(kept, _)| *kept <= minute);
        let ahead = self.minutes.range(first..).flat_map(|(kept, _)| self.minute(*kept));
        for (name, counts) in ahead.chain(self.since(totals)) {
            match numbers.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => add(known, &counts),
                None => numbers.push((name, counts)),
            }
        }
        numbers
    }

    /// The differences between these totals and those when the last minute ended.
    fn since(&self, totals: &[(Arc<str>, [u64; N])]) -> Vec<(Arc<str>, [u32; N])> {
        let (mut named, mut others) = (Vec::new(), [0; N]);
        let mut free = self.max_names - self.slots.len();
        for (name, total) in totals {
            let before = self.totals.get(name).copied().unwrap_or([0; N]);
            let counts = difference(total, &before);
            if counts == [0; N] {
                continue;
            }
            if self.by_name.contains_key(name) {
                named.push((Arc::clone(name), counts));
            } else if free > 0 {
                free -= 1;
                named.push((Arc::clone(name), counts));
            } else {
                add(&mut others, &counts);
            }
        }
        if others != [0; N] {
            named.push((Arc::from(OTHERS), others));
        }
        named
    }

    /// The numbers that are kept of a minute.
    pub(super) fn minute(&self, minute: u64) -> Vec<(Arc<str>, [u32; N])> {
        let Ok(index) = self.minutes.binary_search_by_key(&minute, |(kept, _)| *kept) else {
            return Vec::new();
        };
        let name = |slot: u16| match self.slots.get(usize::from(slot)) {
            Some(named) => Arc::clone(&named.name),
            None => Arc::from(OTHERS),
        };
        self.minutes[index].1.iter().map(|counted| (name(counted.slot), counted.counts)).collect()
    }

    /// The slot of a name that counts in `minute`. `oldest`: the oldest minute that is kept.
    fn slot(&mut self, name: &Arc<str>, minute: u64, oldest: u64) -> Option<u16> {
        if let Some(slot) = self.by_name.get(name) {
            let named = &mut self.slots[usize::from(*slot)];
            named.last = named.last.max(minute);
            return Some(*slot);
        }
        let named = NamedSlot { name: Arc::clone(name), last: minute };
        let slot = if self.slots.len() < self.max_names {
            self.slots.push(named);
            self.slots.len() - 1
        } else {
            let unused = self.slots.iter().position(|slot| slot.last < oldest)?;
            let former = std::mem::replace(&mut self.slots[unused], named);
            self.by_name.remove(&former.name);
            unused
        };
        let slot = u16::try_from(slot).ok()?;
        self.by_name.insert(Arc::clone(name), slot);
        Some(slot)
    }
}

/// What was added to counters. More than 4,294,967,295 in a minute shows as that.
fn difference<const N: usize>(now: &[u64; N], before: &[u64; N]) -> [u32; N] {
    std::array::from_fn(|at| u32::try_from(now[at].saturating_sub(before[at])).unwrap_or(u32::MAX))
}

fn add<const N: usize>(sum: &mut [u32; N], counts: &[u32; N]) {
    sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(numbers: impl Iterator<Item = (u64, u64)>) -> Vec<(Arc<str>, [u64; 1])> {
        numbers.map(|(name, count)| (name.to_string().into(), [count])).collect()
    }

    fn shown(counts: &[(Arc<str>, [u32; 1])]) -> Vec<(&str, u32)> {
        counts.iter().map(|(name, [count])| (&**name, *count)).collect()
    }

    #[test]
    fn names_without_a_slot_are_summed_until_a_slot_is_free() {
        let mut series = Series::<1>::new(2);
        let first = named((1..=4).map(|n| (n, n * 10)));
        assert_eq!(shown(&series.since(&first)), [("1", 10), ("2", 20), (OTHERS, 70)]);
        series.end_minute(0, &first);
        assert_eq!(shown(&series.minute(0)), [("1", 10), ("2", 20), (OTHERS, 70)]);
        series.end_minute(1, &first);
        assert!(series.minute(1).is_empty() && series.minutes.len() == 1);
        // Only the second and the fourth go on; for a day the slots stay theirs.
        let last = MINUTES as u64;
        series.end_minute(last - 1, &named([(2, 21), (4, 41)].into_iter()));
        assert_eq!(shown(&series.minute(last - 1)), [("2", 1), (OTHERS, 1)]);
        assert_eq!(series.minute(0).len(), 3, "a day is kept");
        series.end_minute(last, &named([(2, 21), (4, 45)].into_iter()));
        assert_eq!(shown(&series.minute(last)), [("4", 4)], "the first is forgotten");
        assert!(series.minute(0).is_empty());
        assert_eq!(shown(&series.minute(last - 1)), [("2", 1), (OTHERS, 1)]);
        // A name that returns goes on from where its counter was.
        series.end_minute(last + 1, &named([(1, 13)].into_iter()));
        assert_eq!(shown(&series.minute(last + 1)), [(OTHERS, 3)]);
    }

    #[test]
    fn numbers_saturate() {
        let mut series = Series::<1>::new(1);
        series.end_minute(0, &named([(1, u64::MAX), (2, u64::MAX), (3, 7)].into_iter()));
        assert_eq!(shown(&series.minute(0)), [("1", u32::MAX), (OTHERS, u32::MAX)]);
        series.end_minute(1, &named([(1, 3)].into_iter()));
        assert!(series.minute(1).is_empty(), "a counter that is smaller counted nothing");
    }
}
