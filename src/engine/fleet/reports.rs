//! What the exchange tells the log and the gauges. A failure is told once when it begins and once when it is over, however many
//! exchanges it lasts.

use super::progress::FleetProgress;
use crate::clock::Nanos;
use crate::limit::FleetBound;
use crate::store::redis::ToldOutage;

/// Chunks that are left out after so long without any are told of again.
const QUIET_BEFORE_WARNING: Nanos = Nanos::from_secs(60);

/// Parts per million of the whole.
const PPM: u64 = 1_000_000;

/// What the log was told last.
#[derive(Debug, Default)]
pub(super) struct Reports {
    outage: ToldOutage,
    is_time_unsteady: bool,
    leaves_out_chunks: bool,
    /// When (monotonic) chunks of other nodes were left out last.
    refused_at: Option<Nanos>,
}

/// The chunks of a reply that are left out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RefusedChunks {
    /// Of a node with another secret, or made up.
    pub(super) foreign: u64,
    /// Of a later version, or written later than now, or without sense.
    pub(super) unreadable: u64,
}

/// What this node knows of the others' counts under one limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knowledge {
    /// Live nodes, this one included.
    pub(super) nodes: u32,
    /// The most units of a key that there was no room to publish, or to keep.
    pub(super) left_out: u32,
    /// The most units of a key that this node did not count for certain.
    pub(super) uncounted: u64,
    /// Whether the store answers.
    pub(super) is_fresh: bool,
    /// Whether all that it answers can be used.
    pub(super) is_complete: bool,
}

impl Reports {
    /// The store answers. `now`: monotonic.
    pub(super) fn record_answer(&mut self, now: Nanos) {
        if self.outage.succeed(now) {
            log::warn!("nodes exchange counts for limits with scope: fleet again");
        }
    }

    /// The store does not answer, for this reason.
    pub(super) fn record_no_answer(&mut self, why: &str, now: Nanos) {
        if self.outage.fail(now) {
            log::warn!(
                "limits with scope: fleet count on this node, with what is known of the others: the store gives no answer: {why}"
            );
        }
    }

    /// Whether the store's time can be used.
    pub(super) fn record_time(&mut self, is_steady: bool) {
        match (is_steady, std::mem::replace(&mut self.is_time_unsteady, !is_steady)) {
            (false, false) => log::warn!(
                "the store's time jumped: limits with scope: fleet count on this node alone until it is steady"
            ),
            (true, true) => log::warn!("the store's time is steady again"),
            (true, false) | (false, true) => {}
        }
    }

    /// The chunks that were left out of a reply that came at `now` (monotonic).
    pub(super) fn record_refused(
        &mut self,
        progress: &FleetProgress,
        refused: RefusedChunks,
        now: Nanos,
    ) {
        let RefusedChunks { foreign, unreadable } = refused;
        progress.record_refused(foreign + unreadable);
        if foreign + unreadable == 0 {
            self.leaves_out_chunks &= self.has_refused_within(QUIET_BEFORE_WARNING, now);
            return;
        }
        self.refused_at = Some(now);
        if std::mem::replace(&mut self.leaves_out_chunks, true) {
            return;
        }
        if foreign > 0 {
            log::warn!(
                "counts of another node are left out: it has another key secret (store.redis.key_secret_file), or they were made up"
            );
        } else {
            log::warn!(
                "counts of another node are left out: it is of another version, or its clock contradicts this one's"
            );
        }
    }

    /// Whether chunks were left out within this time before `now` (monotonic).
    pub(super) fn has_refused_within(&self, span: Nanos, now: Nanos) -> bool {
        self.refused_at.is_some_and(|at| now.saturating_sub(at) <= span)
    }
}

impl Knowledge {
    /// How far the nodes together may exceed a limit of `limit` units now, besides what arrives between two exchanges: a share
    /// of the limit in parts per million. `error_ppm`: what the configuration allows to be hidden.
    pub(super) fn error_ppm(self, limit: u32, error_ppm: u32) -> u64 {
        let count = u64::from(limit.max(1));
        let others = u64::from(self.nodes.saturating_sub(1));
        let hidden = if !self.is_fresh {
            // A node that has heard of no other one does not know that there is none.
            others.max(1) * count
        } else if !self.is_complete {
            others * count
        } else {
            let left_out = others * u64::from(self.left_out);
            FleetBound::of(limit, error_ppm, self.nodes).hidden.max(left_out).min(others * count)
        };
        // Others may count as little as this one.
        let uncounted = self.uncounted.saturating_mul(self.nodes.max(1).into());
        hidden.saturating_add(uncounted).saturating_mul(PPM) / count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_what_this_node_cannot_know() {
        let known =
            Knowledge { nodes: 5, left_out: 0, uncounted: 0, is_fresh: true, is_complete: true };
        for (knowledge, expected) in [
            // Four others publish 2 of 100 units, so each hides one.
            (known, 40_000),
            (Knowledge { left_out: 30, ..known }, 1_200_000),
            (Knowledge { left_out: 3_000, ..known }, 4_000_000),
            (Knowledge { is_complete: false, ..known }, 4_000_000),
            (Knowledge { is_fresh: false, ..known }, 4_000_000),
            (Knowledge { nodes: 1, ..known }, 0),
            (Knowledge { nodes: 1, is_complete: false, ..known }, 0),
            (Knowledge { nodes: 1, is_fresh: false, ..known }, 1_000_000),
            (Knowledge { nodes: 0, ..known }, 0),
            // A full table of watched keys, on each of the five.
            (Knowledge { uncounted: 30, ..known }, 1_540_000),
        ] {
            assert_eq!(knowledge.error_ppm(100, 100_000), expected, "{knowledge:?}");
        }
        let largest = Knowledge { nodes: u32::MAX, left_out: u32::MAX, is_fresh: false, ..known };
        assert!(largest.error_ppm(u32::MAX, 1_000_000) > 0);
        assert_eq!(Knowledge { nodes: 2, ..known }.error_ppm(0, 100_000), 0);
    }

    #[test]
    fn chunks_that_are_left_out_are_told_of_again_after_a_quiet_minute() {
        let (mut reports, progress) = (Reports::default(), FleetProgress::default());
        let at = Nanos::from_secs;
        let foreign = RefusedChunks { foreign: 2, unreadable: 1 };
        reports.record_refused(&progress, foreign, at(10));
        assert!(reports.leaves_out_chunks && reports.has_refused_within(at(5), at(15)));
        assert!(!reports.has_refused_within(at(5), at(16)));
        reports.record_refused(&progress, RefusedChunks::default(), at(70));
        assert!(reports.leaves_out_chunks);
        reports.record_refused(&progress, RefusedChunks::default(), at(71));
        assert!(!reports.leaves_out_chunks);
        assert_eq!(progress.refused_chunks(), 3);
    }
}
