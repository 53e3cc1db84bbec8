//! The input of a decision. It borrows from the request and has passed request validation, so that the policy
//! matches what the origin will read.

use http::HeaderMap;

use super::client::RequestClient;
use super::condition_results::ConditionResults;
use super::connection::ConnectionFacts;
use super::log_values::LogValues;
use crate::clock::Nanos;

/// The parts of one validated request that routes, keys and costs are read from.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'r> {
    /// The client ([`super::client::ClientRules::client`]).
    pub client: RequestClient,
    /// The connection that it came over.
    pub connection: &'r ConnectionFacts,
    /// The date of arrival ([`crate::clock::Clock::date`]). Token expiry and the start of a rollout are compared
    /// with it.
    pub now: Nanos,
    /// The method as sent, for example `GET`.
    pub method: &'r str,
    /// The requested host in lower case, without port and trailing dot; empty if an HTTP/1.0 request names none.
    pub host: &'r str,
    /// The canonical path, beginning with `/`; the same path is forwarded.
    pub path: &'r str,
    /// Other paths that an origin may read this one as. The request is refused if the decision would differ under
    /// one of them.
    pub readings: &'r [String],
    /// The text after `?`, if there is a `?`.
    pub query: Option<&'r str>,
    /// All header fields as received.
    pub headers: &'r HeaderMap,
    /// What is known of its values. `None` for facts that are judged once: nothing is remembered, and work has no
    /// bound.
    pub conditions: Option<&'r ConditionResults>,
}

impl<'r> Facts<'r> {
    /// What a log says of the request, if it is read from one.
    #[inline]
    pub fn log(&self) -> Option<&'r LogValues> {
        self.conditions.and_then(ConditionResults::log)
    }
}
