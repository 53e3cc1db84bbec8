//! Warnings about routes: routes that match nothing, limits that no route uses, and routes whose
//! limits a client can avoid.

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use crate::policy::{
    Cost, Count, Limit, LimitIndex, MissingKey, Mode, Rollout, RouteLimit, RouteMatch, Source,
};

/// A warning is given if a response may cost at least this many times the reserve.
const OVERSPEND_FACTOR: u32 = 10;

pub(super) fn add_warnings(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    warn_of_unreachable_routes(input, list);
    warn_of_unused_limits(input, list);
    warn_of_spoofable_keys(input, list);
    warn_of_unlimited_preflights(input, list);
    warn_of_unlimited_token_checks(input, list);
    warn_of_costs(input, list);
}

fn warn_of_unreachable_routes(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    for (index, later) in input.routes.iter().enumerate() {
        let mut earlier = input.routes[..index].iter();
        let covering = earlier.find(|route| covers(&route.route.matches, &later.route.matches));
        if let Some(covering) = covering {
            let name = &covering.route.name;
            let message = format!("route {name:?} matches every request that this one could");
            let cure = "put it before that route, or remove it";
            list.add(Code::UnreachableRoute, &later.at, message, cure);
        }
    }
}

/// Whether `earlier` certainly matches everything that `later` matches. Recognizes simple cases
/// only.
fn covers(earlier: &RouteMatch, later: &RouteMatch) -> bool {
    let all_hosts = earlier.hosts.is_empty() || earlier.hosts == later.hosts;
    let all_paths = earlier.paths.is_empty() || earlier.paths == later.paths;
    let all_methods = earlier.methods.iter().next().is_none() || earlier.methods == later.methods;
    let all_headers = earlier.headers.iter().all(|header| later.headers.contains(header));
    let all_clients = earlier.clients.is_empty() || earlier.clients == later.clients;
    all_hosts && all_paths && all_methods && all_headers && all_clients
}

fn warn_of_unused_limits(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    let mut used: Vec<LimitIndex> = Vec::new();
    for route_limit in input.routes.iter().flat_map(|route| &route.route.limits) {
        let mut next = Some(route_limit.limit);
        while let Some(index) = next {
            next = match input.limits.get(index).missing_key {
                MissingKey::Limit(after) if !used.contains(&index) => Some(after),
                _ => None,
            };
            used.push(index);
        }
    }
    for (position, defined) in input.limits.iter().enumerate() {
        if !used.contains(&LimitIndex(position)) {
            let message = format!("no route uses limit {:?}", defined.limit.name);
            let cure = "name it in a route, or remove it";
            list.add(Code::UnusedLimit, &defined.at, message, cure);
        }
    }
}

fn warn_of_spoofable_keys(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    for route in input.routes {
        let limits =
            || route.route.limits.iter().map(|route_limit| input.limits.get(route_limit.limit));
        if limits().any(is_by_address) {
            continue;
        }
        if let Some(limit) = limits().find(|limit| is_chosen_by_client(limit)) {
            let message = format!(
                "limit {:?} is by {}, which a client chooses freely: a new value is a new budget",
                limit.name, limit.key
            );
            let cure = "add a limit by client_ip, or check the value before tollgate";
            list.add(Code::SpoofableKey, &route.at, message, cure);
        }
    }
}

fn is_by_address(limit: &Limit) -> bool {
    limit.key.sources() == [Source::ClientIp]
}

fn is_chosen_by_client(limit: &Limit) -> bool {
    limit.key.sources().iter().any(Source::is_invented_freely)
}

/// Warns of routes with limits of which none applies to preflights: a client can send as many
/// preflights as the origin takes.
fn warn_of_unlimited_preflights(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    for defined in input.routes {
        let route = &defined.route;
        let exempts_preflights =
            route.exempt.preflight && route.matches.methods.contains("OPTIONS");
        let limits = route.limits.iter().map(|route_limit| input.limits.get(route_limit.limit));
        let mut refusing = limits.filter(|limit| limit.mode == Mode::Enforce).peekable();
        let is_limited = refusing.peek().is_some();
        if exempts_preflights && is_limited && !refusing.any(Limit::applies_to_exempt) {
            let message = format!(
                "preflights (OPTIONS with Origin) of route {:?} meet no limit: responses.exempt \
                 exempts them from exact limits, and the route has no estimate limit by client_ip",
                route.name
            );
            let cure = "add a limit with tier: estimate and key: client_ip, or write \
                        responses: { exempt: [acme] } in the route";
            list.add(Code::UnlimitedPreflights, &defined.at, message, cure);
        }
    }
}

/// Warns of routes that verify signatures and have no limit that is judged before: a client can send
/// as many forged tokens as the processor can verify.
fn warn_of_unlimited_token_checks(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    for defined in input.routes {
        let route = &defined.route;
        let mut limits = route
            .limits
            .iter()
            .flat_map(|route_limit| input.limits.missing_key_chain(route_limit.limit))
            .map(|index| input.limits.get(index));
        let bounds = |route_limit: &RouteLimit| {
            bounds_token_checks(input.limits.get(route_limit.limit))
                && !route_limit.cost.depends_on_response()
        };
        if limits.any(reads_token) && !route.limits.iter().any(bounds) {
            let message = format!(
                "route {:?} verifies signed tokens, and no limit bounds how many forged tokens a \
                 client can send",
                route.name
            );
            let cure = "add a limit by client_ip, as addresses: { tier: estimate, rate: 6000/1m, \
                        key: client_ip, headers: hidden }";
            list.add(Code::UnlimitedTokenChecks, &defined.at, message, cure);
        }
    }
}

fn reads_token(limit: &Limit) -> bool {
    let plan = limit.terms.plans.as_ref().map(|plans| &plans.by);
    limit.key.sources().iter().chain(plan).any(|source| source.claim().is_some())
}

/// Whether a limit refuses a client that sends forged tokens, whatever else the client sends, and is
/// charged for each of them.
fn bounds_token_checks(limit: &Limit) -> bool {
    let is_fixed = |source: &Source| matches!(source, Source::ClientIp | Source::Route);
    limit.mode == Mode::Enforce
        && limit.terms.rollout.ppm == Rollout::default().ppm
        && !matches!(limit.count, Count::InFlight { .. })
        && !limit.status_rules.depends_on_status()
        && !reads_token(limit)
        && limit.key.sources().contains(&Source::ClientIp)
        && limit.key.sources().iter().all(is_fixed)
}

/// Warns of costs that the client chooses, and of responses that may cost far more than their
/// reserve.
fn warn_of_costs(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    for defined in input.routes {
        for route_limit in &defined.route.limits {
            let name = &input.limits.get(route_limit.limit).name;
            match &route_limit.cost {
                Cost::Request { header, .. } => {
                    let message = format!(
                        "a client states its own cost for limit {name:?} in {header}, and can \
                         state 1"
                    );
                    let cure = "have a proxy in front of tollgate set the header, or use \
                                response_header";
                    list.add(Code::SpoofableCost, &defined.at, message, cure);
                }
                Cost::Response { reserve, max, .. }
                    if *max / (*reserve).max(1) >= OVERSPEND_FACTOR =>
                {
                    let message = format!(
                        "each request in flight may overspend limit {name:?} by {}: {reserve} is \
                         reserved and {max} may be used",
                        max - reserve
                    );
                    let cure = "raise reserve, or bound concurrent requests by max_in_flight";
                    list.add(Code::Overspend, &defined.at, message, cure);
                }
                Cost::Fixed(_) | Cost::Response { .. } => {}
            }
        }
    }
}
