//! `limits_of_this_proxy`: bounds of the proxy itself.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::limit::TokenBucket;

/// `limits_of_this_proxy`: bounds that hold whatever a client or an origin does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a request's header.
    pub header_size: usize,
    /// Fields of a request's header.
    pub header_fields: usize,
    /// How long a request's header may take, from its first byte to its last.
    pub header_timeout: Duration,
    /// How long a connection may be idle before a request.
    pub idle_timeout: Duration,
    /// How long a client may take nothing of an answer.
    pub write_timeout: Duration,
    /// How long a TLS handshake may take.
    pub tls_handshake_timeout: Duration,
    /// How long a PROXY header may take.
    pub proxy_protocol_timeout: Duration,
    /// Bytes per second that a client shall send of a body, and take of an answer; `None`: any.
    pub body_min_rate: Option<NonZeroU64>,
    /// What becomes of field names with `_` that would mean something with `-`.
    pub underscores: Underscores,
    /// What becomes of fields that name another method.
    pub method_override: MethodOverride,
    /// Bytes of a request's body; `None`: any.
    pub body_size: Option<u64>,
    /// Of the body of a refused request: bytes that are read and thrown away.
    pub discard_bytes: usize,
    /// Of the body of a refused request: how long that may take.
    pub discard_time: Duration,
    /// Streams at once on one HTTP/2 connection.
    pub h2_streams: u32,
    /// Streams that the client of one HTTP/2 connection may reset in a minute.
    pub h2_resets: u32,
    /// Connections at once.
    pub max_connections: usize,
    /// Connections at once of one client.
    pub max_connections_per_client: usize,
    /// Bytes that connections, TLS, streams, requests and answers may use together.
    pub memory: usize,
    /// TLS handshakes that one client may begin; `None`: any number.
    pub handshakes_per_client: Option<TokenBucket>,
    /// After TERM: not ready, still accepting.
    pub drain: Duration,
    /// Then: requests in flight.
    pub finish: Duration,
}

/// What becomes of fields whose names origins may take for others: `X_Api_Key` for `X-Api-Key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Underscores {
    /// The request is answered 400, if the policy or HTTP means something by the other name.
    RejectAmbiguous,
    /// They are forwarded.
    Pass,
    /// Those that would be refused are not forwarded.
    Drop,
}

/// What becomes of fields that name another method than the request's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodOverride {
    /// The request is answered 400.
    Reject,
    /// They are not forwarded.
    Strip,
    /// They are forwarded.
    Pass,
}
