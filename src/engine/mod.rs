//! The engine: from the facts of a request to a decision, and from its response to the final charges.
//!
//! An [`Engine`] owns what outlives a configuration: the stores, the confirm table, counters and cell budgets by the
//! limits' names, the secret of the keys, and the clock. A [`Generation`] is one loaded policy; a request is decided
//! under one generation from beginning to end. Of HTTP the engine knows only header maps and status codes: it reads
//! no request from the wire and renders no response. It exposes counters but knows no metrics format. What must
//! always hold: the exact limits of a request are charged all or none, and a request that is refused keeps no charge
//! (except for a token checked in vain, see `unchecked.rs`).

mod background;
mod candidate;
#[cfg(feature = "redis")]
mod connect;
#[cfg(not(feature = "redis"))]
#[path = "connect_embedded.rs"]
mod connect;
mod counters;
mod decide;
mod decision;
mod delay_slots;
mod embedded;
mod event_order;
mod exact;
mod final_cost;
mod fleet;
mod fleet_denials;
mod fleet_resets;
mod generation;
mod handed_over;
#[cfg(feature = "bin")]
mod handed_state;
mod key_resets;
mod limit_registry;
mod loaded_limit;
mod look_up;
mod open_charge;
mod overflow;
mod overrides;
mod penalties;
mod pending;
#[cfg(feature = "bin")]
mod predecessor;
mod reload_report;
mod resolve;
#[cfg(feature = "bin")]
mod restored_state;
#[cfg(feature = "bin")]
mod saved_contents;
#[cfg(feature = "bin")]
mod saved_records;
#[cfg(feature = "bin")]
mod saved_state;
mod settle_response;
mod shadow;
mod shared;
mod state;
mod succession;
mod target;
mod tentative;
mod trace;
mod unchecked;
mod unsettled;

pub use candidate::CandidateVerdict;
#[cfg(feature = "bin")]
pub(crate) use connect::unreachable_store_servers;
pub use counters::{CandidateComparison, Durations, LimitCounters, VerdictKind};
#[cfg(feature = "bin")]
pub(crate) use counters::{STRIPES, stripe};
pub use decision::{Decision, LimitVerdict, Outcome};
pub use fleet::{FleetChannel, FleetExchange, FleetLimits, FleetOutcome, FleetProgress};
pub use generation::Generation;
pub use look_up::{KeyCell, KeyState, LookUpError, TypedKey};
pub use pending::{FinalResponse, PendingSettlement};
#[cfg(feature = "bin")]
pub use predecessor::Predecessor;
pub use reload_report::ReloadReport;
pub use resolve::{SkipReason, skipped_limits};
#[cfg(feature = "bin")]
pub use restored_state::{Restorer, SavedCells};
#[cfg(feature = "bin")]
pub use saved_contents::{SavedContents, SavedLimit};
#[cfg(feature = "bin")]
pub use saved_state::EngineSource;
pub use state::Engine;
pub(crate) use state::SWEEPS_OF_ALL;
#[cfg(feature = "bin")]
pub use succession::{
    HandedCharge, HandedCount, HandedEvent, HandedJudgment, HandedKey, HandedRequest, HeldJudgment,
    LateJudgment, Successor, SuccessorAnswer,
};
pub use trace::{AnsweredBy, RequestTrace, TracedAnswer, TracedCost, TracedCosts, TracedEnd};
pub(crate) use unsettled::Unsettled;
