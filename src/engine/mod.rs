//! From the facts of a request to a decision.
//!
//! The engine owns what outlives a configuration: the store, the confirm table, the counters by
//! limit name, the secret of the keys and the clock. A [`Generation`] is one loaded policy. A
//! request is decided under one generation from beginning to end.

mod aside;
mod connect;
mod decision;
mod due;
mod exceptions;
mod generation;
mod penalties;
mod pending;
mod remote;
mod settle;
mod tally;
mod trial;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::{Clock, Nanos, Now};
use crate::estimator::ConfirmTable;
use crate::policy::{Facts, KeySecret, Policy, Tier};
use crate::store::redis::Remote;
use crate::store::{Bans, Embedded};

pub use decision::{Answer, Decision, Outcome};
pub use due::{Due, Dues, Unclean};
pub use generation::{Generation, ReloadReport};
pub use pending::{Pending, Said};
pub use tally::{Durations, Tally, VerdictKind};
pub use trial::{Trial, TrialKind};

/// Shards of the store that one turn of the housekeeping sweeps: all of them in 3 to 4 seconds.
const SWEEP_SHARDS: usize = 128;

/// One decision in this many is timed; a power of two.
const TIMED_ONE_IN: u64 = 64;

/// What decides, and what it has counted so far.
pub struct Engine {
    clock: Arc<dyn Clock>,
    secret: KeySecret,
    store: Embedded,
    /// Where the exact tier counts for many nodes; `None`: in `store`.
    remote: Option<Arc<Remote>>,
    confirm: ConfirmTable,
    bans: Arc<Bans>,
    /// Charges that are on their way to the store while nobody waits for them.
    asides: Arc<AtomicUsize>,
    generations: AtomicU64,
    /// Counters by limit name: they never start again while the process lives.
    tallies: Mutex<HashMap<Arc<str>, Arc<Tally>>>,
    durations: Durations,
}

impl Engine {
    /// An engine without any count. `secret` makes the hashes of its keys.
    pub fn new(clock: Arc<dyn Clock>, secret: KeySecret) -> Self {
        Self {
            clock,
            secret,
            store: Embedded::default(),
            remote: None,
            confirm: ConfirmTable::default(),
            bans: Arc::default(),
            asides: Arc::default(),
            generations: AtomicU64::new(0),
            tallies: Mutex::default(),
            durations: Durations::default(),
        }
    }

    /// An engine whose exact tier counts in a store of many nodes. `secret` is theirs in common.
    pub fn with_store(clock: Arc<dyn Clock>, secret: KeySecret, remote: Arc<Remote>) -> Self {
        Self { remote: Some(remote), ..Self::new(clock, secret) }
    }

    /// The store of many nodes, if there is one.
    pub const fn remote(&self) -> Option<&Arc<Remote>> {
        self.remote.as_ref()
    }

    /// The present instant on the engine's clock.
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// The date at an instant that the engine's clock has just given.
    pub fn date(&self, at: Now) -> Nanos {
        self.clock.date(at)
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
        if let Some(remote) = &self.remote
            && generation.bans
        {
            remote.share_bans(&self.bans);
        }
        self.store.share_out(generation.policy().max_keys, &generation.rooms());
        (generation, report)
    }

    /// Decides a request. Waits for nothing, unless the route has an exact limit and the store is
    /// of many nodes: then for one answer of it, or its deadline.
    ///
    /// Hold [`Pending`] until the request has ended, and tell [`Engine::finish`] of the answer.
    pub async fn decide(&self, generation: &Generation, facts: &Facts<'_>) -> (Decision, Pending) {
        let mut decided = (generation.undecided(self.now()), Pending::default());
        self.decide_into(generation, facts, &mut decided.0, &mut decided.1).await;
        decided
    }

    /// The same, for callers that have just read the engine's clock and have a place for what is
    /// decided: a [`Generation::undecided`] decision, and an empty [`Pending`].
    pub async fn decide_into(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
        decision: &mut Decision,
        pending: &mut Pending,
    ) {
        match &self.remote {
            None => self.decide_alone(generation, facts, decision, pending),
            // Boxed, so that those who wait for nothing do not carry its state along.
            Some(remote) => {
                Box::pin(self.decide_with(remote, generation, facts, decision, pending)).await;
            }
        }
    }

    /// The same without a store of many nodes, for nothing has to be waited for then.
    pub(crate) fn decide_alone(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
        decision: &mut Decision,
        pending: &mut Pending,
    ) {
        let mut dues = Dues::new();
        if self.begin(generation, facts, decision, &mut dues) {
            let stored = dues.iter().filter(|due| generation.is_stored(due));
            self.store.prefetch(stored.map(|due| due.key));
            if !self.banned(generation, &dues, decision) {
                self.settle(generation, &dues, decision, pending);
            }
            self.end(generation, &dues, decision);
        }
    }

    async fn decide_with(
        &self,
        remote: &Arc<Remote>,
        generation: &Generation,
        facts: &Facts<'_>,
        decision: &mut Decision,
        pending: &mut Pending,
    ) {
        let mut dues = Dues::new();
        if self.begin(generation, facts, decision, &mut dues) {
            if !self.banned(generation, &dues, decision) {
                if generation.any_stored(&dues) {
                    self.settle_remote(remote, generation, &dues, decision, pending).await;
                } else {
                    self.settle(generation, &dues, decision, pending);
                }
            }
            self.end(generation, &dues, decision);
        }
    }

    /// What [`Engine::decide`] does with an embedded store, for callers that cannot wait.
    pub fn decide_embedded(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
    ) -> (Decision, Pending) {
        let mut decided = (generation.undecided(self.now()), Pending::default());
        self.decide_alone(generation, facts, &mut decided.0, &mut decided.1);
        decided
    }

    /// Puts the answers in the order of the route, and books what was decided.
    fn end(&self, generation: &Generation, dues: &[Due], decision: &mut Decision) {
        if decision.answers.len() > 1 {
            let place = |limit| dues.iter().position(|due| due.limit == limit);
            decision.answers.sort_by_key(|answer| place(answer.limit));
        }
        self.punish(generation, dues, decision);
        generation.book(decision);
        self.time(decision);
    }

    /// The route, and what is due under its limits, into an empty list; `false`: nothing is, and the
    /// decision stands.
    fn begin(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
        decision: &mut Decision,
        dues: &mut Dues,
    ) -> bool {
        let policy = generation.policy();
        decision.date = facts.now;
        let Some(place) = policy.find(facts) else {
            return false;
        };
        decision.route = Some(place);
        if !due::reads_alike(generation, facts, place) {
            decision.outcome = Outcome::AmbiguousPath;
            return false;
        }
        decision.outcome = Outcome::Allowed;
        let route = policy.route(place);
        if route.limits.is_empty() || route.exempt.covers(facts) {
            return false;
        }
        match due::dues(generation, facts, place, dues) {
            Ok(()) => return true,
            Err(Unclean::Missing { limit, status }) => {
                decision.outcome = Outcome::MissingKey { limit, status };
            }
            Err(Unclean::Repeated { limit }) => {
                decision.outcome = Outcome::RepeatedKey { limit };
            }
        }
        false
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

    /// Whether nothing is on its way to the store.
    pub fn is_quiet(&self) -> bool {
        self.asides.load(Ordering::Acquire) == 0
            && self.remote.as_ref().is_none_or(|remote| remote.is_quiet())
    }

    /// Who is banned.
    pub const fn bans(&self) -> &Arc<Bans> {
        &self.bans
    }

    /// Quotas that cells of the store can be written under now: does not grow with reloads.
    pub fn issued_quotas(&self) -> usize {
        self.store.issued_quotas()
    }

    /// How long decisions take.
    pub const fn durations(&self) -> &Durations {
        &self.durations
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

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}
