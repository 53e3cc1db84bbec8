//! The largest number of units that something cost each limit, remembered for a window: an operator who reads a gauge now and
//! then shall see it too.

use hashbrown::HashMap;

use super::limits::FleetLimits;
use crate::clock::Nanos;

/// For each limit (by its tag), the largest number of units of the last window. At most one entry for each limit.
#[derive(Debug, Default)]
pub(super) struct WindowPeaks {
    by_tag: HashMap<u64, Peak>,
}

#[derive(Clone, Copy, Debug)]
struct Peak {
    units: u32,
    /// When (shared time) it was the latest time.
    at: Nanos,
}

impl WindowPeaks {
    /// Records units of a key under a limit.
    pub(super) fn record(&mut self, tag: u64, units: u32, now: Nanos) {
        let peak = self.by_tag.entry(tag).or_insert(Peak { units, at: now });
        if units >= peak.units {
            *peak = Peak { units, at: now };
        }
    }

    /// The largest number of units; zero: there were none.
    pub(super) fn units(&self, tag: u64) -> u32 {
        self.by_tag.get(&tag).map_or(0, |peak| peak.units)
    }

    /// Forgets what is older than a window, and limits that do not count over the fleet any more.
    pub(super) fn expire(&mut self, limits: &FleetLimits, now: Nanos) {
        self.by_tag.retain(|tag, peak| {
            limits
                .tagged(*tag)
                .is_some_and(|limit| now.saturating_sub(peak.at) <= limit.rate.period())
        });
    }
}
