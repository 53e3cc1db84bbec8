//! Limits with `scope: fleet`: nodes exchange counts of heavy keys through the shared store, and each decides on the sum.
//!
//! ```text
//!   confirm table ──► publication ──► one call: chunk out, chunks in ──► imports ──► FleetView of each limit
//!   (own counts)      (what changed)        (store, off the path)       (others)     (read by requests)
//! ```
//!
//! What a node counted for certain is a lower bound of what a key sent, and so is the sum of what nodes counted: a key is
//! refused only if all nodes together certainly counted its limit. Windows are divided by the store's time
//! (`shared_time.rs`). What is not known of other nodes is not counted: a node that hears nothing counts by itself.

mod believed;
mod channel;
mod exchange;
mod forgotten;
mod heard;
mod identity;
mod imports;
mod limits;
mod own_counts;
mod peaks;
mod progress;
mod publication;
mod records;
mod reports;
mod shared_time;
mod tentative_units;

pub use channel::FleetChannel;
pub use exchange::FleetExchange;
#[cfg(feature = "bin")]
pub(super) use identity::Identity;
pub use limits::FleetLimits;
pub use progress::{FleetOutcome, FleetProgress};

use std::sync::Arc;

use forgotten::Forgotten;
pub(super) use heard::Heard;
use heard::MadeChanges;
use identity::FleetIdentity;
pub(super) use tentative_units::TentativeHold;
use tentative_units::TentativeUnits;

/// What an engine has for the exchange.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    pub(super) progress: FleetProgress,
    pub(super) identity: FleetIdentity,
    pub(super) forgotten: Forgotten,
    pub(super) made_changes: MadeChanges,
    pub(super) tentative: Arc<TentativeUnits>,
}
