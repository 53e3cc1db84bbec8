//! Why a limit refuses a request, as operators are told.
//!
//! It knows decisions and no records. What must always hold: a request that no limit refuses has no reason here.

use crate::engine::{Decision, Outcome};

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// A limit has no room for it.
    Limit,
    /// A key of it is banned.
    Ban,
    /// The shared store fails, and a limit requires it.
    StoreOutage,
    /// It lacks a key that a limit requires.
    MissingKey,
    /// It carries a key more than once.
    RepeatedKey,
    /// It carries a key that origins may read in different ways.
    UnreadableKey,
    /// The keys that verify its token have not been fetched.
    NoTokenKeys,
}

impl RefusalReason {
    /// Every reason, in the order of their numbers.
    pub(super) const ALL: [Self; 7] = [
        Self::Limit,
        Self::Ban,
        Self::StoreOutage,
        Self::MissingKey,
        Self::RepeatedKey,
        Self::UnreadableKey,
        Self::NoTokenKeys,
    ];

    /// The reason of a decision; `None` if no limit refuses the request. (Requests without a route, and those that origins
    /// could read in different ways, are no refusals of a limit.)
    pub fn of(decision: &Decision) -> Option<Self> {
        Some(match decision.outcome {
            Outcome::Limited if decision.is_banned() => Self::Ban,
            Outcome::Limited => Self::Limit,
            Outcome::Outage => Self::StoreOutage,
            Outcome::MissingKey { .. } => Self::MissingKey,
            Outcome::RepeatedKey { .. } => Self::RepeatedKey,
            Outcome::UnreadableKey { .. } => Self::UnreadableKey,
            Outcome::NoTokenKeys { .. } => Self::NoTokenKeys,
            Outcome::Allowed
            | Outcome::NoRoute
            | Outcome::AmbiguousPath
            | Outcome::UnreadableCondition => return None,
        })
    }

    /// Its name in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Ban => "ban",
            Self::StoreOutage => "store_outage",
            Self::MissingKey => "missing_key",
            Self::RepeatedKey => "repeated_key",
            Self::UnreadableKey => "unreadable_key",
            Self::NoTokenKeys => "no_token_keys",
        }
    }
}
