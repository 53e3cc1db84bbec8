//! Refunds: how a charge is taken back when other charges have come between.

use super::cell::Cell;
use super::fixed_window::FixedWindow;
use super::quota::Quota;
use super::sliding_window::SlidingWindow;
use super::verdict::Verdict;
use super::window_lengths::WindowLengths;
use crate::clock::Now;

/// Proof of a charge, by which it can be refunded in full or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct Receipt {
    /// When it was charged.
    at: Now,
    cost: u32,
}

impl Quota {
    /// The receipt of a charge that was allowed with this verdict.
    pub fn receipt(&self, verdict: &Verdict, cost: u32, now: Now) -> Receipt {
        let mono = match self {
            // A log adds the charge to its newest one, if that is later than `now`.
            Self::SlidingLog(q) => {
                now.mono.saturating_add(verdict.reset).saturating_sub(q.rate().period())
            }
            Self::TokenBucket(_) | Self::SlidingWindow(_) | Self::FixedWindow(_) => now.mono,
        };
        Receipt { at: Now { mono, ..now }, cost }
    }

    /// Takes back up to `units` of a charge, as far as they still count because of that charge. An immediate
    /// refund restores the cell. A late one leaves no more room than if the charge had never been made; a bucket
    /// may be left less full than that, by a step or where sums were joined (`buckets.rs` has the bounds).
    ///
    /// `windows`: the lengths of all variants of the limit when the units were charged.
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
            (Self::SlidingLog(_), Cell::Log(c)) => c.refund(units, receipt.at.mono),
            (Self::FixedWindow(q), Cell::WindowCount(c)) => q.refund(c, units, receipt.at.wall),
            (Self::SlidingWindow(_), Cell::WindowPairs(c)) => {
                c.refund::<SlidingWindow>(windows, units, receipt.at.wall);
            }
            (Self::FixedWindow(_), Cell::WindowCounts(c)) => {
                c.refund::<FixedWindow>(windows, units, receipt.at.wall);
            }
            // A cell of another algorithm does not occur (see `judge`).
            _ => {}
        }
    }
}
