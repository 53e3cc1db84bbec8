//! Finds the first route that matches without trying them all.
//!
//! Routes are filed by host (each exact host, each `*.domain`, and no host), and under each host
//! in a tree of path segments. A request looks at the few places it can stand at, gathers the
//! routes filed there, and tries those in the order of the file. So the cost grows with the routes
//! that *could* match, not with the routes there are.

use hashbrown::HashMap;

use super::path::Piece;
use super::{Facts, HostPattern, Route, RouteIndex};

/// An index over the routes of a policy.
#[derive(Debug, Default)]
pub struct Router {
    exact: HashMap<Box<str>, Node>,
    below: HashMap<Box<str>, Node>,
    any: Node,
}

/// One place in a tree of path segments.
#[derive(Debug, Default)]
struct Node {
    literal: HashMap<Box<str>, Node>,
    one: Option<Box<Node>>,
    /// Patterns that end here.
    ends: Vec<usize>,
    /// Patterns that go on with `**` here; the rest of the pattern is tried when it is reached.
    rests: Vec<usize>,
}

impl Router {
    /// Files every route.
    pub fn new(routes: &[Route]) -> Self {
        let mut router = Self::default();
        for (index, route) in routes.iter().enumerate() {
            if route.matches.hosts.is_empty() {
                router.any.file_paths(route, index);
            }
            for host in &route.matches.hosts {
                match host {
                    HostPattern::Exact(host) => router.exact.entry(host.clone()),
                    HostPattern::Below(domain) => router.below.entry(domain.clone()),
                }
                .or_default()
                .file_paths(route, index);
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

impl Node {
    fn file_paths(&mut self, route: &Route, index: usize) {
        if route.matches.paths.is_empty() {
            self.rests.push(index);
        }
        for path in &route.matches.paths {
            self.file(path.pieces(), index);
        }
    }

    fn file(&mut self, pieces: &[Piece], index: usize) {
        match pieces {
            [] => push_once(&mut self.ends, index),
            [Piece::Rest, ..] => push_once(&mut self.rests, index),
            [Piece::One, rest @ ..] => self.one.get_or_insert_default().file(rest, index),
            [Piece::Literal(segment), rest @ ..] => {
                self.literal.entry(segment.clone()).or_default().file(rest, index);
            }
        }
    }

    fn find(&self, routes: &[Route], facts: &Facts<'_>, best: &mut Option<usize>) {
        self.walk(facts.path.strip_prefix('/'), routes, facts, best);
    }

    /// `left` is what is left of the path: `None` at its end.
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
            // A slash at the end is as good as none; `holds` knows which patterns mind.
            try_in_order(&self.ends, routes, facts, best);
        }
        if let Some(node) = self.literal.get(segment) {
            node.walk(next, routes, facts, best);
        }
        if let Some(node) = &self.one {
            node.walk(next, routes, facts, best);
        }
    }
}

/// Indices are filed in ascending order, so a route's second pattern can only repeat the last.
fn push_once(indices: &mut Vec<usize>, index: usize) {
    if indices.last() != Some(&index) {
        indices.push(index);
    }
}

/// Tries the routes before the best one so far.
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
