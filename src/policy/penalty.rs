//! The ban rule of a limit as a value. Denials and bans are recorded elsewhere.

use super::fleet::Scope;
use crate::clock::Nanos;

/// Bans a key after too many denials (`penalty`): for a while its requests are refused before anything is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// The number of denials that make a ban, on one node, or on all nodes under [`Scope::Fleet`].
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

    /// The rule in words. `scope`: that of its limit.
    pub fn describe(&self, scope: Scope) -> String {
        let Self { after, within, ban, double_up_to, forgive, at_connection } = self;
        let nodes = match scope {
            Scope::Node => "on a node",
            Scope::Fleet => "on all nodes together",
        };
        let mut text = format!("{after} denials within {within:?} {nodes}: banned for {ban:?}");
        if double_up_to > ban {
            text += &format!(
                ", twice as long each time up to {double_up_to:?}, forgiven in {forgive:?}"
            );
        }
        text + if *at_connection { "; connections are refused" } else { "" }
    }
}
