//! How many cells a limit may hold.
//!
//! `max_keys` bounds the weight of all live cells. Half of it is divided into equal shares, one for each limit;
//! the other half is a pool that lends to any limit above its share. So a flood of keys under one limit fills
//! that limit's share and the pool, and never takes the share of another limit.
//!
//! This module counts weights. It does not see cells, and does not know how a cell is weighed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number and weight of one limit's cells, and their bounds.
#[derive(Debug, Default)]
pub struct CellBudget {
    /// The limit's name.
    limit: Arc<str>,
    /// The number of live cells, whatever their weight.
    cells: AtomicUsize,
    /// The weight of the live cells.
    weight: AtomicUsize,
    /// The largest weight that is allowed: the limit's own bound.
    max: AtomicUsize,
    /// Weight that is reserved for this limit alone.
    share: AtomicUsize,
}

/// A limit's budget with the limit's own bound.
#[derive(Clone, Copy, Debug)]
pub struct BoundedBudget<'b> {
    budget: &'b CellBudget,
    /// The limit's own `max_keys`. `None`: that of the store bounds it.
    max_keys: Option<usize>,
}

/// The weight that is lent to limits above their shares.
#[derive(Debug, Default)]
pub(super) struct BudgetPool {
    lent: AtomicUsize,
    size: AtomicUsize,
}

impl CellBudget {
    /// The budget of a limit that has no cells.
    pub fn of_limit(limit: Arc<str>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// The limit's name.
    pub fn limit(&self) -> &Arc<str> {
        &self.limit
    }

    /// The number of live cells.
    pub fn cells(&self) -> usize {
        self.cells.load(Ordering::Relaxed)
    }

    /// The weight of the live cells.
    pub fn weight(&self) -> usize {
        self.weight.load(Ordering::Relaxed)
    }

    /// This budget with the limit's own `max_keys`.
    pub const fn bounded(&self, max_keys: Option<usize>) -> BoundedBudget<'_> {
        BoundedBudget { budget: self, max_keys }
    }

    /// Reserves weight for a new cell. `false`: there is no room.
    #[must_use = "without room there is no cell"]
    pub(super) fn reserve_cell(&self, weight: usize, pool: &BudgetPool) -> bool {
        let has_room = self.reserve_weight(weight, pool);
        if has_room {
            self.cells.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Counts a new cell, with or without room.
    pub(super) fn add_cell(&self, weight: usize, pool: &BudgetPool) {
        self.cells.fetch_add(1, Ordering::Relaxed);
        self.reweigh(0, weight, pool);
    }

    /// Reserves weight for a cell that grows. `false`: there is no room.
    #[must_use = "without room the cell does not grow"]
    pub(super) fn reserve_weight(&self, weight: usize, pool: &BudgetPool) -> bool {
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

    /// Whether half of what this limit may hold is taken, of its own bound or of the pool.
    pub(super) fn is_half_full(&self, pool: &BudgetPool) -> bool {
        let half = |bound: &AtomicUsize| bound.load(Ordering::Relaxed) / 2;
        let weight = self.weight();
        weight >= half(&self.max)
            || (weight >= half(&self.share)
                && pool.lent.load(Ordering::Relaxed) >= half(&pool.size))
    }

    /// Releases `cells` cells with a total weight of `weight`.
    pub(super) fn drop_cells(&self, cells: usize, weight: usize, pool: &BudgetPool) {
        self.cells.fetch_sub(cells, Ordering::Relaxed);
        self.release_weight(weight, pool);
    }

    /// Corrects the weight of a cell from `before` to `after`. Growth is counted and never refused: it comes
    /// from units that are charged without a judgement, and from counters of other windows after a reload.
    pub(super) fn reweigh(&self, before: usize, after: usize, pool: &BudgetPool) {
        if after == before {
            // The usual case writes nothing, because all requests share these counters.
        } else if after > before {
            let share = self.share.load(Ordering::Relaxed);
            let old = self.weight.fetch_add(after - before, Ordering::Relaxed);
            let lent = (old + after - before).saturating_sub(share.max(old));
            pool.lent.fetch_add(lent, Ordering::Relaxed);
        } else {
            self.release_weight(before - after, pool);
        }
    }

    fn release_weight(&self, weight: usize, pool: &BudgetPool) {
        let share = self.share.load(Ordering::Relaxed);
        let old = self.weight.fetch_sub(weight, Ordering::Relaxed);
        let lent = old.saturating_sub(share.max(old.saturating_sub(weight)));
        pool.take_back(lent);
    }
}

impl BudgetPool {
    #[must_use = "weight that is not lent must not be used"]
    fn lend(&self, weight: usize) -> bool {
        let lent = self.lent.fetch_add(weight, Ordering::Relaxed) + weight;
        let has_room = lent <= self.size.load(Ordering::Relaxed);
        if !has_room {
            self.take_back(weight);
        }
        has_room
    }

    fn take_back(&self, weight: usize) {
        // Saturating, because a reload changes shares while cells come and go.
        let _ = self.lent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |lent| {
            Some(lent.saturating_sub(weight))
        });
    }

    /// Divides `max_keys` among all limits of a generation.
    pub(super) fn set_budgets(&self, max_keys: usize, budgets: &[BoundedBudget<'_>]) {
        let share = (max_keys / 2) / budgets.len().max(1);
        self.size.store(max_keys - share * budgets.len(), Ordering::Relaxed);
        for BoundedBudget { budget, max_keys: own_bound } in budgets {
            let max = own_bound.unwrap_or(max_keys).min(max_keys);
            budget.max.store(max, Ordering::Relaxed);
            budget.share.store(share.min(max), Ordering::Relaxed);
        }
        self.recount(budgets.iter().map(|bounded| bounded.budget));
    }

    /// Computes anew how much is lent. This corrects what a reload during traffic left behind.
    pub(super) fn recount<'b>(&self, budgets: impl Iterator<Item = &'b CellBudget>) {
        let lent = budgets
            .map(|budget| budget.weight().saturating_sub(budget.share.load(Ordering::Relaxed)))
            .sum();
        self.lent.store(lent, Ordering::Relaxed);
    }
}
