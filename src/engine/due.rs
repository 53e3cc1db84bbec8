//! Which cells a request is to be charged to, before anything is charged.

use smallvec::SmallVec;

use super::Generation;
use super::generation::Counting;
use crate::policy::key::NoKey;
use crate::policy::{
    Action, Facts, KeyHash, KeySecret, Limit, LimitIndex, MissingKey, Mode, RateIndex, Route,
    RouteIndex,
};

/// One cell that a request is to be charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Under which limit.
    pub limit: LimitIndex,
    /// Whose cell.
    pub key: KeyHash,
    /// What puts its cell beside others of a family, in a store of many servers.
    pub family: Option<KeyHash>,
    /// How much.
    pub cost: u32,
    /// Whether the key came from a credential.
    pub authenticated: bool,
    /// Which of the limit's rates holds.
    pub rate: RateIndex,
    /// Whether the limit only watches this key.
    pub shadow: bool,
    /// Whether an exception refuses the key.
    pub refused: bool,
    /// Which of the route's uses of limits led here.
    pub used: u32,
}

/// All cells of a request; no key stands twice.
pub type Dues = SmallVec<[Due; 4]>;

/// Why a request is answered before anything is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclean {
    /// It lacks a key that a limit insists on.
    Missing {
        /// Which limit.
        limit: LimitIndex,
        /// The answer's status.
        status: u16,
    },
    /// It carries a key more than once.
    Repeated {
        /// Which limit.
        limit: LimitIndex,
    },
}

/// Resolves every limit of a route, into an empty list. All keys are read before any is charged, so
/// an unclean request spends nothing.
pub(super) fn dues(
    generation: &Generation,
    facts: &Facts<'_>,
    route: RouteIndex,
    dues: &mut Dues,
) -> Result<(), Unclean> {
    let route = generation.policy().route(route);
    for used in 0..route.limits.len() {
        if let Some(due) = due(generation, facts, route, used)? {
            // Two limits may lead to one cell by `missing_key`: it is charged once, the dearer.
            match dues.iter_mut().find(|other| other.key == due.key) {
                Some(other) => other.cost = other.cost.max(due.cost),
                None => dues.push(due),
            }
        }
    }
    Ok(())
}

/// Whether an origin that reads the path in another way is sent what it would be sent, charged to
/// the same cells.
pub(super) fn reads_alike(generation: &Generation, facts: &Facts<'_>, route: RouteIndex) -> bool {
    if facts.readings.is_empty() {
        return true;
    }
    let dues = |facts: &Facts<'_>| {
        let mut all = Dues::new();
        dues(generation, facts, route, &mut all).map(|()| all)
    };
    let meant = dues(facts);
    facts.readings.iter().all(|path| {
        let other = Facts { path, readings: &[], ..*facts };
        generation.policy().find(&other) == Some(route) && dues(&other) == meant
    })
}

/// Whose cell a use of a limit leads to.
struct Found<'g> {
    limit: LimitIndex,
    counting: &'g Counting,
    key: KeyHash,
    family: Option<KeyHash>,
    /// Whether the limit's own sources gave the key; else the client's address stands for it.
    by_sources: bool,
}

fn due(
    generation: &Generation,
    facts: &Facts<'_>,
    route: &Route,
    used: usize,
) -> Result<Option<Due>, Unclean> {
    let Some(found) = find(generation, facts, route, route.limits[used].limit)? else {
        return Ok(None);
    };
    let limit = found.limit;
    let meant = generation.policy().limit(limit);
    let mut rate = None;
    let mut refused = false;
    match found.counting.exceptions.as_ref().and_then(|all| all.action(found.key, facts)) {
        Some(Action::Allow) => return Ok(None),
        Some(Action::Deny) => refused = true,
        Some(Action::Rate(other)) => rate = Some(other),
        None => {}
    }
    let repeated = Unclean::Repeated { limit };
    let rate = match (rate, &meant.terms.plans) {
        (Some(rate), _) => rate,
        (None, None) => 0,
        (None, Some(plans)) => plans.rate(facts, route).map_err(|_| repeated)?,
    };
    let cost = route.limits[used].cost.at_door(facts).map_err(|_| repeated)?;
    Ok(Some(Due {
        limit,
        key: found.key,
        family: found.family,
        cost,
        authenticated: found.by_sources && meant.key.is_credential(),
        rate,
        shadow: meant.mode == Mode::Shadow || !is_rolled_out(meant, &found, facts, route),
        refused,
        used: used as u32,
    }))
}

/// Follows `missing_key` to the limit that applies.
fn find<'g>(
    generation: &'g Generation,
    facts: &Facts<'_>,
    route: &Route,
    mut limit: LimitIndex,
) -> Result<Option<Found<'g>>, Unclean> {
    let policy = generation.policy();
    // `missing_key: { limit: .. }` makes a chain without cycles, so it is no longer than the list.
    for _ in 0..=policy.limits.len() {
        let meant = policy.limit(limit);
        let counting = generation.counting(limit);
        let hasher = &counting.hasher;
        match meant.key.hash(hasher, facts, route) {
            Ok(key) => {
                let family = counting.family.as_ref();
                let family = family
                    .and_then(|(parts, hasher)| meant.key.hash_first(*parts, hasher, facts, route));
                return Ok(Some(Found { limit, counting, key, family, by_sources: true }));
            }
            Err(NoKey::Repeated) => return Err(Unclean::Repeated { limit }),
            Err(NoKey::Absent) => match meant.missing_key {
                MissingKey::Skip | MissingKey::Impossible => return Ok(None),
                MissingKey::Deny(status) => return Err(Unclean::Missing { limit, status }),
                MissingKey::ClientIp => {
                    let key = hasher.hash_client_ip(facts);
                    return Ok(Some(Found {
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
    Ok(None)
}

/// Whether a limit refuses this key by now, or only watches it yet.
fn is_rolled_out(limit: &Limit, found: &Found<'_>, facts: &Facts<'_>, route: &Route) -> bool {
    limit.terms.rollout.includes(facts.now, || {
        let hasher = KeySecret::fixed_hasher(limit);
        let hash = match limit.key.hash(&hasher, facts, route) {
            Ok(key) if found.by_sources => key,
            _ => hasher.hash_client_ip(facts),
        };
        hash.low
    })
}
