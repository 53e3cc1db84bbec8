//! Warns of routes whose path has no star where the paths below it were probably expected too: in other products a path is
//! a prefix. A later route then takes the paths below, without the limits.

use std::sync::Arc;

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use super::sample_requests::SampleSpace;
use crate::policy::path_samples::SearchBudget;
use crate::policy::{MethodSet, PathPattern, RequestMatch, Route, Router};

/// The most routes that are looked at, and the most requests that are tried for each: a file of ten thousand routes is
/// checked in time.
const MAX_ROUTES: usize = 1_000;
const MAX_TRIES: usize = 16;

/// What making the requests of one route may take, in the units of [`SearchBudget`].
const MAX_WORK: u64 = 10_000;

pub(super) fn warn_of_paths_below(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    let defined = || input.routes.iter().map(|defined| &defined.route);
    let patterns: Vec<&PathPattern> = defined().flat_map(|route| &route.matches.paths).collect();
    let knows_stars = patterns.iter().any(|pattern| has_star(pattern) && !is_everything(pattern));
    let candidates: Vec<(usize, &PathPattern)> = defined()
        .enumerate()
        .filter(|(_, route)| !route.limits.is_empty() && !takes_writes_only(&route.matches.methods))
        .flat_map(|(index, route)| route.matches.paths.iter().map(move |path| (index, path)))
        .filter(|(_, path)| is_taken_for_a_prefix(path, knows_stars))
        .take(MAX_ROUTES)
        .collect();
    if candidates.is_empty() {
        return;
    }
    let routes: Vec<Route> = defined().cloned().collect();
    let router = Router::new(&routes);
    for (index, path) in candidates {
        let begin = format!("{}/", path.to_string().trim_end_matches('/'));
        let names_below = patterns.iter().any(|other| {
            let other = other.to_string();
            other.starts_with(&begin) && other.len() > begin.len() && other != "/**"
        });
        if names_below && begin != "/" {
            continue;
        }
        let Some(taker) = taker_below(&router, &routes, index, path, input.listener_names) else {
            continue;
        };
        let lost = routes[index]
            .limits
            .iter()
            .find(|limit| !routes[taker].limits.iter().any(|other| other.limit == limit.limit));
        let Some(lost) = lost else { continue };
        let limit = &input.limits.get(lost.limit).name;
        let message = format!(
            "path {:?} is this path alone: requests below it go to route {:?}, without limit {limit:?}",
            path.to_string(),
            &*routes[taker].name,
        );
        let cure = format!("write {begin}**, which is this path and everything below it");
        list.add(Code::PathsBelow, &input.routes[index].at, message, &cure);
    }
}

/// The route behind this one that takes requests which differ from its own in that their path is below.
fn taker_below(
    router: &Router,
    routes: &[Route],
    index: usize,
    path: &PathPattern,
    listeners: &[Option<Arc<str>>],
) -> Option<usize> {
    let own = RequestMatch { paths: vec![path.clone()], ..routes[index].matches.clone() };
    let space = SampleSpace::new(&own, &[], listeners, &SearchBudget::new(MAX_WORK));
    let mut requests = space.requests().take(MAX_TRIES);
    let request = requests.find(|request| own.holds(&request.facts()) == Ok(true))?.below();
    let found = router.find(routes, &request.facts()).ok()??;
    (found.0 > index).then_some(found.0)
}

fn has_star(pattern: &PathPattern) -> bool {
    pattern.to_string().contains('*')
}

fn is_everything(pattern: &PathPattern) -> bool {
    pattern.to_string() == "/**"
}

/// A login or a form is one path, and its requests are writes.
fn takes_writes_only(methods: &MethodSet) -> bool {
    methods.iter().next().is_some() && !methods.contains("GET")
}

/// Whether a path without a star was probably written as a prefix: the root, a collection (its last word is a plural), or
/// any path in a policy that has no star anywhere.
fn is_taken_for_a_prefix(pattern: &PathPattern, knows_stars: bool) -> bool {
    let path = pattern.to_string();
    if has_star(pattern) || path.len() > 1 && path.ends_with('/') {
        return false;
    }
    let last = path.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let is_file = last.contains('.');
    let singular = ["ss", "us", "is", "ics", "news"];
    let is_plural =
        last.len() > 3 && last.ends_with('s') && !singular.iter().any(|end| last.ends_with(end));
    !is_file && (path == "/" || is_plural || !knows_stars)
}
