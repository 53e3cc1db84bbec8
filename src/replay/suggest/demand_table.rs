//! What is known of each key, in bounded memory.
//!
//! Above a bound, keys are sampled by their hash: the table keeps the keys whose hash is below a threshold, and halves
//! the threshold. A key is then either counted from the beginning or not at all. So the sample is unbiased: whether a
//! key is in it depends on neither its demand nor its time.

use hashbrown::HashTable;

use crate::clock::Nanos;
use crate::replay::key_memory::{MemoryBounds, mixed, spread};

/// What a table keeps of a key.
pub(super) trait KeyDemand {
    /// Forgets what counts towards the present, because the clock of the log ran back. The peak stays.
    fn restart(&mut self);

    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// The keys of one limit.
#[derive(Debug)]
pub(super) struct DemandTable<D> {
    entries: HashTable<KeyEntry<D>>,
    bounds: MemoryBounds,
    /// Keys are kept whose hash begins with this many zeros: 1 in 2^n.
    sampled_bits: u32,
    /// Bytes that the entries hold on the heap.
    heap: usize,
}

#[derive(Debug)]
struct KeyEntry<D> {
    hash: u64,
    /// The time of its latest request.
    last: Nanos,
    /// Whether another rate than the limit's own was ever applied.
    is_left_out: bool,
    demand: D,
}

impl<D: KeyDemand> DemandTable<D> {
    pub(super) fn new(bounds: MemoryBounds) -> Self {
        Self { entries: HashTable::new(), bounds, sampled_bits: 0, heap: 0 }
    }

    /// Updates what is known of a key. `update` is given the time, which never descends per key: a request out of order
    /// counts at the time of the latest. If it is out of order by more than `max_disorder`, the key begins anew.
    pub(super) fn update(
        &mut self,
        key: u128,
        at: Nanos,
        max_disorder: Nanos,
        new: impl FnOnce() -> D,
        update: impl FnOnce(&mut D, Nanos),
    ) {
        let Some(entry) = self.entry_or_insert(key, at, new) else {
            return;
        };
        if entry.is_left_out {
            return;
        }
        if at.saturating_add(max_disorder) < entry.last {
            entry.demand.restart();
            entry.last = at;
        }
        entry.last = entry.last.max(at);
        let before = entry.demand.heap_bytes();
        update(&mut entry.demand, entry.last);
        let after = entry.demand.heap_bytes();
        self.heap = (self.heap + after).saturating_sub(before);
    }

    /// Updates what is known of a key that the table has.
    pub(super) fn update_known(&mut self, key: u128, update: impl FnOnce(&mut D)) {
        let hash = mixed(key);
        if let Some(entry) = self.entries.find_mut(spread(hash), |entry| entry.hash == hash)
            && !entry.is_left_out
        {
            update(&mut entry.demand);
        }
    }

    /// Leaves a key out of the result.
    pub(super) fn leave_out(&mut self, key: u128, at: Nanos, new: impl FnOnce() -> D) {
        let Some(entry) = self.entry_or_insert(key, at, new) else {
            return;
        };
        entry.is_left_out = true;
    }

    /// What is known of the keys that are in the result.
    pub(super) fn demands(&self) -> impl Iterator<Item = &D> {
        self.entries.iter().filter(|entry| !entry.is_left_out).map(|entry| &entry.demand)
    }

    /// How many keys are left out.
    pub(super) fn left_out(&self) -> u64 {
        self.entries.iter().filter(|entry| entry.is_left_out).count() as u64
    }

    /// One in how many keys is counted.
    pub(super) const fn sampling_ratio(&self) -> u64 {
        1 << self.sampled_bits
    }

    fn entry_or_insert(
        &mut self,
        key: u128,
        at: Nanos,
        new: impl FnOnce() -> D,
    ) -> Option<&mut KeyEntry<D>> {
        let hash = mixed(key);
        if hash.leading_zeros() < self.sampled_bits {
            return None;
        }
        let found = self.entries.find_bucket_index(spread(hash), |entry| entry.hash == hash);
        if let Some(index) = found {
            return self.entries.get_bucket_mut(index);
        }
        while self.is_full() {
            self.halve();
        }
        if hash.leading_zeros() < self.sampled_bits {
            return None;
        }
        let entry = KeyEntry { hash, last: at, is_left_out: false, demand: new() };
        self.heap += entry.demand.heap_bytes();
        let entries = &mut self.entries;
        Some(entries.insert_unique(spread(hash), entry, |entry| spread(entry.hash)).into_mut())
    }

    /// Whether one more key could exceed a bound. A table doubles when it is full.
    fn is_full(&self) -> bool {
        let len = self.entries.len();
        if len == 0 || self.sampled_bits >= u64::BITS - 1 {
            return false;
        }
        let capacity = self.entries.capacity();
        let room = if len == capacity { capacity.saturating_mul(2) } else { capacity };
        // An eighth of the slots stays empty, and each has a byte of its own.
        let slots = room.saturating_mul(8) / 7;
        let bytes = slots.saturating_mul(size_of::<KeyEntry<D>>() + 1).saturating_add(self.heap);
        len >= self.bounds.max_keys || bytes > self.bounds.max_bytes
    }

    /// Keeps about half of the keys.
    fn halve(&mut self) {
        self.sampled_bits += 1;
        let bits = self.sampled_bits;
        self.entries.retain(|entry| entry.hash.leading_zeros() >= bits);
        self.entries.shrink_to_fit(|entry| spread(entry.hash));
        self.heap = self.entries.iter().map(|entry| entry.demand.heap_bytes()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Plain(u64);

    impl KeyDemand for Plain {
        fn restart(&mut self) {}

        fn heap_bytes(&self) -> usize {
            0
        }
    }

    fn filled(keys: u128, bounds: MemoryBounds) -> DemandTable<Plain> {
        let mut table = DemandTable::new(bounds);
        for round in 0..2 {
            for key in 0..keys {
                let at = Nanos::new(round);
                table.update(key, at, Nanos::SECOND, Plain::default, |plain, _| plain.0 += 1);
            }
        }
        table
    }

    #[test]
    fn keys_above_the_bound_are_sampled_from_their_beginning() {
        let table = filled(100_000, MemoryBounds { max_keys: 10_000, ..Default::default() });
        assert_eq!(table.sampling_ratio(), 16);
        let kept = table.demands().count();
        assert!((5_500..7_000).contains(&kept), "{kept}");
        assert!(table.demands().all(|plain| plain.0 == 2));
    }

    #[test]
    fn bytes_are_bounded() {
        let table = filled(100_000, MemoryBounds { max_bytes: 1 << 20, ..Default::default() });
        assert!(table.sampling_ratio() >= 4, "{}", table.sampling_ratio());
        assert!(table.entries.allocation_size() <= 1 << 20);
        assert!(table.demands().count() > 5_000);
    }
}
