//! The rates at which the demand on a bucket is measured, and the bucket's size that each key needs at each.
//!
//! What a bucket must hold depends on the rate at which it refills, and the rate is not known before the end of the log.
//! So every key has an unlimited bucket for each of a few rates around the present one.

use super::demand_table::KeyDemand;
use super::peaks::UnitsOfRequest;
use crate::clock::Nanos;
use crate::limit::{Quota, Rate, TokenBucket};

/// The numerators of rates around the present one, in units of [`RUNG_UNIT`]: from a 16th to 16 times, doubling.
const DOUBLING: &[u64] = &[4, 8, 16, 32, 64, 128, 256, 512, 1_024];

/// The same from a quarter to 4 times, in steps of about a fifth: for a bucket whose size stays.
const FINE: &[u64] = &[16, 19, 23, 27, 32, 38, 45, 54, 64, 76, 91, 108, 128, 152, 181, 215, 256];

/// The unit of the numerators.
const RUNG_UNIT: u64 = 64;

/// The rates, ascending, with the present rate among them.
#[derive(Debug)]
pub(super) struct Rungs {
    pub(super) quota: Quota,
    pub(super) bucket: TokenBucket,
    rungs: Vec<Rung>,
    /// The index of the present rate.
    own: usize,
    /// Whether answers give units back. A bucket may give back a little less: up to a 16th of its size is not refilled.
    is_refunded: bool,
}

/// A rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rung {
    pub(super) rate: Rate,
    emission: Nanos,
}

/// What a bucket that refills at one rate must hold.
#[derive(Clone, Copy, Debug, Default)]
struct Backlog {
    /// When the unlimited bucket is full again.
    full: u64,
    /// The largest span that was ever spent.
    peak: u64,
}

/// The backlog of one key at each rate.
#[derive(Clone, Debug)]
pub(super) struct BacklogPeaks(Box<[Backlog]>);

impl Rungs {
    pub(super) fn new(quota: Quota, bucket: TokenBucket, is_refunded: bool) -> Self {
        let own_rate = bucket.rate();
        let numerators = if keeps_burst(&bucket) { FINE } else { DOUBLING };
        let rate = |numerator: &u64| {
            let count = u64::from(own_rate.count()).saturating_mul(*numerator) / RUNG_UNIT;
            let rate =
                Rate::new(u32::try_from(count).unwrap_or(u32::MAX), own_rate.period()).ok()?;
            // The bucket of the configuration decides how the emission interval is rounded.
            match quota.with_rate(rate, Some(1)).ok()? {
                Quota::TokenBucket(bucket) => Some(Rung { rate, emission: bucket.emission() }),
                Quota::SlidingWindow(_) | Quota::SlidingLog(_) | Quota::FixedWindow(_) => None,
            }
        };
        let mut rungs: Vec<Rung> = numerators.iter().filter_map(rate).collect();
        rungs.dedup_by_key(|rung| rung.rate.count());
        let own = rungs.iter().position(|rung| rung.rate == own_rate);
        let own = own.unwrap_or_else(|| {
            rungs.insert(0, Rung { rate: own_rate, emission: bucket.emission() });
            0
        });
        Self { quota, bucket, rungs, own, is_refunded }
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Rung> {
        self.rungs.iter()
    }

    /// The index of the present rate.
    pub(super) const fn own(&self) -> usize {
        self.own
    }

    /// Whether the size of the bucket stays as it is, and only its rate is suggested: a leaky bucket.
    pub(super) fn keeps_burst(&self) -> bool {
        keeps_burst(&self.bucket)
    }

    /// The units that a bucket at the rate of this index must hold, so that it refuses no request of the key.
    pub(super) fn needed_burst(&self, demand: &BacklogPeaks, index: usize) -> u64 {
        let (Some(rung), Some(backlog)) = (self.rungs.get(index), demand.0.get(index)) else {
            return u64::MAX;
        };
        if backlog.peak == u64::MAX {
            return u64::MAX;
        }
        let held = backlog.peak.saturating_sub(self.bucket.max_delay().get());
        let needed = held.div_ceil(rung.emission.get().max(1)).max(u64::from(backlog.peak > 0));
        let spare = if self.is_refunded { needed / 8 + 1 } else { 0 };
        needed.saturating_add(spare)
    }

    pub(super) fn new_demand(&self) -> BacklogPeaks {
        BacklogPeaks(vec![Backlog::default(); self.rungs.len()].into())
    }

    pub(super) fn record(&self, demand: &mut BacklogPeaks, demanded: UnitsOfRequest, at: Nanos) {
        if demanded.is_nothing() {
            return;
        }
        let at = match self.bucket.refill_every().get() {
            0 => at.get(),
            step => at.get() - at.get() % step,
        };
        for (rung, backlog) in self.rungs.iter().zip(&mut demand.0) {
            let span = |units| rung.emission.get().saturating_mul(units);
            let before = backlog.full.max(at);
            let full = before.saturating_add(span(demanded.asked));
            // A span that is too long for a number needs an unlimited burst.
            let spent = if full == u64::MAX { u64::MAX } else { full - at };
            backlog.peak = backlog.peak.max(spent);
            backlog.full = before.saturating_add(span(demanded.counted));
        }
    }
}

impl KeyDemand for BacklogPeaks {
    fn restart(&mut self) {
        for backlog in &mut self.0 {
            backlog.full = 0;
        }
    }

    fn heap_bytes(&self) -> usize {
        self.0.len() * size_of::<Backlog>()
    }
}

fn keeps_burst(bucket: &TokenBucket) -> bool {
    bucket.burst() == 1 && bucket.max_delay() > Nanos::ZERO
}
