//! Warnings about limits that apply to no request of their routes, and about overrides and plans that are for none.

use hashbrown::HashSet;

use super::classes::empty_classes;
use super::codes::Code;
use super::limit_uses::{LimitUse, TermUse};
use super::list::{WarningInput, WarningList};
use crate::config::reader::Located;
use crate::config::sections::routes::DefinedRoute;
use crate::policy::{
    KeyValues, Limit, LimitIndex, MissingKey, Override, OverrideTarget, RequestMatch, Source,
};

/// `uses`: what is known of each limit.
pub(super) fn warn_of_unused_terms(
    input: &WarningInput<'_>,
    uses: &[Option<LimitUse>],
    list: &mut WarningList<'_>,
) {
    let empty = empty_classes(input);
    for ((index, defined), found) in input.limits.iter().enumerate().zip(uses) {
        let (limit, at) = (&defined.limit, &defined.at);
        let found = found.as_ref();
        let is_asked = !warn_of_clients_not_asked(input, LimitIndex(index), limit, found, at, list);
        if let Some(found) = found.filter(|found| is_asked && !found.applies) {
            warn_of_no_request(input, LimitIndex(index), found, at, list);
        }
        // Of a limit that judges no request, its terms need no warning of their own.
        let judges = |found: &&LimitUse| {
            found.is_met && (found.has_key || limit.missing_key == MissingKey::ClientIp)
        };
        let found = found.filter(judges);
        warn_of_overrides(&empty, limit, found, at, list);
        warn_of_plans(&empty, limit, found, at, list);
    }
}

/// Warns of a key in certificates that no listener asks for. Returns whether it did, or would if it were not silenced.
fn warn_of_clients_not_asked(
    input: &WarningInput<'_>,
    index: LimitIndex,
    limit: &Limit,
    found: Option<&LimitUse>,
    at: &Located<'_>,
    list: &mut WarningList<'_>,
) -> bool {
    let sources = limit.key.sources();
    if input.listeners.is_empty() || !sources.iter().any(Source::is_client_certificate) {
        return false;
    }
    // Whatever else the routes demand, they name listeners.
    let asks = |matches: &RequestMatch| {
        input.listeners.iter().any(|listener| {
            let is_own = |name| matches.listeners.contains(name);
            listener.client_ca.is_some()
                && (matches.listeners.is_empty() || listener.name.as_ref().is_some_and(is_own))
        })
    };
    let uses = |defined: &&DefinedRoute<'_>| {
        let mut limits = defined.route.limits.iter();
        limits.any(|used| input.limits.missing_key_chain(used.limit).any(|link| link == index))
    };
    let may_be_asked = input.routes.iter().filter(uses).any(|defined| asks(&defined.route.matches));
    let is_found = found.is_none_or(|found| {
        !found.is_met
            || sources
                .iter()
                .zip(&found.sources)
                .all(|(source, is_found)| *is_found || !source.is_client_certificate())
    });
    if may_be_asked && is_found {
        return false;
    }
    let (name, missing) = (&limit.name, &limit.missing_key);
    let message = format!(
        "limit {name:?} counts by {}, and no listener of its routes asks for certificates: its key \
         is always missing ({missing})",
        limit.key
    );
    list.add(Code::ClientsNotAsked, at, message, "write client_ca in tls of a listener");
    true
}

/// Warns of a limit that applies to no request, though requests reach a route that uses it.
fn warn_of_no_request(
    input: &WarningInput<'_>,
    index: LimitIndex,
    found: &LimitUse,
    at: &Located<'_>,
    list: &mut WarningList<'_>,
) {
    let limit = input.limits.get(index);
    let name = &limit.name;
    let (reason, cure) = match (found.is_met, found.has_key) {
        (false, _) if is_named(input, index) => (
            "responses.exempt exempts all requests of its routes".to_owned(),
            "write responses: { exempt: [] } in the route, or remove the limit",
        ),
        // The key of another limit is never missing. The reader wants `missing_key` all the same, and this is a good one.
        (false, _) => return,
        (true, false) => {
            let sources = limit.key.sources().iter().zip(&found.sources);
            let missing = sources.filter(|(_, is_found)| !**is_found).map(|(source, _)| source);
            let missing: Vec<&Source> = missing.collect();
            let cure = match missing.first() {
                Some(Source::TlsSni) => "write tls in a listener of its routes, or count by host",
                Some(Source::Class(_) | Source::FirstClass(_)) => {
                    "correct the class, or the conditions of its routes"
                }
                Some(Source::PathSegment(_)) => {
                    "count by an earlier segment, or write a longer path in its routes"
                }
                _ => "correct the key, or the conditions of its routes",
            };
            let missing = missing.first().map(ToString::to_string);
            let missing = missing.unwrap_or_else(|| limit.key.to_string());
            (format!("no request of its routes has {missing} ({})", limit.missing_key), cure)
        }
        (true, true) => (
            "its overrides allow every request of its routes".to_owned(),
            "narrow them, or remove the limit",
        ),
    };
    list.add(
        Code::UnusedLimit,
        at,
        format!("limit {name:?} applies to no request: {reason}"),
        cure,
    );
}

/// Whether a route names the limit itself.
fn is_named(input: &WarningInput<'_>, index: LimitIndex) -> bool {
    input.routes.iter().any(|defined| defined.route.limits.iter().any(|used| used.limit == index))
}

/// `empty`: the classes that no request is in, of which there is another warning.
fn warn_of_overrides(
    empty: &HashSet<&str>,
    limit: &Limit,
    found: Option<&LimitUse>,
    at: &Located<'_>,
    list: &mut WarningList<'_>,
) {
    let overrides = &limit.terms.overrides;
    let is_for_empty_class = |rule: &Override| matches!(&rule.target, OverrideTarget::Class(class) if empty.contains(&*class.name));
    let mut keys: HashSet<&KeyValues> = HashSet::new();
    for (index, rule) in overrides.iter().enumerate() {
        let number = index + 1;
        let found = found.map(|found| found.overrides[index]);
        let is_repeated = match &rule.target {
            // Of one without keys there is another warning.
            OverrideTarget::Keys(own) if own.is_empty() => continue,
            OverrideTarget::Keys(own) => {
                warn_of_star(limit, number, own, at, list);
                let new = own.iter().filter(|values| keys.insert(values)).count();
                new == 0
            }
            OverrideTarget::Network(_) | OverrideTarget::Class(_) => {
                overrides[..index].iter().any(|earlier| covers(earlier, rule))
            }
        };
        let shadowed = match found {
            Some(TermUse { matches: false, .. }) if !is_for_empty_class(rule) => {
                let (what, cure) = target_text(&rule.target);
                let message = format!(
                    "override {number} never applies: no request of the limit's routes {what}"
                );
                list.add(Code::UnusedOverride, at, message, cure);
                continue;
            }
            Some(_) | None if is_repeated => match &rule.target {
                OverrideTarget::Network(_) => "an earlier one covers its network",
                OverrideTarget::Class(_) => "an earlier one is for its class",
                OverrideTarget::Keys(_) => "earlier ones have its keys",
            },
            Some(TermUse { matches: true, decides: false }) => {
                "earlier ones are for all of its requests"
            }
            Some(_) | None => continue,
        };
        let message = format!("override {number} never applies: {shadowed}");
        list.add(Code::ShadowedOverride, at, message, "put it first, or remove it");
    }
}

/// Warns of a star in a key that is written in the file itself.
fn warn_of_star(
    limit: &Limit,
    number: usize,
    keys: &[KeyValues],
    at: &Located<'_>,
    list: &mut WarningList<'_>,
) {
    let [key] = keys else {
        return;
    };
    let mut parts = limit.key.sources().iter().zip(key);
    if parts.any(|(source, value)| *source != Source::ClientIp && value.contains(&b'*')) {
        let message = format!("in the key of override {number} a * stands for itself");
        list.add(Code::StarInValue, at, message, "define a class, and write class: NAME");
    }
}

/// Whether an override is for all that a later one is for, by comparison of the two.
fn covers(earlier: &Override, later: &Override) -> bool {
    match (&earlier.target, &later.target) {
        (OverrideTarget::Network(wide), OverrideTarget::Network(narrow)) => wide.contains(narrow),
        (OverrideTarget::Class(wide), OverrideTarget::Class(narrow)) => wide.name == narrow.name,
        (
            OverrideTarget::Network(_) | OverrideTarget::Class(_) | OverrideTarget::Keys(_),
            OverrideTarget::Network(_) | OverrideTarget::Class(_) | OverrideTarget::Keys(_),
        ) => false,
    }
}

/// What no request is or has, and the cure.
fn target_text(target: &OverrideTarget) -> (String, &'static str) {
    match target {
        OverrideTarget::Keys(_) => (
            "has such a key".to_owned(),
            "correct the key, or the conditions of the routes, or remove it",
        ),
        OverrideTarget::Network(network) => (
            format!("is from {network}"),
            "correct the network, or the conditions of the routes, or remove it",
        ),
        OverrideTarget::Class(class) => (
            format!("is in class {:?}", class.name),
            "correct the class, or the conditions of the routes, or remove it",
        ),
    }
}

fn warn_of_plans(
    empty: &HashSet<&str>,
    limit: &Limit,
    found: Option<&LimitUse>,
    at: &Located<'_>,
    list: &mut WarningList<'_>,
) {
    let (Some(plans), Some(found)) = (&limit.terms.plans, found) else {
        return;
    };
    for (class, term) in plans.by.classes().iter().zip(&found.plans) {
        let name = &class.name;
        let (reason, cure) = match term {
            TermUse { matches: false, .. } if !empty.contains(&**name) => (
                format!("no request of the limit's routes is in class {name:?}"),
                "correct the class, or the conditions of the routes, or remove the plan",
            ),
            TermUse { matches: true, decides: false } => (
                "earlier plans or overrides are for all requests of this class".to_owned(),
                "put it first, or remove it",
            ),
            TermUse { .. } => continue,
        };
        let code = if term.matches { Code::ShadowedOverride } else { Code::UnusedOverride };
        list.add(code, at, format!("plan {name:?} never applies: {reason}"), cure);
    }
}
