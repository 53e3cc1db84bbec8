//! Counts the keys that the embedded store has no room for, in sketches of fixed memory.
//!
//! As in the store, a charge counts under all rates of the limit. There is one sketch for each window length among the
//! rates, so that a rate is judged by the charges in its own window. A sketch is never read under another window
//! length: a key could then spend units twice, or be refused although it is within all of its rates.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::clock::{Nanos, Now};
use crate::estimator::{ConfirmTable, EstimateLimit, EstimateReceipt, FleetView};
use crate::limit::{Quota, Rate, Verdict};
use crate::policy::{DEFAULT_EXPECT_PER_SECOND, KeyHash, RateIndex};

/// The sketches of one limit, or of its candidate.
#[derive(Debug)]
pub(super) struct Overflow {
    /// The limit's own rate first, then those of plans and overrides. Never empty.
    rates: Box<[Rate]>,
    /// For each rate, the counts of other nodes in its window, if the limit counts over the fleet.
    views: Option<Box<[Arc<FleetView>]>>,
    /// The sketches before a reload: counts go on in those of the same window length.
    before: Box<[Arc<EstimateLimit>]>,
    /// Created when the store is full for the first time; few limits ever need them.
    sketches: OnceLock<WindowSketches>,
}

/// The sketches, by rate and by window length.
#[derive(Debug)]
struct WindowSketches {
    /// One for each rate. Rates of one window length share a sketch.
    by_rate: Box<[Arc<EstimateLimit>]>,
    /// For each window length the smallest rate, by index: a node publishes counts as early as that one needs them.
    windows: SmallVec<[usize; 2]>,
}

/// A charge of a key in the sketches.
#[derive(Debug)]
pub(super) struct OverflowCharge {
    overflow: Arc<Overflow>,
    rate: usize,
    key: KeyHash,
    /// One receipt for each window length.
    receipts: SmallVec<[WindowCharge; 2]>,
}

/// The charge in the sketch of one window length.
#[derive(Debug)]
struct WindowCharge {
    rate: usize,
    receipt: EstimateReceipt,
}

impl Overflow {
    /// For a limit with these quotas, without sketches at first. `tag`: what nodes call the counts in windows of a length, if
    /// the limit counts over the fleet. `before`: those of the limit before a reload.
    pub(super) fn new(
        own: &Quota,
        others: &[Quota],
        tag: Option<&dyn Fn(Nanos) -> u64>,
        before: Option<&Self>,
    ) -> Self {
        let before = before.map(Self::latest_sketches).unwrap_or_default();
        let rates: Box<[Rate]> = std::iter::once(own).chain(others).map(as_rate).collect();
        let views = tag.map(|tag| {
            let view = |rate: &Rate| {
                let tag = tag(rate.period());
                let mut known = before.iter().filter_map(|sketch| sketch.fleet());
                let known = known.find(|view| view.tag() == tag);
                known.map_or_else(|| Arc::new(FleetView::new(tag)), Arc::clone)
            };
            rates.iter().map(view).collect()
        });
        Self { rates, views, before, sketches: OnceLock::new() }
    }

    /// Makes the sketches of a limit that counts over the fleet: what other nodes count is known before this node has no room.
    pub(super) fn prepare(&self, now: Now) {
        if self.is_in_fleet() {
            // The same that the first key without room will get.
            let _sketches = self.obtain_sketches(now);
        }
    }

    /// Whether the limit counts over the fleet.
    pub(super) const fn is_in_fleet(&self) -> bool {
        self.views.is_some()
    }

    /// The existing sketches, each once.
    pub(super) fn sketches(&self) -> impl Iterator<Item = &Arc<EstimateLimit>> {
        let sketches = self.sketches.get();
        sketches
            .into_iter()
            .flat_map(|sketches| sketches.windows.iter().map(|rate| &sketches.by_rate[*rate]))
    }

    /// The sketches, or those of the reload before as long as no key needed these.
    fn latest_sketches(&self) -> Box<[Arc<EstimateLimit>]> {
        match self.sketches.get() {
            Some(_) => self.sketches().cloned().collect(),
            None => self.before.clone(),
        }
    }

    /// Judges a key under one of the rates, and charges it if the rate admits.
    pub(super) fn charge(
        self: &Arc<Self>,
        confirm: &ConfirmTable,
        key: KeyHash,
        rate: RateIndex,
        cost: u32,
        now: Now,
    ) -> (Verdict, Option<OverflowCharge>) {
        let (sketches, rate) = (self.obtain_sketches(now), self.index(rate));
        let (verdict, receipt) =
            sketches.by_rate[rate].charge(confirm, self.window_key(key, rate), cost, now);
        if !verdict.allowed {
            return (verdict, None);
        }
        let own = WindowCharge { rate, receipt };
        let mut charge = OverflowCharge {
            overflow: Arc::clone(self),
            rate,
            key,
            receipts: SmallVec::from_iter([own]),
        };
        charge.debit_windows(confirm, cost, now, |other| {
            self.rates[other].period() != self.rates[rate].period()
        });
        (verdict, Some(charge))
    }

    /// What a key is called in the sketch of each window length.
    pub(super) fn keys_of(
        &self,
        key: KeyHash,
    ) -> impl Iterator<Item = (&Arc<EstimateLimit>, KeyHash)> {
        let sketches = self.sketches.get().into_iter();
        sketches.flat_map(move |sketches| {
            let name = move |rate: &usize| (&sketches.by_rate[*rate], self.window_key(key, *rate));
            sketches.windows.iter().map(name)
        })
    }

    /// Forgets what a key sent under any of the rates.
    pub(super) fn reset(&self, confirm: &ConfirmTable, key: KeyHash) {
        let windows = self.sketches.get().into_iter().flat_map(|sketches| &sketches.windows);
        windows.for_each(|rate| confirm.reset(self.window_key(key, *rate)));
    }

    /// The sketches; they are made on the first call.
    fn obtain_sketches(&self, now: Now) -> &WindowSketches {
        self.sketches.get_or_init(|| {
            let mut by_rate: Vec<Arc<EstimateLimit>> = Vec::with_capacity(self.rates.len());
            for (index, rate) in self.rates.iter().enumerate() {
                let same =
                    self.rates[..index].iter().position(|other| other.period() == rate.period());
                by_rate.push(Arc::new(match same {
                    Some(first) => by_rate[first].with_rate(*rate),
                    None => {
                        let smallest = self.rates[self.smallest_like(index)];
                        let view = self.views.as_ref().map(|views| Arc::clone(&views[index]));
                        let expect = DEFAULT_EXPECT_PER_SECOND;
                        let period = rate.period();
                        let mut before = self.before.iter();
                        let sketch = match before.find(|before| before.rate().period() == period) {
                            Some(before) => {
                                EstimateLimit::after_reload(before, smallest, expect, now)
                            }
                            None => EstimateLimit::new(smallest, expect, now),
                        };
                        sketch.with_rate(*rate).in_fleet(view)
                    }
                }));
            }
            let is_smallest = |index: &usize| self.smallest_like(*index) == *index;
            let windows = (0..self.rates.len()).filter(is_smallest).collect();
            WindowSketches { by_rate: by_rate.into(), windows }
        })
    }

    /// The smallest rate among those with the same window length, by index; it needs the largest sketch.
    fn smallest_like(&self, index: usize) -> usize {
        let period = self.rates[index].period();
        let same = (0..self.rates.len()).filter(|other| self.rates[*other].period() == period);
        same.min_by_key(|other| self.rates[*other].count()).unwrap_or(index)
    }

    fn index(&self, rate: RateIndex) -> usize {
        if (rate as usize) < self.rates.len() { rate as usize } else { 0 }
    }

    /// The key in the confirm table for the window of a rate. Each window length has a cell of its own, the same in all
    /// generations.
    fn window_key(&self, key: KeyHash, rate: usize) -> KeyHash {
        /// Odd, so that no two lengths give the same number.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let window = self.rates[rate].period().get().wrapping_mul(SPREAD);
        KeyHash { high: key.high ^ window, low: key.low ^ window.rotate_left(32) }
    }
}

impl OverflowCharge {
    /// Refunds the charge.
    pub(super) fn refund(self, confirm: &ConfirmTable) {
        if let Some(sketches) = self.overflow.sketches.get() {
            for WindowCharge { rate, receipt } in self.receipts {
                sketches.by_rate[rate].refund(confirm, receipt);
            }
        }
    }

    /// Refunds some units of a charge of `cost`. A sketch can only refund complete charges, so the rest is charged
    /// again first.
    pub(super) fn refund_units(mut self, confirm: &ConfirmTable, units: u32, cost: u32, now: Now) {
        let rest = cost.saturating_sub(units);
        if rest > 0 {
            let before = std::mem::take(&mut self.receipts);
            self.debit_windows(confirm, rest, now, |_| true);
            self.receipts = before;
        }
        self.refund(confirm);
    }

    /// Charges more units, also above the limit.
    pub(super) fn debit(mut self, confirm: &ConfirmTable, units: u32, now: Now) {
        self.debit_windows(confirm, units, now, |_| true);
    }

    /// Refunds the charge, and judges the key under its rate without it.
    pub(super) fn refund_and_judge(self, confirm: &ConfirmTable, now: Now) -> Verdict {
        let (overflow, rate) = (Arc::clone(&self.overflow), self.rate);
        let key = overflow.window_key(self.key, rate);
        self.refund(confirm);
        overflow.obtain_sketches(now).by_rate[rate].judge(confirm, key, now)
    }

    /// Charges the sketches of the window lengths that `chosen` selects by the index of a rate.
    fn debit_windows(
        &mut self,
        confirm: &ConfirmTable,
        units: u32,
        now: Now,
        chosen: impl Fn(usize) -> bool,
    ) {
        let overflow = Arc::clone(&self.overflow);
        let sketches = overflow.obtain_sketches(now);
        for &rate in sketches.windows.iter().filter(|rate| chosen(**rate)) {
            let key = overflow.window_key(self.key, rate);
            let receipt = sketches.by_rate[rate].debit(confirm, key, units, now);
            self.receipts.push(WindowCharge { rate, receipt });
        }
    }
}

/// A quota as a rate: its limit per window. The fill time of a bucket may be no valid period of a [`Rate`]; then its
/// configured rate is used.
fn as_rate(quota: &Quota) -> Rate {
    let configured = match quota {
        Quota::TokenBucket(bucket) => bucket.rate(),
        Quota::SlidingWindow(window) => window.rate(),
        Quota::SlidingLog(log) => log.rate(),
        Quota::FixedWindow(window) => window.rate(),
    };
    Rate::new(quota.limit(), quota.window()).unwrap_or(configured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::SlidingWindow;

    fn quota(count: u32, seconds: u64) -> Quota {
        let rate = Rate::new(count, Nanos::from_secs(seconds)).unwrap();
        Quota::SlidingWindow(SlidingWindow::new(rate))
    }

    #[test]
    fn a_window_counts_for_the_fleet_by_its_smallest_rate() {
        let others = [quota(5, 60), quota(50, 10), quota(70, 60), quota(60, 10)];
        let overflow = Overflow::new(&quota(100, 60), &others, Some(&Nanos::get), None);
        overflow.prepare(Now { mono: Nanos::ZERO, wall: Nanos::ZERO });
        let known: Vec<_> = overflow
            .sketches()
            .map(|sketch| (sketch.rate().count(), sketch.fleet().map(|view| view.tag())))
            .collect();
        let [minute, ten_seconds] = [60, 10].map(|length| Some(Nanos::from_secs(length).get()));
        assert_eq!(known, [(5, minute), (50, ten_seconds)]);
        let key = KeyHash { high: 1, low: 2 };
        assert_eq!(overflow.keys_of(key).count(), 2, "a key has one cell for each window");
    }

    #[test]
    fn counts_go_on_after_a_reload_of_the_rates() {
        let now = Now { mono: Nanos::ZERO, wall: Nanos::ZERO };
        let first = Overflow::new(&quota(100, 60), &[quota(50, 10)], Some(&Nanos::get), None);
        first.prepare(now);
        let other = [quota(9, 300)];
        let next = Overflow::new(&quota(120, 60), &other, Some(&Nanos::get), Some(&first));
        next.prepare(now);
        let known = |overflow: &Overflow| -> Vec<_> {
            let sketches = overflow.sketches();
            sketches.map(|sketch| (sketch.number(), Arc::clone(sketch.fleet().unwrap()))).collect()
        };
        // A reload in between, without a key that had no room.
        let quiet = Overflow::new(&quota(120, 60), &other, None, Some(&next));
        let last = Overflow::new(&quota(90, 60), &other, Some(&Nanos::get), Some(&quiet));
        last.prepare(now);
        let (first, next, last) = (known(&first), known(&next), known(&last));
        assert_eq!(last[0].0, next[0].0);
        assert!(first[0].0 == next[0].0 && Arc::ptr_eq(&first[0].1, &next[0].1));
        assert!(first[1].0 != next[1].0 && !Arc::ptr_eq(&first[1].1, &next[1].1));
    }
}
