//! Usage that the store does not know yet: units that this node admitted while the store did not answer, and refunds
//! and debits that were certainly not executed.
//!
//! Usage is kept as a cell for each key and quota. So what has refilled before the report is not reported, and the
//! rest is reported under the rate that admitted it. The list does not send reports; `reporter.rs` does.
//!
//! What always holds: the list is bounded, and units that it cannot keep are counted as lost.

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

/// The largest number of entries, one for each key and quota. It bounds the memory of a flood during an outage to some
/// ten megabytes, the times of sliding logs not counted.
const MAX_KEYS: usize = 65_536;

/// The largest number of refunds and debits.
const MAX_CORRECTIONS: usize = 65_536;

/// The largest number of keys that one search for reports examines. Requests wait for the list meanwhile.
const MAX_EXAMINED: usize = 4_096;

/// The time between two searches of a full list for usage that has refilled. Each search visits every key.
const PURGE_EVERY: Nanos = Nanos::SECOND;

/// The list of unreported usage. It is ordered by key, so that a report is the same in every run of a simulation.
#[derive(Default)]
pub(super) struct UnreportedUsage(Mutex<UnreportedLists>);

#[derive(Default)]
struct UnreportedLists {
    usage: BTreeMap<UsageId, KeyUsage>,
    /// The first key of the next search for reports.
    cursor: UsageId,
    corrections: VecDeque<Correction>,
    /// When a full list was last searched for usage that has refilled.
    purged: Option<Nanos>,
    /// Whether a loss was logged since the list was last empty.
    loss_logged: bool,
}

/// A key and the number of its quota, in the order of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct UsageId {
    high: u64,
    low: u64,
    quota: u32,
}

/// The unreported usage of one key under one quota.
#[derive(Debug)]
pub(super) struct KeyUsage {
    key: KeyHash,
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

/// A charge that reports an item of the list.
#[derive(Debug)]
pub(super) struct UsageReport {
    /// What is reported, to be put back if the report is not executed.
    pub(super) item: UnreportedItem,
    /// The charge that reports it.
    pub(super) charge: StoreCharge,
}

/// An item of the list.
#[derive(Debug)]
pub(super) enum UnreportedItem {
    /// Units that were admitted.
    Usage(KeyUsage),
    /// A refund or a debit.
    Correction(Box<Correction>),
}

impl UnreportedUsage {
    /// Records a charge that was admitted without the store.
    pub(super) fn record(&self, charge: &CellCharge, now: Now, metrics: &StoreMetrics) {
        let mut lists = self.0.lock();
        let id = UsageId::of(charge.key, &charge.quota);
        if lists.usage.len() >= MAX_KEYS && !lists.usage.contains_key(&id) {
            lists.purge(now);
            if lists.usage.len() >= MAX_KEYS {
                lists.lose(u64::from(charge.cost), metrics);
                return;
            }
        }
        let quota = *charge.quota.quota();
        let usage = lists.usage.entry(id).or_insert_with(|| KeyUsage {
            key: charge.key,
            family: charge.family,
            quota: Arc::clone(&charge.quota),
            cell: quota.empty_cell(),
        });
        quota.charge(&mut usage.cell, charge.cost, now);
    }

    /// Refunds some units of a charge that was admitted without the store.
    pub(super) fn refund(&self, charge: &CellCharge, units: u32, receipt: Receipt, now: Now) {
        let id = UsageId::of(charge.key, &charge.quota);
        if let Some(usage) = self.0.lock().usage.get_mut(&id) {
            let (quota, windows) = (*usage.quota.quota(), usage.quota.windows().clone());
            quota.refund(&windows, &mut usage.cell, units, receipt, now);
        }
    }

    /// Records a refund or a debit that was certainly not executed.
    pub(super) fn record_correction(&self, charge: StoreCharge, now: Now, metrics: &StoreMetrics) {
        let correction = Correction { charge, since: now.mono };
        self.0.lock().add_correction(correction, now, metrics);
    }

    /// Whether there is nothing to report.
    pub(super) fn is_empty(&self) -> bool {
        let lists = self.0.lock();
        lists.usage.is_empty() && lists.corrections.is_empty()
    }

    /// Takes about `max` reports that can be sent now: corrections first, then usage.
    pub(super) fn take(
        &self,
        max: usize,
        now: Now,
        can_be_sent: impl Fn(&CellCharge) -> bool,
    ) -> Vec<UsageReport> {
        let mut lists = self.0.lock();
        let mut reports = Vec::new();
        let mut kept = VecDeque::new();
        while reports.len() < max
            && let Some(correction) = lists.corrections.pop_front()
        {
            if correction.has_refilled(now) {
                continue;
            }
            if correction.charge.cell_charges.iter().all(&can_be_sent) {
                reports.push(UsageReport::of_correction(correction));
            } else {
                kept.push_back(correction);
            }
        }
        kept.append(&mut lists.corrections);
        lists.corrections = kept;
        lists.take_usage(max, now, can_be_sent, &mut reports);
        lists.loss_logged &= !lists.usage.is_empty() || !lists.corrections.is_empty();
        reports
    }

    /// Puts an item back whose report was certainly not executed.
    pub(super) fn put_back(&self, item: UnreportedItem, now: Now, metrics: &StoreMetrics) {
        let mut lists = self.0.lock();
        match item {
            UnreportedItem::Correction(correction) => {
                lists.add_correction(*correction, now, metrics);
            }
            UnreportedItem::Usage(usage) => lists.put_usage_back(usage, now, metrics),
        }
    }
}

impl UnreportedLists {
    /// Takes usage until there are about `max` reports. It begins where the last search ended, so usage that cannot
    /// be reported does not hide the usage behind it.
    fn take_usage(
        &mut self,
        max: usize,
        now: Now,
        can_be_sent: impl Fn(&CellCharge) -> bool,
        reports: &mut Vec<UsageReport>,
    ) {
        let room = max.saturating_sub(reports.len());
        let from_cursor = self.usage.range(self.cursor..);
        let examined = from_cursor.chain(self.usage.range(..self.cursor)).take(MAX_EXAMINED);
        let mut cursor = self.cursor;
        let mut ids = Vec::new();
        for (id, usage) in examined {
            if ids.len() == room {
                break;
            }
            cursor = UsageId { quota: id.quota.saturating_add(1), ..*id };
            if can_be_sent(&usage.charge(0)) {
                ids.push(*id);
            }
        }
        self.cursor = cursor;
        for id in ids {
            let Some(mut usage) = self.usage.remove(&id) else {
                continue;
            };
            let debt = usage.take_debt(now);
            let charge = usage.report(now);
            // Usage that has refilled costs nothing any more.
            if charge.cell_charges.iter().any(|charge| charge.cost > 0) {
                reports.push(UsageReport { item: UnreportedItem::Usage(usage), charge });
            }
            // The debt follows the report, because the store charges a report only as far as it fits.
            if let Some(charge) = debt {
                reports.push(UsageReport::of_correction(Correction { charge, since: now.mono }));
            }
        }
    }

    fn put_usage_back(&mut self, mut usage: KeyUsage, now: Now, metrics: &StoreMetrics) {
        let id = UsageId::of(usage.key, &usage.quota);
        if let Some(newer) = self.usage.remove(&id) {
            let cost = newer.spent(now);
            usage.quota.quota().charge(&mut usage.cell, cost, now);
        } else if self.usage.len() >= MAX_KEYS {
            let cost = usage.spent(now);
            self.lose(u64::from(cost), metrics);
            return;
        }
        self.usage.insert(id, usage);
    }

    fn add_correction(&mut self, correction: Correction, now: Now, metrics: &StoreMetrics) {
        if self.corrections.len() >= MAX_CORRECTIONS {
            self.purge(now);
        }
        if self.corrections.len() >= MAX_CORRECTIONS {
            let costs = correction.charge.cell_charges.iter().map(|charge| u64::from(charge.cost));
            self.lose(costs.sum(), metrics);
            return;
        }
        self.corrections.push_back(correction);
    }

    /// Drops items that have refilled: their reports would change nothing.
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
                "the list of usage that is not reported to the store yet is full: units are lost, \
                 and keys may be admitted once more for them (counted in \
                 tollgate_store_unreported_lost_total)"
            );
        }
    }
}

impl UsageId {
    fn of(key: KeyHash, quota: &IssuedQuota) -> Self {
        Self { high: key.high, low: key.low, quota: quota.number() }
    }
}

impl UsageReport {
    fn of_correction(correction: Correction) -> Self {
        let charge = correction.charge.clone();
        Self { item: UnreportedItem::Correction(Box::new(correction)), charge }
    }
}

impl KeyUsage {
    /// Units that have not refilled.
    fn spent(&self, now: Now) -> u32 {
        self.quota.quota().spent(&self.cell, now)
    }

    fn limit(&self, now: Now) -> u32 {
        self.quota.quota().judge(None, 0, now).limit
    }

    fn charge(&self, cost: u32) -> CellCharge {
        CellCharge::new(self.key, self.family, Arc::clone(&self.quota), cost)
    }

    /// The charge that reports the admitted units. The store charges as many of them as fit, since other nodes may
    /// have admitted as many.
    fn report(&self, now: Now) -> StoreCharge {
        let charge = self.charge(self.spent(now));
        StoreCharge { operation: Operation::Report, cell_charges: smallvec![charge] }
    }

    /// Takes out the units above the limit. They come from costs that were known late, which the store charges
    /// whether they fit or not.
    fn take_debt(&mut self, now: Now) -> Option<StoreCharge> {
        let (quota, limit) = (*self.quota.quota(), self.limit(now));
        let debt = self.spent(now).checked_sub(limit).filter(|debt| *debt > 0)?;
        self.cell = quota.empty_cell();
        quota.charge(&mut self.cell, limit, now);
        let charge = self.charge(debt);
        Some(StoreCharge { operation: Operation::Debit, cell_charges: smallvec![charge] })
    }
}

impl Correction {
    fn has_refilled(&self, now: Now) -> bool {
        let lifetime = |charge: &CellCharge| charge.quota.quota().charge_lifetime(charge.cost);
        let longest = self.charge.cell_charges.iter().map(lifetime).max().unwrap_or_default();
        self.since.saturating_add(longest) <= now.mono
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{FixedWindow, Quota, Rate};
    use crate::store::{CellBudget, EmbeddedStore, QuotaSpec};

    fn quota(secs: u64) -> Arc<IssuedQuota> {
        let rate = Rate::new(100, Nanos::from_secs(secs)).ok();
        let quota = Quota::FixedWindow(FixedWindow::new(rate.unwrap_or(Rate::PER_SECOND)));
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
        taken.iter().map(|report| report.charge.cell_charges[0].cost).collect()
    }

    #[test]
    fn refilled_usage_is_not_reported_and_other_usage_can_be_put_back() {
        let (list, metrics) = (UnreportedUsage::default(), StoreMetrics::default());
        let (short, long) = (quota(1), quota(1_000));
        list.record(&spend(1, &short, 5), at(100), &metrics);
        list.record(&spend(2, &long, 7), at(100), &metrics);
        let taken = list.take(usize::MAX, at(103), |_| true);
        assert_eq!(taken.len(), 1);
        list.record(&spend(2, &long, 1), at(104), &metrics);
        for report in taken {
            list.put_back(report.item, at(105), &metrics);
        }
        assert_eq!(costs(&list, at(105)), [8]);
        assert!(list.is_empty());
    }

    /// A key that was charged under two rates is reported under both, each with its own units.
    #[test]
    fn each_rate_reports_the_units_that_it_admitted() {
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
        let mut reported: Vec<(u64, u32)> = list
            .take(usize::MAX, at(104), |_| true)
            .iter()
            .map(|report| &report.charge.cell_charges[0])
            .map(|spend| (spend.quota.quota().window().secs(), spend.cost))
            .collect();
        reported.sort_unstable();
        assert_eq!(reported, [(10, 6), (1_000, 7)]);
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

    /// A cost that was known late is reported above the limit too, and no unit of it twice.
    #[test]
    fn a_debt_is_reported_in_full_and_once() {
        let (list, metrics) = (UnreportedUsage::default(), StoreMetrics::default());
        let quota = bucket();
        list.record(&spend(1, &quota, 1), at(100), &metrics);
        list.record(&spend(1, &quota, 599), at(100), &metrics);
        let take = |now| {
            let taken = list.take(usize::MAX, now, |_| true);
            let charges: Vec<_> = taken
                .iter()
                .map(|report| (report.charge.operation, report.charge.cell_charges[0].cost))
                .collect();
            (charges, taken)
        };
        // Twenty have refilled.
        let (first, taken) = take(at(102));
        assert_eq!(first, [(Operation::Report, 10), (Operation::Debit, 570)]);
        for report in taken {
            list.put_back(report.item, at(102), &metrics);
        }
        let (again, _) = take(at(102));
        assert_eq!(again, [(Operation::Debit, 570), (Operation::Report, 10)], "none was executed");
        assert!(list.is_empty());
    }

    /// The debt of a bucket counts until it has refilled.
    #[test]
    fn a_debit_is_kept_until_it_has_refilled() {
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
    fn usage_that_cannot_be_sent_does_not_hide_other_usage() {
        let (list, metrics) = (UnreportedUsage::default(), StoreMetrics::default());
        let quota = quota(1_000);
        for n in 0..2 * MAX_EXAMINED as u64 {
            list.record(&spend(n, &quota, 1), at(100), &metrics);
        }
        let last = KeyHash { high: 1, low: 2 * MAX_EXAMINED as u64 - 1 };
        let look = || list.take(usize::MAX, at(101), |spend| spend.key == last).len();
        assert_eq!([look(), look(), look()], [0, 1, 0]);
    }

    #[test]
    fn a_full_list_drops_refilled_usage_first_and_counts_lost_units() {
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
