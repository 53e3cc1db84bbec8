//! The keys that occur most in a stream, in fixed memory: Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient
//! computation of frequent and top-k elements in data streams", 2005).
//!
//! ```text
//!   a key with an entry        its count grows by one
//!   a free entry               the key gets it, with a count of one
//!   neither                    the key takes the entry of the smallest count, and goes on from that count:
//!                              count = smallest + 1, error = smallest
//! ```
//!
//! It does not know what a key is. What must always hold: the count of an entry is at least what its key occurred, and at
//! most [`KeyCount::error`] above it; a key that occurred more often than the total divided by the number of entries has
//! one, whatever else occurred and in whatever order. So no number of different keys pushes a frequent key out.

use std::net::IpAddr;

use hashbrown::HashMap;

use crate::policy::KeyHash;

/// Entries of one stream. Every key with more than 1/256 of all refusals is found.
pub(super) const ENTRIES: usize = 256;

/// How often a key occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyCount {
    pub(super) key: KeyHash,
    /// At most how often it occurred.
    pub(super) count: u32,
    /// At most this many of them were other keys.
    pub(super) error: u32,
    /// The number of the limit's name, for streams of several limits.
    pub(super) limit: u32,
    /// The client's address with its prefix, if the key is the address.
    pub(super) address: Option<(IpAddr, u8)>,
}

/// The most frequent keys of a stream.
#[derive(Default)]
pub(super) struct SpaceSaving {
    entries: Vec<KeyCount>,
    index: HashMap<KeyHash, u16>,
    total: u64,
    /// The smallest count when the entries were last searched for it.
    smallest: u32,
    /// Entries before this one have larger counts than [`Self::smallest`].
    cursor: usize,
}

impl SpaceSaving {
    /// Counts a key once. `entry` says what its entry begins with.
    pub(super) fn add(&mut self, key: KeyHash, entry: impl FnOnce() -> KeyCount) {
        self.total += 1;
        if let Some(known) = self.index.get(&key) {
            let known = &mut self.entries[usize::from(*known)];
            known.count = known.count.saturating_add(1);
            return;
        }
        let position = if self.entries.len() < ENTRIES {
            self.entries.push(KeyCount { count: 1, error: 0, ..entry() });
            self.entries.len() - 1
        } else {
            let position = self.smallest_entry();
            let replaced = &mut self.entries[position];
            self.index.remove(&replaced.key);
            let error = replaced.count;
            *replaced = KeyCount { count: error.saturating_add(1), error, ..entry() };
            position
        };
        // There are fewer entries than numbers.
        self.index.insert(key, u16::try_from(position).unwrap_or(u16::MAX));
    }

    /// The entry of the smallest count. Counts only grow, so the entries that were passed need no second look before
    /// the smallest count has changed: an addition costs a few steps on average, whatever the stream.
    fn smallest_entry(&mut self) -> usize {
        loop {
            let rest = self.entries[self.cursor..].iter();
            if let Some(found) = rest.clone().position(|entry| entry.count <= self.smallest) {
                self.cursor += found;
                return self.cursor;
            }
            self.smallest = self.entries.iter().map(|entry| entry.count).min().unwrap_or(0);
            self.cursor = 0;
        }
    }

    /// How many keys were counted, each as often as it occurred.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// What was counted, in less memory.
    pub(super) fn freeze(&self) -> FrozenCounts {
        let mut entries = self.entries.clone();
        entries.sort_unstable_by_key(|entry| (entry.key.high, entry.key.low));
        FrozenCounts { total: self.total, absent: self.absent(), entries: entries.into() }
    }

    /// How often a key without an entry can have occurred.
    fn absent(&self) -> u32 {
        if self.entries.len() < ENTRIES {
            return 0;
        }
        self.entries.iter().map(|entry| entry.count).min().unwrap_or(0)
    }
}

/// The counts of a stream that has ended.
#[derive(Clone, Debug)]
pub(super) struct FrozenCounts {
    pub(super) total: u64,
    /// How often a key without an entry can have occurred.
    pub(super) absent: u32,
    /// Sorted by key.
    pub(super) entries: Box<[KeyCount]>,
}

impl FrozenCounts {
    /// The entry of a key.
    pub(super) fn find(&self, key: KeyHash) -> Option<&KeyCount> {
        let wanted = (key.high, key.low);
        let found = self.entries.binary_search_by_key(&wanted, |e| (e.key.high, e.key.low));
        found.ok().map(|index| &self.entries[index])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key(n: u64) -> KeyHash {
        KeyHash { high: n.wrapping_mul(0x9e37_79b9_7f4a_7c15), low: n }
    }

    fn entry(n: u64) -> KeyCount {
        KeyCount { key: key(n), count: 0, error: 0, limit: 0, address: None }
    }

    fn add(counts: &mut SpaceSaving, n: u64) {
        counts.add(key(n), || entry(n));
    }

    /// Compares with a plain count of everything.
    fn check(stream: impl Iterator<Item = u64>) -> (FrozenCounts, BTreeMap<u64, u64>) {
        let (mut counts, mut exact) = (SpaceSaving::default(), BTreeMap::<u64, u64>::new());
        for n in stream {
            add(&mut counts, n);
            *exact.entry(n).or_default() += 1;
        }
        let frozen = counts.freeze();
        assert_eq!(frozen.total, exact.values().sum::<u64>());
        assert!(frozen.entries.len() <= ENTRIES);
        for entry in &frozen.entries {
            let occurred = exact[&entry.key.low];
            let (count, error) = (u64::from(entry.count), u64::from(entry.error));
            assert!(count >= occurred && count - error <= occurred, "{entry:?}: {occurred}");
        }
        for (n, occurred) in &exact {
            let found = frozen.find(key(*n));
            let is_frequent = *occurred > frozen.total / ENTRIES as u64;
            assert!(found.is_some() || !is_frequent, "{n} occurred {occurred} times");
            assert!(found.is_some() || *occurred <= u64::from(frozen.absent), "{n}: {occurred}");
        }
        (frozen, exact)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Few heavy keys among many others, in any order.
        #[test]
        fn counts_are_within_their_error_and_frequent_keys_are_found(
            heavy in prop::collection::vec(1..400_usize, 0..8),
            others in 0..4_000_u64,
            repeats in 1..4_usize,
            seed in any::<u64>(),
        ) {
            let heavy = heavy.iter().zip(0..).flat_map(|(times, n)| vec![n; *times]);
            let others = (1_000..1_000 + others).flat_map(|n| vec![n; repeats]);
            let mut stream: Vec<u64> = heavy.chain(others).collect();
            fastrand::Rng::with_seed(seed).shuffle(&mut stream);
            check(stream.into_iter());
        }

        /// Streams that make the counts of all entries differ, so that each search for the smallest is a long one.
        #[test]
        fn the_smallest_count_is_found_in_any_stream(
            stream in prop::collection::vec(0..600_u64, 0..6_000),
        ) {
            check(stream.into_iter());
        }
    }

    #[test]
    fn keys_that_come_once_do_not_push_a_frequent_key_out() {
        // The frequent key comes early, then late, then once in 200 keys.
        let others = |from: u64| (from..from + 100_000).map(|n| n + 10);
        let early = std::iter::repeat_n(1, 2_000).chain(others(0));
        let late = others(0).chain(std::iter::repeat_n(1, 2_000));
        let mixed = others(0).flat_map(|n| if n % 200 == 0 { vec![n, 1] } else { vec![n] });
        for (stream, times) in
            [(early.collect::<Vec<_>>(), 2_000), (late.collect(), 2_000), (mixed.collect(), 500)]
        {
            let (frozen, _) = check(stream.into_iter());
            let found = frozen.find(key(1)).unwrap();
            assert!(found.count >= times && found.count - found.error <= times, "{found:?}");
            let heavier = frozen.entries.iter().filter(|entry| entry.count > found.count).count();
            assert!(heavier < 10, "{heavier} entries are before it");
        }
    }
}
