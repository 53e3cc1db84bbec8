//! Usage that the store does not know yet: units that this node admitted while the store did not answer, and refunds
//! and debits that were certainly not executed.
//!
//! Usage is kept as a cell for each key and quota. So what has refilled before the report is not reported, and the
//! rest is reported under the rate that admitted it. The list does not send reports; `reporter.rs` does.
//!
//! What always holds: the list is bounded, and units that it cannot keep are counted as lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::charge::{CellCharge, Operation, StoreCharge};
use super::metrics::StoreMetrics;
use super::usage_progress::{Refunds, ReportedUnits, ReportedUsage, UsagePhase, UsageProgress};
use super::usage_report::{
    Correction, KeyUsage, ReportOutcome, SentUsage, UnreportedItem, UsageReport,
};
use crate::clock::{Nanos, Now};
use crate::limit::Receipt;
use crate::policy::KeyHash;
use crate::store::IssuedQuota;
use parking_lot::Mutex;

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

/// A charge among the unreported usage, by which it can be refunded, whether it was reported meanwhile or not.
#[derive(Clone, Debug)]
pub struct UnreportedReceipt {
    id: UsageId,
    progress: Arc<UsageProgress>,
    receipt: Receipt,
}

impl UnreportedUsage {
    /// Records a charge that was admitted without the store. `None`: the list cannot keep it.
    pub(super) fn record(
        &self,
        charge: &CellCharge,
        now: Now,
        metrics: &StoreMetrics,
    ) -> Option<UnreportedReceipt> {
        let mut lists = self.0.lock();
        let id = UsageId::of(charge.key, &charge.quota);
        if lists.usage.len() >= MAX_KEYS && !lists.usage.contains_key(&id) {
            lists.purge(now);
            if lists.usage.len() >= MAX_KEYS {
                lists.lose(u64::from(charge.cost), metrics);
                return None;
            }
        }
        let quota = *charge.quota.quota();
        let usage = lists.usage.entry(id).or_insert_with(|| KeyUsage {
            charge: CellCharge { cost: 0, log_chunk: 0, ..charge.clone() },
            cell: quota.empty_cell(),
            progress: Arc::default(),
        });
        usage.charge.refundable |= charge.refundable;
        quota.charge(&mut usage.cell, charge.cost, now);
        let verdict = quota.judge(Some(&usage.cell), 0, now);
        let receipt = quota.receipt(&verdict, charge.cost, now);
        Some(UnreportedReceipt { id, progress: Arc::clone(&usage.progress), receipt })
    }

    /// Refunds some units of a charge that was admitted without the store. Returns the refunds to send if it was
    /// reported meanwhile, and `None` if nobody knows whether it was.
    pub(super) fn refund(
        &self,
        charge: &UnreportedReceipt,
        units: u32,
        now: Now,
    ) -> Option<Refunds> {
        let mut lists = self.0.lock();
        let refund = (units, charge.receipt);
        let mut progress = Arc::clone(&charge.progress);
        loop {
            let next = match &mut *progress.0.lock() {
                UsagePhase::Merged(other) => Arc::clone(other),
                UsagePhase::Listed => {
                    let usage = lists.usage.get_mut(&charge.id);
                    // What has refilled may have left the list. It changes nothing any more.
                    if let Some(usage) = usage.filter(|u| Arc::ptr_eq(&u.progress, &progress)) {
                        usage.refund(refund, now);
                    }
                    return Some(Refunds::new());
                }
                UsagePhase::Sent(waiting) => {
                    waiting.push(refund);
                    return Some(Refunds::new());
                }
                UsagePhase::Reported(reported) => return Some(reported.refund(refund)),
                UsagePhase::Lost => return None,
            };
            progress = next;
        }
    }

    /// Records a refund or a debit that was certainly not executed.
    pub(super) fn record_correction(&self, charge: StoreCharge, now: Now, metrics: &StoreMetrics) {
        let correction = Correction { charge, since: now.mono };
        self.0.lock().add_correction(correction, now, metrics);
    }

    /// Forgets the usage of a key, and the corrections of its charges, that the store was not told of.
    pub(super) fn forget(&self, key: KeyHash) {
        let mut lists = self.0.lock();
        let is_of_key = |id: &UsageId| id.high == key.high && id.low == key.low;
        lists.usage.retain(|id, _| !is_of_key(id));
        for correction in &mut lists.corrections {
            correction.charge.cell_charges.retain(|cell| cell.key != key);
        }
        lists.corrections.retain(|correction| !correction.charge.cell_charges.is_empty());
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

    /// Learns what became of the charges of a report, in their order. What was certainly not executed is put back;
    /// what may have been executed is dropped. Returns refunds that have waited for this, to be sent.
    pub(super) fn conclude(
        &self,
        item: UnreportedItem,
        outcomes: &[ReportOutcome],
        now: Now,
        metrics: &StoreMetrics,
    ) -> Refunds {
        let mut lists = self.0.lock();
        let outcome = outcomes.first().copied().unwrap_or(ReportOutcome::NotExecuted);
        match item {
            UnreportedItem::Correction(correction) => {
                if outcome == ReportOutcome::NotExecuted {
                    lists.add_correction(*correction, now, metrics);
                }
                Refunds::new()
            }
            UnreportedItem::Usage(sent) => {
                lists.conclude_usage(*sent, outcome, outcomes.get(1).copied(), now, metrics)
            }
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
            if can_be_sent(&usage.charge) {
                ids.push(*id);
            }
        }
        self.cursor = cursor;
        for id in ids {
            let Some(usage) = self.usage.remove(&id) else {
                continue;
            };
            // Usage that has refilled costs nothing any more.
            if usage.spent(now) > 0 {
                reports.push(UsageReport::of_usage(usage, now));
            }
        }
    }

    /// `debt`: what became of the units above the limit, if there were some.
    fn conclude_usage(
        &mut self,
        sent: SentUsage,
        report: ReportOutcome,
        debt: Option<ReportOutcome>,
        now: Now,
        metrics: &StoreMetrics,
    ) -> Refunds {
        let lacks_debt = debt == Some(ReportOutcome::NotExecuted);
        if report == ReportOutcome::NotExecuted {
            let usage = if debt.is_none() || lacks_debt { sent.usage } else { sent.up_to_limit() };
            self.put_usage_back(usage, now, metrics);
            return Refunds::new();
        }
        if lacks_debt {
            let debit = sent.usage.store_charge(Operation::Debit, sent.debt);
            self.add_correction(Correction { charge: debit, since: now.mono }, now, metrics);
        }
        let ReportOutcome::Charged { at, units } = report else {
            sent.usage.progress.enter(UsagePhase::Lost);
            return Refunds::new();
        };
        let debt = match debt {
            Some(ReportOutcome::Charged { at, .. }) => ReportedUnits { at, units: sent.debt },
            Some(ReportOutcome::NotExecuted | ReportOutcome::Unknown) | None => {
                ReportedUnits::default()
            }
        };
        let SentUsage { usage: KeyUsage { charge, cell, progress }, taken, .. } = sent;
        let report = ReportedUnits { at, units };
        let mut reported = Box::new(ReportedUsage { cell, taken, charge, report, debt });
        let waiting = progress.enter(UsagePhase::Lost);
        let refunds = waiting.into_iter().flat_map(|refund| reported.refund(refund)).collect();
        progress.enter(UsagePhase::Reported(reported));
        refunds
    }

    fn put_usage_back(&mut self, mut usage: KeyUsage, now: Now, metrics: &StoreMetrics) {
        let id = UsageId::of(usage.charge.key, &usage.charge.quota);
        for refund in usage.progress.enter(UsagePhase::Listed) {
            usage.refund(refund, now);
        }
        if let Some(newer) = self.usage.remove(&id) {
            let cost = newer.spent(now);
            usage.charge.quota.quota().charge(&mut usage.cell, cost, now);
            newer.progress.enter(UsagePhase::Merged(Arc::clone(&usage.progress)));
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
        self.usage.retain(|_, usage| !usage.charge.quota.quota().is_idle(&usage.cell, now));
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

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::limit::{FixedWindow, Quota, Rate};
    use crate::store::redis::charge::Operation;
    use crate::store::{CellBudget, EmbeddedStore, QuotaSpec};

    fn quota(secs: u64) -> Arc<IssuedQuota> {
        let rate = Rate::new(100, Nanos::from_secs(secs)).ok();
        let quota = Quota::FixedWindow(FixedWindow::new(rate.unwrap_or(Rate::PER_SECOND)));
        let windows = crate::limit::WindowLengths::of([&quota]);
        let claim = QuotaSpec {
            quota,
            windows,
            budget: Arc::<CellBudget>::default(),
            denies_after_crash: false,
        };
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
        let charges = taken.iter().flat_map(|report| &report.charges);
        charges.map(|charge| charge.cell_charges[0].cost).collect()
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
            list.conclude(report.item, &[ReportOutcome::NotExecuted], at(105), &metrics);
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
            store.issue(
                QuotaSpec { quota, windows, budget: Arc::clone(&room), denies_after_crash: false },
                None,
            )
        };
        let (short, long) = (issue(10), issue(1_000));
        list.record(&spend(1, &short, 5), at(100), &metrics);
        list.record(&spend(1, &long, 7), at(101), &metrics);
        let last = list.record(&spend(1, &short, 2), at(102), &metrics).unwrap();
        assert!(list.refund(&last, 1, at(103)).unwrap().is_empty());
        let mut reported: Vec<(u64, u32)> = list
            .take(usize::MAX, at(104), |_| true)
            .iter()
            .map(|report| &report.charges[0].cell_charges[0])
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
        EmbeddedStore::default().issue(
            QuotaSpec {
                quota,
                windows,
                budget: Arc::<CellBudget>::default(),
                denies_after_crash: false,
            },
            None,
        )
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
                .flat_map(|report| &report.charges)
                .map(|charge| (charge.operation, charge.cell_charges[0].cost))
                .collect();
            (charges, taken)
        };
        // Twenty have refilled.
        let (first, taken) = take(at(102));
        assert_eq!(first, [(Operation::Report, 10), (Operation::Debit, 570)]);
        for report in taken {
            list.conclude(report.item, &[ReportOutcome::NotExecuted; 2], at(102), &metrics);
        }
        let (again, taken) = take(at(102));
        assert_eq!(again, first, "none was executed");
        for report in taken {
            let outcomes =
                [ReportOutcome::Charged { at: 1, units: 10 }, ReportOutcome::NotExecuted];
            list.conclude(report.item, &outcomes, at(102), &metrics);
        }
        assert_eq!(take(at(102)).0, [(Operation::Debit, 570)], "the debt was not executed");
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
