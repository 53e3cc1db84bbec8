//! Which counts of other nodes this node may use.

use super::limits::FleetLimit;
use crate::engine::Engine;

/// What may be used of that which other nodes counted. A node that has just begun does not know yet what was forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Believed {
    counts: bool,
    denials: bool,
}

impl Believed {
    pub(super) fn by(engine: &Engine) -> Self {
        Self { counts: engine.believes_counts(), denials: engine.believes_denials() }
    }

    pub(super) fn includes(self, limit: &FleetLimit) -> bool {
        if limit.view.counts_denials() { self.denials } else { self.counts }
    }
}
