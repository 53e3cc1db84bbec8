//! The estimate tier: a sketch that only over-counts says who is a suspect, a small table that
//! counts exactly says who is denied.
//!
//! ```text
//!   request ──► sketch (two slots, unweighted) ──► below the threshold: certain, allowed
//!                                              └─► a suspect ──► confirm table ──► verdict
//! ```
//!
//! Both have a fixed size whatever the number of keys. A collision in the sketch makes a suspect,
//! never a denial; a full table lets a key exceed its limit by a bounded number
//! ([`EstimateLimit::confirm_error`]), and never denies a key for what others sent.

mod confirm;
mod window;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::{Nanos, Now};
use crate::limit::{Rate, SketchSize, SlidingWindow, Verdict};
use crate::policy::KeyHash;

pub use confirm::{CONFIRM_CELLS, ConfirmTable};
use window::{SlotReceipt, Window};

/// One limit of the estimate tier.
#[derive(Debug)]
pub struct EstimateLimit {
    quota: SlidingWindow,
    expect_per_second: u32,
    sketch: Arc<Window>,
    handed_out: Arc<Mutex<HandedOut>>,
}

/// A charge that can be taken back.
#[derive(Clone, Copy, Debug)]
pub struct Receipt {
    slot: SlotReceipt,
    /// When it was charged (wall time), for the cell's window.
    at: Nanos,
}

/// The largest uncertainty that newcomers inherited, by window.
#[derive(Debug, Default)]
struct HandedOut {
    window: u64,
    current: u32,
    previous: u32,
}

impl HandedOut {
    fn turn(&mut self, window: u64) {
        match window.checked_sub(self.window) {
            None | Some(0) => {}
            Some(1) => *self = Self { window, current: 0, previous: self.current },
            Some(_) => *self = Self { window, current: 0, previous: 0 },
        }
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
            handed_out: Arc::default(),
        }
    }

    /// The limit that a reload puts in the place of `before`. Where window and size are the same
    /// the sketch goes on; otherwise it starts afresh, and the cells of the confirm table, which
    /// know their own quota, are converted when they are next met.
    pub fn succeed(before: &Self, rate: Rate, expect_per_second: u32, now: Now) -> Self {
        let same = before.sketch.size() == SketchSize::new(rate, expect_per_second)
            && before.rate().period() == rate.period();
        if !same {
            return Self::new(rate, expect_per_second, now);
        }
        Self {
            quota: SlidingWindow::new(rate),
            expect_per_second,
            sketch: Arc::clone(&before.sketch),
            handed_out: Arc::clone(&before.handed_out),
        }
    }

    /// Judges and adds: what is refused is taken out of the sketch again and spends nothing.
    pub fn charge(
        &self,
        table: &ConfirmTable,
        key: KeyHash,
        cost: u32,
        now: Now,
    ) -> (Verdict, Receipt) {
        let (sum, slot) = self.sketch.charge(key, cost);
        let suspect = sum >= self.threshold(table);
        let charged = table.charge(key, self.quota, cost, suspect, now.wall);
        if let Some(inherited) = charged.inherited {
            self.note(inherited, now);
        }
        if !charged.verdict.allowed {
            self.sketch.give_back(slot);
        }
        (charged.verdict, Receipt { slot, at: now.wall })
    }

    /// Takes back an allowed charge, because another limit refused the request.
    pub fn give_back(&self, table: &ConfirmTable, receipt: Receipt) {
        self.sketch.give_back(receipt.slot);
        table.give_back(receipt.slot.key(), receipt.slot.cost(), receipt.at);
    }

    /// Where a key stands, charging nothing.
    pub fn judge(&self, table: &ConfirmTable, key: KeyHash, now: Now) -> Verdict {
        table.judge(key, self.quota, now.wall)
    }

    /// Turns the sketch when its window is over. Off the request path: it makes a new slot.
    pub fn turn(&self, now: Now) {
        self.sketch.turn(now);
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

    /// How far a key can exceed this limit in the present window: what it may send before it is
    /// watched, or what a newcomer to a full table was not charged for, whichever is more.
    pub fn confirm_error(&self, table: &ConfirmTable, now: Now) -> u64 {
        let mut handed_out = self.handed_out.lock();
        handed_out.turn(now.wall.get() / self.rate().period().get());
        let inherited = u64::from(handed_out.current.max(handed_out.previous));
        // At a threshold of 1 the very first request is counted: the error is none.
        inherited.max(self.threshold(table) - 1)
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

    fn note(&self, inherited: u32, now: Now) {
        let mut handed_out = self.handed_out.lock();
        handed_out.turn(now.wall.get() / self.rate().period().get());
        handed_out.current = handed_out.current.max(inherited);
    }
}
