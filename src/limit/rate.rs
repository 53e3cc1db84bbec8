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

/// `COUNT/PERIOD`, as a configuration writes it.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:?}", self.count, self.period)
    }
}
