//! What the terms of each limit are good for: whether a request is found to which the limit applies, whose key it finds, and
//! that each of its overrides and plans is for.
//!
//! The requests are those of `sample_requests.rs`. They are told apart by the conditions of routes, and also by what keys,
//! overrides and plans read (`key_presence.rs`).

use super::key_presence::{Answer, KeyReader, in_class, probes_of_keys, probes_of_source};
use super::list::WarningInput;
use super::reachability::{Reach, SampleSearch};
use crate::policy::condition::Subject;
use crate::policy::{
    Facts, Limit, LimitIndex, MissingKey, OverrideAction, OverrideTarget, RequestMatch, Route,
    Source,
};

/// What was found of one limit. What is not known is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitUse {
    /// Some request meets the limit: its route names it, or a missing key leads to it.
    pub(super) is_met: bool,
    /// Some request that meets it may have this source of its key.
    pub(super) sources: Vec<bool>,
    /// Some request that meets it may have its key.
    pub(super) has_key: bool,
    /// It applies to some request.
    pub(super) applies: bool,
    /// Each override.
    pub(super) overrides: Vec<TermUse>,
    /// Each plan.
    pub(super) plans: Vec<TermUse>,
}

/// What was found of an override or a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TermUse {
    /// Some request is its target.
    pub(super) matches: bool,
    /// For some request it is the first one.
    pub(super) decides: bool,
}

impl TermUse {
    const USED: Self = Self { matches: true, decides: true };

    fn note(&mut self, decides: bool) {
        self.matches = true;
        self.decides |= decides;
    }
}

impl LimitUse {
    fn nothing(limit: &Limit) -> Self {
        let plans = limit.terms.plans.as_ref();
        let mut found = Self {
            is_met: false,
            sources: vec![false; limit.key.sources().len()],
            has_key: false,
            applies: false,
            overrides: vec![TermUse::default(); limit.terms.overrides.len()],
            plans: vec![TermUse::default(); plans.map_or(0, |plans| plans.rates.len())],
        };
        // A plan that a field or a token names may always be named.
        if plans.is_some_and(|plans| !matches!(plans.by, Source::FirstClass(_))) {
            found.plans.fill(TermUse::USED);
        }
        found
    }

    fn is_clean(&self) -> bool {
        let is_used = |term: &TermUse| *term == TermUse::USED;
        self.applies && self.has_key && self.overrides.iter().chain(&self.plans).all(is_used)
    }
}

/// What is known of each limit. `None`: no reachable route uses it, or it is not known.
pub(super) fn limit_uses(
    input: &WarningInput<'_>,
    routes: &[Route],
    reaches: &[Reach],
) -> Vec<Option<LimitUse>> {
    let search = SampleSearch::new(routes, input.listener_names);
    let mut entries: Vec<Vec<Entry<'_>>> = input.limits.iter().map(|_| Vec::new()).collect();
    for (index, route) in
        routes.iter().enumerate().filter(|(index, _)| reaches[*index] == Reach::Reachable)
    {
        for used in &route.limits {
            let chain: Vec<&Limit> = Vec::new();
            input.limits.missing_key_chain(used.limit).fold(chain, |mut chain, link| {
                entries[link.0].push(Entry { index, route, chain: chain.clone() });
                chain.push(input.limits.get(link));
                chain
            });
        }
    }
    let limits = (0..).map(|index| input.limits.get(LimitIndex(index)));
    entries
        .iter()
        .zip(limits)
        .map(|(entries, limit)| use_of(input, &search, limit, entries))
        .collect()
}

/// A route that leads to a limit.
struct Entry<'e> {
    index: usize,
    route: &'e Route,
    /// The limits whose missing keys lead to it.
    chain: Vec<&'e Limit>,
}

fn use_of(
    input: &WarningInput<'_>,
    search: &SampleSearch<'_>,
    limit: &Limit,
    entries: &[Entry<'_>],
) -> Option<LimitUse> {
    let mut found = LimitUse::nothing(limit);
    let is_plain = |entry: &Entry<'_>| entry.chain.is_empty() && !may_be_exempt(entry.route);
    if found.overrides.is_empty() && !limit.key.can_be_absent() && entries.iter().any(is_plain) {
        // Each request of such a route meets the limit, and has its key.
        (found.is_met, found.has_key, found.applies) = (true, true, true);
        found.sources.fill(true);
        if found.is_clean() {
            return Some(found);
        }
    }
    if entries.is_empty() {
        return None;
    }
    for entry in entries {
        let probes = probes(input, limit, entry);
        let is_known = search.visit(entry.index, &probes.matches, |facts| {
            judge(&probes.reader, limit, entry, facts, &mut found);
            found.is_clean()
        });
        if !is_known {
            return None;
        }
        if found.is_clean() {
            break;
        }
    }
    Some(found)
}

/// Whether all requests of a route may be exempt from exact limits: preflights, or challenges of ACME.
fn may_be_exempt(route: &Route) -> bool {
    route.matches.methods.contains("OPTIONS") && !route.matches.methods.contains("GET")
        || route.matches.paths.iter().any(|path| path.to_string().starts_with("/.well-known/"))
}

struct Probes<'p> {
    matches: Vec<RequestMatch>,
    reader: KeyReader<'p>,
}

fn probes<'p>(input: &WarningInput<'p>, limit: &Limit, entry: &Entry<'_>) -> Probes<'p> {
    let ipv6_prefix = input.clients.ipv6_prefix;
    let sources = || entry.chain.iter().copied().chain([limit]).flat_map(|it| it.key.sources());
    let mut matches: Vec<RequestMatch> = Vec::new();
    for rule in &limit.terms.overrides {
        match &rule.target {
            OverrideTarget::Network(network) => {
                matches.push(RequestMatch { clients: vec![*network], ..RequestMatch::default() });
            }
            OverrideTarget::Class(class) => matches.push(in_class(class)),
            OverrideTarget::Keys(keys) => {
                matches.extend(probes_of_keys(keys, &limit.key, ipv6_prefix));
            }
        }
    }
    let plans = limit.terms.plans.iter().flat_map(|plans| plans.by.classes());
    let classes = sources().flat_map(Source::classes);
    matches.extend(plans.chain(classes).map(in_class));
    let routes = input.routes[..=entry.index].iter().map(|defined| &defined.route.matches);
    let nested = routes.chain(&matches).flat_map(|matches| matches.nested());
    let conditions = nested.flat_map(|matches| &matches.values);
    let mut sampled: Vec<Subject> = Vec::new();
    for condition in conditions {
        if !sampled.contains(condition.subject()) {
            sampled.push(condition.subject().clone());
        }
    }
    let by_source: Vec<RequestMatch> =
        sources().flat_map(|source| probes_of_source(source, &sampled)).collect();
    matches.extend(by_source);
    Probes { matches, reader: KeyReader { listeners: input.listeners, ipv6_prefix, sampled } }
}

/// Adds what one request of a route shows.
fn judge(
    reader: &KeyReader<'_>,
    limit: &Limit,
    entry: &Entry<'_>,
    facts: &Facts<'_>,
    found: &mut LimitUse,
) {
    let route = entry.route;
    let first = entry.chain.first().copied().unwrap_or(limit);
    let leads_on = |link: &&Limit| reader.key(&link.key, facts, route).may_be_absent;
    if route.exempt.covers(facts) && !first.applies_to_exempt() || !entry.chain.iter().all(leads_on)
    {
        return;
    }
    found.is_met = true;
    for (is_found, source) in found.sources.iter_mut().zip(limit.key.sources()) {
        *is_found |= reader.source(source, facts, route).may_be_present;
    }
    let key = reader.key(&limit.key, facts, route);
    found.has_key |= key.may_be_present;
    let is_judged =
        key.may_be_present || key.may_be_absent && limit.missing_key == MissingKey::ClientIp;
    if key.may_be_absent && matches!(limit.missing_key, MissingKey::Deny(_)) {
        found.applies = true;
    }
    if is_judged && !is_decided(reader, limit, entry, facts, found) {
        found.applies = true;
        note_plans(limit, facts, found);
    }
}

/// Notes the overrides of a request. Returns whether one of them certainly decides.
fn is_decided(
    reader: &KeyReader<'_>,
    limit: &Limit,
    entry: &Entry<'_>,
    facts: &Facts<'_>,
    found: &mut LimitUse,
) -> bool {
    let mut is_decided = false;
    for (rule, term) in limit.terms.overrides.iter().zip(&mut found.overrides) {
        let answer = match &rule.target {
            OverrideTarget::Keys(keys) => reader.has_key_of(keys, &limit.key, facts, entry.route),
            target => target.matches_request(facts).map_or(Answer::Maybe, Answer::from),
        };
        if answer == Answer::No {
            continue;
        }
        term.note(!is_decided);
        if !is_decided && rule.action != OverrideAction::Allow {
            found.applies = true;
        }
        is_decided |= answer == Answer::Yes;
    }
    is_decided
}

fn note_plans(limit: &Limit, facts: &Facts<'_>, found: &mut LimitUse) {
    let classes = limit.terms.plans.iter().flat_map(|plans| plans.by.classes());
    let mut is_decided = false;
    for (class, term) in classes.zip(&mut found.plans) {
        let answer = class.holds(facts).map_or(Answer::Maybe, Answer::from);
        if answer != Answer::No {
            term.note(!is_decided);
        }
        is_decided |= answer == Answer::Yes;
    }
}
