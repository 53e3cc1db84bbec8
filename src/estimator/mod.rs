//! The estimate tier: approximate limits in fixed memory, whatever the number of keys.
//!
//! ```text
//!   request ──► sketch (the sum of two slots) ──► below the threshold, no cell: allowed
//!                                             └─► a suspect, or a cell ──► confirm table ──► verdict
//! ```
//!
//! A sketch reads at least what a key sent, and often more. It decides which keys are suspects. A small table
//! counts suspects exactly and decides which keys are denied. A key with a cell in the confirm table is judged by
//! that cell, whatever the sketch reads. This module knows no YAML and no cells of the exact tier; time is an
//! argument.
//!
//! Always true: a collision in the sketch makes a suspect, never a denial. A full table has no cell for some keys
//! and lets them exceed their limit, by at most [`EstimateLimit::confirm_error`]; it never denies a key for what
//! other keys sent.

mod attempt;
mod cell;
mod confirm;
mod fleet_view;
mod limit;
mod limit_number;
#[cfg(feature = "bin")]
mod moved_cells;
mod peak_error;
mod senders;
mod set;
mod shared_clock;
mod sketch;
mod spot;

pub use confirm::{CONFIRM_CELLS, ConfirmTable};
pub use fleet_view::{FleetCounts, FleetView};
pub use limit::{EstimateLimit, EstimateReceipt};
#[cfg(feature = "bin")]
pub use moved_cells::MovedCell;
pub use senders::{NodeCount, Sender};
pub use shared_clock::{SharedClock, SharedInstant};
