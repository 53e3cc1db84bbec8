//! The rate of a limit: units per period. It knows no algorithm. A rate is always valid: only
//! [`Rate::new`] makes one from numbers of a configuration.

use std::fmt;
use std::num::NonZeroU32;

use super::error::QuotaError;
use crate::clock::Nanos;

/// The longest period of a rate: 366 days. It keeps every product of the arithmetic far from the end of 64
/// bits.
pub const MAX_PERIOD: Nanos = Nanos::from_secs(366 * 86_400);

/// The shortest period of a rate.
const MIN_PERIOD: Nanos = Nanos::from_millis(1);

/// `count` units per `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: NonZeroU32,
    period: Nanos,
}

impl Rate {
    /// One unit per second.
    pub const PER_SECOND: Self = Self { count: NonZeroU32::MIN, period: Nanos::SECOND };

    /// A rate of `count` units (at least 1) per `period` (1 ms to [`MAX_PERIOD`]).
    ///
    /// # Errors
    ///
    /// [`QuotaError::ZeroRate`] and [`QuotaError::Period`].
    pub fn new(count: u32, period: Nanos) -> Result<Self, QuotaError> {
        let count = NonZeroU32::new(count).ok_or(QuotaError::ZeroRate)?;
        if period < MIN_PERIOD || period > MAX_PERIOD {
            return Err(QuotaError::Period);
        }
        Ok(Self { count, period })
    }

    /// One unit per period, for code that uses only the period. The caller takes the period from a valid rate.
    pub(super) const fn per(period: Nanos) -> Self {
        Self { count: NonZeroU32::MIN, period }
    }

    /// Units per period.
    pub const fn count(self) -> u32 {
        self.count.get()
    }

    /// The period.
    pub const fn period(self) -> Nanos {
        self.period
    }
}

/// A rate as a configuration writes it, in the largest unit: `5/s`, `600/1m`, `3/1500ms`.
#[cfg(feature = "bin")]
#[derive(Clone, Copy, Debug)]
pub struct TypedRate(pub Rate);

#[cfg(feature = "bin")]
impl fmt::Display for TypedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MILLI: u64 = 1_000_000;
        const UNITS: [(u64, &str); 5] = [
            (86_400_000 * MILLI, "d"),
            (3_600_000 * MILLI, "h"),
            (60_000 * MILLI, "m"),
            (1_000 * MILLI, "s"),
            (MILLI, "ms"),
        ];
        let Self(Rate { count, period }) = *self;
        if period == Nanos::SECOND {
            return write!(f, "{count}/s");
        }
        let period = period.get();
        // A configuration has no shorter unit than milliseconds.
        let (size, unit) =
            UNITS.into_iter().find(|(size, _)| period.is_multiple_of(*size)).unwrap_or((1, "ns"));
        write!(f, "{count}/{}{unit}", period / size)
    }
}

/// `COUNT/PERIOD`, with the period as Rust writes durations.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:?}", self.count, self.period)
    }
}

#[cfg(all(test, feature = "bin"))]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_written_as_it_is_typed() {
        for typed in ["5/s", "600/1m", "300/5m", "7/30d", "3/2s", "9/90s", "100/1500ms", "1/2h"] {
            let (count, period) = typed.split_once('/').unwrap();
            let period = match period {
                "s" => Nanos::SECOND,
                period => Nanos::from(humantime::parse_duration(period).unwrap()),
            };
            let rate = Rate::new(count.parse().unwrap(), period).unwrap();
            assert_eq!(TypedRate(rate).to_string(), typed);
        }
    }
}
