//! A cell of the confirm table: the exact count of one key under one limit.

use super::attempt::{ChargeAttempt, Spending};
use crate::clock::Nanos;
use crate::limit::{SlidingWindow, Verdict, WindowPair};
use crate::policy::KeyHash;

/// The exact count of one key under one limit. A cell without a quota is unused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConfirmCell {
    key: KeyHash,
    quota: Option<SlidingWindow>,
    /// What the key certainly sent since it has this cell.
    counted: WindowPair,
    /// Units that were refused, and the rank of the cell that the key displaced. They only add to the cell's rank.
    weight: WindowPair,
}

impl ConfirmCell {
    /// A cell that has counted nothing and begins with a rank.
    pub(super) fn new(key: KeyHash, quota: SlidingWindow, rank: u64, now: Nanos) -> Self {
        let mut weight = WindowPair::default();
        quota.charge(&mut weight, units_of_share(rank, quota), now);
        Self { key, quota: Some(quota), counted: WindowPair::default(), weight }
    }

    /// A cell as it was in another process.
    #[cfg(feature = "bin")]
    pub(super) const fn moved(
        key: KeyHash,
        quota: SlidingWindow,
        counted: WindowPair,
        weight: WindowPair,
    ) -> Self {
        Self { key, quota: Some(quota), counted, weight }
    }

    /// What the key sent, and what adds to its rank.
    pub(super) const fn windows(&self) -> (WindowPair, WindowPair) {
        (self.counted, self.weight)
    }

    pub(super) const fn key(&self) -> KeyHash {
        self.key
    }

    pub(super) const fn quota(&self) -> Option<SlidingWindow> {
        self.quota
    }

    /// Judges, and charges if the units fit or the attempt is a debit.
    pub(super) fn spend(&mut self, attempt: &ChargeAttempt) -> Verdict {
        let ChargeAttempt { quota, spending, at, .. } = *attempt;
        let now = at.earliest;
        self.convert_to(quota, now);
        let cost = spending.cost();
        let verdict = attempt.judge(self.counted);
        if verdict.allowed || matches!(spending, Spending::Debit(_)) {
            quota.charge(&mut self.counted, cost, now);
        } else {
            // At most the limit, so that a single huge cost does not keep a cell for long.
            quota.charge(&mut self.weight, cost.min(quota.rate().count()), now);
        }
        verdict
    }

    /// What the key sent since it has this cell, under its limit's present quota.
    pub(super) fn counted(&mut self, quota: SlidingWindow, now: Nanos) -> WindowPair {
        self.convert_to(quota, now);
        self.counted
    }

    /// Takes back what was charged at `charged`.
    pub(super) fn refund(&mut self, cost: u32, charged: Nanos) {
        if let Some(quota) = self.quota {
            quota.refund(&mut self.counted, cost, charged);
        }
    }

    /// Dates all counts back by at least this time, in whole windows. A time that is very short against the window changes nothing:
    /// only units that were charged within it of an edge would count longer, and by no more than it.
    pub(super) fn date_back(&mut self, back: Nanos) {
        if let Some(quota) = self.quota {
            let period = quota.rate().period();
            let tolerated = Nanos::new(period.get() / TOLERATED_DIVISOR).min(MAX_TOLERATED);
            if back <= tolerated {
                return;
            }
            let windows = back.get().div_ceil(period.get());
            let windows = u32::try_from(windows).unwrap_or(u32::MAX / 2);
            self.counted = self.counted.dated_back(windows);
            self.weight = self.weight.dated_back(windows);
        }
    }

    /// Forgets what the key sent. It keeps its cell, so that it is counted from now on.
    pub(super) fn reset(&mut self) {
        self.counted = WindowPair::default();
    }

    /// Units that the key tried to send in this window and in the one before, refused ones included, and units of them
    /// that count now.
    pub(super) fn sent_and_spent(&self, now: Nanos) -> (u32, u32) {
        self.quota.map_or((0, 0), |quota| {
            let (counted, weight) = (quota.sum(self.counted, now), quota.sum(self.weight, now));
            (counted.saturating_add(weight), quota.spent(self.counted, now))
        })
    }

    /// Whether the cell is unused, or equals an unused one.
    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        self.quota
            .is_none_or(|quota| quota.is_idle(self.counted, now) && quota.is_idle(self.weight, now))
    }

    /// How heavy the key is, comparable with keys of other limits: what it tried to send in this window and in the
    /// one before, as a [`share`] of its limit.
    pub(super) fn rank(&self, now: Nanos) -> u64 {
        self.quota.map_or(0, |quota| {
            let sum = quota.sum(self.counted, now).saturating_add(quota.sum(self.weight, now));
            share(sum, quota)
        })
    }

    /// Converts the counts if a reload has changed the limit's quota.
    pub(super) fn convert_to(&mut self, quota: SlidingWindow, now: Nanos) {
        match self.quota {
            Some(old) if old != quota => {
                self.counted = quota.convert(&old, self.counted, now);
                self.weight = quota.convert(&old, self.weight, now);
                self.quota = Some(quota);
            }
            Some(_) | None => {}
        }
    }
}

/// A step of the clock that is at most this part of a window moves no counts to another window.
const TOLERATED_DIVISOR: u64 = 1_000;

/// A longer step always does.
const MAX_TOLERATED: Nanos = Nanos::SECOND;

/// Binary digits of a [`share`] after the point. The largest number of units then fits under the smallest limit.
const SHARE_BITS: u32 = 32;

/// Units as a share of the limit: a fixed-point number with [`SHARE_BITS`] digits after the point.
pub(super) fn share(units: u32, quota: SlidingWindow) -> u64 {
    (u64::from(units) << SHARE_BITS) / u64::from(quota.rate().count())
}

/// The units of a share of the limit.
fn units_of_share(share: u64, quota: SlidingWindow) -> u32 {
    let units = (u128::from(share) * u128::from(quota.rate().count())) >> SHARE_BITS;
    u32::try_from(units).unwrap_or(u32::MAX)
}
