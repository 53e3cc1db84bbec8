use std::fmt;

use crate::clock::Nanos;

/// Who is denied too often is refused at the door for a while (`penalty`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// So many denials on one node ...
    pub after: u32,
    /// ... within so long ...
    pub within: Nanos,
    /// ... are a ban of so long.
    pub ban: Nanos,
    /// Each further ban is twice as long, up to this.
    pub double_up_to: Nanos,
    /// A time without a ban after which the next one is shorter by one doubling.
    pub forgive: Nanos,
    /// Whether connections of a banned client are refused, before TLS and HTTP.
    pub at_connection: bool,
}

impl Penalty {
    /// How long a ban is, after so many that are not forgiven.
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
