//! Stores hold the cells of the exact tier. A cell is the state of one key under one limit.
//!
//! Two stores settle the charges of a request, all or none: [`EmbeddedStore`] keeps its cells in this
//! process, and [`redis::SharedStore`] keeps them in servers that many nodes share. Bans ([`Bans`]) and
//! counts of requests in flight ([`InFlightCounts`]) are kept per node.
//!
//! A store knows keys as hashes and limits as numbers. The meaning of a limit is in [`crate::limit`].

mod accounting;
mod ban_record;
mod bans;
mod budget;
mod changed_keys;
mod embedded;
mod in_flight;
mod quotas;
pub mod redis;
mod save_progress;
#[cfg(feature = "bin")]
mod saving;
mod settlement;
mod sweep;
mod table;
mod weight;
mod written_ahead;

#[cfg(feature = "bin")]
pub use ban_record::SavedBan;
pub use ban_record::UNREPORTED;
pub use bans::{Ban, Bans};
pub use budget::{BoundedBudget, CellBudget};
pub use embedded::{CellOwner, EmbeddedStore, SHARDS};
pub use in_flight::{Acquired, InFlightCounts, InFlightPermit, ReleaseHook};
pub use quotas::{HeldQuotas, IssuedQuota, QuotaSpec};
pub use save_progress::SaveProgress;
#[cfg(feature = "bin")]
pub use saving::{GRANT_BYTES, SaveBatch, SavedCell};
pub use settlement::{EmbeddedCharge, Settlement, SingleSettlement, Verdicts};
pub use table::CELL_BYTES;
pub use written_ahead::Grant;
#[cfg(feature = "bin")]
pub use written_ahead::units_ahead;
