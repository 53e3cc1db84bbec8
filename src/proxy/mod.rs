//! Decides about requests and forwards them: Pingora's `ProxyHttp`, with a file for each phase.
//!
//! `phases` says which file serves which phase. `request` judges a request and answers a refusal, `upstream` chooses a
//! server and tells it about the client, `origin_wait` bounds the wait for its answer and says who kept it back,
//! `response` settles and writes the rate limit fields, `respond` sends tollgate's own answers, `access_record` records
//! the outcome. `early_rejection` answers the edge before there is a request. This room knows neither Prometheus nor
//! signals.
//!
//! What must always hold: no byte reaches an origin before the request is decided and charged, and whatever ends a
//! request, its context is dropped and frees what it holds.

mod access_record;
mod context;
mod early_rejection;
mod failure_log;
mod failure_reason;
mod http10;
mod live;
mod origin_wait;
mod origins;
mod phases;
mod request;
mod request_id;
mod respond;
mod response;
mod route_details;
mod traffic;
mod tunnel;
mod upstream;

pub use access_record::{
    AccessRecord, AccessSink, CandidateResult, DecidingLimit, JudgedKey, OriginExchange,
};
pub use context::{Context, Tollgate};
pub use early_rejection::EarlyRejection;
pub use failure_reason::FailureReason;
pub use live::{Fixed, Live, Publishing};
pub use origins::{
    AllOriginSlots, OriginCounters, OriginGroup, OriginSlots, ServerReport,
    unreachable_origin_servers,
};
pub use request_id::RequestIds;
pub use route_details::{CODE_LABELS, RouteDetails};
pub use traffic::{RequestOutcome, RouteCounters, TrafficCounters};
pub use tunnel::TunnelEnd;
