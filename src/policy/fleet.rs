//! Over which nodes a limit counts, and how the nodes exchange counts, as values.

use std::fmt;

use crate::clock::Nanos;

/// Over which nodes a limit counts (`scope`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each node counts by itself.
    #[default]
    Node,
    /// Nodes exchange the counts of heavy keys through the shared store, and each decides on the sum.
    Fleet,
}

impl Scope {
    /// The scope's name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Fleet => "fleet",
        }
    }
}

/// How nodes exchange counts (`fleet`), for all limits with [`Scope::Fleet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetTerms {
    /// How far the nodes together may exceed a limit because of counts that they do not publish: a share of the limit
    /// in parts per million, from 10,000 (1%) to 1,000,000 (100%).
    pub error_ppm: u32,
    /// The time between two exchanges of a node, from 100 ms to 60 s.
    pub every: Nanos,
}

impl Default for FleetTerms {
    fn default() -> Self {
        Self { error_ppm: 100_000, every: Nanos::SECOND }
    }
}

impl fmt::Display for FleetTerms {
    /// As the configuration writes them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = f64::from(self.error_ppm) / 10_000.0;
        write!(f, "error {percent}%, every {:?}", self.every)
    }
}
