//! What the store does not know yet: units that this node admitted by itself while the store did
//! not answer, and refunds and debits that certainly were not executed.
//!
//! Usage is kept as a cell of its own for each key and rate, so that what has refilled before the report
//! is not reported, and the rest under the rate that admitted it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::smallvec;

use super::charge::{CellCharge, Operation, StoreCharge};
use super::metrics::StoreMetrics;
use crate::clock::{Nanos, Now};
use crate::limit::{Cell, Receipt};
use crate::policy::KeyHash;
use crate::store::IssuedQuota;

/// Keys, under each of their rates, at most: a flood during an outage takes at most a few megabytes.
const MAX_KEYS: usize = 65_536;

/// Refunds and debits at most.
const MAX_CORRECTIONS: usize = 65_536;

/// Most keys that one search for what can be reported looks at: requests wait for the list meanwhile.
const MAX_LOOKS: usize = 4_096;

/// Between two searches of a full list for what has refilled: each visits every key.
const PURGE_EVERY: Nanos = Nanos::SECOND;

/// The list. Ordered by key, so that a report is the same in every run of a simulation.
#[derive(Default)]
pub(super) struct UnreportedUsage(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    usage: BTreeMap<UsageId, Usage>,
    /// Where the next search for what can be reported begins.
    next: UsageId,
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
    quota: Arc<IssuedQuota>,
    cell: Cell,
}

/// A refund or a debit, and when it was made.
#[derive(Debug)]
pub(super) struct Correction {
    charge: StoreCharge,
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

impl UnreportedUsage {
    /// A charge was admitted without the store.
    pub(super) fn record(&self, spend: &CellCharge, now: Now, metrics: &StoreMetrics) {
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
            cell: quota.empty_cell(),
        });
        quota.charge(&mut usage.cell, spend.cost, now);
    }

    /// A charge that was admitted without the store is refunded.
    pub(super) fn refund(&self, spend: &CellCharge, units: u32, receipt: Receipt, now: Now) {
        let id = (spend.key.high, spend.key.low, spend.quota.number());
        if let Some(usage) = self.0.lock().usage.get_mut(&id) {
            let (quota, windows) = (*usage.quota.quota(), usage.quota.windows().clone());
            quota.refund(&windows, &mut usage.cell, units, receipt, now);
        }
    }

    /// A refund or a debit was certainly not executed.
    pub(super) fn record_correction(&self, charge: StoreCharge, now: Now, metrics: &StoreMetrics) {
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
        can_be_sent: impl Fn(&CellCharge) -> bool,
    ) -> Vec<(Item, StoreCharge)> {
        let mut inner = self.0.lock();
        let mut taken = Vec::new();
        let mut kept = VecDeque::new();
        while taken.len() < max
            && let Some(correction) = inner.corrections.pop_front()
        {
            if correction.has_refilled(now) {
                continue;
            }
            if correction.charge.cell_charges.iter().all(&can_be_sent) {
                let charge = correction.charge.clone();
                taken.push((Item::Correction(Box::new(correction)), charge));
            } else {
                kept.push_back(correction);
            }
        }
        kept.append(&mut inner.corrections);
        inner.corrections = kept;
        inner.take_usage(max, now, can_be_sent, &mut taken);
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
                    let cost = newer.spent(now);
                    usage.quota.quota().charge(&mut usage.cell, cost, now);
                } else if inner.usage.len() >= MAX_KEYS {
                    let cost = usage.spent(now);
                    inner.lose(u64::from(cost), metrics);
                    return;
                }
                inner.usage.insert(id, usage);
            }
        }
    }
}

impl Inner {
    /// Takes usage until there are about `max` items. Begins where the last search ended, so that usage which
    /// cannot be reported does not hide what stands behind it.
    fn take_usage(
        &mut self,
        max: usize,
        now: Now,
        can_be_sent: impl Fn(&CellCharge) -> bool,
        taken: &mut Vec<(Item, StoreCharge)>,
    ) {
        let room = max.saturating_sub(taken.len());
        let behind = self.usage.range(self.next..);
        let all = behind.chain(self.usage.range(..self.next)).take(MAX_LOOKS);
        let mut next = self.next;
        let mut ids = Vec::new();
        for (id, usage) in all {
            if ids.len() == room {
                break;
            }
            next = (id.0, id.1, id.2.saturating_add(1));
            let spend = CellCharge::new(key_of(*id), usage.family, Arc::clone(&usage.quota), 0);
            if can_be_sent(&spend) {
                ids.push(*id);
            }
        }
        self.next = next;
        for id in ids {
            let Some(mut usage) = self.usage.remove(&id) else {
                continue;
            };
            let debt = usage.take_debt(id, now);
            let report = usage.report(id, now);
            // What has refilled is no cost any more.
            if report.cell_charges.iter().any(|spend| spend.cost > 0) {
                taken.push((Item::Usage(key_of(id), usage), report));
            }
            // After the report: of that as much is charged as fits.
            if let Some(debt) = debt {
                let correction = Correction { charge: debt.clone(), since: now.mono };
                taken.push((Item::Correction(Box::new(correction)), debt));
            }
        }
    }

    fn put_correction(&mut self, correction: Correction, now: Now, metrics: &StoreMetrics) {
        if self.corrections.len() >= MAX_CORRECTIONS {
            self.purge(now);
        }
        if self.corrections.len() >= MAX_CORRECTIONS {
            let costs = correction.charge.cell_charges.iter().map(|spend| u64::from(spend.cost));
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
    /// Units that have not refilled.
    fn spent(&self, now: Now) -> u32 {
        self.quota.quota().spent(&self.cell, now)
    }

    fn limit(&self, now: Now) -> u32 {
        self.quota.quota().judge(None, 0, now).limit
    }

    /// What was admitted: the store takes as much of it as fits, since other nodes may have admitted as much.
    fn report(&self, id: UsageId, now: Now) -> StoreCharge {
        let spend =
            CellCharge::new(key_of(id), self.family, Arc::clone(&self.quota), self.spent(now));
        StoreCharge { operation: Operation::Report, cell_charges: smallvec![spend] }
    }

    /// Takes out what is spent above the limit: costs that were told late, which the store charges whether they
    /// fit or not.
    fn take_debt(&mut self, id: UsageId, now: Now) -> Option<StoreCharge> {
        let (quota, limit) = (*self.quota.quota(), self.limit(now));
        let debt = self.spent(now).checked_sub(limit).filter(|debt| *debt > 0)?;
        self.cell = quota.empty_cell();
        quota.charge(&mut self.cell, limit, now);
        let spend = CellCharge::new(key_of(id), self.family, Arc::clone(&self.quota), debt);
        Some(StoreCharge { operation: Operation::Debit, cell_charges: smallvec![spend] })
    }
}

impl Correction {
    fn has_refilled(&self, now: Now) -> bool {
        let counts = |spend: &CellCharge| spend.quota.quota().charge_lifetime(spend.cost);
        let longest = self.charge.cell_charges.iter().map(counts).max().unwrap_or_default();
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
    use crate::store::{CellBudget, EmbeddedStore, QuotaSpec};

    fn quota(secs: u64) -> Arc<IssuedQuota> {
        let rate = Rate::new(100, Nanos::from_secs(secs)).ok();
        let quota = Quota::FixedWindow(FixedWindow::new(rate.unwrap_or(Rate::ONE_PER_SECOND)));
        let windows = crate::limit::WindowLengths::of([&quota]);
        let claim = QuotaSpec { quota, windows, budget: Arc::<CellBudget>::default() };
        EmbeddedStore::default().issue(claim, None)
    }

    fn spend(n: u64, quota: &Arc<IssuedQuota>, cost: u32) -> CellCharge {
        CellCharge::new(KeyHash { high: 1, low: n }, None, Arc::clone(quota), cost)
    }

    fn at(secs: u64) -> Now {
        Now { mono: Nanos::from_secs(secs), wall: Nanos::from_secs(secs) }
    }

    fn costs(list: &UnreportedUsage, now: Now) -> Vec<u32> {
        let taken = list.take(usize::MAX, now, |_| true);
        taken.iter().map(|(_, charge)| charge.cell_charges[0].cost).collect()
    }

    #[test]
    fn what_refilled_is_not_reported_and_the_rest_is_put_back_whole() {
        let (list, metrics) = (UnreportedUsage::default(), StoreMetrics::default());
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
        let (list, metrics) = (UnreportedUsage::default(), StoreMetrics::default());
        let store = EmbeddedStore::default();
        let room = Arc::<CellBudget>::default();
        let issue = |secs| {
            let quota = *quota(secs).quota();
            let windows = crate::limit::WindowLengths::of([&quota]);
            store.issue(QuotaSpec { quota, windows, budget: Arc::clone(&room) }, None)
        };
        let (short, long) = (issue(10), issue(1_000));
        list.record(&spend(1, &short, 5), at(100), &metrics);
        list.record(&spend(1, &long, 7), at(101), &metrics);
        list.record(&spend(1, &short, 2), at(102), &metrics);
        let receipt = short.quota().receipt(&short.quota().judge(None, 2, at(102)), 2, at(102));
        list.refund(&spend(1, &short, 2), 1, receipt, at(103));
        let mut told: Vec<(u64, u32)> = list
            .take(usize::MAX, at(104), |_| true)
            .iter()
            .map(|(_, charge)| &charge.cell_charges[0])
            .map(|spend| (spend.quota.quota().window().secs(), spend.cost))
            .collect();
        told.sort_unstable();
        assert_eq!(told, [(10, 6), (1_000, 7)]);
    }

    fn bucket() -> Arc<IssuedQuota> {
        let tick = Nanos::new(1_000);
        let rate = Rate::new(10, Nanos::SECOND).unwrap();
        let quota = crate::limit::TokenBucket::new(rate, 10, Nanos::ZERO, tick).unwrap();
        let quota = Quota::TokenBucket(quota);
        let windows = crate::limit::WindowLengths::of([&quota]);
        EmbeddedStore::default()
            .issue(QuotaSpec { quota, windows, budget: Arc::<CellBudget>::default() }, None)
    }

    /// A cost that was told late is reported above the limit too, and nothing of it twice.
    #[test]
    fn a_debt_is_reported_whole() {
        let (list, metrics) = (UnreportedUsage::default(), StoreMetrics::default());
        let quota = bucket();
        list.record(&spend(1, &quota, 1), at(100), &metrics);
        list.record(&spend(1, &quota, 599), at(100), &metrics);
        let told = |now| {
            let taken = list.take(usize::MAX, now, |_| true);
            let told: Vec<_> = taken
                .iter()
                .map(|(_, charge)| (charge.operation, charge.cell_charges[0].cost))
                .collect();
            (told, taken)
        };
        // Twenty have come back.
        let (first, taken) = told(at(102));
        assert_eq!(first, [(Operation::Report, 10), (Operation::Debit, 570)]);
        for (item, _) in taken {
            list.put_back(item, at(102), &metrics);
        }
        let (again, _) = told(at(102));
        assert_eq!(again, [(Operation::Debit, 570), (Operation::Report, 10)], "none was executed");
        assert!(list.is_empty());
    }

    /// The debt of a bucket counts until it has come back.
    #[test]
    fn a_debit_is_kept_for_as_long_as_it_counts() {
        let (list, metrics) = (UnreportedUsage::default(), StoreMetrics::default());
        let debit = StoreCharge {
            operation: Operation::Debit,
            cell_charges: smallvec![spend(1, &bucket(), 599)],
        };
        list.record_correction(debit.clone(), at(100), &metrics);
        assert_eq!(costs(&list, at(160)), [599]);
        list.record_correction(debit, at(100), &metrics);
        assert_eq!(costs(&list, at(161)), [0; 0]);
    }

    #[test]
    fn what_cannot_be_sent_hides_nothing() {
        let (list, metrics) = (UnreportedUsage::default(), StoreMetrics::default());
        let quota = quota(1_000);
        for n in 0..2 * MAX_LOOKS as u64 {
            list.record(&spend(n, &quota, 1), at(100), &metrics);
        }
        let last = KeyHash { high: 1, low: 2 * MAX_LOOKS as u64 - 1 };
        let look = || list.take(usize::MAX, at(101), |spend| spend.key == last).len();
        assert_eq!([look(), look(), look()], [0, 1, 0]);
    }

    #[test]
    fn a_full_list_drops_what_refilled_first_and_counts_what_it_loses() {
        let (list, metrics) = (UnreportedUsage::default(), StoreMetrics::default());
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
