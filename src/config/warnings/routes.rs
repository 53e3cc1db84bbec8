//! Warnings about routes: routes that match nothing, limits that no route uses, and routes whose
//! limits a client can avoid.

use std::sync::Arc;

use super::codes::Code;
use super::limit_uses::limit_uses;
use super::list::{WarningInput, WarningList};
use super::paths_below::warn_of_paths_below;
use super::reachability::{Reach, SampleSearch};
use super::rewrites::warn_of_rewrites;
use super::unused_terms::warn_of_unused_terms;
use crate::config::reader::did_you_mean;
use crate::policy::condition::{Subject, ValueTest};
use crate::policy::{
    Cost, Count, KNOWN_METHODS, Limit, LimitIndex, Mode, PathPattern, Rollout, Route, RouteLimit,
    Source,
};

/// A warning is given if a response may cost at least this many times the reserve.
const OVERSPEND_FACTOR: u32 = 10;

pub(super) fn add_warnings(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    let routes: Vec<Route> = input.routes.iter().map(|defined| defined.route.clone()).collect();
    let reaches = SampleSearch::new(&routes, input.listener_names).reaches();
    warn_of_unreachable_routes(input, &reaches, list);
    warn_of_redirected_routes(input, list);
    warn_of_unused_limits(input, &reaches, list);
    warn_of_unused_terms(input, &limit_uses(input, &routes, &reaches), list);
    warn_of_conditions(input, list);
    warn_of_spoofable_keys(input, list);
    warn_of_unlimited_preflights(input, list);
    warn_of_unlimited_token_checks(input, list);
    warn_of_costs(input, list);
    warn_of_paths_below(input, list);
    warn_of_rewrites(input, list);
}

fn warn_of_unreachable_routes(
    input: &WarningInput<'_>,
    reaches: &[Reach],
    list: &mut WarningList<'_>,
) {
    for (defined, reach) in input.routes.iter().zip(reaches) {
        let (message, cure) = match reach {
            Reach::Reachable => continue,
            Reach::TakenBy(takers) => (
                format!("{} every request that this one could", taken_by(input, takers)),
                "put this route before them, narrow them, or remove it",
            ),
            Reach::Impossible => (
                "no request can fulfil all conditions of this route".to_owned(),
                "correct the conditions, or remove it",
            ),
        };
        list.add(Code::UnreachableRoute, &defined.at, message, cure);
    }
}

/// Warns of routes for listeners that redirect all that these routes could serve. What is not redirected: challenges of ACME,
/// and what a trusted proxy has received over https.
fn warn_of_redirected_routes(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    let redirects = |name: &Arc<str>| {
        let mut listeners = input.listeners.iter();
        listeners.any(|it| it.name.as_ref() == Some(name) && it.https_port.is_some())
    };
    let all_redirect = input.listeners.iter().all(|it| it.https_port.is_some());
    for defined in input.routes.iter().filter(|_| input.clients.trusted_proxies.is_empty()) {
        let matches = &defined.route.matches;
        let is_of_acme = |path: &PathPattern| path.to_string().starts_with("/.well-known/");
        let is_redirected = match &matches.listeners[..] {
            [] => all_redirect,
            named => named.iter().all(redirects),
        };
        if !is_redirected || matches.paths.iter().any(is_of_acme) {
            continue;
        }
        let listeners = match &matches.listeners[..] {
            [] => "every listener".to_owned(),
            named => format!("its listener {}", named.join(", ")),
        };
        let message = format!(
            "{listeners} redirects to https: the route serves nothing but challenges of ACME"
        );
        let cure = "name the listener with tls, or leave redirect out";
        list.add(Code::UnreachableRoute, &defined.at, message, cure);
    }
}

/// The routes that take the requests of another one, as the subject of a sentence.
fn taken_by(input: &WarningInput<'_>, takers: &[usize]) -> String {
    /// More names would make a sentence that nobody reads.
    const MAX_NAMES: usize = 3;
    let name = |index: &usize| format!("{:?}", &*input.routes[*index].route.name);
    match takers {
        [taker] => format!("route {} matches", name(taker)),
        takers => {
            let names: Vec<String> = takers.iter().take(MAX_NAMES).map(name).collect();
            let others = if takers.len() > MAX_NAMES { " and others" } else { "" };
            format!("routes {}{others} match together", names.join(", "))
        }
    }
}

fn warn_of_unused_limits(input: &WarningInput<'_>, reaches: &[Reach], list: &mut WarningList<'_>) {
    let used = |is_counted: &dyn Fn(&Reach) -> bool| -> Vec<LimitIndex> {
        let routes = input.routes.iter().zip(reaches).filter(|(_, reach)| is_counted(reach));
        let limits = routes.flat_map(|(defined, _)| &defined.route.limits);
        limits.flat_map(|used| input.limits.missing_key_chain(used.limit)).collect()
    };
    let named = used(&|_| true);
    let applied = used(&|reach| *reach == Reach::Reachable);
    for (position, defined) in input.limits.iter().enumerate() {
        let (index, name) = (LimitIndex(position), &defined.limit.name);
        if !named.contains(&index) {
            let message = format!("no route uses limit {name:?}");
            list.add(Code::UnusedLimit, &defined.at, message, "name it in a route, or remove it");
        } else if !applied.contains(&index) {
            let message = format!("no request can reach a route that uses limit {name:?}");
            list.add(Code::UnusedLimit, &defined.at, message, "correct the routes that name it");
        }
    }
}

/// Warns of methods that no request has, and of stars in values, which stand for themselves.
fn warn_of_conditions(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    for defined in input.routes {
        let nested = defined.route.matches.nested();
        let methods = nested.iter().flat_map(|matches| matches.methods.iter());
        for method in methods.filter(|method| !KNOWN_METHODS.contains(method)) {
            let message = format!(
                "a request with the method {method:?} is refused before any route is tried"
            );
            let cure = did_you_mean(method, &KNOWN_METHODS);
            let cure = cure.unwrap_or_else(|| format!("one of {}", KNOWN_METHODS.join(", ")));
            list.add(Code::UnknownMethod, &defined.at, message, &cure);
        }
        for condition in nested.iter().flat_map(|matches| &matches.values) {
            if is_starred(condition.subject()) {
                continue;
            }
            let mark = condition.tests().iter().find_map(mark_of_pattern);
            if let Some((mark, cure)) = mark {
                let message = format!("in the condition `{condition}` a {mark} stands for itself");
                list.add(Code::StarInValue, &defined.at, message, cure);
            }
        }
    }
}

/// Whether a star stands for itself in ordinary values of a field (RFC 9110, sections 12.5 and 13.1).
fn is_starred(subject: &Subject) -> bool {
    let Subject::Header(name) = subject else {
        return false;
    };
    let name = name.as_str();
    name.starts_with("accept") || matches!(name, "if-match" | "if-none-match")
}

/// A character of a plain text that means something elsewhere, and what to write for that.
fn mark_of_pattern(test: &ValueTest) -> Option<(char, &'static str)> {
    let text = match test {
        ValueTest::Equals(text)
        | ValueTest::Prefix(text)
        | ValueTest::Suffix(text)
        | ValueTest::Contains(text) => text,
        ValueTest::Present | ValueTest::Absent | ValueTest::Regex(_) => return None,
    };
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric());
    if text.contains('*') {
        let cure =
            "write { prefix: TEXT }, { suffix: TEXT }, { contains: TEXT } or { regex: PATTERN }";
        return Some(('*', cure));
    }
    if text.contains('|') && text.split('|').all(is_word) {
        return Some(('|', "write a list, as [bot, crawl], or { regex: PATTERN }"));
    }
    match text.strip_prefix('!') {
        Some(rest) if is_word(rest) => Some(('!', "write TEXT in a not: of the match")),
        Some(_) | None => None,
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
                                response_header or response_body";
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
