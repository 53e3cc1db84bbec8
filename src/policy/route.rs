//! One route: the requests that it matches, its limits, and its origin. Pure values; routes are tried in order by
//! [`super::Router`].

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, header};
use ipnet::IpNet;

use super::client;
use super::cost::Cost;
use super::facts::Facts;
use super::index::LimitIndex;
use super::path::PathPattern;

/// One route.
#[derive(Clone, Debug)]
pub struct Route {
    /// Unique in the policy.
    pub name: Arc<str>,
    /// The requests that it matches.
    pub matches: RouteMatch,
    /// Its limits in order, the defaults first.
    pub limits: Vec<RouteLimit>,
    /// The index of its origin in the configuration's list. It has no meaning for a limiter inside another server.
    pub origin: usize,
    /// Requests to which only estimate limits by address apply.
    pub exempt: Exempt,
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
fn is_preflight(facts: &Facts<'_>) -> bool {
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

/// Conditions that must all hold; an empty list holds for every request.
#[derive(Clone, Debug, Default)]
pub struct RouteMatch {
    /// The host matches one of these.
    pub hosts: Vec<HostPattern>,
    /// The path matches one of these.
    pub paths: Vec<PathPattern>,
    /// The method is one of these.
    pub methods: MethodSet,
    /// Each of these headers occurs with exactly this value.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The client is in one of these networks.
    pub clients: Vec<IpNet>,
}

/// A host, or all hosts below a domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This host, lower case.
    Exact(Box<str>),
    /// `*.example.com`: any host below at any depth, not `example.com` itself. Holds `example.com`.
    Below(Box<str>),
}

/// Methods by name; empty means all. GET includes HEAD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MethodSet(Vec<Box<str>>);

impl RouteMatch {
    /// Whether all conditions hold. The router only preselects routes; this function decides.
    pub fn holds(&self, facts: &Facts<'_>) -> bool {
        (self.hosts.is_empty() || self.hosts.iter().any(|host| host.matches(facts.host)))
            && (self.paths.is_empty() || self.paths.iter().any(|path| path.matches(facts.path)))
            && self.methods.contains(facts.method)
            && self
                .headers
                .iter()
                .all(|(name, value)| facts.headers.get_all(name).iter().any(|found| found == value))
            && (self.clients.is_empty() || self.is_client(facts.client.ip))
    }

    fn is_client(&self, address: IpAddr) -> bool {
        let address = client::unmapped(address);
        self.clients.iter().any(|net| net.contains(&address))
    }
}

impl HostPattern {
    /// Whether a lower-case host without port matches.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *host,
            Self::Below(domain) => host
                .strip_suffix(&**domain)
                .and_then(|below| below.strip_suffix('.'))
                .is_some_and(|label| !label.is_empty()),
        }
    }
}

impl MethodSet {
    /// A set of methods as configured.
    pub fn new(methods: impl IntoIterator<Item = String>) -> Self {
        Self(methods.into_iter().map(String::into_boxed_str).collect())
    }

    /// Whether a method is in the set.
    pub fn contains(&self, method: &str) -> bool {
        let method = if method == "HEAD" { &["HEAD", "GET"][..] } else { &[method][..] };
        self.0.is_empty() || self.0.iter().any(|allowed| method.contains(&&**allowed))
    }

    /// The methods as configured; none means all.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|method| &**method)
    }
}
