//! `token_bucket`: at most `burst + rate x T` in any interval `T`.
//!
//! Kept as one time, in the form of the generic cell rate algorithm (ITU-T I.371): the cell is the
//! instant at which the bucket will be full. Each unit pushes it one *emission interval* further.
//!
//! ```text
//!             now              full at
//!   ───────────┼──────────────────┼─────────►
//!              │◄─ what is spent ─►│
//!              │◄─── burst x emission ────►│   a charge must end before this
//! ```
//!
//! With `max_delay` a charge may also end later than that, by so much: the request then waits until
//! its units have come, and a bucket of one unit is the `leaky_bucket`.
//!
//! With `refill_every` the units come in steps: `now` is rounded down to the last step before it
//! is compared, so an interval `T` admits what `T` plus one step would.

use std::fmt;

use super::{QuotaError, Rate, Verdict};
use crate::clock::Nanos;

/// A century: with it no product below leaves 64 bits.
const MAX_REFILL: u128 = 100 * 366 * 86_400 * 1_000_000_000;

/// The instant (monotonic) at which the bucket is full again. The default is a full bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FullAt(Nanos);

impl FullAt {
    /// So much more is spent.
    pub(super) const fn later(self, span: Nanos) -> Self {
        Self(self.0.saturating_add(span))
    }
}

/// How a bucket refills: of variants of a limit with the same numbers, a cell has one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refill {
    /// Between two units.
    pub(super) emission: Nanos,
    /// How long an empty bucket takes to fill.
    pub(super) fill: Nanos,
    /// Between two refills; zero: units come one by one.
    step: Nanos,
}

/// `burst` units at once, then one per emission interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    rate: Rate,
    burst: u32,
    /// Between two units; rounded up, so the rate is never exceeded.
    emission: Nanos,
    /// Zero: units come one by one.
    step: Nanos,
    /// How long a request may wait for its units; zero: none waits.
    max_delay: Nanos,
    /// Of which every time in a cell is a multiple.
    tick: Nanos,
    /// The most that can be spent at once, by those who wait too.
    limit: u32,
    /// Whether charges may be given back: cells then remember the last ones.
    returns: bool,
}

impl Refill {
    /// `now`, or the last refill before it.
    pub(super) const fn stepped(&self, now: Nanos) -> Nanos {
        match self.step.get() {
            0 => now,
            step => Nanos::new(now.get() - now.get() % step),
        }
    }

    /// Units, as the time they take to come.
    pub(super) const fn span(&self, units: u32) -> Nanos {
        self.emission.saturating_mul(units as u64)
    }

    /// What is spent.
    pub(super) const fn spent(&self, cell: FullAt, now: Nanos) -> Nanos {
        cell.0.saturating_sub(self.stepped(now))
    }

    /// A cell of which so much is spent.
    pub(super) const fn cell(&self, spent: Nanos, now: Nanos) -> FullAt {
        match spent.get() {
            0 => FullAt(Nanos::ZERO),
            _ => FullAt(self.stepped(now).saturating_add(spent)),
        }
    }

    /// Spends, whatever the limit is.
    pub(super) fn charge(&self, cell: FullAt, units: u32, now: Nanos) -> FullAt {
        FullAt(cell.0.max(self.stepped(now)).saturating_add(self.span(units)))
    }

    /// Spends, and no more than that so much is spent then.
    pub(super) fn charge_up_to(&self, most: Nanos, cell: FullAt, units: u32, now: Nanos) -> FullAt {
        let empty = self.stepped(now).saturating_add(most);
        cell.max(self.charge(cell, units, now).min(FullAt(empty)))
    }

    /// Gives back units, and no more than there were.
    pub(super) fn refund(&self, cell: FullAt, units: u32) -> FullAt {
        FullAt(cell.0.saturating_sub(self.span(units)))
    }
}

impl TokenBucket {
    /// `refill_every` of zero lets units come one by one. `tick`: the unit of the clock that the
    /// bucket is read by; the time between two units is a whole number of them, rounded up.
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
        if u128::from(emission) * u128::from(burst) > MAX_REFILL {
            return Err(QuotaError::TooLong);
        }
        let step = refill_every.get();
        if step != 0 {
            let units = u128::from(step) * u128::from(count);
            if !units.is_multiple_of(u128::from(period)) || step > period {
                return Err(QuotaError::UnevenRefill);
            }
        }
        let emission = Nanos::new(emission);
        let (step, max_delay) = (refill_every, Nanos::ZERO);
        Ok(Self { rate, burst, emission, step, max_delay, tick, limit: burst, returns: false })
    }

    /// The same bucket, whose requests wait for their units up to `max_delay`.
    pub fn with_max_delay(self, max_delay: Nanos) -> Result<Self, QuotaError> {
        if max_delay != Nanos::ZERO && self.step != Nanos::ZERO {
            return Err(QuotaError::DelayedSteps);
        }
        let max_delay = Nanos::new(max_delay.get() - max_delay.get() % self.tick.get());
        let waiting = u32::try_from(max_delay.get() / self.emission.get()).unwrap_or(u32::MAX);
        Ok(Self { max_delay, limit: self.burst.saturating_add(waiting), ..self })
    }

    /// The same bucket, for which nobody waits. Its cells are the same.
    pub const fn without_delay(self) -> Self {
        Self { max_delay: Nanos::ZERO, limit: self.burst, ..self }
    }

    /// The same bucket, whose charges may be given back.
    pub const fn with_refunds(self, returns: bool) -> Self {
        Self { returns, ..self }
    }

    /// Whether charges may be given back.
    pub const fn is_refundable(&self) -> bool {
        self.returns
    }

    /// Units and the time they take to come.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The most that can be spent at once.
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// The most that can be spent at once, by those who wait too.
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

    /// The time between two refills; zero: units come one by one.
    pub const fn refill_every(&self) -> Nanos {
        self.step
    }

    /// How it refills.
    pub(super) const fn refill(&self) -> Refill {
        Refill { emission: self.emission, fill: self.full_refill(), step: self.step }
    }

    /// How long an empty bucket takes to fill.
    pub const fn full_refill(&self) -> Nanos {
        self.emission.saturating_mul(self.burst as u64)
    }

    /// What can be spent, as the time it takes to come: the burst, and what may be waited for.
    pub(super) const fn capacity(&self) -> Nanos {
        self.full_refill().saturating_add(self.max_delay)
    }

    /// Units that have not come back; a unit that has come in part counts.
    pub(super) fn spent(&self, cell: FullAt, now: Nanos) -> u32 {
        let units = self.refill().spent(cell, now).get().div_ceil(self.emission.get().max(1));
        u32::try_from(units).unwrap_or(u32::MAX)
    }

    pub(super) fn judge(&self, cell: FullAt, cost: u32, now: Nanos) -> Verdict {
        let at = self.refill().stepped(now);
        let spent = cell.0.saturating_sub(at);
        let after = spent.saturating_add(self.emission.saturating_mul(u64::from(cost)));
        let capacity = self.capacity();
        let allowed = cost == 0 || after <= capacity;
        let left = if allowed { after } else { spent };
        Verdict {
            allowed,
            limit: self.limit(),
            remaining: self.whole_units(capacity.saturating_sub(left)),
            delay: if allowed && cost > 0 {
                after.saturating_sub(self.full_refill())
            } else {
                Nanos::ZERO
            },
            reset: self.wait_from(now, at.saturating_add(left)),
            retry_after: if allowed {
                Some(Nanos::ZERO)
            } else if cost > self.limit() {
                None
            } else {
                let due = at.saturating_add(after).saturating_sub(capacity);
                Some(self.wait_from(now, due))
            },
        }
    }

    pub(super) fn charge(&self, cell: &mut FullAt, cost: u32, now: Nanos) {
        *cell = self.refill().charge(*cell, cost, now);
    }

    /// Takes back units that were charged at `charged`, where the cell does not remember charges: all
    /// but what came back since, which would have come for nothing had the bucket been full.
    pub(super) fn refund(&self, cell: &mut FullAt, cost: u32, charged: Nanos, now: Nanos) {
        let refill = self.refill();
        let came = refill.stepped(now).saturating_sub(refill.stepped(charged));
        let spent = refill.spent(*cell, now);
        *cell = refill.cell(spent.saturating_sub(refill.span(cost).saturating_sub(came)), now);
    }

    pub(super) fn is_idle(&self, cell: FullAt, now: Nanos) -> bool {
        self.refill().spent(cell, now) == Nanos::ZERO
    }

    /// What this bucket begins with, where a key was charged under another rate so far: units carry
    /// over, rounded up, and at most empty it.
    pub(super) fn carried(&self, other: &Refill, cell: FullAt, now: Nanos) -> FullAt {
        let spent = u128::from(other.spent(cell, now).get()) * u128::from(self.emission.get());
        let spent = spent.div_ceil(u128::from(other.emission.get()));
        let spent = spent.next_multiple_of(u128::from(self.tick.get()));
        let spent = Nanos::new(u64::try_from(spent).unwrap_or(u64::MAX));
        self.refill().cell(spent.min(self.full_refill()), now)
    }

    /// From `now` to `due`, or to the first step of the refill at or after it.
    fn wait_from(&self, now: Nanos, due: Nanos) -> Nanos {
        let due = match self.step.get() {
            0 => due,
            step => Nanos::new(due.get().div_ceil(step).saturating_mul(step)),
        };
        due.saturating_sub(now)
    }

    fn whole_units(&self, span: Nanos) -> u32 {
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
