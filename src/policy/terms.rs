//! The terms of a limit that may differ between clients: plans, overrides, the rollout share, and a candidate rate.
//!
//! These are values and pure functions; they charge nothing. What must always hold: a plan's name that any client could
//! write is believed from a trusted peer only.

use std::sync::Arc;

use ipnet::IpNet;

use super::client;
use super::facts::Facts;
use super::key::{KeyPart, NoKey, Source};
use super::key_rules::KeyRules;
use super::matching::Class;
use super::override_action::{OverrideAction, RateIndex};
use super::route::Route;
use super::unreadable::Unreadable;
use crate::clock::Nanos;
use crate::limit::Quota;
use crate::tokens::SignatureCheck;

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
    /// Rules that operators made for single keys.
    pub key_rules: KeyRules,
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

/// Which of a limit's terms gave a key its rate, by index in the configuration's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateSource {
    /// The limit's own rate.
    #[default]
    Own,
    /// A plan, by its index in [`Plans::rates`].
    Plan(u32),
    /// An override, by its index in [`Terms::overrides`].
    Override(u32),
    /// A rule that an operator made for the key ([`Terms::key_rules`]).
    KeyRule,
}

/// What the plan of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanChoice {
    /// Any client could write it, and the peer is no trusted proxy.
    Unbelieved,
    /// The request names none.
    Absent,
    /// The request names one that the limit does not have.
    Unknown,
    /// One of the limit's, by its index in [`Plans::rates`].
    Known(u32),
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
    /// Whether no key is left out.
    pub const fn is_complete(&self) -> bool {
        self.ppm >= ALL_KEYS_PPM
    }

    /// Whether the limit is enforced for a key at the date `now`. `hash` gives the key's fixed hash: all nodes
    /// agree, and a key that is included stays included while the share grows.
    pub fn includes(&self, now: Nanos, hash: impl FnOnce() -> u64) -> bool {
        now >= self.from
            && (self.ppm >= ALL_KEYS_PPM || hash() % u64::from(ALL_KEYS_PPM) < u64::from(self.ppm))
    }
}

impl Plans {
    /// The plan of a request. Every choice but a known plan gives the limit's own rate.
    pub fn choose(
        &self,
        facts: &Facts<'_>,
        route: &Route,
        signatures: SignatureCheck,
    ) -> Result<PlanChoice, NoKey> {
        if !facts.client.peer_trusted && self.by.is_written_by_clients() {
            return Ok(PlanChoice::Unbelieved);
        }
        match self.by.part_with(facts, route, signatures) {
            KeyPart::Absent => Ok(PlanChoice::Absent),
            KeyPart::Repeated => Err(NoKey::Repeated),
            KeyPart::Unreadable => Err(NoKey::of_unreadable(&self.by)),
            KeyPart::Unchecked => Err(NoKey::Unchecked),
            KeyPart::Unknowable => Err(NoKey::Unknowable),
            KeyPart::Unrecorded => Err(NoKey::Unrecorded),
            KeyPart::Present(plan) => {
                let is_plan = |name: &str| match self.by.read_configured(name.as_bytes()) {
                    KeyPart::Present(name) => name == plan,
                    _ => name.as_bytes() == &*plan,
                };
                let known = self.rates.iter().zip(0..).find(|((name, _), _)| is_plan(name));
                Ok(known.map_or(PlanChoice::Unknown, |(_, index)| PlanChoice::Known(index)))
            }
        }
    }
}

impl PlanChoice {
    /// The rate of the choice, and which terms gave it.
    pub fn rate(self, plans: &Plans) -> (RateIndex, RateSource) {
        match self {
            Self::Known(index) => match plans.rates.get(index as usize) {
                Some((_, rate)) => (*rate, RateSource::Plan(index)),
                None => (0, RateSource::Own),
            },
            Self::Unbelieved | Self::Absent | Self::Unknown => (0, RateSource::Own),
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
