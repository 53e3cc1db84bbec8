//! What other nodes of the fleet have published.
//!
//! For each node and key the record with the highest version holds. Refunds and resets lower a count, so the latest word
//! of a node is true and not its largest. What must always hold: memory is bounded, and what is dropped for want of room is
//! the least of what was counted; a count that is dropped refuses nobody.

use std::collections::HashSet;

use hashbrown::HashMap;

use super::forgotten::Forgettings;
use super::heard::Heard;
use super::limits::{FleetLimit, FleetLimits};
use super::peaks::WindowPeaks;
use super::records::{CountChunk, CountName, CountRecord};
use crate::clock::Nanos;
use crate::estimator::FleetCounts;
use crate::limit::WindowPair;
use crate::policy::KeyHash;

/// The most counts of other nodes that a node keeps: about 16 MB.
const MAX_IMPORTED: usize = 131_072;

/// How many counts may be above [`MAX_IMPORTED`] before the lightest are dropped.
const SPARE: usize = MAX_IMPORTED / 8;

/// Counts of other nodes.
#[derive(Debug, Default)]
pub(super) struct Imports {
    counts: HashMap<(CountName, u64), Imported>,
    /// Whether counts have changed since they were summed up last.
    is_changed: bool,
    /// The units of counts that were dropped for want of room.
    dropped: WindowPeaks,
}

/// What one node counted of a key.
#[derive(Clone, Copy, Debug)]
struct Imported {
    version: u64,
    /// What its node had heard of.
    heard: Heard,
    counted: WindowPair,
}

/// What was wrong with a chunk that was left out, or with records of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImportError {
    /// It was written later than now: the clocks of its node and of this one contradict each other.
    Future,
}

impl Imports {
    /// Takes up a chunk of a node. `latest`: the latest that the shared time can be now.
    pub(super) fn add(
        &mut self,
        node: u64,
        chunk: &CountChunk,
        limits: &FleetLimits,
        latest: Nanos,
    ) -> Result<(), ImportError> {
        if chunk.at > latest {
            return Err(ImportError::Future);
        }
        for CountRecord { name, counted } in &chunk.records {
            let Some(limit) = limits.tagged(name.tag) else {
                continue;
            };
            // No unit was counted after its chunk was written.
            if limit.is_ahead(*counted, chunk.at) || limit.is_over(*counted, latest) {
                continue;
            }
            let CountChunk { version, heard, .. } = *chunk;
            let imported = Imported { version, heard, counted: *counted };
            let known = self.counts.entry((*name, node)).or_insert(imported);
            if known.version <= chunk.version {
                *known = imported;
            }
            self.is_changed = true;
        }
        self.drop_lightest(limits, latest);
        Ok(())
    }

    /// Forgets counts whose windows have ended, and those of limits that do not count over the fleet any more.
    pub(super) fn expire(&mut self, limits: &FleetLimits, now: Nanos) {
        let before = self.counts.len();
        self.counts.retain(|(name, _), imported| {
            limits.tagged(name.tag).is_some_and(|limit| !limit.is_over(imported.counted, now))
        });
        self.is_changed |= self.counts.len() != before;
        self.dropped.expire(limits, now);
    }

    /// The largest number of units that one node counted of a key under a limit, and that were dropped in the last window.
    pub(super) fn dropped(&self, tag: u64) -> u32 {
        self.dropped.units(tag)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.counts.clear();
        self.is_changed = true;
    }

    /// The sums are to be shown anew.
    pub(super) fn record_change(&mut self) {
        self.is_changed = true;
    }

    /// Whether counts have changed since this was asked last.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Whether a node is left out of the sums with all that it counted.
    pub(super) fn leaves_out_nodes(&self, forgotten: &Forgettings) -> bool {
        self.counts.values().any(|imported| !forgotten.believes_node(imported.heard))
    }

    /// The sums of each limit over all other nodes, by key, without what is forgotten.
    pub(super) fn sums(
        &self,
        limits: &FleetLimits,
        forgotten: &Forgettings,
    ) -> Vec<(u64, FleetCounts)> {
        let mut sums: HashMap<CountName, WindowPair> = HashMap::new();
        for ((name, _), imported) in &self.counts {
            if !forgotten.believes(name.key, imported.heard) {
                continue;
            }
            let sum = sums.entry(*name).or_default();
            let (_, current, previous) = sum.counts();
            let is_first = current == 0 && previous == 0;
            *sum = if is_first { imported.counted } else { sum.plus(imported.counted) };
        }
        let tags: HashSet<u64> = limits.tags().into_iter().collect();
        let mut by_limit: HashMap<u64, Vec<(KeyHash, WindowPair)>> = HashMap::new();
        for (name, counted) in sums {
            let (_, current, previous) = counted.counts();
            if current > 0 || previous > 0 {
                by_limit.entry(name.tag).or_default().push((name.key, counted));
            }
        }
        let counts = |tag| FleetCounts::of(by_limit.remove(&tag).unwrap_or_default());
        let mut counts = counts;
        tags.into_iter().map(|tag| (tag, counts(tag))).collect()
    }

    /// Drops counts down to [`MAX_IMPORTED`]: the lightest of limits that have more than an equal share of the room, so that a
    /// flood of keys under one limit hides nothing of another.
    fn drop_lightest(&mut self, limits: &FleetLimits, now: Nanos) {
        if self.counts.len() <= MAX_IMPORTED + SPARE {
            return;
        }
        let share = |limit: Option<&FleetLimit>, counted| {
            limit.map_or(0, |limit| limit.share(limit.units(counted, now)))
        };
        let mut shares: HashMap<u64, Vec<u64>> = HashMap::new();
        for ((name, _), imported) in &self.counts {
            let share = share(limits.tagged(name.tag), imported.counted);
            shares.entry(name.tag).or_default().push(share);
        }
        let room = equal_room(shares.values().map(Vec::len).collect(), MAX_IMPORTED);
        // For each limit above it, how many are dropped, and the heaviest of them.
        let mut dropped: HashMap<u64, (usize, u64)> = HashMap::new();
        for (tag, mut shares) in shares {
            if let Some(last) = shares.len().saturating_sub(room).checked_sub(1) {
                let (_, heaviest, _) = shares.select_nth_unstable(last);
                dropped.insert(tag, (last + 1, *heaviest));
            }
        }
        let all_dropped = &mut self.dropped;
        self.counts.retain(|(name, _), imported| {
            let Some((left, heaviest)) = dropped.get_mut(&name.tag).filter(|(left, _)| *left > 0)
            else {
                return true;
            };
            let limit = limits.tagged(name.tag);
            if share(limit, imported.counted) > *heaviest {
                return true;
            }
            *left -= 1;
            let units = limit.map_or(0, |limit| limit.units(imported.counted, now));
            all_dropped.record(name.tag, units, now);
            false
        });
    }
}

/// The largest room such that groups of these sizes, each cut to it, fit into `all`.
fn equal_room(mut sizes: Vec<usize>, all: usize) -> usize {
    sizes.sort_unstable();
    let (mut left, mut groups) = (all, sizes.len());
    for size in sizes {
        let room = left / groups;
        if size > room {
            return room;
        }
        (left, groups) = (left - size, groups - 1);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_above_an_equal_room_are_cut_to_it() {
        for (sizes, all, expected) in [
            (vec![], 10, 10),
            (vec![4, 3], 10, 10),
            (vec![1, 100], 10, 9),
            (vec![100, 1, 100, 3], 10, 3),
            (vec![100, 100, 100], 10, 3),
            (vec![5, 5], 10, 10),
        ] {
            let room = equal_room(sizes.clone(), all);
            assert_eq!(room, expected, "{sizes:?}");
            assert!(sizes.iter().map(|size| size.min(&room)).sum::<usize>() <= all);
        }
    }
}
