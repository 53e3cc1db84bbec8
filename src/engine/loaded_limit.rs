//! The state that a limit of a generation counts in, and which of it continues after a reload.
//!
//! Sketches, tables of requests in flight and issued quotas are taken over from the previous generation if the limit
//! has the same identity (name, tier, algorithm, key, family). A cell is never read under a quota of an older
//! generation: if one of a limit's rates changes, all its quotas are issued anew.

use std::sync::Arc;

use super::counters::LimitCounters;
use super::fleet_denials::FleetDenials;
use super::limit_registry::LimitRegistry;
use super::overflow::Overflow;
use super::overrides::OverrideIndex;
use super::reload_report::Carryover;
use crate::clock::{Nanos, Now};
use crate::estimator::{EstimateLimit, FleetView};
use crate::limit::{Quota, Rate, WindowLengths};
use crate::policy::key::KeyHasher;
use crate::policy::{
    AfterCrash, Count, KeySecret, Limit, OnStoreFailure, RateIndex, Scope, Tier, WhenFull,
};
use crate::store::{CellBudget, EmbeddedStore, InFlightCounts, IssuedQuota, QuotaSpec};

/// One limit of a generation with the state that it counts in.
pub(super) struct LoadedLimit {
    pub(super) hasher: KeyHasher,
    pub(super) counters: Arc<LimitCounters>,
    pub(super) state: TierState,
    /// Set if the limit is in a family and the shared store has slots.
    pub(super) family: Option<FamilyKey>,
    /// The limit's overrides, if it has any.
    pub(super) overrides: Option<OverrideIndex>,
    /// Denials over all nodes, for the limit's penalty.
    pub(super) fleet_denials: Option<FleetDenials>,
    /// Whether the response of the origin may change a charge; denials are not cached then.
    pub(super) may_change: bool,
    /// Two limits with equal texts can read each other's cells.
    identity: String,
}

/// How the key of a family is computed ([`crate::policy::Family`]).
pub(super) struct FamilyKey {
    /// The number of leading sources of the limit's key that are hashed.
    pub(super) sources: usize,
    pub(super) hasher: KeyHasher,
}

/// The state of a limit, by how it counts.
pub(super) enum TierState {
    Estimate(Arc<EstimateLimit>),
    Exact(ExactLimit),
    InFlight {
        table: Arc<InFlightCounts>,
        /// The most requests of one key at once.
        max: u32,
    },
}

/// The state of an exact limit.
pub(super) struct ExactLimit {
    /// The limit's own rate, then those of plans and overrides. Never empty.
    rates: Vec<ExactRate>,
    /// A rate that is judged in addition to the limit's own.
    pub(super) candidate: Option<Arc<IssuedQuota>>,
    pub(super) when_full: WhenFull,
    pub(super) on_store_failure: OnStoreFailure,
    pub(super) max_keys: Option<usize>,
    /// Counts keys that the store has no room for.
    pub(super) overflow: Arc<Overflow>,
    /// The same for the candidate.
    pub(super) candidate_overflow: Option<Arc<Overflow>>,
    /// Whether a rate has a `max_delay`.
    delays: bool,
}

/// One rate of an exact limit.
#[derive(Clone)]
struct ExactRate {
    quota: Arc<IssuedQuota>,
    /// The same quota without `max_delay`, for requests that get no delay slot; `None` if no rate of the limit has a
    /// `max_delay`.
    undelayed: Option<Arc<IssuedQuota>>,
}

/// What a limit is loaded with.
pub(super) struct LoadContext<'e> {
    pub(super) registry: &'e LimitRegistry,
    /// Issues the quotas of exact limits.
    pub(super) embedded: &'e EmbeddedStore,
    pub(super) secret: &'e KeySecret,
    pub(super) family: Option<FamilyKey>,
    /// Whether the response of the origin may change a charge.
    pub(super) may_change: bool,
    pub(super) now: Now,
}

/// The quotas of an exact limit before they are issued.
struct ExactSpec {
    /// The limit's own, then those of plans and overrides.
    rates: Vec<QuotaSpec>,
    candidate: Option<QuotaSpec>,
    when_full: WhenFull,
    max_keys: Option<usize>,
    on_store_failure: OnStoreFailure,
}

impl LoadedLimit {
    /// Whether the limit counts in a store.
    pub(super) const fn is_exact(&self) -> bool {
        matches!(self.state, TierState::Exact(_))
    }

    pub(super) const fn tier(&self) -> Tier {
        match self.state {
            TierState::Estimate(_) => Tier::Estimate,
            TierState::Exact(_) | TierState::InFlight { .. } => Tier::Exact,
        }
    }

    /// Its sketches, those for denials and for keys without room included.
    pub(super) fn estimates(&self) -> impl Iterator<Item = &Arc<EstimateLimit>> {
        let counts = match &self.state {
            TierState::Estimate(estimate) => vec![estimate],
            TierState::Exact(exact) => exact.sketches().collect(),
            TierState::InFlight { .. } => Vec::new(),
        };
        let denials = self.fleet_denials.as_ref().map(|denials| denials.counts());
        counts.into_iter().chain(denials)
    }

    /// Loads a limit. `before`: the limit of this name in the previous generation.
    pub(super) fn build(
        limit: &Limit,
        context: LoadContext<'_>,
        before: Option<&Self>,
    ) -> (Self, Carryover) {
        let LoadContext { registry, embedded, secret, family, may_change, now } = context;
        // The cells of another family are stored in other slots.
        let family_sources = family.as_ref().map_or(0, |family| family.sources);
        let identity = format!("{}\0{family_sources}", limit.identity());
        let same = before.filter(|before| before.identity == identity).map(|before| &before.state);
        let is_in_fleet = limit.scope == Scope::Fleet;
        let (state, carryover) = match &limit.count {
            Count::Estimate { rate, expect_per_second } => {
                let tag = is_in_fleet.then(|| secret.fleet_tag(limit, "units", rate.period()));
                TierState::estimate(*rate, *expect_per_second, tag, same, now)
            }
            Count::Exact { quota, when_full, max_keys, on_store_failure, after_crash } => {
                // The budget belongs to the limit's name, also under another key: old cells use it until they are
                // swept.
                let budget = registry.obtain_budget(&limit.name);
                let quotas = || std::iter::once(quota).chain(&limit.terms.quotas);
                let windows = WindowLengths::of(quotas());
                let spec = |quota: &Quota| QuotaSpec {
                    quota: quota.with_refunds(may_change),
                    windows: windows.clone(),
                    budget: Arc::clone(&budget),
                    denies_after_crash: *after_crash == AfterCrash::Deny,
                };
                // A candidate has cells of its own.
                let candidate = limit.terms.candidate.as_ref();
                // It refuses nothing, so a crash can admit nothing more.
                let candidate = candidate.map(|quota| QuotaSpec {
                    windows: WindowLengths::of([quota]),
                    denies_after_crash: false,
                    ..spec(quota)
                });
                let spec = ExactSpec {
                    rates: quotas().map(spec).collect(),
                    candidate,
                    when_full: *when_full,
                    max_keys: *max_keys,
                    on_store_failure: *on_store_failure,
                };
                let tag = |period| secret.fleet_tag(limit, "overflow", period);
                let tag = is_in_fleet.then_some(&tag as &dyn Fn(Nanos) -> u64);
                TierState::exact(embedded, spec, tag, same, now)
            }
            Count::InFlight { max } => TierState::in_flight(*max, same),
        };
        let hasher = secret.hasher(limit);
        let overrides = OverrideIndex::of(limit, &hasher);
        let counters = registry.obtain_counters(&limit.name);
        let fleet_denials = limit.penalty.filter(|_| is_in_fleet).and_then(|rule| {
            let tag = secret.fleet_tag(limit, "denials", rule.within);
            FleetDenials::of(
                &rule,
                tag,
                before.and_then(|before| before.fleet_denials.as_ref()),
                now,
            )
        });
        let loaded = Self {
            hasher,
            counters,
            state,
            family,
            overrides,
            fleet_denials,
            may_change,
            identity,
        };
        (loaded, carryover)
    }
}

impl TierState {
    /// `tag`: what nodes call the limit, if it counts over the fleet.
    fn estimate(
        rate: Rate,
        expect: u32,
        tag: Option<u64>,
        same: Option<&Self>,
        now: Now,
    ) -> (Self, Carryover) {
        let Some(Self::Estimate(before)) = same else {
            let fresh = EstimateLimit::new(rate, expect, now);
            let fresh = fresh.in_fleet(tag.map(|tag| Arc::new(FleetView::new(tag))));
            return (Self::Estimate(Arc::new(fresh)), Carryover::Restarted);
        };
        let is_same_fleet = before.fleet().map(|view| view.tag()) == tag;
        if before.rate() == rate && before.expect_per_second() == expect && is_same_fleet {
            return (Self::Estimate(Arc::clone(before)), Carryover::Kept);
        }
        // The counts of other nodes are of windows of one length.
        let view = match before.fleet() {
            Some(view) if is_same_fleet => Some(Arc::clone(view)),
            _ => tag.map(|tag| Arc::new(FleetView::new(tag))),
        };
        let next = EstimateLimit::after_reload(before, rate, expect, now).in_fleet(view);
        let carryover = match next.shares_sketch_with(before) {
            true => Carryover::Converted,
            false => Carryover::Restarted,
        };
        (Self::Estimate(Arc::new(next)), carryover)
    }

    /// `tag`: what nodes call the counts of keys without room, by window length, if the limit counts over the fleet.
    fn exact(
        embedded: &EmbeddedStore,
        spec: ExactSpec,
        tag: Option<&dyn Fn(Nanos) -> u64>,
        same: Option<&Self>,
        now: Now,
    ) -> (Self, Carryover) {
        let before = match same {
            Some(Self::Exact(before)) => Some(before),
            Some(Self::Estimate(_) | Self::InFlight { .. }) | None => None,
        };
        let wanted = spec.rates.iter().map(|rate| &rate.quota);
        // All quotas are kept or none: a cell is never read under a quota of an older generation.
        let kept = before.filter(|old| old.rates.iter().map(|rate| rate.quota.quota()).eq(wanted));
        let kept = kept.filter(|old| {
            old.rates[0].quota.denies_after_crash() == spec.rates[0].denies_after_crash
        });
        let carryover = match (before, kept) {
            (None, _) => Carryover::Restarted,
            (_, Some(_)) => Carryover::Kept,
            (_, None) => Carryover::Converted,
        };
        let quotas: Vec<Quota> = spec.rates.iter().map(|rate| rate.quota).collect();
        let overflow_before = before.map(|before| &*before.overflow);
        let new_overflow =
            || Arc::new(Overflow::new(&quotas[0], &quotas[1..], tag, overflow_before));
        let (rates, overflow) = match kept {
            Some(before) if before.overflow.is_in_fleet() == tag.is_some() => {
                (before.rates.clone(), Arc::clone(&before.overflow))
            }
            Some(before) => (before.rates.clone(), new_overflow()),
            None => (issue_rates(embedded, spec.rates), new_overflow()),
        };
        overflow.prepare(now);
        let candidate_before = before.and_then(|before| before.candidate.as_ref());
        let candidate_overflow = spec.candidate.as_ref().map(|candidate| {
            let same = candidate_before.is_some_and(|old| *old.quota() == candidate.quota);
            let kept = before.filter(|_| same).and_then(|old| old.candidate_overflow.clone());
            kept.unwrap_or_else(|| Arc::new(Overflow::new(&candidate.quota, &[], None, None)))
        });
        let issue = |candidate| embedded.issue(candidate, candidate_before);
        let exact = ExactLimit {
            delays: rates.iter().any(|rate| rate.undelayed.is_some()),
            rates,
            candidate: spec.candidate.map(issue),
            when_full: spec.when_full,
            on_store_failure: spec.on_store_failure,
            max_keys: spec.max_keys,
            overflow,
            candidate_overflow,
        };
        (Self::Exact(exact), carryover)
    }

    /// The table continues under the new maximum: requests in flight keep their slots.
    fn in_flight(max: u32, same: Option<&Self>) -> (Self, Carryover) {
        let Some(Self::InFlight { table, max: before }) = same else {
            return (Self::InFlight { table: Arc::default(), max }, Carryover::Restarted);
        };
        let carryover = if *before == max { Carryover::Kept } else { Carryover::Converted };
        (Self::InFlight { table: Arc::clone(table), max }, carryover)
    }
}

/// Issues the quotas of all rates. If one of them has a `max_delay`, each rate also gets a quota without it.
fn issue_rates(embedded: &EmbeddedStore, specs: Vec<QuotaSpec>) -> Vec<ExactRate> {
    let delays = specs.iter().any(|spec| spec.quota.without_delay().is_some());
    let undelayed = |spec: &QuotaSpec| QuotaSpec {
        quota: spec.quota.without_delay().unwrap_or(spec.quota),
        ..spec.clone()
    };
    let without_delay =
        if delays { embedded.issue_all(specs.iter().map(undelayed).collect()) } else { Vec::new() };
    let mut without_delay = without_delay.into_iter();
    let quotas = embedded.issue_all(specs).into_iter();
    quotas.map(|quota| ExactRate { quota, undelayed: without_delay.next() }).collect()
}

impl ExactLimit {
    /// The quota of a rate; the limit's own for an unknown index.
    pub(super) fn quota(&self, rate: RateIndex) -> &Arc<IssuedQuota> {
        &self.rate(rate).quota
    }

    /// The quota of a rate for a request that cannot be delayed.
    pub(super) fn undelayed(&self, rate: RateIndex) -> &Arc<IssuedQuota> {
        let rate = self.rate(rate);
        rate.undelayed.as_ref().unwrap_or(&rate.quota)
    }

    fn rate(&self, rate: RateIndex) -> &ExactRate {
        self.rates.get(rate as usize).unwrap_or(&self.rates[0])
    }

    /// Whether a request may be delayed.
    pub(super) const fn delays(&self) -> bool {
        self.delays
    }

    /// The cell budget of the limit.
    pub(super) fn budget(&self) -> &Arc<CellBudget> {
        self.rates[0].quota.budget()
    }

    /// The sketches for keys without room.
    pub(super) fn sketches(&self) -> impl Iterator<Item = &Arc<EstimateLimit>> {
        let overflows = std::iter::once(&self.overflow).chain(&self.candidate_overflow);
        overflows.flat_map(|overflow| overflow.sketches())
    }
}
