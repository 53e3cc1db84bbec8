//! One limit as a value: how it counts, by which key, and what happens in special cases.

use std::fmt;
use std::sync::Arc;

use super::cost::Cost;
use super::fleet::Scope;
use super::index::LimitIndex;
use super::key::KeySpec;
use super::override_action::RateIndex;
use super::penalty::Penalty;
use super::status_rules::StatusRules;
use super::terms::Terms;
use crate::clock::Nanos;
use crate::limit::{Quota, Rate};

/// The default of `expect.requests`, in requests per second. Sketches for keys that the exact tier has no room for
/// are always sized for it.
pub const DEFAULT_EXPECT_PER_SECOND: u32 = 1_000;

/// The tier in which a limit counts.
///
/// ```
/// use tollgate::Tier;
///
/// assert_eq!((Tier::Estimate.name(), Tier::Exact.name()), ("estimate", "exact"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Approximate, per node, in fixed memory.
    Estimate,
    /// Exact per key.
    Exact,
}

impl Tier {
    /// The tier's name in the configuration and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Estimate => "estimate",
            Self::Exact => "exact",
        }
    }
}

/// One limit.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Unique in the policy. Counters survive a reload under this name.
    pub name: Arc<str>,
    /// How it counts.
    pub count: Count,
    /// Over which nodes it counts. An exact limit with [`Scope::Fleet`] counts its denials for a penalty over all
    /// nodes, and the keys that the exact tier has no room for.
    pub scope: Scope,
    /// Which key is charged.
    pub key: KeySpec,
    /// What happens to a request without the key.
    pub missing_key: MissingKey,
    /// Whether it refuses requests or only reports.
    pub mode: Mode,
    /// The cost of a request where the route names none.
    pub cost: Cost,
    /// What depends on the client: plans, overrides, rollout, candidate.
    pub terms: Box<Terms>,
    /// Which response statuses refund the charge.
    pub status_rules: StatusRules,
    /// The ban for keys that are denied too often.
    pub penalty: Option<Penalty>,
    /// Whether response headers leave it out (`headers: hidden`).
    pub hidden: bool,
}

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Count {
    /// The estimate tier: a sliding window of `rate`.
    Estimate {
        /// Units per window.
        rate: Rate,
        /// Requests per second that this node expects of all keys together; the sketch is sized for it.
        expect_per_second: u32,
    },
    /// The exact tier.
    Exact {
        /// The algorithm with its numbers.
        quota: Quota,
        /// What happens to a new key when the store is full of live cells.
        when_full: WhenFull,
        /// The limit's own share of `max_keys`, if it has one.
        max_keys: Option<usize>,
        /// What happens while the shared store does not answer.
        on_store_failure: OnStoreFailure,
        /// What a crash of a process with a state directory may do to the limit.
        after_crash: AfterCrash,
    },
    /// Requests at once (`max_in_flight`): exact, counted per node with every store.
    InFlight {
        /// The largest sum of the costs of one key's requests that are in flight at once.
        max: u32,
    },
}

impl Count {
    /// The tier.
    pub const fn tier(&self) -> Tier {
        match self {
            Self::Estimate { .. } => Tier::Estimate,
            Self::Exact { .. } | Self::InFlight { .. } => Tier::Exact,
        }
    }
}

/// What happens to a new key when the store is full of live cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is counted in the estimate tier, whose memory does not grow.
    #[default]
    Estimate,
    /// It is refused.
    Deny,
    /// It passes uncounted.
    Allow,
}

/// In whose favour a crash is, for what had not been saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterCrash {
    /// What was spent since the last save can be spent again.
    #[default]
    Allow,
    /// Nothing above the limit is ever admitted; a key may be refused up to an eighth of its limit.
    Deny,
}

/// How a limit is judged while the shared store does not answer. (The embedded store always answers.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// This node counts alone, at the full rate.
    #[default]
    Local,
    /// The request passes uncounted.
    Allow,
    /// The request is answered 503.
    Deny,
}

/// Whether a limit refuses requests or only reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It refuses.
    #[default]
    Enforce,
    /// It is judged and charged separately, appears in metrics and the log, and never refuses.
    Shadow,
}

/// What happens to a request that has no key for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingKey {
    /// All sources of the key are present in every request.
    Impossible,
    /// The limit does not apply.
    Skip,
    /// The request is answered with this status (400 to 499).
    Deny(u16),
    /// The client's address is the key.
    ClientIp,
    /// Another limit applies instead, at the same cost.
    Limit(LimitIndex),
}

impl Limit {
    /// Whether the limit also applies to requests that `responses.exempt` names. Such a request carries no
    /// credential and charges no exact limit, but a flood of them still has to be limited by address.
    pub fn applies_to_exempt(&self) -> bool {
        matches!(self.count, Count::Estimate { .. }) && self.key == KeySpec::client_ip()
    }

    /// The most units that its own rate admits at once.
    pub fn max_cost(&self) -> u32 {
        match &self.count {
            Count::Estimate { rate, .. } => rate.count(),
            Count::Exact { quota, .. } => quota.limit(),
            Count::InFlight { max } => *max,
        }
    }

    /// One of the limit's rates; `None` in the estimate tier and for requests in flight.
    pub fn quota(&self, rate: RateIndex) -> Option<&Quota> {
        match &self.count {
            Count::Exact { quota, .. } => {
                let other = rate.checked_sub(1).and_then(|n| self.terms.quotas.get(n as usize));
                Some(other.unwrap_or(quota))
            }
            Count::Estimate { .. } | Count::InFlight { .. } => None,
        }
    }

    /// Whether the limit delays requests under one of its rates. A limit in shadow mode delays none.
    pub fn delays(&self) -> bool {
        self.mode == Mode::Enforce && self.has_max_delay()
    }

    /// Whether one of the limit's rates has a `max_delay`, in either mode.
    pub fn has_max_delay(&self) -> bool {
        let own = match &self.count {
            Count::Exact { quota, .. } => Some(quota),
            Count::Estimate { .. } | Count::InFlight { .. } => None,
        };
        let mut quotas = own.into_iter().chain(&self.terms.quotas);
        quotas.any(|quota| quota.max_delay() > Nanos::ZERO)
    }

    /// A text of the limit's name, tier, algorithm and key. Two limits can read each other's cells exactly if their
    /// texts are equal. It is hashed into every key, so a change to any of these starts with empty counters.
    pub fn identity(&self) -> String {
        let algorithm = match &self.count {
            Count::Estimate { .. } => "estimate",
            Count::Exact { quota, .. } => quota.name(),
            Count::InFlight { .. } => "max_in_flight",
        };
        format!("{}\0{algorithm}\0{}", self.name, self.key)
    }
}

impl fmt::Display for MissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Impossible => f.write_str("always there"),
            Self::Skip => f.write_str("skip"),
            Self::Deny(status) => write!(f, "deny ({status})"),
            Self::ClientIp => f.write_str("client_ip"),
            Self::Limit(_) => f.write_str("another limit"),
        }
    }
}
