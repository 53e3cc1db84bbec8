//! `responses`: what clients receive from the proxy itself.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;

use crate::policy::Exempt;

/// How answers of the proxy itself look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responses {
    /// `RateLimit` and `RateLimit-Policy`.
    pub ratelimit_fields: bool,
    /// The `X-RateLimit-*` triple.
    pub x_ratelimit_fields: bool,
    /// The bodies of a refusal, of which the client's `Accept` chooses; at least one.
    pub bodies: Vec<RefusalBody>,
    /// Who may read a refusal in a browser.
    pub cors: Cors,
    /// Requests that no limit applies to.
    pub exempt: Exempt,
    /// Clients are told to come back up to this later than they could, so that they do not come all
    /// at once.
    pub retry_after_jitter: Duration,
}

/// Origins (of the browser's kind) that may read a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cors {
    /// All of them (`*`).
    All,
    /// These.
    Only(Vec<HeaderValue>),
}

/// The body of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalBody {
    /// `application/problem+json` (RFC 9457).
    Problem,
    /// The status of a gRPC call, for requests that are one.
    Grpc,
    /// The operator's own, read when the configuration was.
    File {
        /// Its bytes.
        content: Bytes,
        /// Its media type.
        media_type: String,
    },
}
