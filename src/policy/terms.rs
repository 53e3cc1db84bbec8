//! The terms of a limit that may differ between clients: plans, overrides, the rollout share, and a candidate rate.
//!
//! These are values and pure functions; they charge nothing. What must always hold: a plan's name that any client could
//! write is believed from a trusted peer only.

use std::sync::Arc;

use ipnet::IpNet;

use super::client;
use super::facts::Facts;
use super::key::{KeyPart, NoKey, Source};
use super::matching::Class;
use super::route::Route;
use super::values::Unreadable;
use crate::clock::Nanos;
use crate::limit::Quota;
use crate::tokens::SignatureCheck;

/// The index of a rate: 0 is the limit's own, the others are [`Terms::quotas`] from 1.
pub type RateIndex = u32;

/// The terms of a limit that may differ between clients.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Rates in addition to the limit's own.
    pub quotas: Vec<Quota>,
    /// Rates by plan.
    pub plans: Option<Plans>,
    /// Overrides; the first that matches wins.
    pub overrides: Vec<Override>,
    /// The share of keys for which the limit is enforced, and since when.
    pub rollout: Rollout,
    /// A second rate, which is judged too and never refuses.
    pub candidate: Option<Quota>,
}

/// Rates by the plan that a request names.
#[derive(Clone, Debug)]
pub struct Plans {
    /// The source of the plan's name. A source that clients can write is believed from trusted
    /// proxies only.
    pub by: Source,
    /// The rates by name.
    pub rates: Vec<(Box<str>, RateIndex)>,
}

/// Another rule for some keys or clients.
#[derive(Clone, Debug)]
pub struct Override {
    /// The keys or clients.
    pub target: OverrideTarget,
    /// The rule that applies instead of the limit's own rate.
    pub action: OverrideAction,
}

/// The keys, clients or requests of an override.
#[derive(Clone, Debug)]
pub enum OverrideTarget {
    /// These keys.
    Keys(Arc<[KeyValues]>),
    /// Clients of this network.
    Network(IpNet),
    /// Requests in this class.
    Class(Arc<Class>),
}

/// The values of one configured key, in the order of the limit's sources.
pub type KeyValues = Box<[Box<[u8]>]>;

/// What an override does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideAction {
    /// The limit does not apply.
    Allow,
    /// The limit refuses every request.
    Deny,
    /// Another rate applies.
    Rate(RateIndex),
}

/// The share of keys for which a limit is enforced; for the other keys it is in shadow mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The share of the keys, in parts of a million.
    pub ppm: u32,
    /// The date from which it is enforced.
    pub from: Nanos,
}

impl Default for Rollout {
    fn default() -> Self {
        Self { ppm: ALL_KEYS_PPM, from: Nanos::ZERO }
    }
}

/// All keys, in parts of a million.
const ALL_KEYS_PPM: u32 = 1_000_000;

impl Rollout {
    /// Whether the limit is enforced for a key at the date `now`. `hash` gives the key's fixed hash: all nodes
    /// agree, and a key that is included stays included while the share grows.
    pub fn includes(&self, now: Nanos, hash: impl FnOnce() -> u64) -> bool {
        now >= self.from
            && (self.ppm >= ALL_KEYS_PPM || hash() % u64::from(ALL_KEYS_PPM) < u64::from(self.ppm))
    }
}

impl Plans {
    /// The rate of a request's plan. An absent or unknown plan gives the limit's own rate.
    pub fn rate(
        &self,
        facts: &Facts<'_>,
        route: &Route,
        signatures: SignatureCheck,
    ) -> Result<RateIndex, NoKey> {
        if !facts.client.peer_trusted && self.by.is_written_by_clients() {
            return Ok(0);
        }
        match self.by.part_with(facts, route, signatures) {
            KeyPart::Absent => Ok(0),
            KeyPart::Repeated => Err(NoKey::Repeated),
            KeyPart::Unreadable => Err(NoKey::Unreadable),
            KeyPart::Unchecked => Err(NoKey::Unchecked),
            KeyPart::Present(plan) => {
                let is_plan = |name: &str| match self.by.read_configured(name.as_bytes()) {
                    KeyPart::Present(name) => name == plan,
                    _ => name.as_bytes() == &*plan,
                };
                let known = self.rates.iter().find(|(name, _)| is_plan(name));
                Ok(known.map_or(0, |(_, rate)| *rate))
            }
        }
    }
}

impl OverrideTarget {
    /// Whether a request is one of the override, apart from its key. (Keys are compared by their hash,
    /// [`super::KeyHash`].)
    ///
    /// # Errors
    /// Whether it is in the class depends on a value that origins may read in different ways.
    pub fn matches_request(&self, facts: &Facts<'_>) -> Result<bool, Unreadable> {
        match self {
            Self::Network(network) => Ok(network.contains(&client::unmapped(facts.client.ip))),
            Self::Class(class) => class.holds(facts),
            Self::Keys(_) => Ok(false),
        }
    }
}
