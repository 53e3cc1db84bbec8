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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refilled(Nanos);

/// How a cell refills: what is spent, and the time between two units, of the rate that charged it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refill {
    /// Between two units.
    pub emission: Nanos,
    /// What is spent, as the time it takes to come back.
    pub spent: Nanos,
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
        Ok(Self { rate, burst, emission, step, max_delay, tick, limit: burst })
    }

    /// The same bucket, whose requests wait for their units up to `max_delay`.
    pub fn delayed(self, max_delay: Nanos) -> Result<Self, QuotaError> {
        if max_delay != Nanos::ZERO && self.step != Nanos::ZERO {
            return Err(QuotaError::DelayedSteps);
        }
        let max_delay = Nanos::new(max_delay.get() - max_delay.get() % self.tick.get());
        let waiting = u32::try_from(max_delay.get() / self.emission.get()).unwrap_or(u32::MAX);
        Ok(Self { max_delay, limit: self.burst.saturating_add(waiting), ..self })
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

    /// A cell of which so much time's worth of units is spent at `now`.
    pub(super) fn spent(&self, spent: Nanos, now: Nanos) -> Refilled {
        Refilled(self.stepped(now).saturating_add(spent))
    }

    /// How long an empty bucket takes to fill.
    pub const fn full_refill(&self) -> Nanos {
        self.emission.saturating_mul(self.burst as u64)
    }

    /// What can be spent, as the time it takes to come: the burst, and what may be waited for.
    pub(super) const fn capacity(&self) -> Nanos {
        self.full_refill().saturating_add(self.max_delay)
    }

    pub(super) fn judge(&self, cell: Refilled, cost: u32, now: Nanos) -> Verdict {
        let at = self.stepped(now);
        let spent = cell.0.saturating_sub(at);
        let after = spent.saturating_add(self.emission.saturating_mul(u64::from(cost)));
        let capacity = self.capacity();
        let allowed = cost == 0 || after <= capacity;
        let left = if allowed { after } else { spent };
        Verdict {
            allowed,
            limit: self.limit(),
            remaining: self.whole_units(capacity.saturating_sub(left)),
            wait: if allowed && cost > 0 {
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

    pub(super) fn charge(&self, cell: &mut Refilled, cost: u32, now: Nanos) {
        let from = cell.0.max(self.stepped(now));
        cell.0 = from.saturating_add(self.emission.saturating_mul(u64::from(cost)));
    }

    /// Takes back `cost` units that were charged at `charged`, when `before` was spent. What came
    /// back since and would not have without the charge (the bucket would have been full) is not
    /// given back again.
    pub(super) fn give_back(
        &self,
        cell: &mut Refilled,
        cost: u32,
        charged: Nanos,
        before: Nanos,
        now: Nanos,
    ) {
        self.take(cell, self.back(cost, charged, before, now), now);
    }

    /// What is given back of `cost` units, as the time they take to come.
    pub(super) fn back(&self, cost: u32, charged: Nanos, before: Nanos, now: Nanos) -> Nanos {
        let passed = self.stepped(now).saturating_sub(self.stepped(charged));
        let came = passed.saturating_sub(before);
        self.emission.saturating_mul(u64::from(cost)).saturating_sub(came)
    }

    /// What a span of this bucket's units is worth in another one's, rounded down.
    pub(super) fn worth(&self, span: Nanos, other: &Self) -> Nanos {
        let scaled = u128::from(span.get()) * u128::from(other.emission.get())
            / u128::from(self.emission.get());
        let scaled = u64::try_from(scaled).unwrap_or(u64::MAX);
        Nanos::new(scaled - scaled % other.tick.get())
    }

    /// Takes a span out of what is spent.
    pub(super) fn take(&self, cell: &mut Refilled, span: Nanos, now: Nanos) {
        let spent = cell.0.saturating_sub(self.stepped(now)).saturating_sub(span);
        *cell = if spent == Nanos::ZERO { Refilled::default() } else { self.spent(spent, now) };
    }

    pub(super) fn is_idle(&self, cell: Refilled, now: Nanos) -> bool {
        cell.0 <= self.stepped(now)
    }

    /// What is said of a cell that another rate of the limit has charged last, and that refills at that
    /// rate until it is charged under this one: `verdict` is of the cell as this bucket reads it.
    pub(super) fn while_refilling(
        &self,
        refill: Refill,
        verdict: Verdict,
        cost: u32,
        now: Nanos,
    ) -> Verdict {
        if verdict.allowed && cost > 0 {
            return verdict;
        }
        let at = self.stepped(now);
        let until = |spent: Nanos| self.wait_from(now, at.saturating_add(spent));
        let mut told = Verdict { reset: until(refill.spent), ..verdict };
        if !verdict.allowed && verdict.retry_after.is_some() {
            let room =
                self.capacity().saturating_sub(self.emission.saturating_mul(u64::from(cost)));
            let room = room.get() - room.get() % self.tick.get();
            // The most that may be spent at the other rate, so that no more than `room` is here.
            let most = u128::from(room) * u128::from(refill.emission.get())
                / u128::from(self.emission.get());
            let most = Nanos::new(u64::try_from(most).unwrap_or(u64::MAX));
            let wait = until(refill.spent.saturating_sub(most)).max(self.tick);
            told.retry_after = Some(Nanos::new(wait.get().next_multiple_of(self.tick.get())));
        }
        told
    }

    /// How a cell that this bucket has charged refills.
    pub(super) fn refill(&self, cell: Refilled, now: Nanos) -> Refill {
        Refill { emission: self.emission, spent: cell.0.saturating_sub(self.stepped(now)) }
    }

    /// Reads a cell of `old` as one of this bucket: units carry over, rounded up.
    pub(super) fn convert(&self, old: &Self, cell: Refilled, now: Nanos) -> Refilled {
        let spent = cell.0.saturating_sub(old.stepped(now)).get();
        if spent == 0 {
            return Refilled::default();
        }
        // Spent units and the part of a unit, carried over in proportion and rounded up.
        let scaled = (u128::from(spent) * u128::from(self.emission.get()))
            .div_ceil(u128::from(old.emission.get()))
            .next_multiple_of(u128::from(self.tick.get()));
        let scaled = Nanos::new(u64::try_from(scaled).unwrap_or(u64::MAX));
        Refilled(self.stepped(now).saturating_add(scaled))
    }

    /// `now`, or the last step of the refill before it.
    fn stepped(&self, now: Nanos) -> Nanos {
        match self.step.get() {
            0 => now,
            step => Nanos::new(now.get() - now.get() % step),
        }
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
