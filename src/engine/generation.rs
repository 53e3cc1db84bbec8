//! One loaded policy with what its limits count in, and what of it survives a reload.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::due::Due;
use super::{Decision, Engine, Tally};
use crate::clock::Now;
use crate::estimator::EstimateLimit;
use crate::limit::{Quota, Rate};
use crate::policy::key::KeyHasher;
use crate::policy::{Count, Limit, LimitIndex, Mode, OnStoreFailure, Policy, Tier, WhenFull};
use crate::store::{Claim, Issued, Room};

/// One loaded policy.
pub struct Generation {
    number: u64,
    policy: Policy,
    counting: Vec<Counting>,
}

/// What a limit counts in.
pub(super) struct Counting {
    pub(super) hasher: KeyHasher,
    pub(super) tally: Arc<Tally>,
    pub(super) counter: Counter,
    /// In a store of many servers: how many leading parts of the key put its cells beside others
    /// of a family, and what hashes them.
    pub(super) family: Option<(usize, KeyHasher)>,
    /// Equal texts mean that cells of the one can be read as the other's.
    identity: String,
}

pub(super) enum Counter {
    Estimate(Arc<EstimateLimit>),
    Exact(Exact),
}

pub(super) struct Exact {
    pub(super) quota: Arc<Issued>,
    pub(super) when_full: WhenFull,
    pub(super) on_store_failure: OnStoreFailure,
    max_keys: Option<usize>,
    /// Made when the room is full for the first time: most limits never need it.
    overflow: OnceLock<Arc<EstimateLimit>>,
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
        for (place, limit) in policy.limits.iter().enumerate() {
            let before = previous.and_then(|previous| previous.counting_of(&limit.name));
            let family = families.iter().find(|family| family.members.contains(&place));
            let family = family.map(|family| (family.parts, engine.secret.family_hasher()));
            let (one, fate) = Counting::build(engine, number, limit, family, before, now);
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
        (Self { number, policy, counting }, report)
    }

    /// Its number, from 1.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Its policy.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The verdicts of a limit so far.
    pub fn tally(&self, limit: LimitIndex) -> &Tally {
        &self.counting[limit.0].tally
    }

    /// The room of an exact limit.
    pub fn room(&self, limit: LimitIndex) -> Option<&Room> {
        match &self.counting[limit.0].counter {
            Counter::Estimate(_) => None,
            Counter::Exact(exact) => Some(exact.quota.room()),
        }
    }

    /// The sketch of an estimate limit.
    pub fn estimate(&self, limit: LimitIndex) -> Option<&EstimateLimit> {
        match &self.counting[limit.0].counter {
            Counter::Estimate(estimate) => Some(estimate),
            Counter::Exact(_) => None,
        }
    }

    /// Whether a refusal of this limit refuses.
    pub(super) fn enforces(&self, due: &Due) -> bool {
        self.policy.limit(due.limit).mode == Mode::Enforce
    }

    /// Whether a limit of the exact tier is among these.
    pub(super) fn any_exact(&self, dues: &[Due]) -> bool {
        dues.iter().any(|due| self.counting(due.limit).tier() == Tier::Exact)
    }

    /// Counts the verdicts of a decision.
    pub(super) fn book(&self, decision: &Decision) {
        for answer in &decision.answers {
            self.tally(answer.limit).count(answer.kind);
        }
    }

    pub(super) fn counting(&self, limit: LimitIndex) -> &Counting {
        &self.counting[limit.0]
    }

    /// Every sketch there is, those of overflowing exact limits too.
    pub(super) fn estimates(&self) -> impl Iterator<Item = &Arc<EstimateLimit>> {
        self.counting.iter().filter_map(|one| match &one.counter {
            Counter::Estimate(estimate) => Some(estimate),
            Counter::Exact(exact) => exact.overflow.get(),
        })
    }

    /// Every room of the exact tier with the limit's own bound.
    pub(super) fn rooms(&self) -> Vec<(&Room, Option<usize>)> {
        let exact = self.counting.iter().filter_map(|one| match &one.counter {
            Counter::Estimate(_) => None,
            Counter::Exact(exact) => Some((&**exact.quota.room(), exact.max_keys)),
        });
        exact.collect()
    }

    fn counting_of(&self, name: &str) -> Option<&Counting> {
        let place = self.policy.limits.iter().position(|limit| &*limit.name == name)?;
        self.counting.get(place)
    }
}

impl Counting {
    pub(super) const fn tier(&self) -> Tier {
        match self.counter {
            Counter::Estimate(_) => Tier::Estimate,
            Counter::Exact(_) => Tier::Exact,
        }
    }

    fn build(
        engine: &Engine,
        generation: u64,
        limit: &Limit,
        family: Option<(usize, KeyHasher)>,
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
                let room = before.and_then(|before| before.counter.room());
                let room = room.cloned().unwrap_or_default();
                let claim = Claim { quota: *quota, room, generation };
                let rules = (*when_full, *max_keys, *on_store_failure);
                Counter::exact(engine, claim, rules, same)
            }
        };
        let hasher = engine.secret.hasher(limit);
        let tally = engine.tally(&limit.name);
        (Self { hasher, tally, counter, family, identity }, fate)
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
        let next = EstimateLimit::succeed(before, rate, expect, now);
        let fate = if next.shares_sketch_with(before) { Fate::Converted } else { Fate::Restarted };
        (Self::Estimate(Arc::new(next)), fate)
    }

    fn exact(
        engine: &Engine,
        claim: Claim,
        (when_full, max_keys, on_store_failure): (WhenFull, Option<usize>, OnStoreFailure),
        same: Option<&Counting>,
    ) -> (Self, Fate) {
        let before = match same.map(|same| &same.counter) {
            Some(Self::Exact(before)) => Some(before),
            _ => None,
        };
        let quota = engine.store.issue(claim, before.map(|before| &before.quota));
        let fate = match before {
            None => Fate::Restarted,
            Some(before) if before.quota.quota() == quota.quota() => Fate::Kept,
            Some(_) => Fate::Converted,
        };
        let overflow = match (before, &fate) {
            (Some(before), Fate::Kept) => before.overflow.clone(),
            _ => OnceLock::new(),
        };
        (Self::Exact(Exact { quota, when_full, on_store_failure, max_keys, overflow }), fate)
    }

    fn room(&self) -> Option<&Arc<Room>> {
        match self {
            Self::Estimate(_) => None,
            Self::Exact(exact) => Some(exact.quota.room()),
        }
    }
}

impl Exact {
    /// Where new keys are counted that have no room: the limit and the window of its quota, in a
    /// sketch for the traffic that nobody declared.
    pub(super) fn overflow(&self, now: Now) -> &Arc<EstimateLimit> {
        /// What a sketch is made for where `expect` does not say: the default of `expect`.
        const UNDECLARED: u32 = 1_000;
        self.overflow.get_or_init(|| {
            Arc::new(EstimateLimit::new(as_rate(self.quota.quota()), UNDECLARED, now))
        })
    }
}

/// The limit and the window of a quota. A bucket may refill faster than a rate can be written;
/// then its own rate stands.
fn as_rate(quota: &Quota) -> Rate {
    let written = match quota {
        Quota::TokenBucket(bucket) => bucket.rate(),
        Quota::SlidingWindow(window) => window.rate(),
        Quota::SlidingLog(log) => log.rate(),
        Quota::FixedWindow(window) => window.rate(),
    };
    Rate::new(quota.limit(), quota.window()).unwrap_or(written)
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
