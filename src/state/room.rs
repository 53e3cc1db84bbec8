//! When a round begins, from how much has changed and how much room the volume of the directory has.
//!
//! ```text
//!   volume │ older round │ round │ changes ... │ free                │
//!                                              └ a round begins while everything fits in here
//! ```
//!
//! Logs are removed when a later round is complete, so a round that begins on a full volume can never be ended. Pure functions:
//! the saver asks the disk.

/// The part of what a volume offers that changes may take before a round begins, however few they are.
const CHANGES_IN_VOLUME: u64 = 16;

/// What a round needs besides its cells: the heads of frames, quotas, bans.
const SPARE_BYTES: u64 = 16 * 1024;

/// How many times what is kept a volume should hold: two rounds, the one that is being written, and changes behind each.
const MIN_ROUNDS: u64 = 6;

/// The room on the volume of a directory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct VolumeRoom {
    /// What is free.
    pub(super) free: u64,
    /// What the logs take.
    pub(super) logs: u64,
}

/// How fast a round is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundPace {
    /// As many bytes as there were changes.
    Proportional,
    /// As fast as the disk takes it.
    AtOnce,
}

/// The pace of a round that begins now. `None`: none begins. `round`: the bytes of the latest round; `changed`: those of the
/// changes since; `min_round`: those that a round is worth on a large volume. `room` is asked where it matters.
pub(super) fn next_round(
    round: u64,
    changed: u64,
    min_round: u64,
    room: impl FnOnce() -> Option<VolumeRoom>,
) -> Option<RoundPace> {
    // A round frees little before there are such changes.
    if changed <= round / 2 {
        return None;
    }
    let Some(room) = room() else {
        return (changed > round.max(min_round)).then_some(RoundPace::Proportional);
    };
    if room.is_scarce(round.saturating_add(changed)) {
        return Some(RoundPace::AtOnce);
    }
    let min_round = min_round.min(room.offered() / CHANGES_IN_VOLUME);
    (changed > round.max(min_round)).then_some(RoundPace::Proportional)
}

impl VolumeRoom {
    /// Whether a round of so many bytes may soon find too little room.
    pub(super) fn is_scarce(self, round: u64) -> bool {
        // As many changes may be written meanwhile.
        self.free < round.saturating_mul(2).saturating_add(SPARE_BYTES)
    }

    /// Whether the volume can never hold what saving takes.
    pub(super) fn is_too_small(self, round: u64) -> bool {
        self.offered() < least(round)
    }

    /// What the volume offers for logs.
    pub(super) const fn offered(self) -> u64 {
        self.free.saturating_add(self.logs)
    }
}

/// The bytes of a volume that holds what saving takes. `round`: the bytes everything that is kept.
pub(super) const fn least(round: u64) -> u64 {
    round.saturating_mul(MIN_ROUNDS).saturating_add(SPARE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1_024;
    const MIN: u64 = 16 * KIB * KIB;

    #[test]
    fn a_round_begins_while_it_fits() {
        let pace = |round: u64, changed: u64, free: u64, logs: u64| {
            next_round(round * KIB, changed * KIB, MIN, || {
                Some(VolumeRoom { free: free * KIB, logs: logs * KIB })
            })
        };
        use RoundPace::{AtOnce, Proportional};
        // A large volume: after 16 MiB of changes, or as many as everything takes.
        assert_eq!(pace(50, 16 * KIB, 1 << 30, 0), None);
        assert_eq!(pace(50, 16 * KIB + 1, 1 << 30, 0), Some(Proportional));
        assert_eq!(pace(99 * KIB, 99 * KIB, 1 << 30, 0), None);
        // A volume of 1 MiB: after a sixteenth of it.
        assert_eq!(pace(50, 64, 800, 224), None);
        assert_eq!(pace(50, 65, 800, 224), Some(Proportional));
        // Too little is left: at once, but not for a few changes.
        assert_eq!(pace(200, 150, 600, 424), Some(AtOnce));
        assert_eq!(pace(200, 100, 100, 924), None);
        assert_eq!(pace(0, 0, 0, 0), None);
    }

    #[test]
    fn without_an_answer_of_the_disk_only_changes_count() {
        assert_eq!(next_round(10, MIN, MIN, || None), None);
        assert_eq!(next_round(10, MIN + 1, MIN, || None), Some(RoundPace::Proportional));
    }
}
