//! What is needed to take a charge back later, when other charges have come between.

use super::{Cell, FixedWindow, Quota, SlidingWindow, Verdict, WindowLengths};
use crate::clock::Now;

/// A charge that was spent and may be given back, in whole or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// When it was charged.
    at: Now,
    cost: u32,
}

impl Quota {
    /// The receipt of a charge that was allowed with this verdict.
    pub fn receipt(&self, verdict: &Verdict, cost: u32, now: Now) -> Receipt {
        let mono = match self {
            // A log's charge stands with the newest one, if that came later.
            Self::SlidingLog(q) => {
                now.mono.saturating_add(verdict.reset).saturating_sub(q.rate().period())
            }
            Self::TokenBucket(_) | Self::SlidingWindow(_) | Self::FixedWindow(_) => now.mono,
        };
        Receipt { at: Now { mono, ..now }, cost }
    }

    /// Takes back up to `units` of a charge, where they still count, and never more than is there
    /// because of it. An immediate refund restores the cell; a late one leaves no more room than if the
    /// charge had never been made. (A bucket may be left less full than that, by a step or where sums
    /// were joined: `buckets.rs` has the bounds.)
    ///
    /// `windows`: of all variants of the limit when it was charged.
    pub fn refund(
        &self,
        windows: &WindowLengths,
        cell: &mut Cell,
        units: u32,
        receipt: Receipt,
        now: Now,
    ) {
        let units = units.min(receipt.cost);
        match (self, cell) {
            (Self::TokenBucket(q), Cell::Bucket(c)) => {
                q.refund(c, units, receipt.at.mono, now.mono);
            }
            (Self::TokenBucket(_), Cell::Buckets(c)) => {
                c.refund(units, receipt.at.mono, now.mono);
            }
            (Self::SlidingWindow(q), Cell::WindowPair(c)) => {
                q.refund(c, units, receipt.at.wall);
            }
            (Self::SlidingLog(q), Cell::Log(c)) => q.refund(c, units, receipt.at.mono),
            (Self::FixedWindow(q), Cell::Counter(c)) => q.refund(c, units, receipt.at.wall),
            (Self::SlidingWindow(_), Cell::WindowPairs(all)) => {
                all.refund::<SlidingWindow>(windows, units, receipt.at.wall);
            }
            (Self::FixedWindow(_), Cell::WindowCounters(all)) => {
                all.refund::<FixedWindow>(windows, units, receipt.at.wall);
            }
            // A cell of another algorithm cannot be met: see `judge`.
            _ => {}
        }
    }
}
