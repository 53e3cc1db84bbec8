//! Rules that operators make for single keys while the process runs: bans and overrides, each with a reason and an end.
//!
//! A rule stands before everything that the configuration says of its key. It names its limit, so that it survives
//! reloads, and its key by the hash, so that no value of a key is kept. `ruled_limit.rs` adds rules to limits. This module
//! does not know who makes them, or how nodes tell each other. What must always hold: a rule whose end has
//! come has no effect, whether or not it was removed.

use std::sync::Arc;

use hashbrown::HashMap;

use super::key::KeyHash;
use super::override_action::OverrideAction;
use crate::clock::Nanos;
use crate::limit::{MAX_WINDOWS, QuotaError, Rate};

/// A rule for one key of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// The limit's name.
    pub limit: Arc<str>,
    /// The key. Its hash covers the limit's identity, so a limit that counts by another key has none of this hash.
    pub key: KeyHash,
    /// What holds for the key.
    pub ruling: Ruling,
    /// The date at which it ends, since the Unix epoch.
    pub until: Nanos,
    /// The date at which it was made.
    pub made_at: Nanos,
    /// The version at which the shared store took it (`key_rules.lua`), by which nodes agree which of two is later. `None`: no store
    /// has told it.
    pub version: Option<u64>,
    /// Who made it.
    pub by: Arc<str>,
    /// Why.
    pub reason: Arc<str>,
}

/// What a rule says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Every request is refused, as after too many denials (`penalty`).
    Ban,
    /// The limit does not apply.
    Allow,
    /// The limit refuses every request.
    Deny,
    /// Another rate applies.
    Rate {
        /// The rate.
        rate: Rate,
        /// The burst of a bucket; without one, that of the limit.
        burst: Option<u32>,
    },
}

/// Why a limit cannot follow a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulingError {
    /// Only an exact limit with a rate has other rates for some keys.
    #[error(
        "only an exact limit with a rate can have another rate for one key; allow or deny it instead"
    )]
    NoRates,
    /// A limit in shadow mode refuses nobody.
    #[error("the limit is in shadow mode and refuses nobody, so this would have no effect")]
    Shadow,
    /// A limit with a rollout refuses only some keys.
    #[error(
        "the limit has a rollout and refuses nobody outside of its share, so this might have no effect"
    )]
    Rollout,
    /// The rate is impossible under the limit's algorithm.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// Every charge is written to a counter of each window length.
    #[error(
        "the rates of this limit already have {MAX_WINDOWS} different windows; write the rate over one of those durations"
    )]
    Windows,
}

/// The rules for keys of one limit.
#[derive(Clone, Debug, Default)]
pub struct KeyRules {
    by_key: HashMap<KeyHash, RulesOfKey>,
    /// How many of the limit's quotas belong to rules: the last ones.
    quotas: usize,
}

/// The rules for one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulesOfKey {
    /// The date at which a ban ends. Zero: there is none.
    banned_until: Nanos,
    /// The action of an override, and the date at which it ends.
    overriding: Option<(OverrideAction, Nanos)>,
}

impl Ruling {
    /// Whether it is a ban. A key has at most one ban and at most one override.
    pub const fn is_ban(&self) -> bool {
        matches!(self, Self::Ban)
    }
}

impl KeyRule {
    /// Whether two rules cannot both hold: the later one replaces the earlier.
    pub fn replaces(&self, other: &Self) -> bool {
        self.limit == other.limit
            && self.key == other.key
            && self.ruling.is_ban() == other.ruling.is_ban()
    }
}

impl RulesOfKey {
    /// How long a ban still lasts at a date.
    pub fn banned_for(&self, date: Nanos) -> Option<Nanos> {
        (self.banned_until > date).then(|| self.banned_until.saturating_sub(date))
    }

    /// The override that holds at a date.
    pub fn action(&self, date: Nanos) -> Option<OverrideAction> {
        self.overriding.filter(|(_, until)| *until > date).map(|(action, _)| action)
    }
}

impl KeyRules {
    /// The rules for a key, if there are any.
    pub fn of_key(&self, key: KeyHash) -> Option<&RulesOfKey> {
        // Nearly always there is no rule at all, and the key need not be hashed again.
        if self.by_key.is_empty() { None } else { self.by_key.get(&key) }
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Whether a key is banned at `date`, and for how long.
    pub fn banned_for(&self, key: KeyHash, date: Nanos) -> Option<Nanos> {
        self.of_key(key)?.banned_for(date)
    }

    /// How many of the limit's quotas belong to rules.
    pub(super) const fn quotas(&self) -> usize {
        self.quotas
    }

    pub(super) const fn set_quotas(&mut self, quotas: usize) {
        self.quotas = quotas;
    }

    /// Adds a ban.
    pub(super) fn ban(&mut self, key: KeyHash, until: Nanos) {
        self.by_key.entry(key).or_default().banned_until = until;
    }

    /// Adds an override.
    pub(super) fn put_override(&mut self, key: KeyHash, action: OverrideAction, until: Nanos) {
        self.by_key.entry(key).or_default().overriding = Some((action, until));
    }
}
