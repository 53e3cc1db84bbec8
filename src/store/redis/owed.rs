//! What this node admitted by itself while the store was away, to be told when it is back.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::smallvec;

use super::call::{Charge, Order, Spend};
use crate::clock::Now;
use crate::limit::{Cell, Receipt};
use crate::policy::KeyHash;
use crate::store::Issued;

/// Most keys that are remembered: what is above is not told, so that a flood during an outage
/// costs no memory.
const MOST: usize = 65_536;

/// Keys that were charged at home.
#[derive(Default)]
pub(super) struct Owed(Mutex<HashMap<KeyHash, Debt>>);

struct Debt {
    family: Option<KeyHash>,
    quota: Arc<Issued>,
    /// What was admitted, as a cell of its own: what has come back meanwhile is not owed.
    cell: Cell,
}

impl Owed {
    /// A charge was admitted at home.
    pub(super) fn add(&self, spend: &Spend, now: Now) {
        let mut debts = self.0.lock();
        if debts.len() >= MOST && !debts.contains_key(&spend.key) {
            return;
        }
        let quota = spend.quota.quota();
        let debt = debts.entry(spend.key).or_insert_with(|| Debt {
            family: spend.family,
            quota: Arc::clone(&spend.quota),
            cell: quota.fresh(),
        });
        if !Arc::ptr_eq(&debt.quota, &spend.quota) {
            let cell = std::mem::replace(&mut debt.cell, quota.fresh());
            debt.cell = quota.convert(spend.quota.windows(), debt.quota.quota(), cell, now);
            debt.quota = Arc::clone(&spend.quota);
        }
        quota.charge(&mut debt.cell, spend.cost, now);
    }

    /// A charge that was admitted at home is given back.
    pub(super) fn take_back(&self, key: KeyHash, units: u32, receipt: Receipt, now: Now) {
        if let Some(debt) = self.0.lock().get_mut(&key) {
            debt.quota.quota().give_back(&mut debt.cell, units, receipt, now);
        }
    }

    /// Takes everything that is owed now.
    pub(super) fn take(&self, now: Now) -> Vec<Charge> {
        let debts = std::mem::take(&mut *self.0.lock());
        let owed = debts.into_iter().filter_map(|(key, debt)| {
            let verdict = debt.quota.quota().judge(Some(&debt.cell), 0, now);
            let cost = verdict.limit.saturating_sub(verdict.remaining);
            let spend = Spend::of(key, debt.family, debt.quota, cost);
            (cost > 0).then(|| Charge { order: Order::Post, spends: smallvec![spend] })
        });
        owed.collect()
    }
}
