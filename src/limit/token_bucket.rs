//! `token_bucket`: at most `burst + rate x T` units in any interval `T`.
//!
//! The cell is the instant at which the bucket will be full (GCRA, ITU-T I.371; `refill.rs`). Each unit moves it
//! later by one *emission interval*, the time between two units.
//!
//! ```text
//!             now              full at
//!   ───────────┼──────────────────┼─────────►
//!              │◄─ what is spent ─►│
//!              │◄─── burst x emission ────►│   a charge must end before this
//! ```
//!
//! With `max_delay` a charge may also end later than that, by at most `max_delay`. The request then waits until
//! its units have come. A bucket of one unit with `max_delay` is the `leaky_bucket`.
//!
//! With `refill_every` the units come in steps: `now` is rounded down to the last step before it is compared,
//! so an interval `T` admits what `T` plus one step would.

use std::fmt;

use super::error::QuotaError;
use super::rate::Rate;
use super::refill::{FullAt, Refill};
use super::verdict::{Verdict, retry_after};
use crate::clock::Nanos;

/// The longest fill time in nanoseconds: a century. It keeps every product below within 64 bits.
const MAX_FILL_TIME: u128 = 100 * 366 * 86_400 * 1_000_000_000;

/// `burst` units at once, then one per emission interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    rate: Rate,
    burst: u32,
    /// The time between two units, rounded up, so that the rate is never exceeded.
    emission: Nanos,
    /// The time between two refills; zero if units come one by one.
    step: Nanos,
    /// How long a request may wait for its units; zero if requests do not wait.
    max_delay: Nanos,
    /// The unit of the clock: every time in a cell is a multiple of it.
    tick: Nanos,
    /// The burst, and the units that requests may wait for.
    limit: u32,
    /// Whether charges may be refunded: cells then remember the latest ones.
    is_refundable: bool,
}

impl TokenBucket {
    /// A bucket that holds `burst` units and refills at `rate`.
    ///
    /// `refill_every`: the time between two refills; zero lets units come one by one. `tick`: the unit of the
    /// clock that the bucket is read by; the emission interval is rounded up to a multiple of it.
    ///
    /// # Errors
    ///
    /// [`QuotaError::ZeroBurst`]; [`QuotaError::TooFast`] if rounding changes the rate by more than 0.1 %;
    /// [`QuotaError::TooLong`] if the burst takes more than a century to come;
    /// [`QuotaError::UnevenRefill`] if a refill is longer than the period or brings a fraction of a unit.
    pub fn new(
        rate: Rate,
        burst: u32,
        refill_every: Nanos,
        tick: Nanos,
    ) -> Result<Self, QuotaError> {
        if burst == 0 {
            return Err(QuotaError::ZeroBurst);
        }
        let (period, count) = (rate.period().get(), u64::from(rate.count()));
        let tick = tick.max(Nanos::new(1));
        let emission = period.div_ceil(count).next_multiple_of(tick.get());
        let excess = u128::from(emission) * u128::from(count) - u128::from(period);
        if excess * 1_000 > u128::from(period) {
            return Err(QuotaError::TooFast);
        }
        if u128::from(emission) * u128::from(burst) > MAX_FILL_TIME {
            return Err(QuotaError::TooLong);
        }
        let step = refill_every.get();
        if step != 0 {
            let units = u128::from(step) * u128::from(count);
            if !units.is_multiple_of(u128::from(period)) || step > period {
                return Err(QuotaError::UnevenRefill);
            }
        }
        Ok(Self {
            rate,
            burst,
            emission: Nanos::new(emission),
            step: refill_every,
            max_delay: Nanos::ZERO,
            tick,
            limit: burst,
            is_refundable: false,
        })
    }

    /// The same bucket, whose requests wait for their units up to `max_delay`, rounded down to the clock's unit.
    ///
    /// # Errors
    ///
    /// [`QuotaError::DelayedSteps`] if the units come in steps.
    pub fn with_max_delay(self, max_delay: Nanos) -> Result<Self, QuotaError> {
        if max_delay != Nanos::ZERO && self.step != Nanos::ZERO {
            return Err(QuotaError::DelayedSteps);
        }
        let max_delay = Nanos::new(max_delay.get() - max_delay.get() % self.tick.get());
        let waiting = u32::try_from(max_delay.get() / self.emission.get()).unwrap_or(u32::MAX);
        Ok(Self { max_delay, limit: self.burst.saturating_add(waiting), ..self })
    }

    /// The same bucket at another rate. Without `burst` it keeps its own, unless that is the number of its rate, as it is
    /// where none was configured. (A leaky bucket holds one unit at every rate.)
    ///
    /// # Errors
    ///
    /// Those of [`TokenBucket::new`] and [`TokenBucket::with_max_delay`].
    pub(super) fn with_rate(&self, rate: Rate, burst: Option<u32>) -> Result<Self, QuotaError> {
        let is_leaky = self.burst == 1 && self.max_delay > Nanos::ZERO;
        let kept =
            if self.burst == self.rate.count() && !is_leaky { rate.count() } else { self.burst };
        Self::new(rate, burst.unwrap_or(kept), self.step, self.tick)?
            .with_max_delay(self.max_delay)
            .map(|bucket| bucket.with_refunds(self.is_refundable))
    }

    /// The same bucket without `max_delay`. It reads the same cells.
    pub const fn without_delay(self) -> Self {
        Self { max_delay: Nanos::ZERO, limit: self.burst, ..self }
    }

    /// The same bucket, whose charges may or may not be refunded.
    pub const fn with_refunds(self, is_refundable: bool) -> Self {
        Self { is_refundable, ..self }
    }

    /// Whether charges may be refunded.
    pub const fn is_refundable(&self) -> bool {
        self.is_refundable
    }

    /// Units and the time they take to come.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Units that the bucket holds.
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// Units that a key can spend at once: the burst, and the units that requests may wait for.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// How long a request may wait for its units.
    pub const fn max_delay(&self) -> Nanos {
        self.max_delay
    }

    /// The time between two units.
    pub const fn emission(&self) -> Nanos {
        self.emission
    }

    /// The time between two refills; zero if units come one by one.
    pub const fn refill_every(&self) -> Nanos {
        self.step
    }

    /// The unit of the clock that the bucket is read by.
    #[cfg(feature = "bin")]
    pub(super) const fn tick(&self) -> Nanos {
        self.tick
    }

    /// How the bucket refills.
    pub(super) const fn refill(&self) -> Refill {
        Refill { emission: self.emission, fill: self.fill_time(), step: self.step }
    }

    /// The time that an empty bucket takes to fill.
    pub const fn fill_time(&self) -> Nanos {
        self.emission.saturating_mul(self.burst as u64)
    }

    /// What can be spent at once, as the time it takes to come back: [`Self::fill_time`] plus `max_delay`.
    pub(super) const fn capacity(&self) -> Nanos {
        self.fill_time().saturating_add(self.max_delay)
    }

    /// Units that have not come back; a unit that has come back in part counts as spent.
    pub(super) fn spent(&self, cell: FullAt, now: Nanos) -> u32 {
        let units = self.refill().spent(cell, now).get().div_ceil(self.emission.get().max(1));
        u32::try_from(units).unwrap_or(u32::MAX)
    }

    pub(super) fn judge(&self, cell: FullAt, cost: u32, now: Nanos) -> Verdict {
        let stepped = self.refill().stepped(now);
        let spent = cell.0.saturating_sub(stepped);
        let after = spent.saturating_add(self.emission.saturating_mul(u64::from(cost)));
        let capacity = self.capacity();
        let allowed = cost == 0 || after <= capacity;
        let spent_after = if allowed { after } else { spent };
        Verdict {
            allowed,
            limit: self.limit(),
            remaining: self.full_units(capacity.saturating_sub(spent_after)),
            delay: if allowed && cost > 0 {
                after.saturating_sub(self.fill_time())
            } else {
                Nanos::ZERO
            },
            reset: self.until_refill(now, stepped.saturating_add(spent_after)),
            retry_after: retry_after(allowed, cost, self.limit(), || {
                self.until_refill(now, stepped.saturating_add(after).saturating_sub(capacity))
            }),
        }
    }

    pub(super) fn charge(&self, cell: &mut FullAt, cost: u32, now: Nanos) {
        *cell = self.refill().charge(*cell, cost, now);
    }

    /// Takes back units that were charged at `charged`, where the cell does not remember charges: all except as many
    /// as came back since. Without the charge the bucket may have been full, and would then have lost those.
    pub(super) fn refund(&self, cell: &mut FullAt, cost: u32, charged: Nanos, now: Nanos) {
        let refill = self.refill();
        let came_back = refill.stepped(now).saturating_sub(refill.stepped(charged));
        let spent = refill.spent(*cell, now);
        let refunded = refill.span(cost).saturating_sub(came_back);
        *cell = refill.with_spent(spent.saturating_sub(refunded), now);
    }

    pub(super) fn is_idle(&self, cell: FullAt, now: Nanos) -> bool {
        self.refill().spent(cell, now) == Nanos::ZERO
    }

    /// The cell that this bucket begins with for a key that was charged under another rate: the same units are
    /// spent, rounded up, and at most all.
    pub(super) fn carry_over(&self, other: &Refill, cell: FullAt, now: Nanos) -> FullAt {
        let spent = u128::from(other.spent(cell, now).get()) * u128::from(self.emission.get());
        let spent = spent.div_ceil(u128::from(other.emission.get()));
        let spent = spent.next_multiple_of(u128::from(self.tick.get()));
        let spent = Nanos::new(u64::try_from(spent).unwrap_or(u64::MAX));
        self.refill().with_spent(spent.min(self.fill_time()), now)
    }

    /// Time from `now` to `instant`, or to the first refill at or after it.
    fn until_refill(&self, now: Nanos, instant: Nanos) -> Nanos {
        let instant = match self.step.get() {
            0 => instant,
            step => Nanos::new(instant.get().div_ceil(step).saturating_mul(step)),
        };
        instant.saturating_sub(now)
    }

    /// Units that come in `span`, rounded down, at most the limit.
    fn full_units(&self, span: Nanos) -> u32 {
        let units = span.get() / self.emission.get();
        u32::try_from(units).unwrap_or(u32::MAX).min(self.limit())
    }
}

impl fmt::Display for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} + {} x T in any interval T", self.burst, self.rate)?;
        if self.step != Nanos::ZERO {
            write!(f, " (T grows by one refill of {:?})", self.step)?;
        }
        if self.max_delay != Nanos::ZERO {
            write!(f, "; above that requests wait, up to {:?}", self.max_delay)?;
        }
        Ok(())
    }
}
