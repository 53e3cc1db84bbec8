//! A cell that a store elsewhere keeps, as the numbers by which it tells of it.
//!
//! The store says what is spent; every number of a verdict is computed here, by the functions that
//! judge an embedded cell. So the two stores cannot answer differently.
//!
//! | quota | numbers, times in microseconds |
//! |---|---|
//! | `token_bucket` | spent, as the time it takes to come back |
//! | `sliding_window` | the window's number since the epoch; units in it; units in the one before |
//! | `sliding_log` | in which chunk the charge stands, for its receipt; units in the window; until the last leaves it; until the refused charge fits |
//! | `fixed_window` | the window's number since the epoch; units in it |

use super::{Cell, Counter, Log, Quota, WindowPair};
use crate::clock::Nanos;

/// One microsecond: the unit in which a store elsewhere counts time.
pub const MICROSECOND: Nanos = Nanos::new(1_000);

impl Quota {
    /// How many numbers tell of a cell of this quota.
    pub const fn reading_len(&self) -> usize {
        match self {
            Self::TokenBucket(_) => 1,
            Self::FixedWindow(_) => 2,
            Self::SlidingWindow(_) => 3,
            Self::SlidingLog(_) => 4,
        }
    }

    /// The cell that these numbers tell of at `now` (the store's own clock). `None` when they
    /// cannot be of such a cell. `refused` matters for a log only: how far the refused charge is above
    /// the limit. The fourth number belongs to it.
    pub fn cell_from_reading(&self, numbers: &[u64], now: Nanos, refused: u32) -> Option<Cell> {
        Some(match (self, numbers) {
            (Self::TokenBucket(q), [spent]) => Cell::Bucket(q.refill().cell(micros(*spent), now)),
            (Self::SlidingWindow(_), [window, current, previous]) => {
                Cell::WindowPair(WindowPair::of(*window, units(*current)?, units(*previous)?))
            }
            (Self::FixedWindow(_), [window, count]) => {
                Cell::Counter(Counter::of(*window, units(*count)?))
            }
            (Self::SlidingLog(q), [_, sum, reset, fits]) => {
                let sum = units(*sum)?;
                let (reset, fits) = (micros(*reset), micros(*fits));
                let period = q.rate().period();
                if reset > period || (refused <= sum && fits > reset) {
                    return None;
                }
                // Two charges stand for all: what has to leave before the refused one fits, and
                // the rest.
                let first = if refused <= sum { refused } else { 0 };
                let at = |left: Nanos| now.saturating_add(left).saturating_sub(period);
                Cell::Log(Box::new(Log::of([(at(fits), first), (at(reset), sum - first)])))
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
