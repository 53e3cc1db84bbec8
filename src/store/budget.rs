//! How many cells a limit may hold.
//!
//! `max_keys` is the weight of all live cells. Half of it is kept in equal shares for the limits,
//! the other half is lent to whoever asks first. So a flood of one limit's keys fills its own
//! share and what is lent, and never touches the share of another limit.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The cells of one limit: how many there are, and how many there may be.
#[derive(Debug, Default)]
pub struct CellBudget {
    /// Cells that exist, whatever their weight.
    cells: AtomicUsize,
    /// Their weight.
    weight: AtomicUsize,
    /// The limit's own bound.
    max: AtomicUsize,
    /// Kept for this limit alone.
    share: AtomicUsize,
}

/// A limit's budget with the limit's own bound.
#[derive(Clone, Copy, Debug)]
pub struct BoundedBudget<'b> {
    pub(super) budget: &'b CellBudget,
    /// The limit's `max_keys`; `None`: only the store's.
    max_keys: Option<usize>,
}

/// What is lent to all limits above their shares.
#[derive(Debug, Default)]
pub(super) struct Pool {
    lent: AtomicUsize,
    size: AtomicUsize,
}

impl CellBudget {
    /// Cells that exist.
    pub fn cells(&self) -> usize {
        self.cells.load(Ordering::Relaxed)
    }

    /// Their weight.
    pub fn weight(&self) -> usize {
        self.weight.load(Ordering::Relaxed)
    }

    /// The most weight this limit may ever hold, if nobody else borrows.
    pub fn max_weight(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// This budget with the limit's own `max_keys`.
    pub const fn bounded(&self, max_keys: Option<usize>) -> BoundedBudget<'_> {
        BoundedBudget { budget: self, max_keys }
    }

    /// Takes room for one more cell of a weight, or says that there is none.
    #[must_use = "without room there is no cell"]
    pub(super) fn take_cell(&self, weight: usize, pool: &Pool) -> bool {
        let has_room = self.take_weight(weight, pool);
        if has_room {
            self.cells.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// One more cell of a weight, whether there is room or not.
    pub(super) fn add_cell(&self, weight: usize, pool: &Pool) {
        self.cells.fetch_add(1, Ordering::Relaxed);
        self.reweigh(0, weight, pool);
    }

    /// Takes room for a cell that grows, or says that there is none.
    #[must_use = "without room the cell does not grow"]
    pub(super) fn take_weight(&self, weight: usize, pool: &Pool) -> bool {
        let before = self.weight.fetch_add(weight, Ordering::Relaxed);
        let after = before + weight;
        let borrowed = after.saturating_sub(self.share.load(Ordering::Relaxed).max(before));
        let has_room =
            after <= self.max.load(Ordering::Relaxed) && (borrowed == 0 || pool.lend(borrowed));
        if !has_room {
            self.weight.fetch_sub(weight, Ordering::Relaxed);
        }
        has_room
    }

    /// Gives back so many cells of `weight` in all.
    pub(super) fn drop_cells(&self, cells: usize, weight: usize, pool: &Pool) {
        self.cells.fetch_sub(cells, Ordering::Relaxed);
        self.lighter(weight, pool);
    }

    /// A cell's weight is another one than was taken for it. What it grew by is counted and not
    /// refused: units that are charged without asking, and counters of other windows after a reload.
    pub(super) fn reweigh(&self, before: usize, after: usize, pool: &Pool) {
        if after == before {
            // Nearly always: what all requests share is not written to.
        } else if after > before {
            let share = self.share.load(Ordering::Relaxed);
            let old = self.weight.fetch_add(after - before, Ordering::Relaxed);
            let lent = (old + after - before).saturating_sub(share.max(old));
            pool.lent.fetch_add(lent, Ordering::Relaxed);
        } else {
            self.lighter(before - after, pool);
        }
    }

    fn lighter(&self, by: usize, pool: &Pool) {
        let share = self.share.load(Ordering::Relaxed);
        let old = self.weight.fetch_sub(by, Ordering::Relaxed);
        let lent = old.saturating_sub(share.max(old.saturating_sub(by)));
        pool.give_back(lent);
    }
}

impl Pool {
    #[must_use = "what is not lent must not be used"]
    fn lend(&self, count: usize) -> bool {
        let lent = self.lent.fetch_add(count, Ordering::Relaxed) + count;
        let has_room = lent <= self.size.load(Ordering::Relaxed);
        if !has_room {
            self.give_back(count);
        }
        has_room
    }

    fn give_back(&self, count: usize) {
        // Saturating: shares move at a reload, while cells come and go.
        let _ = self.lent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |lent| {
            Some(lent.saturating_sub(count))
        });
    }

    /// Shares out `max_keys` anew. `rooms`: every limit of the generation with its own bound.
    pub(super) fn set_budgets(&self, max_keys: usize, budgets: &[BoundedBudget<'_>]) {
        let share = (max_keys / 2) / budgets.len().max(1);
        self.size.store(max_keys - share * budgets.len(), Ordering::Relaxed);
        for BoundedBudget { budget, max_keys: bound } in budgets {
            let max = bound.unwrap_or(max_keys).min(max_keys);
            budget.max.store(max, Ordering::Relaxed);
            budget.share.store(share.min(max), Ordering::Relaxed);
        }
    }

    /// Counts again what is lent: corrects what a reload in the middle of traffic left behind.
    pub(super) fn recount<'r>(&self, rooms: impl Iterator<Item = &'r CellBudget>) {
        let lent = rooms
            .map(|room| room.weight().saturating_sub(room.share.load(Ordering::Relaxed)))
            .sum();
        self.lent.store(lent, Ordering::Relaxed);
    }
}
