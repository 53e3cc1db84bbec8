//! The part of `tollgate check` about one limit: what it promises, and what it needs.

use crate::clock::{Nanos, Now};
use crate::config::{Config, StateSettings};
use crate::limit::{
    FleetBound, PROPAGATION_EXCHANGES, Quota, SketchSize, WindowLengths, log_bytes,
};
use crate::policy::{
    AfterCrash, Cost, Count, FleetTerms, Limit, MissingKey, OnStoreFailure, OverrideAction,
    OverrideTarget, Policy, Rollout, Scope, WhenFull,
};
use crate::store::{CELL_BYTES, GRANT_BYTES, units_ahead};

/// Numbers of nodes for which the bound of a fleet is shown.
const SHOWN_FLEETS: [u32; 3] = [2, 5, 20];

/// What is known of a limit, in the order in which it is shown.
#[derive(Default)]
pub(super) struct LimitFacts(pub(super) Vec<LimitFact>);

/// One thing that is known of a limit.
pub(super) struct LimitFact {
    pub(super) label: &'static str,
    /// Which of several it is, for plans and numbers of nodes.
    pub(super) name: Option<String>,
    pub(super) text: String,
}

impl LimitFacts {
    fn line(&mut self, label: &'static str, text: impl Into<String>) {
        self.0.push(LimitFact { label, name: None, text: text.into() });
    }
}

/// The facts of one limit.
pub(super) fn limit_facts(config: &Config, limit: &Limit) -> LimitFacts {
    let mut facts = LimitFacts::default();
    facts.line("key", limit.key.to_string());
    if limit.missing_key != MissingKey::Impossible {
        facts.line("missing key", missing_key(&config.policy, limit.missing_key));
    }
    match &limit.count {
        Count::Exact { quota, .. } => add_exact(&mut facts, config, limit, quota),
        Count::Estimate { .. } => add_estimate(&mut facts, config, limit),
        Count::InFlight { max } => {
            facts.line(
                "promise",
                format!("at most {max} concurrent requests of each key, on each node"),
            );
            facts.line("memory", "one cell for each key with requests in flight");
        }
    }
    add_costs(&mut facts, config, limit);
    add_terms(&mut facts, limit);
    facts
}

/// Whether charges of the limit may be refunded.
fn may_refund(policy: &Policy, limit: &Limit) -> bool {
    limit.status_rules.depends_on_status() || tells_late(policy, limit)
}

/// Whether answers tell what requests cost.
fn tells_late(policy: &Policy, limit: &Limit) -> bool {
    let with_response_cost = policy.limits_with_response_cost();
    with_response_cost.iter().any(|index| policy.limit(*index).name == limit.name)
}

fn add_exact(facts: &mut LimitFacts, config: &Config, limit: &Limit, quota: &Quota) {
    let Count::Exact { when_full, max_keys, on_store_failure, after_crash: after_crash_of, .. } =
        &limit.count
    else {
        return;
    };
    facts.line("promise", format!("{}: {quota}", quota.name()));
    let windows = WindowLengths::of(std::iter::once(quota).chain(&limit.terms.quotas));
    if windows.lengths().len() > 1 {
        let lengths: Vec<String> =
            windows.lengths().iter().map(|length| format!("{length:?}")).collect();
        facts
            .line("windows", format!("{}: every charge counts in all of them", lengths.join(", ")));
    }
    let max_keys = max_keys.unwrap_or(config.policy.max_keys).min(config.policy.max_keys);
    let full = match when_full {
        WhenFull::Estimate => "new keys are counted in the estimate tier",
        WhenFull::Deny => "new keys are refused",
        WhenFull::Allow => "new keys pass uncounted",
    };
    let mib = (max_keys * CELL_BYTES).div_ceil(1 << 20);
    let own = match quota {
        Quota::SlidingLog(_) => {
            let longest = limit.terms.quotas.iter().map(Quota::limit).fold(quota.limit(), u32::max);
            let full = CELL_BYTES + log_bytes(longest as usize);
            let few = CELL_BYTES + log_bytes(1);
            format!(
                "about {few} bytes for each live key, {full} with a full log; {mib} MiB at most"
            )
        }
        _ => {
            // Any instant will do, because the size of a cell does not depend on it.
            let now = Now { mono: Nanos::ZERO, wall: Nanos::ZERO };
            let may_refund = may_refund(&config.policy, limit);
            let cell = quota.with_refunds(may_refund).empty_cell_for(&windows, now);
            let bytes = CELL_BYTES + cell.heap_bytes_after_charge(now);
            let more = match (windows.buckets() > 1, bytes > CELL_BYTES) {
                (false, false) => format!("{mib} MiB at {max_keys} keys"),
                (true, _) => format!("more for a key with several rates; {mib} MiB at most"),
                (false, true) => format!("{mib} MiB at most"),
            };
            format!("about {bytes} bytes for each live key, {more}")
        }
    };
    if config.store.is_embedded() {
        facts.line("memory", own);
        facts.line("when full", format!("above {max_keys} live keys {full}"));
        if let Some(state) = config.store.state() {
            let longest = limit.terms.quotas.iter().map(Quota::limit).fold(quota.limit(), u32::max);
            let is_told_late = tells_late(&config.policy, limit);
            facts.line("after crash", after_crash(*after_crash_of, state, longest, is_told_late));
        }
        return;
    }
    facts.line("memory", "about 180 bytes of the store for each live key");
    facts.line("store down", during_outage(*on_store_failure, quota.limit()));
    if *on_store_failure == OnStoreFailure::Local {
        facts.line("meanwhile", format!("{own}; above that, {full}"));
    }
    if limit.scope == Scope::Fleet {
        let estimates =
            *when_full == WhenFull::Estimate && *on_store_failure == OnStoreFailure::Local;
        let text = exact_fleet(limit.penalty.is_some(), estimates, config.policy.fleet.every);
        facts.line("fleet", text);
    }
}

/// What an exact limit counts over the fleet, besides its cells in the store: denials that lead to bans, keys without room
/// that are estimated, or both.
fn exact_fleet(bans: bool, estimates: bool, every: Nanos) -> String {
    let estimated = "keys that a node estimates while only a part of the store is down";
    let counted = match (bans, estimates) {
        (true, true) => format!("denials for the penalty, and {estimated},"),
        (true, false) => "denials for the penalty".to_owned(),
        (false, _) => estimated.to_owned(),
    };
    format!("nodes exchange counts every {every:?}: {counted} count on all nodes together")
}

fn add_estimate(facts: &mut LimitFacts, config: &Config, limit: &Limit) {
    let Count::Estimate { rate, expect_per_second } = &limit.count else {
        return;
    };
    let size = SketchSize::new(*rate, *expect_per_second);
    let (count, period) = (rate.count(), rate.period());
    let nodes = match limit.scope {
        Scope::Node => "on this node",
        Scope::Fleet => "on all nodes together",
    };
    let twice = u64::from(count) * 2;
    facts.line(
        "promise",
        format!(
            "about {count} in each clock-aligned {period:?}, under {twice} in the worst placed one, {nodes}"
        ),
    );
    if limit.scope == Scope::Fleet {
        add_fleet(facts, config.policy.fleet, count);
    }
    let kib = size.bytes() / 1024;
    facts.line(
        "memory",
        format!("{kib} KiB for {expect_per_second} requests/s, whatever the number of keys"),
    );
    let over = size.expected_overcount();
    facts.line(
        "error",
        format!(
            "a key without requests reads about {over} of {count}; no key is denied because of another"
        ),
    )
}

/// What the nodes of a fleet may admit together, for some numbers of nodes.
fn add_fleet(facts: &mut LimitFacts, terms: FleetTerms, limit: u32) {
    let FleetTerms { error_ppm, every } = terms;
    let percent = f64::from(error_ppm) / 10_000.0;
    facts.line(
        "fleet",
        format!("nodes exchange counts every {every:?}, and leave at most {percent} % of the limit unpublished"),
    );
    facts.line(
        "fleet",
        "what the nodes' tables of watched keys have no room for comes on top (tollgate_confirm_error)",
    );
    add_fleet_bounds(facts, "fleet", terms, limit);
}

/// How much some numbers of nodes admit of one key together, or how many denials they count before a ban.
fn add_fleet_bounds(facts: &mut LimitFacts, label: &'static str, terms: FleetTerms, limit: u32) {
    let late = terms.every.saturating_mul(PROPAGATION_EXCHANGES.into());
    let (effect, within) = match label {
        "penalty" => ("bans after at most", " in one window"),
        _ => ("admits at most", ""),
    };
    for nodes in SHOWN_FLEETS {
        let bound = FleetBound::of(limit, terms.error_ppm, nodes);
        let admitted = bound.admitted(limit, nodes);
        let without_fleet = u64::from(limit) * u64::from(nodes);
        let text = format!(
            "publishes from {}, {effect} {admitted}{within} + what arrives in {late:?}, never \
             more than {without_fleet}",
            bound.threshold
        );
        facts.0.push(LimitFact { label, name: Some(format!("{nodes} nodes")), text });
    }
}

/// What a request costs, which responses are refunded, and which keys are banned.
fn add_costs(facts: &mut LimitFacts, config: &Config, limit: &Limit) {
    if limit.cost != Cost::Fixed(1) {
        facts.line("cost", limit.cost.to_string());
    }
    let mut limits = config.policy.indexed_limits();
    let index = limits.find(|(_, other)| other.name == limit.name).map(|(index, _)| index);
    let uses = config.policy.routes.iter().flat_map(|route| &route.limits);
    let uses = uses.filter(|route_limit| Some(route_limit.limit) == index);
    let overspend = uses.map(|route_limit| match &route_limit.cost {
        Cost::Response { reserve, max, .. } => max - reserve,
        Cost::Fixed(_) | Cost::Request { .. } => 0,
    });
    match overspend.max() {
        Some(0) if limit.cost.depends_on_response() => {
            facts.line("overspend", "none: reserve is max");
        }
        Some(over) if over > 0 => {
            facts.line("overspend", format!("at most {over} for each request in flight"));
        }
        _ => {}
    }
    if let Some(only) = &limit.status_rules.only {
        let counts = format!(
            "only responses {only}; the cost is reserved, and stays spent without a response"
        );
        facts.line("counts", counts);
    }
    if let Some(refund) = &limit.status_rules.refund {
        facts.line("refunds", format!("responses {refund}"));
    }
    if let Some(rule) = limit.penalty {
        facts.line("penalty", rule.describe(limit.scope));
        if limit.scope == Scope::Fleet {
            add_fleet_bounds(facts, "penalty", config.policy.fleet, rule.after);
        }
    }
}

/// For which keys the limit has another rate or effect.
fn add_terms(facts: &mut LimitFacts, limit: &Limit) {
    let terms = &limit.terms;
    if let Some(plans) = &terms.plans {
        facts.line("plans by", plans.by.to_string());
        for (name, rate) in &plans.rates {
            if let Some(quota) = limit.quota(*rate) {
                let (name, text) = (Some(name.to_string()), quota.to_string());
                facts.0.push(LimitFact { label: "plan", name, text });
            }
        }
    }
    for exception in &terms.overrides {
        let target = match &exception.target {
            OverrideTarget::Keys(keys) if keys.len() == 1 => "1 key".to_owned(),
            OverrideTarget::Keys(keys) => format!("{} keys", keys.len()),
            OverrideTarget::Network(network) => network.to_string(),
            OverrideTarget::Class(class) => format!("class {}", class.name),
        };
        let effect = match exception.action {
            OverrideAction::Allow => "the limit does not apply".to_owned(),
            OverrideAction::Deny => "refused".to_owned(),
            OverrideAction::Rate(rate) => {
                limit.quota(rate).map(ToString::to_string).unwrap_or_default()
            }
        };
        facts.line("override", format!("{target}: {effect}"));
    }
    if terms.rollout != Rollout::default() {
        let share = f64::from(terms.rollout.ppm) / 10_000.0;
        let from = match terms.rollout.from {
            Nanos::ZERO => String::new(),
            from => {
                let from = std::time::UNIX_EPOCH + std::time::Duration::from(from);
                format!(" from {}", humantime::format_rfc3339_seconds(from))
            }
        };
        facts.line("rollout", format!("refuses requests of {share} % of the keys{from}, and counts the others as in mode: shadow"));
    }
    if let Some(candidate) = &terms.candidate {
        facts.line("candidate", format!("{candidate}; evaluated in parallel, refuses nothing"));
    }
}

fn during_outage(action: OnStoreFailure, limit: u32) -> String {
    match action {
        OnStoreFailure::Local => {
            format!("each node admits up to {limit} on its own: at most (nodes + 1) x {limit}")
        }
        OnStoreFailure::Allow => "requests pass uncounted".to_owned(),
        OnStoreFailure::Deny => "requests are answered 503".to_owned(),
    }
}

/// What a crash may cost, and whom.
fn after_crash(
    action: AfterCrash,
    state: &StateSettings,
    limit: u32,
    is_told_late: bool,
) -> String {
    match action {
        AfterCrash::Allow => {
            let StateSettings { flush, sync, .. } = state;
            format!(
                "at most what was spent in the last {flush:?} (kill) or {sync:?} (power) is admitted again"
            )
        }
        AfterCrash::Deny => {
            let units = units_ahead(limit).get();
            let plural = if units == 1 { "" } else { "s" };
            let but = match is_told_late {
                true => {
                    ", but for costs that answers tell above their reserve, which a crash may forget"
                }
                false => "",
            };
            format!(
                "nothing above the limit{but}; at most {units} unit{plural} of a key are refused; about {GRANT_BYTES} bytes more for each key that is spent from"
            )
        }
    }
}

fn missing_key(policy: &Policy, missing_key: MissingKey) -> String {
    match missing_key {
        MissingKey::Impossible => "not possible".to_owned(),
        MissingKey::Skip => "the limit does not apply".to_owned(),
        MissingKey::Deny(status) => format!("answered {status}"),
        MissingKey::ClientIp => "the address of the client is the key".to_owned(),
        MissingKey::Limit(next) => {
            format!("limit {} applies instead", policy.limit(next).name)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn facts_of(fleet: &str, limit: &str) -> Vec<String> {
        let text = format!(
            "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\norigins: {{ s: {{ servers: [127.0.0.1:1] }} }}\n\
             store: {{ redis: {{ url: \"redis://127.0.0.1\" }} }}\n{fleet}\n\
             limits: {{ a: {{ scope: fleet, key: client_ip, {limit} }} }}\nroutes: [{{ name: r, limits: [a] }}]\n"
        );
        let config = crate::config::read_text(&text, "p", Path::new(".")).unwrap().config;
        let facts = limit_facts(&config, &config.policy.limits[0]).0.into_iter();
        let shown = |LimitFact { label, name, text }| {
            format!("{label}{}: {text}", name.map(|name| format!(" {name}")).unwrap_or_default())
        };
        facts.map(shown).filter(|fact| fact.contains("fleet") || fact.contains("nodes")).collect()
    }

    #[test]
    fn a_limit_of_a_fleet_has_its_bound_for_some_numbers_of_nodes() {
        let expected = [
            "promise: about 100 in each clock-aligned 60s, under 200 in the worst placed one, on all nodes together",
            "fleet: nodes exchange counts every 1s, and leave at most 10 % of the limit unpublished",
            "fleet: what the nodes' tables of watched keys have no room for comes on top (tollgate_confirm_error)",
            "fleet 2 nodes: publishes from 10, admits at most 109 + what arrives in 2s, never more than 200",
            "fleet 5 nodes: publishes from 2, admits at most 104 + what arrives in 2s, never more than 500",
            "fleet 20 nodes: publishes from 1, admits at most 100 + what arrives in 2s, never more than 2000",
        ];
        assert_eq!(facts_of("", "tier: estimate, rate: 100/1m"), expected);
        let found =
            facts_of("fleet: { error: 100%, every: 500ms }", "tier: estimate, rate: 100/1m");
        assert!(found.contains(&"fleet: nodes exchange counts every 500ms, and leave at most 100 % of the limit unpublished".to_owned()), "{found:?}");
        assert!(found.contains(&"fleet 5 nodes: publishes from 25, admits at most 196 + what arrives in 1s, never more than 500".to_owned()), "{found:?}");
    }

    #[test]
    fn an_exact_limit_says_what_it_counts_over_the_fleet() {
        let penalty = "penalty: { after: 20, within: 1m, ban: 10m }";
        let found = facts_of("", &format!("tier: exact, rate: 100/1m, when_full: deny, {penalty}"));
        let denials = "fleet: nodes exchange counts every 1s: denials for the penalty count on all nodes together";
        assert!(found.contains(&denials.to_owned()), "{found:?}");
        let rule = "penalty: 20 denials within 60s on all nodes together: banned for 600s";
        assert!(found.contains(&rule.to_owned()), "{found:?}");
        let bound = "penalty 2 nodes: publishes from 2, bans after at most 21 in one window + what arrives in 2s, never more than 40";
        assert!(found.contains(&bound.to_owned()), "{found:?}");
        assert!(!found.iter().any(|fact| fact.starts_with("fleet 2 nodes")), "{found:?}");
        let found = facts_of("", &format!("tier: exact, rate: 100/1m, {penalty}"));
        let says = "fleet: nodes exchange counts every 1s: denials for the penalty, and keys that a node estimates while only a part of the store is down, count on all nodes together";
        assert!(found.contains(&says.to_owned()), "{found:?}");
        let found = facts_of("", "tier: exact, rate: 100/1m, when_full: estimate");
        let estimates = "fleet: nodes exchange counts every 1s: keys that a node estimates while only a part of the store is down count on all nodes together";
        assert!(found.contains(&estimates.to_owned()), "{found:?}");
    }
}
