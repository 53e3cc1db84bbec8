//! Which cells a request is to be charged to, before anything is charged.

use smallvec::SmallVec;

use super::Generation;
use crate::policy::key::NoKey;
use crate::policy::{Facts, KeyHash, LimitIndex, MissingKey, RouteIndex};

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

/// Resolves every limit of a route. All keys are read before any is charged, so an unclean
/// request spends nothing.
pub(super) fn dues(
    generation: &Generation,
    facts: &Facts<'_>,
    route: RouteIndex,
) -> Result<Dues, Unclean> {
    let route = generation.policy().route(route);
    let mut dues = Dues::new();
    for one in &route.limits {
        if let Some(due) = due(generation, facts, route, one.limit, one.cost)? {
            // Two limits may lead to one cell by `missing_key`: it is charged once, the dearer.
            match dues.iter_mut().find(|other| other.key == due.key) {
                Some(other) => other.cost = other.cost.max(due.cost),
                None => dues.push(due),
            }
        }
    }
    Ok(dues)
}

/// Whether an origin that reads the path in another way is sent what it would be sent, charged to
/// the same cells.
pub(super) fn reads_alike(generation: &Generation, facts: &Facts<'_>, route: RouteIndex) -> bool {
    if facts.readings.is_empty() {
        return true;
    }
    let meant = dues(generation, facts, route);
    facts.readings.iter().all(|path| {
        let other = Facts { path, readings: &[], ..*facts };
        generation.policy().find(&other) == Some(route) && dues(generation, &other, route) == meant
    })
}

fn due(
    generation: &Generation,
    facts: &Facts<'_>,
    route: &crate::policy::Route,
    mut limit: LimitIndex,
    cost: u32,
) -> Result<Option<Due>, Unclean> {
    let policy = generation.policy();
    // `missing_key: { limit: .. }` makes a chain without cycles, so it is no longer than the list.
    for _ in 0..=policy.limits.len() {
        let meant = policy.limit(limit);
        let counting = generation.counting(limit);
        let hasher = &counting.hasher;
        let mut family = None;
        let (key, authenticated) = match meant.key.hash(hasher, facts, route) {
            Ok(key) => {
                if let Some((parts, hasher)) = &counting.family {
                    family = meant.key.hash_first(*parts, hasher, facts, route);
                }
                (key, meant.key.is_credential())
            }
            Err(NoKey::Repeated) => return Err(Unclean::Repeated { limit }),
            Err(NoKey::Absent) => match meant.missing_key {
                MissingKey::Skip | MissingKey::Impossible => return Ok(None),
                MissingKey::Deny(status) => return Err(Unclean::Missing { limit, status }),
                MissingKey::ClientIp => (hasher.hash_client_ip(facts), false),
                MissingKey::Limit(next) => {
                    limit = next;
                    continue;
                }
            },
        };
        return Ok(Some(Due { limit, key, family, cost, authenticated }));
    }
    Ok(None)
}
