//! The peak of a key's demand under each algorithm: the largest sum of what counts in the window and what a request asks for. What a
//! request counts in the end may be less, or more. Times never descend; units count in 64 bits and saturate.

use super::demand_table::KeyDemand;
use crate::clock::Nanos;

/// A window of a log is divided into this many slots. Charges of one slot are joined once a key has many of them.
const SLOTS: u64 = 16;

/// A key has this many sums of their own before the sums of one slot are joined.
const SUMS_BEFORE_JOINING: usize = 8;

/// The units of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitsOfRequest {
    /// What the limit must have room for, so that it admits the request: its own units, and what other requests hold until their
    /// answers.
    pub(super) asked: u64,
    /// What it counts in the end.
    pub(super) counted: u64,
}

impl UnitsOfRequest {
    pub(super) const fn is_nothing(self) -> bool {
        self.asked == 0 && self.counted == 0
    }

    /// A request that costs the same before its answer and after it.
    #[cfg(test)]
    pub(super) const fn plain(units: u64) -> Self {
        Self { asked: units, counted: units }
    }
}

/// Units of a window aligned to the epoch: `fixed_window`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WindowPeak {
    window: u64,
    units: u64,
    pub(super) peak: u64,
}

impl WindowPeak {
    pub(super) fn record(&mut self, length: Nanos, demanded: UnitsOfRequest, at: Nanos) {
        let UnitsOfRequest { asked, counted } = demanded;
        let window = at.get() / length.get().max(1);
        if window != self.window {
            (self.window, self.units) = (window, 0);
        }
        self.peak = self.peak.max(self.units.saturating_add(asked));
        self.units = self.units.saturating_add(counted);
    }
}

impl KeyDemand for WindowPeak {
    fn restart(&mut self) {
        self.units = 0;
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Units of two weighted windows: `sliding_window` and the estimate tier. The formula is that of
/// [`SlidingWindow`](crate::limit::SlidingWindow), with counters of 64 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PairPeak {
    window: u64,
    current: u64,
    previous: u64,
    pub(super) peak: u64,
}

impl PairPeak {
    pub(super) fn record(&mut self, length: Nanos, demanded: UnitsOfRequest, at: Nanos) {
        let UnitsOfRequest { asked, counted } = demanded;
        if demanded.is_nothing() {
            return;
        }
        let length = length.get().max(1);
        let (window, elapsed) = (at.get() / length, at.get() % length);
        match window.saturating_sub(self.window) {
            0 => {}
            1 => (self.window, self.previous, self.current) = (window, self.current, 0),
            _ => (self.window, self.previous, self.current) = (window, 0, 0),
        }
        // The product nearly always fits into 64 bits, whose division takes a third of the time.
        let share = match self.previous.checked_mul(length - elapsed) {
            Some(product) => product.div_ceil(length),
            None => {
                let product = u128::from(self.previous) * u128::from(length - elapsed);
                u64::try_from(product.div_ceil(u128::from(length))).unwrap_or(u64::MAX)
            }
        };
        self.peak = self.peak.max(self.current.saturating_add(share).saturating_add(asked));
        self.current = self.current.saturating_add(counted);
    }
}

impl KeyDemand for PairPeak {
    fn restart(&mut self) {
        (self.window, self.current, self.previous) = (0, 0, 0);
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Units of any window: `sliding_log`.
///
/// A key keeps sums, each at the time of its latest charge. The first [`SUMS_BEFORE_JOINING`] are single instants; then
/// charges of one slot share a sum. A charge that is joined counts until its sum leaves the window, so at most one slot
/// too long and never too short.
#[derive(Clone, Debug, Default)]
pub(super) struct LogPeak {
    /// Oldest first.
    sums: Vec<SlotSum>,
    live: u64,
    pub(super) peak: u64,
}

#[derive(Clone, Copy, Debug)]
struct SlotSum {
    last: Nanos,
    units: u64,
}

impl LogPeak {
    pub(super) fn record(&mut self, length: Nanos, demanded: UnitsOfRequest, at: Nanos) {
        let UnitsOfRequest { asked, counted: units } = demanded;
        let expired = self.sums.partition_point(|sum| sum.last.saturating_add(length) <= at);
        if expired > 0 {
            self.sums.drain(..expired);
            self.live = self.sums.iter().fold(0, |live, sum| live.saturating_add(sum.units));
        }
        self.peak = self.peak.max(self.live.saturating_add(asked));
        if units == 0 {
            return;
        }
        let slot = (length.get() / SLOTS).max(1);
        let is_many = self.sums.len() >= SUMS_BEFORE_JOINING;
        match self.sums.last_mut() {
            Some(sum)
                if sum.last == at || (is_many && sum.last.get() / slot == at.get() / slot) =>
            {
                sum.last = at;
                sum.units = sum.units.saturating_add(units);
            }
            _ => {
                if self.sums.len() >= SLOTS as usize {
                    self.join_slots(slot);
                }
                self.sums.push(SlotSum { last: at, units });
            }
        }
        self.live = self.live.saturating_add(units);
    }

    /// Joins all sums of the same slot. Then there are at most as many as a window touches slots: one more than
    /// [`SLOTS`].
    fn join_slots(&mut self, slot: u64) {
        self.sums.dedup_by(|later, earlier| {
            let joins = later.last.get() / slot == earlier.last.get() / slot;
            if joins {
                earlier.last = later.last;
                earlier.units = earlier.units.saturating_add(later.units);
            }
            joins
        });
    }
}

impl KeyDemand for LogPeak {
    fn restart(&mut self) {
        self.sums.clear();
        self.live = 0;
    }

    fn heap_bytes(&self) -> usize {
        self.sums.capacity() * size_of::<SlotSum>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_a_log_is_never_too_small_and_hardly_too_large() {
        let length = Nanos::from_secs(16);
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let busiest = [100, 1_000, 20_000][seed as usize % 3];
            let mut at = 1_000_000_000_000u64;
            let charges: Vec<(u64, u64)> = (0..300)
                .map(|_| {
                    at += random.u64(0..busiest) * 1_000_000;
                    (at, random.u64(0..5))
                })
                .collect();
            let mut log = LogPeak::default();
            for (at, units) in &charges {
                log.record(length, UnitsOfRequest::plain(*units), Nanos::new(*at));
                assert!(log.sums.len() <= SLOTS as usize + 1);
            }
            let peak_within = |span: u64| {
                let units_at = |now: u64| {
                    let live = charges.iter().filter(|(at, _)| *at <= now && at + span > now);
                    live.map(|(_, units)| units).sum::<u64>()
                };
                charges.iter().map(|(at, _)| units_at(*at)).max().unwrap_or_default()
            };
            assert!(log.peak >= peak_within(length.get()));
            assert!(log.peak <= peak_within(length.get() * 17 / 16));
        }
    }

    #[test]
    fn counts_above_32_bits_and_long_windows_are_counted() {
        let month = Nanos::from_secs(31 * 86_400);
        let start = Nanos::new(month.get() * 600);
        let (mut window, mut pair, mut log) =
            (WindowPeak::default(), PairPeak::default(), LogPeak::default());
        for day in 0..31 {
            let at = start.saturating_add(Nanos::from_secs(day * 86_400));
            for _ in 0..3 {
                let units = UnitsOfRequest::plain(u64::from(u32::MAX));
                window.record(month, units, at);
                pair.record(month, units, at);
                log.record(month, units, at);
            }
        }
        let units = 93 * u64::from(u32::MAX);
        assert_eq!((window.peak, pair.peak, log.peak), (units, units, units));
        log.record(
            month,
            UnitsOfRequest::plain(u64::MAX),
            start.saturating_add(Nanos::from_secs(31 * 86_400)),
        );
        assert_eq!(log.peak, u64::MAX);
    }
}
