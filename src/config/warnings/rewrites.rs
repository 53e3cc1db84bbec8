//! Warns of rewrites that lead to paths for which another route of the same origin has limits.
//!
//! A rewrite is safe under every reading of a path, but an operator may still give one resource two paths: `/admin/x`,
//! which a route limits, and `/api/admin/x`, of which a rewrite makes `/admin/x`. The limits of the first do not see the
//! second.

use std::sync::Arc;

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use super::sample_requests::SampleSpace;
use crate::policy::path_samples::SearchBudget;
use crate::policy::{LimitIndex, PathPattern, Route, Router};

/// The most pairs of routes that are compared, and the most requests that are tried for each: a file of ten thousand routes
/// is checked in time.
const MAX_PAIRS: usize = 10_000;
const MAX_TRIES: usize = 16;

/// What making the requests of one pair may take, in the units of [`SearchBudget`].
const MAX_WORK: u64 = 1_000;

pub(super) fn warn_of_rewrites(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    if input.routes.iter().all(|defined| defined.route.rewrite.is_none()) {
        return;
    }
    let routes: Vec<Route> = input.routes.iter().map(|defined| defined.route.clone()).collect();
    let search = RewriteSearch {
        router: Router::new(&routes),
        routes: &routes,
        names: input.listener_names,
    };
    let mut pairs_left = MAX_PAIRS;
    for (index, defined) in input.routes.iter().enumerate() {
        let Some(overlap) = search.overlap(index, &mut pairs_left) else {
            continue;
        };
        let message = format!(
            "requests of this route reach their origin as paths of route {:?} ({}), without its limit {:?}",
            &*overlap.route.name,
            overlap.path,
            input.limits.get(overlap.limit).name,
        );
        let cure = "add that limit, or put a route with it for these paths before this one";
        list.add(Code::RewriteOverlap, &defined.at, message, cure);
    }
}

struct RewriteSearch<'s> {
    router: Router,
    routes: &'s [Route],
    /// The name of each listener.
    names: &'s [Option<Arc<str>>],
}

/// A route whose limits a rewritten request does not meet.
struct Overlap<'s> {
    route: &'s Route,
    path: &'s PathPattern,
    limit: LimitIndex,
}

impl RewriteSearch<'_> {
    /// A route to whose paths the rewrite of the route at `index` leads.
    fn overlap(&self, index: usize, pairs_left: &mut usize) -> Option<Overlap<'_>> {
        let rewriting = &self.routes[index];
        rewriting.rewrite.as_ref()?;
        let others = self.routes.iter().filter(|other| other.origin == rewriting.origin);
        for other in others.filter(|other| !std::ptr::eq(*other, rewriting)) {
            let has = |limit| rewriting.limits.iter().any(|own| own.limit == limit);
            let Some(limit) = other.limits.iter().map(|own| own.limit).find(|limit| !has(*limit))
            else {
                continue;
            };
            *pairs_left = pairs_left.checked_sub(1)?;
            if let Some(path) = self.reached_path(index, other) {
                return Some(Overlap { route: other, path, limit });
            }
        }
        None
    }

    /// The path of `other` to which the route at `index` leads.
    fn reached_path<'r>(&self, index: usize, other: &'r Route) -> Option<&'r PathPattern> {
        let rewrite = self.routes[index].rewrite.as_ref()?;
        let space = SampleSpace::new(&other.matches, &[], self.names, &SearchBudget::new(MAX_WORK));
        // A route for everything is no route for these paths in particular.
        let named = |path: &&PathPattern| path.to_string() != "/**";
        space.requests().take(MAX_TRIES).find_map(|request| {
            let reached = request.path().to_owned();
            // A client would write the prefix twice: such a pattern is for the paths before they are rewritten.
            if rewrite.strips(&reached) {
                return None;
            }
            let path =
                other.matches.paths.iter().filter(named).find(|path| path.matches(&reached))?;
            let request = request.with_path(rewrite.source(&reached)?);
            let found = self.router.find(self.routes, &request.facts()).ok()??;
            (found.0 == index).then_some(path)
        })
    }
}
