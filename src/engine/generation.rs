//! One loaded policy with what its limits count in, and what of it survives a reload.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use super::exceptions::Exceptions;
use super::overflow::Overflow;
use super::{Decision, Engine, LimitCounters, Outcome};
use crate::clock::Now;
use crate::estimator::EstimateLimit;
use crate::limit::{Quota, Rate, WindowLengths};
use crate::policy::key::KeyHasher;
use crate::policy::{
    Count, Limit, LimitIndex, Mode, OnStoreFailure, Policy, RateIndex, RouteIndex, Source, Tier,
    WhenFull,
};
use crate::store::{BoundedBudget, CellBudget, InFlightCounts, IssuedQuota, QuotaSpec};

/// One loaded policy.
pub struct Generation {
    number: u64,
    policy: Policy,
    counting: Vec<Counting>,
    /// Of each route, the parts of its limits' keys that are read from the path.
    path_sources: Vec<Vec<Source>>,
    /// Limits that ban connections.
    banning: Vec<LimitIndex>,
    /// Whether any limit bans.
    pub(super) bans: bool,
}

/// What a limit counts in.
pub(super) struct Counting {
    pub(super) hasher: KeyHasher,
    pub(super) counters: Arc<LimitCounters>,
    pub(super) counter: Counter,
    /// In a store of many servers: how many leading parts of the key put its cells beside others
    /// of a family, and what hashes them.
    pub(super) family: Option<(usize, KeyHasher)>,
    /// For whom the limit is another one.
    pub(super) exceptions: Option<Exceptions>,
    /// Whether the answer of the origin may change a charge: a denial is then not cached.
    pub(super) may_change: bool,
    /// Equal texts mean that cells of the one can be read as the other's.
    identity: String,
}

pub(super) enum Counter {
    Estimate(Arc<EstimateLimit>),
    Exact(ExactLimit),
    InFlight(Arc<InFlightCounts>, u32),
}

pub(super) struct ExactLimit {
    /// The limit's own rate, and those of plans and exceptions.
    pub(super) quotas: Vec<Arc<IssuedQuota>>,
    /// The same without `max_delay`, one for each of [`Self::quotas`], for requests that find no room to
    /// wait in; nothing where no rate delays.
    undelayed: Vec<Arc<IssuedQuota>>,
    /// A rate that is judged beside the own one.
    pub(super) candidate: Option<Arc<IssuedQuota>>,
    pub(super) when_full: WhenFull,
    pub(super) on_store_failure: OnStoreFailure,
    max_keys: Option<usize>,
    /// Where keys are counted that find no room.
    pub(super) overflow: Arc<Overflow>,
    /// The same for the candidate.
    pub(super) candidate_overflow: Option<Arc<Overflow>>,
}

/// What a reload did to the limits, by name, in the order of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// Limits that are as they were, counters and all.
    pub kept: Vec<Arc<str>>,
    /// Limits whose counters are read under another quota.
    pub converted: Vec<Arc<str>>,
    /// Limits whose counters start afresh: another key, tier, algorithm or sketch.
    pub restarted: Vec<Arc<str>>,
    /// Limits that were not there before.
    pub added: Vec<Arc<str>>,
    /// Limits that are there no more.
    pub dropped: Vec<Arc<str>>,
}

enum Fate {
    Kept,
    Converted,
    Restarted,
}

impl Generation {
    pub(super) fn build(
        engine: &Engine,
        number: u64,
        policy: Policy,
        previous: Option<&Self>,
        now: Now,
    ) -> (Self, ReloadReport) {
        let mut report = ReloadReport::default();
        let mut counting = Vec::with_capacity(policy.limits.len());
        let slots = engine.remote().is_some_and(|remote| remote.has_slots());
        let families = if slots { policy.families() } else { Vec::new() };
        let late = policy.limits_with_response_cost();
        for (place, limit) in policy.limits.iter().enumerate() {
            let before = previous.and_then(|previous| previous.counting_of(&limit.name));
            let family = families.iter().find(|family| family.members.contains(&place));
            let family =
                family.map(|family| (family.common_sources, engine.secret.family_hasher()));
            let may_change =
                limit.status_rules.depends_on_status() || late.contains(&LimitIndex(place));
            let (one, fate) = Counting::build(engine, limit, family, may_change, before, now);
            let list = match fate {
                _ if before.is_none() => &mut report.added,
                Fate::Kept => &mut report.kept,
                Fate::Converted => &mut report.converted,
                Fate::Restarted => &mut report.restarted,
            };
            list.push(Arc::clone(&limit.name));
            counting.push(one);
        }
        if let Some(previous) = previous {
            let gone = previous.policy.limits.iter().map(|limit| &limit.name);
            let gone = gone.filter(|name| policy.limits.iter().all(|limit| limit.name != **name));
            report.dropped = gone.cloned().collect();
        }
        let banning = policy.limits.iter().enumerate().filter(|(_, limit)| {
            limit.penalty.is_some_and(|rule| rule.at_connection) && limit.mode == Mode::Enforce
        });
        let banning = banning.map(|(place, _)| LimitIndex(place)).collect();
        let bans = policy.limits.iter().any(|limit| limit.penalty.is_some());
        let path_sources = policy.routes.iter().map(|route| policy.path_sources(route)).collect();
        (Self { number, policy, counting, path_sources, banning, bans }, report)
    }

    /// Its number, from 1.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Its policy.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What the limits of a route read from the path.
    pub(super) fn path_sources(&self, route: RouteIndex) -> &[Source] {
        &self.path_sources[route.0]
    }

    /// A decision in which nothing is decided yet.
    pub fn undecided(&self, at: Now) -> Decision {
        Decision {
            generation: self.number,
            at,
            date: at.wall,
            route: None,
            outcome: Outcome::NoRoute,
            verdicts: SmallVec::new(),
            candidates: Vec::new(),
        }
    }

    /// The verdicts of a limit so far.
    pub fn counters(&self, limit: LimitIndex) -> &LimitCounters {
        &self.counting[limit.0].counters
    }

    /// The room of an exact limit.
    pub fn room(&self, limit: LimitIndex) -> Option<&CellBudget> {
        match &self.counting[limit.0].counter {
            Counter::Estimate(_) | Counter::InFlight(..) => None,
            Counter::Exact(exact) => Some(exact.room()),
        }
    }

    /// Requests that a limit of them holds now.
    pub fn in_flight(&self, limit: LimitIndex) -> Option<u64> {
        match &self.counting[limit.0].counter {
            Counter::InFlight(table, _) => Some(table.total()),
            Counter::Estimate(_) | Counter::Exact(_) => None,
        }
    }

    /// The sketch of an estimate limit.
    pub fn estimate(&self, limit: LimitIndex) -> Option<&EstimateLimit> {
        match &self.counting[limit.0].counter {
            Counter::Estimate(estimate) => Some(estimate),
            Counter::Exact(_) | Counter::InFlight(..) => None,
        }
    }

    /// Limits that ban connections.
    pub(super) fn banning(&self) -> &[LimitIndex] {
        &self.banning
    }

    /// Counts the verdicts of a decision.
    pub(super) fn record(&self, decision: &Decision) {
        for answer in &decision.verdicts {
            self.counters(answer.limit).record(answer.kind);
        }
    }

    pub(super) fn counting(&self, limit: LimitIndex) -> &Counting {
        &self.counting[limit.0]
    }

    /// Every sketch there is, those of overflowing exact limits too.
    pub(super) fn estimates(&self) -> impl Iterator<Item = &Arc<EstimateLimit>> {
        self.counting.iter().flat_map(|one| match &one.counter {
            Counter::Estimate(estimate) => vec![estimate],
            Counter::Exact(exact) => exact.sketches().collect(),
            Counter::InFlight(..) => Vec::new(),
        })
    }

    /// Every room of the exact tier with the limit's own bound.
    pub(super) fn rooms(&self) -> Vec<BoundedBudget<'_>> {
        let exact = self.counting.iter().filter_map(|one| match &one.counter {
            Counter::Estimate(_) | Counter::InFlight(..) => None,
            Counter::Exact(exact) => Some(exact.room().bounded(exact.max_keys)),
        });
        exact.collect()
    }

    fn counting_of(&self, name: &str) -> Option<&Counting> {
        let place = self.policy.limits.iter().position(|limit| &*limit.name == name)?;
        self.counting.get(place)
    }
}

impl Counting {
    /// Whether the limit counts in a store.
    pub(super) const fn is_exact(&self) -> bool {
        matches!(self.counter, Counter::Exact(_))
    }

    pub(super) const fn tier(&self) -> Tier {
        match self.counter {
            Counter::Estimate(_) => Tier::Estimate,
            Counter::Exact(_) | Counter::InFlight(..) => Tier::Exact,
        }
    }

    fn build(
        engine: &Engine,
        limit: &Limit,
        family: Option<(usize, KeyHasher)>,
        may_change: bool,
        before: Option<&Self>,
        now: Now,
    ) -> (Self, Fate) {
        // Cells of another family lie elsewhere.
        let parts = family.as_ref().map_or(0, |(parts, _)| *parts);
        let identity = format!("{}\0{parts}", limit.identity());
        let same = before.filter(|before| before.identity == identity);
        let (counter, fate) = match &limit.count {
            Count::Estimate { rate, expect_per_second } => {
                Counter::estimate(*rate, *expect_per_second, same, now)
            }
            Count::Exact { quota, when_full, max_keys, on_store_failure } => {
                // The room is the limit's whatever its key: old cells fill it until they are swept.
                let room = engine.room(&limit.name);
                let variants = || std::iter::once(quota).chain(&limit.terms.quotas);
                let windows = WindowLengths::of(variants());
                let claim = |quota: &Quota| QuotaSpec {
                    quota: quota.with_refunds(may_change),
                    windows: windows.clone(),
                    budget: Arc::clone(&room),
                };
                let claims = variants().map(claim).collect();
                // A candidate has cells of its own.
                let candidate = limit.terms.candidate.as_ref();
                let candidate = candidate
                    .map(|quota| QuotaSpec { windows: WindowLengths::of([quota]), ..claim(quota) });
                let rules = (*when_full, *max_keys, *on_store_failure);
                Counter::exact(engine, claims, candidate, rules, same)
            }
            Count::InFlight { max } => Counter::in_flight(*max, same),
        };
        let hasher = engine.secret.hasher(limit);
        let exceptions = Exceptions::of(limit, &hasher);
        let counters = engine.counters(&limit.name);
        (Self { hasher, counters, counter, family, exceptions, may_change, identity }, fate)
    }
}

impl Counter {
    fn estimate(rate: Rate, expect: u32, same: Option<&Counting>, now: Now) -> (Self, Fate) {
        let Some(Self::Estimate(before)) = same.map(|same| &same.counter) else {
            return (
                Self::Estimate(Arc::new(EstimateLimit::new(rate, expect, now))),
                Fate::Restarted,
            );
        };
        if before.rate() == rate && before.expect_per_second() == expect {
            return (Self::Estimate(Arc::clone(before)), Fate::Kept);
        }
        let next = EstimateLimit::after_reload(before, rate, expect, now);
        let fate = if next.shares_sketch_with(before) { Fate::Converted } else { Fate::Restarted };
        (Self::Estimate(Arc::new(next)), fate)
    }

    fn exact(
        engine: &Engine,
        claims: Vec<QuotaSpec>,
        candidate: Option<QuotaSpec>,
        (when_full, max_keys, on_store_failure): (WhenFull, Option<usize>, OnStoreFailure),
        same: Option<&Counting>,
    ) -> (Self, Fate) {
        let before = match same.map(|same| &same.counter) {
            Some(Self::Exact(before)) => Some(before),
            _ => None,
        };
        let wanted = claims.iter().map(|claim| &claim.quota);
        // All of a generation or none: a cell is never read as a quota of an older one.
        let kept = before.filter(|old| old.quotas.iter().map(|one| one.quota()).eq(wanted));
        let fate = match (before, kept) {
            (None, _) => Fate::Restarted,
            (_, Some(_)) => Fate::Kept,
            (_, None) => Fate::Converted,
        };
        let issue = |claim| engine.exact.embedded.issue(claim, None);
        let (quotas, undelayed, overflow) = match kept {
            Some(before) => {
                (before.quotas.clone(), before.undelayed.clone(), Arc::clone(&before.overflow))
            }
            None => {
                let undelayed = undelayed(&claims).into_iter().map(issue).collect();
                let quotas: Vec<Quota> = claims.iter().map(|claim| claim.quota).collect();
                let overflow = Overflow::new(&quotas[0], &quotas[1..]);
                (claims.into_iter().map(issue).collect(), undelayed, Arc::new(overflow))
            }
        };
        let candidate_before = before.and_then(|before| before.candidate.as_ref());
        let candidate_overflow = candidate.as_ref().map(|claim| {
            let same = candidate_before.is_some_and(|old| *old.quota() == claim.quota);
            let kept = before.filter(|_| same).and_then(|old| old.candidate_overflow.clone());
            kept.unwrap_or_else(|| Arc::new(Overflow::new(&claim.quota, &[])))
        });
        let candidate = candidate.map(|claim| engine.exact.embedded.issue(claim, candidate_before));
        let exact = ExactLimit {
            quotas,
            undelayed,
            candidate,
            when_full,
            on_store_failure,
            max_keys,
            overflow,
            candidate_overflow,
        };
        (Self::Exact(exact), fate)
    }

    /// Requests that are in flight hold their places under whatever number is the most now.
    fn in_flight(most: u32, same: Option<&Counting>) -> (Self, Fate) {
        match same.map(|same| &same.counter) {
            Some(Self::InFlight(table, before)) => {
                let fate = if *before == most { Fate::Kept } else { Fate::Converted };
                (Self::InFlight(Arc::clone(table), most), fate)
            }
            _ => (Self::InFlight(Arc::default(), most), Fate::Restarted),
        }
    }
}

/// What the same claims are without `max_delay`; nothing where none delays.
fn undelayed(claims: &[QuotaSpec]) -> Vec<QuotaSpec> {
    if claims.iter().all(|claim| claim.quota.without_delay().is_none()) {
        return Vec::new();
    }
    let undelayed = |claim: &QuotaSpec| QuotaSpec {
        quota: claim.quota.without_delay().unwrap_or(claim.quota),
        ..claim.clone()
    };
    claims.iter().map(undelayed).collect()
}

impl ExactLimit {
    /// The quota of a rate.
    pub(super) fn quota(&self, rate: RateIndex) -> &Arc<IssuedQuota> {
        self.quotas.get(rate as usize).unwrap_or(&self.quotas[0])
    }

    /// The quota of a rate, for a request that cannot wait.
    pub(super) fn undelayed(&self, rate: RateIndex) -> &Arc<IssuedQuota> {
        self.undelayed.get(rate as usize).unwrap_or_else(|| self.quota(rate))
    }

    /// Whether a request may have to wait for its turn.
    pub(super) const fn delays(&self) -> bool {
        !self.undelayed.is_empty()
    }

    fn room(&self) -> &Arc<CellBudget> {
        self.quotas[0].budget()
    }

    /// The sketches of keys without room.
    fn sketches(&self) -> impl Iterator<Item = &Arc<EstimateLimit>> {
        let all = std::iter::once(&self.overflow).chain(&self.candidate_overflow);
        all.flat_map(|overflow| overflow.sketches())
    }
}

impl ReloadReport {
    /// Whether any counter starts afresh.
    pub const fn restarts(&self) -> bool {
        !self.restarted.is_empty()
    }
}

impl fmt::Display for ReloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [
            ("kept", &self.kept),
            ("converted", &self.converted),
            ("restarted", &self.restarted),
            ("added", &self.added),
            ("dropped", &self.dropped),
        ];
        let mut some = false;
        for (word, names) in lists.iter().filter(|(_, names)| !names.is_empty()) {
            write!(f, "{}{word}: {}", if some { "; " } else { "" }, names.join(", "))?;
            some = true;
        }
        if some { Ok(()) } else { f.write_str("no limits") }
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("number", &self.number).finish_non_exhaustive()
    }
}
