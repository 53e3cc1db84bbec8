//! The estimate tier: a sketch that only over-counts says who is a suspect, a small table that
//! counts exactly says who is denied.
//!
//! ```text
//!   request ──► sketch (two slots, unweighted) ──► below the threshold, no cell: allowed
//!                                              └─► a suspect, or a cell ──► confirm table ──► verdict
//! ```
//!
//! A key that has a cell in the confirm table is judged there, whatever the sketch reads.
//!
//! Both have a fixed size whatever the number of keys. A collision in the sketch makes a suspect,
//! never a denial. A full table has no cell for some keys and lets them exceed their limit, by at
//! most [`EstimateLimit::confirm_error`], and never denies a key for what others sent.

mod confirm;
mod set;
mod spot;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Nanos, Now};
use crate::limit::{Rate, SketchSize, SlidingWindow, Verdict, WindowPair};
use crate::policy::KeyHash;

use confirm::{Attempt, Spending, Suspect};
pub use confirm::{CONFIRM_CELLS, ConfirmTable};
use window::{SlotReceipt, Window};

/// One limit of the estimate tier.
#[derive(Debug)]
pub struct EstimateLimit {
    quota: SlidingWindow,
    expect_per_second: u32,
    sketch: Arc<Window>,
    errors: Arc<Errors>,
}

/// A charge that can be taken back.
#[derive(Clone, Copy, Debug)]
pub struct EstimateReceipt {
    slot: SlotReceipt,
    /// When it was charged (wall time), for the cell's window.
    at: Nanos,
}

/// The largest errors of the present window and of the one before: what keys sent that no cell
/// counts, and what keys could send unwatched. Turned by the housekeeping; late, it only shows too
/// much.
#[derive(Debug, Default)]
struct Errors {
    window: AtomicU64,
    current: AtomicU64,
    previous: AtomicU64,
}

impl Errors {
    /// Written only when it grows, so that the request path seldom does more than read.
    fn note(&self, error: u64) {
        if self.current.load(Ordering::Relaxed) < error {
            self.current.fetch_max(error, Ordering::Relaxed);
        }
    }

    fn rotate(&self, window: u64) {
        let before = self.window.swap(window, Ordering::Relaxed);
        if before < window {
            let ended = self.current.swap(0, Ordering::Relaxed);
            // Also after a gap: a late turn has left errors of the window before in it.
            self.previous.store(ended, Ordering::Relaxed);
        }
    }

    fn largest(&self) -> u64 {
        self.current.load(Ordering::Relaxed).max(self.previous.load(Ordering::Relaxed))
    }
}

impl EstimateLimit {
    /// A limit that nobody has spent from. `expect_per_second`: requests of all keys together.
    pub fn new(rate: Rate, expect_per_second: u32, now: Now) -> Self {
        let size = SketchSize::new(rate, expect_per_second);
        Self {
            quota: SlidingWindow::new(rate),
            expect_per_second,
            sketch: Arc::new(Window::new(size, rate.period(), now)),
            errors: Arc::default(),
        }
    }

    /// The limit that a reload puts in the place of `before`. Where window and size are the same
    /// the sketch goes on; otherwise it starts afresh, and the cells of the confirm table, which
    /// know their own quota, are converted when they are next met.
    pub fn after_reload(before: &Self, rate: Rate, expect_per_second: u32, now: Now) -> Self {
        let same = before.sketch.size() == SketchSize::new(rate, expect_per_second)
            && before.rate().period() == rate.period();
        if !same {
            return Self::new(rate, expect_per_second, now);
        }
        Self {
            quota: SlidingWindow::new(rate),
            expect_per_second,
            sketch: Arc::clone(&before.sketch),
            errors: Arc::clone(&before.errors),
        }
    }

    /// Another rate of the same window, which counts in the same sketch.
    pub fn with_rate(&self, rate: Rate) -> Self {
        debug_assert_eq!(rate.period(), self.rate().period(), "a sketch has one window");
        Self {
            quota: SlidingWindow::new(rate),
            expect_per_second: self.expect_per_second,
            sketch: Arc::clone(&self.sketch),
            errors: Arc::clone(&self.errors),
        }
    }

    /// Judges and adds: what is refused is taken out of the sketch again and spends nothing.
    pub fn charge(
        &self,
        table: &ConfirmTable,
        key: KeyHash,
        cost: u32,
        now: Now,
    ) -> (Verdict, EstimateReceipt) {
        self.attempt(table, key, Spending::Charge(cost), now)
    }

    /// Adds, whether it fits or not. What exceeds the limit counts against what comes after it.
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
        let (sum, slot) = self.sketch.charge(key, cost);
        let threshold = self.threshold(table);
        let suspect = (sum >= threshold).then(|| Suspect {
            sent: saturated(sum.saturating_sub(u64::from(cost))),
            unwatched: saturated(threshold - 1),
        });
        if suspect.is_none() {
            self.errors.note(threshold - 1);
        }
        let attempt = Attempt { spot, quota: self.quota, spending, suspect, now: now.wall };
        let charged = table.charge(attempt);
        if let Some(unseen) = charged.unseen {
            self.errors.note(u64::from(unseen));
        }
        if !charged.verdict.allowed && matches!(spending, Spending::Charge(_)) {
            self.sketch.refund(slot);
        }
        (charged.verdict, EstimateReceipt { slot, at: now.wall })
    }

    /// Takes back an allowed charge: another limit refused the request, or the origin's answer refunds it.
    pub fn refund(&self, table: &ConfirmTable, receipt: EstimateReceipt) {
        self.sketch.refund(receipt.slot);
        table.refund(receipt.slot.key(), receipt.slot.cost(), receipt.at);
    }

    /// What a key is told that never sent anything.
    pub fn unused_verdict(&self, now: Now) -> Verdict {
        self.quota.judge(WindowPair::default(), 0, now.wall)
    }

    /// Where a key stands, charging nothing.
    pub fn judge(&self, table: &ConfirmTable, key: KeyHash, now: Now) -> Verdict {
        table.judge(key, self.quota, now.wall)
    }

    /// Turns the sketch when its window is over. Off the request path: it makes a new slot.
    pub fn rotate(&self, now: Now) {
        self.sketch.rotate(now);
        self.errors.rotate(now.wall.get() / self.rate().period().get());
    }

    /// Units per window.
    pub const fn rate(&self) -> Rate {
        self.quota.rate()
    }

    /// What the sketch was made for.
    pub const fn expect_per_second(&self) -> u32 {
        self.expect_per_second
    }

    /// Whether two generations of a limit count in the same sketch.
    pub fn shares_sketch_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.sketch, &other.sketch)
    }

    /// What a key that sent nothing would read in the sketch now.
    pub fn noise(&self) -> u64 {
        self.sketch.noise()
    }

    /// What the sketch reads for a key over both slots: never less than what it was charged there.
    pub fn sum(&self, key: KeyHash) -> u64 {
        self.sketch.sum(key)
    }

    /// How far a key can exceed this limit in the present window or the one before: what it may
    /// send before it is watched, or what it sent while a full table had no cell for it (as the
    /// sketch reads it, which is never too little), whichever is more.
    pub fn confirm_error(&self, table: &ConfirmTable) -> u64 {
        // At a threshold of 1 the very first request is counted: the error is none.
        self.errors.largest().max(self.threshold(table) - 1)
    }

    /// Memory of the sketch.
    pub fn bytes(&self) -> usize {
        self.sketch.size().bytes()
    }

    /// The sum at which a key is watched. At most the limit itself, so that no key gets further
    /// than twice its limit unwatched, however full the table is.
    fn threshold(&self, table: &ConfirmTable) -> u64 {
        table.threshold().min(u64::from(self.rate().count())).max(1)
    }
}

fn saturated(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
