//! For whom a limit is another one: plans, overrides, and the share of keys that it refuses.

use std::sync::Arc;

use ipnet::IpNet;

use super::key::{KeyPart, NoKey};
use super::{Facts, Route, Source, client};
use crate::clock::Nanos;
use crate::limit::Quota;
use crate::tokens::SignatureCheck;

/// The place of a rate: 0 is the limit's own, the others are [`Terms::quotas`] from 1.
pub type RateIndex = u32;

/// What of a limit depends on who asks.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Rates beside the limit's own.
    pub quotas: Vec<Quota>,
    /// Rates by plan.
    pub plans: Option<Plans>,
    /// Exceptions; the first that matches wins.
    pub overrides: Vec<Override>,
    /// Which keys are refused, and since when.
    pub rollout: Rollout,
    /// A second rate, judged beside the one in force, that refuses nothing.
    pub candidate: Option<Quota>,
}

/// Rates by what a part of the request says.
#[derive(Clone, Debug)]
pub struct Plans {
    /// Where the plan's name stands. What a client could write itself is believed from trusted
    /// proxies only.
    pub by: Source,
    /// The rates by name.
    pub rates: Vec<(Box<str>, RateIndex)>,
}

/// One exception.
#[derive(Clone, Debug)]
pub struct Override {
    /// For whom.
    pub target: OverrideTarget,
    /// What holds instead.
    pub action: OverrideAction,
}

/// Whom an exception is for.
#[derive(Clone, Debug)]
pub enum OverrideTarget {
    /// These keys: of each, its parts as the sources would find them.
    Keys(Arc<[KeyValues]>),
    /// Clients of this network.
    Network(IpNet),
}

/// The parts of one key, in the order of the limit's sources.
pub type KeyValues = Box<[Box<[u8]>]>;

/// What holds instead of a limit's own rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideAction {
    /// The limit does not apply.
    Allow,
    /// The limit refuses, whatever was spent.
    Deny,
    /// Another rate.
    Rate(RateIndex),
}

/// Which keys a limit refuses; for the others it only watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The share of the keys, in parts of a million.
    pub ppm: u32,
    /// Since which date.
    pub from: Nanos,
}

impl Default for Rollout {
    fn default() -> Self {
        Self { ppm: WHOLE, from: Nanos::ZERO }
    }
}

/// All keys, in parts of a million.
const WHOLE: u32 = 1_000_000;

impl Rollout {
    /// Whether a key is refused at the date `now`. `hash`: a fixed one of the key, so that all nodes agree,
    /// and a key that is in stays in while the share grows.
    pub fn includes(&self, now: Nanos, hash: impl FnOnce() -> u64) -> bool {
        now >= self.from && (self.ppm >= WHOLE || hash() % u64::from(WHOLE) < u64::from(self.ppm))
    }
}

impl Plans {
    /// The rate that a request's plan has. An absent or unknown plan is the limit's own rate.
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
                let is_named = |name: &str| match self.by.as_found(name.as_bytes()) {
                    KeyPart::Present(name) => name == plan,
                    _ => name.as_bytes() == &*plan,
                };
                let known = self.rates.iter().find(|(name, _)| is_named(name));
                Ok(known.map_or(0, |(_, rate)| *rate))
            }
        }
    }
}

impl OverrideTarget {
    /// Whether a client is of the network. Keys are told by their hash ([`super::KeyHash`]).
    pub fn is_network_of(&self, facts: &Facts<'_>) -> bool {
        match self {
            Self::Network(network) => network.contains(&client::unmapped(facts.client.ip)),
            Self::Keys(_) => false,
        }
    }
}
