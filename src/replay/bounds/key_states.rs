//! The states of all keys of one limit, in bounded memory.

use hashbrown::HashTable;

use crate::replay::key_memory::{MemoryBounds, mixed, spread};

/// The states of keys, up to a bound. A key that is above it when it first occurs never gets a state.
#[derive(Debug)]
pub(super) struct KeyStates<S> {
    entries: HashTable<(u128, S)>,
    bounds: MemoryBounds,
    heap: usize,
}

impl<S> KeyStates<S> {
    pub(super) fn new(bounds: MemoryBounds) -> Self {
        Self { entries: HashTable::new(), bounds, heap: 0 }
    }

    /// The state of a key; `None` if there is no room for it.
    pub(super) fn get_or_insert(&mut self, key: u128, new: impl FnOnce() -> S) -> Option<&mut S> {
        let hash = spread(mixed(key));
        let has_room = !self.is_full();
        match self.entries.find_entry(hash, |(known, _)| *known == key) {
            Ok(entry) => Some(&mut entry.into_mut().1),
            Err(absent) if has_room => {
                let hasher = |(key, _): &(u128, S)| spread(mixed(*key));
                let entry = absent.into_table().insert_unique(hash, (key, new()), hasher);
                Some(&mut entry.into_mut().1)
            }
            Err(_) => None,
        }
    }

    /// Corrects the bytes that all states together hold on the heap.
    pub(super) fn heap_changed(&mut self, before: usize, after: usize) {
        self.heap = (self.heap + after).saturating_sub(before);
    }

    /// All states.
    pub(super) fn into_states(self) -> impl Iterator<Item = S> {
        self.entries.into_iter().map(|(_, state)| state)
    }

    /// Whether one more key could exceed a bound. A table doubles when it is full.
    fn is_full(&self) -> bool {
        let (len, capacity) = (self.entries.len(), self.entries.capacity());
        let room = if len == capacity { capacity.saturating_mul(2) } else { capacity };
        // An eighth of the slots stays empty, and each has a byte of its own.
        let slots = room.saturating_mul(8) / 7;
        let bytes = slots.saturating_mul(size_of::<(u128, S)>() + 1).saturating_add(self.heap);
        len >= self.bounds.max_keys || bytes > self.bounds.max_bytes
    }
}
