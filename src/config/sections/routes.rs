//! `defaults` and `routes`.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};

use crate::config::Responses;
use crate::config::reader::{Located, Mapping, did_you_mean};
use crate::config::scalars::{NAME_CURE, is_name};
use crate::config::sections::costs::{cost, refuse_misfit};
use crate::config::sections::limits::Limits;
use crate::config::sections::listeners::network;
use crate::config::sections::responses::responses;
use crate::policy::{
    HostPattern, Limit, LimitIndex, MAX_LIMITS_PER_ROUTE, MethodSet, MissingKey, PathPattern,
    Route, RouteLimit, RouteMatch,
};

/// What stands before a route's own.
pub(crate) struct Defaults {
    limits: Vec<RouteLimit>,
    origin: Option<usize>,
}

/// Routes with their answers and places, in the order of the file.
pub(crate) struct Routes<'n> {
    pub(crate) routes: Vec<Route>,
    pub(crate) responses: Vec<Arc<Responses>>,
    pub(crate) places: Vec<Located<'n>>,
}

/// What routes refer to.
pub(crate) struct RouteContext<'k> {
    pub(crate) limits: &'k Limits<'k>,
    pub(crate) origins: &'k [&'k str],
    pub(crate) folder: &'k std::path::Path,
}

/// `defaults`.
pub(crate) fn defaults(root: &mut Mapping<'_>, known: &RouteContext<'_>) -> Defaults {
    // Where there is only one origin nobody has to name it.
    let only = (known.origins.len() == 1).then_some(0);
    let mut defaults = Defaults { limits: Vec::new(), origin: only };
    let Some(mut map) = root.get("defaults").and_then(|at| at.map()) else {
        return defaults;
    };
    if let Some(at) = map.get("limits") {
        defaults.limits = uses(&at, known);
    }
    if let Some(at) = map.get("origin") {
        defaults.origin = origin(&at, known).or(only);
    }
    map.finish();
    defaults
}

/// `routes`: at least one.
pub(crate) fn routes<'n>(
    root: &mut Mapping<'n>,
    defaults: &Defaults,
    base: &Arc<Responses>,
    known: &RouteContext<'_>,
) -> Routes<'n> {
    let mut all = Routes { routes: Vec::new(), responses: Vec::new(), places: Vec::new() };
    let cure = "write routes: [{ name: site }]";
    let Some(at) = root.require("routes", cure) else {
        return all;
    };
    let items = at.list();
    if items.is_empty() && !at.is_map() {
        at.error_with("no route", cure);
    }
    for item in items {
        let Some((route, responses, name)) = route(&item, defaults, base, known) else {
            continue;
        };
        if all.routes.iter().any(|other| other.name == route.name) {
            name.error(format!("route {:?} stands twice", route.name));
        }
        all.routes.push(route);
        all.responses.push(responses);
        all.places.push(item);
    }
    all
}

fn route<'n>(
    at: &Located<'n>,
    defaults: &Defaults,
    base: &Arc<Responses>,
    known: &RouteContext<'_>,
) -> Option<(Route, Arc<Responses>, Located<'n>)> {
    let mut map = at.map()?;
    let name_at = map.require("name", "write name: site");
    let matches = map.get("match").map(|at| matches(&at)).unwrap_or_default();
    let own = map.get("limits").map(|at| uses(&at, known)).unwrap_or_default();
    let with_defaults =
        map.get("defaults").map(|at| at.choice(&[("false", false), ("true", true)]));
    let origin_at = map.get("origin");
    let own_responses = map.get("responses").map(|at| responses(&at, base, known.folder));
    map.finish();
    let name_at = name_at?;
    let name = name_at.text()?;
    if !is_name(name) {
        name_at.error_with(format!("{name:?} is not a name"), NAME_CURE);
    }
    let with_defaults = with_defaults.flatten().unwrap_or(true);
    let before = if with_defaults { defaults.limits.as_slice() } else { &[] };
    let limits = together(before, own);
    if limits.len() > MAX_LIMITS_PER_ROUTE {
        at.error(format!("{} limits on one route, more than {MAX_LIMITS_PER_ROUTE}", limits.len()));
    }
    refuse_two_delays(at, &limits, &known.limits.limits);
    refuse_late_costs_that_wait(at, &limits, &known.limits.limits);
    let origin = match (&origin_at, defaults.origin) {
        (Some(at), _) => origin(at, known)?,
        (None, Some(origin)) => origin,
        // Without any origin that is the mistake, and it is told where origins stand.
        (None, None) if known.origins.is_empty() => 0,
        (None, None) => {
            at.error_with("origin is missing", "name one here, or under defaults");
            return None;
        }
    };
    let responses = own_responses.unwrap_or_else(|| Arc::clone(base));
    let exempt = responses.exempt;
    let route = Route { name: Arc::from(name), matches, limits, origin, exempt };
    Some((route, responses, name_at))
}

/// Two limits that let a request wait. It would wait for the longer of both delays and leave later
/// than the turn that it was given in the other bucket, together with those whose turn it is then:
/// more would leave under that limit than it promises. The later turn cannot be kept for it
/// either, since requests that wait for the first limit alone would be refused for turns that pass
/// unused.
fn refuse_two_delays(at: &Located<'_>, uses: &[RouteLimit], limits: &[Limit]) {
    let mut before: Vec<LimitIndex> = Vec::new();
    for one in uses {
        // (Of the limits to which one use leads by `missing_key` one applies, so they may all delay.)
        let delaying = chain(one.limit, limits).filter(|limit| limits[limit.0].delays());
        let delaying: Vec<LimitIndex> = delaying.collect();
        let pairs = before.iter().flat_map(|one| delaying.iter().map(move |other| (one, other)));
        if let Some((one, other)) = pairs.into_iter().find(|(one, other)| one != other) {
            let (one, other) = (&limits[one.0].name, &limits[other.0].name);
            at.error_with(
                format!(
                    "limits {one:?} and {other:?} would both let a request wait, and it cannot leave in turn under both"
                ),
                "leave max_delay out of one of them (a leaky_bucket is then a token_bucket), or part their routes",
            );
            return;
        }
        before.extend(delaying);
    }
}

/// What the answer tells of a cost gives back what was reserved above it; those behind a request that
/// waited have their turns.
fn refuse_late_costs_that_wait(at: &Located<'_>, uses: &[RouteLimit], limits: &[Limit]) {
    for one in uses.iter().filter(|one| one.cost.depends_on_response()) {
        let mut all = chain(one.limit, limits).map(|limit| &limits[limit.0]);
        if let Some(limit) = all.find(|limit| limit.has_max_delay()) {
            at.error_with(
                format!(
                    "limit {:?} has a max_delay, and its cost here is told by the answer",
                    limit.name
                ),
                "leave one of the two out",
            );
        }
    }
}

/// A limit, and those that apply instead where a key is missing.
fn chain(first: LimitIndex, limits: &[Limit]) -> impl Iterator<Item = LimitIndex> {
    let next = |limit: &LimitIndex| match limits[limit.0].missing_key {
        MissingKey::Limit(next) => Some(next),
        MissingKey::Impossible | MissingKey::Skip | MissingKey::Deny(_) | MissingKey::ClientIp => {
            None
        }
    };
    // A chain that leads back to itself is refused elsewhere.
    std::iter::successors(Some(first), next).take(limits.len())
}

/// The defaults first; where a route uses one of them itself, its cost counts.
fn together(before: &[RouteLimit], own: Vec<RouteLimit>) -> Vec<RouteLimit> {
    let mut all: Vec<RouteLimit> = before.to_vec();
    for one in own {
        match all.iter_mut().find(|other| other.limit == one.limit) {
            Some(other) => *other = one,
            None => all.push(one),
        }
    }
    all
}

fn origin(at: &Located<'_>, known: &RouteContext<'_>) -> Option<usize> {
    let name = at.text()?;
    let place = known.origins.iter().position(|other| *other == name);
    if place.is_none() {
        let cure = did_you_mean(name, known.origins)
            .unwrap_or_else(|| "define it under origins".to_owned());
        at.error_with(format!("unknown origin {name:?}"), cure);
    }
    place
}

/// A list of limits, by name or as `{ limit, cost }`; each at most once.
fn uses(at: &Located<'_>, known: &RouteContext<'_>) -> Vec<RouteLimit> {
    let mut all: Vec<RouteLimit> = Vec::new();
    for item in at.one_or_more() {
        let Some(one) = one_use(&item, known) else {
            continue;
        };
        if all.iter().any(|other| other.limit == one.limit) {
            let name = &known.limits.limits[one.limit.0].name;
            item.error(format!("limit {name:?} stands twice"));
            continue;
        }
        all.push(one);
    }
    all
}

fn one_use(at: &Located<'_>, known: &RouteContext<'_>) -> Option<RouteLimit> {
    if !at.is_map() {
        let limit = known.limits.find(at, at.text()?)?;
        return Some(RouteLimit { limit, cost: known.limits.limits[limit.0].cost.clone() });
    }
    let mut map = at.map()?;
    let limit_at = map.require("limit", "write { limit: NAME, cost: 10 }");
    let cost_at = map.get("cost");
    map.finish();
    let limit_at = limit_at?;
    let LimitIndex(place) = known.limits.find(&limit_at, limit_at.text()?)?;
    let limit = &known.limits.limits[place];
    let cost = match &cost_at {
        None => limit.cost.clone(),
        Some(at) => {
            let cost = cost(at)?;
            refuse_misfit(at, &cost, limit);
            cost
        }
    };
    Some(RouteLimit { limit: LimitIndex(place), cost })
}

fn matches(at: &Located<'_>) -> RouteMatch {
    let mut matches = RouteMatch::default();
    let Some(mut map) = at.map() else {
        return matches;
    };
    if let Some(at) = map.get("host") {
        matches.hosts = at.one_or_more().iter().filter_map(|at| at.parse(host)).collect();
    }
    if let Some(at) = map.get("path") {
        matches.paths = at
            .one_or_more()
            .iter()
            .filter_map(|at| {
                at.parse(|text| {
                    PathPattern::parse(text).map_err(|error| format!("path {text:?}: {error}"))
                })
            })
            .collect();
    }
    if let Some(at) = map.get("methods") {
        let methods = at.one_or_more();
        matches.methods = MethodSet::new(methods.iter().filter_map(|at| at.parse(method)));
    }
    if let Some(at) = map.get("header") {
        matches.headers =
            at.named().into_iter().filter_map(|(name, at)| header(name, &at)).collect();
    }
    if let Some(at) = map.get("client") {
        matches.clients = at.one_or_more().iter().filter_map(|at| at.parse(network)).collect();
    }
    for (key, list) in [("host", matches.hosts.is_empty()), ("path", matches.paths.is_empty())] {
        // An empty list would match everything, which nobody means by it.
        if list
            && let Some(at) = map.get(key)
            && matches!(&at.node.kind, crate::config::source::SourceContent::List(items) if items.is_empty())
        {
            at.error_with("an empty list", "leave the key out to match all");
        }
    }
    map.finish();
    matches
}

/// `example.com`, `*.example.com`, an address; lower-cased.
fn host(text: &str) -> Result<HostPattern, String> {
    let lower = text.to_ascii_lowercase();
    let (below, name) = match lower.strip_prefix("*.") {
        Some(domain) => (true, domain),
        None => (false, lower.as_str()),
    };
    let is_address = name.starts_with('[') && name.ends_with(']') && !below;
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    if !is_address && (name.len() > 253 || !name.split('.').all(is_label)) {
        return Err(format!(
            "{text:?} is not a host; write example.com or \"*.example.com\", without scheme and port"
        ));
    }
    let name = name.into();
    Ok(if below { HostPattern::Below(name) } else { HostPattern::Exact(name) })
}

fn method(text: &str) -> Result<String, String> {
    let is_one = (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_uppercase());
    is_one
        .then(|| text.to_owned())
        .ok_or_else(|| format!("{text:?} is not a method; write it in capitals, for example POST"))
}

fn header(name: &str, at: &Located<'_>) -> Option<(HeaderName, HeaderValue)> {
    let Ok(header) = HeaderName::try_from(name) else {
        at.error(format!("{name:?} is not the name of a header"));
        return None;
    };
    let text = at.text()?;
    match HeaderValue::try_from(text) {
        Ok(value) => Some((header, value)),
        Err(_) => {
            at.error(format!("{text:?} cannot be the value of a header"));
            None
        }
    }
}
