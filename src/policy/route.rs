//! One route: the requests that it matches, its limits, and its origin. Pure values; routes are tried in order by
//! [`super::Router`].

use std::sync::Arc;

use http::header;

use super::cost::Cost;
use super::facts::Facts;
use super::index::LimitIndex;
use super::matching::RequestMatch;
use super::rewrite::Rewrite;

/// One route.
#[derive(Clone, Debug)]
pub struct Route {
    /// Unique in the policy.
    pub name: Arc<str>,
    /// The requests that it matches.
    pub matches: RequestMatch,
    /// Its limits in order, the defaults first.
    pub limits: Vec<RouteLimit>,
    /// The index of its origin in the configuration's list. It has no meaning for a limiter inside another server.
    pub origin: usize,
    /// Requests to which only estimate limits by address apply.
    pub exempt: Exempt,
    /// How the path is rewritten for the origin.
    pub rewrite: Option<Rewrite>,
}

/// Requests to which only estimate limits by address apply (`responses.exempt`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exempt {
    /// CORS preflights.
    pub preflight: bool,
    /// HTTP-01 challenges of a certificate authority (ACME).
    pub acme: bool,
}

impl Exempt {
    /// The default.
    pub const STANDARD: Self = Self { preflight: true, acme: true };

    /// Whether a request is exempt.
    pub fn covers(&self, facts: &Facts<'_>) -> bool {
        (self.preflight && is_preflight(facts)) || (self.acme && is_acme(facts))
    }
}

/// A CORS preflight (Fetch standard, "CORS-preflight fetch").
pub(super) fn is_preflight(facts: &Facts<'_>) -> bool {
    facts.method == "OPTIONS"
        && facts.headers.contains_key(header::ORIGIN)
        && facts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// An HTTP-01 challenge (RFC 8555, section 8.3): one token below the well-known path.
fn is_acme(facts: &Facts<'_>) -> bool {
    let token = facts.path.strip_prefix("/.well-known/acme-challenge/");
    // Under another reading of the path it might be no challenge.
    facts.readings.is_empty()
        && matches!(facts.method, "GET" | "HEAD")
        && token.is_some_and(|token| !token.is_empty() && !token.contains('/'))
}

/// A limit as a route applies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLimit {
    /// Which limit.
    pub limit: LimitIndex,
    /// The cost of a request on this route.
    pub cost: Cost,
}
