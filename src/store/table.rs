//! The cells of one shard: an array in the order of the keys' hashes, with gaps.
//!
//! ```text
//!   block 0                      block 1                     (64 slots of 32 bytes each)
//!   ├─ . 03 09 11 . 24 ... ──────┼─ 131 . . 160 162 ... ─┤
//!        └ home 2, displaced to 3: what collides moves on, and stays in order
//! ```
//!
//! A hash has a home, its share of the array; what finds its home taken stands right behind, in
//! order (linear probing as Celis' Robin Hood hashing orders it, 1986). So a key is found, or known
//! to be absent, within a few neighbours, which lie in one or two lines of the processor's cache.
//!
//! The array grows by an eighth when it is four fifths full, by blocks that never move: no other
//! memory is held for a moment, and none is left over in sizes that nobody needs again. That costs
//! each new cell about eight moves, and keeps a cell at 40 to 47 bytes, gaps included.

use std::num::NonZeroU32;

use prefetch_index::prefetch_index;
use smallvec::SmallVec;

use crate::limit::Cell;
use crate::policy::KeyHash;

/// Slots of a block: two kibibytes.
const BLOCK: usize = 64;

/// Slots at the end that are nobody's home: what is displaced there must not run off the array.
const TAIL: usize = 16;

/// The same of an array of one block.
const SHORT_TAIL: usize = 8;

/// Blocks that are found without another step: with these a shard is two neighbouring lines of the
/// processor's cache, and lists in the first of them what a million keys need. A step that is not
/// in the cache costs a decision more than everything else in it.
const NEAR: usize = 12;

/// How full the homes may be: what is looked for is then two slots from home on average.
const MOST_LOAD: (u32, u32) = (4, 5);

/// One key's cell.
#[derive(Debug)]
pub(super) struct Entry {
    low: u64,
    /// With the number of the shard, 108 of a key's 128 bits are told apart: among ten million
    /// keys two are alike with a probability of 10^-19.
    high: u32,
    /// Of the quota, and one: so that no entry is no larger than one.
    quota: NonZeroU32,
    pub(super) cell: Cell,
}

type Block = [Option<Entry>; BLOCK];

/// The cells of one shard. (Laid out as it is written: what every search reads, then the list.)
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Table {
    /// Slots that are somebody's home; what is displaced from the last of them stands behind.
    homes: u32,
    len: u32,
    /// Each stays where it is while others are added.
    blocks: SmallVec<[Box<Block>; NEAR]>,
}

/// Where a key's cell is, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    At(usize),
    Absent(usize),
}

/// Memory of one cell, gaps included, when there are many; a log needs 16 bytes more for each
/// charge, and each is counted in `max_keys`.
pub const CELL_BYTES: usize = size_of::<Option<Entry>>() * 11 / 8;

impl Entry {
    pub(super) fn new(key: KeyHash, cell: Cell, quota: u32) -> Self {
        let quota = NonZeroU32::MIN.saturating_add(quota);
        Self { low: key.low, high: key.high as u32, quota, cell }
    }

    /// The number of the quota that wrote the cell.
    pub(super) const fn quota(&self) -> u32 {
        self.quota.get() - 1
    }

    pub(super) const fn set_quota(&mut self, quota: u32) {
        self.quota = NonZeroU32::MIN.saturating_add(quota);
    }

    const fn order(&self) -> (u64, u32) {
        (self.low, self.high)
    }
}

const fn order(key: KeyHash) -> (u64, u32) {
    (key.low, key.high as u32)
}

impl Table {
    /// Bytes of its array.
    pub(super) fn bytes(&self) -> usize {
        let listed = if self.blocks.spilled() { self.blocks.capacity() } else { 0 };
        self.blocks.len() * size_of::<Block>() + listed * size_of::<Box<Block>>()
    }

    /// Finds a key. `hint`: where it was found before.
    pub(super) fn find(&self, key: KeyHash, hint: Option<Place>) -> Place {
        if let Some(Place::At(at)) = hint
            && self.slot(at).is_some_and(|entry| entry.order() == order(key))
        {
            return Place::At(at);
        }
        let wanted = order(key);
        let blocks = self.blocks.as_slice();
        let mut at = home(key.low, self.homes);
        while let Some(entry) = slot(blocks, at) {
            match entry.order().cmp(&wanted) {
                std::cmp::Ordering::Less => at += 1,
                std::cmp::Ordering::Equal => return Place::At(at),
                std::cmp::Ordering::Greater => break,
            }
        }
        Place::Absent(at)
    }

    /// Asks the processor for the line of its memory where the search for a key begins.
    pub(super) fn prefetch(&self, key: KeyHash) {
        let at = home(key.low, self.homes);
        if let Some(block) = self.blocks.as_slice().get(at / BLOCK) {
            prefetch_index(block.as_slice(), at % BLOCK);
        }
    }

    /// The entry at a place that was found.
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Entry> {
        self.blocks.get_mut(at / BLOCK)?[at % BLOCK].as_mut()
    }

    /// Inserts an entry whose key is absent.
    pub(super) fn insert(&mut self, key: KeyHash, entry: Entry) {
        let (part, whole) = MOST_LOAD;
        if (self.len + 1) * whole > self.homes * part {
            self.grow();
        }
        let Place::Absent(mut at) = self.find(key, None) else {
            return;
        };
        let mut carried = entry;
        while let Some(displaced) = self.slot_mut(at).replace(carried) {
            carried = displaced;
            at += 1;
        }
        self.len += 1;
    }

    /// Shows every entry.
    pub(super) fn for_each(&mut self, mut show: impl FnMut(&mut Entry)) {
        self.blocks.iter_mut().flat_map(|block| block.iter_mut().flatten()).for_each(&mut show);
    }

    /// Drops the entries that `is_idle`, each shown to `dropped`, and blocks that are not needed any
    /// more.
    pub(super) fn sweep(
        &mut self,
        is_idle: impl Fn(&Entry) -> bool,
        mut dropped: impl FnMut(&Entry),
    ) {
        if !self.blocks.iter().flat_map(|block| block.iter().flatten()).any(&is_idle) {
            return;
        }
        let mut len = 0;
        self.place(0, |entry| {
            let idle = is_idle(entry);
            if idle {
                dropped(entry);
            }
            len += u32::from(!idle);
            !idle
        });
        self.len = len;
        let (part, whole) = MOST_LOAD;
        let needed = (len * whole).div_ceil(part) as usize + TAIL;
        // Some room to grow, and none of the memory of a flood.
        let blocks = (needed + needed / 8).div_ceil(BLOCK);
        if len == 0 {
            *self = Self::default();
        } else if blocks < blocks_of(self.homes) * 3 / 4 {
            self.homes = homes(blocks);
            let end = self.place(0, |_| true);
            self.blocks.truncate(blocks.max(end.div_ceil(BLOCK)));
            self.blocks.shrink_to_fit();
        }
    }

    /// Makes room for more: an eighth, or a block.
    ///
    /// In place, since memory for a moment would have to come from the system under the shard's
    /// lock: all move to the end, the last one first, and from there to their new places.
    fn grow(&mut self) {
        let blocks = self.blocks.len() + (self.blocks.len() / 8).max(1);
        self.homes = homes(blocks);
        let entries = self.blocks.iter().flat_map(|block| block.iter().flatten());
        let end = entries.fold(0, |next, entry| home(entry.low, self.homes).max(next) + 1);
        let blocks = blocks.max(end.div_ceil(BLOCK));
        let before = self.blocks.len();
        self.blocks.reserve_exact(blocks - before);
        self.blocks.resize_with(blocks, || Box::new([const { None }; BLOCK]));
        let all = self.blocks.as_mut_slice();
        let mut first = blocks * BLOCK;
        for block in (0..before).rev() {
            for slot in (0..BLOCK).rev() {
                if let Some(entry) = all[block][slot].take() {
                    first -= 1;
                    all[first / BLOCK][first % BLOCK] = Some(entry);
                }
            }
        }
        self.place(first / BLOCK, |_| true);
    }

    /// Moves the entries of all blocks from one on to the places that they have among these homes,
    /// the first one first; those that `keep` refuses are dropped. Returns where the next one would
    /// stand.
    ///
    /// No entry may have its place behind where it is: they stand at the end, or the homes are no
    /// more than they were.
    fn place(&mut self, first: usize, mut keep: impl FnMut(&Entry) -> bool) -> usize {
        let all = self.blocks.as_mut_slice();
        let mut next = 0;
        for block in first..all.len() {
            for slot in 0..BLOCK {
                let Some(entry) = all[block][slot].take().filter(&mut keep) else {
                    continue;
                };
                let at = home(entry.low, self.homes).max(next);
                all[at / BLOCK][at % BLOCK] = Some(entry);
                next = at + 1;
            }
        }
        next
    }

    fn slot(&self, at: usize) -> Option<&Entry> {
        slot(&self.blocks, at)
    }

    /// A slot, of one block more where it is behind the last: more are displaced from the last
    /// homes than the tail holds.
    fn slot_mut(&mut self, at: usize) -> &mut Option<Entry> {
        if at / BLOCK == self.blocks.len() {
            self.blocks.push(Box::new([const { None }; BLOCK]));
        }
        &mut self.blocks[at / BLOCK][at % BLOCK]
    }
}

fn slot(blocks: &[Box<Block>], at: usize) -> Option<&Entry> {
    blocks.get(at / BLOCK)?[at % BLOCK].as_ref()
}

/// Slots of so many blocks that are somebody's home. (Of 32 bits: a shard of 100 GiB there is not.)
const fn homes(blocks: usize) -> u32 {
    (blocks * BLOCK - if blocks > 1 { TAIL } else { SHORT_TAIL }) as u32
}

/// The blocks that so many homes were made of; there may be more, behind the last home.
const fn blocks_of(homes: u32) -> usize {
    (homes as usize + SHORT_TAIL).div_ceil(BLOCK)
}

/// The place of a hash in so many homes: in order, so that the array is sorted.
const fn home(low: u64, homes: u32) -> usize {
    (((low >> 32) * homes as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::limit::{Quota, Rate, SlidingWindow};

    fn entry(key: KeyHash, quota: u32) -> Entry {
        let cell = Quota::SlidingWindow(SlidingWindow::new(Rate::ONE_PER_SECOND)).empty_cell();
        Entry::new(key, cell, quota)
    }

    /// What must hold whatever happened: in order, nobody before his home, every one found.
    fn check(table: &Table, model: &HashMap<(u64, u64), u32>) {
        assert_eq!(table.len as usize, model.len());
        let entries: Vec<(usize, &Entry)> = (0..table.blocks.len() * BLOCK)
            .filter_map(|at| table.slot(at).map(|entry| (at, entry)))
            .collect();
        assert!(entries.windows(2).all(|pair| pair[0].1.order() < pair[1].1.order()));
        assert!(entries.iter().all(|(at, entry)| home(entry.low, table.homes) <= *at));
        for ((low, high), quota) in model {
            let key = KeyHash { low: *low, high: *high };
            let Place::At(at) = table.find(key, None) else {
                panic!("{key:?} is lost among {}", model.len());
            };
            assert_eq!(table.slot(at).map(Entry::quota), Some(*quota));
        }
    }

    /// Keys of all kinds: at random, one behind the other, all at the end, all alike.
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
    fn it_holds_what_a_map_holds() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut table, mut model) = (Table::default(), HashMap::new());
            let most = if seed % 4 < 2 { [30, 300, 3_000][(seed % 3) as usize] } else { 200 };
            for turn in 0..most {
                let key = key(seed, &mut random);
                if model.insert((key.low, key.high), turn).is_none() {
                    assert!(matches!(table.find(key, None), Place::Absent(_)));
                    table.insert(key, entry(key, turn));
                } else if let Place::At(at) = table.find(key, None) {
                    table.get_mut(at).unwrap().set_quota(turn);
                }
                if random.u32(..most) == 0 {
                    let of = random.u32(1..5);
                    table.sweep(|entry| entry.quota().is_multiple_of(of), |_| {});
                    model.retain(|_, quota| !quota.is_multiple_of(of));
                    check(&table, &model);
                }
            }
            check(&table, &model);
            table.sweep(|_| true, |_| {});
            assert_eq!((table.len, table.bytes()), (0, 0), "nothing is held for nobody");
        }
    }

    #[test]
    fn a_cell_takes_no_more_than_is_said() {
        assert_eq!(size_of::<Option<Entry>>(), 32);
        let mut random = fastrand::Rng::with_seed(1);
        let mut table = Table::default();
        let mut most = 0.0_f64;
        while table.len < 3_000 {
            let key = KeyHash { low: random.u64(..), high: random.u64(..) };
            table.insert(key, entry(key, 0));
            if table.len > 500 {
                most = most.max(table.bytes() as f64 / f64::from(table.len));
            }
        }
        assert!(most <= 48.0, "{most} bytes");
        table.sweep(|entry| entry.low % 16 != 0, |_| {});
        assert!(table.bytes() < 20 * 1_024, "{} bytes for {}", table.bytes(), table.len);
    }
}
