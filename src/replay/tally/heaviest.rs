//! The keys that a limit refuses most, in fixed memory: Space-Saving, as in `refusals/space_saving.rs`, with what a
//! report shows of a key.
//!
//! What must always hold: the count of an entry is at least the refusals of its key, and at most [`HeavyKey::error`]
//! above them; with n entries, every key with more than 1/n of a limit's refusals has one. n is [`MAX_ENTRIES`] for up to
//! 16 limits.

use hashbrown::HashTable;

use super::key_table::{KeyRequest, Refuses};
use super::window::PeakWindow;
use crate::clock::Nanos;

/// Entries of one limit: 512 KiB, if all texts have the greatest length.
const MAX_ENTRIES: usize = 1024;
/// Entries of one limit, however many limits there are.
const MIN_ENTRIES: usize = 128;
/// Entries of all limits, as long as each has more than the fewest: 8 MiB.
const ALL_ENTRIES: usize = 16 * MAX_ENTRIES;

/// A key that is refused often.
#[derive(Clone, Debug)]
pub(super) struct HeavyKey {
    pub(super) hash: u64,
    /// At most so many refusals.
    pub(super) count: u64,
    /// At most so many of them are of other keys.
    pub(super) error: u64,
    /// Requests since the key has its entry.
    pub(super) requests: u64,
    /// Refusals with effect since then.
    pub(super) refused: u64,
    /// Refusals in shadow mode since then.
    pub(super) shadow_refused: u64,
    /// The largest number of units in a window since then.
    pub(super) peak: u32,
    pub(super) first: Nanos,
    pub(super) last: Nanos,
    /// The key for people.
    pub(super) text: Box<str>,
    window: PeakWindow,
}

/// The keys of one limit with the largest numbers of refusals.
pub(super) struct HeaviestKeys {
    /// At least one.
    max_entries: usize,
    entries: Vec<HeavyKey>,
    index: HashTable<u16>,
    /// The smallest count when the entries were last searched for it.
    smallest: u64,
    /// Entries before this have larger counts than that.
    cursor: usize,
}

impl HeaviestKeys {
    /// Room for the keys of one of so many limits.
    pub(super) fn new(limits: usize) -> Self {
        Self {
            max_entries: (ALL_ENTRIES / limits.max(1)).clamp(MIN_ENTRIES, MAX_ENTRIES),
            entries: Vec::new(),
            index: HashTable::new(),
            smallest: 0,
            cursor: 0,
        }
    }

    /// Counts a refusal. `text` shows the key; it is asked if the key gets an entry.
    pub(super) fn refuse(
        &mut self,
        request: &KeyRequest,
        at: Nanos,
        text: impl FnOnce() -> Box<str>,
    ) {
        let position = self.position(request.hash).unwrap_or_else(|| {
            self.take_entry(HeavyKey {
                hash: request.hash,
                count: 0,
                error: 0,
                requests: 0,
                refused: 0,
                shadow_refused: 0,
                peak: 0,
                first: at,
                last: at,
                text: text(),
                window: PeakWindow::default(),
            })
        });
        let entry = &mut self.entries[position];
        entry.count += 1;
        entry.first = entry.first.min(at);
        entry.last = entry.last.max(at);
        entry.add(request);
    }

    /// Counts a request that is admitted, if its key has an entry.
    pub(super) fn admit(&mut self, request: &KeyRequest) {
        if let Some(position) = self.position(request.hash) {
            self.entries[position].add(request);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &HeavyKey> {
        self.entries.iter()
    }

    fn position(&self, hash: u64) -> Option<usize> {
        let entries = &self.entries;
        self.index
            .find(hash, |index| entries[usize::from(*index)].hash == hash)
            .copied()
            .map(usize::from)
    }

    /// A free entry, or that of the smallest count.
    fn take_entry(&mut self, key: HeavyKey) -> usize {
        let hash = key.hash;
        let position = if self.entries.len() < self.max_entries {
            self.entries.push(key);
            self.entries.len() - 1
        } else {
            let position = self.smallest_entry();
            let replaced = self.entries[position].hash;
            let is_replaced = |index: &u16| usize::from(*index) == position;
            if let Ok(known) = self.index.find_entry(replaced, is_replaced) {
                known.remove();
            }
            let error = self.entries[position].count;
            self.entries[position] = HeavyKey { count: error, error, ..key };
            position
        };
        let entries = &self.entries;
        // There are fewer entries than numbers.
        let number = u16::try_from(position).unwrap_or(u16::MAX);
        self.index.insert_unique(hash, number, |index| entries[usize::from(*index)].hash);
        position
    }

    /// Counts only grow, so entries that were passed need no second look before the smallest count has changed.
    fn smallest_entry(&mut self) -> usize {
        loop {
            let mut rest = self.entries[self.cursor..].iter();
            if let Some(found) = rest.position(|entry| entry.count <= self.smallest) {
                self.cursor += found;
                return self.cursor;
            }
            self.smallest = self.entries.iter().map(|entry| entry.count).min().unwrap_or(0);
            self.cursor = 0;
        }
    }
}

impl HeavyKey {
    fn add(&mut self, request: &KeyRequest) {
        self.requests += 1;
        self.peak = self.peak.max(self.window.add(request.slot, request.cost));
        match request.refused {
            None => {}
            Some(Refuses::Enforced) => self.refused += 1,
            Some(Refuses::Shadow) => self.shadow_refused += 1,
        }
    }
}
