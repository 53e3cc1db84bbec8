//! Counts the keys of a limit for which its store has no room: in sketches, whose memory is fixed.
//!
//! As in a store, every charge counts under all rates of the limit: there is a counter for each window length
//! among them, so that a rate is judged by what was spent in its own window. A counter is never read as one of
//! another length, which would create units or refuse a key that is within all of its rates.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::clock::Now;
use crate::estimator::{ConfirmTable, EstimateLimit, EstimateReceipt};
use crate::limit::{Quota, Rate, Verdict};
use crate::policy::{KeyHash, RateIndex};

/// Requests a second that a sketch is made for where `expect` does not say: the default of `expect`.
const UNDECLARED: u32 = 1_000;

/// The counters of one limit, or of its candidate.
#[derive(Debug)]
pub(super) struct Overflow {
    /// The limit's own rate first, then those of plans and overrides. Never empty.
    rates: Box<[Rate]>,
    /// Made when the room is full for the first time: most limits never need them.
    counters: OnceLock<Counters>,
}

#[derive(Debug)]
struct Counters {
    /// One for each rate. Those of one window length share a sketch.
    by_rate: Box<[Arc<EstimateLimit>]>,
    /// Rates, by index, one for each window length.
    windows: SmallVec<[usize; 2]>,
}

/// What was charged for a key, and where.
#[derive(Debug)]
pub(super) struct OverflowCharge {
    overflow: Arc<Overflow>,
    rate: usize,
    key: KeyHash,
    /// One for each window length.
    receipts: SmallVec<[WindowCharge; 2]>,
}

#[derive(Debug)]
struct WindowCharge {
    rate: usize,
    receipt: EstimateReceipt,
}

impl Overflow {
    /// Counters for a limit with these quotas, of which the first is its own.
    pub(super) fn new(own: &Quota, others: &[Quota]) -> Self {
        let rates = std::iter::once(own).chain(others).map(as_rate).collect();
        Self { rates, counters: OnceLock::new() }
    }

    /// The sketches that there are, each once.
    pub(super) fn sketches(&self) -> impl Iterator<Item = &Arc<EstimateLimit>> {
        let counters = self.counters.get();
        counters.into_iter().flat_map(|all| all.windows.iter().map(|rate| &all.by_rate[*rate]))
    }

    /// Judges a key under one of the rates, and charges it when allowed.
    pub(super) fn charge(
        self: &Arc<Self>,
        confirm: &ConfirmTable,
        key: KeyHash,
        rate: RateIndex,
        cost: u32,
        now: Now,
    ) -> (Verdict, Option<OverflowCharge>) {
        let (counters, rate) = (self.counters(now), self.index(rate));
        let (verdict, receipt) =
            counters.by_rate[rate].charge(confirm, self.window_key(key, rate), cost, now);
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

    fn counters(&self, now: Now) -> &Counters {
        self.counters.get_or_init(|| {
            let mut by_rate: Vec<Arc<EstimateLimit>> = Vec::with_capacity(self.rates.len());
            let mut windows = SmallVec::new();
            for (index, rate) in self.rates.iter().enumerate() {
                let same = self.rates[..index].iter().position(|one| one.period() == rate.period());
                by_rate.push(Arc::new(match same {
                    Some(first) => by_rate[first].with_rate(*rate),
                    None => {
                        windows.push(index);
                        EstimateLimit::new(self.smallest_of(rate), UNDECLARED, now).with_rate(*rate)
                    }
                }));
            }
            Counters { by_rate: by_rate.into(), windows }
        })
    }

    /// The rate that admits least among those with the same window: it needs the largest sketch.
    fn smallest_of(&self, rate: &Rate) -> Rate {
        let same = self.rates.iter().filter(|other| other.period() == rate.period());
        same.min_by_key(|other| other.count()).copied().unwrap_or(*rate)
    }

    fn index(&self, rate: RateIndex) -> usize {
        if (rate as usize) < self.rates.len() { rate as usize } else { 0 }
    }

    /// What the confirm table knows a key by in the window of a rate: a cell of its own for each length, in all
    /// generations.
    fn window_key(&self, key: KeyHash, rate: usize) -> KeyHash {
        /// Odd, so that no two lengths are mapped to the same number.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let window = self.rates[rate].period().get().wrapping_mul(SPREAD);
        KeyHash { high: key.high ^ window, low: key.low ^ window.rotate_left(32) }
    }
}

impl OverflowCharge {
    /// Gives the charge back.
    pub(super) fn refund(self, confirm: &ConfirmTable) {
        if let Some(counters) = self.overflow.counters.get() {
            for WindowCharge { rate, receipt } in self.receipts {
                counters.by_rate[rate].refund(confirm, receipt);
            }
        }
    }

    /// Gives some units of a charge of `cost` back. (A sketch takes back whole charges: of a part, the rest is
    /// charged again.)
    pub(super) fn refund_some(mut self, confirm: &ConfirmTable, units: u32, cost: u32, now: Now) {
        let rest = cost.saturating_sub(units);
        if rest > 0 {
            let before = std::mem::take(&mut self.receipts);
            self.debit_windows(confirm, rest, now, |_| true);
            self.receipts = before;
        }
        self.refund(confirm);
    }

    /// Charges more units, whether they fit or not.
    pub(super) fn debit(mut self, confirm: &ConfirmTable, units: u32, now: Now) {
        self.debit_windows(confirm, units, now, |_| true);
    }

    /// Gives the charge back, and says where the key stands under its rate then.
    pub(super) fn refund_and_judge(self, confirm: &ConfirmTable, now: Now) -> Verdict {
        let (overflow, rate) = (Arc::clone(&self.overflow), self.rate);
        let key = overflow.window_key(self.key, rate);
        self.refund(confirm);
        overflow.counters(now).by_rate[rate].judge(confirm, key, now)
    }

    /// Charges the counters of some window lengths, given by the index of a rate.
    fn debit_windows(
        &mut self,
        confirm: &ConfirmTable,
        units: u32,
        now: Now,
        chosen: impl Fn(usize) -> bool,
    ) {
        let overflow = Arc::clone(&self.overflow);
        let counters = overflow.counters(now);
        for &rate in counters.windows.iter().filter(|rate| chosen(**rate)) {
            let key = overflow.window_key(self.key, rate);
            let receipt = counters.by_rate[rate].debit(confirm, key, units, now);
            self.receipts.push(WindowCharge { rate, receipt });
        }
    }
}

/// The limit and the window of a quota. A bucket may refill faster than a rate can be written;
/// then its own rate stands.
fn as_rate(quota: &Quota) -> Rate {
    let written = match quota {
        Quota::TokenBucket(bucket) => bucket.rate(),
        Quota::SlidingWindow(window) => window.rate(),
        Quota::SlidingLog(log) => log.rate(),
        Quota::FixedWindow(window) => window.rate(),
    };
    Rate::new(quota.limit(), quota.window()).unwrap_or(written)
}
