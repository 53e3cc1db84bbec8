//! A cell as a call names it: its algorithm, the windows of its limit, and what it costs the server.
//!
//! It does not know what was spent. A cell that several charges of a call name has the windows of all of them.

use smallvec::SmallVec;

use crate::clock::Nanos;
use crate::limit::{MAX_RATES, MAX_WINDOWS, Quota, WindowLengths};
use crate::store::redis::cell_name::CellName;
use crate::store::redis::charge::CellCharge;

/// Maximum windows of a cell in a call: those of its limit, in two generations.
const MAX_CELL_WINDOWS: usize = 2 * MAX_WINDOWS;

/// A cell that a call names.
#[derive(Debug)]
pub(super) struct CallCell {
    pub(super) name: CellName,
    pub(super) algorithm: ScriptAlgorithm,
    /// The lengths of the windows of its limit, ascending; none of a bucket.
    pub(super) windows: SmallVec<[Nanos; 2]>,
    /// How many rates a bucket may have.
    rates: usize,
    /// Whether it is a bucket that remembers recent charges, so that they can be refunded.
    pub(super) remembers_charges: bool,
}

/// The number of an algorithm in the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptAlgorithm {
    TokenBucket = 1,
    SlidingWindow = 2,
    SlidingLog = 3,
    FixedWindow = 4,
}

impl CallCell {
    pub(super) fn new(cell_charge: &CellCharge) -> Self {
        let quota = &cell_charge.quota;
        Self {
            name: cell_charge.cell_name(),
            algorithm: ScriptAlgorithm::of(quota.quota()),
            windows: SmallVec::from_slice(quota.windows().lengths()),
            rates: bucket_rates(cell_charge),
            remembers_charges: is_remembered(cell_charge),
        }
    }

    /// Adds what another charge to the cell needs.
    pub(super) fn include(&mut self, cell_charge: &CellCharge) {
        self.remembers_charges |= is_remembered(cell_charge);
        self.rates = self.rates.max(bucket_rates(cell_charge));
        for length in cell_charge.quota.windows().lengths() {
            if let Err(index) = self.windows.binary_search(length) {
                self.windows.insert(index, *length);
            }
        }
    }

    /// How much work the cell is for the server, in counters.
    pub(super) fn load(&self) -> usize {
        self.windows.len().max(bucket_load(self.rates, self.remembers_charges))
    }

    /// Its load with another charge; `None` if the charge does not fit the cell.
    pub(super) fn load_with(&self, cell_charge: &CellCharge) -> Option<usize> {
        let is_new = |length: &&Nanos| !self.windows.contains(length);
        let new_windows = cell_charge.quota.windows().lengths().iter().filter(is_new).count();
        let windows = self.windows.len() + new_windows;
        // The algorithms differ only by mistake: a key's hash includes the algorithm.
        let fits = self.algorithm == ScriptAlgorithm::of(cell_charge.quota.quota())
            && windows <= MAX_CELL_WINDOWS;
        let rates = self.rates.max(bucket_rates(cell_charge));
        let remembers = self.remembers_charges || is_remembered(cell_charge);
        fits.then(|| windows.max(bucket_load(rates, remembers)))
    }

    /// Of a cell with counters: a bit for each of its windows, set for those in `charged`.
    pub(super) fn window_mask(&self, charged: &WindowLengths) -> Option<u64> {
        match self.algorithm {
            ScriptAlgorithm::SlidingWindow | ScriptAlgorithm::FixedWindow => {
                let bit = |n: usize| u64::from(charged.lengths().contains(&self.windows[n])) << n;
                Some((0..self.windows.len()).map(bit).sum())
            }
            ScriptAlgorithm::TokenBucket | ScriptAlgorithm::SlidingLog => None,
        }
    }
}

impl ScriptAlgorithm {
    const fn of(quota: &Quota) -> Self {
        match quota {
            Quota::TokenBucket(_) => Self::TokenBucket,
            Quota::SlidingWindow(_) => Self::SlidingWindow,
            Quota::SlidingLog(_) => Self::SlidingLog,
            Quota::FixedWindow(_) => Self::FixedWindow,
        }
    }
}

/// How many rates the bucket of a charge may have.
pub(super) fn bucket_rates(cell_charge: &CellCharge) -> usize {
    cell_charge.quota.windows().buckets().min(MAX_RATES)
}

/// Whether a bucket has to remember the charge, because it may be refunded.
fn is_remembered(cell_charge: &CellCharge) -> bool {
    match cell_charge.quota.quota() {
        Quota::TokenBucket(bucket) => cell_charge.refundable || bucket.is_refundable(),
        Quota::SlidingWindow(_) | Quota::SlidingLog(_) | Quota::FixedWindow(_) => false,
    }
}

/// How much work a bucket is for the server, in counters, as measured.
const fn bucket_load(rates: usize, remembers_charges: bool) -> usize {
    1 + rates / 2 + if remembers_charges { 3 } else { 0 }
}
