//! How the reply of a shared store becomes a cell.
//!
//! The store replies with what is spent. Every number of a verdict is computed here, by the functions that judge
//! an embedded cell, so the two stores cannot answer differently.
//!
//! | quota | numbers, times in microseconds |
//! |---|---|
//! | `token_bucket` | what is spent, as the time it takes to come back |
//! | `sliding_window` | the window's number since the epoch; units in it; units in the window before |
//! | `sliding_log` | the chunk that holds the charge, for its receipt; units in the window; time until the last unit leaves it; time until the refused charge fits |
//! | `fixed_window` | the window's number since the epoch; units in it |

use super::cell::Cell;
use super::charge_log::{ChargeLog, LoggedCharge};
use super::fixed_window::WindowCount;
use super::quota::Quota;
use super::sliding_window::WindowPair;
use super::tick::MICROSECOND;
use crate::clock::Nanos;

impl Quota {
    /// How many numbers of a reply describe a cell of this quota.
    pub const fn reading_len(&self) -> usize {
        match self {
            Self::TokenBucket(_) => 1,
            Self::FixedWindow(_) => 2,
            Self::SlidingWindow(_) => 3,
            Self::SlidingLog(_) => 4,
        }
    }

    /// The cell that these numbers describe at `now` (the store's own clock). `None` if they cannot describe a
    /// cell of this quota. `refused` is used for a log only: by how many units the refused charge exceeds the
    /// limit. The fourth number belongs to it.
    pub fn cell_from_reading(&self, numbers: &[u64], now: Nanos, refused: u32) -> Option<Cell> {
        Some(match (self, numbers) {
            (Self::TokenBucket(q), [spent]) => {
                Cell::Bucket(q.refill().with_spent(micros(*spent), now))
            }
            (Self::SlidingWindow(_), [window, current, previous]) => {
                Cell::WindowPair(WindowPair::new(*window, units(*current)?, units(*previous)?))
            }
            (Self::FixedWindow(_), [window, count]) => {
                Cell::WindowCount(WindowCount::new(*window, units(*count)?))
            }
            (Self::SlidingLog(q), [_, sum, reset, fits]) => {
                let sum = units(*sum)?;
                let (reset, fits) = (micros(*reset), micros(*fits));
                let period = q.rate().period();
                if reset > period || (refused <= sum && fits > reset) {
                    return None;
                }
                // Two charges represent all of them: the units that must leave before the refused charge fits,
                // and the rest.
                let first = if refused <= sum { refused } else { 0 };
                let leaving_in = |left: Nanos, cost| LoggedCharge {
                    at: now.saturating_add(left).saturating_sub(period),
                    cost,
                };
                let charges = [leaving_in(fits, first), leaving_in(reset, sum - first)];
                Cell::Log(Box::new(ChargeLog::from_charges(charges)))
            }
            _ => return None,
        })
    }
}

const fn micros(count: u64) -> Nanos {
    MICROSECOND.saturating_mul(count)
}

fn units(count: u64) -> Option<u32> {
    u32::try_from(count).ok()
}
