//! The cells of one shard: a sorted array with gaps, in the order of the keys' hashes.
//!
//! ```text
//!   block 0                      block 1                     (64 slots of 32 bytes each)
//!   ├─ . 03 09 11 . 24 ... ──────┼─ 131 . . 160 162 ... ─┤
//!        └ its preferred slot is 2, which is taken: it moves on, and the order is kept
//! ```
//!
//! A hash has a preferred slot, in proportion to its value. An entry whose preferred slot is taken goes to a slot
//! shortly after it, so that the order is kept: linear probing, ordered as in Celis' Robin Hood hashing (1986). So a
//! key is found, or known to be absent, within a few neighbours, which lie in one or two cache lines.
//!
//! The array grows by an eighth when it is four fifths full. It grows by blocks that never move, so growing needs
//! no second copy of the array and does not fragment the memory. The price is about eight moves for each new cell. A
//! cell takes 40 to 47 bytes, gaps included.
//!
//! What always holds: entries are in the order of their hashes, and none is before its preferred slot. This
//! module does not know quotas, limits or time.

use std::num::NonZeroU32;

use hashbrown::HashMap;
use prefetch_index::prefetch_index;
use smallvec::SmallVec;

use super::changed_keys::{ChangedKeys, EntryOrder};
use super::written_ahead::KeyGrants;
use crate::clock::Nanos;
use crate::limit::Cell;
use crate::policy::KeyHash;

/// Slots of a block, which takes two kibibytes.
const BLOCK_SLOTS: usize = 64;

/// Slots at the end of the array that no hash prefers. They take the entries that the last preferred slots
/// displace.
const TAIL_SLOTS: usize = 16;

/// [`TAIL_SLOTS`] of an array of one block.
const SHORT_TAIL_SLOTS: usize = 8;

/// Blocks that are listed in the table itself. With this many, a shard takes two neighbouring cache lines, and the
/// first of them lists the blocks that a million keys need. Every further access to memory outside the caches
/// costs a decision more than everything else in it.
const INLINE_BLOCKS: usize = 12;

/// The largest share of the preferred slots that may be taken, as a fraction. At this load a key is found two
/// slots behind its preferred slot on average.
const MAX_LOAD_NUMERATOR: u32 = 4;
const MAX_LOAD_DENOMINATOR: u32 = 5;

/// The cell of one key.
#[derive(Debug)]
pub(super) struct CellEntry {
    low: u64,
    /// Together with the number of the shard, 108 of a key's 128 bits are compared. Among ten million keys, two
    /// are taken for one with a probability of 10^-19.
    high: u32,
    /// The number of the quota, plus 1, and two marks. As it is never 0, `Option<CellEntry>` is no larger than
    /// `CellEntry`.
    quota_plus_1: NonZeroU32,
    pub(super) cell: Cell,
}

type Block = [Option<CellEntry>; BLOCK_SLOTS];

/// The cells of one shard. The layout is fixed: first what every search reads, then the list of blocks.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Table {
    /// How many slots hashes prefer. Entries that the last of them displaces are in the slots behind.
    preferred_slots: u32,
    len: u32,
    /// A block does not move when others are added.
    blocks: SmallVec<[Box<Block>; INLINE_BLOCKS]>,
    /// Which cells are to be saved or handed over; `None`: none ever is.
    tracking: Option<Box<Tracking>>,
}

/// What is kept of a table for those who copy its cells.
#[derive(Debug)]
struct Tracking {
    changed: ChangedKeys,
    /// The entries whose cells a successor has, as they were then.
    handed_over: Option<HandedOver>,
}

/// The entries of a table, without the table.
#[derive(Debug)]
struct HandedOver {
    preferred_slots: u32,
    len: u32,
    blocks: SmallVec<[Box<Block>; INLINE_BLOCKS]>,
}

/// Bytes of memory that one cell takes in a large table, gaps included. A log takes 16 bytes more for each charge;
/// what a cell holds on the heap counts against `max_keys` too.
pub const CELL_BYTES: usize = size_of::<Option<CellEntry>>() * 11 / 8;

/// The mark of a cell that has changed since it was saved.
const CHANGED: u32 = 1 << 31;

/// The mark of a changed cell that is among the changed keys of its shard, or that a look at the whole shard will find.
const LISTED: u32 = 1 << 30;

/// The bits of a quota's number, plus 1.
const QUOTA_BITS: u32 = LISTED - 1;

impl CellEntry {
    pub(super) fn new(key: KeyHash, cell: Cell, quota: u32) -> Self {
        let quota_plus_1 = NonZeroU32::MIN.saturating_add(quota);
        Self { low: key.low, high: key.high as u32, quota_plus_1, cell }
    }

    /// The number of the quota that wrote the cell.
    pub(super) const fn quota(&self) -> u32 {
        (self.quota_plus_1.get() & QUOTA_BITS) - 1
    }

    pub(super) const fn set_quota(&mut self, quota: u32) {
        let marks = self.quota_plus_1.get() & !QUOTA_BITS;
        self.quota_plus_1 = NonZeroU32::MIN.saturating_add(quota | marks);
    }

    /// Marks the cell as changed.
    pub(super) const fn set_changed(&mut self) {
        self.set_marks(CHANGED);
    }

    /// Whether the cell has changed and is in no list of changed keys.
    pub(super) const fn is_unlisted(&self) -> bool {
        self.quota_plus_1.get() & (CHANGED | LISTED) == CHANGED
    }

    const fn is_changed(&self) -> bool {
        self.quota_plus_1.get() & CHANGED != 0
    }

    const fn set_marks(&mut self, marks: u32) {
        if let Some(marked) = NonZeroU32::new(self.quota_plus_1.get() | marks) {
            self.quota_plus_1 = marked;
        }
    }

    const fn clear_marks(&mut self) {
        if let Some(quota_plus_1) = NonZeroU32::new(self.quota_plus_1.get() & QUOTA_BITS) {
            self.quota_plus_1 = quota_plus_1;
        }
    }

    /// The key, of which bits 32 to 51 of the high half are not kept and read as 0. `shard_bits`: the number of the
    /// shard, as the key's first bits.
    pub(super) const fn key(&self, shard_bits: u64) -> KeyHash {
        KeyHash { high: shard_bits | self.high as u64, low: self.low }
    }

    pub(super) const fn order(&self) -> EntryOrder {
        (self.low, self.high)
    }
}

const fn order_of(key: KeyHash) -> EntryOrder {
    (key.low, key.high as u32)
}

impl Table {
    /// Bytes of memory that the array takes.
    pub(super) fn bytes(&self) -> usize {
        let handed_over = self.tracking.as_ref().and_then(|all| all.handed_over.as_ref());
        let lists = std::iter::once(&self.blocks).chain(handed_over.map(|table| &table.blocks));
        let bytes = lists.map(|blocks| {
            let listed = if blocks.spilled() { blocks.capacity() } else { 0 };
            blocks.len() * size_of::<Block>() + listed * size_of::<Box<Block>>()
        });
        bytes.sum()
    }

    /// The entry of a key, with its slot. `hint` is the slot where the key was found earlier; it may have moved.
    pub(super) fn find_entry(
        &mut self,
        key: KeyHash,
        hint: Option<usize>,
    ) -> Option<(usize, &mut CellEntry)> {
        let slot = self.find(key, hint).ok()?;
        Some((slot, self.get_mut(slot)?))
    }

    /// The slot of a key, or, as an error, the slot into which it would be inserted.
    fn find(&self, key: KeyHash, hint: Option<usize>) -> Result<usize, usize> {
        let wanted = order_of(key);
        if let Some(slot) = hint
            && self.get(slot).is_some_and(|entry| entry.order() == wanted)
        {
            return Ok(slot);
        }
        let blocks = self.blocks.as_slice();
        let mut slot = preferred_slot(key.low, self.preferred_slots);
        while let Some(entry) = entry_at(blocks, slot) {
            match entry.order().cmp(&wanted) {
                std::cmp::Ordering::Less => slot += 1,
                std::cmp::Ordering::Equal => return Ok(slot),
                std::cmp::Ordering::Greater => break,
            }
        }
        Err(slot)
    }

    /// Asks the processor to fetch the memory at which the search for a key begins.
    pub(super) fn prefetch(&self, key: KeyHash) {
        let slot = preferred_slot(key.low, self.preferred_slots);
        if let Some(block) = self.blocks.as_slice().get(slot / BLOCK_SLOTS) {
            prefetch_index(block.as_slice(), slot % BLOCK_SLOTS);
        }
    }

    /// Inserts an entry. Its key is absent.
    pub(super) fn insert(&mut self, key: KeyHash, entry: CellEntry) {
        if (self.len + 1) * MAX_LOAD_DENOMINATOR > self.preferred_slots * MAX_LOAD_NUMERATOR {
            self.grow();
        }
        let Err(mut slot) = self.find(key, None) else {
            return;
        };
        let mut carried = entry;
        while let Some(displaced) = self.slot_mut(slot).replace(carried) {
            carried = displaced;
            slot += 1;
        }
        self.len += 1;
    }

    /// From now on, changed cells are listed.
    pub(super) fn track_changes(&mut self) {
        self.tracking.get_or_insert_with(|| {
            Box::new(Tracking { changed: ChangedKeys::new(), handed_over: None })
        });
    }

    /// Lists the changed cell in this slot, unless it is listed.
    pub(super) fn list_changed(&mut self, slot: usize) {
        let Self { tracking: Some(tracking), blocks, .. } = self else {
            return;
        };
        let entry =
            blocks.get_mut(slot / BLOCK_SLOTS).and_then(|block| block[slot % BLOCK_SLOTS].as_mut());
        if let Some(entry) = entry.filter(|entry| entry.is_unlisted()) {
            entry.set_marks(LISTED);
            tracking.changed.add(entry.order());
        }
    }

    /// [`Table::list_changed`] for the cell of a key, if it has one.
    pub(super) fn list_changed_key(&mut self, key: KeyHash) {
        if self.tracking.is_some()
            && let Ok(slot) = self.find(key, None)
        {
            self.list_changed(slot);
        }
    }

    /// Spends units of what a key may spend before it is saved again. Returns whether they are covered.
    pub(super) fn spend_ahead(&mut self, key: KeyHash, units: u32, saved: u64, now: Nanos) -> bool {
        self.tracking.as_mut().is_none_or(|tracking| {
            let grants = &mut tracking.changed.grants;
            grants.entry(order_of(key)).or_default().spend(units, saved, now)
        })
    }

    /// Forgets grants whose time is over.
    pub(super) fn drop_ended_grants(&mut self, now: Nanos) {
        let grants = self.tracking.as_mut().map(|tracking| &mut tracking.changed.grants);
        if let Some(grants) = grants.filter(|grants| !grants.is_empty()) {
            grants.retain(|_, grants| !grants.are_over(now));
            if grants.capacity() > 4 * grants.len() {
                grants.shrink_to_fit();
            }
        }
    }

    /// Calls `visit` with every cell that has changed since the last call, and with the order of keys whose cells are
    /// gone.
    pub(super) fn take_changed(
        &mut self,
        mut visit: impl FnMut(EntryOrder, Option<&CellEntry>, &mut HashMap<EntryOrder, KeyGrants>),
    ) {
        let Some(mut tracking) = self.tracking.take() else {
            return;
        };
        let changed = &mut tracking.changed;
        if changed.is_overfull() {
            self.for_each(|entry| {
                if entry.is_changed() {
                    entry.clear_marks();
                    visit(entry.order(), Some(entry), &mut changed.grants);
                }
            });
        }
        for index in 0..changed.listed().len() {
            let (low, high) = changed.listed()[index];
            let key = KeyHash { high: u64::from(high), low };
            match self.find_entry(key, None) {
                Some((_, entry)) if entry.is_changed() => {
                    entry.clear_marks();
                    visit((low, high), Some(entry), &mut changed.grants);
                }
                Some(_) => {}
                None => visit((low, high), None, &mut changed.grants),
            }
        }
        changed.clear();
        self.tracking = Some(tracking);
    }

    /// Whether cells have changed since they were last taken.
    pub(super) fn has_changes(&self) -> bool {
        self.tracking.as_ref().is_some_and(|tracking| !tracking.changed.is_empty())
    }

    /// [`Table::take_changed`], after which a successor has the cells: the table has no entry, and none may be inserted
    /// until they are taken back.
    pub(super) fn hand_over(
        &mut self,
        visit: impl FnMut(EntryOrder, Option<&CellEntry>, &mut HashMap<EntryOrder, KeyGrants>),
    ) {
        self.track_changes();
        self.take_changed(visit);
        let Self { preferred_slots, len, blocks, tracking } = self;
        if let Some(tracking) = tracking {
            tracking.handed_over = Some(HandedOver {
                preferred_slots: std::mem::take(preferred_slots),
                len: std::mem::take(len),
                blocks: std::mem::take(blocks),
            });
        }
    }

    /// Whether a successor has the cells.
    pub(super) fn is_handed_over(&self) -> bool {
        // The list of changes is another access to memory, which a table with cells does not need.
        self.len == 0
            && self.tracking.as_ref().is_some_and(|tracking| tracking.handed_over.is_some())
    }

    /// Exchanges the entries, of which there are none while a successor has the cells, for those as they were when it got
    /// them. A second call undoes it.
    pub(super) fn swap_kept(&mut self) {
        let Self { preferred_slots, len, blocks, tracking } = self;
        if let Some(kept) = tracking.as_mut().and_then(|tracking| tracking.handed_over.as_mut()) {
            std::mem::swap(preferred_slots, &mut kept.preferred_slots);
            std::mem::swap(len, &mut kept.len);
            std::mem::swap(blocks, &mut kept.blocks);
        }
    }

    /// Takes the cells back as they were when they were handed over, with what was charged in them since.
    pub(super) fn take_back(&mut self) {
        let handed_over = self.tracking.as_mut().and_then(|tracking| tracking.handed_over.take());
        if let Some(HandedOver { preferred_slots, len, blocks }) = handed_over {
            (self.preferred_slots, self.len, self.blocks) = (preferred_slots, len, blocks);
        }
    }

    /// Calls `visit` with every entry and the grants of the shard's keys.
    pub(super) fn visit_saved(
        &mut self,
        mut visit: impl FnMut(&CellEntry, Option<&mut HashMap<EntryOrder, KeyGrants>>),
    ) {
        let Self { blocks, tracking, .. } = self;
        for entry in blocks.iter().flat_map(|block| block.iter().flatten()) {
            visit(entry, tracking.as_mut().map(|tracking| &mut tracking.changed.grants));
        }
    }

    /// Calls `visit` with every entry.
    pub(super) fn for_each(&mut self, mut visit: impl FnMut(&mut CellEntry)) {
        self.blocks.iter_mut().flat_map(|block| block.iter_mut().flatten()).for_each(&mut visit);
    }

    /// Drops the entries that are idle, and frees blocks that are not needed any more. Calls `on_drop` with every
    /// entry that it drops.
    pub(super) fn sweep(
        &mut self,
        is_idle: impl Fn(&CellEntry) -> bool,
        mut on_drop: impl FnMut(&CellEntry),
    ) {
        if !self.blocks.iter().flat_map(|block| block.iter().flatten()).any(&is_idle) {
            return;
        }
        let mut len = 0;
        self.reinsert_from(0, |entry| {
            let idle = is_idle(entry);
            if idle {
                on_drop(entry);
            }
            len += u32::from(!idle);
            !idle
        });
        self.len = len;
        let needed =
            (len * MAX_LOAD_DENOMINATOR).div_ceil(MAX_LOAD_NUMERATOR) as usize + TAIL_SLOTS;
        // Room to grow by an eighth stays. The memory of a flood of keys does not.
        let blocks = (needed + needed / 8).div_ceil(BLOCK_SLOTS);
        if len == 0 {
            *self = Self { tracking: self.tracking.take(), ..Self::default() };
        } else if blocks < blocks_of(self.preferred_slots) * 3 / 4 {
            self.preferred_slots = preferred_slots_of(blocks);
            let end = self.reinsert_from(0, |_| true);
            self.blocks.truncate(blocks.max(end.div_ceil(BLOCK_SLOTS)));
            self.blocks.shrink_to_fit();
        }
    }

    /// Grows the array by an eighth, or by one block.
    ///
    /// It grows without a copy, because a second array would have to come from the system under the shard's lock. All
    /// entries move to the end, the last one first, and from there to their new slots.
    fn grow(&mut self) {
        let blocks = self.blocks.len() + (self.blocks.len() / 8).max(1);
        self.preferred_slots = preferred_slots_of(blocks);
        let entries = self.blocks.iter().flat_map(|block| block.iter().flatten());
        let end = entries
            .fold(0, |next, entry| preferred_slot(entry.low, self.preferred_slots).max(next) + 1);
        let blocks = blocks.max(end.div_ceil(BLOCK_SLOTS));
        let before = self.blocks.len();
        self.blocks.reserve_exact(blocks - before);
        self.blocks.resize_with(blocks, || Box::new([const { None }; BLOCK_SLOTS]));
        let all = self.blocks.as_mut_slice();
        let mut first = blocks * BLOCK_SLOTS;
        for block in (0..before).rev() {
            for index in (0..BLOCK_SLOTS).rev() {
                if let Some(entry) = all[block][index].take() {
                    first -= 1;
                    all[first / BLOCK_SLOTS][first % BLOCK_SLOTS] = Some(entry);
                }
            }
        }
        self.reinsert_from(first / BLOCK_SLOTS, |_| true);
    }

    /// Moves the entries from block `first` on to their slots, in order, and drops those that `keep` refuses.
    /// Returns the slot behind the last entry.
    ///
    /// No entry may move to a later slot. This holds if all entries are at the end of the array, and if the
    /// number of preferred slots did not grow.
    fn reinsert_from(&mut self, first: usize, mut keep: impl FnMut(&CellEntry) -> bool) -> usize {
        let all = self.blocks.as_mut_slice();
        let mut next = 0;
        for block in first..all.len() {
            for index in 0..BLOCK_SLOTS {
                let Some(entry) = all[block][index].take().filter(&mut keep) else {
                    continue;
                };
                let slot = preferred_slot(entry.low, self.preferred_slots).max(next);
                all[slot / BLOCK_SLOTS][slot % BLOCK_SLOTS] = Some(entry);
                next = slot + 1;
            }
        }
        next
    }

    fn get(&self, slot: usize) -> Option<&CellEntry> {
        entry_at(&self.blocks, slot)
    }

    fn get_mut(&mut self, slot: usize) -> Option<&mut CellEntry> {
        self.blocks.get_mut(slot / BLOCK_SLOTS)?[slot % BLOCK_SLOTS].as_mut()
    }

    /// A slot. Where it is the first one behind the array, a block is added: the last preferred slots have
    /// displaced more entries than the tail holds.
    fn slot_mut(&mut self, slot: usize) -> &mut Option<CellEntry> {
        if slot / BLOCK_SLOTS == self.blocks.len() {
            self.blocks.push(Box::new([const { None }; BLOCK_SLOTS]));
        }
        &mut self.blocks[slot / BLOCK_SLOTS][slot % BLOCK_SLOTS]
    }
}

fn entry_at(blocks: &[Box<Block>], slot: usize) -> Option<&CellEntry> {
    blocks.get(slot / BLOCK_SLOTS)?[slot % BLOCK_SLOTS].as_ref()
}

/// The preferred slots of an array of this many blocks. 32 bits suffice: no shard takes 100 GiB.
const fn preferred_slots_of(blocks: usize) -> u32 {
    let tail = if blocks > 1 { TAIL_SLOTS } else { SHORT_TAIL_SLOTS };
    (blocks * BLOCK_SLOTS - tail) as u32
}

/// The blocks for which [`preferred_slots_of`] returned this number. There may be more, behind the last preferred
/// slot.
const fn blocks_of(preferred_slots: u32) -> usize {
    (preferred_slots as usize + SHORT_TAIL_SLOTS).div_ceil(BLOCK_SLOTS)
}

/// The slot that a hash prefers. It ascends with the hash, so the array is sorted.
const fn preferred_slot(low: u64, preferred_slots: u32) -> usize {
    (((low >> 32) * preferred_slots as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::limit::{Quota, Rate, SlidingWindow};

    fn entry(key: KeyHash, quota: u32) -> CellEntry {
        let cell = Quota::SlidingWindow(SlidingWindow::new(Rate::PER_SECOND)).empty_cell();
        CellEntry::new(key, cell, quota)
    }

    /// Checks what always holds: entries are in order, none is before its preferred slot, and every key is found.
    fn check(table: &Table, model: &HashMap<(u64, u64), u32>) {
        assert_eq!(table.len as usize, model.len());
        let entries: Vec<(usize, &CellEntry)> = (0..table.blocks.len() * BLOCK_SLOTS)
            .filter_map(|slot| table.get(slot).map(|entry| (slot, entry)))
            .collect();
        assert!(entries.windows(2).all(|pair| pair[0].1.order() < pair[1].1.order()));
        let preferred = |entry: &CellEntry| preferred_slot(entry.low, table.preferred_slots);
        assert!(entries.iter().all(|(slot, entry)| preferred(entry) <= *slot));
        for ((low, high), quota) in model {
            let key = KeyHash { low: *low, high: *high };
            let Ok(slot) = table.find(key, None) else {
                panic!("{key:?} is lost among {}", model.len());
            };
            assert_eq!(table.get(slot).map(CellEntry::quota), Some(*quota));
        }
    }

    /// Keys of four kinds: random, adjacent, all at the end, all with one low half.
    fn key(kind: u64, random: &mut fastrand::Rng) -> KeyHash {
        let low = match kind % 4 {
            0 => random.u64(..),
            1 => random.u64(..1_000) << 32,
            2 => u64::MAX - random.u64(..100),
            _ => 7,
        };
        KeyHash { low, high: random.u64(..1 << 20) }
    }

    #[test]
    fn the_table_agrees_with_a_hash_map() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut table, mut model) = (Table::default(), HashMap::new());
            let inserts = if seed % 4 < 2 { [30, 300, 3_000][(seed % 3) as usize] } else { 200 };
            for quota in 0..inserts {
                let key = key(seed, &mut random);
                if model.insert((key.low, key.high), quota).is_none() {
                    assert!(table.find(key, None).is_err());
                    table.insert(key, entry(key, quota));
                } else if let Ok(slot) = table.find(key, None) {
                    table.get_mut(slot).unwrap().set_quota(quota);
                }
                if random.u32(..inserts) == 0 {
                    let divisor = random.u32(1..5);
                    table.sweep(|entry| entry.quota().is_multiple_of(divisor), |_| {});
                    model.retain(|_, quota| !quota.is_multiple_of(divisor));
                    check(&table, &model);
                }
            }
            check(&table, &model);
            table.sweep(|_| true, |_| {});
            assert_eq!((table.len, table.bytes()), (0, 0), "an empty table takes no memory");
        }
    }

    #[test]
    fn a_cell_takes_48_bytes_or_less() {
        assert_eq!(size_of::<Option<CellEntry>>(), 32);
        let mut random = fastrand::Rng::with_seed(1);
        let mut table = Table::default();
        let mut max = 0.0_f64;
        while table.len < 3_000 {
            let key = KeyHash { low: random.u64(..), high: random.u64(..) };
            table.insert(key, entry(key, 0));
            if table.len > 500 {
                max = max.max(table.bytes() as f64 / f64::from(table.len));
            }
        }
        assert!(max <= 48.0, "{max} bytes");
        table.sweep(|entry| entry.low % 16 != 0, |_| {});
        assert!(table.bytes() < 20 * 1_024, "{} bytes for {}", table.bytes(), table.len);
    }
}
