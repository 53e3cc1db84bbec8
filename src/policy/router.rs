//! Finds the first route that matches without trying every route.
//!
//! Routes are indexed by host (each exact host, each `*.domain`, and any host), and under each host by a tree of
//! path segments. A lookup visits the few nodes on the request's path and tries the routes stored there, in
//! the order of the file. So its cost grows with the number of routes that could match. The index only
//! preselects; [`super::RouteMatch::holds`] decides. The result always equals trying all routes in order.

use hashbrown::HashMap;

use super::facts::Facts;
use super::index::RouteIndex;
use super::path::SegmentPattern;
use super::route::{HostPattern, Route};

/// An index of a policy's routes.
#[derive(Debug, Default)]
pub struct Router {
    /// By host: routes for this host.
    exact: HashMap<Box<str>, PathNode>,
    /// By domain: routes for all hosts below it.
    below: HashMap<Box<str>, PathNode>,
    /// Routes for any host.
    any: PathNode,
}

/// One node of a tree of path segments.
#[derive(Debug, Default)]
struct PathNode {
    /// Children for a segment with this text.
    literal: HashMap<Box<str>, PathNode>,
    /// The child for any segment (`*`).
    any_segment: Option<Box<PathNode>>,
    /// Routes, by index, with a pattern that ends here.
    ends: Vec<usize>,
    /// Routes, by index, with a pattern that continues with `**` here; `holds` checks the rest of the pattern.
    rests: Vec<usize>,
}

impl Router {
    /// Indexes every route.
    pub fn new(routes: &[Route]) -> Self {
        let mut router = Self::default();
        for (index, route) in routes.iter().enumerate() {
            if route.matches.hosts.is_empty() {
                router.any.insert_route(route, index);
            }
            for host in &route.matches.hosts {
                match host {
                    HostPattern::Exact(host) => router.exact.entry(host.clone()),
                    HostPattern::Below(domain) => router.below.entry(domain.clone()),
                }
                .or_default()
                .insert_route(route, index);
            }
        }
        router
    }

    /// The first route, in the order of the file, that matches.
    pub fn find(&self, routes: &[Route], facts: &Facts<'_>) -> Option<RouteIndex> {
        let mut best = None;
        self.any.find(routes, facts, &mut best);
        if let Some(node) = self.exact.get(facts.host) {
            node.find(routes, facts, &mut best);
        }
        if !self.below.is_empty() {
            let mut host = facts.host;
            while let Some((_, domain)) = host.split_once('.') {
                if let Some(node) = self.below.get(domain) {
                    node.find(routes, facts, &mut best);
                }
                host = domain;
            }
        }
        best.map(RouteIndex)
    }
}

impl PathNode {
    fn insert_route(&mut self, route: &Route, index: usize) {
        if route.matches.paths.is_empty() {
            self.rests.push(index);
        }
        for path in &route.matches.paths {
            self.insert(path.segments(), index);
        }
    }

    fn insert(&mut self, pattern: &[SegmentPattern], index: usize) {
        match pattern {
            [] => push_once(&mut self.ends, index),
            [SegmentPattern::Rest, ..] => push_once(&mut self.rests, index),
            [SegmentPattern::Any, rest @ ..] => {
                self.any_segment.get_or_insert_default().insert(rest, index)
            }
            [SegmentPattern::Literal(segment), rest @ ..] => {
                self.literal.entry(segment.clone()).or_default().insert(rest, index);
            }
        }
    }

    fn find(&self, routes: &[Route], facts: &Facts<'_>, best: &mut Option<usize>) {
        self.walk(facts.path.strip_prefix('/'), routes, facts, best);
    }

    /// Descends along the request's path, and tries the routes of each node. `left` is the rest of the path; `None` at
    /// its end.
    fn walk(
        &self,
        left: Option<&str>,
        routes: &[Route],
        facts: &Facts<'_>,
        best: &mut Option<usize>,
    ) {
        try_in_order(&self.rests, routes, facts, best);
        let Some(left) = left else {
            try_in_order(&self.ends, routes, facts, best);
            return;
        };
        let (segment, next) = match left.split_once('/') {
            Some((segment, next)) => (segment, Some(next)),
            None => (left, None),
        };
        if left.is_empty() {
            // A trailing slash may be ignored; `holds` knows for which patterns.
            try_in_order(&self.ends, routes, facts, best);
        }
        if let Some(node) = self.literal.get(segment) {
            node.walk(next, routes, facts, best);
        }
        if let Some(node) = &self.any_segment {
            node.walk(next, routes, facts, best);
        }
    }
}

/// Routes are inserted in ascending order, so only the last index can repeat.
fn push_once(indices: &mut Vec<usize>, index: usize) {
    if indices.last() != Some(&index) {
        indices.push(index);
    }
}

/// Tries the routes whose index is below the best so far.
fn try_in_order(indices: &[usize], routes: &[Route], facts: &Facts<'_>, best: &mut Option<usize>) {
    for &index in indices {
        if best.is_some_and(|best| index >= best) {
            return;
        }
        if routes[index].matches.holds(facts) {
            *best = Some(index);
            return;
        }
    }
}
