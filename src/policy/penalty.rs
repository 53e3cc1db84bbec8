//! The ban rule of a limit as a value. Denials and bans are recorded elsewhere.

use std::fmt;

use crate::clock::Nanos;

/// Bans a key after too many denials (`penalty`): for a while its requests are refused before anything is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// The number of denials on one node that make a ban.
    pub after: u32,
    /// The time within which they must occur.
    pub within: Nanos,
    /// The length of the first ban.
    pub ban: Nanos,
    /// Each further ban is twice as long, up to this length.
    pub double_up_to: Nanos,
    /// Each such time without a ban undoes one doubling.
    pub forgive: Nanos,
    /// Whether connections of a banned client are refused, before TLS and HTTP.
    pub at_connection: bool,
}

impl Penalty {
    /// The length of a ban after `level` earlier bans that are not forgiven.
    pub fn span(&self, level: u32) -> Nanos {
        let doubled = self.ban.saturating_mul(1_u64.checked_shl(level).unwrap_or(u64::MAX));
        doubled.min(self.double_up_to.max(self.ban))
    }
}

impl fmt::Display for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, within, ban, double_up_to, forgive, at_connection } = self;
        write!(f, "{after} denials within {within:?} on a node: banned for {ban:?}")?;
        if double_up_to > ban {
            write!(f, ", twice as long each time up to {double_up_to:?}, forgiven in {forgive:?}")?;
        }
        f.write_str(if *at_connection { "; connections are refused" } else { "" })
    }
}
