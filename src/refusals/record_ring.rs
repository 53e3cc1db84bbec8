//! A ring of the latest records in fixed memory: many threads write, and no thread waits for another.
//!
//! Each slot has a version, so that a reader notices when a writer came between (a seqlock; the orderings are those of
//! Boehm, "Can seqlocks get along with programming language memory models?", 2012):
//!
//! ```text
//!   0        nothing was written yet
//!   2n + 1   record n is being written
//!   2n + 2   record n is complete
//! ```
//!
//! It does not know what the words of a record say. What must always hold: a record is read as it was written, or not at
//! all; a writer that finds its slot taken drops its own record and counts that; readers change nothing, so they cannot
//! disturb a writer. Memory comes in blocks with the first records that need them: a node that refuses nothing holds none.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Slots of a block. So many records share the cost of an allocation, and it is too small to be noticed by the request
/// that makes it.
pub(super) const SLOTS_PER_BLOCK: usize = 256;

/// The ring. `WORDS`: the words of a record.
pub(super) struct Ring<const WORDS: usize> {
    blocks: Box<[OnceLock<RingBlock<WORDS>>]>,
    /// The number of the next record.
    next: AtomicU64,
    /// Records whose slot was taken.
    dropped: AtomicU64,
}

type RingBlock<const WORDS: usize> = Box<[RingSlot<WORDS>]>;

/// Room for one record.
pub(super) struct RingSlot<const WORDS: usize> {
    version: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordRead<T> {
    /// It is complete.
    Complete(T),
    /// It is not written yet, or was dropped.
    Absent,
    /// A later record is in its slot.
    Overwritten,
}

impl<const WORDS: usize> Ring<WORDS> {
    /// An empty ring of so many blocks.
    pub(super) fn new(blocks: usize) -> Self {
        Self {
            blocks: (0..blocks.max(1)).map(|_| OnceLock::new()).collect(),
            next: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// How many of the latest records are kept.
    pub(super) const fn capacity(&self) -> usize {
        self.blocks.len() * SLOTS_PER_BLOCK
    }

    /// The number of the next record.
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// How many records were dropped because their slot was taken.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The numbers of the records that may be there, the latest first.
    pub(super) fn latest(&self) -> impl Iterator<Item = u64> {
        let next = self.next();
        (next.saturating_sub(self.capacity() as u64)..next).rev()
    }

    /// Adds a record. `write` sets its words; the others keep what an earlier record had there.
    pub(super) fn push(&self, write: impl FnOnce(&RingSlot<WORDS>)) {
        let number = self.next.fetch_add(1, Ordering::AcqRel);
        let (block, index) = self.locate(number);
        let slot = &slots(block)[index];
        let complete = complete_version(number);
        let before = slot.version.load(Ordering::Relaxed);
        // An odd version: a writer that was stopped for a whole lap is still at work. A larger one: it was this writer.
        let is_free = before.is_multiple_of(2) && before < complete;
        let taken = is_free
            && slot
                .version
                .compare_exchange(before, complete - 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !taken {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // A reader that sees one of the words sees the odd version too.
        fence(Ordering::Release);
        write(slot);
        slot.version.store(complete, Ordering::Release);
    }

    /// Reads a record. What `read` sees may be a mixture of two records; its result is then dropped.
    pub(super) fn read<T>(
        &self,
        number: u64,
        read: impl FnOnce(&RingSlot<WORDS>) -> T,
    ) -> RecordRead<T> {
        let (block, index) = self.locate(number);
        let Some(slot) = block.get().and_then(|block| block.get(index)) else {
            return RecordRead::Absent;
        };
        let (complete, before) = (complete_version(number), slot.version.load(Ordering::Acquire));
        if before != complete {
            return if before > complete { RecordRead::Overwritten } else { RecordRead::Absent };
        }
        let record = read(slot);
        fence(Ordering::Acquire);
        match slot.version.load(Ordering::Relaxed) {
            after if after == complete => RecordRead::Complete(record),
            _ => RecordRead::Overwritten,
        }
    }

    /// The block of a record, and its index there.
    fn locate(&self, number: u64) -> (&OnceLock<RingBlock<WORDS>>, usize) {
        let slot = (number % self.capacity() as u64) as usize;
        (&self.blocks[slot / SLOTS_PER_BLOCK], slot % SLOTS_PER_BLOCK)
    }
}

/// The slots of a block. It is made without waiting: of two threads at once each allocates, and one of them drops its
/// block.
fn slots<const WORDS: usize>(block: &OnceLock<RingBlock<WORDS>>) -> &[RingSlot<WORDS>] {
    match block.get() {
        Some(made) => made,
        None => make(block),
    }
}

#[cold]
fn make<const WORDS: usize>(block: &OnceLock<RingBlock<WORDS>>) -> &[RingSlot<WORDS>] {
    let fresh: RingBlock<WORDS> = (0..SLOTS_PER_BLOCK).map(|_| RingSlot::default()).collect();
    // The lock of the cell is held for the move of a pointer.
    block.get_or_init(|| fresh)
}

impl<const WORDS: usize> Default for RingSlot<WORDS> {
    fn default() -> Self {
        let words = std::array::from_fn(|_| AtomicU64::new(0));
        Self { version: AtomicU64::new(0), words }
    }
}

impl<const WORDS: usize> RingSlot<WORDS> {
    /// Sets a word.
    pub(super) fn set(&self, index: usize, word: u64) {
        if let Some(slot) = self.words.get(index) {
            slot.store(word, Ordering::Relaxed);
        }
    }

    /// Reads a word.
    pub(super) fn word(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

/// The version of the slot when this record is complete.
const fn complete_version(number: u64) -> u64 {
    number.saturating_mul(2).saturating_add(2)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const WORDS: usize = 9;

    /// Every word of a record follows from its first.
    fn word(seed: u64, index: usize) -> u64 {
        let rotated = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(index as u32);
        if index == 0 { seed } else { rotated }
    }

    fn push(ring: &Ring<WORDS>, seed: u64) {
        ring.push(|slot| (0..WORDS).for_each(|index| slot.set(index, word(seed, index))));
    }

    fn words(slot: &RingSlot<WORDS>) -> [u64; WORDS] {
        std::array::from_fn(|index| slot.word(index))
    }

    #[test]
    fn the_latest_records_are_read_in_order() {
        let ring = Ring::<1>::new(2);
        assert_eq!((ring.capacity(), ring.latest().next()), (512, None));
        assert_eq!(ring.read(0, |slot| slot.word(0)), RecordRead::Absent, "no block was made");
        for seed in 0..1_300 {
            ring.push(|slot| slot.set(0, seed));
        }
        let read = |number| ring.read(number, |slot| slot.word(0));
        let latest: Vec<_> = ring.latest().map(read).collect();
        let expected: Vec<_> = (788..1_300).rev().map(RecordRead::Complete).collect();
        assert_eq!(latest, expected);
        assert_eq!(read(787), RecordRead::Overwritten);
        assert_eq!(read(1_300), RecordRead::Absent);
        assert_eq!(ring.dropped(), 0);
    }

    #[test]
    fn a_writer_that_was_overtaken_loses_nothing_of_others() {
        let ring = Ring::<1>::new(1);
        ring.push(|slot| {
            slot.set(0, 7);
            // A whole lap passes while this record is written: its slot is asked for, and refused.
            for seed in 0..300 {
                ring.push(|slot| slot.set(0, seed));
            }
        });
        assert_eq!(ring.dropped(), 1);
        assert_eq!(ring.read(0, |slot| slot.word(0)), RecordRead::Complete(7));
        assert_eq!(ring.read(256, |slot| slot.word(0)), RecordRead::Absent, "the dropped record");
        assert_eq!(ring.read(257, |slot| slot.word(0)), RecordRead::Complete(256));
    }

    #[test]
    fn a_reader_that_is_overtaken_reads_nothing() {
        let ring = Ring::<WORDS>::new(1);
        push(&ring, 1);
        let mixed = ring.read(0, |slot| {
            let first = slot.word(0);
            (0..256).for_each(|seed| push(&ring, seed + 2));
            (first, slot.word(1))
        });
        assert_eq!(mixed, RecordRead::Overwritten);
        let unfinished = Ring::<1>::new(1);
        unfinished.push(|_| assert_eq!(unfinished.read(0, |_| ()), RecordRead::Absent));
    }

    /// Writers and readers at once on a ring so small that they meet all the time: each record that is read is one that
    /// was written, with all its words.
    #[test]
    fn every_record_that_is_read_was_written() {
        const WRITERS: u64 = 6;
        const RECORDS: u64 = 60_000;
        let (ring, done) = (Ring::<WORDS>::new(1), AtomicBool::new(false));
        let read = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut read = 0_u64;
                        while !done.load(Ordering::Relaxed) {
                            for number in ring.latest() {
                                let RecordRead::Complete(found) = ring.read(number, words) else {
                                    continue;
                                };
                                let written = std::array::from_fn(|index| word(found[0], index));
                                assert!(found[0] < WRITERS * RECORDS, "{number}: {found:?}");
                                assert_eq!(found, written, "{number}");
                                read += 1;
                            }
                        }
                        read
                    })
                })
                .collect();
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let ring = &ring;
                    scope.spawn(move || {
                        (0..RECORDS).for_each(|n| push(ring, writer * RECORDS + n));
                    })
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            done.store(true, Ordering::Relaxed);
            readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u64>()
        });
        assert!(read > 0);
        let kept = ring.latest().filter(|n| ring.read(*n, words) != RecordRead::Absent).count();
        assert!(kept as u64 + ring.dropped() >= ring.capacity() as u64, "{kept}");
        assert_eq!(ring.next(), WRITERS * RECORDS);
    }
}
