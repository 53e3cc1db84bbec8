//! The buckets of one key that is charged under several rates, or whose charges may be refunded.
//!
//! **Several rates.** The plans and overrides of a limit have rates of their own. A key then has one bucket per
//! rate. A charge is judged on the bucket of its own rate and spends in all, so units that one plan used are not
//! available to another. A charge under a fast rate can empty the bucket of a slow one, but never puts it into
//! debt. A rate that a key meets later begins with the largest number of units that are spent under any other
//! rate, and at most with an empty bucket.
//!
//! ```text
//!   rate: 10/1h, plans: { gold: 100/1s }
//!
//!                 ┌ 10/1h   full at 15:07     ◄── judges requests without the plan
//!   key ─ cell ───┤
//!                 └ 100/1s  full at 14:13:02  ◄── judges requests of gold
//!                           every charge spends in both
//! ```
//!
//! **Refunds.** The effect of a charge depends on all later ones: a full bucket gains nothing, so units that
//! would have been lost must not come back by a refund. Therefore the cell remembers its latest charges, summed
//! in steps of a sixteenth of the fastest bucket's fill time. A refund takes its units out of the sum and
//! computes the buckets again. A sum counts as if it had been charged at once at its last instant. So after a refund a
//! bucket is never fuller than without the charge, and less full by at most one step.
//!
//! A charge older than the fill time of the slowest bucket cannot be refunded: its units would have come back
//! since. If that needs more sums than the cell may keep (a key has met a fast rate and a slow one, or
//! `max_keys` leaves no room), the two sums closest in time are joined.

use super::refill::{FullAt, Refill};
use super::tick::MICROSECOND;
use super::token_bucket::TokenBucket;
use crate::clock::Nanos;

/// The largest number of rates of a bucket limit with its plans. Every charge writes a bucket of each.
pub const MAX_RATES: usize = 8;

/// The largest number of rates that a key keeps: those of the limit, and as many of the generation before a
/// reload, under which another node may still charge the key. One more replaces the rate that was not charged
/// for the longest time. (The bucket that is full soonest would be the wrong one: a fast rate in use.)
const MAX_KEPT_RATES: usize = 2 * MAX_RATES;

/// The largest number of remembered sums.
const MAX_SUMS: usize = 16;

/// The fill time of the fastest bucket is divided into this many steps; each step has one sum.
const SUMS_PER_FILL: u64 = 16;

/// The buckets of one key, at least one; the rate that was charged last comes last.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct Buckets {
    rates: Vec<RateBucket>,
    /// The latest charges, oldest first; empty if charges are not refunded.
    sums: Vec<ChargeSum>,
}

/// The bucket of one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
struct RateBucket {
    refill: Refill,
    /// The largest span that was ever spent after a charge under this rate, delayed requests and costs known
    /// late included.
    max_spent: Nanos,
    full: FullAt,
    /// `full` as the charges before `remembered_since` left it, without the remembered ones.
    base: FullAt,
    /// Charges of this instant and later are remembered.
    remembered_since: Nanos,
}

/// Units that were charged within one step, under any rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
struct ChargeSum {
    /// The instant of the last charge.
    last: Nanos,
    units: u32,
}

impl RateBucket {
    fn new(bucket: &TokenBucket, full: FullAt, now: Nanos) -> Self {
        let refill = bucket.refill();
        let max_spent = bucket.capacity().max(refill.spent(full, now));
        Self { refill, max_spent, full, base: full, remembered_since: now }
    }

    /// When the bucket is full again according to the remembered charges.
    fn recomputed(&self, sums: &[ChargeSum]) -> FullAt {
        let remembered = sums.iter().filter(|sum| sum.last >= self.remembered_since);
        remembered.fold(self.base, |full, sum| {
            self.refill.charge_up_to(self.max_spent, full, sum.units, sum.last)
        })
    }
}

impl Buckets {
    /// The buckets of a key that was charged under one rate so far.
    pub(super) fn single(bucket: &TokenBucket, full: FullAt, now: Nanos) -> Self {
        Self { rates: vec![RateBucket::new(bucket, full, now)], sums: Vec::new() }
    }

    /// When the bucket of a rate is full; an absent one has spent nothing.
    pub(super) fn full_at(&self, bucket: &TokenBucket) -> FullAt {
        let refill = bucket.refill();
        let own = self.rates.iter().find(|rate| rate.refill == refill);
        own.map_or(FullAt::default(), |rate| rate.full)
    }

    /// Whether every bucket is full.
    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        self.rates.iter().all(|rate| rate.refill.spent(rate.full, now) == Nanos::ZERO)
    }

    /// Adds a bucket of this rate, if the key has none.
    pub(super) fn add_rate(&mut self, bucket: &TokenBucket, now: Nanos) {
        let refill = bucket.refill();
        if let Some(own) = self.rates.iter_mut().find(|rate| rate.refill == refill) {
            own.max_spent = own.max_spent.max(bucket.capacity());
            return;
        }
        let mut own = RateBucket::new(bucket, FullAt::default(), now);
        for other in &self.rates {
            let full = bucket.carry_over(&other.refill, other.full, now);
            if full > own.full {
                own.full = full;
                // A later refund of a charge under the other rate counts here too.
                let since = other.remembered_since;
                own.base = bucket.carry_over(&other.refill, other.base, since);
                own.remembered_since = since;
            }
        }
        if self.rates.len() >= MAX_KEPT_RATES {
            self.rates.remove(0);
        }
        self.rates.reserve_exact(1);
        self.rates.push(own);
    }

    /// Charges under a rate, whether the cost fits or not; under the other rates at most until they are empty.
    pub(super) fn charge(&mut self, bucket: &TokenBucket, cost: u32, now: Nanos) {
        if self.is_idle(now) {
            self.rates.clear();
            self.sums.clear();
        }
        self.add_rate(bucket, now);
        if bucket.is_refundable() || !self.sums.is_empty() {
            self.remember(cost, now);
        }
        let own = bucket.refill();
        if let Some(index) = self.rates.iter().position(|rate| rate.refill == own) {
            self.rates[index..].rotate_left(1);
        }
        for rate in &mut self.rates {
            if rate.refill == own {
                rate.full = own.charge(rate.full, cost, now);
                rate.max_spent = rate.max_spent.max(own.spent(rate.full, now));
            } else {
                rate.full = rate.refill.charge_up_to(rate.refill.fill, rate.full, cost, now);
            }
        }
    }

    /// Takes back units of a charge that was made at `charged`, if it is still remembered.
    ///
    /// Two computations give a state that is at most as full as without the charge; the fuller one counts. The
    /// first computes the bucket again from the remembered charges. The second is possible where the key has one
    /// rate, so that no charge was capped by an empty bucket: what is spent now, less the units, plus what can
    /// have come back since the charge.
    pub(super) fn refund(&mut self, units: u32, charged: Nanos, now: Nanos) {
        let Some(sum) = self.sums.iter_mut().find(|sum| sum.last >= charged) else {
            return;
        };
        if self.rates.iter().all(|rate| charged < rate.remembered_since) {
            return;
        }
        let units = units.min(sum.units);
        sum.units -= units;
        let is_only_rate = self.rates.len() == 1;
        for rate in &mut self.rates {
            if charged >= rate.remembered_since {
                let earliest = rate.refill.refund(rate.full, units);
                let mut recomputed = rate.recomputed(&self.sums);
                if is_only_rate {
                    let (until, from) = (rate.refill.stepped(now), rate.refill.stepped(charged));
                    recomputed = recomputed.min(earliest.later(until.saturating_sub(from)));
                }
                rate.full = rate.full.min(recomputed.max(earliest));
            }
        }
    }

    /// Whether buckets that were read from bytes keep the bounds of this file.
    #[cfg(feature = "bin")]
    pub(super) fn is_sound(&self) -> bool {
        let rates = 1..=MAX_KEPT_RATES;
        let sound = |rate: &RateBucket| rate.refill.is_sound();
        rates.contains(&self.rates.len())
            && self.rates.iter().all(sound)
            && self.sums.len() <= MAX_SUMS
            && self.sums.is_sorted_by_key(|sum| sum.last)
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Self>()
            + self.rates.capacity() * size_of::<RateBucket>()
            + self.sums.capacity() * size_of::<ChargeSum>()
    }

    /// Bytes on the heap after one more charge: the list of sums doubles when it is full.
    pub(super) fn heap_bytes_after_charge(&self, now: Nanos) -> usize {
        let grows = self.sums_would_grow() && !self.joins_last_sum(now);
        let growth = if grows { self.sums.capacity().max(1) } else { 0 };
        self.heap_bytes() + growth * size_of::<ChargeSum>()
    }

    /// Makes room for one more charge without more memory: joins two sums, or moves the only sum so that the
    /// charge joins it.
    pub(super) fn make_room(&mut self, now: Nanos) {
        if !self.sums_would_grow() || self.joins_last_sum(now) {
            return;
        }
        match self.sums.as_mut_slice() {
            [only] => only.last = only.last.max(now),
            _ => self.join_closest_sums(),
        }
    }

    /// Remembers a charge, as long as it can be refunded.
    fn remember(&mut self, cost: u32, now: Nanos) {
        if self.joins_last_sum(now)
            && let Some(last) = self.sums.last_mut()
        {
            last.last = last.last.max(now);
            last.units = last.units.saturating_add(cost);
            if self.sums.len() == 1 {
                // The thread that read its clock first may charge second.
                for rate in &mut self.rates {
                    rate.remembered_since = rate.remembered_since.min(now);
                }
            }
            return;
        }
        if self.sums.is_empty() {
            for rate in &mut self.rates {
                (rate.base, rate.remembered_since) = (rate.full, now);
            }
        }
        if self.sums.len() >= MAX_SUMS {
            let slowest = self.rates.iter().map(|rate| rate.refill.fill).max();
            let expires = self.sums[0].last.saturating_add(slowest.unwrap_or_default());
            if expires <= now {
                let oldest = self.sums.remove(0);
                self.move_to_base(oldest);
            } else {
                self.join_closest_sums();
            }
        }
        if self.sums_would_grow() {
            self.sums.reserve_exact(self.sums.capacity().max(1));
        }
        self.sums.push(ChargeSum { last: now, units: cost });
    }

    /// Adds a sum that is no longer remembered to the base of each bucket.
    fn move_to_base(&mut self, sum: ChargeSum) {
        for rate in self.rates.iter_mut().filter(|rate| sum.last >= rate.remembered_since) {
            rate.base = rate.refill.charge_up_to(rate.max_spent, rate.base, sum.units, sum.last);
            rate.remembered_since = sum.last.saturating_add(Nanos::new(1));
        }
    }

    /// Joins the two neighbouring sums that are closest in time, at the later instant.
    fn join_closest_sums(&mut self) {
        let gap = |n: &usize| self.sums[n + 1].last.saturating_sub(self.sums[*n].last);
        if let Some(closest) = (0..self.sums.len().saturating_sub(1)).min_by_key(gap) {
            let earlier = self.sums.remove(closest);
            let later = &mut self.sums[closest];
            later.units = later.units.saturating_add(earlier.units);
        }
    }

    /// Whether one more sum takes more memory.
    const fn sums_would_grow(&self) -> bool {
        self.sums.len() == self.sums.capacity() && self.sums.len() < MAX_SUMS
    }

    /// Whether a charge at `now` is added to the last sum.
    fn joins_last_sum(&self, now: Nanos) -> bool {
        let fastest = self.rates.iter().map(|rate| rate.refill.fill).min().unwrap_or_default();
        // In microseconds, the unit of every store's clock, so that all stores sum up alike.
        let step = (fastest.get() / SUMS_PER_FILL / MICROSECOND.get()).max(1) * MICROSECOND.get();
        self.sums.last().is_some_and(|last| now.get() / step <= last.last.get() / step)
    }
}
