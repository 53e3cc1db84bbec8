use http::HeaderMap;

use super::client::RequestClient;
use crate::clock::Nanos;

/// A plain view of one request, as the gate left it: what is matched and keyed, and nothing else.
///
/// `host` is lower case, without port and trailing dot; `path` is the canonical path that is also
/// forwarded; both borrow from the request.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'r> {
    /// The client ([`super::client::ClientRules::client`]).
    pub client: RequestClient,
    /// The date ([`crate::clock::Clock::date`]) when the request came: tokens expire by it, and
    /// rollouts begin.
    pub now: Nanos,
    /// The method as sent, for example `GET`.
    pub method: &'r str,
    /// The host asked for; empty where the protocol allows none.
    pub host: &'r str,
    /// The path, beginning with `/`.
    pub path: &'r str,
    /// Other paths that an origin may take this one for. A request that would be decided
    /// otherwise under one of them is refused.
    pub readings: &'r [String],
    /// What follows the `?`, if there is one.
    pub query: Option<&'r str>,
    /// All header fields.
    pub headers: &'r HeaderMap,
}
