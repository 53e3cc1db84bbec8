//! The reasons in an explanation: why a route was chosen, why a limit has its rate, why another does not apply.
//!
//! Everything is asked of the values that also decide requests; nothing is decided here.

use serde_json::{Value, json};

use crate::engine::{Decision, Generation, LimitVerdict, SkipReason, skipped_limits};
use crate::policy::{
    Count, Facts, LimitIndex, Mismatch, MissingKey, OverrideTarget, PlanChoice, Policy, RateSource,
    Route, RouteIndex,
};
use crate::tokens::SignatureCheck;

/// In text, routes of another host or path are left out when more than this many routes stand before the chosen one.
const MAX_ROUTES_IN_TEXT: usize = 20;

/// One route that stands before the chosen one, with the reason why it does not match.
pub(super) struct EarlierRoute<'p> {
    name: &'p str,
    mismatch: Mismatch<'p>,
}

/// The routes before the chosen one, or all routes if none was chosen, with the reason why each does not match.
pub(super) fn earlier_routes<'p>(
    policy: &'p Policy,
    chosen: Option<RouteIndex>,
    facts: &Facts<'_>,
) -> Vec<EarlierRoute<'p>> {
    let before = policy.routes.iter().take(chosen.map_or(policy.routes.len(), |route| route.0));
    let earlier = before.filter_map(|route| {
        let mismatch = route.matches.mismatch(facts)?;
        Some(EarlierRoute { name: &route.name, mismatch })
    });
    earlier.collect()
}

/// Earlier routes as JSON, all of them.
pub(super) fn earlier_routes_json(earlier: &[EarlierRoute<'_>]) -> Value {
    let items = earlier.iter();
    items.map(|route| json!({ "route": route.name, "why": route.mismatch.to_string() })).collect()
}

/// Earlier routes as lines. Of many, only those of the request's host and path, which may have been expected.
pub(super) fn earlier_routes_lines(earlier: &[EarlierRoute<'_>]) -> String {
    let is_elsewhere =
        |route: &&EarlierRoute<'_>| matches!(route.mismatch, Mismatch::Host(_) | Mismatch::Path(_));
    let leaves_out = earlier.len() > MAX_ROUTES_IN_TEXT;
    let shown = earlier.iter().filter(|route| !leaves_out || !is_elsewhere(route));
    let mut lines = String::new();
    for EarlierRoute { name, mismatch } in shown.take(MAX_ROUTES_IN_TEXT) {
        lines.push_str(&format!("not        {name}: {mismatch}\n"));
    }
    let left_out = earlier.len() - lines.lines().count();
    if left_out > 0 {
        lines.push_str(&format!("not        {left_out} more routes (--json has all)\n"));
    }
    lines
}

/// The rate of a limit for this request, and what gave it.
pub(super) fn rate(
    policy: &Policy,
    verdict: &LimitVerdict,
    facts: &Facts<'_>,
    route: &Route,
) -> Value {
    let limit = policy.limit(verdict.limit);
    let rate = match &limit.count {
        Count::Exact { .. } => limit.quota(verdict.rate).map(ToString::to_string),
        Count::Estimate { rate, .. } => Some(rate.to_string()),
        Count::InFlight { max } => Some(format!("{max} at once")),
    };
    let terms = &limit.terms;
    let why = match verdict.rate_source {
        RateSource::Plan(index) => {
            let name = terms.plans.as_ref().and_then(|plans| plans.rates.get(index as usize));
            name.map(|(name, _)| format!("plan {name}"))
        }
        RateSource::Override(index) => Some(override_name(policy, verdict.limit, index)),
        // No operator has made rules for a file.
        RateSource::KeyRule => None,
        RateSource::Own => terms.plans.as_ref().and_then(|plans| {
            let choice = plans.choose(facts, route, SignatureCheck::Verify).ok()?;
            let why = match choice {
                PlanChoice::Unbelieved => {
                    "any client can write it; it is believed from clients.trusted_proxies only"
                }
                PlanChoice::Absent => "the request names none",
                PlanChoice::Unknown => "the request names one that plans.rates does not have",
                PlanChoice::Known(_) => return None,
            };
            Some(format!("no plan by {}: {why}", plans.by))
        }),
    };
    json!({ "rate": rate, "why": why })
}

/// How an override is called: by its index in the list, and what it is for.
pub(super) fn override_name(policy: &Policy, limit: LimitIndex, index: u32) -> String {
    let of_what = match policy.limit(limit).terms.overrides.get(index as usize) {
        Some(rule) => match &rule.target {
            OverrideTarget::Keys(_) => "this key".to_owned(),
            OverrideTarget::Network(network) => network.to_string(),
            OverrideTarget::Class(class) => format!("class {}", class.name),
        },
        None => String::new(),
    };
    format!("overrides[{index}] of {of_what}")
}

/// The tokens of the request that are not believed, by the claim that a limit of the route reads.
pub(super) fn rejected_tokens_json(policy: &Policy, route: &Route, facts: &Facts<'_>) -> Value {
    let sources = policy.sources(route, |source| source.claim().is_some());
    let items = sources.iter().filter_map(|source| {
        let claim = source.claim()?;
        let why = claim.rejection(facts)?.description();
        Some(json!({ "claim": &*claim.wanted.name, "from": claim.from.to_string(), "why": why }))
    });
    items.collect()
}

/// The limits of the route that do not apply, each with the reason.
pub(super) fn skipped_limits_json(
    generation: &Generation,
    decision: &Decision,
    facts: &Facts<'_>,
) -> Value {
    let Some(route) = decision.route else {
        return Value::Array(Vec::new());
    };
    let policy = generation.policy();
    let items = skipped_limits(generation, facts, route).into_iter().map(|(listed, reason)| {
        let why = match reason {
            SkipReason::Exempt => {
                "the request is a preflight or an ACME challenge (responses.exempt)".to_owned()
            }
            SkipReason::MissingKey(limit) => {
                let limit = policy.limit(limit);
                let sources = limit.key.sources().iter();
                let reasons = sources.filter_map(|source| {
                    super::missing::absence(source, facts, policy.route(route))
                });
                let reasons: Vec<String> = reasons.collect();
                format!(
                    "the request has no {} (missing_key: {}): {}",
                    limit.key,
                    limit.missing_key,
                    reasons.join("; ")
                )
            }
            SkipReason::KeyRule(_) => "an operator allows this key".to_owned(),
            SkipReason::Unrecorded(_) => "a log does not have its key".to_owned(),
            SkipReason::Override(limit, index) => {
                format!("{} allows it", override_name(policy, limit, index))
            }
        };
        json!({ "limit": &*policy.limit(listed).name, "why": why })
    });
    items.chain(replaced_limits(policy, policy.route(route), facts)).collect()
}

/// The limits of a route in whose stead others apply, because the request lacks their keys.
fn replaced_limits(policy: &Policy, route: &Route, facts: &Facts<'_>) -> Vec<Value> {
    let mut replaced = Vec::new();
    for used in &route.limits {
        let mut index = used.limit;
        while let MissingKey::Limit(next) = policy.limit(index).missing_key {
            let limit = policy.limit(index);
            let sources = limit.key.sources().iter();
            let reasons: Vec<String> = sources
                .filter_map(|source| super::missing::absence(source, facts, route))
                .collect();
            if reasons.is_empty() {
                break;
            }
            let (key, other) = (&limit.key, &policy.limit(next).name);
            let why = format!(
                "the request has no {key}: {}; limit {other} applies instead",
                reasons.join("; ")
            );
            replaced.push(json!({ "limit": &*limit.name, "why": why }));
            index = next;
        }
    }
    replaced
}
