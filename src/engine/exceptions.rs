//! The exceptions of a limit, so that the first that matches is found without a walk over keys.

use hashbrown::HashMap;

use crate::policy::key::KeyHasher;
use crate::policy::{Facts, KeyHash, Limit, OverrideAction, OverrideTarget};

/// Exceptions of one limit.
pub(super) struct Exceptions {
    /// By the key's hash: the place among all, and what holds.
    by_key: HashMap<KeyHash, (usize, OverrideAction)>,
    /// Those for networks, with their places.
    by_network: Vec<(usize, OverrideTarget, OverrideAction)>,
}

impl Exceptions {
    /// `None` where the limit has none.
    pub(super) fn of(limit: &Limit, hasher: &KeyHasher) -> Option<Self> {
        let overrides = &limit.terms.overrides;
        if overrides.is_empty() {
            return None;
        }
        let mut all = Self { by_key: HashMap::new(), by_network: Vec::new() };
        for (place, one) in overrides.iter().enumerate() {
            match &one.target {
                OverrideTarget::Keys(keys) => {
                    for parts in keys.iter() {
                        let key = limit.key.hash_values(hasher, parts);
                        all.by_key.entry(key).or_insert((place, one.action));
                    }
                }
                OverrideTarget::Network(_) => {
                    all.by_network.push((place, one.target.clone(), one.action))
                }
            }
        }
        Some(all)
    }

    /// What holds for a key of a client: the first exception of the file that matches.
    pub(super) fn action(&self, key: KeyHash, facts: &Facts<'_>) -> Option<OverrideAction> {
        let by_key = self.by_key.get(&key).copied();
        let by_network = self.by_network.iter().find(|(_, who, _)| who.matches_client(facts));
        let by_network = by_network.map(|(place, _, action)| (*place, *action));
        match (by_key, by_network) {
            (Some(one), Some(other)) => Some(if one.0 < other.0 { one.1 } else { other.1 }),
            (one, other) => one.or(other).map(|(_, action)| action),
        }
    }
}
