//! What the engine keeps by a limit's name, so that it survives reloads: counters and cell budgets.
//!
//! An entry is made on the first call and never removed: a limit that is removed and added again finds its counters
//! and the budget that its old cells are counted in.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::counters::LimitCounters;
use crate::store::CellBudget;

/// Counters and cell budgets by limit name.
#[derive(Default)]
pub(super) struct LimitRegistry {
    /// Counters are never reset while the process lives.
    counters: Mutex<HashMap<Arc<str>, Arc<LimitCounters>>>,
    budgets: Mutex<HashMap<Arc<str>, Arc<CellBudget>>>,
}

impl LimitRegistry {
    /// The cell budget of a limit.
    pub(super) fn obtain_budget(&self, limit: &Arc<str>) -> Arc<CellBudget> {
        let new = || Arc::new(CellBudget::of_limit(Arc::clone(limit)));
        Arc::clone(self.budgets.lock().entry(Arc::clone(limit)).or_insert_with(new))
    }

    /// The counters of a limit.
    pub(super) fn obtain_counters(&self, limit: &Arc<str>) -> Arc<LimitCounters> {
        Arc::clone(self.counters.lock().entry(Arc::clone(limit)).or_default())
    }
}
