//! What the store does not know yet: units that this node admitted by itself while the store did
//! not answer, and refunds and debits that certainly were not executed.
//!
//! Usage is kept as a cell of its own for each key and rate, so that what has refilled before the report
//! is not reported, and the rest under the rate that admitted it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::smallvec;

use super::call::{Charge, Order, Spend};
use super::metrics::StoreMetrics;
use crate::clock::{Nanos, Now};
use crate::limit::{Cell, Receipt};
use crate::policy::KeyHash;
use crate::store::Issued;

/// Keys, under each of their rates, at most: a flood during an outage takes at most a few megabytes.
const MAX_KEYS: usize = 65_536;

/// Refunds and debits at most.
const MAX_CORRECTIONS: usize = 65_536;

/// Between two searches of a full list for what has refilled: each visits every key.
const PURGE_EVERY: Nanos = Nanos::SECOND;

/// The list. Ordered by key, so that a report is the same in every run of a simulation.
#[derive(Default)]
pub(super) struct Unreported(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    usage: BTreeMap<UsageId, Usage>,
    corrections: VecDeque<Correction>,
    /// When a full list was last searched for what has refilled.
    purged: Option<Nanos>,
    /// Whether a loss was logged since the list was last empty.
    loss_logged: bool,
}

/// A key, and the number of its quota.
type UsageId = (u64, u64, u32);

/// Of one key under one rate.
#[derive(Debug)]
pub(super) struct Usage {
    family: Option<KeyHash>,
    quota: Arc<Issued>,
    cell: Cell,
}

/// A refund or a debit, and when it was made.
#[derive(Debug)]
pub(super) struct Correction {
    charge: Charge,
    since: Nanos,
}

/// Something to report, as it is put back when the report fails.
#[derive(Debug)]
pub(super) enum Item {
    /// Units that were admitted.
    Usage(KeyHash, Usage),
    /// A refund or a debit.
    Correction(Box<Correction>),
}

impl Unreported {
    /// A charge was admitted without the store.
    pub(super) fn record(&self, spend: &Spend, now: Now, metrics: &StoreMetrics) {
        let mut inner = self.0.lock();
        let id = (spend.key.high, spend.key.low, spend.quota.number());
        if inner.usage.len() >= MAX_KEYS && !inner.usage.contains_key(&id) {
            inner.purge(now);
            if inner.usage.len() >= MAX_KEYS {
                inner.lose(u64::from(spend.cost), metrics);
                return;
            }
        }
        let quota = *spend.quota.quota();
        let usage = inner.usage.entry(id).or_insert_with(|| Usage {
            family: spend.family,
            quota: Arc::clone(&spend.quota),
            cell: quota.fresh(),
        });
        quota.charge(&mut usage.cell, spend.cost, now);
    }

    /// A charge that was admitted without the store is refunded.
    pub(super) fn reduce(&self, spend: &Spend, units: u32, receipt: Receipt, now: Now) {
        let id = (spend.key.high, spend.key.low, spend.quota.number());
        if let Some(usage) = self.0.lock().usage.get_mut(&id) {
            let (quota, windows) = (*usage.quota.quota(), usage.quota.windows().clone());
            quota.give_back(&windows, &mut usage.cell, units, receipt, now);
        }
    }

    /// A refund or a debit was certainly not executed.
    pub(super) fn correct(&self, charge: Charge, now: Now, metrics: &StoreMetrics) {
        let correction = Correction { charge, since: now.mono };
        self.0.lock().put_correction(correction, now, metrics);
    }

    /// Whether there is nothing to report.
    pub(super) fn is_empty(&self) -> bool {
        let inner = self.0.lock();
        inner.usage.is_empty() && inner.corrections.is_empty()
    }

    /// Takes up to `max` items that can be sent now, with the charge that reports each.
    pub(super) fn take(
        &self,
        max: usize,
        now: Now,
        can_be_sent: impl Fn(&Spend) -> bool,
    ) -> Vec<(Item, Charge)> {
        let mut inner = self.0.lock();
        let mut taken = Vec::new();
        let mut kept = VecDeque::new();
        while taken.len() < max
            && let Some(correction) = inner.corrections.pop_front()
        {
            if correction.has_refilled(now) {
                continue;
            }
            if correction.charge.spends.iter().all(&can_be_sent) {
                let charge = correction.charge.clone();
                taken.push((Item::Correction(Box::new(correction)), charge));
            } else {
                kept.push_back(correction);
            }
        }
        kept.append(&mut inner.corrections);
        inner.corrections = kept;
        let room = max.saturating_sub(taken.len());
        let reports = inner.usage.iter().map(|(id, usage)| (*id, usage.report(*id, now)));
        let reports: Vec<_> = reports
            .filter(|(_, charge)| charge.spends.iter().all(&can_be_sent))
            .take(room)
            .collect();
        for (id, charge) in reports {
            // What has refilled is no cost any more.
            if let Some(usage) = inner.usage.remove(&id)
                && charge.spends.iter().any(|spend| spend.cost > 0)
            {
                taken.push((Item::Usage(key_of(id), usage), charge));
            }
        }
        inner.loss_logged &= !inner.usage.is_empty() || !inner.corrections.is_empty();
        taken
    }

    /// A report was certainly not executed.
    pub(super) fn put_back(&self, item: Item, now: Now, metrics: &StoreMetrics) {
        let mut inner = self.0.lock();
        match item {
            Item::Correction(correction) => inner.put_correction(*correction, now, metrics),
            Item::Usage(key, mut usage) => {
                let id = (key.high, key.low, usage.quota.number());
                if let Some(newer) = inner.usage.remove(&id) {
                    let cost = newer.units(now);
                    usage.quota.quota().charge(&mut usage.cell, cost, now);
                } else if inner.usage.len() >= MAX_KEYS {
                    let cost = usage.units(now);
                    inner.lose(u64::from(cost), metrics);
                    return;
                }
                inner.usage.insert(id, usage);
            }
        }
    }
}

impl Inner {
    fn put_correction(&mut self, correction: Correction, now: Now, metrics: &StoreMetrics) {
        if self.corrections.len() >= MAX_CORRECTIONS {
            self.purge(now);
        }
        if self.corrections.len() >= MAX_CORRECTIONS {
            let costs = correction.charge.spends.iter().map(|spend| u64::from(spend.cost));
            self.lose(costs.sum(), metrics);
            return;
        }
        self.corrections.push_back(correction);
    }

    /// Drops what has refilled: reporting it would change nothing.
    fn purge(&mut self, now: Now) {
        if self.purged.is_some_and(|last| now.mono < last.saturating_add(PURGE_EVERY)) {
            return;
        }
        self.purged = Some(now.mono);
        self.usage.retain(|_, usage| !usage.quota.quota().is_idle(&usage.cell, now));
        self.corrections.retain(|correction| !correction.has_refilled(now));
    }

    fn lose(&mut self, units: u64, metrics: &StoreMetrics) {
        metrics.record_unreported_lost(units);
        if !std::mem::replace(&mut self.loss_logged, true) {
            log::error!(
                "the list of usage that the store has yet to be told of is full: units are lost, \
                 and keys may be admitted once more for them (counted in \
                 tollgate_store_unreported_lost_total)"
            );
        }
    }
}

impl Usage {
    /// What has not refilled.
    fn units(&self, now: Now) -> u32 {
        let verdict = self.quota.quota().judge(Some(&self.cell), 0, now);
        verdict.limit.saturating_sub(verdict.remaining)
    }

    fn report(&self, id: UsageId, now: Now) -> Charge {
        let quota = Arc::clone(&self.quota);
        let spend = Spend::of(key_of(id), self.family, quota, self.units(now));
        Charge { order: Order::Post, spends: smallvec![spend] }
    }
}

impl Correction {
    fn has_refilled(&self, now: Now) -> bool {
        // A charge counts in the window that it was made in and, weighted, in the next.
        let counts = |spend: &Spend| spend.quota.quota().window().saturating_mul(2);
        let longest = self.charge.spends.iter().map(counts).max().unwrap_or_default();
        self.since.saturating_add(longest) <= now.mono
    }
}

const fn key_of((high, low, _): UsageId) -> KeyHash {
    KeyHash { high, low }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{FixedWindow, Quota, Rate};
    use crate::store::{Claim, Embedded, Room};

    fn quota(secs: u64) -> Arc<Issued> {
        let rate = Rate::new(100, Nanos::from_secs(secs)).ok();
        let quota = Quota::FixedWindow(FixedWindow::new(rate.unwrap_or(Rate::ONE_A_SECOND)));
        let windows = crate::limit::Windows::of([&quota]);
        let claim = Claim { quota, windows, room: Arc::<Room>::default() };
        Embedded::default().issue(claim, None)
    }

    fn spend(n: u64, quota: &Arc<Issued>, cost: u32) -> Spend {
        Spend::of(KeyHash { high: 1, low: n }, None, Arc::clone(quota), cost)
    }

    fn at(secs: u64) -> Now {
        Now { mono: Nanos::from_secs(secs), wall: Nanos::from_secs(secs) }
    }

    fn costs(list: &Unreported, now: Now) -> Vec<u32> {
        let taken = list.take(usize::MAX, now, |_| true);
        taken.iter().map(|(_, charge)| charge.spends[0].cost).collect()
    }

    #[test]
    fn what_refilled_is_not_reported_and_the_rest_is_put_back_whole() {
        let (list, metrics) = (Unreported::default(), StoreMetrics::default());
        let (short, long) = (quota(1), quota(1_000));
        list.record(&spend(1, &short, 5), at(100), &metrics);
        list.record(&spend(2, &long, 7), at(100), &metrics);
        let taken = list.take(usize::MAX, at(103), |_| true);
        assert_eq!(taken.len(), 1);
        list.record(&spend(2, &long, 1), at(104), &metrics);
        for (item, _) in taken {
            list.put_back(item, at(105), &metrics);
        }
        assert_eq!(costs(&list, at(105)), [8]);
        assert!(list.is_empty());
    }

    /// A key that is met under two rates is reported under both, each with what it admitted.
    #[test]
    fn each_rate_reports_what_it_admitted() {
        let (list, metrics) = (Unreported::default(), StoreMetrics::default());
        let store = Embedded::default();
        let room = Arc::<Room>::default();
        let issue = |secs| {
            let quota = *quota(secs).quota();
            let windows = crate::limit::Windows::of([&quota]);
            store.issue(Claim { quota, windows, room: Arc::clone(&room) }, None)
        };
        let (short, long) = (issue(10), issue(1_000));
        list.record(&spend(1, &short, 5), at(100), &metrics);
        list.record(&spend(1, &long, 7), at(101), &metrics);
        list.record(&spend(1, &short, 2), at(102), &metrics);
        let receipt = short.quota().receipt(&short.quota().judge(None, 2, at(102)), 2, at(102));
        list.reduce(&spend(1, &short, 2), 1, receipt, at(103));
        let mut told: Vec<(u64, u32)> = list
            .take(usize::MAX, at(104), |_| true)
            .iter()
            .map(|(_, charge)| &charge.spends[0])
            .map(|spend| (spend.quota.quota().window().secs(), spend.cost))
            .collect();
        told.sort_unstable();
        assert_eq!(told, [(10, 6), (1_000, 7)]);
    }

    #[test]
    fn a_full_list_drops_what_refilled_first_and_counts_what_it_loses() {
        let (list, metrics) = (Unreported::default(), StoreMetrics::default());
        let (short, long) = (quota(1), quota(1_000));
        for n in 0..MAX_KEYS as u64 {
            let quota = if n < 10 { &short } else { &long };
            list.record(&spend(n, quota, 1), at(100), &metrics);
        }
        list.record(&spend(1 << 40, &long, 3), at(100), &metrics);
        assert_eq!(metrics.unreported_lost(), 3, "nothing has refilled");
        for n in 0..11 {
            list.record(&spend((1 << 41) + n, &long, 1), at(110), &metrics);
        }
        assert_eq!(metrics.unreported_lost(), 4, "ten had refilled");
    }
}
