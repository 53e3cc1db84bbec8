//! Cells and quotas as bytes, for a state directory and for a successor.
//!
//! The form is that of postcard (its wire format 1), which is fixed by the order of the fields and variants of the types
//! of this folder; a fixture in `tests/state/fixtures` fails when one of them moves. Bytes come from outside, so nothing
//! that they say is believed: a cell that no process can have written is refused, and no bytes can panic.

use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::fixed_window::FixedWindow;
use super::quota::Quota;
use super::rate::Rate;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::token_bucket::TokenBucket;
use crate::clock::Nanos;

/// The numbers of a quota. The constructors check them again when they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaNumbers {
    algorithm: Algorithm,
    count: u32,
    period: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Algorithm {
    TokenBucket {
        burst: u32,
        refill_every: Nanos,
        tick: Nanos,
        max_delay: Nanos,
        is_refundable: bool,
    },
    SlidingWindow,
    SlidingLog,
    FixedWindow,
}

impl From<&Quota> for QuotaNumbers {
    fn from(quota: &Quota) -> Self {
        let (algorithm, rate) = match quota {
            Quota::TokenBucket(bucket) => (
                Algorithm::TokenBucket {
                    burst: bucket.burst(),
                    refill_every: bucket.refill_every(),
                    tick: bucket.tick(),
                    max_delay: bucket.max_delay(),
                    is_refundable: bucket.is_refundable(),
                },
                bucket.rate(),
            ),
            Quota::SlidingWindow(window) => (Algorithm::SlidingWindow, window.rate()),
            Quota::SlidingLog(log) => (Algorithm::SlidingLog, log.rate()),
            Quota::FixedWindow(window) => (Algorithm::FixedWindow, window.rate()),
        };
        Self { algorithm, count: rate.count(), period: rate.period() }
    }
}

impl QuotaNumbers {
    /// The quota of these numbers. `None`: no quota has them.
    pub fn quota(&self) -> Option<Quota> {
        let rate = Rate::new(self.count, self.period).ok()?;
        Some(match self.algorithm {
            Algorithm::TokenBucket { burst, refill_every, tick, max_delay, is_refundable } => {
                let bucket = TokenBucket::new(rate, burst, refill_every, tick).ok()?;
                let bucket = bucket.with_max_delay(max_delay).ok()?;
                Quota::TokenBucket(bucket.with_refunds(is_refundable))
            }
            Algorithm::SlidingWindow => Quota::SlidingWindow(SlidingWindow::new(rate)),
            Algorithm::SlidingLog => Quota::SlidingLog(SlidingLog::new(rate).ok()?),
            Algorithm::FixedWindow => Quota::FixedWindow(FixedWindow::new(rate)),
        })
    }
}

impl Quota {
    /// Whether a cell that was read from bytes is one that this quota may have written.
    pub fn could_have_written(&self, cell: &Cell) -> bool {
        match (self, cell) {
            (Self::TokenBucket(_), Cell::Bucket(_))
            | (Self::SlidingWindow(_), Cell::WindowPair(_))
            | (Self::FixedWindow(_), Cell::WindowCount(_)) => true,
            (Self::TokenBucket(_), Cell::Buckets(buckets)) => buckets.is_sound(),
            (Self::SlidingLog(_), Cell::Log(log)) => log.is_sound(),
            (Self::SlidingWindow(_), Cell::WindowPairs(counters)) => counters.is_sound(),
            (Self::FixedWindow(_), Cell::WindowCounts(counters)) => counters.is_sound(),
            _ => false,
        }
    }
}
