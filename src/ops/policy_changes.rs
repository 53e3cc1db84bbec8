//! What differs between two policies, for the log of a reload and for `/status`.
//!
//! It compares values by name and decides nothing. What must always hold: the text is bounded, however much differs.

use std::sync::Arc;

use crate::clock::Nanos;
use crate::limit::{Quota, TypedRate};
use crate::policy::{
    AfterCrash, Count, Limit, MissingKey, OnStoreFailure, Override, OverrideAction, OverrideTarget,
    Policy, Route, Terms, WhenFull,
};

/// Changes that are told one by one. A change of everything is better read in the files.
const MAX_CHANGES: usize = 20;

/// What differs, one text for each limit and route, at most [`MAX_CHANGES`] and the number of the others.
pub(super) fn policy_changes(before: &Policy, now: &Policy) -> Vec<String> {
    let mut changes = Vec::new();
    for limit in &now.limits {
        let other = before.limits.iter().find(|other| other.name == limit.name);
        let told = match other {
            None => vec![own_rate(limit)],
            Some(other) => changed((before, other), (now, limit)),
        };
        if !told.is_empty() {
            changes.push(format!("limit {}: {}", limit.name, told.join(", ")));
        }
    }
    let is_gone = |limit: &&Limit| !now.limits.iter().any(|other| other.name == limit.name);
    let gone = before.limits.iter().filter(is_gone);
    changes.extend(gone.map(|limit| format!("limit {}: is gone", limit.name)));
    for route in now.routes.iter() {
        let other = before.routes.iter().find(|other| other.name == route.name);
        let had = other.map(|other| limit_names(before, other)).unwrap_or_default();
        let has = limit_names(now, route);
        let lost: Vec<&str> = had.iter().filter(|name| !has.contains(name)).copied().collect();
        let gained: Vec<&str> = has.iter().filter(|name| !had.contains(name)).copied().collect();
        let mut told = Vec::new();
        if other.is_none() {
            told.push("is new".to_owned());
        }
        if !gained.is_empty() {
            told.push(format!("gains {}", gained.join(" and ")));
        }
        if !lost.is_empty() {
            told.push(format!("loses {}", lost.join(" and ")));
        }
        if let Some(other) = other {
            told.extend(changed_route((before, other), (now, route)));
        }
        if !told.is_empty() {
            changes.push(format!("route {}: {}", route.name, told.join(", ")));
        }
    }
    let is_gone = |route: &&Route| !now.routes.iter().any(|other| other.name == route.name);
    let gone = before.routes.iter().filter(is_gone);
    changes.extend(gone.map(|route| format!("route {}: is gone", route.name)));
    if before.fleet != now.fleet {
        changes.push(format!("fleet: {} -> {}", before.fleet, now.fleet));
    }
    let both = |policy: &Policy, of: &Policy| -> Vec<Arc<str>> {
        let is_kept = |route: &&Route| of.routes.iter().any(|other| other.name == route.name);
        policy.routes.iter().filter(is_kept).map(|route| Arc::clone(&route.name)).collect()
    };
    if both(before, now) != both(now, before) {
        changes.push("the order of the routes differs".to_owned());
    }
    let more = changes.len().saturating_sub(MAX_CHANGES);
    changes.truncate(MAX_CHANGES);
    if more > 0 {
        changes.push(format!("and {more} more"));
    }
    changes
}

/// What differs between two routes of one name, besides which limits they have.
fn changed_route((old, before): (&Policy, &Route), (new, now): (&Policy, &Route)) -> Vec<String> {
    let mut told = Vec::new();
    if before.matches != now.matches {
        told.push("match differs".to_owned());
    }
    let cost = |policy: &Policy, route: &Route, name: &str| {
        let mut used = route.limits.iter();
        used.find(|used| *policy.limit(used.limit).name == *name).map(|used| used.cost.clone())
    };
    for name in limit_names(new, now) {
        let (old, new) = (cost(old, before, name), cost(new, now, name));
        if old.is_some() && old != new {
            told.push(format!("another cost for {name}"));
        }
    }
    if before.rewrite != now.rewrite {
        told.push("rewrite differs".to_owned());
    }
    if before.exempt != now.exempt {
        told.push("responses.exempt differs".to_owned());
    }
    told
}

/// What a missing key leads to.
fn missing_key(policy: &Policy, limit: &Limit) -> String {
    match limit.missing_key {
        MissingKey::Limit(next) => format!("limit {}", policy.limit(next).name),
        other => other.to_string(),
    }
}

/// What differs between two limits of one name.
fn changed((old, before): (&Policy, &Limit), (new, now): (&Policy, &Limit)) -> Vec<String> {
    // Every member is named, so that a new one does not compile until it is compared here. Those without a name of their own
    // are read by the functions below; the rules of operators are in no file.
    let Limit {
        name: _,
        count: _,
        scope,
        key,
        missing_key: _,
        mode,
        cost,
        terms,
        status_rules,
        penalty,
        hidden,
    } = now;
    let Terms { quotas: _, plans: _, overrides: _, rollout, candidate, key_rules: _ } = &**terms;
    let mut told = Vec::new();
    let (old, new) = (missing_key(old, before), missing_key(new, now));
    if old != new {
        told.push(format!("missing_key {old} -> {new}"));
    }
    let (old, new) = (algorithm(before), algorithm(now));
    if old != new {
        told.push(format!("{old} -> {new}"));
    }
    for (differs, what) in [
        (
            counting(before) != counting(now),
            "when_full, max_keys, on_store_failure, after_crash, expect or max_delay",
        ),
        (before.hidden != *hidden, "headers"),
        (has_other_plans_source(before, now), "plans.by"),
        (before.penalty != *penalty, "penalty"),
        (before.cost != *cost, "cost"),
        (before.status_rules != *status_rules, "count or refund"),
        (before.terms.candidate != *candidate, "candidate"),
        (before.terms.rollout != *rollout, "rollout"),
    ] {
        if differs {
            told.push(format!("{what} differs"));
        }
    }
    let (old, new) = (own_rate(before), own_rate(now));
    if old != new {
        told.push(format!("{old} -> {new}"));
    }
    let (old, new) = (before.key.to_string(), key.to_string());
    if old != new {
        told.push(format!("key {old} -> {new}"));
    }
    if before.scope != *scope {
        told.push(format!("scope {} -> {}", before.scope.name(), scope.name()));
    }
    if before.mode != *mode {
        told.push(format!("mode {:?} -> {mode:?}", before.mode).to_lowercase());
    }
    let plans = |limit: &Limit| {
        let rates = limit.terms.plans.iter().flat_map(|plans| &plans.rates);
        let named = rates.map(|(name, rate)| (name.clone(), limit.quota(*rate).map(rate_text)));
        named.collect::<Vec<_>>()
    };
    let (old, new) = (plans(before), plans(now));
    for (name, rate) in &new {
        match old.iter().find(|(other, _)| other == name) {
            Some((_, other)) if other == rate => {}
            Some((_, other)) => {
                told.push(format!("plan {name} {} -> {}", text(other), text(rate)));
            }
            None => told.push(format!("plan {name} {}", text(rate))),
        }
    }
    let is_gone = |name| !new.iter().any(|(other, _)| other == name);
    told.extend(
        old.iter().filter(|(name, _)| is_gone(name)).map(|(name, _)| format!("no plan {name}")),
    );
    if !has_same_overrides(before, now) {
        let counts = (before.terms.overrides.len(), now.terms.overrides.len());
        told.push(format!("overrides differ ({} -> {})", counts.0, counts.1));
    }
    told
}

fn text(rate: &Option<String>) -> &str {
    rate.as_deref().unwrap_or("without a rate")
}

fn algorithm(limit: &Limit) -> &'static str {
    match &limit.count {
        Count::Exact { quota, .. } => quota.name(),
        Count::Estimate { .. } => "estimate",
        Count::InFlight { .. } => "max_in_flight",
    }
}

fn own_rate(limit: &Limit) -> String {
    match &limit.count {
        Count::Exact { quota, .. } => rate_text(quota),
        Count::Estimate { rate, .. } => TypedRate(*rate).to_string(),
        Count::InFlight { max } => format!("{max} at once"),
    }
}

/// The rate as it is written, and the burst where it differs from the rate's count.
fn rate_text(quota: &Quota) -> String {
    let rate = quota.rate();
    match quota.limit() == rate.count() {
        true => TypedRate(rate).to_string(),
        false => format!("{} burst {}", TypedRate(rate), quota.limit()),
    }
}

/// Everything about how a limit counts that has no words of its own above. The members are named, so that a new one cannot be
/// forgotten.
#[derive(PartialEq)]
struct Counting {
    when_full: Option<WhenFull>,
    max_keys: Option<usize>,
    on_store_failure: Option<OnStoreFailure>,
    after_crash: Option<AfterCrash>,
    expect_per_second: Option<u32>,
    max_delay: Nanos,
}

fn counting(limit: &Limit) -> Counting {
    let none = Counting {
        when_full: None,
        max_keys: None,
        on_store_failure: None,
        after_crash: None,
        expect_per_second: None,
        max_delay: Nanos::ZERO,
    };
    match limit.count {
        Count::Exact { quota, when_full, max_keys, on_store_failure, after_crash } => Counting {
            when_full: Some(when_full),
            max_keys,
            on_store_failure: Some(on_store_failure),
            after_crash: Some(after_crash),
            max_delay: quota.max_delay(),
            ..none
        },
        Count::Estimate { rate: _, expect_per_second } => {
            Counting { expect_per_second: Some(expect_per_second), ..none }
        }
        Count::InFlight { max: _ } => none,
    }
}

/// Whether both limits have plans, and read their names from different sources.
fn has_other_plans_source(before: &Limit, now: &Limit) -> bool {
    let both = before.terms.plans.as_ref().zip(now.terms.plans.as_ref());
    both.is_some_and(|(before, now)| before.by != now.by)
}

/// Whether the overrides of two limits are for the same requests and do the same.
fn has_same_overrides(before: &Limit, now: &Limit) -> bool {
    let is_same_target = |a: &OverrideTarget, b: &OverrideTarget| match (a, b) {
        (OverrideTarget::Keys(a), OverrideTarget::Keys(b)) => a == b,
        (OverrideTarget::Network(a), OverrideTarget::Network(b)) => a == b,
        (OverrideTarget::Class(a), OverrideTarget::Class(b)) => {
            a.name == b.name && a.matches == b.matches
        }
        (OverrideTarget::Keys(_) | OverrideTarget::Network(_) | OverrideTarget::Class(_), _) => {
            false
        }
    };
    let action = |limit: &Limit, rule: &Override| match rule.action {
        OverrideAction::Rate(rate) => limit.quota(rate).map(rate_text),
        OverrideAction::Allow => Some("allow".to_owned()),
        OverrideAction::Deny => Some("deny".to_owned()),
    };
    let (a, b) = (&before.terms.overrides, &now.terms.overrides);
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| {
            is_same_target(&a.target, &b.target) && action(before, a) == action(now, b)
        })
}

fn limit_names<'p>(policy: &'p Policy, route: &Route) -> Vec<&'p str> {
    route.limits.iter().map(|listed| &*policy.limit(listed.limit).name).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    fn policy(limits: &str, routes: &str) -> Policy {
        let text = format!(
            "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\norigins: {{ s: {{ servers: [127.0.0.1:1] }} }}\n\
             limits: {{ {limits} }}\nroutes: [{routes}]\n"
        );
        config::read_text(&text, "p", Path::new(".")).unwrap().config.policy
    }

    #[test]
    fn what_differs_is_told_with_old_and_new() {
        let all = "{ name: site, limits: [a, b] }";
        let limit = |name: &str, rest: &str| {
            format!("{name}: {{ tier: exact, algorithm: token_bucket, key: client_ip, {rest} }}")
        };
        let b = limit("b", "rate: 1/s");
        let base = || policy(&format!("{}, {b}", limit("a", "rate: 60/1m")), all);
        for (a, routes, expected) in [
            ("rate: 60/1m", all, &[][..]),
            ("rate: 6/1m", all, &["limit a: 60/1m -> 6/1m"]),
            ("rate: 60/1m, burst: 5", all, &["limit a: 60/1m -> 60/1m burst 5"]),
            ("rate: 60/1m, mode: shadow", all, &["limit a: mode enforce -> shadow"]),
            (
                "rate: 60/1m, overrides: [{ key: 192.0.2.1, action: deny }]",
                all,
                &["limit a: overrides differ (0 -> 1)"],
            ),
            (
                "rate: 60/1m, plans: { by: { jwt: { secret_file: tests/policies/keys/secret, claim: p } }, rates: { gold: 9/s } }",
                all,
                &["limit a: plan gold 9/s"],
            ),
            ("rate: 60/1m", "{ name: site, limits: [a] }", &["route site: loses b"]),
            (
                "rate: 60/1m",
                "{ name: new, match: { path: /x }, limits: [b] }, { name: site, limits: [a, b] }",
                &["route new: is new, gains b"],
            ),
            (
                "rate: 60/1m",
                "{ name: other, limits: [a, b] }",
                &["route other: is new, gains a and b", "route site: is gone"],
            ),
            (
                "rate: 60/1m, penalty: { after: 3, within: 1m, ban: 1m }, cost: 2",
                all,
                &["limit a: penalty differs, cost differs", "route site: another cost for a"],
            ),
            (
                "rate: 60/1m",
                "{ name: site, match: { path: /x }, limits: [a, b] }",
                &["route site: match differs"],
            ),
            (
                "rate: 60/1m, when_full: deny, headers: hidden",
                all,
                &[
                    "limit a: when_full, max_keys, on_store_failure, after_crash, expect or max_delay differs, headers differs",
                ],
            ),
        ] {
            let now = policy(&format!("{}, {b}", limit("a", a)), routes);
            assert_eq!(policy_changes(&base(), &now), expected, "{a} {routes}");
        }
    }

    #[test]
    fn another_scope_and_other_terms_of_a_fleet_are_told() {
        let of = |fleet: &str, scope: &str| {
            let text = format!(
                "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\norigins: {{ s: {{ servers: [127.0.0.1:1] }} }}\n\
                 store: {{ redis: {{ url: \"redis://127.0.0.1\" }} }}\nfleet: {{ {fleet} }}\n\
                 limits: {{ a: {{ tier: estimate, scope: {scope}, rate: 60/1m, key: client_ip }} }}\n\
                 routes: [{{ name: site, limits: [a] }}]\n"
            );
            config::read_text(&text, "p", Path::new(".")).unwrap().config.policy
        };
        let before = of("error: 10%", "node");
        let now = of("error: 2.5%, every: 500ms", "fleet");
        let told = policy_changes(&before, &now);
        let fleet = "fleet: error 10%, every 1s -> error 2.5%, every 500ms";
        assert_eq!(told, ["limit a: scope node -> fleet", fleet]);
        assert!(policy_changes(&before, &of("every: 1s", "node")).is_empty());
        // Counts continue.
        assert_eq!(before.limits[0].identity(), now.limits[0].identity());
    }

    #[test]
    fn a_class_of_another_content_and_a_limit_that_is_gone_are_told() {
        let of = |network: &str, more: &str| {
            let text = format!(
                "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\norigins: {{ s: {{ servers: [127.0.0.1:1] }} }}\n\
                 classes: {{ vip: {{ client: [{network}] }} }}\n\
                 limits: {{ a: {{ tier: exact, rate: 1/s, key: client_ip, overrides: [{{ class: vip, action: allow }}] }}{more} }}\n\
                 routes: [{{ name: site, limits: [a] }}]\n"
            );
            config::read_text(&text, "p", Path::new(".")).unwrap().config.policy
        };
        let gone = ", b: { tier: exact, rate: 1/s, key: client_ip }";
        let changes = policy_changes(&of("192.0.2.0/24", gone), &of("0.0.0.0/0", ""));
        assert_eq!(changes, ["limit a: overrides differ (1 -> 1)", "limit b: is gone"]);
        assert!(policy_changes(&of("192.0.2.0/24", ""), &of("192.0.2.0/24", "")).is_empty());
    }

    #[test]
    fn many_changes_are_counted() {
        let routes = |prefix: &str| -> String {
            let route = |n| format!("{{ name: {prefix}{n}, match: {{ path: /{prefix}{n} }} }}, ");
            (0..30).map(route).collect()
        };
        let limits = "a: { tier: exact, rate: 1/s, key: client_ip }";
        let changes = policy_changes(&policy(limits, &routes("a")), &policy(limits, &routes("b")));
        assert_eq!(changes.len(), MAX_CHANGES + 1);
        assert_eq!(changes.last().unwrap(), "and 40 more");
    }
}
