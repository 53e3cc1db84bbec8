//! What the caller does with a request, in the `http` crate's types.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};

use crate::http::Refusal;

/// What to do with a judged request.
///
/// ```
/// use tollgate::{Action, Limiter};
///
/// # async fn judge(limiter: Limiter, parts: http::request::Parts) -> Option<http::Response<bytes::Bytes>> {
/// let judged = limiter.judge(&parts, [192, 0, 2, 1].into()).await;
/// match judged.action() {
///     Action::Forward { delay } => println!("forward it after {delay:?}"),
///     Action::Refuse(refusal) => return Some(refusal.into()),
/// }
/// # None }
/// ```
#[derive(Clone, Debug)]
pub enum Action {
    /// Forward the request.
    Forward {
        /// How long the request waits before it is forwarded: zero unless a limit has a `max_delay`.
        delay: Duration,
    },
    /// Answer with this, and forward nothing.
    Refuse(Refusal),
}

impl Refusal {
    /// A refusal without fields and body.
    pub(super) fn bare(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Bytes::new() }
    }
}

/// A response with the refusal's status, fields and body.
impl<B: From<Bytes>> From<Refusal> for Response<B> {
    fn from(refusal: Refusal) -> Self {
        let mut response = Self::new(refusal.body.into());
        *response.status_mut() = refusal.status;
        *response.headers_mut() = refusal.headers;
        response
    }
}
