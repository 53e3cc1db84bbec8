//! What is limited, and for whom: routes, limits and keys as values, and the matching of a request
//! against them. No I/O, no async, no clock, and nothing of how a configuration is written.

pub mod client;
mod cost;
mod ending;
mod facts;
mod family;
pub mod key;
mod path;
mod penalty;
mod route;
mod router;
mod terms;

use std::fmt;
use std::sync::Arc;

use http::HeaderName;

use crate::clock::Nanos;
use crate::limit::{Quota, Rate};

pub use cost::{Cost, RepeatedCost};
pub use ending::{StatusRules, Statuses};
pub use facts::Facts;
pub use family::Family;
pub use key::{KeyHash, KeySecret, KeySpec, Source};
pub use path::{PathPattern, PathPatternError};
pub use penalty::Penalty;
pub use route::{Exempt, HostPattern, MethodSet, Route, RouteLimit, RouteMatch};
pub use router::Router;
pub use terms::{
    KeyValues, Override, OverrideAction, OverrideTarget, Plans, RateIndex, Rollout, Terms,
};

/// Most limits of one route, so that the locks one request holds at a time are few.
pub const MAX_LIMITS_PER_ROUTE: usize = 16;

/// A limit's place in [`Policy::limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitIndex(pub usize);

/// A route's place in [`Policy::routes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteIndex(pub usize);

/// Everything a decision needs to know of a configuration.
#[derive(Debug)]
pub struct Policy {
    /// Every limit, in the order of the file.
    pub limits: Vec<Limit>,
    /// Every route, in the order of the file; the first that matches wins.
    pub routes: Vec<Route>,
    /// Finds that route.
    pub router: Router,
    /// Weight of live cells of the exact tier in all (`max_keys`).
    pub max_keys: usize,
}

/// Which of the two tiers counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Approximate, per node, fixed memory.
    Estimate,
    /// Exact per key.
    Exact,
}

impl Tier {
    /// The word of the configuration and of the metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Estimate => "estimate",
            Self::Exact => "exact",
        }
    }
}

/// One limit.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Unique in the policy; counters survive a reload by it.
    pub name: Arc<str>,
    /// Who counts, with what it needs to.
    pub count: Count,
    /// Whose cell is charged.
    pub key: KeySpec,
    /// What happens where the key is absent.
    pub missing_key: MissingKey,
    /// Whether a refusal refuses.
    pub mode: Mode,
    /// What a request costs where the route does not say.
    pub cost: Cost,
    /// For whom it is another limit.
    pub terms: Box<Terms>,
    /// Which answers give back.
    pub status_rules: StatusRules,
    /// What becomes of those that it denies too often.
    pub penalty: Option<Penalty>,
    /// Left out of the response headers (`headers: hidden`).
    pub hidden: bool,
}

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Count {
    /// The estimate tier: a moving window of `rate`, in a sketch made for `expect`.
    Estimate {
        /// Units per window.
        rate: Rate,
        /// Requests per second that this node shall expect of all keys together.
        expect_per_second: u32,
    },
    /// The exact tier.
    Exact {
        /// The algorithm with its numbers.
        quota: Quota,
        /// What to do for new keys when the room is full of live cells.
        when_full: WhenFull,
        /// The limit's own share of `max_keys`, if it has one.
        max_keys: Option<usize>,
        /// What to do while the store does not answer.
        on_store_failure: OnStoreFailure,
    },
    /// Requests at once (`max_in_flight`): exact, per node, with every store.
    InFlight {
        /// The most requests of one key at once.
        max: u32,
    },
}

impl Count {
    /// The tier.
    pub const fn tier(&self) -> Tier {
        match self {
            Self::Estimate { .. } => Tier::Estimate,
            Self::Exact { .. } | Self::InFlight { .. } => Tier::Exact,
        }
    }
}

/// What a new key meets in a store whose room is full of live cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is counted in the estimate tier, whose memory does not grow.
    #[default]
    Estimate,
    /// It is refused.
    Deny,
    /// It passes uncounted.
    Allow,
}

/// What judges while the store does not answer. (An embedded one always does.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// This node alone, at the full rate.
    #[default]
    Local,
    /// Nobody: the request passes uncounted.
    Allow,
    /// Nobody: the request is answered 503.
    Deny,
}

/// Whether a limit refuses, or only counts and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It refuses.
    #[default]
    Enforce,
    /// It is judged and charged apart, reported in metrics and the log, and never refuses.
    Shadow,
}

/// What happens to a request that has no key for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingKey {
    /// The key is of sources that are always there.
    Impossible,
    /// The limit does not apply.
    Skip,
    /// The request is answered with this status (400 to 499).
    Deny(u16),
    /// The client's address stands for the key.
    ClientIp,
    /// Another limit applies instead, with the same cost.
    Limit(LimitIndex),
}

impl Policy {
    /// The limit at a place.
    pub fn limit(&self, index: LimitIndex) -> &Limit {
        &self.limits[index.0]
    }

    /// The route at a place.
    pub fn route(&self, index: RouteIndex) -> &Route {
        &self.routes[index.0]
    }

    /// The first route that matches.
    pub fn find(&self, facts: &Facts<'_>) -> Option<RouteIndex> {
        self.router.find(&self.routes, facts)
    }
}

impl Policy {
    /// The sources of keys and plans that read the path, of all limits that a route can lead to.
    pub fn path_sources(&self, route: &Route) -> Vec<Source> {
        self.sources(route, Source::reads_path)
    }

    /// Those sources of keys and plans that are asked for, of all limits that a route can lead to.
    pub fn sources(&self, route: &Route, is_asked_for: impl Fn(&Source) -> bool) -> Vec<Source> {
        let mut found: Vec<Source> = Vec::new();
        for one in &route.limits {
            let mut next = Some(one.limit);
            while let Some(limit) = next.map(|index| self.limit(index)) {
                let plan = limit.terms.plans.as_ref().map(|plans| &plans.by);
                for source in limit.key.sources().iter().chain(plan) {
                    if is_asked_for(source) && !found.contains(source) {
                        found.push(source.clone());
                    }
                }
                // A chain without cycles.
                next = match limit.missing_key {
                    MissingKey::Limit(after) => Some(after),
                    _ => None,
                };
            }
        }
        found
    }

    /// Every field of requests that the policy means something by: of keys, plans, costs and matches.
    pub fn header_names(&self) -> Vec<HeaderName> {
        let limits = self.limits.iter();
        let sources = limits.flat_map(|limit| {
            let plan = limit.terms.plans.as_ref().map(|plans| &plans.by);
            limit.key.sources().iter().chain(plan).filter_map(Source::header_name)
        });
        let uses = self.routes.iter().flat_map(|route| &route.limits).map(|one| &one.cost);
        let costs = self.limits.iter().map(|limit| &limit.cost).chain(uses);
        let costs = costs.filter_map(|cost| match cost {
            Cost::Request { header, .. } => Some(header),
            Cost::Fixed(_) | Cost::Response { .. } => None,
        });
        let matches = self.routes.iter().flat_map(|route| &route.matches.headers);
        sources.chain(costs).chain(matches.map(|(name, _)| name)).cloned().collect()
    }

    /// Every limit whose charges an answer can change by what it says of the cost.
    pub fn limits_with_response_cost(&self) -> Vec<LimitIndex> {
        let late = |one: &&RouteLimit| one.cost.depends_on_response();
        let mut found = Vec::new();
        for one in self.routes.iter().flat_map(|route| &route.limits).filter(late) {
            let mut next = Some(one.limit);
            while let Some(limit) = next.filter(|limit| !found.contains(limit)) {
                found.push(limit);
                next = match self.limit(limit).missing_key {
                    MissingKey::Limit(after) => Some(after),
                    _ => None,
                };
            }
        }
        found
    }
}

impl Limit {
    /// Whether requests that `responses.exempt` names meet it all the same: they bring no credential, cost
    /// nothing exact, and a flood of them is a flood.
    pub fn meets_exempt(&self) -> bool {
        matches!(self.count, Count::Estimate { .. }) && self.key == KeySpec::client_ip()
    }

    /// One of the limit's rates; `None` in the estimate tier and of requests in flight.
    pub fn quota(&self, rate: RateIndex) -> Option<&Quota> {
        match &self.count {
            Count::Exact { quota, .. } => {
                let other = rate.checked_sub(1).and_then(|n| self.terms.quotas.get(n as usize));
                Some(other.unwrap_or(quota))
            }
            Count::Estimate { .. } | Count::InFlight { .. } => None,
        }
    }

    /// Whether a request may wait for its turn under one of the limit's rates. Those that watch let
    /// nobody wait.
    pub fn delays(&self) -> bool {
        self.mode == Mode::Enforce && self.has_max_delay()
    }

    /// The same in either mode.
    pub fn has_max_delay(&self) -> bool {
        let own = match &self.count {
            Count::Exact { quota, .. } => Some(quota),
            Count::Estimate { .. } | Count::InFlight { .. } => None,
        };
        let mut quotas = own.into_iter().chain(&self.terms.quotas);
        quotas.any(|quota| quota.max_delay() > Nanos::ZERO)
    }

    /// A text that is equal for two limits exactly when cells of one can be read as the other's:
    /// name, tier, algorithm and key. It is hashed into every key, so that a change of any of
    /// them starts afresh.
    pub fn identity(&self) -> String {
        let algorithm = match &self.count {
            Count::Estimate { .. } => "estimate",
            Count::Exact { quota, .. } => quota.name(),
            Count::InFlight { .. } => "max_in_flight",
        };
        format!("{}\0{algorithm}\0{}", self.name, self.key)
    }
}

impl fmt::Display for MissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Impossible => f.write_str("always there"),
            Self::Skip => f.write_str("skip"),
            Self::Deny(status) => write!(f, "deny ({status})"),
            Self::ClientIp => f.write_str("client_ip"),
            Self::Limit(_) => f.write_str("another limit"),
        }
    }
}
