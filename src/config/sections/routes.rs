//! `defaults` and `routes`: which limits apply to the requests of a route, and which origin receives
//! them. Routes refer to limits and origins by name; here names become indices. Combinations of
//! limits that cannot work together on one route are refused.

use std::sync::Arc;

use super::costs::{cost, refuse_misfit};
use super::field_edits::header_edits;
use super::limits::DefinedLimits;
use super::request_match::{MatchContext, request_match};
use super::responses::responses;
use super::rewrite::rewrite;
use crate::config::model::{HeaderEdits, Responses};
use crate::config::reader::{Located, Mapping, did_you_mean};
use crate::config::scalars::{NAME_CURE, is_name};
use crate::policy::{LimitIndex, MAX_LIMITS_PER_ROUTE, ResponseSource, Route, RouteLimit};

/// Settings that apply to all routes.
pub(crate) struct RouteDefaults {
    limits: Vec<RouteLimit>,
    origin: Option<usize>,
    responses: Arc<Responses>,
}

/// A route, its responses, and where it is defined.
pub(crate) struct DefinedRoute<'n> {
    pub(crate) route: Route,
    pub(crate) responses: Arc<Responses>,
    pub(crate) edits: HeaderEdits,
    pub(crate) at: Located<'n>,
}

/// What routes refer to.
pub(crate) struct RouteContext<'c> {
    pub(crate) limits: &'c DefinedLimits<'c>,
    pub(crate) matches: MatchContext<'c>,
    /// Names of the origins; [`Route::origin`] is an index into this list.
    pub(crate) origins: &'c [&'c str],
    /// Those of them that are spoken to over HTTP/2.
    pub(crate) http2_origins: &'c [&'c str],
    /// Whether each route needs an origin. A limiter inside another server needs none.
    pub(crate) needs_origin: bool,
}

/// `defaults`. `responses`: those of routes that have none of their own.
pub(crate) fn defaults(
    root: &mut Mapping<'_>,
    responses: &Arc<Responses>,
    context: &RouteContext<'_>,
) -> RouteDefaults {
    // A single origin is the default.
    let only_origin = (context.origins.len() == 1).then_some(0);
    let responses = Arc::clone(responses);
    let mut defaults = RouteDefaults { limits: Vec::new(), origin: only_origin, responses };
    let Some(mut map) = root.get("defaults").and_then(|at| at.mapping()) else {
        return defaults;
    };
    if let Some(at) = map.get("limits") {
        defaults.limits = route_limits(&at, context);
    }
    if let Some(at) = map.get("origin") {
        defaults.origin = origin(&at, context).or(only_origin);
    }
    map.finish();
    defaults
}

/// `routes`: at least one, in the order of the file.
pub(crate) fn routes<'n>(
    root: &mut Mapping<'n>,
    defaults: &RouteDefaults,
    context: &RouteContext<'_>,
) -> Vec<DefinedRoute<'n>> {
    let cure = "write routes: [{ name: site }]";
    let Some(at) = root.require("routes", cure) else {
        return Vec::new();
    };
    let items = at.list();
    if at.is_empty_list() {
        at.error_with("no route", cure);
    }
    let mut routes: Vec<DefinedRoute<'n>> = Vec::new();
    for item in items {
        routes.extend(route(&item, defaults, context, &routes));
    }
    routes
}

fn route<'n>(
    at: &Located<'n>,
    defaults: &RouteDefaults,
    context: &RouteContext<'_>,
    earlier: &[DefinedRoute<'n>],
) -> Option<DefinedRoute<'n>> {
    let mut map = at.mapping()?;
    let name_at = map.require("name", "write name: site");
    let matches =
        map.get("match").map(|at| request_match(&at, &context.matches)).unwrap_or_default();
    let own_limits = map.get("limits").map(|at| route_limits(&at, context)).unwrap_or_default();
    let with_defaults =
        map.get("defaults").map(|at| at.choice(&[("false", false), ("true", true)]));
    let origin_at = map.get("origin");
    let own_responses =
        map.get("responses").map(|at| responses(&at, &defaults.responses, at.folder()));
    let edits = header_edits(&mut map);
    let rewrite = map.get("rewrite").and_then(|at| rewrite(&at, &matches));
    map.finish();
    let name_at = name_at?;
    let name = name_at.text()?;
    if !is_name(name) {
        name_at.error_with(format!("{name:?} is not a name"), NAME_CURE);
    }
    let default_limits =
        if with_defaults.flatten().unwrap_or(true) { defaults.limits.as_slice() } else { &[] };
    let limits = combined(default_limits, own_limits);
    if limits.len() > MAX_LIMITS_PER_ROUTE {
        let message = format!("{} limits on one route", limits.len());
        at.error_with(
            message,
            format!("name at most {MAX_LIMITS_PER_ROUTE}, with those of defaults"),
        );
    }
    refuse_two_delays(at, &limits, context.limits);
    refuse_response_costs_with_delay(at, &limits, context.limits);
    let origin = match (&origin_at, defaults.origin) {
        (Some(at), _) => origin(at, context)?,
        (None, Some(origin)) => origin,
        // Without any origin, that mistake is already recorded.
        (None, None) if context.origins.is_empty() || !context.needs_origin => 0,
        (None, None) => {
            at.error_with("origin is missing", "name one here, or under defaults");
            return None;
        }
    };
    refuse_unread_costs(at, &limits, origin, context);
    if let Some(other) = earlier.iter().find(|other| *other.route.name == *name) {
        name_at.error_with(
            format!("two routes have the name {name:?}"),
            format!("rename one of them; the other is {}", other.at.seen_from(&name_at)),
        );
    }
    let responses = own_responses.unwrap_or_else(|| Arc::clone(&defaults.responses));
    let exempt = responses.exempt;
    // A limiter inside another server forwards nothing.
    let rewrite = rewrite.filter(|_| context.needs_origin);
    let route = Route { name: Arc::from(name), matches, limits, origin, exempt, rewrite };
    Some(DefinedRoute { route, responses, edits, at: at.clone() })
}

/// Refuses two limits of a route that can both delay the same request.
///
/// Such a request would wait for the longer delay. It would leave later than the other limit
/// planned, at a time that this limit has given to another request, so that more requests would leave
/// under it than it promises. That limit cannot plan the later time instead: requests that wait for
/// it alone would be refused although earlier times stay unused.
fn refuse_two_delays(at: &Located<'_>, route_limits: &[RouteLimit], limits: &DefinedLimits<'_>) {
    let mut earlier: Vec<LimitIndex> = Vec::new();
    for route_limit in route_limits {
        // Only one limit of a `missing_key` chain applies to a request, so several of one chain may delay.
        let chain = limits.missing_key_chain(route_limit.limit);
        let delaying: Vec<LimitIndex> = chain.filter(|link| limits.get(*link).delays()).collect();
        let pair = earlier.iter().find_map(|first| {
            let second = delaying.iter().find(|second| *second != first)?;
            Some([limits.get(*first), limits.get(*second)])
        });
        if let Some([first, second]) = pair {
            at.error_with(
                format!(
                    "limits {:?} and {:?} could both delay a request, and a request cannot keep \
                     the order of both queues",
                    first.name, second.name
                ),
                "remove max_delay from one of them (a leaky_bucket then becomes a token_bucket), \
                 or use them on different routes",
            );
            return;
        }
        earlier.extend(delaying);
    }
}

/// Refuses costs from the response under a limit with `max_delay`. Such a cost refunds a part of the
/// reserve, which does not shorten the delays that later requests already have.
fn refuse_response_costs_with_delay(
    at: &Located<'_>,
    route_limits: &[RouteLimit],
    limits: &DefinedLimits<'_>,
) {
    for route_limit in route_limits.iter().filter(|limit| limit.cost.depends_on_response()) {
        let mut chain = limits.missing_key_chain(route_limit.limit).map(|link| limits.get(link));
        if let Some(limit) = chain.find(|limit| limit.has_max_delay()) {
            let name = &limit.name;
            at.error_with(
                format!("limit {name:?} has a max_delay, and its cost here is from the response"),
                "leave one of the two out",
            );
        }
    }
}

/// Refuses costs that this program cannot read. The framework passes trailers of HTTP/2 on and drops those of HTTP/1;
/// a limiter inside another server does not see the rest of a response.
fn refuse_unread_costs(
    at: &Located<'_>,
    route_limits: &[RouteLimit],
    origin: usize,
    context: &RouteContext<'_>,
) {
    for route_limit in route_limits {
        let name = &context.limits.get(route_limit.limit).name;
        let source = match route_limit.cost.response_source() {
            Some(ResponseSource::Header(_)) | None => continue,
            Some(source) => source,
        };
        if !context.needs_origin {
            at.error_with(
                format!("the cost of limit {name:?} is in the {source}, which a limiter inside another server does not read"),
                "use response_header",
            );
            continue;
        }
        let is_http2 =
            context.origins.get(origin).is_none_or(|origin| context.http2_origins.contains(origin));
        if matches!(source, ResponseSource::Trailer(_)) && !is_http2 {
            at.error_with(
                format!("the cost of limit {name:?} is in a trailer, and trailers of HTTP/1 are not read"),
                "write http: 2 at the origin, or use response_header or response_body",
            );
        }
    }
}

/// The limits of the defaults, then those of the route. If a route names a limit of the defaults
/// itself, the cost of the route applies.
fn combined(defaults: &[RouteLimit], own: Vec<RouteLimit>) -> Vec<RouteLimit> {
    let mut all: Vec<RouteLimit> = defaults.to_vec();
    for limit in own {
        match all.iter_mut().find(|other| other.limit == limit.limit) {
            Some(other) => *other = limit,
            None => all.push(limit),
        }
    }
    all
}

fn origin(at: &Located<'_>, context: &RouteContext<'_>) -> Option<usize> {
    let name = at.text()?;
    let index = context.origins.iter().position(|other| *other == name);
    if index.is_none() {
        let cure = did_you_mean(name, context.origins)
            .unwrap_or_else(|| "define it under origins".to_owned());
        at.error_with(format!("unknown origin {name:?}"), cure);
    }
    index
}

/// A list of limits, by name or as `{ limit, cost }`; each at most once.
fn route_limits(at: &Located<'_>, context: &RouteContext<'_>) -> Vec<RouteLimit> {
    let mut all: Vec<RouteLimit> = Vec::new();
    for item in at.list_or_single() {
        let Some(limit) = route_limit(&item, context.limits) else {
            continue;
        };
        if all.iter().any(|other| other.limit == limit.limit) {
            let name = &context.limits.get(limit.limit).name;
            item.error_with(format!("limit {name:?} is listed twice"), "remove one of them");
            continue;
        }
        all.push(limit);
    }
    all
}

fn route_limit(at: &Located<'_>, limits: &DefinedLimits<'_>) -> Option<RouteLimit> {
    if !at.is_mapping() {
        let index = limits.find(at, at.text()?)?;
        let cost = limits.get(index).cost.clone();
        return Some(RouteLimit { limit: index, cost });
    }
    let mut map = at.mapping()?;
    let limit_at = map.require("limit", "write { limit: NAME, cost: 10 }");
    let cost_at = map.get("cost");
    map.finish();
    let limit_at = limit_at?;
    let index = limits.find(&limit_at, limit_at.text()?)?;
    let limit = limits.get(index);
    let cost = match &cost_at {
        None => limit.cost.clone(),
        Some(at) => {
            let cost = cost(at)?;
            refuse_misfit(at, &cost, limit);
            cost
        }
    };
    Some(RouteLimit { limit: index, cost })
}
