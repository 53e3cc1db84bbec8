//! `plans`, `rollout`, `from`, `candidate` and `overrides`: for which keys a limit has another rate
//! or another effect. Rates that differ from that of the limit are collected in one list, and a
//! [`RateIndex`] refers to it.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use super::algorithm::{Shape, other_quota, quota_in};
use super::limit::LimitContext;
use super::overrides::overrides;
use crate::clock::Nanos;
use crate::config::reader::{Located, Mapping, NamedValue};
use crate::config::scalars::share;
use crate::config::sections::keys::source;
use crate::limit::Quota;
use crate::policy::{Class, KeySpec, Plans, RateIndex, Rollout, Source, Terms};

/// Largest number of plans of a limit.
const MAX_PLANS: usize = 64;

/// Reads what depends on the key of a request. `shape`: what other rates have in common; `None` if
/// the limit has no exact rate.
pub(super) fn terms(
    map: &mut Mapping<'_>,
    shape: Option<&Shape<'_>>,
    key: Option<&KeySpec>,
    context: &LimitContext<'_>,
) -> Option<Terms> {
    let mut terms = Terms { rollout: rollout(map)?, ..Terms::default() };
    if let Some(at) = map.get("candidate") {
        let shape = require_shape(&at, shape)?;
        let mut map = at.mapping()?;
        let quota = quota_in(&mut map, shape);
        map.finish();
        terms.candidate = Some(quota?);
    }
    if let Some(at) = map.get("plans") {
        let shape = require_shape(&at, shape)?;
        terms.plans = Some(plans(&at, shape, context, &mut terms.quotas)?);
    }
    if let Some(at) = map.get("overrides") {
        terms.overrides = overrides(&at, shape, key, context, &mut terms.quotas)?;
    }
    Some(terms)
}

/// Records a mistake if a limit without an exact rate has another rate.
pub(super) fn require_shape<'s, 'n>(
    at: &Located<'_>,
    shape: Option<&'s Shape<'n>>,
) -> Option<&'s Shape<'n>> {
    if shape.is_none() {
        let cure = "leave it out, or write tier: exact and a rate";
        at.error_with("a second rate needs a limit with an exact rate", cure);
    }
    shape
}

fn rollout(map: &mut Mapping<'_>) -> Option<Rollout> {
    let ppm = map.get("rollout").map(|at| at.parse(share));
    let from = map.get("from").map(|at| at.parse(instant));
    let default = Rollout::default();
    Some(Rollout {
        ppm: ppm.unwrap_or(Some(default.ppm))?,
        from: from.unwrap_or(Some(default.from))?,
    })
}

/// `2026-12-01T00:00:00Z`, as the time since the Unix epoch.
fn instant(text: &str) -> Result<Nanos, String> {
    let wrong = || format!("{text:?} is not an instant; write for example 2026-12-01T00:00:00Z");
    let time = humantime::parse_rfc3339(text).map_err(|_| wrong())?;
    time.duration_since(UNIX_EPOCH).map(Nanos::from).map_err(|_| wrong())
}

fn plans(
    at: &Located<'_>,
    shape: &Shape<'_>,
    context: &LimitContext<'_>,
    quotas: &mut Vec<Quota>,
) -> Option<Plans> {
    let mut map = at.mapping()?;
    let by_at = map.require("by", "write by: header:x-plan");
    let rates_at = map.require("rates", "write rates: { gold: 600/1m }");
    map.finish();
    let by_at = by_at?;
    let mut by = source(&by_at, context.sources)?;
    if !matches!(by, Source::Header(_) | Source::Cookie(_) | Source::Jwt(_) | Source::FirstClass(_))
    {
        let cure = "header:NAME, cookie:NAME, class, or { jwt: { jwks_file: FILE, claim: plan } }";
        by_at.error_with(format!("a plan cannot be read from {by}"), cure);
        return None;
    }
    let entries = rates_at?.named_values();
    if entries.len() > MAX_PLANS {
        let cure = "write fewer, or use overrides with a class";
        at.error_with(format!("{} plans, more than {MAX_PLANS}", entries.len()), cure);
    }
    if matches!(by, Source::FirstClass(_)) {
        // The first class that has a rate decides, whatever other classes the request is in.
        let find = |plan: &NamedValue<'_>| context.sources.classes.find(&plan.at, plan.name);
        let classes: Option<Vec<Arc<Class>>> = entries.iter().map(find).collect();
        by = Source::FirstClass(classes?.into());
    }
    let mut rates = Vec::new();
    for plan in entries {
        rates.push((Box::from(plan.name), add_quota(quotas, other_quota(&plan.at, shape)?)));
    }
    Some(Plans { by, rates })
}

/// Adds a quota to those of the limit, unless it is already there. Index 0 is the rate of the limit
/// itself.
pub(super) fn add_quota(quotas: &mut Vec<Quota>, quota: Quota) -> RateIndex {
    let index = quotas.iter().position(|other| *other == quota).unwrap_or_else(|| {
        quotas.push(quota);
        quotas.len() - 1
    });
    // A configuration of at most 1 MiB does not hold more.
    RateIndex::try_from(index + 1).unwrap_or(RateIndex::MAX)
}
