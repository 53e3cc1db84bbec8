//! Fetches published sets of keys (JWKS) over HTTP, in the background.
//!
//! [`crate::tokens`] knows the sets, and when each is fetched again; this room asks their servers. It does not know what
//! a key verifies. What must always hold: no request waits for a fetch or causes one directly; every fetch has a deadline,
//! a size bound and no redirects; and what a publisher answers can end no task and stands in no log.

#[cfg(feature = "jwks")]
mod cache_control;
#[cfg(feature = "jwks")]
mod client;
#[cfg(not(feature = "jwks"))]
#[path = "no_client.rs"]
mod client;
#[cfg(feature = "jwks")]
mod connect;
mod refresh;

#[cfg(feature = "bin")]
pub(crate) use refresh::fetch_failure;
pub(crate) use refresh::{begin_fetches, wait_for_first};
