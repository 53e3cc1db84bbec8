//! Resolves the cells that a request would be charged to, before anything is charged.
//!
//! For each limit of the route it reads the key, follows `missing_key`, and applies overrides, plans, the rollout
//! and the cost. It charges nothing and asks no store. No two targets of a request have the same key.

use std::sync::Arc;

use smallvec::SmallVec;

use super::decision::Outcome;
use super::final_cost::FinalCost;
use super::generation::Generation;
use super::loaded_limit::LoadedLimit;
use super::overrides::RankedAction;
use super::target::{Target, Targets};
use crate::policy::key::{KeyPart, NoKey};
use crate::policy::{
    Facts, KeyHash, KeySecret, Limit, LimitIndex, MissingKey, MissingValue, Mode, OverrideAction,
    RateSource, Route, RouteIndex, Source, Unreadable,
};
use crate::tokens::SignatureCheck;

/// Why a request is answered before anything is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyError {
    /// It lacks a key that a limit requires; the response has this status.
    Missing { limit: LimitIndex, status: u16 },
    /// It carries a key more than once.
    Repeated { limit: LimitIndex },
    /// Its key may be decoded in different ways.
    Unreadable { limit: LimitIndex },
    /// Whether it is in a class of an override, a plan or a key cannot be known.
    UnreadableCondition,
    /// The keys of its token have not been fetched.
    Unknowable { limit: LimitIndex },
}

impl KeyError {
    /// The outcome of the request.
    pub(super) const fn outcome(self) -> Outcome {
        match self {
            Self::Missing { limit, status } => Outcome::MissingKey { limit, status },
            Self::Repeated { limit } => Outcome::RepeatedKey { limit },
            Self::Unreadable { limit } => Outcome::UnreadableKey { limit },
            Self::UnreadableCondition => Outcome::UnreadableCondition,
            Self::Unknowable { limit } => Outcome::NoTokenKeys { limit },
        }
    }
}

/// Whether all limits of a request are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completeness {
    /// All are.
    Complete,
    /// Some depend on a token whose signature was not checked; a target may have [`Target::unknown_rate`].
    Partial,
}

/// Why a limit of a route does not apply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The request is exempt (`responses.exempt`).
    Exempt,
    /// It lacks the key of this limit, whose `missing_key` is `skip`.
    MissingKey(LimitIndex),
    /// An override of this limit allows it, by its index.
    Override(LimitIndex, u32),
    /// An operator's rule for its key allows it.
    KeyRule(LimitIndex),
    /// The request is read from a log that does not have what the limit needs.
    Unrecorded(LimitIndex),
}

/// What a limit of a route leads to.
enum Resolution<T> {
    /// A key, or a target.
    Applies(T),
    /// The limit does not apply.
    Skipped(SkipReason),
    /// It depends on a token whose signature was not checked.
    Unchecked,
}

/// The limit that applies, after `missing_key` was followed, and its key.
struct ResolvedKey<'g> {
    limit: LimitIndex,
    loaded: &'g LoadedLimit,
    key: KeyHash,
    family: Option<KeyHash>,
    /// Whether the limit's own sources gave the key; otherwise it is the client's address.
    by_sources: bool,
}

/// Resolves the limits of a route into the empty list `targets`. `signatures`: whether signatures of tokens are
/// checked, or only earlier checks are recalled. The error is that of the first limit that has one; `targets` then
/// holds those of all other limits.
pub(super) fn resolve(
    generation: &Generation,
    facts: &Facts<'_>,
    route: RouteIndex,
    signatures: SignatureCheck,
    targets: &mut Targets,
) -> Result<Completeness, KeyError> {
    let mut result = Ok(Completeness::Complete);
    let route = generation.policy().route(route);
    let is_exempt = route.exempt.covers(facts);
    for index in 0..route.limits.len() {
        if is_exempt && !applies_to_exempt(generation, route, index) {
            continue;
        }
        let is_complete = match resolve_limit(generation, facts, route, index, signatures) {
            Ok(Resolution::Applies(target)) => {
                add(targets, target);
                !target.unknown_rate
            }
            Ok(Resolution::Skipped(_)) => true,
            Ok(Resolution::Unchecked) => false,
            Err(error) => {
                result = result.and(Err(error));
                continue;
            }
        };
        if !is_complete {
            result = result.and(Ok(Completeness::Partial));
        }
    }
    result
}

fn applies_to_exempt(generation: &Generation, route: &Route, index: usize) -> bool {
    generation.policy().limit(route.limits[index].limit).applies_to_exempt()
}

/// The limits of a route that do not apply to a request, each with the reason, for people who ask. A
/// token's signature is checked.
pub fn skipped_limits(
    generation: &Generation,
    facts: &Facts<'_>,
    route: RouteIndex,
) -> Vec<(LimitIndex, SkipReason)> {
    let route = generation.policy().route(route);
    let is_exempt = route.exempt.covers(facts);
    let skip_reason = |index: usize| -> Option<SkipReason> {
        if is_exempt && !applies_to_exempt(generation, route, index) {
            return Some(SkipReason::Exempt);
        }
        match resolve_limit(generation, facts, route, index, SignatureCheck::Verify) {
            Ok(Resolution::Skipped(reason)) => Some(reason),
            Ok(Resolution::Applies(_) | Resolution::Unchecked) | Err(_) => None,
        }
    };
    let limits = route.limits.iter().enumerate();
    limits.filter_map(|(index, listed)| Some((listed.limit, skip_reason(index)?))).collect()
}

/// Adds a target. Two limits can lead to one cell by `missing_key`: it is charged once, at the larger cost.
fn add(targets: &mut Targets, target: Target) {
    match targets.iter_mut().find(|other| other.key == target.key) {
        Some(other) => {
            other.cost = other.cost.max(target.cost);
            other.final_cost = other.final_cost.max(target.final_cost);
        }
        None => targets.push(target),
    }
}

/// Whether every other reading of the path leads to the same route and to the same key parts. (Key parts that are not
/// read from the path are the same under each reading.)
pub(super) fn is_unambiguous(
    generation: &Generation,
    facts: &Facts<'_>,
    index: RouteIndex,
) -> bool {
    if facts.readings.is_empty() {
        return true;
    }
    let policy = generation.policy();
    let (route, sources) = (policy.route(index), generation.path_sources(index));
    let classes = generation.path_classes(index);
    let expected: SmallVec<[KeyPart<'_>; 2]> =
        sources.iter().map(|source| source.part(facts, route)).collect();
    facts.readings.iter().all(|path| {
        let other = Facts { path, readings: &[], ..*facts };
        policy.find(&other) == Ok(Some(index))
            && sources
                .iter()
                .zip(&expected)
                .all(|(source, part)| source.part(&other, route) == *part)
            && classes.iter().all(|class| class.holds(&other) == class.holds(facts))
    })
}

/// Resolves one limit of a route, by its index there.
fn resolve_limit(
    generation: &Generation,
    facts: &Facts<'_>,
    route: &Route,
    index: usize,
    signatures: SignatureCheck,
) -> Result<Resolution<Target>, KeyError> {
    let first = route.limits[index].limit;
    let resolved = match resolve_key(generation, facts, route, first, signatures)? {
        Resolution::Applies(resolved) => resolved,
        Resolution::Skipped(reason) => return Ok(Resolution::Skipped(reason)),
        Resolution::Unchecked => return Ok(Resolution::Unchecked),
    };
    let limit = resolved.limit;
    let spec = generation.policy().limit(limit);
    if let Some(log) = facts.log().filter(|log| log.is_ruled(&spec.name)) {
        log.note(MissingValue::Rule(Arc::clone(&spec.name)));
        return Ok(Resolution::Skipped(SkipReason::Unrecorded(limit)));
    }
    let rules = spec.terms.key_rules.of_key(resolved.key);
    let banned_for = rules.and_then(|rules| rules.banned_for(facts.now));
    let (mut rate, mut rate_source) = (None, RateSource::Own);
    let mut denied = false;
    let action = match rules.and_then(|rules| rules.action(facts.now)) {
        Some(action) => Some((action, RateSource::KeyRule, SkipReason::KeyRule(limit))),
        None => configured_action(&resolved, facts)?,
    };
    if let Some((action, source, skip_reason)) = action {
        rate_source = source;
        match action {
            OverrideAction::Allow if banned_for.is_none() => {
                return Ok(Resolution::Skipped(skip_reason));
            }
            OverrideAction::Allow => {}
            OverrideAction::Deny => denied = true,
            OverrideAction::Rate(other) => rate = Some(other),
        }
    }
    let mut unknown_rate = false;
    if let (None, Some(plans)) = (rate, &spec.terms.plans) {
        match plans.choose(facts, route, signatures) {
            Ok(choice) => {
                let (of_plan, source) = choice.rate(plans);
                rate = Some(of_plan);
                // A denying override stays the reason.
                rate_source = if denied { rate_source } else { source };
            }
            Err(NoKey::Unchecked) => unknown_rate = true,
            Err(NoKey::Unreadable) => return Err(KeyError::Unreadable { limit }),
            Err(NoKey::UnreadableCondition) => return Err(KeyError::UnreadableCondition),
            Err(NoKey::Unknowable) => return Err(KeyError::Unknowable { limit }),
            Err(NoKey::Unrecorded) => {
                return Ok(Resolution::Skipped(SkipReason::Unrecorded(limit)));
            }
            Err(NoKey::Absent | NoKey::Repeated) => return Err(KeyError::Repeated { limit }),
        }
    }
    let cost = route.limits[index].cost.upfront(facts);
    let cost = cost.map_err(|_| KeyError::Repeated { limit })?;
    Ok(Resolution::Applies(Target {
        limit,
        key: resolved.key,
        family: resolved.family,
        cost,
        authenticated: resolved.by_sources && spec.key.is_credential(),
        by_address: !resolved.by_sources || spec.key.sources().contains(&Source::ClientIp),
        rate: rate.unwrap_or(0),
        rate_source,
        unknown_rate,
        shadow: spec.mode == Mode::Shadow || !is_rolled_out(spec, &resolved, facts, route),
        denied,
        banned_for: banned_for.unwrap_or_default(),
        final_cost: FinalCost::of(index, &route.limits[index].cost, cost),
    }))
}

/// The action of the configuration's override for a key, if there is one.
fn configured_action(
    resolved: &ResolvedKey<'_>,
    facts: &Facts<'_>,
) -> Result<Option<(OverrideAction, RateSource, SkipReason)>, KeyError> {
    let (limit, overrides) = (resolved.limit, resolved.loaded.overrides.as_ref());
    let ranked = overrides.map_or(Ok(None), |overrides| overrides.action(resolved.key, facts));
    let ranked = ranked.map_err(|Unreadable| KeyError::UnreadableCondition)?;
    Ok(ranked.map(|RankedAction { rank, action }| {
        (action, RateSource::Override(rank), SkipReason::Override(limit, rank))
    }))
}

/// Reads the key of a limit. If it is missing, follows `missing_key` to the limit that applies.
fn resolve_key<'g>(
    generation: &'g Generation,
    facts: &Facts<'_>,
    route: &Route,
    mut limit: LimitIndex,
    signatures: SignatureCheck,
) -> Result<Resolution<ResolvedKey<'g>>, KeyError> {
    let policy = generation.policy();
    // The configuration refuses cycles, so a chain of `missing_key: { limit: .. }` is no longer than the list.
    for _ in 0..=policy.limits.len() {
        let spec = policy.limit(limit);
        let loaded = generation.loaded(limit);
        let hasher = &loaded.hasher;
        match spec.key.hash_with(hasher, facts, route, signatures) {
            Ok(key) => {
                let family = loaded.family.as_ref().and_then(|family| {
                    spec.key.hash_first(family.sources, &family.hasher, facts, route)
                });
                let resolved = ResolvedKey { limit, loaded, key, family, by_sources: true };
                return Ok(Resolution::Applies(resolved));
            }
            Err(NoKey::Repeated) => return Err(KeyError::Repeated { limit }),
            Err(NoKey::Unreadable) => return Err(KeyError::Unreadable { limit }),
            Err(NoKey::UnreadableCondition) => return Err(KeyError::UnreadableCondition),
            Err(NoKey::Unknowable) => return Err(KeyError::Unknowable { limit }),
            Err(NoKey::Unchecked) => return Ok(Resolution::Unchecked),
            Err(NoKey::Unrecorded) => {
                return Ok(Resolution::Skipped(SkipReason::Unrecorded(limit)));
            }
            Err(NoKey::Absent) => match spec.missing_key {
                MissingKey::Skip | MissingKey::Impossible => {
                    return Ok(Resolution::Skipped(SkipReason::MissingKey(limit)));
                }
                MissingKey::Deny(status) => return Err(KeyError::Missing { limit, status }),
                MissingKey::ClientIp => {
                    let key = hasher.hash_client_ip(facts);
                    let resolved =
                        ResolvedKey { limit, loaded, key, family: None, by_sources: false };
                    return Ok(Resolution::Applies(resolved));
                }
                MissingKey::Limit(next) => limit = next,
            },
        }
    }
    Ok(Resolution::Skipped(SkipReason::MissingKey(limit)))
}

/// Whether the rollout of a limit includes this key now.
fn is_rolled_out(
    limit: &Limit,
    resolved: &ResolvedKey<'_>,
    facts: &Facts<'_>,
    route: &Route,
) -> bool {
    limit.terms.rollout.includes(facts.now, || {
        if let Some(recorded) = facts.log().and_then(|log| log.rollout(&limit.name)) {
            return recorded;
        }
        let hasher = KeySecret::fixed_hasher(limit);
        // The key is read only if the limit's sources gave it: reading a missing key could check a signature.
        let own = resolved.by_sources.then(|| limit.key.hash(&hasher, facts, route).ok()).flatten();
        own.unwrap_or_else(|| hasher.hash_client_ip(facts)).low
    })
}
