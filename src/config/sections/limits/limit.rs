//! Reads `limits`: the keys of a limit that do not depend on how it counts.

use std::sync::Arc;

use super::count::{CountSettings, count_settings};
use super::defined::{DefinedLimit, DefinedLimits};
use super::missing_key::{missing_key, refuse_cycles};
use super::scope::{refuse_fleet, scope};
use crate::clock::Nanos;
use crate::config::reader::{Located, Mapping, NamedValue};
use crate::config::scalars::{NAME_CURE, is_name};
use crate::config::sections::costs::{cost, penalty, refuse_misfit};
use crate::config::sections::keys::{SourceContext, key};
use crate::limit::Rate;
use crate::policy::{Cost, Count, KeySpec, Limit, MissingKey, Mode, Scope, StatusRules};

/// What limits are read with.
pub(crate) struct LimitContext<'c> {
    /// What keys and plans refer to.
    pub(crate) sources: SourceContext<'c>,
    /// Leading bits of an IPv6 address that identify one client.
    pub(crate) ipv6_prefix: u8,
    /// The resolution of the clock of exact limits.
    pub(crate) tick: Nanos,
    /// Whether a directory keeps counters when the process ends.
    pub(crate) has_state: bool,
    /// Whether the file names a store that nodes share.
    pub(crate) has_shared_store: bool,
}

/// `limits`.
pub(crate) fn limits<'n>(root: &mut Mapping<'n>, context: &LimitContext<'_>) -> DefinedLimits<'n> {
    let at = root.get("limits");
    let is_unreadable = at.as_ref().is_some_and(|at| !at.is_mapping() && !at.is_nothing());
    let mut entries = at.map(|at| at.named_values()).unwrap_or_default();
    let emptied = refuse_outdented(&mut entries);
    let names: Vec<&str> = entries.iter().chain(&emptied).map(|entry| entry.name).collect();
    let mut limits = DefinedLimits::new(is_unreadable);
    for entry in &entries {
        let (name, at) = (entry.name, &entry.at);
        if !is_name(name) {
            at.error_with(format!("{name:?} is not a name"), NAME_CURE);
        }
        let limit = limit(name, at, &names, context).unwrap_or_else(|| substitute(name));
        limits.push(DefinedLimit { limit, at: at.clone() });
    }
    // Behind the others, so that each name has the index of its limit.
    for NamedValue { name, at } in emptied {
        limits.push(DefinedLimit { limit: substitute(name), at });
    }
    refuse_cycles(&limits);
    limits
}

/// The keys that nearly every limit has.
const COMMON_KEYS: [&str; 5] = ["tier", "rate", "key", "algorithm", "burst"];

/// Says once that the keys of a limit stand on the level of its name, and takes them out. Returns the limits
/// that are left without keys.
fn refuse_outdented<'n>(entries: &mut Vec<NamedValue<'n>>) -> Vec<NamedValue<'n>> {
    let is_key = |entry: &NamedValue<'_>| {
        COMMON_KEYS.contains(&entry.name) && !entry.at.is_mapping() && !entry.at.is_nothing()
    };
    let Some(first) = entries.iter().position(is_key) else {
        return Vec::new();
    };
    let Some(limit) = entries[..first].iter().rfind(|entry| entry.at.is_nothing()) else {
        return Vec::new();
    };
    let (name, key) = (limit.name, entries[first].name);
    let message = format!("{key} is on the level of {name}, not below it");
    limit.at.error_with(message, format!("indent the keys of {name} further than {name}"));
    // What is read of them now would be a second error.
    let emptied = entries.iter().filter(|entry| entry.at.is_nothing()).cloned().collect();
    entries.retain(|entry| entry.at.is_mapping());
    emptied
}

/// Stands for a limit with a mistake, so that references to it are known. A file with a mistake
/// produces no policy, so the substitute never judges a request.
fn substitute(name: &str) -> Limit {
    Limit {
        name: Arc::from(name),
        // Every cost fits into it.
        count: Count::Estimate {
            rate: Rate::new(u32::MAX, Nanos::SECOND).unwrap_or(Rate::PER_SECOND),
            expect_per_second: 1,
        },
        scope: Scope::default(),
        key: KeySpec::client_ip(),
        missing_key: MissingKey::Impossible,
        mode: Mode::Enforce,
        cost: Cost::Fixed(1),
        terms: Box::default(),
        status_rules: StatusRules::default(),
        penalty: None,
        hidden: false,
    }
}

fn limit(
    name: &str,
    at: &Located<'_>,
    names: &[&str],
    context: &LimitContext<'_>,
) -> Option<Limit> {
    let mut map = at.mapping()?;
    let is_exact = map
        .require("tier", "write tier: exact (counts exactly) or tier: estimate (cheap)")
        .and_then(|at| at.choice(&[("estimate", false), ("exact", true)]));
    let key = map
        .require("key", "write for example key: client_ip")
        .and_then(|at| key(&at, context.sources));
    let missing_key = missing_key(&mut map, key.as_ref(), names);
    let mode = map
        .get("mode")
        .map(|at| at.choice(&[("enforce", Mode::Enforce), ("shadow", Mode::Shadow)]));
    let hidden = map.get("headers").map(|at| at.choice(&[("hidden", true)]));
    let cost_at = map.get("cost");
    let cost = cost_at.as_ref().map(cost);
    let penalty_at = map.get("penalty");
    let penalty = penalty_at.as_ref().map(penalty);
    let scope_at = map.get("scope");
    let scope = scope(scope_at.as_ref());
    let settings = count_settings(&mut map, is_exact, key.as_ref(), context);
    let has_when_full = map.get("when_full").is_some();
    map.finish();
    let CountSettings { count, terms, status_rules } = settings?;
    let limit = Limit {
        name: Arc::from(name),
        count,
        scope: scope?,
        key: key?,
        missing_key: missing_key?,
        mode: mode.unwrap_or(Some(Mode::Enforce))?,
        cost: cost.unwrap_or(Some(Cost::Fixed(1)))?,
        terms: Box::new(terms),
        status_rules,
        penalty: match penalty {
            None => None,
            Some(penalty) => Some(penalty?),
        },
        hidden: hidden.unwrap_or(Some(false))?,
    };
    if let Some(at) = penalty_at.filter(|_| limit.penalty.is_some_and(|rule| rule.at_connection))
        && limit.key != KeySpec::client_ip()
    {
        let cure = "write at: request, or key: client_ip";
        at.error_with("connections are refused by address, and this limit has another key", cure);
    }
    if let Some(at) = &scope_at {
        refuse_fleet(at, &limit, has_when_full, context.has_shared_store);
    }
    if let Some(at) = &cost_at {
        refuse_misfit(at, &limit.cost, &limit);
    }
    Some(limit)
}
