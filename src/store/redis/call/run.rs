//! A run: equal charges that follow each other in a call, written once.
//!
//! It does not know the cells behind its indices. Its charges are judged one after the other by the script, so a run
//! must not change the order of charges.

use smallvec::SmallVec;

use crate::limit::{Quota, WindowLengths};
use crate::store::redis::charge::Operation;

/// Equal charges that follow each other.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) operation: Operation,
    /// How many charges it has.
    pub(super) charges: u32,
    pub(super) entries: SmallVec<[RunEntry; 4]>,
}

/// A cell of a run, and what it is charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunEntry {
    /// The index of the cell in the call.
    pub(super) cell: usize,
    pub(super) quota: Quota,
    pub(super) cost: u32,
    pub(super) log_chunk: u64,
    /// Of a refund, the windows that the limit had when it was charged.
    pub(super) charged_windows: WindowLengths,
}

impl Run {
    /// Whether a charge with these entries can be one more of the run: equal charges, and refunds of what was
    /// charged at one instant, whatever their costs are.
    pub(super) fn can_include(&self, operation: Operation, entries: &[RunEntry]) -> bool {
        match operation {
            Operation::Charge => self.operation == operation && self.entries.as_slice() == entries,
            Operation::Refund(_) => {
                self.operation == operation
                    && self.entries.len() == entries.len()
                    && self.entries.iter().zip(entries).all(|(own, new)| own.equals_but_cost(new))
            }
            Operation::Check | Operation::Report | Operation::Debit => false,
        }
    }

    /// Includes a charge. Refunds become one refund of the sum.
    pub(super) fn include(&mut self, entries: &[RunEntry]) {
        self.charges += 1;
        if let Operation::Refund(_) = self.operation {
            for (own, new) in self.entries.iter_mut().zip(entries) {
                own.cost = own.cost.saturating_add(new.cost);
            }
        }
    }
}

impl RunEntry {
    fn equals_but_cost(&self, other: &Self) -> bool {
        Self { cost: other.cost, ..self.clone() } == *other
    }
}
