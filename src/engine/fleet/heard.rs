//! What a node has heard of that makes nodes forget: it tells with each chunk how far it is, so that others know which counts
//! are of the time before. Numbers, and no times: a count is believed as soon as its node has heard, and not before.

use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "bin")]
use serde::{Deserialize, Serialize};

/// How far a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(Serialize, Deserialize))]
pub(in crate::engine) struct Heard {
    /// The number of the latest change of operators that the node has made (`store/redis/key_rules.lua`).
    pub(in crate::engine) changes: u64,
}

/// How far this node is.
#[derive(Debug, Default)]
pub(in crate::engine) struct OwnHeard {
    changes: AtomicU64,
}

impl Heard {
    /// Whether a node that is so far has also heard of `other`.
    pub(super) const fn includes(self, other: Self) -> bool {
        self.changes >= other.changes
    }

    /// Both.
    pub(super) fn and(self, other: Self) -> Self {
        Self { changes: self.changes.max(other.changes) }
    }
}

impl OwnHeard {
    /// How far this node is. What it counts afterwards is without everything that it has forgotten until then.
    pub(in crate::engine) fn get(&self) -> Heard {
        Heard { changes: self.changes.load(Ordering::Acquire) }
    }

    /// This node is so far, after it has forgotten what it had to.
    pub(in crate::engine) fn set(&self, heard: Heard) {
        self.changes.store(heard.changes, Ordering::Release);
    }
}
