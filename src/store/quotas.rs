//! The quotas that cells may be written under, each with a number.
//!
//! A cell outlives the configuration that wrote it, so it names its quota by a number. When a charge under
//! another quota finds the cell, the cell is converted first. A number that no cell and no generation uses
//! any more is issued again, so reloads do not make the list grow. This module does not read cells.
//!
//! What always holds: two quotas in use never have the same number.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::budget::CellBudget;
use super::weight::weight_of;
use super::written_ahead::units_ahead;
use crate::clock::{Nanos, Now};
use crate::limit::{Quota, WindowLengths};

/// A quota with a number.
#[derive(Debug)]
pub struct IssuedQuota {
    pub(super) number: u32,
    pub(super) quota: Quota,
    /// The window lengths of all variants of its limit.
    pub(super) windows: WindowLengths,
    pub(super) budget: Arc<CellBudget>,
    /// What a key may spend before it is saved again; `None`: any number (`after_crash: allow`).
    pub(super) ahead: Option<NonZeroU32>,
    /// The weight of a new cell after its first charge.
    pub(super) new_weight: usize,
    /// How many cells name this number.
    pub(super) cells: AtomicUsize,
}

/// A quota that has no number yet.
#[derive(Clone, Debug)]
pub struct QuotaSpec {
    /// The quota.
    pub quota: Quota,
    /// The window lengths of all variants of the limit.
    pub windows: WindowLengths,
    /// The limit's budget. It stays the same for every quota that the limit ever has.
    pub budget: Arc<CellBudget>,
    /// Whether a crash must not admit more than the limit (`after_crash: deny`).
    pub denies_after_crash: bool,
}

/// All quotas in use; the index of a quota is its number.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    list: ArcSwap<Vec<Arc<IssuedQuota>>>,
    /// Held while the list changes. Readers never wait for it. How often it has changed.
    changing: Mutex<u64>,
    /// How many hold all quotas.
    holders: Arc<AtomicUsize>,
}

/// All quotas that cells may name. While they are held, no number is given to another quota.
#[derive(Debug)]
pub struct HeldQuotas {
    list: Arc<Vec<Arc<IssuedQuota>>>,
    version: u64,
    holders: Arc<AtomicUsize>,
}

impl HeldQuotas {
    /// The quotas; the index of a quota is its number.
    pub fn list(&self) -> &[Arc<IssuedQuota>] {
        &self.list
    }

    /// Another number for other quotas.
    pub const fn version(&self) -> u64 {
        self.version
    }
}

impl Drop for HeldQuotas {
    fn drop(&mut self) {
        self.holders.fetch_sub(1, Ordering::Release);
    }
}

impl Quotas {
    /// Gives a quota a number. A quota that equals `previous`, with the same budget, keeps its number, so an
    /// unchanged limit converts no cells.
    pub(super) fn issue(
        &self,
        spec: QuotaSpec,
        previous: Option<&Arc<IssuedQuota>>,
    ) -> Arc<IssuedQuota> {
        if let Some(previous) = previous.filter(|previous| previous.equals(&spec)) {
            return Arc::clone(previous);
        }
        self.issue_all([spec]).remove(0)
    }

    /// Gives quotas numbers, in their order. All of them take one change of the list, which is copied for it: a limit may have tens of
    /// thousands of overrides.
    pub(super) fn issue_all(
        &self,
        specs: impl IntoIterator<Item = QuotaSpec>,
    ) -> Vec<Arc<IssuedQuota>> {
        let mut changes = self.changing.lock();
        let mut list = Vec::clone(&self.list.load());
        // An unused quota has two references: this copy of the list, and the published list.
        let is_free = |issued: &Arc<IssuedQuota>| {
            Arc::strong_count(issued) <= 2 && issued.cells.load(Ordering::Acquire) == 0
        };
        let is_held = self.holders.load(Ordering::Acquire) > 0;
        // Numbers before this one are in use, or were given just now.
        let mut searched = if is_held { list.len() } else { 0 };
        let issue = |spec| {
            let free = list[searched..].iter().position(is_free);
            let number = free.map_or(list.len(), |passed| searched + passed);
            let issued = Arc::new(IssuedQuota::new(spec, number));
            match free {
                Some(_) => list[number] = Arc::clone(&issued),
                None => list.push(Arc::clone(&issued)),
            }
            searched = number + 1;
            issued
        };
        let issued = specs.into_iter().map(issue).collect();
        self.list.store(Arc::new(list));
        *changes += 1;
        issued
    }

    /// All quotas, held.
    pub(super) fn hold(&self) -> HeldQuotas {
        let changes = self.changing.lock();
        self.holders.fetch_add(1, Ordering::Acquire);
        let (list, holders) = (self.list.load_full(), Arc::clone(&self.holders));
        HeldQuotas { list, version: *changes, holders }
    }

    /// All quotas, for finding one by its number.
    pub(super) fn list(&self) -> arc_swap::Guard<Arc<Vec<Arc<IssuedQuota>>>> {
        self.list.load()
    }
}

impl IssuedQuota {
    fn new(spec: QuotaSpec, number: usize) -> Self {
        let QuotaSpec { quota, windows, budget, denies_after_crash } = spec;
        // A cell takes the same memory at any time.
        let now = Now { mono: Nanos::ZERO, wall: Nanos::ZERO };
        let heap_bytes = quota.empty_cell_for(&windows, now).heap_bytes_after_charge(now);
        Self {
            number: u32::try_from(number).unwrap_or(u32::MAX),
            quota,
            windows,
            budget,
            ahead: denies_after_crash.then(|| units_ahead(quota.limit())),
            new_weight: weight_of(heap_bytes),
            cells: AtomicUsize::new(0),
        }
    }

    /// Whether it is what this would become.
    pub fn equals(&self, spec: &QuotaSpec) -> bool {
        self.quota == spec.quota
            && self.windows == spec.windows
            && Arc::ptr_eq(&self.budget, &spec.budget)
            && self.denies_after_crash() == spec.denies_after_crash
    }

    /// Its number.
    pub const fn number(&self) -> u32 {
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

    /// Whether a crash must not admit more than the limit.
    pub const fn denies_after_crash(&self) -> bool {
        self.ahead.is_some()
    }

    /// The limit's budget.
    pub fn budget(&self) -> &Arc<CellBudget> {
        &self.budget
    }

    /// Whether this quota can read a cell that `writer` wrote, without converting it.
    pub(super) fn can_read(&self, writer: &Self) -> bool {
        self.quota.can_read(&writer.quota) && self.windows == writer.windows
    }
}

/// The budgets of these quotas, without repetitions.
pub(super) fn budgets_of(quotas: &[Arc<IssuedQuota>]) -> Vec<&CellBudget> {
    let mut budgets: Vec<&Arc<CellBudget>> = quotas.iter().map(|issued| &issued.budget).collect();
    budgets.sort_by_key(|budget| Arc::as_ptr(budget));
    budgets.dedup_by_key(|budget| Arc::as_ptr(budget));
    budgets.into_iter().map(|budget| &**budget).collect()
}
