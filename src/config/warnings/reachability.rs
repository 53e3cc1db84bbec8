//! Finds routes that no request can reach because routes before them take every request that they match.
//!
//! A route is reachable if a request is found that the router, the same one that serves, leads to it. The requests that
//! are tried stand for all requests, as far as the conditions of the route and of the routes before it can tell them
//! apart (`sample_requests.rs`). If none of them reaches the route, no request does. Where that is not certain (a
//! regular expression is involved, or there are too many combinations), a route counts as unreachable only if a single
//! route before it takes all of its requests by comparison of their conditions.

use std::cell::Cell;
use std::sync::Arc;

use ipnet::IpNet;

use super::sample_requests::{SampleRequest, SampleSpace};
use crate::policy::condition::{Condition, ValueTest};
use crate::policy::path_samples::is_within;
use crate::policy::{HostPattern, MethodSet, RequestMatch, Route, Router};

/// The most requests that are tried for one route.
const MAX_TRIES: usize = 20_000;

/// The most requests that are tried, and conditions that are compared, for all routes of a file: about a second. Routes
/// that are left then count as reachable.
const MAX_WORK: u64 = 1_000_000;

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

/// Whether requests reach each route. `listeners`: the name of each listener.
pub(super) fn reach(routes: &[&Route], listeners: &[Option<Arc<str>>]) -> Vec<Reach> {
    let owned: Vec<Route> = routes.iter().map(|route| (*route).clone()).collect();
    let work = Cell::new(MAX_WORK);
    let search = Search { router: Router::new(&owned), routes: &owned, listeners, work };
    (0..routes.len()).map(|index| search.reach(index)).collect()
}

struct Search<'s> {
    router: Router,
    routes: &'s [Route],
    listeners: &'s [Option<Arc<str>>],
    /// What is left of [`MAX_WORK`].
    work: Cell<u64>,
}

impl Search<'_> {
    /// Takes one unit of work. Returns whether there was one.
    fn take_work(&self) -> bool {
        let left = self.work.get();
        self.work.set(left.saturating_sub(1));
        left > 0
    }

    fn reach(&self, index: usize) -> Reach {
        let matches = |index: usize| &self.routes[index].matches;
        let own = SampleSpace::new(matches(index), &[], self.listeners);
        if own.requests().take(MAX_TRIES).any(|request| self.leads_to(&request, index)) {
            return Reach::Reachable;
        }
        for earlier in 0..index {
            if !self.take_work() {
                return Reach::Reachable;
            }
            if covers(matches(earlier), matches(index)) {
                return Reach::TakenBy(vec![earlier]);
            }
        }
        let earlier: Vec<&RequestMatch> =
            (0..index).map(matches).filter(|earlier| may_meet(earlier, matches(index))).collect();
        let space = SampleSpace::new(matches(index), &earlier, self.listeners);
        let (mut tries, mut takers) = (0, Vec::new());
        for request in space.requests() {
            tries += 1;
            if tries > MAX_TRIES || !self.take_work() {
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
fn covers(earlier: &RequestMatch, later: &RequestMatch) -> bool {
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
        && covers_list(&earlier.paths, &later.paths, |wide, narrow| is_within(narrow, wide))
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
        wide.tests.contains(test)
            || matches!(test, ValueTest::Equals(text) if wide.tests.iter().any(|wide| wide.passes(text.as_bytes())))
            || *test != ValueTest::Absent && wide.tests.contains(&ValueTest::Present)
    };
    narrow.subject == wide.subject && narrow.tests.iter().all(passes)
}
