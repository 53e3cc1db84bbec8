//! The cells that a request is to be charged to, resolved before anything is charged.

use http::HeaderMap;
use smallvec::SmallVec;

use super::generation::Counting;
use super::{Generation, Outcome};
use crate::policy::key::{KeyPart, NoKey};
use crate::policy::{
    Cost, Facts, KeyHash, KeySecret, Limit, LimitIndex, MAX_LIMITS_PER_ROUTE, MissingKey, Mode,
    OverrideAction, RateIndex, Route, RouteIndex, Source,
};
use crate::tokens::SignatureCheck;

/// One cell that a request is to be charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The limit that is charged.
    pub(super) limit: LimitIndex,
    /// The key of the cell.
    pub(super) key: KeyHash,
    /// Puts the cell into the slot of its family, in a store with slots.
    pub(super) family: Option<KeyHash>,
    /// How many units the request costs.
    pub(super) cost: u32,
    /// Whether the key came from a credential.
    pub(super) authenticated: bool,
    /// Whether the client's address is the key or a part of it, so that nobody else spends what is there.
    pub(super) by_address: bool,
    /// Which of the limit's rates applies.
    pub(super) rate: RateIndex,
    /// Whether a token that is not checked yet says which. The limit cannot be judged then, but a ban and
    /// an override that denies the key hold under every rate.
    pub(super) unrated: bool,
    /// Whether the limit watches this key without refusing anything.
    pub(super) shadow: bool,
    /// Whether an override denies the key.
    pub(super) denied: bool,
    /// What it costs after its answer.
    pub(super) final_cost: FinalCost,
}

/// What a request costs under a limit when the answer is known: of all uses of the route that lead to its
/// cell, the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FinalCost {
    /// The largest of those that no answer changes; 0 without one.
    fixed: u32,
    /// Those that an answer may change: a bit for each limit of the route.
    late: u16,
}

const _: () = assert!(MAX_LIMITS_PER_ROUTE <= u16::BITS as usize);

impl FinalCost {
    /// Whether an answer may change it.
    pub(super) const fn depends_on_response(self) -> bool {
        self.late != 0
    }

    /// Of one use of a route, by its index, that costs so much at the door.
    const fn of(index: usize, cost: &Cost, at_door: u32) -> Self {
        match cost.depends_on_response() {
            true => Self { fixed: 0, late: 1 << index },
            false => Self { fixed: at_door, late: 0 },
        }
    }

    const fn and(self, other: Self) -> Self {
        let fixed = if self.fixed > other.fixed { self.fixed } else { other.fixed };
        Self { fixed, late: self.late | other.late }
    }

    /// What it costs if no origin was asked; `None`: what was charged stands.
    pub(super) fn unforwarded(self) -> Option<u32> {
        self.depends_on_response().then_some(self.fixed)
    }

    /// What it costs after this answer; `None`: what was charged stands.
    pub(super) fn told(&self, route: &Route, headers: &HeaderMap) -> Option<u32> {
        let mut most = None;
        let mut reserved = self.fixed;
        for (index, one) in route.limits.iter().enumerate() {
            if self.late & (1 << index) == 0 {
                continue;
            }
            match one.cost.from_response(headers) {
                Some(cost) => most = most.max(Some(cost)),
                None => reserved = reserved.max(one.cost.minimum()),
            }
        }
        most.map(|most| most.max(reserved))
    }
}

/// All cells of a request; no key stands twice.
pub(super) type Targets = SmallVec<[Target; 4]>;

/// Why a request is answered before anything is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyError {
    /// It lacks a key that a limit requires; the answer has this status.
    Missing { limit: LimitIndex, status: u16 },
    /// It carries a key more than once.
    Repeated { limit: LimitIndex },
    /// Its key may be decoded in different ways.
    Unreadable { limit: LimitIndex },
}

impl KeyError {
    /// What becomes of the request.
    pub(super) const fn outcome(self) -> Outcome {
        match self {
            Self::Missing { limit, status } => Outcome::MissingKey { limit, status },
            Self::Repeated { limit } => Outcome::RepeatedKey { limit },
            Self::Unreadable { limit } => Outcome::UnreadableKey { limit },
        }
    }
}

/// Whether all limits of a request are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    /// All are.
    Whole,
    /// Some wait for the signature of a token; a target may be [`Target::unrated`].
    Partly,
}

/// Resolves the limits of a route into an empty list, as far as they are known with these signatures. The
/// list is whole with an error too, except for the limits that have one; the error is the first.
pub(super) fn resolve(
    generation: &Generation,
    facts: &Facts<'_>,
    route: RouteIndex,
    signatures: SignatureCheck,
    targets: &mut Targets,
) -> Result<Resolved, KeyError> {
    let mut resolved = Ok(Resolved::Whole);
    let route = generation.policy().route(route);
    let is_exempt = route.exempt.covers(facts);
    for index in 0..route.limits.len() {
        if is_exempt && !generation.policy().limit(route.limits[index].limit).applies_to_exempt() {
            continue;
        }
        let is_whole = match resolve_one(generation, facts, route, index, signatures) {
            Ok(Lead::Target(target)) => {
                add(targets, target);
                !target.unrated
            }
            Ok(Lead::Nowhere) => true,
            Ok(Lead::Unchecked) => false,
            Err(error) => {
                resolved = resolved.and(Err(error));
                continue;
            }
        };
        if !is_whole {
            resolved = resolved.and(Ok(Resolved::Partly));
        }
    }
    resolved
}

/// Adds a target. Two limits may lead to one cell by `missing_key`: it is charged once, the larger cost.
fn add(targets: &mut Targets, target: Target) {
    match targets.iter_mut().find(|other| other.key == target.key) {
        Some(other) => {
            other.cost = other.cost.max(target.cost);
            other.final_cost = other.final_cost.and(target.final_cost);
        }
        None => targets.push(target),
    }
}

/// Whether every other reading of the path leads to the same route, and gives the keys of its limits the
/// same parts. (What a key has from elsewhere is the same under each.)
pub(super) fn reads_alike(generation: &Generation, facts: &Facts<'_>, index: RouteIndex) -> bool {
    if facts.readings.is_empty() {
        return true;
    }
    let policy = generation.policy();
    let (route, sources) = (policy.route(index), generation.path_sources(index));
    let expected: SmallVec<[KeyPart<'_>; 2]> =
        sources.iter().map(|source| source.part(facts, route)).collect();
    facts.readings.iter().all(|path| {
        let other = Facts { path, readings: &[], ..*facts };
        policy.find(&other) == Some(index)
            && sources.iter().zip(&expected).all(|(one, part)| one.part(&other, route) == *part)
    })
}

/// Where a limit of a route leads.
enum Lead<T> {
    /// To this.
    Target(T),
    /// Nowhere: it does not apply.
    Nowhere,
    /// A token says, whose signature is not checked.
    Unchecked,
}

/// The limit and the key that one limit of a route leads to.
struct Found<'g> {
    limit: LimitIndex,
    counting: &'g Counting,
    key: KeyHash,
    family: Option<KeyHash>,
    /// Whether the limit's own sources gave the key; else the client's address stands for it.
    by_sources: bool,
}

fn resolve_one(
    generation: &Generation,
    facts: &Facts<'_>,
    route: &Route,
    index: usize,
    signatures: SignatureCheck,
) -> Result<Lead<Target>, KeyError> {
    let found = match find(generation, facts, route, route.limits[index].limit, signatures)? {
        Lead::Target(found) => found,
        Lead::Nowhere => return Ok(Lead::Nowhere),
        Lead::Unchecked => return Ok(Lead::Unchecked),
    };
    let limit = found.limit;
    let spec = generation.policy().limit(limit);
    let mut rate = None;
    let mut denied = false;
    match found.counting.exceptions.as_ref().and_then(|all| all.action(found.key, facts)) {
        Some(OverrideAction::Allow) => return Ok(Lead::Nowhere),
        Some(OverrideAction::Deny) => denied = true,
        Some(OverrideAction::Rate(other)) => rate = Some(other),
        None => {}
    }
    let (rate, unrated) = match (rate, &spec.terms.plans) {
        (Some(rate), _) => (rate, false),
        (None, None) => (0, false),
        (None, Some(plans)) => match plans.rate(facts, route, signatures) {
            Ok(rate) => (rate, false),
            Err(NoKey::Unchecked) => (0, true),
            Err(NoKey::Unreadable) => return Err(KeyError::Unreadable { limit }),
            Err(NoKey::Absent | NoKey::Repeated) => return Err(KeyError::Repeated { limit }),
        },
    };
    let cost = route.limits[index].cost.upfront(facts);
    let cost = cost.map_err(|_| KeyError::Repeated { limit })?;
    Ok(Lead::Target(Target {
        limit,
        key: found.key,
        family: found.family,
        cost,
        authenticated: found.by_sources && spec.key.is_credential(),
        by_address: !found.by_sources || spec.key.sources().contains(&Source::ClientIp),
        rate,
        unrated,
        shadow: spec.mode == Mode::Shadow || !is_rolled_out(spec, &found, facts, route),
        denied,
        final_cost: FinalCost::of(index, &route.limits[index].cost, cost),
    }))
}

/// Follows `missing_key` to the limit that applies.
fn find<'g>(
    generation: &'g Generation,
    facts: &Facts<'_>,
    route: &Route,
    mut limit: LimitIndex,
    signatures: SignatureCheck,
) -> Result<Lead<Found<'g>>, KeyError> {
    let policy = generation.policy();
    // `missing_key: { limit: .. }` makes a chain without cycles, so it is no longer than the list.
    for _ in 0..=policy.limits.len() {
        let spec = policy.limit(limit);
        let counting = generation.counting(limit);
        let hasher = &counting.hasher;
        match spec.key.hash_with(hasher, facts, route, signatures) {
            Ok(key) => {
                let family = counting.family.as_ref();
                let family = family
                    .and_then(|(parts, hasher)| spec.key.hash_first(*parts, hasher, facts, route));
                return Ok(Lead::Target(Found { limit, counting, key, family, by_sources: true }));
            }
            Err(NoKey::Repeated) => return Err(KeyError::Repeated { limit }),
            Err(NoKey::Unreadable) => return Err(KeyError::Unreadable { limit }),
            Err(NoKey::Unchecked) => return Ok(Lead::Unchecked),
            Err(NoKey::Absent) => match spec.missing_key {
                MissingKey::Skip | MissingKey::Impossible => return Ok(Lead::Nowhere),
                MissingKey::Deny(status) => return Err(KeyError::Missing { limit, status }),
                MissingKey::ClientIp => {
                    let key = hasher.hash_client_ip(facts);
                    return Ok(Lead::Target(Found {
                        limit,
                        counting,
                        key,
                        family: None,
                        by_sources: false,
                    }));
                }
                MissingKey::Limit(next) => limit = next,
            },
        }
    }
    Ok(Lead::Nowhere)
}

/// Whether the rollout of a limit includes this key now.
fn is_rolled_out(limit: &Limit, found: &Found<'_>, facts: &Facts<'_>, route: &Route) -> bool {
    limit.terms.rollout.includes(facts.now, || {
        let hasher = KeySecret::fixed_hasher(limit);
        // A key that another one stands for may take a signature to read.
        let own = found.by_sources.then(|| limit.key.hash(&hasher, facts, route).ok()).flatten();
        own.unwrap_or_else(|| hasher.hash_client_ip(facts)).low
    })
}
