//! What a node publishes: which counts, and in which chunk.
//!
//! A node has a ring of chunks. An exchange writes one of them: the counts that changed, those that changed most first, and
//! those of the chunk that it replaces which still hold. So what has changed is known everywhere after one exchange, a
//! node that comes later finds everything in the ring, and an exchange writes a bounded number of bytes however many
//! keys there are. Limits take turns, and so do the reasons to write: a flood of keys under one limit does not hide those of
//! another, and new counts do not crowd out what a restarted node has to find.
//!
//! What must always hold: a count that a node published and does not vouch for any more is withdrawn, counts of other
//! nodes are never published, and memory is bounded: by the counts of this node, and by [`MAX_PUBLISHED`].

use hashbrown::HashMap;

use super::heard::Heard;
use super::limits::FleetLimits;
use super::peaks::WindowPeaks;
use super::records::{CountName, CountRecord, MAX_RECORDS};
use crate::clock::Nanos;
use crate::limit::WindowPair;

/// The chunks of the ring. All of them together have room for more counts than are published in a window, except when
/// tens of thousands of keys are near their limits.
const RING: u16 = 64;

/// The most names that are known as published. With so many, no new one is published: about 16 MB. A ring has 44,800, and a node
/// counts 65,536 keys.
const MAX_PUBLISHED: usize = 196_608;

/// What a node has published.
#[derive(Debug, Default)]
pub(super) struct Publication {
    published: HashMap<CountName, Published>,
    /// The chunk that the next exchange writes.
    next: u16,
    /// Chunks that were certainly written, without another one in between.
    certain: u16,
    /// Whether chunks of the ring may have counts of limits that do not count over the fleet any more.
    has_obsolete: bool,
    /// The number of the latest look at the counts of this node.
    look: u64,
    /// The units of keys for which a chunk had no room.
    unpublished: WindowPeaks,
}

/// A count as it was certainly published last.
#[derive(Clone, Copy, Debug)]
struct Published {
    counted: WindowPair,
    /// The chunk that has it; `None` if none has it for certain.
    chunk: Option<u16>,
    /// What this node had heard of then.
    heard: Heard,
    /// The look that found it among the counts of this node last.
    seen: u64,
}

/// What this node counted of a key that it may publish.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnCount {
    pub(super) name: CountName,
    pub(super) counted: WindowPair,
    /// What this node has to have heard of before others believe it.
    pub(super) needed: Heard,
}

/// A chunk that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NextChunk {
    pub(super) number: u16,
    /// What this node had heard of before it counted.
    pub(super) heard: Heard,
    pub(super) records: Vec<CountRecord>,
}

/// A count that may be written, and how much it matters.
struct Candidate {
    record: CountRecord,
    reason: WriteReason,
    /// The units that it tells others.
    units: u32,
    /// The same as a share of its limit.
    share: u64,
}

/// Why a count may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum WriteReason {
    /// It is not published as it is now.
    Change,
    /// This node does not vouch for it any more.
    Withdrawal,
    /// No chunk has it once the next one is written: a node that comes later would not find it.
    Renewal,
}

impl Publication {
    /// Whether a count of this key is published.
    pub(super) fn has(&self, name: CountName) -> bool {
        self.published.contains_key(&name)
    }

    /// What the next exchange writes: `own` are all counts that are large enough, and all that are published; `heard` is what this
    /// node had heard of before it looked at them. `None`: nothing has changed.
    pub(super) fn next_chunk(
        &mut self,
        own: &[OwnCount],
        heard: Heard,
        limits: &FleetLimits,
        now: Nanos,
    ) -> Option<NextChunk> {
        self.published.retain(|name, published| {
            limits.tagged(name.tag).is_some_and(|limit| !limit.is_over(published.counted, now))
        });
        self.unpublished.expire(limits, now);
        let mut candidates = interleaved(self.changed(own, limits, now));
        for Candidate { record, units, reason, .. } in candidates.iter().skip(MAX_RECORDS) {
            // A node that comes later would not find what is not renewed.
            if *reason != WriteReason::Withdrawal {
                self.unpublished.record(record.name.tag, *units, now);
            }
        }
        candidates.truncate(MAX_RECORDS);
        if candidates.is_empty() {
            return None;
        }
        let records = candidates.into_iter().map(|candidate| candidate.record).collect();
        Some(NextChunk { number: self.next, heard, records })
    }

    /// Records that a chunk was written (`is_certain`), or may have been.
    pub(super) fn record_written(&mut self, chunk: &NextChunk, is_certain: bool) {
        self.certain = if is_certain { self.certain.saturating_add(1) } else { 0 };
        // Then everything that was written before a chunk that is replaced was replaced too.
        let is_ring_certain = self.certain >= RING;
        self.published.retain(|_, published| {
            let is_replaced = published.chunk == Some(chunk.number);
            if is_replaced {
                published.chunk = None;
            }
            !(is_replaced && is_ring_certain && is_nothing(published.counted))
        });
        for CountRecord { name, counted } in &chunk.records {
            let (window, ..) = counted.counts();
            let nothing = WindowPair::of_counts((window, 0, 0));
            let heard = Heard::default();
            let unknown = Published { counted: nothing, chunk: None, heard, seen: self.look };
            let published = self.published.entry(*name).or_insert(unknown);
            if is_certain {
                (published.counted, published.chunk) = (*counted, Some(chunk.number));
                published.heard = chunk.heard;
            }
        }
        self.next = (chunk.number + 1) % RING;
    }

    /// The largest number of units of a key under a limit for which a chunk of the last window had no room. Live nodes may know
    /// them; one that starts then does not.
    pub(super) fn unpublished(&self, tag: u64) -> u32 {
        self.unpublished.units(tag)
    }

    /// Forgets what was published, because the store has lost it.
    pub(super) fn begin_anew(&mut self) {
        self.published.values_mut().for_each(|published| published.chunk = None);
    }

    /// A limit does not count over the fleet any more: everything is published anew without it, and the other chunks are deleted.
    /// If it comes back, this node would not know any more what to withdraw.
    pub(super) fn leave_limits(&mut self) {
        self.begin_anew();
        self.has_obsolete = true;
    }

    /// The chunks that are to be deleted with the next call, which writes this one.
    pub(super) fn obsolete(&self, next: Option<&NextChunk>) -> impl Iterator<Item = u16> {
        let written = next.map(|next| next.number);
        (0..RING).filter(move |number| self.has_obsolete && Some(*number) != written)
    }

    /// Records that they were deleted.
    pub(super) fn record_deleted(&mut self) {
        self.has_obsolete = false;
    }

    /// The counts that are not published as they are now, and those that are in no chunk after the next one is written.
    fn changed(&mut self, own: &[OwnCount], limits: &FleetLimits, now: Nanos) -> Vec<Candidate> {
        self.look += 1;
        let (look, next) = (self.look, self.next);
        let is_full = self.published.len() >= MAX_PUBLISHED;
        let mut candidates = Vec::new();
        for OwnCount { name, counted, needed } in own {
            let record = CountRecord { name: *name, counted: *counted };
            let Some(before) = self.published.get_mut(name) else {
                let nothing = WindowPair::default();
                let Some(candidate) = candidate(record, nothing, WriteReason::Change, limits, now)
                    .filter(|candidate| candidate.units > 0)
                else {
                    continue;
                };
                if is_full {
                    self.unpublished.record(name.tag, candidate.units, now);
                } else {
                    candidates.push(candidate);
                }
                continue;
            };
            before.seen = look;
            // What was published before a reset is not believed, also if it is as much again.
            if before.counted != *counted || !before.heard.includes(*needed) {
                candidates.extend(candidate(
                    record,
                    before.counted,
                    WriteReason::Change,
                    limits,
                    now,
                ));
            } else if !before.stays_behind(next) {
                let nothing = WindowPair::default();
                candidates.extend(candidate(record, nothing, WriteReason::Renewal, limits, now));
            }
        }
        // This node does not count these keys any more: their cells went to heavier keys, or were reset and then freed.
        for (name, before) in self.published.iter().filter(|(_, before)| before.seen != look) {
            let is_withdrawn = is_nothing(before.counted) && before.chunk.is_some();
            if !is_withdrawn {
                let (window, ..) = before.counted.counts();
                let counted = WindowPair::of_counts((window, 0, 0));
                let record = CountRecord { name: *name, counted };
                let reason = WriteReason::Withdrawal;
                candidates.extend(candidate(record, before.counted, reason, limits, now));
            }
        }
        candidates
    }
}

impl Published {
    /// Whether a chunk still has it when this one has been replaced.
    fn stays_behind(&self, replaced: u16) -> bool {
        self.chunk.is_some_and(|chunk| chunk != replaced)
    }
}

fn is_nothing(counted: WindowPair) -> bool {
    let (_, current, previous) = counted.counts();
    current == 0 && previous == 0
}

/// `before`: what the others know.
fn candidate(
    record: CountRecord,
    before: WindowPair,
    reason: WriteReason,
    limits: &FleetLimits,
    now: Nanos,
) -> Option<Candidate> {
    let limit = limits.tagged(record.name.tag)?;
    let units = limit.units(record.counted, now).abs_diff(limit.units(before, now));
    Some(Candidate { record, reason, units, share: limit.share(units) })
}

/// Orders candidates: first the largest of each limit for each reason, then the second of each, and so on.
fn interleaved(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.share));
    let mut rounds: HashMap<(u64, WriteReason), u32> = HashMap::new();
    let with_round = |candidate: Candidate| {
        let group = (candidate.record.name.tag, candidate.reason);
        let round = rounds.entry(group).or_default();
        *round = round.saturating_add(1);
        (*round, candidate)
    };
    let mut ordered: Vec<(u32, Candidate)> = candidates.into_iter().map(with_round).collect();
    ordered.sort_by_key(|(round, _)| *round);
    ordered.into_iter().map(|(_, candidate)| candidate).collect()
}
