//! `limits_of_this_proxy`: bounds that hold whatever a client or an origin does.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::clock::Nanos;
use crate::config::host_memory::default_memory_budget;
use crate::limit::{Rate, TokenBucket};

/// The bounds of the proxy. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Size of the head of a request.
    pub header_size: usize,
    /// Number of header fields of a request.
    pub header_fields: usize,
    /// From the first byte of the head of a request to its last.
    pub header_timeout: Duration,
    /// How long a connection may wait for a request.
    pub idle_timeout: Duration,
    /// How long a client may accept nothing of a response.
    pub write_timeout: Duration,
    /// Duration of a TLS handshake.
    pub tls_handshake_timeout: Duration,
    /// Until the PROXY header has arrived.
    pub proxy_protocol_timeout: Duration,
    /// Lowest rate, in bytes per second, at which a client sends a body and accepts a response;
    /// `None` for no bound.
    pub body_min_rate: Option<NonZeroU64>,
    /// Treatment of field names that origins may take for other names.
    pub underscores: Underscores,
    /// Treatment of fields that name another method.
    pub method_override: MethodOverride,
    /// Size of the body of a request; `None` for no bound.
    pub body_size: Option<u64>,
    /// How much of the body of a refused request is read and discarded.
    pub discard_bytes: usize,
    /// How long the body of a refused request is read and discarded.
    pub discard_time: Duration,
    /// Concurrent streams on one HTTP/2 connection.
    pub h2_streams: u32,
    /// Streams per minute that the client of one HTTP/2 connection may reset.
    pub h2_resets: u32,
    /// Concurrent client connections.
    pub max_connections: usize,
    /// Concurrent connections of one client.
    pub max_connections_per_client: usize,
    /// Memory of connections, TLS, streams, requests and responses together.
    pub memory: usize,
    /// TLS handshakes that one client may begin; `None` for no bound.
    pub handshakes_per_client: Option<TokenBucket>,
    /// After TERM: how long connections are still accepted while the proxy reports not ready.
    pub drain: Duration,
    /// After `drain`: how long requests in flight may take.
    pub finish: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            header_size: 32 * 1024,
            header_fields: 100,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            tls_handshake_timeout: Duration::from_secs(10),
            proxy_protocol_timeout: Duration::from_secs(5),
            body_min_rate: NonZeroU64::new(256),
            underscores: Underscores::RejectAmbiguous,
            method_override: MethodOverride::Strip,
            body_size: None,
            discard_bytes: 64 * 1024,
            discard_time: Duration::from_secs(1),
            h2_streams: 100,
            h2_resets: 100,
            max_connections: 20_000,
            max_connections_per_client: 1_000,
            memory: default_memory_budget(),
            // A browser opens a few connections; an office behind one address opens dozens.
            handshakes_per_client: Rate::new(50, Nanos::SECOND).ok().and_then(handshake_bucket),
            // Together less than the 30 s after which Kubernetes kills a process. An idle process
            // ends within the 10 s of Docker.
            drain: Duration::from_secs(5),
            finish: Duration::from_secs(20),
        }
    }
}

/// A bucket whose burst is one period of the rate; `None` if the rate is too fast or too slow.
pub(in crate::config) fn handshake_bucket(rate: Rate) -> Option<TokenBucket> {
    TokenBucket::new(rate, rate.count(), Nanos::ZERO, Nanos::ZERO).ok()
}

/// Treatment of field names that origins may take for other names: `X_Api_Key` for `X-Api-Key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Underscores {
    /// The request is answered with 400 if the policy reads, or HTTP defines, the other name.
    RejectAmbiguous,
    /// All such fields are forwarded.
    Pass,
    /// The fields that `RejectAmbiguous` refuses are not forwarded.
    Drop,
}

/// Treatment of fields that name another method than that of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodOverride {
    /// The request is answered with 400.
    Reject,
    /// The fields are not forwarded.
    Strip,
    /// The fields are forwarded.
    Pass,
}
