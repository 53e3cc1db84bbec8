//! The name of a cell: the Redis key that holds it, and the slot of a Cluster that it lies in.
//!
//! It does not know what the cell holds or which server keeps a slot. What must always hold: the slot is the one that
//! a server computes from the key.

use super::slots;
use crate::policy::KeyHash;

/// A cell by its key and its family. After a reload that changes the family, a key has two cells, in two slots, until
/// the old one has refilled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CellName {
    pub(super) key: KeyHash,
    pub(super) family: Option<KeyHash>,
}

impl CellName {
    /// The key in Redis. In a Cluster it has the family as its hash tag, so that a family shares a slot.
    pub(super) fn redis_key(&self, prefix: &str, has_slots: bool) -> String {
        match self.family {
            Some(family) if has_slots => format!("{prefix}:{{{family}}}{}", self.key),
            _ => format!("{prefix}:{}", self.key),
        }
    }

    /// The slot of that key in a Cluster.
    pub(super) fn slot(&self, prefix: &str) -> u16 {
        match self.family {
            Some(family) => slots::hash_slot(family.to_string().as_bytes()),
            None => slots::hash_slot(self.redis_key(prefix, true).as_bytes()),
        }
    }
}
