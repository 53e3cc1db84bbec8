//! Drops cells that have refilled: such a cell equals an absent one, so it holds no information.
//!
//! A sweep also returns memory that a cell does not need any more, such as what a burst has left in a log. It
//! never drops a cell that still counts units.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::accounting::CellAccounting;
use super::table::{CellEntry, Table};
use super::weight::weight;
use crate::clock::Now;

/// The cells of one quota that a sweep drops.
struct DroppedCells {
    quota: u32,
    cells: usize,
    weight: usize,
}

/// Sweeps a locked table, unlocks it, and returns how many cells it dropped.
pub(super) fn sweep_table(
    mut table: MutexGuard<'_, Table>,
    accounting: &CellAccounting,
    now: Now,
) -> usize {
    // Read under the lock: a number that a cell of this table names is not issued again before the cell is
    // dropped.
    let quotas = accounting.quotas.list();
    table.drop_ended_grants(now.mono);
    let quota_of = |entry: &CellEntry| quotas.get(entry.quota() as usize);
    table.for_each(|entry| {
        if entry.cell.heap_bytes() > 0
            && let Some(issued) = quota_of(entry)
        {
            let before = weight(&entry.cell);
            if issued.quota.tidy(&issued.windows, &mut entry.cell, now) {
                issued.budget.reweigh(before, weight(&entry.cell), &accounting.pool);
            }
        }
    });
    let mut dropped: SmallVec<[DroppedCells; 8]> = SmallVec::new();
    let count_dropped = |entry: &CellEntry| {
        let (quota, weight) = (entry.quota(), weight(&entry.cell));
        match dropped.iter_mut().find(|of_quota| of_quota.quota == quota) {
            Some(of_quota) => {
                of_quota.cells += 1;
                of_quota.weight += weight;
            }
            None => dropped.push(DroppedCells { quota, cells: 1, weight }),
        }
    };
    let is_idle = |entry: &CellEntry| {
        quota_of(entry).is_some_and(|issued| issued.quota.is_idle(&entry.cell, now))
    };
    table.sweep(is_idle, count_dropped);
    drop(table);
    // All processors write to these counters, so a sweep writes once for each quota.
    for DroppedCells { quota, cells, weight } in &dropped {
        if let Some(issued) = quotas.get(*quota as usize) {
            issued.budget.drop_cells(*cells, *weight, &accounting.pool);
            issued.cells.fetch_sub(*cells, Ordering::Release);
        }
    }
    dropped.iter().map(|of_quota| of_quota.cells).sum()
}
