//! Which charges share a call.
//!
//! It knows what a call costs the server, and not how it is written or which charges wait. A call takes the server less
//! than a millisecond, because the server does nothing else meanwhile. Only a single charge may exceed that: an empty
//! call takes any charge, however many limits its route has.

use smallvec::SmallVec;

use super::cell::{CallCell, ScriptAlgorithm, bucket_rates};
use super::run::{Run, RunEntry};
use crate::limit::{Quota, WindowLengths};
use crate::store::redis::charge::{CellCharge, Operation, StoreCharge};

/// Maximum charges of a call: enough that a round trip costs little for each, few enough that the server is not held
/// up.
const MAX_CHARGES: usize = 64;

/// Maximum sum of the [loads](CallCell::load) of a call's cells, in counters. A counter takes the server up to 20
/// microseconds.
const MAX_LOAD: usize = 32;

/// How often the refunds of a call may recompute a bucket. Each time takes some 5 microseconds.
const MAX_RECOMPUTATIONS: usize = 48;

/// Maximum logs of a call. Each may take 200 microseconds when it is full.
const MAX_LOGS: usize = 2;

/// Maximum runs of a call that name a log. A refund from a log takes some 40 microseconds if the log has thousands of
/// later times.
const MAX_LOG_RUNS: usize = 4;

/// Whether this many charges fill a call.
pub(in crate::store::redis) const fn fills_a_call(charges: usize) -> bool {
    charges >= MAX_CHARGES
}

/// The cells and charges of one call.
#[derive(Debug, Default)]
pub struct Call {
    pub(super) cells: Vec<CallCell>,
    pub(super) runs: Vec<Run>,
    /// Runs that name a log.
    log_runs: usize,
    /// How often the refunds recompute a bucket.
    recomputations: usize,
    pub(super) charges: usize,
}

/// Why a call does not take a charge: it belongs in another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the call has no room for the charge")]
pub struct CallFull;

impl Call {
    /// Adds a charge. If it does not fit, the call stays as it was.
    pub fn add(&mut self, charge: &StoreCharge) -> Result<(), CallFull> {
        if !self.has_room_for(charge) {
            return Err(CallFull);
        }
        let operation = charge.operation;
        let mut entries: SmallVec<[RunEntry; 4]> = SmallVec::new();
        for cell_charge in &charge.cell_charges {
            entries.push(self.add_entry(operation, cell_charge));
        }
        self.charges += 1;
        match self.runs.last_mut() {
            Some(run) if run.can_include(operation, &entries) => run.include(&entries),
            _ => {
                let names_log = entries.iter().any(|entry| is_log(&entry.quota));
                self.log_runs += usize::from(names_log);
                self.recomputations += recomputations(charge).unwrap_or(0);
                self.runs.push(Run { operation, charges: 1, entries });
            }
        }
        Ok(())
    }

    /// The number of charges in it.
    pub const fn len(&self) -> usize {
        self.charges
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.charges == 0
    }

    /// Whether it takes no more charges, whatever their cells are.
    pub(in crate::store::redis) const fn is_full(&self) -> bool {
        fills_a_call(self.charges)
    }

    fn has_room_for(&self, charge: &StoreCharge) -> bool {
        if self.is_empty() {
            return true;
        }
        !self.is_full()
            && self.has_room_for_cells(&charge.cell_charges)
            && recomputations(charge)
                .is_none_or(|added| self.recomputations + added <= MAX_RECOMPUTATIONS)
    }

    fn has_room_for_cells(&self, cell_charges: &[CellCharge]) -> bool {
        let mut load: usize = self.cells.iter().map(CallCell::load).sum();
        let mut logs =
            self.cells.iter().filter(|cell| cell.algorithm == ScriptAlgorithm::SlidingLog).count();
        for cell_charge in cell_charges {
            let Some(index) = self.cell_index(cell_charge) else {
                load += CallCell::new(cell_charge).load();
                logs += usize::from(is_log(cell_charge.quota.quota()));
                continue;
            };
            let cell = &self.cells[index];
            let Some(new_load) = cell.load_with(cell_charge) else {
                return false;
            };
            load += new_load - cell.load();
        }
        load <= MAX_LOAD && logs <= MAX_LOGS && (logs == 0 || self.log_runs < MAX_LOG_RUNS)
    }

    fn add_entry(&mut self, operation: Operation, cell_charge: &CellCharge) -> RunEntry {
        let charged_windows = match operation {
            Operation::Refund(_) => cell_charge.quota.windows().clone(),
            Operation::Charge | Operation::Check | Operation::Report | Operation::Debit => {
                WindowLengths::default()
            }
        };
        RunEntry {
            cell: self.add_cell(cell_charge),
            // Whether charges are remembered is a property of the cell, not of the charge.
            quota: cell_charge.quota.quota().with_refunds(false),
            cost: cell_charge.cost,
            log_chunk: cell_charge.log_chunk,
            charged_windows,
        }
    }

    /// The index of a charge's cell, which is added or gets the windows that it lacks.
    fn add_cell(&mut self, cell_charge: &CellCharge) -> usize {
        if let Some(index) = self.cell_index(cell_charge) {
            self.cells[index].include(cell_charge);
            return index;
        }
        self.cells.push(CallCell::new(cell_charge));
        self.cells.len() - 1
    }

    /// The index of a charge's cell, if the call names it.
    fn cell_index(&self, cell_charge: &CellCharge) -> Option<usize> {
        let name = cell_charge.cell_name();
        self.cells.iter().position(|cell| cell.name == name)
    }
}

fn is_log(quota: &Quota) -> bool {
    matches!(quota, Quota::SlidingLog(_))
}

/// How often a refund recomputes a bucket: for each rate. `None` for other operations.
fn recomputations(charge: &StoreCharge) -> Option<usize> {
    match charge.operation {
        Operation::Refund(_) => Some(charge.cell_charges.iter().map(bucket_rates).sum()),
        Operation::Charge | Operation::Check | Operation::Report | Operation::Debit => None,
    }
}
