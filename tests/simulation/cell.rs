//! What a key may have spent at an instant: the least and the most, by plain sums over everything
//! that it was charged.
//!
//! Nobody outside knows when exactly a server ran a call, so each charge has an interval, and what
//! it charged for sure beside what it may have charged.

use tollgate::engine::LimitVerdict;

use super::draw::{Algorithm, Limit, Rate, SECOND};
use super::oracle::Slowest;
use super::request::Due;

/// Not known yet.
pub(crate) const OPEN: u64 = u64::MAX;

/// One rate of a limit, in numbers. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) algorithm: Algorithm,
    /// What [`tollgate::limit::Verdict::limit`] says.
    pub(crate) limit: u32,
    pub(crate) period: u64,
    /// What a unit takes of `most`: time of a bucket, else 1.
    pub(crate) unit: u64,
    /// What can be spent at once.
    pub(crate) most: u64,
    /// What can be spent without waiting.
    pub(crate) full: u64,
    pub(crate) step: u64,
}

/// What one request was charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) request: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) sure: u32,
    pub(crate) maybe: u32,
    /// Under which rate: `unit` and `most` of it.
    pub(crate) rate: (u64, u64),
    /// Units that were given back.
    pub(crate) back: u32,
}

impl Entry {
    /// `when`: the earliest and the latest instant; `units`: for sure, and perhaps.
    pub(crate) const fn new(
        request: u64,
        variant: &Variant,
        when: (u64, u64),
        units: (u32, u32),
    ) -> Self {
        let ((from, to), (sure, maybe)) = (when, units);
        Self { request, from, to, sure, maybe, rate: variant.rate(), back: 0 }
    }
}

impl Variant {
    /// Whether requests may have to wait.
    pub(crate) const fn delays(&self) -> bool {
        self.most > self.full
    }

    /// `tick`: the unit of the store's clock.
    pub(crate) fn of(limit: &Limit, rate: Rate, tick: u64) -> Self {
        let period = rate.period * SECOND;
        let plain = Self {
            algorithm: limit.algorithm,
            limit: rate.count,
            period,
            unit: 1,
            most: u64::from(rate.count),
            full: u64::from(rate.count),
            step: 0,
        };
        if !matches!(limit.algorithm, Algorithm::Bucket | Algorithm::Leaky) {
            return plain;
        }
        let unit = period.div_ceil(u64::from(rate.count)).next_multiple_of(tick);
        let burst = limit.burst.unwrap_or(rate.count);
        let delay = limit.max_delay.unwrap_or(0) * 1_000_000;
        let full = unit * u64::from(burst);
        let limit_units = burst + (delay / unit) as u32;
        let step = limit.step.unwrap_or(0) * SECOND;
        Self { limit: limit_units, unit, most: full + delay, full, step, ..plain }
    }

    /// Buckets of one rate are one.
    pub(crate) const fn rate(&self) -> (u64, u64) {
        (self.unit, self.most)
    }

    /// Whether a bucket still remembers what it was charged so long ago.
    pub(crate) const fn remembers(&self, age: u64) -> bool {
        age < self.most / 16 * 15
    }

    pub(crate) fn is_bucket(&self) -> bool {
        matches!(self.algorithm, Algorithm::Bucket | Algorithm::Leaky)
    }

    /// As long after a charge it may still count somewhere else that heard of it late.
    pub(crate) fn memory(&self) -> u64 {
        if self.is_bucket() { 2 * self.most + self.step } else { 2 * self.period }
    }

    /// The least and the most that is spent when it is judged at some instant from `lo` to `hi`.
    pub(crate) fn spent<'e>(
        &self,
        entries: impl Iterator<Item = &'e Entry> + Clone,
        slowest: Slowest,
        lo: u64,
        hi: u64,
    ) -> (u64, u64) {
        let all = entries.clone().filter(|one| one.from <= hi);
        // Of what came certainly before, and of what may have come before.
        let sure = entries.clone().filter(|one| one.to <= lo && one.sure > 0);
        let any = entries.filter(|one| one.from <= hi && one.sure + one.maybe > 0);
        match self.algorithm {
            Algorithm::Fixed => self.fixed(sure, any, lo, hi),
            Algorithm::Sliding => self.sliding(sure, any, lo, hi),
            Algorithm::Log => {
                let least = sure.filter(|one| one.from + self.period > hi);
                let least = least.map(|one| u64::from(one.sure)).sum();
                let most = any.filter(|one| one.to.saturating_add(self.period) > lo);
                (least, most.map(|one| u64::from(one.sure + one.maybe)).sum())
            }
            Algorithm::Bucket | Algorithm::Leaky => self.bucket(all, sure, any, slowest, lo, hi),
            Algorithm::InFlight => (0, 0),
        }
    }

    fn fixed<'e>(
        &self,
        sure: impl Iterator<Item = &'e Entry> + Clone,
        any: impl Iterator<Item = &'e Entry> + Clone,
        lo: u64,
        hi: u64,
    ) -> (u64, u64) {
        let (mut least, mut most) = (u64::MAX, 0);
        for window in lo / self.period..=hi / self.period {
            let in_it = |one: &&Entry| one.from / self.period >= window;
            let sum: u64 = sure.clone().filter(in_it).map(|one| u64::from(one.sure)).sum();
            least = least.min(sum);
            let may = |one: &&Entry| one.to / self.period >= window;
            let sum = any.clone().filter(may).map(|one| u64::from(one.sure + one.maybe)).sum();
            most = most.max(sum);
        }
        (least, most)
    }

    fn sliding<'e>(
        &self,
        sure: impl Iterator<Item = &'e Entry> + Clone,
        any: impl Iterator<Item = &'e Entry> + Clone,
        lo: u64,
        hi: u64,
    ) -> (u64, u64) {
        let share = |previous: u64, at: u64| {
            (u128::from(previous) * u128::from(self.period - at % self.period))
                .div_ceil(u128::from(self.period)) as u64
        };
        let (mut least, mut most) = (u64::MAX, 0);
        for window in lo / self.period..=hi / self.period {
            // Within a window less and less is spent.
            let last = hi.min((window + 1) * self.period - 1);
            let first = lo.max(window * self.period);
            let sum = |later: bool, wanted: u64| -> u64 {
                let units = |one: &Entry| match later {
                    true => one.sure + one.maybe,
                    false => one.sure,
                };
                let at = |one: &Entry| {
                    let at = if later { one.to } else { one.from };
                    (at / self.period).min(window)
                };
                match later {
                    true => any
                        .clone()
                        .filter(|one| at(one) == wanted)
                        .map(|one| u64::from(units(one)))
                        .sum(),
                    false => sure
                        .clone()
                        .filter(|one| at(one) == wanted)
                        .map(|one| u64::from(units(one)))
                        .sum(),
                }
            };
            let before = window.wrapping_sub(1);
            least = least.min(sum(false, window) + share(sum(false, before), last));
            most = most.max(sum(true, window) + share(sum(true, before), first));
        }
        (least, most)
    }

    /// What other rates charged counts as well, until the bucket is empty; where a rate comes late, it
    /// begins with what is spent of another one, which may refill slower.
    fn bucket<'e>(
        &self,
        all: impl Iterator<Item = &'e Entry> + Clone,
        sure: impl Iterator<Item = &'e Entry> + Clone,
        any: impl Iterator<Item = &'e Entry> + Clone,
        slowest: Slowest,
        lo: u64,
        hi: u64,
    ) -> (u64, u64) {
        let run = |charges: &mut Vec<(u64, u64)>| {
            charges.sort_unstable();
            charges.iter().fold(0u64, |full, (at, span)| full.max(*at).saturating_add(*span))
        };
        let own = sure.filter(|one| one.rate == self.rate());
        let mut least: Vec<(u64, u64)> = own
            .map(|one| (one.from.saturating_sub(self.step), u64::from(one.sure) * self.unit))
            .collect();
        let least = run(&mut least).saturating_sub(hi);
        let slow = slowest.unit.max(self.unit);
        let mut most: Vec<(u64, u64)> =
            any.map(|one| (one.to.min(hi), u64::from(one.sure + one.maybe) * slow)).collect();
        let step = slowest.step.max(self.step);
        let mut most = run(&mut most).saturating_sub(lo.saturating_sub(step));
        if slow > self.unit {
            let scaled = u128::from(most) * u128::from(self.unit) / u128::from(slow);
            most = scaled as u64 + self.unit;
        }
        if step > self.step {
            // What another rate has spent carries over in whole units.
            most += self.unit;
        }
        // What is remembered is summed up, at the last instant of a sum.
        if all.clone().any(|one| one.back > 0) {
            most += self.most / 16 + self.step;
        }
        (least, most)
    }
}

/// Whether a verdict is possible when between `least` and `most` was spent before it.
pub(crate) fn verdict(
    due: &Due,
    answer: &LimitVerdict,
    charged: bool,
    least: u64,
    most: u64,
) -> Result<(), String> {
    let (variant, verdict) = (&due.variant, &answer.verdict);
    let need = u64::from(due.cost) * variant.unit;
    let spent = format!("{least} to {most} spent of {}, {need} wanted", variant.most);
    if verdict.limit != variant.limit {
        return Err(format!("told a limit of {}, which is {}", verdict.limit, variant.limit));
    }
    if verdict.allowed && least + need > variant.most {
        return Err(format!("bound: admitted with {spent}"));
    }
    if !verdict.allowed && most + need <= variant.most {
        return Err(format!("false refusal: refused with {spent}"));
    }
    let own = if charged { need } else { 0 };
    let left = |spent: u64| variant.most.saturating_sub(spent + own) / variant.unit;
    let remaining = u64::from(verdict.remaining);
    if remaining < left(most) || remaining > left(least) {
        return Err(format!("told that {remaining} remain with {spent}"));
    }
    let waits = |spent: u64| (spent + own).saturating_sub(variant.full);
    let wait = verdict.delay.get();
    if charged && variant.is_bucket() && (wait < waits(least) || wait > waits(most)) {
        return Err(format!("told to wait {wait} ns with {spent}"));
    }
    Ok(())
}
