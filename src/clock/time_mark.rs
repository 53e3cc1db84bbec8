//! From which instant the time lines of another process continue.
//!
//! Cells keep instants of the time lines of the process that wrote them. Instead of converting them, the next process
//! continues these time lines: `mono` goes on from the mark by the time that has passed since, and `wall` never begins
//! before the mark. What must always hold: whatever the clocks of the machine did meanwhile, no more time has passed on
//! `mono` than really did, as far as the machine can tell; too little time refuses a key for longer, too much would admit
//! what its limit forbids.

use serde::{Deserialize, Serialize};

use super::nanos::Nanos;

/// One instant on the time lines of a process and on the clocks of its machine.
///
/// ```
/// # #[cfg(feature = "bin")]
/// # {
/// use tollgate::clock::{Clock, SystemClock};
///
/// let before = SystemClock::new();
/// let after = SystemClock::continuing(&before.mark());
/// assert!(after.now().mono >= before.mark().mono.saturating_sub(tollgate::clock::Nanos::SECOND));
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeMark {
    /// `mono` of the process.
    pub mono: Nanos,
    /// `wall` of the process.
    pub wall: Nanos,
    /// The system's clock.
    pub date: Nanos,
    /// The machine's monotonic clock.
    pub uptime: Nanos,
    /// Which start of the machine, and which name space, `uptime` counts in. Empty if the machine does not tell.
    pub boot: String,
}

impl TimeMark {
    /// The time from this mark to a later instant of the machine. In the same run of the machine, its monotonic clock
    /// tells; otherwise only the system's clock does, and it may have been set in between.
    pub(super) fn elapsed(&self, later: &Self) -> Nanos {
        let is_same_boot = !self.boot.is_empty() && self.boot == later.boot;
        match is_same_boot {
            true => later.uptime.saturating_sub(self.uptime),
            false => later.date.saturating_sub(self.date),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(date: u64, uptime: u64, boot: &str) -> TimeMark {
        TimeMark {
            mono: Nanos::from_secs(50),
            wall: Nanos::from_secs(date),
            date: Nanos::from_secs(date),
            uptime: Nanos::from_secs(uptime),
            boot: boot.to_owned(),
        }
    }

    #[test]
    fn the_uptime_counts_within_a_boot_and_the_date_across_boots() {
        let before = mark(1_000, 100, "a");
        let cases = [
            (mark(1_010, 110, "a"), 10),
            (mark(90_000, 110, "a"), 10),
            (mark(5, 110, "a"), 10),
            (mark(1_030, 20, "b"), 30),
            (mark(5, 20, "b"), 0),
            (mark(1_030, 20, ""), 30),
        ];
        for (later, secs) in cases {
            assert_eq!(before.elapsed(&later), Nanos::from_secs(secs), "{later:?}");
        }
    }
}
