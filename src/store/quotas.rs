//! Quotas that cells can be written under, by number.
//!
//! A cell outlives the configuration that wrote it, so it names its quota by a number, and
//! whoever meets it under another quota converts it first. Numbers of quotas that no cell and no
//! generation uses any more are given out again, so reloads do not make the list grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::CellBudget;
use super::embedded::weight_of;
use crate::clock::{Nanos, Now};
use crate::limit::{Quota, WindowLengths};

/// A quota that was given a number.
#[derive(Debug)]
pub struct IssuedQuota {
    pub(super) number: u32,
    pub(super) quota: Quota,
    /// The window lengths of all variants of its limit.
    pub(super) windows: WindowLengths,
    pub(super) budget: Arc<CellBudget>,
    /// What a new cell costs of `max_keys`, with its first charge.
    pub(super) new_weight: usize,
    /// Cells that name this number.
    pub(super) cells: AtomicUsize,
}

/// What a generation asks of the store for one limit.
#[derive(Clone, Debug)]
pub struct QuotaSpec {
    /// The quota.
    pub quota: Quota,
    /// The window lengths of all variants of the limit.
    pub windows: WindowLengths,
    /// The limit's room; the same for every quota the limit ever has.
    pub budget: Arc<CellBudget>,
}

/// All quotas in use, at the place of their number.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    list: ArcSwap<Vec<Arc<IssuedQuota>>>,
    /// Held while the list changes; readers never wait.
    changing: Mutex<()>,
}

impl Quotas {
    /// Gives a number to a quota. One that is the same as a quota of the same room in use keeps
    /// its number, so that an unchanged limit converts nothing.
    pub(super) fn issue(
        &self,
        claim: QuotaSpec,
        previous: Option<&Arc<IssuedQuota>>,
    ) -> Arc<IssuedQuota> {
        if let Some(previous) = previous
            && previous.quota == claim.quota
            && previous.windows == claim.windows
            && Arc::ptr_eq(&previous.budget, &claim.budget)
        {
            return Arc::clone(previous);
        }
        let _changing = self.changing.lock();
        let mut list = Vec::clone(&self.list.load());
        // Two hold a quota that nobody uses: this copy of the list and the published one.
        let free = list.iter().position(|issued| {
            Arc::strong_count(issued) <= 2 && issued.cells.load(Ordering::Acquire) == 0
        });
        let number = free.unwrap_or(list.len());
        let issued = Arc::new(IssuedQuota {
            number: u32::try_from(number).unwrap_or(u32::MAX),
            new_weight: new_weight(&claim),
            quota: claim.quota,
            windows: claim.windows,
            budget: claim.budget,
            cells: AtomicUsize::new(0),
        });
        match free {
            Some(place) => list[place] = Arc::clone(&issued),
            None => list.push(Arc::clone(&issued)),
        }
        self.list.store(Arc::new(list));
        issued
    }

    /// All quotas, for looking up numbers.
    pub(super) fn all(&self) -> arc_swap::Guard<Arc<Vec<Arc<IssuedQuota>>>> {
        self.list.load()
    }
}

fn new_weight(claim: &QuotaSpec) -> usize {
    // Of any instant: how much a cell takes depends on none.
    let now = Now { mono: Nanos::ZERO, wall: Nanos::ZERO };
    let cell = claim.quota.empty_cell_for(&claim.windows, now);
    weight_of(cell.heap_bytes_after_charge(now))
}

impl IssuedQuota {
    /// Its number: of two quotas in use no two have the same.
    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    /// The quota.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// The window lengths of all variants of its limit.
    pub const fn windows(&self) -> &WindowLengths {
        &self.windows
    }

    /// The limit's room.
    pub fn budget(&self) -> &Arc<CellBudget> {
        &self.budget
    }
}
