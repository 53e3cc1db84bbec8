//! Finds the first route that matches without trying every route.
//!
//! Routes are indexed by host (each exact host, each `*.domain`, and any host), and under each host by a tree of
//! path segments. A lookup visits the few nodes on the request's path and tries the routes stored there, in
//! the order of the file. Where many routes need a value of a header, a query parameter or a cookie, they are also indexed
//! by that value (`guards.rs`). So the cost of a lookup grows with the number of routes that could match. The index only
//! preselects; [`super::RequestMatch::holds`] decides. The result always equals trying all routes in order.

use std::cell::OnceCell;

use hashbrown::HashMap;

use super::condition::Condition;
use super::condition_results::{Guard, HeldGuards};
use super::facts::Facts;
use super::guards::{GuardCollector, GuardIndex};
use super::index::RouteIndex;
use super::matching::{HostPattern, RequestMatch};
use super::path::SegmentPattern;
use super::route::Route;
use super::unreadable::Unreadable;

/// With fewer routes that need a value, each is tried: an automaton would cost more than it saves.
const MIN_GUARDED_ROUTES: usize = 8;

/// An index of a policy's routes.
#[derive(Debug, Default)]
pub struct Router {
    /// By host: routes for this host.
    exact: HashMap<Box<str>, PathNode>,
    /// By domain: routes for all hosts below it.
    below: HashMap<Box<str>, PathNode>,
    /// Routes for any host.
    any: PathNode,
    guards: GuardIndex,
}

/// One node of a tree of path segments.
#[derive(Debug, Default)]
struct PathNode {
    /// Children for a segment with this text.
    literal: HashMap<Box<str>, PathNode>,
    /// The child for any segment (`*`, or `*.png`; `holds` checks what it ends in).
    any_segment: Option<Box<PathNode>>,
    /// Routes with a pattern that ends here.
    ends: RouteList,
    /// Routes with a pattern that continues with `**` here; `holds` checks the rest of the pattern.
    rests: RouteList,
}

/// Routes by index, ascending.
#[derive(Debug, Default)]
struct RouteList {
    /// Routes that are tried for every request.
    free: Vec<usize>,
    /// Routes that can match only where one of their guards holds.
    guarded: HashMap<Guard, Vec<usize>>,
}

/// A route while it is indexed.
struct IndexedRoute<'r> {
    index: usize,
    matches: &'r RequestMatch,
    /// One of these holds for every request that the route matches; empty: nothing is known.
    guards: Vec<Guard>,
}

/// One lookup.
struct Lookup<'l> {
    router: &'l Router,
    routes: &'l [Route],
    facts: &'l Facts<'l>,
    /// Evaluated when the first list with guarded routes is visited.
    held: OnceCell<HeldGuards>,
    /// The first route that matches so far.
    best: Option<usize>,
    /// The first route of which that cannot be known.
    unreadable: Option<usize>,
}

impl Router {
    /// Indexes every route.
    pub fn new(routes: &[Route]) -> Self {
        let mut collector = GuardCollector::default();
        let guarded = routes.iter().filter(|route| guard_conditions(&route.matches).is_some());
        let has_guards = guarded.count() >= MIN_GUARDED_ROUTES;
        let mut router = Self::default();
        for (index, route) in routes.iter().enumerate() {
            let matches = &route.matches;
            let conditions = guard_conditions(matches).filter(|_| has_guards).unwrap_or_default();
            let tests = conditions.iter().flat_map(|condition| {
                condition.tests().iter().map(|test| (condition.subject(), test))
            });
            let guards = tests.map(|(subject, test)| collector.guard(subject, test)).collect();
            router.insert(&IndexedRoute { index, matches, guards });
        }
        router.guards = collector.finish();
        router
    }

    fn insert(&mut self, route: &IndexedRoute<'_>) {
        if route.matches.hosts.is_empty() {
            self.any.insert_route(route);
        }
        for host in &route.matches.hosts {
            let node = match host {
                HostPattern::Exact(host) => self.exact.entry(host.clone()),
                HostPattern::Below(domain) => self.below.entry(domain.clone()),
            };
            node.or_default().insert_route(route);
        }
    }

    /// At most how many routes one lookup tries, and how many guards it looks up.
    pub(crate) fn max_candidates(&self) -> usize {
        let largest = |nodes: &HashMap<Box<str>, PathNode>| {
            nodes.values().map(PathNode::max_candidates).max().unwrap_or_default()
        };
        self.any.max_candidates() + largest(&self.exact) + largest(&self.below)
    }

    /// The first route, in the order of the file, that matches.
    ///
    /// # Errors
    /// Origins may read a value in different ways, and a route that stands before every other match depends on it.
    pub fn find(
        &self,
        routes: &[Route],
        facts: &Facts<'_>,
    ) -> Result<Option<RouteIndex>, Unreadable> {
        let mut lookup = Lookup {
            router: self,
            routes,
            facts,
            held: OnceCell::new(),
            best: None,
            unreadable: None,
        };
        lookup.search(&self.any);
        if let Some(node) = self.exact.get(facts.host) {
            lookup.search(node);
        }
        if !self.below.is_empty() {
            let mut host = facts.host;
            while let Some((_, domain)) = host.split_once('.') {
                if let Some(node) = self.below.get(domain) {
                    lookup.search(node);
                }
                host = domain;
            }
        }
        lookup.result()
    }
}

/// The conditions of which at least one holds for every request that a match accepts: one of its own that needs a value,
/// or one of each of its classes. `None` if there are none.
fn guard_conditions(matches: &RequestMatch) -> Option<Vec<&Condition>> {
    if let Some(own) = matches.values.iter().find(|condition| condition.needs_value()) {
        return Some(vec![own]);
    }
    if matches.classes.is_empty() {
        return None;
    }
    let of_class = |matches: &'_ RequestMatch| -> Option<usize> {
        matches.values.iter().position(Condition::needs_value)
    };
    let classes = matches.classes.iter().map(|class| &class.matches);
    classes.map(|matches| of_class(matches).map(|index| &matches.values[index])).collect()
}

impl PathNode {
    fn max_candidates(&self) -> usize {
        let literal = self.literal.values().map(Self::max_candidates).max().unwrap_or_default();
        let any = self.any_segment.as_ref().map_or(0, |node| node.max_candidates());
        self.rests.len() + self.ends.len() + literal + any
    }

    fn insert_route(&mut self, route: &IndexedRoute<'_>) {
        if route.matches.paths.is_empty() {
            self.rests.push(route);
        }
        for path in &route.matches.paths {
            self.insert(path.segments(), route);
        }
    }

    fn insert(&mut self, pattern: &[SegmentPattern], route: &IndexedRoute<'_>) {
        match pattern {
            [] => self.ends.push(route),
            [SegmentPattern::Rest, ..] => self.rests.push(route),
            [SegmentPattern::Any | SegmentPattern::Suffix(_), rest @ ..] => {
                self.any_segment.get_or_insert_default().insert(rest, route);
            }
            [SegmentPattern::Literal(segment), rest @ ..] => {
                self.literal.entry(segment.clone()).or_default().insert(rest, route);
            }
        }
    }
}

impl RouteList {
    fn len(&self) -> usize {
        self.free.len() + self.guarded.values().map(Vec::len).sum::<usize>()
    }

    fn push(&mut self, route: &IndexedRoute<'_>) {
        // Routes are inserted in ascending order, so only the last index can repeat.
        let push_once = |indices: &mut Vec<usize>| {
            if indices.last() != Some(&route.index) {
                indices.push(route.index);
            }
        };
        if route.guards.is_empty() {
            push_once(&mut self.free);
        }
        for guard in &route.guards {
            push_once(self.guarded.entry(*guard).or_default());
        }
    }
}

impl<'l> Lookup<'l> {
    fn search(&mut self, node: &PathNode) {
        self.walk(node, self.facts.path.strip_prefix('/'));
    }

    /// `left` is the rest of the path; `None` at its end.
    fn walk(&mut self, node: &PathNode, left: Option<&str>) {
        self.try_list(&node.rests);
        let Some(left) = left else {
            self.try_list(&node.ends);
            return;
        };
        let (segment, next) = match left.split_once('/') {
            Some((segment, next)) => (segment, Some(next)),
            None => (left, None),
        };
        if left.is_empty() {
            // A trailing slash may be ignored; `holds` knows for which patterns.
            self.try_list(&node.ends);
        }
        if let Some(node) = node.literal.get(segment) {
            self.walk(node, next);
        }
        if let Some(node) = &node.any_segment {
            self.walk(node, next);
        }
    }

    fn try_list(&mut self, list: &RouteList) {
        self.try_in_order(&list.free);
        if list.guarded.is_empty() {
            return;
        }
        let (router, facts) = (self.router, self.facts);
        let held = self.held.get_or_init(|| router.guards.held(facts)).clone();
        for guard in held {
            if let Some(routes) = list.guarded.get(&guard) {
                self.try_in_order(routes);
            }
        }
    }

    /// Tries the routes whose index is below the best so far.
    fn try_in_order(&mut self, indices: &[usize]) {
        for &index in indices {
            if self.best.is_some_and(|best| index >= best) {
                return;
            }
            match self.routes[index].matches.holds(self.facts) {
                Ok(true) => {
                    self.best = Some(index);
                    return;
                }
                Ok(false) => {}
                Err(Unreadable) => {
                    let first = self.unreadable.map_or(index, |first| first.min(index));
                    self.unreadable = Some(first);
                }
            }
        }
    }

    fn result(self) -> Result<Option<RouteIndex>, Unreadable> {
        match (self.unreadable, self.best) {
            (Some(unreadable), best) if best.is_none_or(|best| unreadable < best) => {
                Err(Unreadable)
            }
            (_, best) => Ok(best.map(RouteIndex)),
        }
    }
}
