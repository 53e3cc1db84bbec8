//! The decision in front of an origin: Pingora's `ProxyHttp`, one phase per file.
//!
//! `request` judges and answers what is refused, `upstream` chooses a server and describes the client to it, `response`
//! writes the rate limit fields, `access_record` records the outcome. `early_rejection` answers for the edge before there
//! is a request. This room knows neither Prometheus nor signals.
//!
//! What must always hold: no byte reaches an origin before the request is charged, and whatever ends a request, its context is
//! dropped and frees what it holds.

mod access_record;
mod context;
mod delay;
mod early_rejection;
mod failure_log;
mod http10;
mod live;
mod origins;
mod phases;
mod request;
mod request_id;
mod respond;
mod response;
mod traffic;
mod tunnel;
mod upstream;

pub use access_record::{AccessRecord, AccessSink, CandidateResult, DecidingLimit};
pub use context::{Context, Tollgate};
pub use early_rejection::EarlyRejection;
pub use live::{Fixed, Live};
pub use origins::{AllOriginSlots, OriginCounters, OriginGroup, OriginSlots};
pub use traffic::{RequestOutcome, RouteCounters, TrafficCounters};
pub use tunnel::TunnelEnd;
