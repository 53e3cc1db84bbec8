//! Why a rate or a quota cannot be built.

use super::charge_log::MAX_LOG_LIMIT;

/// Why a rate or a quota cannot be built. The configuration adds the position in the file and the cure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// The rate has zero units.
    #[error("a rate needs at least 1 unit")]
    ZeroRate,
    /// The period is shorter than 1 ms or longer than [`MAX_PERIOD`](super::MAX_PERIOD).
    #[error("a rate's period is between 1ms and 366d")]
    Period,
    /// The bucket holds zero units.
    #[error("a burst is at least 1")]
    ZeroBurst,
    /// The time between two units is so short that rounding it up to the clock's unit changes the rate by more
    /// than 0.1 %.
    #[error("this rate errs by more than 0.1 % in the clock's unit")]
    TooFast,
    /// The bucket takes more than a hundred years to fill.
    #[error("a full burst may take at most 100 years to refill")]
    TooLong,
    /// The bucket has both `refill_every` (units come in steps) and `max_delay` (requests wait for single
    /// units).
    #[error("refill_every and max_delay do not go together")]
    DelayedSteps,
    /// `refill_every` is longer than the rate's period, or does not bring an integer number of units.
    #[error("refill_every brings no whole number of units")]
    UnevenRefill,
    /// Only a bucket has a burst.
    #[error("burst belongs to token_bucket")]
    BurstOfWindow,
    /// A sliding log of this limit needs too much memory per key.
    #[error("a sliding log holds at most {MAX_LOG_LIMIT} units per window")]
    LogTooLarge,
}
