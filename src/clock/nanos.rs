//! Nanoseconds, with saturating arithmetic.

use std::fmt;
use std::time::Duration;

/// Nanoseconds: an instant on one of the two time lines of [`Now`](super::Now), or a span between two instants.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Nanos;
///
/// let wait = Nanos::from_millis(1_500);
/// assert_eq!((wait.secs_ceil(), Duration::from(wait)), (2, Duration::from_millis(1_500)));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct Nanos(u64);

impl Nanos {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// One second.
    pub const SECOND: Self = Self(1_000_000_000);

    /// From nanoseconds.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// From milliseconds, saturating.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// From seconds, saturating.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, at most the largest value.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, at least zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `self` times `factor`, at most the largest value.
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// Seconds, rounded up, as header fields give a time to wait.
    pub const fn secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }

    /// Seconds, rounded down.
    pub const fn secs(self) -> u64 {
        self.0 / 1_000_000_000
    }
}

impl From<Duration> for Nanos {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(span: Nanos) -> Self {
        Self::from_nanos(span.0)
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from(*self), f)
    }
}

/// A span as people read it: two digits where there are so many, and one unit: `20 ms`, `7.8 s`, `2.5 min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundedSpan(pub(crate) Nanos);

impl fmt::Display for RoundedSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MINUTE: u64 = 60 * Nanos::SECOND.0;
        // Each unit is used from its second whole number on; below that the smaller one is finer.
        const UNITS: [(u64, u64, &str); 6] = [
            (120 * MINUTE, 60 * MINUTE, "h"),
            (2 * MINUTE, MINUTE, "min"),
            (Nanos::SECOND.0, Nanos::SECOND.0, "s"),
            (1_000_000, 1_000_000, "ms"),
            (1_000, 1_000, "us"),
            (0, 1, "ns"),
        ];
        let nanos = self.0.get();
        let (_, unit, name) =
            UNITS.into_iter().find(|(from, ..)| nanos >= *from).unwrap_or(UNITS[5]);
        // In u128, because ten times the longest span is more than a u64 holds.
        let tenths = (u128::from(nanos) * 10 + u128::from(unit / 2)) / u128::from(unit);
        match (tenths / 10, tenths % 10) {
            (integer @ 0..10, tenth @ 1..) => write!(f, "{integer}.{tenth} {name}"),
            (integer, tenth) => write!(f, "{} {name}", integer + u128::from(tenth >= 5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_rounded_for_people() {
        for (nanos, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.5 us"),
            (20_000_000, "20 ms"),
            (20_400_000, "20 ms"),
            (20_500_000, "21 ms"),
            (7_834_567_890, "7.8 s"),
            (9_960_000_000, "10 s"),
            (5_000_000_000, "5 s"),
            (95_400_000_000, "95 s"),
            (150_000_000_000, "2.5 min"),
            (3_600_000_000_000, "60 min"),
            (9_000_000_000_000, "2.5 h"),
            (u64::MAX, "5124096 h"),
        ] {
            assert_eq!(RoundedSpan(Nanos::new(nanos)).to_string(), expected, "{nanos}");
        }
    }

    #[test]
    fn seconds_to_wait_round_up() {
        assert_eq!(Nanos::new(1).secs_ceil(), 1);
        assert_eq!(Nanos::from_secs(2).secs_ceil(), 2);
        assert_eq!(Nanos::new(2_000_000_001).secs_ceil(), 3);
    }
}
