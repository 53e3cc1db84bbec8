//! From the facts of a request to a decision.
//!
//! The engine owns what outlives a configuration: the store, the confirm table, the counters by
//! limit name, the secret of the keys and the clock. A [`Generation`] is one loaded policy. A
//! request is decided under one generation from beginning to end.

mod decision;
mod due;
mod generation;
mod tally;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::clock::{Clock, Nanos, Now};
use crate::estimator::{ConfirmTable, Receipt};
use crate::limit::Verdict;
use crate::policy::{Facts, KeySecret, LimitIndex, Mode, Policy, Tier, WhenFull};
use crate::store::{Charge, Embedded};

pub use decision::{Answer, Decision, Outcome};
pub use due::{Due, Dues, Unclean};
pub use generation::{Generation, ReloadReport};
pub use tally::{Durations, Histogram, Tally, VerdictKind};

use generation::{Counter, Exact};

/// Shards of the store that one turn of the housekeeping sweeps: all of them in 3 to 4 seconds.
const SWEEP_SHARDS: usize = 8;

/// One decision in this many is timed; a power of two.
const TIMED_ONE_IN: u64 = 64;

/// What decides, and what it has counted so far.
pub struct Engine {
    clock: Arc<dyn Clock>,
    secret: KeySecret,
    store: Embedded,
    confirm: ConfirmTable,
    generations: AtomicU64,
    /// Counters by limit name: they never start again while the process lives.
    tallies: Mutex<HashMap<Arc<str>, Arc<Tally>>>,
    durations: Durations,
}

/// A charge of the estimate tier that may have to be given back.
struct Tentative {
    /// Its place among the answers.
    place: usize,
    limit: LimitIndex,
    receipt: Receipt,
}

impl Engine {
    /// An engine without any count. `secret` makes the hashes of its keys.
    pub fn new(clock: Arc<dyn Clock>, secret: KeySecret) -> Self {
        Self {
            clock,
            secret,
            store: Embedded::default(),
            confirm: ConfirmTable::default(),
            generations: AtomicU64::new(0),
            tallies: Mutex::default(),
            durations: Durations::default(),
        }
    }

    /// The present instant on the engine's clock.
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// Builds the next generation whole; nobody is decided under it before it is published by
    /// whoever holds the pointer to the present one. Counters of `previous` go on by limit name.
    pub fn generation(
        &self,
        policy: Policy,
        previous: Option<&Generation>,
    ) -> (Generation, ReloadReport) {
        let number = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        let (generation, report) = Generation::build(self, number, policy, previous, self.now());
        self.store.share_out(generation.policy().max_keys, &generation.rooms());
        (generation, report)
    }

    /// Decides a request. Waits for nothing: the store is embedded.
    pub async fn decide(&self, generation: &Generation, facts: &Facts<'_>) -> Decision {
        self.decide_embedded(generation, facts)
    }

    /// What [`Engine::decide`] does, for callers that cannot wait.
    pub fn decide_embedded(&self, generation: &Generation, facts: &Facts<'_>) -> Decision {
        let now = self.now();
        let mut decision = Decision {
            generation: generation.number(),
            at: now,
            route: None,
            outcome: Outcome::NoRoute,
            answers: SmallVec::new(),
        };
        let policy = generation.policy();
        let Some(route) = policy.find(facts) else {
            return decision;
        };
        decision.route = Some(route);
        if !due::reads_alike(generation, facts, route) {
            decision.outcome = Outcome::AmbiguousPath;
            return decision;
        }
        decision.outcome = Outcome::Allowed;
        if policy.route(route).limits.is_empty() {
            return decision;
        }
        match due::dues(generation, facts, route) {
            Ok(dues) => self.settle(generation, &dues, now, &mut decision),
            Err(Unclean::Missing { limit, status }) => {
                decision.outcome = Outcome::MissingKey { limit, status };
            }
            Err(Unclean::Repeated { limit }) => {
                decision.outcome = Outcome::RepeatedKey { limit };
            }
        }
        self.time(&decision);
        decision
    }

    /// Turns sketches, sweeps a part of the store. Called ten times a second or so, by one task;
    /// called late, it only counts too much for a while.
    pub fn tick(&self, generation: &Generation) {
        let now = self.now();
        for estimate in generation.estimates() {
            estimate.turn(now);
        }
        self.confirm.sweep(now);
        self.store.sweep(SWEEP_SHARDS, now);
    }

    /// The table in which suspects of the estimate tier are counted.
    pub const fn confirm_table(&self) -> &ConfirmTable {
        &self.confirm
    }

    /// Quotas that cells of the store can be written under now: does not grow with reloads.
    pub fn issued_quotas(&self) -> usize {
        self.store.issued_quotas()
    }

    /// How long decisions take.
    pub const fn durations(&self) -> &Durations {
        &self.durations
    }

    /// Charges the enforcing limits all or none, then asks the shadow ones, each for itself.
    fn settle(&self, generation: &Generation, dues: &[Due], now: Now, decision: &mut Decision) {
        let mut tentative: SmallVec<[Tentative; 4]> = SmallVec::new();
        let enforced = |due: &&Due| generation.policy().limit(due.limit).mode == Mode::Enforce;
        for due in dues.iter().filter(enforced) {
            if let Counter::Estimate(estimate) = &generation.counting(due.limit).counter {
                let (verdict, receipt) = estimate.charge(&self.confirm, due.key, due.cost, now);
                if verdict.allowed {
                    let place = decision.answers.len();
                    tentative.push(Tentative { place, limit: due.limit, receipt });
                }
                decision.answers.push(answer(due, Tier::Estimate, verdict, false));
            }
        }
        let may_spend = decision.refusing().next().is_none();
        let exact: SmallVec<[&Due; 4]> = dues
            .iter()
            .filter(enforced)
            .filter(|due| generation.counting(due.limit).tier() == Tier::Exact)
            .collect();
        let spent = exact.is_empty() && may_spend
            || !exact.is_empty() && self.settle_exact(generation, &exact, may_spend, now, decision);
        if !spent {
            decision.outcome = Outcome::Limited;
            self.give_back(generation, dues, &tentative, now, decision);
        }
        for due in dues.iter().filter(|due| !enforced(due)) {
            self.watch(generation, due, spent, now, decision);
        }
        for answer in &decision.answers {
            generation.tally(answer.limit).count(answer.kind);
        }
    }

    fn settle_exact(
        &self,
        generation: &Generation,
        dues: &[&Due],
        may_spend: bool,
        now: Now,
        decision: &mut Decision,
    ) -> bool {
        let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
        let mut limits: SmallVec<[&Exact; 4]> = SmallVec::new();
        for due in dues {
            if let Counter::Exact(exact) = &generation.counting(due.limit).counter {
                charges.push(Charge { key: due.key, quota: &exact.quota, cost: due.cost });
                limits.push(exact);
            }
        }
        let mut overflown: SmallVec<[(usize, Option<Receipt>); 2]> = SmallVec::new();
        let settlement = self.store.settle(&charges, may_spend, now, |place| {
            let (verdict, receipt) = self.overflow(limits[place], &charges[place], now);
            overflown.push((place, receipt));
            verdict
        });
        for (place, (due, verdict)) in dues.iter().zip(&settlement.verdicts).enumerate() {
            let over = overflown.iter().any(|(over, _)| *over == place);
            decision.answers.push(answer(due, Tier::Exact, *verdict, over));
        }
        if !settlement.spent {
            for (place, receipt) in overflown {
                if let Some(receipt) = receipt {
                    limits[place].overflow(now).give_back(&self.confirm, receipt);
                }
            }
        }
        settlement.spent
    }

    /// A new key for which there is no room. The receipt is there when something was spent.
    fn overflow(&self, exact: &Exact, charge: &Charge<'_>, now: Now) -> (Verdict, Option<Receipt>) {
        let fresh = exact.quota.quota().judge(None, charge.cost, now);
        match exact.when_full {
            WhenFull::Allow => (fresh, None),
            WhenFull::Deny => {
                // Room comes when a cell has refilled; the next second is the honest guess.
                let retry_after = Some(Nanos::SECOND);
                (Verdict { allowed: false, remaining: 0, retry_after, ..fresh }, None)
            }
            WhenFull::Estimate => {
                let estimate = exact.overflow(now);
                let (verdict, receipt) =
                    estimate.charge(&self.confirm, charge.key, charge.cost, now);
                let receipt = verdict.allowed.then_some(receipt);
                (verdict, receipt)
            }
        }
    }

    /// Takes back what the estimate tier was charged, and tells what is there without it.
    fn give_back(
        &self,
        generation: &Generation,
        dues: &[Due],
        tentative: &[Tentative],
        now: Now,
        decision: &mut Decision,
    ) {
        for charged in tentative {
            let Counter::Estimate(estimate) = &generation.counting(charged.limit).counter else {
                continue;
            };
            estimate.give_back(&self.confirm, charged.receipt);
            if let Some(due) = dues.iter().find(|due| due.limit == charged.limit) {
                decision.answers[charged.place].verdict =
                    estimate.judge(&self.confirm, due.key, now);
            }
        }
    }

    /// A shadow limit is asked by itself, and charged only when the request goes through.
    fn watch(
        &self,
        generation: &Generation,
        due: &Due,
        goes_through: bool,
        now: Now,
        decision: &mut Decision,
    ) {
        let mut overflown = None;
        let (verdict, tier) = match &generation.counting(due.limit).counter {
            Counter::Estimate(estimate) => {
                let (verdict, receipt) = estimate.charge(&self.confirm, due.key, due.cost, now);
                if verdict.allowed && !goes_through {
                    estimate.give_back(&self.confirm, receipt);
                }
                (verdict, Tier::Estimate)
            }
            Counter::Exact(exact) => {
                let charge = Charge { key: due.key, quota: &exact.quota, cost: due.cost };
                let settlement = self.store.settle(&[charge], goes_through, now, |_| {
                    let (verdict, receipt) = self.overflow(exact, &charge, now);
                    overflown = Some(receipt);
                    verdict
                });
                if !settlement.spent
                    && let Some(Some(receipt)) = overflown
                {
                    exact.overflow(now).give_back(&self.confirm, receipt);
                }
                match settlement.verdicts.first() {
                    Some(verdict) => (*verdict, Tier::Exact),
                    None => return,
                }
            }
        };
        let mut answer = answer(due, tier, verdict, overflown.is_some());
        answer.shadow = true;
        if !verdict.allowed {
            answer.kind = VerdictKind::ShadowDenied;
        }
        decision.answers.push(answer);
    }

    /// Times one decision in [`TIMED_ONE_IN`], chosen by the low bits of its own time.
    fn time(&self, decision: &Decision) {
        let began = decision.at.mono;
        if (began.get() / 8).is_multiple_of(TIMED_ONE_IN) {
            let exact = decision.answers.iter().any(|answer| answer.tier == Tier::Exact);
            let tier = if exact { Tier::Exact } else { Tier::Estimate };
            self.durations.of(tier).observe(self.now().mono.saturating_sub(began));
        }
    }

    fn tally(&self, name: &Arc<str>) -> Arc<Tally> {
        Arc::clone(self.tallies.lock().entry(Arc::clone(name)).or_default())
    }
}

fn answer(due: &Due, tier: Tier, verdict: Verdict, overflown: bool) -> Answer {
    let kind = match (overflown, verdict.allowed) {
        (false, true) => VerdictKind::Allowed,
        (false, false) => VerdictKind::Denied,
        (true, true) => VerdictKind::OverflowAllowed,
        (true, false) => VerdictKind::OverflowDenied,
    };
    Answer {
        limit: due.limit,
        tier,
        kind,
        verdict,
        cost: due.cost,
        shadow: false,
        authenticated: due.authenticated,
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}
