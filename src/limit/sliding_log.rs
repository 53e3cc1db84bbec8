//! `sliding_log`: never more than the limit in any window, whatever the timing.
//!
//! A charge counts from its instant on for one window, the end of which is excluded.

use std::fmt;

use super::charge_log::{ChargeLog, LoggedCharge, MAX_LOG_LIMIT};
use super::error::QuotaError;
use super::rate::Rate;
use super::verdict::{Verdict, retry_after};
use crate::clock::Nanos;

/// `rate.count` units in any window of `rate.period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    rate: Rate,
}

impl SlidingLog {
    /// A log of a rate of at most [`MAX_LOG_LIMIT`] units.
    ///
    /// # Errors
    ///
    /// [`QuotaError::LogTooLarge`].
    pub const fn new(rate: Rate) -> Result<Self, QuotaError> {
        if rate.count() > MAX_LOG_LIMIT {
            return Err(QuotaError::LogTooLarge);
        }
        Ok(Self { rate })
    }

    /// Units and length of the window.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    pub(super) fn spent(&self, cell: &ChargeLog, now: Nanos) -> u32 {
        self.live(cell, now).fold(0u32, |sum, charge| sum.saturating_add(charge.cost))
    }

    pub(super) fn judge(&self, cell: &ChargeLog, cost: u32, now: Nanos) -> Verdict {
        let limit = self.rate.count();
        let spent = self.spent(cell, now);
        let after = spent.saturating_add(cost);
        let allowed = cost == 0 || after <= limit;
        let spent_after = if allowed { after } else { spent };
        let newest = cell.newest().map(|charge| charge.at);
        // The log never puts a charge before an older one.
        let newest = if allowed && cost > 0 { newest.max(Some(now)) } else { newest };
        Verdict {
            allowed,
            limit,
            remaining: limit.saturating_sub(spent_after),
            delay: Nanos::ZERO,
            reset: newest.map_or(Nanos::ZERO, |at| self.until_gone(at, now)),
            retry_after: retry_after(allowed, cost, limit, || {
                self.until_freed(cell, after - limit, now)
            }),
        }
    }

    pub(super) fn charge(&self, cell: &mut ChargeLog, cost: u32, now: Nanos) {
        cell.charge(self.rate.period(), cost, now);
    }

    /// Time until at least `excess` units have left the window.
    fn until_freed(&self, cell: &ChargeLog, excess: u32, now: Nanos) -> Nanos {
        let mut freed = 0u32;
        for charge in self.live(cell, now) {
            freed = freed.saturating_add(charge.cost);
            if freed >= excess {
                return self.until_gone(charge.at, now);
            }
        }
        Nanos::ZERO
    }

    /// The charges in this window, which may be shorter than the log keeps charges.
    fn live(&self, cell: &ChargeLog, now: Nanos) -> impl Iterator<Item = LoggedCharge> {
        cell.live(move |charge| self.until_gone(charge.at, now) > Nanos::ZERO)
    }

    /// Time until a charge of `at` has left the window.
    fn until_gone(&self, at: Nanos, now: Nanos) -> Nanos {
        at.saturating_add(self.rate.period()).saturating_sub(now)
    }
}

impl fmt::Display for SlidingLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "never more than {} in any {:?}", self.rate.count(), self.rate.period())
    }
}
