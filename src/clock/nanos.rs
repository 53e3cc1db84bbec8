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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_to_wait_round_up() {
        assert_eq!(Nanos::new(1).secs_ceil(), 1);
        assert_eq!(Nanos::from_secs(2).secs_ceil(), 2);
        assert_eq!(Nanos::new(2_000_000_001).secs_ceil(), 3);
    }
}
