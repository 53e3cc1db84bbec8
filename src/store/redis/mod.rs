//! The shared store: the cells of the exact tier in servers that speak the Redis protocol, so that all nodes count
//! together.
//!
//! ```text
//!   SharedStore::settle -> batcher (queue -> batch -> call) -> StoreTransport (servers, slots, redirects)
//! ```
//!
//! The batcher builds calls of the script from pending charges; the transport carries a call to the server that
//! keeps its slot. The real transport and what belongs to it need the feature `redis`. This module does not know what
//! a limit means: the script judges, with the numbers that it is given. What always holds: a charge that may have been
//! executed is never sent again, and a caller has its result by the deadline of its charge.

#[cfg(feature = "redis")]
mod address;
#[cfg(feature = "redis")]
mod away_log;
#[cfg(feature = "redis")]
mod bans;
mod batch;
mod batcher;
mod call;
mod call_task;
mod cell_name;
mod charge;
mod circuit_breaker;
#[cfg(feature = "redis")]
mod connection;
mod denial_cache;
mod failure;
mod fleet;
mod key_rules;
mod metrics;
mod pending;
mod queue;
#[cfg(feature = "redis")]
mod reachability;
#[cfg(feature = "redis")]
mod redis_transport;
mod reporter;
mod script;
#[cfg(feature = "redis")]
mod server;
#[cfg(feature = "redis")]
mod server_storage;
#[cfg(feature = "redis")]
mod server_task;
mod shared_store;
mod slots;
#[cfg(feature = "redis")]
mod start;
#[cfg(feature = "redis")]
mod told_failures;
mod told_outage;
#[cfg(feature = "redis")]
mod topology;
mod transport;
mod unreported;
mod usage_progress;
mod usage_report;
mod worker;

#[cfg(feature = "redis")]
pub use address::{Address, Login, ServerDiscovery, StoreSettings, StoreTls};
pub use call::{Argument, Arguments, Call, CallFull};
pub use charge::{CellCharge, CellReply, ChargeReply, Operation, StoreCharge};
pub use failure::StoreFailure;
pub use fleet::{
    FleetChunk, FleetCursor, FleetNews, FleetQuestion, MAX_FLEET_CHUNKS, MAX_FLEET_TEXT,
    ReceivedChunk,
};
pub use key_rules::{
    CellAddress, MAX_KEY_RULES, RuleChange, RuleChangeError, RuleEvent, RuleNews, RulesQuestion,
    RulesVersion,
};
pub use metrics::{CallOutcome, StoreMetrics};
#[cfg(feature = "redis")]
pub use reachability::unreachable_servers;
pub use script::SCRIPT;
pub use shared_store::SharedStore;
pub use told_outage::ToldOutage;
pub use transport::{Readiness, StoreTransport};
pub use unreported::UnreportedReceipt;
