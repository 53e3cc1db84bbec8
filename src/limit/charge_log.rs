//! The cell of a sliding log: the charges of one key with their times.
//!
//! The log does not know its limit: several variants share it, and each sums over its own window. It keeps
//! charges for the longest of their windows. Times never descend.

use std::collections::VecDeque;

use super::retention::retention_secs;
use crate::clock::Nanos;

/// The largest limit of a log. A key keeps at most `MAX_LOG_CHARGES` (12,500) charges, 200 KB.
pub const MAX_LOG_LIMIT: u32 = 10_000;

/// The largest number of charges that a log keeps. Above it, the two oldest are joined at the later of both
/// times. No variant admits more than [`MAX_LOG_LIMIT`] units. So a joined charge still counts only after a
/// quarter of a full log was refunded, and then for too long rather than too short.
const MAX_LOG_CHARGES: usize = MAX_LOG_LIMIT as usize * 5 / 4;

/// A log grows by at least this many charges, and by a quarter.
const MIN_GROWTH: usize = 4;

/// Bytes of a log of this many charges, with its typical spare room.
pub const fn log_bytes(charges: usize) -> usize {
    let room = if charges / 4 > MIN_GROWTH { charges / 8 } else { MIN_GROWTH };
    size_of::<ChargeLog>() + (charges + room) * size_of::<LoggedCharge>()
}

/// The admitted charges of one key, oldest first. Two logs are equal if their charges are equal.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct ChargeLog {
    charges: VecDeque<LoggedCharge>,
    /// How long a charge is kept.
    keep: Nanos,
    /// When a charge last needed `keep` to be this long (monotonic). A generation with shorter windows keeps
    /// charges this long for a while, since a generation with longer ones may still read them.
    needed: Nanos,
}

/// Charges of one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct LoggedCharge {
    /// Monotonic time.
    pub(super) at: Nanos,
    pub(super) cost: u32,
}

impl PartialEq for ChargeLog {
    fn eq(&self, other: &Self) -> bool {
        self.charges == other.charges
    }
}

impl Eq for ChargeLog {}

impl ChargeLog {
    /// An empty log. `keep`: the longest window of the limit's variants.
    pub(super) fn empty(keep: Nanos, now: Nanos) -> Self {
        Self { keep, needed: now, ..Self::default() }
    }

    /// A log of these charges, oldest first, that another store keeps.
    pub(super) fn from_charges(charges: impl IntoIterator<Item = LoggedCharge>) -> Self {
        let charges = charges.into_iter().filter(|charge| charge.cost > 0).collect();
        Self { charges, ..Self::default() }
    }

    /// Whether a log that was read from bytes keeps the bounds of this file.
    #[cfg(feature = "bin")]
    pub(super) fn is_sound(&self) -> bool {
        let is_ascending = |at: usize| self.charges[at].at < self.charges[at + 1].at;
        self.charges.len() <= MAX_LOG_CHARGES
            && (0..self.charges.len().saturating_sub(1)).all(is_ascending)
    }

    /// How many charges are kept.
    pub fn len(&self) -> usize {
        self.charges.len()
    }

    /// Whether no charge is kept.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// The newest charge.
    pub(super) fn newest(&self) -> Option<LoggedCharge> {
        self.charges.back().copied()
    }

    /// The charges for which `is_live` holds, oldest first. It must hold for all charges after one for which it
    /// holds.
    pub(super) fn live(
        &self,
        is_live: impl Fn(&LoggedCharge) -> bool,
    ) -> impl Iterator<Item = LoggedCharge> {
        let first = match self.charges.front() {
            Some(oldest) if !is_live(oldest) => {
                self.charges.partition_point(|charge| !is_live(charge))
            }
            Some(_) | None => 0,
        };
        self.charges.range(first..).copied()
    }

    /// Charges `cost` at `now`, under a variant with a window of this length.
    pub(super) fn charge(&mut self, window: Nanos, cost: u32, now: Nanos) {
        if window >= self.keep {
            (self.keep, self.needed) = (window, now);
        }
        self.drop_expired(now);
        if cost == 0 {
            return;
        }
        // Where the clock of this thread was read earlier than that of the newest charge, the time stays that
        // of the newest.
        let at = self.newest().map_or(now, |newest| now.max(newest.at));
        match self.charges.back_mut() {
            Some(newest) if newest.at == at => newest.cost = newest.cost.saturating_add(cost),
            _ => self.push(LoggedCharge { at, cost }),
        }
    }

    /// Takes back up to `cost` units that are logged at exactly `charged`. What the log has dropped cannot be
    /// refunded, and no other units are taken for it.
    pub(super) fn refund(&mut self, cost: u32, charged: Nanos) {
        let Ok(index) = self.charges.binary_search_by_key(&charged, |charge| charge.at) else {
            return;
        };
        let logged = &mut self.charges[index];
        logged.cost = logged.cost.saturating_sub(cost);
        if logged.cost == 0 {
            self.charges.remove(index);
        }
    }

    /// Adapts to the windows of a generation: keeps charges for the longest of them, or for longer if a charge
    /// has needed that within its retention.
    pub(super) fn keep_for(&mut self, longest: Nanos, now: Nanos) {
        let unused = now.secs().saturating_sub(self.needed.secs());
        if longest >= self.keep || unused > retention_secs(self.keep) {
            (self.keep, self.needed) = (longest, now);
        }
    }

    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        self.charges.back().is_none_or(|newest| self.is_expired(newest, now))
    }

    /// Drops charges that have left every window, and memory that a burst has left behind.
    pub(super) fn shrink(&mut self, now: Nanos) {
        self.drop_expired(now);
        if self.charges.capacity() > 2 * (self.charges.len() + MIN_GROWTH) {
            self.charges.shrink_to(self.charges.len() + MIN_GROWTH);
        }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.charges.capacity() * size_of::<LoggedCharge>()
    }

    /// Bytes on the heap after one more charge at `now`.
    pub(super) fn heap_bytes_after_charge(&self, now: Nanos) -> usize {
        let is_full = self.charges.len() == self.charges.capacity();
        let keeps_oldest = self.charges.front().is_none_or(|oldest| !self.is_expired(oldest, now));
        let growth = if is_full && keeps_oldest { self.growth() } else { 0 };
        self.heap_bytes() + growth * size_of::<LoggedCharge>()
    }

    /// Makes room for one more charge without more memory.
    pub(super) fn make_room(&mut self, now: Nanos) {
        self.drop_expired(now);
        if self.charges.len() == self.charges.capacity() {
            self.join_oldest();
        }
    }

    /// By how many charges a full log grows.
    fn growth(&self) -> usize {
        let room = MAX_LOG_CHARGES.saturating_sub(self.charges.len());
        (self.charges.len() / 4).max(MIN_GROWTH).min(room)
    }

    fn is_expired(&self, charge: &LoggedCharge, now: Nanos) -> bool {
        charge.at.saturating_add(self.keep) <= now
    }

    fn drop_expired(&mut self, now: Nanos) {
        while self.charges.front().is_some_and(|oldest| self.is_expired(oldest, now)) {
            self.charges.pop_front();
        }
    }

    /// Joins the two oldest charges, at the later of both times.
    fn join_oldest(&mut self) {
        if self.charges.len() > 1
            && let Some(oldest) = self.charges.pop_front()
            && let Some(next) = self.charges.front_mut()
        {
            next.cost = next.cost.saturating_add(oldest.cost);
        }
    }

    fn push(&mut self, charge: LoggedCharge) {
        if self.charges.len() >= MAX_LOG_CHARGES {
            self.join_oldest();
        }
        if self.charges.len() == self.charges.capacity() {
            self.charges.reserve_exact(self.growth().max(1));
        }
        self.charges.push_back(charge);
    }
}
