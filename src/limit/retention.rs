//! How long a cell keeps what only another generation of its limit needs.
//!
//! A reload, or a node on another configuration, may change the window lengths of a limit. Cells keep counters
//! and times of earlier lengths for a while, so that generations that alternate on one key lose nothing.

use crate::clock::{Nanos, Now};

/// The shortest time that a counter or a time is kept after a charge last needed it. Longer windows keep it for
/// two of their lengths.
const MIN_RETENTION: Nanos = Nanos::from_secs(3_600);

/// How long something of a window of this length is kept after a charge last needed it, in seconds.
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
