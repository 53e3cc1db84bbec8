//! The overrides of a limit, indexed by key. The result equals trying all overrides in the order of the file.

use hashbrown::HashMap;

use crate::policy::key::KeyHasher;
use crate::policy::{Facts, KeyHash, Limit, OverrideAction, OverrideTarget, Unreadable};

/// The overrides of one limit.
pub(super) struct OverrideIndex {
    by_key: HashMap<KeyHash, RankedAction>,
    /// Those for networks and classes, in the order of the file.
    by_request: Vec<RequestOverride>,
}

/// An override's action with its rank.
#[derive(Clone, Copy)]
pub(super) struct RankedAction {
    /// The index of the override in the file's list; the lowest wins.
    pub(super) rank: u32,
    pub(super) action: OverrideAction,
}

/// An override for a network or a class.
struct RequestOverride {
    target: OverrideTarget,
    ranked: RankedAction,
}

impl OverrideIndex {
    /// `None` if the limit has no overrides.
    pub(super) fn of(limit: &Limit, hasher: &KeyHasher) -> Option<Self> {
        let overrides = &limit.terms.overrides;
        if overrides.is_empty() {
            return None;
        }
        let mut index = Self { by_key: HashMap::new(), by_request: Vec::new() };
        for (rank, rule) in (0..).zip(overrides) {
            let ranked = RankedAction { rank, action: rule.action };
            match &rule.target {
                OverrideTarget::Keys(keys) => {
                    for values in keys.iter() {
                        let key = limit.key.hash_values(hasher, values);
                        index.by_key.entry(key).or_insert(ranked);
                    }
                }
                OverrideTarget::Network(_) | OverrideTarget::Class(_) => {
                    index.by_request.push(RequestOverride { target: rule.target.clone(), ranked });
                }
            }
        }
        Some(index)
    }

    /// The override that names this key.
    pub(super) fn of_key(&self, key: KeyHash) -> Option<RankedAction> {
        self.by_key.get(&key).copied()
    }

    /// The action for a key of a request: that of the first override of the file that matches.
    ///
    /// # Errors
    /// Which one it is depends on a value that origins may read in different ways.
    pub(super) fn action(
        &self,
        key: KeyHash,
        facts: &Facts<'_>,
    ) -> Result<Option<RankedAction>, Unreadable> {
        let by_key = self.by_key.get(&key).copied();
        for rule in &self.by_request {
            if by_key.is_some_and(|by_key| by_key.rank < rule.ranked.rank) {
                break;
            }
            if rule.target.matches_request(facts)? {
                return Ok(Some(rule.ranked));
            }
        }
        Ok(by_key)
    }
}
