//! What a connection's stream and the requests on it tell each other.
//!
//! The stream below the framework and the request phases above it cannot call each other, so they share one
//! [`ConnectionState`] for each connection, and errors that the stream raises travel through the framework
//! ([`StreamCut`], [`OriginSilent`]). It does not read or write the connection. What must always hold: a new request of
//! HTTP/1 starts with nothing left from the previous one.

mod connection_state;
mod errors;
mod expected_response;
mod pending_output;

pub(super) use connection_state::Awaited;
pub(crate) use connection_state::ConnectionState;
pub(crate) use errors::{OriginSilent, StreamCut};
pub(crate) use expected_response::ExpectedResponse;
