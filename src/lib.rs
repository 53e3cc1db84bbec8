//! tollgate as a library: rate limits for a Pingora proxy, or for any server that speaks the `http` crate's types.
//!
//! The binary `tollgate` is a reverse proxy. Its engine is here as [`Limiter`]: it reads the same policy, judges requests, and
//! renders refusals and the `RateLimit` fields of answers.
//!
//! - In a Pingora proxy, [`plugin::RequestLimit`] implements three phases.
//! - Elsewhere (hyper, axum, tower), [`Limiter::judge`] takes the head of a request, and [`Judged::action`] says what to do
//!   with it.
//!
//! # Features
//!
//! All are on by default. A library user turns the defaults off and picks:
//!
//! | feature | adds |
//! |---|---|
//! | `pingora` | [`plugin`]: the phases and the background service |
//! | `redis` | `store: { redis: .. }`, through [`LimiterBuilder::connect`] |
//! | `jwt` | keys and plans by claims of signed tokens |
//! | `jwks` | keys of signed tokens at a URL, fetched in the background |
//! | `bin` | the proxy itself and its command line |
//!
//! A policy that needs a feature which the build leaves out is refused by name.
//!
//! `docs/public-api.txt` lists every public item.
// Without `internals` the modules are private, and what only tests, benchmarks and fuzz targets use is unused.
#![cfg_attr(
    not(feature = "internals"),
    expect(
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "the package's own tests use more than a user does"
    )
)]

pub mod clock;

#[cfg(feature = "bin")]
pub use cli::main as command_line;
pub use config::{ConfigError, ConfigErrors, Location};
pub use engine::ReloadReport;
pub use http::Refusal;
#[cfg(feature = "pingora")]
pub use limiter::plugin;
pub use limiter::{
    Action, Judged, KeySetMetrics, LimitMetrics, Limiter, LimiterBuilder, LimiterError,
    MetricsSnapshot, VerdictCounts,
};
pub use policy::Tier;

#[cfg(all(feature = "bin", not(feature = "internals")))]
mod access_lines;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod access_lines;
#[cfg(all(feature = "bin", not(feature = "internals")))]
mod cli;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod cli;
#[cfg(not(feature = "internals"))]
mod config;
#[cfg(feature = "internals")]
pub mod config;
#[cfg(all(feature = "bin", not(feature = "internals")))]
mod edge;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod edge;
#[cfg(not(feature = "internals"))]
mod engine;
#[cfg(feature = "internals")]
pub mod engine;
#[cfg(not(feature = "internals"))]
mod estimator;
#[cfg(feature = "internals")]
pub mod estimator;
#[cfg(feature = "bin")]
mod handover;
#[cfg(not(feature = "internals"))]
mod histogram;
#[cfg(feature = "internals")]
pub mod histogram;
#[cfg(all(feature = "bin", not(feature = "internals")))]
mod history;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod history;
#[cfg(not(feature = "internals"))]
mod http;
#[cfg(feature = "internals")]
pub mod http;
#[cfg(not(feature = "internals"))]
mod jwks;
#[cfg(feature = "internals")]
pub mod jwks;
#[cfg(not(feature = "internals"))]
mod limit;
#[cfg(feature = "internals")]
pub mod limit;
#[cfg(not(feature = "internals"))]
mod limiter;
#[cfg(feature = "internals")]
pub mod limiter;
#[cfg(all(feature = "bin", not(feature = "internals")))]
mod log_sampler;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod log_sampler;
#[cfg(all(feature = "bin", not(feature = "internals")))]
mod ops;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod ops;
#[cfg(not(feature = "internals"))]
mod policy;
#[cfg(feature = "internals")]
pub mod policy;
#[cfg(all(feature = "bin", not(feature = "internals")))]
mod proxy;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod proxy;
#[cfg(all(feature = "bin", not(feature = "internals")))]
mod refusals;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod refusals;
#[cfg(all(feature = "bin", not(feature = "internals")))]
mod replay;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod replay;
#[cfg(all(feature = "bin", not(feature = "internals")))]
mod server;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod server;
#[cfg(all(feature = "bin", not(feature = "internals")))]
mod signals;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod signals;
#[cfg(all(feature = "bin", not(feature = "internals")))]
mod state;
#[cfg(all(feature = "bin", feature = "internals"))]
pub mod state;
#[cfg(not(feature = "internals"))]
mod store;
#[cfg(feature = "internals")]
pub mod store;
#[cfg(not(feature = "internals"))]
mod tokens;
#[cfg(feature = "internals")]
pub mod tokens;
