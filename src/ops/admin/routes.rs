//! `GET /routes`: the routes in force with how their requests ended, a page at a time.
//!
//! The busiest come first: most limited, then most requests, then in the order of their names. It changes nothing. What
//! must always hold: an answer has at most [`MAX_COUNT`] routes, however many the configuration has.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::HashSet;
use serde_json::{Value, json};

use crate::policy::Route;
use crate::proxy::{RequestOutcome, RouteCounters, TrafficCounters};

/// The largest number of routes in one answer.
const MAX_COUNT: usize = 1_000;

/// The number of routes in an answer to a question without `count`.
const DEFAULT_COUNT: usize = 100;

/// Which routes are asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RouteQuery {
    /// A text that the name contains; empty for all.
    contains: String,
    offset: usize,
    count: usize,
}

impl RouteQuery {
    /// Reads `contains=&offset=&count=`; the error is what an operator can do about it.
    pub(super) fn parse(query: &str) -> Result<Self, &'static str> {
        let mut parsed = Self { contains: String::new(), offset: 0, count: DEFAULT_COUNT };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "contains" => parsed.contains = value.into_owned(),
                "offset" => parsed.offset = value.parse().map_err(|_| "offset is no number")?,
                "count" => {
                    let count = value.parse().ok().filter(|count| *count <= MAX_COUNT);
                    parsed.count = count.ok_or("count is no number up to 1000")?;
                }
                _ => return Err("write contains=TEXT, offset=N and count=N"),
            }
        }
        Ok(parsed)
    }
}

/// The answer: one page, and of how many routes it is. Requests without a route are a line of their own, with the name
/// that no route can have.
pub(super) fn listing(routes: &[Route], counters: &TrafficCounters, query: &RouteQuery) -> Value {
    let in_force: HashSet<&str> = routes.iter().map(|route| &*route.name).collect();
    let is_wanted = |name: &str| {
        (in_force.contains(name) || name == TrafficCounters::NO_ROUTE)
            && name.contains(&query.contains)
    };
    let mut found = counters.routes();
    found.retain(|(name, _)| is_wanted(name));
    // The list is in the order of the names, and the sort is stable.
    found.sort_by_cached_key(|(_, counters)| {
        let all = RequestOutcome::ALL.into_iter().map(|outcome| counters.get(outcome)).sum::<u64>();
        Reverse((counters.get(RequestOutcome::Limited), all))
    });
    let page = found.iter().skip(query.offset).take(query.count).map(route_json);
    json!({ "total": found.len(), "routes": page.collect::<Vec<_>>() })
}

fn route_json((name, counters): &(Arc<str>, Arc<RouteCounters>)) -> Value {
    let mut route = json!({ "name": &**name });
    for outcome in RequestOutcome::ALL {
        route[outcome.name()] = counters.get(outcome).into();
    }
    route
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_or_refused() {
        let query = |contains: &str, offset, count| {
            Ok(RouteQuery { contains: contains.to_owned(), offset, count })
        };
        for (text, expected) in [
            ("", query("", 0, DEFAULT_COUNT)),
            ("contains=a%3Cb&offset=50&count=50", query("a<b", 50, 50)),
            ("count=1000", query("", 0, MAX_COUNT)),
            ("count=1001", Err("count is no number up to 1000")),
            ("count=-1", Err("count is no number up to 1000")),
            ("offset=x", Err("offset is no number")),
            ("name=x", Err("write contains=TEXT, offset=N and count=N")),
        ] {
            assert_eq!(RouteQuery::parse(text), expected, "{text}");
        }
    }
}
