//! The engine as a library: a policy that judges the requests of another server.
//!
//! A [`Limiter`] reads the same policy as the proxy and decides with the same engine. It knows the `http` crate's types;
//! only `plugin.rs`, `delay.rs` and `discard.rs` know Pingora. It owns no socket and forwards nothing: its caller reads requests, forwards them,
//! and reports the answers. What always holds: a request is settled under the configuration that judged it.

mod action;
mod background;
mod builder;
#[cfg(feature = "pingora")]
pub(crate) mod delay;
#[cfg(feature = "pingora")]
pub(crate) mod discard;
mod error;
mod file_watch;
mod judge;
mod judged;
mod loaded;
mod metrics;
#[cfg(feature = "pingora")]
pub mod plugin;
mod target;

pub use action::Action;
pub use builder::LimiterBuilder;
pub use error::LimiterError;
#[cfg(feature = "bin")]
pub use file_watch::FileWatch;
pub use judge::Limiter;
pub use judged::Judged;
pub use metrics::{KeySetMetrics, LimitMetrics, MetricsSnapshot, VerdictCounts};
