//! Who this node is in the fleet.
//!
//! A successor that takes up the counts of another process becomes that node: if both published the same units under two
//! names, the others would count them twice. What must always hold: while this node shows counts of other nodes, its own
//! are not among them.

use parking_lot::Mutex;

#[cfg(feature = "bin")]
use serde::{Deserialize, Serialize};

/// The name of this node, and the version of what it wrote last.
#[derive(Debug)]
pub(in crate::engine) struct FleetIdentity(Mutex<Identity>);

/// What identifies a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(Serialize, Deserialize))]
pub(in crate::engine) struct Identity {
    /// Random.
    node: u64,
    /// Of its latest chunk.
    version: u64,
}

impl Default for FleetIdentity {
    fn default() -> Self {
        // It only has to differ from those of other nodes.
        Self(Mutex::new(Identity { node: fastrand::u64(..), version: 0 }))
    }
}

impl FleetIdentity {
    pub(super) fn node(&self) -> u64 {
        self.0.lock().node
    }

    /// The version of the next chunk: higher than every earlier one, of a process before or after this one too, if it is
    /// written at a later time.
    pub(super) fn next_version(&self, at: u64) -> u64 {
        let mut identity = self.0.lock();
        identity.version = (identity.version + 1).max(at);
        identity.version
    }

    /// Does something with counts of others that `node` has read, unless this is another node by now.
    pub(super) fn with_node(&self, node: u64, act: impl FnOnce()) {
        let identity = self.0.lock();
        if identity.node == node {
            act();
        }
    }

    pub(in crate::engine) fn get(&self) -> Identity {
        *self.0.lock()
    }

    /// Becomes another node. `forget`: removes the counts of other nodes, among which are those of that node.
    pub(in crate::engine) fn replace(&self, other: Identity, forget: impl FnOnce()) {
        let mut identity = self.0.lock();
        *identity = other;
        forget();
    }
}
