//! One limit of the estimate tier: it asks the sketch first, then the confirm table.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::attempt::{ChargeAttempt, Spending, Suspect, judge_counts};
use super::confirm::ConfirmTable;
use super::fleet_view::FleetView;
use super::limit_number::LimitNumber;
use super::peak_error::PeakError;
use super::senders::Sender;
use super::sketch::{Sketch, SketchCharge, SketchReceipt};
use crate::clock::{Nanos, Now};
use crate::limit::{Rate, SketchSize, SlidingWindow, Verdict, WindowPair};
use crate::policy::KeyHash;

/// One limit of the estimate tier.
#[derive(Debug)]
pub struct EstimateLimit {
    quota: SlidingWindow,
    /// Tells its cells from those of other limits, for lists and for the exchange of a fleet.
    number: LimitNumber,
    expect_per_second: u32,
    sketch: Arc<Sketch>,
    errors: Arc<PeakError>,
    /// What other nodes have counted, if the limit counts over the fleet.
    fleet: Option<Arc<FleetView>>,
    /// The length of the windows before a reload, in nanoseconds, until its cells are converted. Zero: there is nothing to convert.
    converts_from: AtomicU64,
}

/// Proof of a charge, by which it can be refunded.
#[derive(Clone, Copy, Debug)]
pub struct EstimateReceipt {
    sketch: SketchReceipt,
    /// When it was charged (by the clock of the table), for the window of the cell.
    at: Nanos,
}

impl EstimateReceipt {
    /// The units that were charged.
    pub const fn cost(&self) -> u32 {
        self.sketch.cost()
    }
}

impl EstimateLimit {
    /// A limit under which nothing is spent. `expect_per_second`: requests per second of all keys together; the sketch
    /// is sized for them.
    pub fn new(rate: Rate, expect_per_second: u32, now: Now) -> Self {
        Self::numbered(LimitNumber::take(), rate, expect_per_second, now)
    }

    fn numbered(number: LimitNumber, rate: Rate, expect_per_second: u32, now: Now) -> Self {
        let size = SketchSize::new(rate, expect_per_second);
        Self {
            quota: SlidingWindow::new(rate),
            number,
            expect_per_second,
            sketch: Arc::new(Sketch::new(size, rate.period(), now)),
            errors: Arc::default(),
            fleet: None,
            converts_from: AtomicU64::new(0),
        }
    }

    /// The same limit, which counts over the fleet (with the counts of other nodes), or on this node alone (`None`).
    #[must_use]
    pub fn in_fleet(self, fleet: Option<Arc<FleetView>>) -> Self {
        Self { fleet, ..self }
    }

    /// What other nodes have counted, if the limit counts over the fleet.
    pub const fn fleet(&self) -> Option<&Arc<FleetView>> {
        self.fleet.as_ref()
    }

    /// The limit that replaces `before` after a reload. If the window and the size are unchanged, the sketch is kept.
    /// Otherwise it starts empty; the cells of the confirm table know their own quota and are converted by the next
    /// [`EstimateLimit::rotate`], or by a charge before it.
    pub fn after_reload(before: &Self, rate: Rate, expect_per_second: u32, now: Now) -> Self {
        let keeps_sketch = before.sketch.size() == SketchSize::new(rate, expect_per_second)
            && before.rate().period() == rate.period();
        if !keeps_sketch {
            let fresh = Self::numbered(before.number.clone(), rate, expect_per_second, now);
            let old = before.rate().period();
            let converts_from = if old == rate.period() { 0 } else { old.get() };
            let fresh = Self { converts_from: AtomicU64::new(converts_from), ..fresh };
            return fresh.in_fleet(before.fleet.clone());
        }
        Self {
            quota: SlidingWindow::new(rate),
            number: before.number.clone(),
            expect_per_second,
            sketch: Arc::clone(&before.sketch),
            errors: Arc::clone(&before.errors),
            fleet: before.fleet.clone(),
            converts_from: AtomicU64::new(before.converts_from.load(Ordering::Relaxed)),
        }
    }

    /// The same limit with another rate, which has the same window and counts in the same sketch.
    pub fn with_rate(&self, rate: Rate) -> Self {
        debug_assert_eq!(rate.period(), self.rate().period(), "a sketch has one window");
        Self {
            quota: SlidingWindow::new(rate),
            number: self.number.clone(),
            expect_per_second: self.expect_per_second,
            sketch: Arc::clone(&self.sketch),
            errors: Arc::clone(&self.errors),
            fleet: self.fleet.clone(),
            // The limit itself does it.
            converts_from: AtomicU64::new(0),
        }
    }

    /// Judges a charge, and adds it if it is allowed. A refused charge is taken out of the sketch again and spends
    /// nothing.
    pub fn charge(
        &self,
        table: &ConfirmTable,
        key: KeyHash,
        cost: u32,
        now: Now,
    ) -> (Verdict, EstimateReceipt) {
        self.attempt(table, key, Spending::Charge(cost), now)
    }

    /// Charges, whether the cost fits or not. Units above the limit count against later charges.
    pub fn debit(
        &self,
        table: &ConfirmTable,
        key: KeyHash,
        cost: u32,
        now: Now,
    ) -> EstimateReceipt {
        let (_, receipt) = self.attempt(table, key, Spending::Debit(cost), now);
        receipt
    }

    fn attempt(
        &self,
        table: &ConfirmTable,
        key: KeyHash,
        spending: Spending,
        now: Now,
    ) -> (Verdict, EstimateReceipt) {
        let cost = spending.cost();
        let spot = table.locate(key);
        let SketchCharge { sum, receipt: in_sketch } = self.sketch.charge(key, cost);
        let threshold = self.threshold(table);
        // A key that other nodes counted is counted here from its first unit.
        let elsewhere = self.fleet.as_ref().and_then(|fleet| fleet.of_key(key));
        let suspect = (sum >= threshold || elsewhere.is_some()).then(|| Suspect {
            sent: saturated(sum.saturating_sub(u64::from(cost))),
            unwatched: saturated(threshold - 1),
        });
        if suspect.is_none() {
            self.errors.record(threshold - 1);
        }
        let at = table.clock().read(now);
        let attempt = ChargeAttempt {
            spot,
            quota: self.quota,
            limit: self.number(),
            spending,
            suspect,
            elsewhere,
            at,
        };
        let result = table.charge(attempt);
        if let Some(uncounted) = result.uncounted {
            self.errors.record(u64::from(uncounted));
        }
        if !result.verdict.allowed && matches!(spending, Spending::Charge(_)) {
            self.sketch.refund(in_sketch);
        }
        (result.verdict, EstimateReceipt { sketch: in_sketch, at: at.earliest })
    }

    /// Takes back an allowed charge, because another limit refused the request or the origin's response refunds it.
    pub fn refund(&self, table: &ConfirmTable, receipt: EstimateReceipt) {
        self.sketch.refund(receipt.sketch);
        table.refund(receipt.sketch.key(), receipt.sketch.cost(), receipt.at);
    }

    /// The number by which lists tell its cells from others, in this process.
    pub const fn number(&self) -> u8 {
        self.number.get()
    }

    /// The verdict for a key that never sent anything.
    pub fn unused_verdict(&self, now: Now) -> Verdict {
        self.quota.judge(WindowPair::default(), 0, now.wall)
    }

    /// The verdict on a charge of zero: the key's present numbers.
    pub fn judge(&self, table: &ConfirmTable, key: KeyHash, now: Now) -> Verdict {
        let at = table.clock().read(now);
        let own = table.counted(key, self.quota, at.earliest);
        let elsewhere = self.fleet.as_ref().and_then(|fleet| fleet.of_key(key));
        judge_counts(self.quota, own, elsewhere, 0, at)
    }

    /// The keys with cells that send most now, those that tried to send most first. It locks every set of the table in
    /// turn: not for the request path.
    pub fn heaviest(&self, table: &ConfirmTable, count: usize, now: Now) -> Vec<Sender> {
        let now = table.clock().read(now).earliest;
        let mut senders = table.senders(self.number(), self.quota, now);
        senders.sort_by_key(|sender| std::cmp::Reverse((sender.sent, sender.spent)));
        senders.truncate(count);
        senders
    }

    /// Begins a new window when the present one is over, and converts cells after a reload: a key that comes much later is not
    /// charged then what it sent before. It allocates a slot, so housekeeping calls it, not a request.
    pub fn rotate(&self, table: &ConfirmTable, now: Now) {
        // The grid of the cells, which are judged by the sketch's windows.
        let now = table.clock().read(now).earliest;
        let old = self.converts_from.swap(0, Ordering::Relaxed);
        if old > 0 {
            table.convert(self.number(), Nanos::new(old), self.quota, now);
        }
        self.sketch.rotate(now);
        self.errors.rotate(now.get() / self.rate().period().get());
    }

    /// Converts the cells of this limit that have windows of the length `from`.
    #[cfg(feature = "bin")]
    pub(crate) fn convert(&self, table: &ConfirmTable, from: Nanos, now: Now) {
        if from != self.rate().period() {
            table.convert(self.number(), from, self.quota, table.clock().read(now).earliest);
        }
    }

    /// Units per window.
    pub const fn rate(&self) -> Rate {
        self.quota.rate()
    }

    /// Requests per second of all keys together, for which the sketch is sized.
    pub const fn expect_per_second(&self) -> u32 {
        self.expect_per_second
    }

    /// Whether two generations of a limit count in the same sketch.
    pub fn shares_sketch_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.sketch, &other.sketch)
    }

    /// Units that the sketch reads now, on average, for a key that sent nothing.
    pub fn noise(&self) -> u64 {
        self.sketch.noise()
    }

    /// Units that the sketch reads for a key over both slots: at least what the key was charged.
    pub fn sum(&self, key: KeyHash) -> u64 {
        self.sketch.sum(key)
    }

    /// The largest number of units by which a key can exceed this limit, in the present window or the one before: what
    /// it may send before it is watched, or what it sent while a full table had no cell for it, whichever is more. The
    /// latter is as the sketch reads it, which is never too little.
    pub fn confirm_error(&self, table: &ConfirmTable) -> u64 {
        // At a threshold of 1 the first request is counted already, so the error is zero.
        self.errors.largest().max(self.threshold(table) - 1)
    }

    /// Bytes of the sketch.
    pub fn bytes(&self) -> usize {
        self.sketch.size().bytes()
    }

    /// The sum in the sketch from which a key is watched. At most the limit, so that no key can send more than twice
    /// its limit unwatched, however full the table is.
    fn threshold(&self, table: &ConfirmTable) -> u64 {
        table.threshold().min(u64::from(self.rate().count())).max(1)
    }
}

fn saturated(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_before_a_reload_to_shorter_windows_counts_from_the_reload() {
        let at = |seconds| Now { mono: Nanos::from_secs(seconds), wall: Nanos::from_secs(seconds) };
        let rate = |count, seconds| Rate::new(count, Nanos::from_secs(seconds)).unwrap();
        let (table, key) = (ConfirmTable::new(64), KeyHash { high: 1, low: 2 });
        let hour = EstimateLimit::new(rate(60, 3_600), 100, at(7_200));
        for _ in 0..50 {
            assert!(hour.charge(&table, key, 1, at(7_200)).0.allowed);
        }
        let reloaded = EstimateLimit::after_reload(&hour, rate(20, 5), 100, at(7_200));
        // A second reload, before housekeeping comes.
        let short = EstimateLimit::after_reload(&reloaded, rate(21, 5), 100, at(7_200));
        short.rotate(&table, at(7_200));
        assert!(!short.charge(&table, key, 1, at(7_201)).0.allowed, "it is known");
        let verdict = short.judge(&table, key, at(7_240));
        assert_eq!((verdict.allowed, verdict.remaining), (true, 21), "it sent nothing for 39 s");
        // Another limit, whose cell has another number, is left alone.
        let other = EstimateLimit::new(rate(60, 3_600), 100, at(7_200));
        let its = KeyHash { high: 3, low: 4 };
        let _charged = other.charge(&table, its, 9, at(7_240));
        EstimateLimit::after_reload(&hour, rate(20, 5), 100, at(7_240)).rotate(&table, at(7_240));
        assert_eq!(other.judge(&table, its, at(7_240)).remaining, 51);
    }
}
