//! How long a cell keeps what only another generation of its limit needs.
//!
//! A reload may change the window lengths of a limit, and another node may still have the old ones. Cells keep the
//! counters and times that the other lengths need for a while, so that generations that alternate on one key lose
//! nothing.

use crate::clock::{Nanos, Now};

/// The shortest retention after a charge last needed a counter or a time. A window of more than half an hour keeps
/// it for two of its lengths.
const MIN_RETENTION: Nanos = Nanos::from_secs(3_600);

/// How long a counter or a time of a window of this length is kept after a charge last needed it, in seconds.
pub(super) fn retention_secs(length: Nanos) -> u64 {
    (2 * length.secs()).max(MIN_RETENTION.secs())
}

/// Full seconds of an instant; a wall time saturates in the year 2106.
pub(super) fn saturating_secs(instant: Nanos) -> u32 {
    u32::try_from(instant.secs()).unwrap_or(u32::MAX)
}

/// The wall time of an instant, in full seconds.
pub(super) fn wall_secs(now: Now) -> u32 {
    saturating_secs(now.wall)
}
