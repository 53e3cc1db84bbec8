//! Finds routes that no request can reach because routes before them take every request that they match.
//!
//! A route is reachable if a request is found that the router, the same one that serves, leads to it. The requests that
//! are tried stand for all requests, as far as the conditions of the route and of the routes before it can tell them
//! apart (`sample_requests.rs`). If none of them reaches the route, no request does. Where that is not certain (a
//! regular expression is involved, or there are too many combinations), a route counts as unreachable only if a single
//! route before it takes all of its requests by comparison of their conditions.
//!
//! A check and a reload run this search, so it is bounded for every file: what it does is counted, and routes that are left
//! when nothing may be done any more count as reachable.

use std::sync::Arc;

use ipnet::IpNet;

use super::sample_requests::{SampleRequest, SampleSpace};
use crate::policy::condition::{Condition, ValueTest};
use crate::policy::path_samples::{SearchBudget, is_within};
use crate::policy::{Facts, HostPattern, MethodSet, RequestMatch, Route, Router};

/// The most requests that are tried for one route.
const MAX_TRIES: usize = 20_000;

/// The most requests that are tried without telling apart what the routes before it take.
const MAX_FIRST_TRIES: usize = 1_000;

/// What the search may do for all routes of a file, in the units of [`SearchBudget`]: about a second.
const MAX_WORK: u64 = 20_000_000;

/// The units of building a request.
const REQUEST_UNITS: u64 = 20;

/// The most conditions of a route and of those before it that are told apart. With more, samples of them would take longer
/// to make than all other routes to check.
const MAX_CONDITIONS: usize = 1_000;

/// Whether requests reach a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Some do, or it is not known.
    Reachable,
    /// None does: these routes, by index, take them all.
    TakenBy(Vec<usize>),
    /// No request fulfils its conditions.
    Impossible,
}

/// A search through sample requests.
pub(super) struct SampleSearch<'s> {
    router: Router,
    routes: &'s [Route],
    listeners: &'s [Option<Arc<str>>],
    budget: SearchBudget,
    /// The units of finding the route of a request.
    try_units: u64,
}

impl<'s> SampleSearch<'s> {
    /// A search with a budget of its own. `listeners`: the name of each listener.
    pub(super) fn new(routes: &'s [Route], listeners: &'s [Option<Arc<str>>]) -> Self {
        let router = Router::new(routes);
        let try_units = REQUEST_UNITS + router.max_candidates() as u64;
        Self { router, routes, listeners, budget: SearchBudget::new(MAX_WORK), try_units }
    }

    /// Whether requests reach each route.
    pub(super) fn reaches(&self) -> Vec<Reach> {
        (0..self.routes.len()).map(|index| self.reach(index)).collect()
    }

    /// Calls `visit` with sample requests that the route at `index` serves, and that `probes` tell apart, until it returns
    /// true. Returns whether the requests stand for all that the route serves.
    pub(super) fn visit(
        &self,
        index: usize,
        probes: &[RequestMatch],
        mut visit: impl FnMut(&Facts<'_>) -> bool,
    ) -> bool {
        let matches = |index: usize| &self.routes[index].matches;
        let probes: Vec<&RequestMatch> = probes.iter().collect();
        // Most questions are answered without the routes before.
        let earlier: Vec<&RequestMatch> =
            (0..index).map(matches).filter(|earlier| may_meet(earlier, matches(index))).collect();
        let with_earlier: Vec<&RequestMatch> = probes.iter().copied().chain(earlier).collect();
        for (apart, max_tries) in [(probes, MAX_FIRST_TRIES), (with_earlier, MAX_TRIES)] {
            let others: usize = apart.iter().map(|matches| conditions(matches)).sum();
            let all = others + conditions(matches(index));
            if all > MAX_CONDITIONS || !self.budget.take(all as u64) {
                return false;
            }
            let space = SampleSpace::new(matches(index), &apart, self.listeners, &self.budget);
            let is_last = max_tries == MAX_TRIES;
            if is_last && !(space.is_complete() && space.len() <= max_tries) {
                return false;
            }
            for request in space.requests().take(max_tries) {
                if !self.budget.take(self.try_units) {
                    return false;
                }
                let facts = request.facts();
                match self.router.find(self.routes, &facts) {
                    Ok(Some(found)) if found.0 == index && visit(&facts) => return true,
                    Ok(_) => {}
                    Err(_) => return false,
                }
            }
        }
        true
    }

    /// Whether a request can be in a class. `None`: it is not known.
    pub(super) fn has_requests(&self, class: &RequestMatch) -> Option<bool> {
        if conditions(class) > MAX_CONDITIONS || !self.budget.take(conditions(class) as u64) {
            return None;
        }
        let space = SampleSpace::new(class, &[], self.listeners, &self.budget);
        for (tries, request) in space.requests().enumerate() {
            if tries >= MAX_TRIES || !self.budget.take(REQUEST_UNITS) {
                return None;
            }
            if class.holds(&request.facts()).ok()? {
                return Some(true);
            }
        }
        space.is_complete().then_some(false)
    }

    fn reach(&self, index: usize) -> Reach {
        let matches = |index: usize| &self.routes[index].matches;
        let own_conditions = conditions(matches(index));
        if own_conditions > MAX_CONDITIONS || !self.budget.take(own_conditions as u64) {
            return Reach::Reachable;
        }
        let own = SampleSpace::new(matches(index), &[], self.listeners, &self.budget);
        for request in own.requests().take(MAX_TRIES) {
            if !self.budget.take(self.try_units) || self.leads_to(&request, index) {
                return Reach::Reachable;
            }
        }
        for earlier in 0..index {
            let comparisons = (1 + conditions(matches(earlier))).saturating_mul(1 + own_conditions);
            if !self.budget.take(comparisons as u64) {
                return Reach::Reachable;
            }
            if covers(matches(earlier), matches(index), &self.budget) {
                return Reach::TakenBy(vec![earlier]);
            }
        }
        let earlier: Vec<&RequestMatch> =
            (0..index).map(matches).filter(|earlier| may_meet(earlier, matches(index))).collect();
        let all = own_conditions + earlier.iter().map(|matches| conditions(matches)).sum::<usize>();
        if all > MAX_CONDITIONS {
            return Reach::Reachable;
        }
        let space = SampleSpace::new(matches(index), &earlier, self.listeners, &self.budget);
        let (mut tries, mut takers) = (0, Vec::new());
        for request in space.requests() {
            tries += 1;
            if tries > MAX_TRIES || !self.budget.take(self.try_units) {
                return Reach::Reachable;
            }
            let facts = request.facts();
            if matches(index).holds(&facts) != Ok(true) {
                continue;
            }
            match self.router.find(self.routes, &facts) {
                Ok(Some(found)) if found.0 == index => return Reach::Reachable,
                Ok(Some(found)) if !takers.contains(&found.0) => takers.push(found.0),
                Ok(_) => {}
                Err(_) => return Reach::Reachable,
            }
        }
        takers.sort_unstable();
        match (space.is_complete(), takers.is_empty()) {
            (false, _) => Reach::Reachable,
            (true, true) => Reach::Impossible,
            (true, false) => Reach::TakenBy(takers),
        }
    }

    fn leads_to(&self, request: &SampleRequest, index: usize) -> bool {
        let found = self.router.find(self.routes, &request.facts());
        matches!(found, Ok(Some(found)) if found.0 == index)
    }
}

/// How many conditions a match has, with those inside it.
fn conditions(matches: &RequestMatch) -> usize {
    let own = |matches: &RequestMatch| {
        let tests: usize = matches.values.iter().map(|condition| condition.tests().len()).sum();
        1 + tests
            + matches.hosts.len()
            + matches.paths.len()
            + matches.methods.iter().count()
            + matches.clients.len()
            + matches.listeners.len()
    };
    matches.nested().iter().map(|matches| own(matches)).sum()
}

/// Whether some request could fulfil both, as far as hosts and methods say.
fn may_meet(first: &RequestMatch, second: &RequestMatch) -> bool {
    let hosts = first.hosts.is_empty()
        || second.hosts.is_empty()
        || first
            .hosts
            .iter()
            .any(|a| second.hosts.iter().any(|b| is_host_within(a, b) || is_host_within(b, a)));
    let all = |set: &MethodSet| set.iter().next().is_none();
    let methods = all(&first.methods)
        || all(&second.methods)
        || first.methods.iter().any(|method| second.methods.contains(method))
        || second.methods.iter().any(|method| first.methods.contains(method));
    hosts && methods
}

/// Whether `earlier` matches everything that `later` matches, by comparison of their conditions. `false` also if that is
/// not known.
fn covers(earlier: &RequestMatch, later: &RequestMatch, budget: &SearchBudget) -> bool {
    covers_list(&earlier.hosts, &later.hosts, |wide, narrow| is_host_within(narrow, wide))
        && covers_list(&earlier.clients, &later.clients, |wide: &IpNet, narrow| {
            wide.contains(narrow)
        })
        && covers_list(&earlier.listeners, &later.listeners, |wide, narrow| wide == narrow)
        && covers_list(&earlier.classes, &later.classes, |wide, narrow| wide.name == narrow.name)
        && (earlier.methods.iter().next().is_none()
            || later.methods.iter().next().is_some()
                && later.methods.iter().all(|method| earlier.methods.contains(method)))
        && earlier.values.iter().all(|wide| later.values.iter().any(|narrow| implies(narrow, wide)))
        && earlier.none_of.iter().all(|excluded| later.none_of.contains(excluded))
        && covers_list(&earlier.paths, &later.paths, |wide, narrow| is_within(narrow, wide, budget))
}

/// Whether each item of `later` is covered by one of `earlier`. An empty list is everything.
fn covers_list<T>(earlier: &[T], later: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    earlier.is_empty()
        || !later.is_empty()
            && later.iter().all(|narrow| earlier.iter().any(|wide| covers(wide, narrow)))
}

/// Whether every host of one pattern is a host of the other.
fn is_host_within(narrow: &HostPattern, wide: &HostPattern) -> bool {
    match (narrow, wide) {
        (HostPattern::Exact(host), wide) => wide.matches(host),
        (HostPattern::Below(_), HostPattern::Exact(_)) => false,
        (HostPattern::Below(narrow), HostPattern::Below(wide)) => {
            narrow == wide || HostPattern::Below(wide.clone()).matches(narrow)
        }
    }
}

/// Whether a request that fulfils `narrow` fulfils `wide`.
fn implies(narrow: &Condition, wide: &Condition) -> bool {
    let passes = |test: &ValueTest| {
        wide.tests().contains(test)
            || matches!(test, ValueTest::Equals(text) if wide.tests().iter().any(|wide| wide.passes(text.as_bytes())))
            || *test != ValueTest::Absent && wide.tests().contains(&ValueTest::Present)
    };
    narrow.subject() == wide.subject() && narrow.tests().iter().all(passes)
}
