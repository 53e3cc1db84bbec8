//! A generation: one loaded policy with the state of its limits.
//!
//! Building one matches the limits of the previous generation by name and decides which counters continue. A
//! generation is not changed after it is built; only the counters, sketches and cells that it refers to are.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use super::counters::LimitCounters;
use super::decision::{Decision, Outcome};
use super::fleet_denials::FleetDenials;
use super::limit_registry::LimitRegistry;
use super::loaded_limit::{FamilyKey, LoadContext, LoadedLimit, TierState};
use super::reload_report::ReloadReport;
use crate::clock::Now;
use crate::estimator::{EstimateLimit, FleetView};
use crate::policy::{
    Class, KeySecret, LimitIndex, Mode, PerLimit, PerRoute, Policy, Recorder, RouteIndex, Source,
};
use crate::store::{BoundedBudget, CellBudget, EmbeddedStore};

/// One loaded policy.
pub struct Generation {
    number: u64,
    /// Unique in the process: what a node remembers of a store's answers holds for it only.
    epoch: u64,
    policy: Policy,
    limits: PerLimit<LoadedLimit>,
    routes: PerRoute<LoadedRoute>,
    /// Enforcing limits whose bans refuse connections.
    connection_bans: Vec<LimitIndex>,
    /// Whether any limit has a penalty.
    pub(super) has_penalties: bool,
    /// Whether a key may be banned: by a penalty, or by an operator.
    pub(super) may_ban: bool,
    /// Writes traces, if the policy has them written.
    pub(super) recorder: Option<Recorder>,
}

/// What is derived from a route when it is loaded.
struct LoadedRoute {
    /// The sources of its limits' keys and plans that read the path.
    path_sources: Vec<Source>,
    /// The classes of its limits' overrides that read the path.
    path_classes: Vec<Arc<Class>>,
}

/// What a generation is built from: the parts of the engine that outlive it.
#[derive(Clone, Copy)]
pub(super) struct GenerationContext<'e> {
    pub(super) registry: &'e LimitRegistry,
    pub(super) embedded: &'e EmbeddedStore,
    pub(super) secret: &'e KeySecret,
    /// Whether the shared store has slots, so that limits of a family are stored together.
    pub(super) has_slots: bool,
    pub(super) now: Now,
}

impl Generation {
    pub(super) fn build(
        context: GenerationContext<'_>,
        (number, epoch): (u64, u64),
        policy: Policy,
        previous: Option<&Self>,
    ) -> (Self, ReloadReport) {
        let mut report = ReloadReport::default();
        let known_sets = previous.map_or(&[][..], |previous| &previous.policy.key_sets);
        policy.key_sets.iter().for_each(|set| set.continue_from(known_sets));
        let families = if context.has_slots { policy.families() } else { Vec::new() };
        let with_response_cost = policy.limits_with_response_cost();
        let limits = PerLimit::of(&policy.limits, |index, limit| {
            let before = previous.and_then(|previous| previous.loaded_named(&limit.name));
            let family = families.iter().find(|family| family.members.contains(&index));
            let context = LoadContext {
                registry: context.registry,
                embedded: context.embedded,
                secret: context.secret,
                family: family.map(|family| FamilyKey {
                    sources: family.common_sources,
                    hasher: context.secret.family_hasher(),
                }),
                may_change: limit.status_rules.depends_on_status()
                    || with_response_cost.contains(&index),
                now: context.now,
            };
            let (loaded, carryover) = LoadedLimit::build(limit, context, before);
            match before {
                None => report.added.push(Arc::clone(&limit.name)),
                Some(_) => report.add(&limit.name, carryover),
            }
            loaded
        });
        if let Some(previous) = previous {
            let names = previous.policy.limits.iter().map(|limit| &limit.name);
            let is_dropped =
                |name: &&Arc<str>| policy.limits.iter().all(|limit| limit.name != **name);
            report.dropped = names.filter(is_dropped).cloned().collect();
        }
        let refuses_connections = policy.indexed_limits().filter(|(_, limit)| {
            limit.penalty.is_some_and(|rule| rule.at_connection) && limit.mode == Mode::Enforce
        });
        let connection_bans = refuses_connections.map(|(index, _)| index).collect();
        let has_penalties = policy.limits.iter().any(|limit| limit.penalty.is_some());
        let has_rules = policy.limits.iter().any(|limit| !limit.terms.key_rules.is_empty());
        let may_ban = has_penalties || has_rules;
        let routes = PerRoute::of(&policy.routes, |_, route| LoadedRoute {
            path_sources: policy.path_sources(route),
            path_classes: policy.path_classes(route),
        });
        let recorder = policy.writes_traces.then(|| Recorder::of(&policy, context.secret));
        let generation = Self {
            number,
            epoch,
            policy,
            limits,
            routes,
            connection_bans,
            has_penalties,
            may_ban,
            recorder,
        };
        (generation, report)
    }

    /// The number of its configuration, from 1. A change of the rules for keys keeps it.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Its own number, which no other generation has.
    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Its policy.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The sources of a route's keys and plans that read the path.
    pub(super) fn path_sources(&self, route: RouteIndex) -> &[Source] {
        &self.routes[route].path_sources
    }

    /// The classes of a route's overrides that read the path.
    pub(super) fn path_classes(&self, route: RouteIndex) -> &[Arc<Class>] {
        &self.routes[route].path_classes
    }

    /// An empty decision for a request that arrived at `at`.
    pub fn undecided(&self, at: Now) -> Decision {
        Decision {
            generation: self.number,
            at,
            date: at.wall,
            route: None,
            outcome: Outcome::NoRoute,
            verdicts: SmallVec::new(),
            candidates: Vec::new(),
            save: None,
        }
    }

    /// The counters of a limit, over all generations.
    pub fn counters(&self, limit: LimitIndex) -> &LimitCounters {
        &self.limits[limit].counters
    }

    /// The cell budget of an exact limit.
    pub fn cell_budget(&self, limit: LimitIndex) -> Option<&CellBudget> {
        match &self.limits[limit].state {
            TierState::Estimate(_) | TierState::InFlight { .. } => None,
            TierState::Exact(exact) => Some(exact.budget()),
        }
    }

    /// The number of requests in flight that a `max_in_flight` limit counts now.
    pub fn in_flight(&self, limit: LimitIndex) -> Option<u64> {
        match &self.limits[limit].state {
            TierState::InFlight { table, .. } => Some(table.total()),
            TierState::Estimate(_) | TierState::Exact(_) => None,
        }
    }

    /// The sketch of an estimate limit.
    pub fn estimate(&self, limit: LimitIndex) -> Option<&EstimateLimit> {
        match &self.limits[limit].state {
            TierState::Estimate(estimate) => Some(estimate),
            TierState::Exact(_) | TierState::InFlight { .. } => None,
        }
    }

    /// Enforcing limits whose bans refuse connections.
    pub(super) fn connection_bans(&self) -> &[LimitIndex] {
        &self.connection_bans
    }

    /// Records the verdicts of a decision in the counters.
    pub(super) fn record(&self, decision: &Decision) {
        let passes = decision.outcome == Outcome::Allowed;
        for limit_verdict in &decision.verdicts {
            let counters = self.counters(limit_verdict.limit);
            counters.record(limit_verdict.kind);
            if passes && limit_verdict.charged > 0 {
                counters.record_charged(limit_verdict.charged);
            }
        }
    }

    /// The loaded limit with this index.
    pub(super) fn loaded(&self, limit: LimitIndex) -> &LoadedLimit {
        &self.limits[limit]
    }

    /// Denials that count over the fleet, of all limits.
    pub(super) fn fleet_denials(&self) -> impl Iterator<Item = &FleetDenials> {
        self.limits.iter().filter_map(|limit| limit.fleet_denials.as_ref())
    }

    /// Every sketch, those for overflowing exact limits and for denials included.
    pub(super) fn estimates(&self) -> impl Iterator<Item = &Arc<EstimateLimit>> {
        self.limits.iter().flat_map(|limit| limit.estimates())
    }

    /// What other nodes counted under a limit: none if it does not count over the fleet, several if denials count too.
    pub fn fleet_views(&self, limit: LimitIndex) -> impl Iterator<Item = &FleetView> {
        self.limits[limit].estimates().filter_map(|estimate| Some(&**estimate.fleet()?))
    }

    /// The cell budget of every exact limit.
    pub(super) fn exact_budgets(&self) -> impl Iterator<Item = &Arc<CellBudget>> {
        self.limits.iter().filter_map(|limit| match &limit.state {
            TierState::Estimate(_) | TierState::InFlight { .. } => None,
            TierState::Exact(exact) => Some(exact.budget()),
        })
    }

    /// The cell budget of every exact limit, with the limit's own bound.
    pub(super) fn cell_budgets(&self) -> Vec<BoundedBudget<'_>> {
        let exact = self.limits.iter().filter_map(|limit| match &limit.state {
            TierState::Estimate(_) | TierState::InFlight { .. } => None,
            TierState::Exact(exact) => Some(exact.budget().bounded(exact.max_keys)),
        });
        exact.collect()
    }

    /// How the limit of this name counts.
    #[cfg(feature = "bin")]
    pub(super) fn state_named(&self, name: &str) -> Option<&TierState> {
        self.loaded_named(name).map(|loaded| &loaded.state)
    }

    fn loaded_named(&self, name: &str) -> Option<&LoadedLimit> {
        let (index, _) = self.policy.indexed_limits().find(|(_, limit)| &*limit.name == name)?;
        self.limits.get(index)
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("number", &self.number).finish_non_exhaustive()
    }
}
