//! The overrides of a limit, indexed by key. The result equals trying all overrides in the order of the file.

use hashbrown::HashMap;

use crate::policy::key::KeyHasher;
use crate::policy::{Facts, KeyHash, Limit, OverrideAction, OverrideTarget};

/// The overrides of one limit.
pub(super) struct OverrideIndex {
    by_key: HashMap<KeyHash, RankedAction>,
    /// Those for networks, in the order of the file.
    by_network: Vec<NetworkOverride>,
}

/// An override's action with its rank.
#[derive(Clone, Copy)]
struct RankedAction {
    /// The index of the override in the file's list; the lowest wins.
    rank: usize,
    action: OverrideAction,
}

/// An override for a network.
struct NetworkOverride {
    network: OverrideTarget,
    ranked: RankedAction,
}

impl OverrideIndex {
    /// `None` if the limit has no overrides.
    pub(super) fn of(limit: &Limit, hasher: &KeyHasher) -> Option<Self> {
        let overrides = &limit.terms.overrides;
        if overrides.is_empty() {
            return None;
        }
        let mut index = Self { by_key: HashMap::new(), by_network: Vec::new() };
        for (rank, rule) in overrides.iter().enumerate() {
            let ranked = RankedAction { rank, action: rule.action };
            match &rule.target {
                OverrideTarget::Keys(keys) => {
                    for values in keys.iter() {
                        let key = limit.key.hash_values(hasher, values);
                        index.by_key.entry(key).or_insert(ranked);
                    }
                }
                OverrideTarget::Network(_) => {
                    index.by_network.push(NetworkOverride { network: rule.target.clone(), ranked });
                }
            }
        }
        Some(index)
    }

    /// The action for a key of a client: that of the first override of the file that matches.
    pub(super) fn action(&self, key: KeyHash, facts: &Facts<'_>) -> Option<OverrideAction> {
        let by_key = self.by_key.get(&key).copied();
        let mut networks = self.by_network.iter();
        let by_network = networks.find(|rule| rule.network.matches_client(facts));
        let by_network = by_network.map(|rule| rule.ranked);
        let first = by_key.into_iter().chain(by_network).min_by_key(|ranked| ranked.rank);
        first.map(|ranked| ranked.action)
    }
}
