//! What a node publishes: which counts, and in which chunk.
//!
//! A node has a ring of chunks. An exchange writes one of them: the counts that changed, those that changed most first, and
//! those of the chunk that it replaces which still hold. So what has changed is known everywhere after one exchange, a
//! node that comes later finds everything in the ring, and an exchange writes a bounded number of bytes however many
//! keys there are.
//!
//! What must always hold: a count that a node published and does not vouch for any more is withdrawn, and counts of other
//! nodes are never published.

use hashbrown::HashMap;

use super::limits::FleetLimits;
use super::records::{CountName, CountRecord, MAX_RECORDS};
use crate::clock::Nanos;
use crate::limit::WindowPair;

/// The chunks of the ring. All of them together have room for more counts than are published in a window, except when
/// tens of thousands of keys are near their limits.
const RING: u16 = 64;

/// What a node has published.
#[derive(Debug, Default)]
pub(super) struct Publication {
    published: HashMap<CountName, Published>,
    /// The chunk that the next exchange writes.
    next: u16,
    /// For each limit, the largest number of units of a key for which the latest chunk had no room.
    unpublished: HashMap<u64, u32>,
}

/// A count as it was certainly published last.
#[derive(Clone, Copy, Debug)]
struct Published {
    counted: WindowPair,
    /// The chunk that has it; `None` if none has it for certain.
    chunk: Option<u16>,
}

/// What this node counted of a key that it may publish.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnCount {
    pub(super) name: CountName,
    pub(super) counted: WindowPair,
}

/// A chunk that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NextChunk {
    pub(super) number: u16,
    pub(super) records: Vec<CountRecord>,
}

/// A count that may be written, and how much it matters.
struct Candidate {
    record: CountRecord,
    /// By how many units it changed.
    units: u32,
    /// The same as a share of its limit.
    share: u64,
}

impl Publication {
    /// Whether a count of this key is published.
    pub(super) fn has(&self, name: CountName) -> bool {
        self.published.contains_key(&name)
    }

    /// What the next exchange writes: `own` are all counts that are large enough, and all that are published. `None`:
    /// nothing has changed.
    pub(super) fn next_chunk(
        &mut self,
        own: &[OwnCount],
        limits: &FleetLimits,
        now: Nanos,
    ) -> Option<NextChunk> {
        self.published.retain(|name, published| {
            limits.tagged(name.tag).is_some_and(|limit| !limit.is_over(published.counted, now))
        });
        let mut candidates = self.changed(own, limits, now);
        candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.share));
        self.unpublished.clear();
        for Candidate { record, units, .. } in candidates.iter().skip(MAX_RECORDS) {
            let largest = self.unpublished.entry(record.name.tag).or_default();
            *largest = (*largest).max(*units);
        }
        candidates.truncate(MAX_RECORDS);
        if candidates.is_empty() {
            return None;
        }
        let records = candidates.into_iter().map(|candidate| candidate.record).collect();
        Some(NextChunk { number: self.next, records })
    }

    /// Records that a chunk was written (`is_certain`), or may have been.
    pub(super) fn record_written(&mut self, chunk: &NextChunk, is_certain: bool) {
        for published in self.published.values_mut() {
            if published.chunk == Some(chunk.number) {
                published.chunk = None;
            }
        }
        for CountRecord { name, counted } in &chunk.records {
            let (window, ..) = counted.counts();
            let nothing = WindowPair::of_counts((window, 0, 0));
            let published =
                self.published.entry(*name).or_insert(Published { counted: nothing, chunk: None });
            if is_certain {
                *published = Published { counted: *counted, chunk: Some(chunk.number) };
            }
        }
        self.next = (chunk.number + 1) % RING;
    }

    /// The largest number of units of a key under a limit for which the latest chunk had no room.
    pub(super) fn unpublished(&self, tag: u64) -> u32 {
        self.unpublished.get(&tag).copied().unwrap_or_default()
    }

    /// Forgets what was published, because the store has lost it.
    pub(super) fn begin_anew(&mut self) {
        self.published.values_mut().for_each(|published| published.chunk = None);
    }

    /// The counts that are not published as they are now, and those that are in no chunk after the next one is written.
    fn changed(&self, own: &[OwnCount], limits: &FleetLimits, now: Nanos) -> Vec<Candidate> {
        let mut unseen = self.published.clone();
        let mut candidates = Vec::new();
        for OwnCount { name, counted } in own {
            let before = unseen.remove(name);
            let is_new = before.is_none_or(|before| before.counted != *counted);
            let stays_in_chunk =
                before.is_some_and(|before| before.chunk.is_some_and(|chunk| chunk != self.next));
            if is_new || !stays_in_chunk {
                let record = CountRecord { name: *name, counted: *counted };
                candidates.extend(candidate(record, before, limits, now));
            }
        }
        // This node does not count these keys any more: their cells went to heavier keys, or were reset and then freed.
        for (name, before) in unseen {
            let (window, current, previous) = before.counted.counts();
            let is_withdrawn = current == 0 && previous == 0;
            let stays_in_chunk = before.chunk.is_some_and(|chunk| chunk != self.next);
            if !is_withdrawn || !stays_in_chunk {
                let counted = WindowPair::of_counts((window, 0, 0));
                let record = CountRecord { name, counted };
                candidates.extend(candidate(record, Some(before), limits, now));
            }
        }
        candidates
    }
}

fn candidate(
    record: CountRecord,
    before: Option<Published>,
    limits: &FleetLimits,
    now: Nanos,
) -> Option<Candidate> {
    let limit = limits.tagged(record.name.tag)?;
    let known = before.map_or(0, |before| limit.units(before.counted, now));
    let units = limit.units(record.counted, now).abs_diff(known);
    Some(Candidate { record, units, share: limit.share(units) })
}
