//! What is suggested for one limit, and the distribution that it comes from.

use super::share::KeyShare;
use crate::limit::Rate;

/// The shares at which a curve is drawn, in millionths.
const CURVE: &[u32] = &[
    500_000, 200_000, 100_000, 50_000, 20_000, 10_000, 5_000, 2_000, 1_000, 500, 200, 100, 50, 20,
    10, 0,
];

/// What is suggested for one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The share of keys that was asked for.
    pub share: KeyShare,
    /// How many keys were counted.
    pub keys: u64,
    /// One in how many keys of the log was counted.
    pub sampling_ratio: u64,
    /// Keys that are left out, because a plan, an override or a rule gives them another rate.
    pub keys_left_out: u64,
    /// The peak of each key: units per window; of a bucket the burst that the key needs at the present rate.
    pub percentiles: PeakPercentiles,
    /// How many keys each limit refuses; the largest share first. Empty without keys.
    pub curve: Vec<CurvePoint>,
    /// The smallest limit that refuses at most `share`; `None` without keys.
    pub suggested: Option<SuggestedLimit>,
    /// Of a bucket: the smallest burst if its rate stays as it is.
    pub kept_rate_burst: Option<u32>,
    /// The share of the counted keys that the suggested limit refuses at least once.
    pub refuses: KeyShare,
    /// How sure the suggestion is, in sentences.
    pub certainty: Vec<String>,
}

/// The numbers of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuggestedLimit {
    /// `rate`.
    Rate(Rate),
    /// `rate` and `burst` of a token bucket.
    Bucket {
        /// Units and the time in which they come.
        rate: Rate,
        /// Units that the bucket holds.
        burst: u32,
    },
    /// `max_in_flight`.
    InFlight(u32),
}

/// What the peak of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeakMeasure {
    /// Units in a window.
    Window,
    /// The burst that the key needs at the present rate of a bucket.
    Burst,
    /// Units at once.
    AtOnce,
}

impl PeakMeasure {
    /// For people.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Window => "units of a key in a window",
            Self::Burst => "burst that a key needs at the present rate",
            Self::AtOnce => "units of a key at once",
        }
    }

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Window => "units_in_window",
            Self::Burst => "burst_at_present_rate",
            Self::AtOnce => "units_at_once",
        }
    }
}

/// Percentiles of the peaks of all keys, by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakPercentiles {
    /// Half of the keys have at most this peak.
    pub p50: u64,
    /// 90 % of the keys.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// All keys.
    pub max: u64,
}

/// A limit, and the share of keys that it refuses at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurvePoint {
    /// Units per window, or the burst at the present rate.
    pub units: u64,
    /// The share of keys.
    pub refuses: KeyShare,
}

/// The peaks of all keys, ascending.
pub(super) struct Peaks(Vec<u64>);

impl Peaks {
    pub(super) fn new(peaks: impl Iterator<Item = u64>) -> Self {
        let mut sorted: Vec<u64> = peaks.collect();
        sorted.sort_unstable();
        Self(sorted)
    }

    pub(super) const fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest limit, at least 1, that refuses at most this share of keys.
    pub(super) fn limit_for(&self, share: KeyShare) -> u64 {
        let refused = usize::try_from(share.count_of(self.len())).unwrap_or(usize::MAX);
        let kept = self.0.len().saturating_sub(refused);
        kept.checked_sub(1).and_then(|last| self.0.get(last)).copied().unwrap_or_default().max(1)
    }

    /// The share of keys with a peak above the limit.
    pub(super) fn refused_by(&self, limit: u64) -> KeyShare {
        let kept = self.0.partition_point(|peak| *peak <= limit);
        KeyShare::of((self.0.len() - kept) as u64, self.len())
    }

    pub(super) fn percentiles(&self) -> PeakPercentiles {
        let nearest = |per_mille: usize| {
            let rank = (self.0.len() * per_mille).div_ceil(1_000).max(1);
            self.0.get(rank - 1).copied().unwrap_or_default()
        };
        PeakPercentiles {
            p50: nearest(500),
            p90: nearest(900),
            p99: nearest(990),
            p999: nearest(999),
            max: nearest(1_000),
        }
    }

    pub(super) fn curve(&self) -> Vec<CurvePoint> {
        if self.is_empty() {
            return Vec::new();
        }
        let limits = CURVE.iter().map(|share| self.limit_for(KeyShare::from_millionths(*share)));
        let mut curve: Vec<CurvePoint> =
            limits.map(|units| CurvePoint { units, refuses: self.refused_by(units) }).collect();
        curve.dedup();
        curve
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_refuses_no_more_than_the_share() {
        let peaks = Peaks::new([5, 1, 1, 9, 9, 2, 3, 3, 3, 40].into_iter());
        for (percent, limit, refused) in
            [(0, 40, 0), (9, 40, 0), (10, 9, 10), (20, 9, 10), (30, 5, 30), (100, 1, 80)]
        {
            let share = KeyShare::from_millionths(percent * 10_000);
            assert_eq!(peaks.limit_for(share), limit, "{percent} %");
            assert_eq!(peaks.refused_by(limit), KeyShare::from_millionths(refused * 10_000));
        }
        assert_eq!(
            peaks.percentiles(),
            PeakPercentiles { p50: 3, p90: 9, p99: 40, p999: 40, max: 40 }
        );
        assert_eq!(Peaks::new([].into_iter()).limit_for(KeyShare::ALL), 1);
    }
}
