//! A complete policy: its limits and routes, and what follows from all of them together.

use std::sync::Arc;

use http::HeaderName;

use super::condition::Subject;
use super::cost::Cost;
use super::facts::Facts;
use super::fleet::FleetTerms;
use super::index::{LimitIndex, RouteIndex};
use super::key::Source;
use super::key_rules::KeyRule;
use super::limit::{Limit, MissingKey};
use super::matching::Class;
use super::route::{Route, RouteLimit};
use super::router::Router;
use super::terms::OverrideTarget;
use super::unreadable::Unreadable;
use crate::tokens::PublishedKeySet;

/// The largest number of limits of one route. It bounds how many locks a request holds at a time.
pub const MAX_LIMITS_PER_ROUTE: usize = 16;

/// The part of a configuration that decides requests.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Every limit, in the order of the file.
    pub limits: Vec<Limit>,
    /// Every route, in the order of the file; the first that matches wins.
    pub routes: Arc<Vec<Route>>,
    /// The index that finds that route.
    pub router: Arc<Router>,
    /// The largest total weight of live cells in the exact tier (`max_keys`).
    pub max_keys: usize,
    /// The published sets of keys that tokens are verified with, each once, in the order of the file.
    pub key_sets: Vec<Arc<PublishedKeySet>>,
    /// How nodes exchange the counts of limits with `scope: fleet`.
    pub fleet: FleetTerms,
    /// Whether the engine writes a trace of each request, for a replay.
    pub writes_traces: bool,
}

impl Policy {
    /// The same policy with these rules for keys, in the stead of those that it has.
    pub fn with_key_rules(&self, rules: &[KeyRule]) -> Self {
        let mut policy = self.clone();
        for limit in &mut policy.limits {
            if !limit.terms.key_rules.is_empty()
                || rules.iter().any(|rule| rule.limit == limit.name)
            {
                limit.set_key_rules(rules.iter());
            }
        }
        policy
    }

    /// The limit with this index.
    pub fn limit(&self, index: LimitIndex) -> &Limit {
        &self.limits[index.0]
    }

    /// Every limit with its index, in the order of the file.
    pub fn indexed_limits(&self) -> impl Iterator<Item = (LimitIndex, &Limit)> {
        self.limits.iter().enumerate().map(|(position, limit)| (LimitIndex(position), limit))
    }

    /// The route with this index.
    pub fn route(&self, index: RouteIndex) -> &Route {
        &self.routes[index.0]
    }

    /// The first route that matches.
    ///
    /// # Errors
    /// Which one it is depends on a value that origins may read in different ways.
    pub fn find(&self, facts: &Facts<'_>) -> Result<Option<RouteIndex>, Unreadable> {
        self.router.find(&self.routes, facts)
    }

    /// The sources of keys and plans that read the path, of all limits that a route can lead to.
    pub fn path_sources(&self, route: &Route) -> Vec<Source> {
        self.sources(route, Source::reads_path)
    }

    /// The classes of overrides that read the path, each once, of all limits that a route can lead to.
    pub fn path_classes(&self, route: &Route) -> Vec<Arc<Class>> {
        let mut found: Vec<Arc<Class>> = Vec::new();
        let limits = route.limits.iter().flat_map(|used| self.missing_key_chain(used.limit));
        for rule in limits.flat_map(|index| &self.limit(index).terms.overrides) {
            if let OverrideTarget::Class(class) = &rule.target
                && class.matches.reads_path()
                && !found.contains(class)
            {
                found.push(Arc::clone(class));
            }
        }
        found
    }

    /// The selected sources of keys and plans, each once, of all limits that a route can lead to.
    pub fn sources(&self, route: &Route, is_selected: impl Fn(&Source) -> bool) -> Vec<Source> {
        let mut found: Vec<Source> = Vec::new();
        for route_limit in &route.limits {
            for index in self.missing_key_chain(route_limit.limit) {
                let limit = self.limit(index);
                let plan = limit.terms.plans.as_ref().map(|plans| &plans.by);
                for source in limit.key.sources().iter().chain(plan) {
                    if is_selected(source) && !found.contains(source) {
                        found.push(source.clone());
                    }
                }
            }
        }
        found
    }

    /// A limit, followed by the limits that apply instead if a key is missing.
    pub fn missing_key_chain(&self, first: LimitIndex) -> impl Iterator<Item = LimitIndex> {
        // The configuration refuses chains with a cycle.
        std::iter::successors(Some(first), |index| match self.limit(*index).missing_key {
            MissingKey::Limit(next) => Some(next),
            MissingKey::Impossible
            | MissingKey::Skip
            | MissingKey::Deny(_)
            | MissingKey::ClientIp => None,
        })
    }

    /// Every request header that the policy reads: for keys, plans, costs and matches. Names may repeat.
    pub fn header_names(&self) -> Vec<HeaderName> {
        let route_limits = self.routes.iter().flat_map(|route| &route.limits);
        let route_costs = route_limits.map(|route_limit| &route_limit.cost);
        let costs = self.limits.iter().map(|limit| &limit.cost).chain(route_costs);
        let costs = costs.filter_map(|cost| match cost {
            Cost::Request { header, .. } => Some(header),
            Cost::Fixed(_) | Cost::Response { .. } => None,
        });
        let sources_of = |limit: &Limit| {
            let plan = limit.terms.plans.as_ref().map(|plans| &plans.by);
            limit
                .key
                .sources()
                .iter()
                .chain(plan)
                .flat_map(Source::classes)
                .cloned()
                .collect::<Vec<_>>()
        };
        let overridden = self.limits.iter().flat_map(|limit| &limit.terms.overrides);
        let overridden = overridden.filter_map(|rule| match &rule.target {
            OverrideTarget::Class(class) => Some(Arc::clone(class)),
            OverrideTarget::Keys(_) | OverrideTarget::Network(_) => None,
        });
        let classes: Vec<Arc<Class>> =
            self.limits.iter().flat_map(sources_of).chain(overridden).collect();
        let conditions = self.routes.iter().flat_map(|route| route.matches.all_values());
        let conditions =
            conditions.chain(classes.iter().flat_map(|class| class.matches.all_values()));
        let matches = conditions.filter_map(|condition| match condition.subject() {
            Subject::Header(name) => Some(name),
            Subject::Query(_) | Subject::Cookie(_) => None,
        });
        self.key_header_names().chain(costs).chain(matches).cloned().collect()
    }

    /// Every request header whose value is a key or names a plan. Names may repeat.
    pub fn key_header_names(&self) -> impl Iterator<Item = &HeaderName> {
        self.limits.iter().flat_map(|limit| {
            let plan = limit.terms.plans.as_ref().map(|plans| &plans.by);
            limit.key.sources().iter().chain(plan).filter_map(Source::header_name)
        })
    }

    /// Every limit for which some route takes the cost from the response.
    pub fn limits_with_response_cost(&self) -> Vec<LimitIndex> {
        let depends = |route_limit: &&RouteLimit| route_limit.cost.depends_on_response();
        let mut found = Vec::new();
        for route_limit in self.routes.iter().flat_map(|route| &route.limits).filter(depends) {
            for index in self.missing_key_chain(route_limit.limit) {
                if found.contains(&index) {
                    break;
                }
                found.push(index);
            }
        }
        found
    }
}
