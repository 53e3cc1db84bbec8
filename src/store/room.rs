//! How many cells a limit may hold.
//!
//! `max_keys` is the weight of all live cells. Half of it is kept in equal shares for the limits,
//! the other half is lent to whoever asks first. So a flood of one limit's keys fills its own
//! share and what is lent, and never touches the share of another limit.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The cells of one limit: how many there are, and how many there may be.
#[derive(Debug, Default)]
pub struct Room {
    /// Cells that exist, whatever their weight.
    cells: AtomicUsize,
    /// Their weight.
    weight: AtomicUsize,
    /// The limit's own bound.
    most: AtomicUsize,
    /// Kept for this limit alone.
    share: AtomicUsize,
}

/// What is lent to all limits above their shares.
#[derive(Debug, Default)]
pub(super) struct Pool {
    lent: AtomicUsize,
    size: AtomicUsize,
}

impl Room {
    /// Cells that exist.
    pub fn cells(&self) -> usize {
        self.cells.load(Ordering::Relaxed)
    }

    /// Their weight.
    pub fn weight(&self) -> usize {
        self.weight.load(Ordering::Relaxed)
    }

    /// The most weight this limit may ever hold, if nobody else borrows.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Takes room for one more cell, or says that there is none.
    pub(super) fn take_cell(&self, pool: &Pool) -> bool {
        let before = self.weight.fetch_add(1, Ordering::Relaxed);
        if before >= self.most.load(Ordering::Relaxed) {
            self.weight.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        if before >= self.share.load(Ordering::Relaxed) && !pool.lend() {
            self.weight.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.cells.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Gives back so many cells of `weight` in all.
    pub(super) fn drop_cells(&self, cells: usize, weight: usize, pool: &Pool) {
        self.cells.fetch_sub(cells, Ordering::Relaxed);
        self.lighter(weight, pool);
    }

    /// A cell that exists grew or shrank. Growth is bounded by the cell's own algorithm (a log
    /// holds at most its limit), so it is counted and never refused.
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
    fn lend(&self) -> bool {
        if self.lent.fetch_add(1, Ordering::Relaxed) < self.size.load(Ordering::Relaxed) {
            return true;
        }
        self.give_back(1);
        false
    }

    fn give_back(&self, count: usize) {
        // Saturating: shares move at a reload, while cells come and go.
        let _ = self.lent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |lent| {
            Some(lent.saturating_sub(count))
        });
    }

    /// Shares out `max_keys` anew. `rooms`: every limit of the generation with its own bound.
    pub(super) fn share_out(&self, max_keys: usize, rooms: &[(&Room, Option<usize>)]) {
        let share = (max_keys / 2) / rooms.len().max(1);
        self.size.store(max_keys - share * rooms.len(), Ordering::Relaxed);
        for (room, most) in rooms {
            let most = most.unwrap_or(max_keys).min(max_keys);
            room.most.store(most, Ordering::Relaxed);
            room.share.store(share.min(most), Ordering::Relaxed);
        }
    }

    /// Counts again what is lent: corrects what a reload in the middle of traffic left behind.
    pub(super) fn recount<'r>(&self, rooms: impl Iterator<Item = &'r Room>) {
        let lent = rooms
            .map(|room| room.weight().saturating_sub(room.share.load(Ordering::Relaxed)))
            .sum();
        self.lent.store(lent, Ordering::Relaxed);
    }
}
