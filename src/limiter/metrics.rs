//! The counters of a limiter, for the metrics of the program that holds it.

use std::time::Duration;

use super::judge::Limiter;
use crate::engine::{LimitCounters, VerdictKind};
use crate::policy::Tier;

/// The counters of a limiter at one moment. Verdicts are counted since the limiter was built, over reloads.
///
/// ```
/// # let limiter = tollgate::Limiter::builder().policy_text("version: 1\nroutes: [{ name: site }]").build()?;
/// let metrics = limiter.metrics();
/// for limit in &metrics.limits {
///     println!("denied{{limit={:?}}} {}", limit.name, limit.verdicts.denied);
/// }
/// assert!(metrics.store_up);
/// # Ok::<(), tollgate::LimiterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricsSnapshot {
    /// One for each limit of the policy in force, in its order.
    pub limits: Vec<LimitMetrics>,
    /// Whether the store answers. The embedded store always does.
    pub store_up: bool,
    /// Requests that wait for a `max_delay`.
    pub delayed: usize,
    /// Keys that are banned now.
    pub banned_keys: usize,
    /// The sets of keys at a `jwks_url`, each once.
    pub key_sets: Vec<KeySetMetrics>,
}

/// The state of a set of keys at a URL.
///
/// ```
/// use std::time::Duration;
/// use tollgate::KeySetMetrics;
///
/// /// Whether tokens cannot be verified, or keys that were withdrawn may still be believed.
/// fn worries(set: &KeySetMetrics) -> bool {
///     set.keys == 0 || set.age > Some(Duration::from_secs(86_400))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySetMetrics {
    /// The host and the path of the URL.
    pub name: String,
    /// The number of keys in force; 0 before the first valid set.
    pub keys: usize,
    /// How long ago the set in force was last fetched.
    pub age: Option<Duration>,
    /// Why the last fetch failed; `None` if it did not.
    pub failure: Option<String>,
}

/// The counters of one limit.
///
/// ```
/// use tollgate::{LimitMetrics, Tier};
///
/// /// How many keys of an exact limit take memory.
/// fn held(limit: &LimitMetrics) -> usize {
///     match limit.tier {
///         Tier::Exact => limit.cells.unwrap_or(0),
///         Tier::Estimate => 0,
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitMetrics {
    /// The limit's name.
    pub name: String,
    /// Whether the limit estimates or counts exactly.
    pub tier: Tier,
    /// Its verdicts.
    pub verdicts: VerdictCounts,
    /// Keys that the limit holds in this process; `None` if it keeps no cell per key.
    pub cells: Option<usize>,
    /// Requests that a limit of requests in flight holds; `None` for other limits.
    pub in_flight: Option<u64>,
}

/// How often a limit gave each verdict.
///
/// ```
/// use tollgate::VerdictCounts;
///
/// /// Requests that passed only because the limit could not count them.
/// fn uncounted(verdicts: VerdictCounts) -> u64 {
///     verdicts.overflow_allowed + verdicts.degraded_allowed
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerdictCounts {
    /// The charge fit.
    pub allowed: u64,
    /// It did not, and the limit refused the request.
    pub denied: u64,
    /// It did not, and the limit is in shadow mode.
    pub shadow_denied: u64,
    /// There was no room for a new key, and the request passed.
    pub overflow_allowed: u64,
    /// There was no room for a new key, or none to wait in, and the request was refused.
    pub overflow_denied: u64,
    /// The store was away, and the request passed.
    pub degraded_allowed: u64,
    /// The store was away, and the request was refused.
    pub degraded_denied: u64,
}

impl Limiter {
    /// The counters now.
    pub fn metrics(&self) -> MetricsSnapshot {
        let engine = &self.shared.engine;
        let loaded = self.shared.loaded.load();
        let generation = &loaded.generation;
        let limits = generation.policy().indexed_limits();
        let limits = limits.map(|(index, limit)| LimitMetrics {
            name: limit.name.to_string(),
            tier: limit.count.tier(),
            verdicts: VerdictCounts::of(generation.counters(index)),
            cells: generation.cell_budget(index).map(|budget| budget.cells()),
            in_flight: generation.in_flight(index),
        });
        let reports = generation.policy().key_sets.iter().map(|set| set.report(engine.now().mono));
        let key_sets = reports.map(|set| KeySetMetrics {
            name: set.name.into(),
            keys: set.keys,
            age: set.age.map(Duration::from),
            failure: set.failure.map(|failure| failure.to_string()),
        });
        MetricsSnapshot {
            limits: limits.collect(),
            store_up: engine.remote().is_none_or(|store| store.is_up()),
            delayed: engine.delayed_requests(),
            banned_keys: engine.bans().count(engine.now().mono),
            key_sets: key_sets.collect(),
        }
    }
}

impl VerdictCounts {
    fn of(counters: &LimitCounters) -> Self {
        Self {
            allowed: counters.get(VerdictKind::Allowed),
            denied: counters.get(VerdictKind::Denied),
            shadow_denied: counters.get(VerdictKind::ShadowDenied),
            overflow_allowed: counters.get(VerdictKind::OverflowAllowed),
            overflow_denied: counters.get(VerdictKind::OverflowDenied),
            degraded_allowed: counters.get(VerdictKind::DegradedAllowed),
            degraded_denied: counters.get(VerdictKind::DegradedDenied),
        }
    }
}
