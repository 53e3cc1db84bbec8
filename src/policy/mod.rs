//! The policy: which limits apply to which requests, as plain values.
//!
//! It holds routes, limits and keys, finds the route of a request, and extracts keys from it. It does no I/O,
//! has no clock and no async code, and does not know how a configuration is written or where a limit counts.
//! All functions are pure: the same request under the same policy has the same route and the same keys on
//! every node.

pub mod client;
mod compiled_pattern;
pub mod condition;
mod condition_results;
mod connection;
mod cost;
mod counted_repetitions;
mod facts;
mod family;
mod fleet;
mod guards;
mod impossible_pattern;
mod index;
pub mod key;
mod key_rules;
mod limit;
mod log_values;
mod matching;
mod mismatch;
mod names;
mod nfa_simulation;
mod override_action;
mod path;
pub(crate) mod path_samples;
mod penalty;
mod recorder;
mod required_text;
mod response_body;
mod response_costs;
mod rewrite;
mod route;
mod router;
mod ruled_limit;
mod ruleset;
mod search_caches;
mod status_rules;
mod terms;
mod text_tests;
mod unreadable;
mod value_automaton;
mod value_test;
mod values;
mod word_boundaries;
mod work_budget;

pub use condition_results::ConditionResults;
pub use connection::{CLIENT_NAME_KINDS, ConnectionFacts, canonical_client_name};
pub use cost::{Cost, NamedCost, RepeatedCost, ResponseSource, UnreadCost};
pub use facts::Facts;
pub use family::Family;
pub use fleet::{FleetTerms, Scope};
pub use index::{LimitIndex, PerLimit, PerRoute, RouteIndex};
pub use key::{KeyHash, KeySecret, KeySpec, Source};
pub use key_rules::{KeyRule, KeyRules, Ruling, RulingError};
pub use limit::{
    AfterCrash, Count, DEFAULT_EXPECT_PER_SECOND, Limit, MissingKey, Mode, OnStoreFailure, Tier,
    WhenFull,
};
pub use log_values::{Coverage, Literals, LogValues, MissingValue, RecordedValue, RecordedValues};
pub use matching::{Class, HostPattern, KNOWN_METHODS, MethodSet, RequestMatch};
pub use mismatch::Mismatch;
pub use override_action::{OverrideAction, RateIndex};
pub use path::{MAX_PATH_SEGMENTS, PathPattern, PathPatternError};
pub use penalty::Penalty;
pub use recorder::{MAX_RECORDED_CONDITIONS, Recorder, literals, reads_header};
pub use response_body::{BodyNumber, BodyScan, JsonPointer, MAX_POINTER_BYTES, MAX_POINTER_TOKENS};
pub use response_costs::ResponseCosts;
pub use rewrite::{PathPrefix, Rewrite};
pub use route::{Exempt, Route, RouteLimit};
pub use router::Router;
pub use ruleset::{MAX_LIMITS_PER_ROUTE, Policy};
pub use status_rules::{StatusRules, Statuses};
pub use terms::{
    KeyValues, Override, OverrideTarget, PlanChoice, Plans, RateSource, Rollout, Terms,
};
pub use unreadable::Unreadable;
