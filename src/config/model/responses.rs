//! `responses`: what clients receive from the proxy itself.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;

use super::page::Pages;
use crate::policy::Exempt;

/// The fields and bodies that the proxy itself writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responses {
    /// Whether responses carry `RateLimit` and `RateLimit-Policy`.
    pub ratelimit_fields: bool,
    /// Whether responses carry the three `X-RateLimit-*` fields.
    pub x_ratelimit_fields: bool,
    /// Bodies of a refusal, from which `Accept` of the request selects; at least one.
    pub bodies: Vec<RefusalBody>,
    /// Pages of the operator by status, from which, and the problem document, `Accept` selects.
    pub pages: Pages,
    /// Web origins whose scripts may read a refusal.
    pub cors: Cors,
    /// Requests that meet only estimate limits by `client_ip`.
    pub exempt: Exempt,
    /// Largest random addition to `Retry-After`, so that clients do not return all at once.
    pub retry_after_jitter: Duration,
}

/// Web origins (RFC 6454) whose scripts may read a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cors {
    /// All (`*`).
    All,
    /// Only the listed ones.
    Only(Vec<HeaderValue>),
}

/// The body of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalBody {
    /// `application/problem+json` (RFC 9457).
    Problem,
    /// The status of a gRPC call, for gRPC requests only.
    Grpc,
    /// A file of the operator, read when the configuration is loaded.
    File {
        /// The content of the file.
        content: Bytes,
        /// The media type of the content.
        media_type: String,
    },
}
