//! Buckets of one key: under several rates, or such that charges may be given back.
//!
//! **Several rates.** A limit's plans and overrides have rates of their own. A key then has a time for
//! each rate that it was charged under: a charge is judged on its own rate's and spent in all, so what
//! one plan used is not there for another. A charge under a fast rate can empty the slow rate's bucket, but
//! never puts it into debt. A rate that comes later begins with the most units that are spent under any
//! other, empty at most.
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
//! **Giving back.** What a charge leaves behind depends on all that come after it: a bucket that is full
//! takes no more, so units that came for nothing must not come again. So the cell remembers what it was
//! charged lately, summed up in steps of a sixteenth of the time that the bucket takes to fill; a refund
//! takes its units out of the sum and computes the times anew. A sum counts as if it had been charged at
//! once, at its last instant: a bucket is never fuller than it would be without the charge, and less full by
//! a step at most. What is older than the time that the slowest bucket takes to fill is not given back any
//! more: it would have filled since. Where that takes more sums than there are (a key has met a fast rate and
//! a slow one, or `max_keys` leaves no room), those that are closest in time are joined.

use super::token_bucket::{FullAt, Refill};
use super::{MICROSECOND, TokenBucket};
use crate::clock::Nanos;

/// Most rates of a bucket limit with its plans: each is written by every charge.
pub const MAX_RATES: usize = 8;

/// Most rates that a key keeps: those of the limit, and as many of the generation before a reload, under
/// which another node may still charge it. One more takes the place of the rate that was not charged for the
/// longest time. (The next to be full would be the wrong one to take: that is a fast rate in use.)
const MAX_KEPT: usize = 2 * MAX_RATES;

/// Most sums of what was charged lately.
const MAX_RECENT: usize = 16;

/// A sum spans this part of the time that the fastest bucket takes to fill.
const SUMS_PER_FILL: u64 = 16;

/// The buckets of one key by rate, at least one; the one that was charged last is the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    rates: Vec<OfRate>,
    /// What was charged lately, oldest first; nothing where charges are not given back.
    recent: Vec<Recent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OfRate {
    refill: Refill,
    /// The most that was ever spent after its own charges, by those who wait and by late costs too.
    most: Nanos,
    full: FullAt,
    /// The same without what is remembered: what was charged before `since`.
    base: FullAt,
    /// Charges of this instant and later are remembered.
    since: Nanos,
}

/// Units that were charged within a step, by whatever rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recent {
    /// The last instant.
    last: Nanos,
    units: u32,
}

impl OfRate {
    fn new(bucket: &TokenBucket, full: FullAt, now: Nanos) -> Self {
        let refill = bucket.refill();
        let most = bucket.capacity().max(refill.spent(full, now));
        Self { refill, most, full, base: full, since: now }
    }

    /// When the bucket is full again, as the remembered charges say.
    fn recomputed(&self, recent: &[Recent]) -> FullAt {
        let later = recent.iter().filter(|one| one.last >= self.since);
        later.fold(self.base, |full, one| {
            self.refill.charge_up_to(self.most, full, one.units, one.last)
        })
    }
}

impl Buckets {
    /// Of a key that was charged under one rate so far.
    pub(super) fn of(bucket: &TokenBucket, full: FullAt, now: Nanos) -> Self {
        Self { rates: vec![OfRate::new(bucket, full, now)], recent: Vec::new() }
    }

    /// The time of a rate; one that is not there has spent nothing.
    pub(super) fn full(&self, bucket: &TokenBucket) -> FullAt {
        let refill = bucket.refill();
        let own = self.rates.iter().find(|one| one.refill == refill);
        own.map_or(FullAt::default(), |one| one.full)
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Self>()
            + self.rates.capacity() * size_of::<OfRate>()
            + self.recent.capacity() * size_of::<Recent>()
    }

    /// The same after one more charge: the list of sums doubles when it is full.
    pub(super) fn heap_bytes_after_charge(&self, now: Nanos) -> usize {
        let more =
            if self.is_full() && !self.joins_last(now) { self.recent.capacity().max(1) } else { 0 };
        self.heap_bytes() + more * size_of::<Recent>()
    }

    /// Whether one more sum takes more memory.
    const fn is_full(&self) -> bool {
        self.recent.len() == self.recent.capacity() && self.recent.len() < MAX_RECENT
    }

    /// Whether a charge is added to the last sum.
    fn joins_last(&self, now: Nanos) -> bool {
        let fastest = self.rates.iter().map(|one| one.refill.fill).min().unwrap_or_default();
        // In the unit of every store's clock, so that all sum up alike.
        let step = (fastest.get() / SUMS_PER_FILL / MICROSECOND.get()).max(1) * MICROSECOND.get();
        self.recent.last().is_some_and(|last| now.get() / step <= last.last.get() / step)
    }

    /// Makes room for one more charge without more memory: two sums become one, or the charge joins the
    /// only one.
    pub(super) fn make_room(&mut self, now: Nanos) {
        if !self.is_full() || self.joins_last(now) {
            return;
        }
        match self.recent.as_mut_slice() {
            [only] => only.last = only.last.max(now),
            _ => self.join(),
        }
    }

    /// Joins the two neighbours that are closest in time, at the later instant.
    fn join(&mut self) {
        let gap = |n: &usize| self.recent[n + 1].last.saturating_sub(self.recent[*n].last);
        if let Some(closest) = (0..self.recent.len().saturating_sub(1)).min_by_key(gap) {
            let earlier = self.recent.remove(closest);
            let later = &mut self.recent[closest];
            later.units = later.units.saturating_add(earlier.units);
        }
    }

    /// What is not remembered any more.
    fn retire(&mut self, oldest: Recent) {
        for one in self.rates.iter_mut().filter(|one| oldest.last >= one.since) {
            one.base = one.refill.charge_up_to(one.most, one.base, oldest.units, oldest.last);
            one.since = oldest.last.saturating_add(Nanos::new(1));
        }
    }

    /// Gives the key a bucket of this rate, if it has none.
    pub(super) fn add(&mut self, bucket: &TokenBucket, now: Nanos) {
        let refill = bucket.refill();
        if let Some(own) = self.rates.iter_mut().find(|one| one.refill == refill) {
            own.most = own.most.max(bucket.capacity());
            return;
        }
        let mut own = OfRate::new(bucket, FullAt::default(), now);
        for other in &self.rates {
            let carried = |cell, at| bucket.carried(&other.refill, cell, at);
            let full = carried(other.full, now);
            if full > own.full {
                own.full = full;
                // What is given back later of what was charged under the other comes back here too.
                (own.base, own.since) = (carried(other.base, other.since), other.since);
            }
        }
        if self.rates.len() >= MAX_KEPT {
            self.rates.remove(0);
        }
        self.rates.reserve_exact(1);
        self.rates.push(own);
    }

    /// Spends under a rate, whether it fits or not; under the others at most what is there.
    pub(super) fn charge(&mut self, bucket: &TokenBucket, cost: u32, now: Nanos) {
        if self.is_idle(now) {
            self.forget();
        }
        self.add(bucket, now);
        if bucket.is_refundable() || !self.recent.is_empty() {
            self.remember(cost, now);
        }
        let own = bucket.refill();
        if let Some(place) = self.rates.iter().position(|one| one.refill == own) {
            self.rates[place..].rotate_left(1);
        }
        for one in &mut self.rates {
            if one.refill == own {
                one.full = own.charge(one.full, cost, now);
                one.most = one.most.max(own.spent(one.full, now));
            } else {
                one.full = one.refill.charge_up_to(one.refill.fill, one.full, cost, now);
            }
        }
    }

    /// Takes back units of a charge, where it is remembered.
    ///
    /// Two bounds say how full the bucket can be without them: the remembered charges; and, where no other
    /// rate has found it empty, what is spent less the units, but for what can have come back since.
    pub(super) fn refund(&mut self, units: u32, charged: Nanos, now: Nanos) {
        let Some(sum) = self.recent.iter_mut().find(|one| one.last >= charged) else {
            return;
        };
        if self.rates.iter().all(|one| charged < one.since) {
            return;
        }
        let units = units.min(sum.units);
        sum.units -= units;
        let is_alone = self.rates.len() == 1;
        for one in &mut self.rates {
            if charged >= one.since {
                let least = one.refill.refund(one.full, units);
                let mut anew = one.recomputed(&self.recent);
                if is_alone {
                    let came = one.refill.stepped(now).saturating_sub(one.refill.stepped(charged));
                    anew = anew.min(least.later(came));
                }
                one.full = one.full.min(anew.max(least));
            }
        }
    }

    /// Whether every bucket is full.
    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        self.rates.iter().all(|one| one.refill.spent(one.full, now) == Nanos::ZERO)
    }

    /// Every bucket is full, whatever was charged before.
    fn forget(&mut self) {
        self.rates.clear();
        self.recent.clear();
    }

    fn remember(&mut self, cost: u32, now: Nanos) {
        if self.joins_last(now)
            && let Some(last) = self.recent.last_mut()
        {
            last.last = last.last.max(now);
            last.units = last.units.saturating_add(cost);
            if self.recent.len() == 1 {
                // Of two threads the one that read the clock first may come second.
                self.rates.iter_mut().for_each(|one| one.since = one.since.min(now));
            }
            return;
        }
        if self.recent.is_empty() {
            for one in &mut self.rates {
                (one.base, one.since) = (one.full, now);
            }
        }
        if self.recent.len() >= MAX_RECENT {
            let slowest = self.rates.iter().map(|one| one.refill.fill).max();
            let forgets = self.recent[0].last.saturating_add(slowest.unwrap_or_default()) <= now;
            if forgets {
                let oldest = self.recent.remove(0);
                self.retire(oldest);
            } else {
                self.join();
            }
        }
        if self.is_full() {
            self.recent.reserve_exact(self.recent.capacity().max(1));
        }
        self.recent.push(Recent { last: now, units: cost });
    }
}
