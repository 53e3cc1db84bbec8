//! From the facts of a request to a decision.
//!
//! The engine owns what outlives a configuration: the store, the confirm table, the counters by
//! limit name, the secret of the keys and the clock. A [`Generation`] is one loaded policy. A
//! request is decided under one generation from beginning to end.

mod background;
mod connect;
mod counters;
mod decision;
mod embedded;
mod exact;
mod exceptions;
mod generation;
mod overflow;
mod penalties;
mod pending;
mod shadow;
mod shared;
mod target;
mod tentative;
mod trial;
mod unchecked;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::{Clock, Nanos, Now};
use crate::estimator::ConfirmTable;
use crate::policy::{Facts, KeySecret, Policy, Tier};
use crate::store::redis::SharedStore;
use crate::store::{Bans, CellBudget};

pub use counters::{Durations, LimitCounters, VerdictKind};
pub use decision::{Decision, LimitVerdict, Outcome};
pub use generation::{Generation, ReloadReport};
pub use pending::{FinalResponse, PendingSettlement};
pub use trial::{CandidateComparison, CandidateVerdict};

use exact::{ExactOutcome, ExactPart, ExactRequest, ExactTier, Settled};
use target::{Target, Targets};
use tentative::Tentative;
use unchecked::Found;
use waiting::WaitingRoom;

/// Shards of the store that one turn of the housekeeping sweeps: all of them in 3 to 4 seconds.
const SWEEP_SHARDS: usize = 128;

/// One decision in this many is timed; a power of two.
const TIMED_ONE_IN: u64 = 64;

/// A request that the exact tier has yet to judge. Dropping it frees its slots in flight and gives
/// nothing else back, as every request that is aborted.
#[must_use = "the request is not decided yet"]
#[derive(Default)]
pub(crate) struct Unsettled {
    targets: Targets,
    tentative: Tentative,
    /// What becomes of it if no limit refuses it: its token was checked, and is no key.
    rejected: Option<Outcome>,
    /// Whether a token was checked for it that is no true one: its client pays for that, whatever
    /// becomes of the request.
    owes_check: bool,
}

/// What decides, and what it has counted so far.
pub struct Engine {
    clock: Arc<dyn Clock>,
    secret: KeySecret,
    exact: ExactTier,
    confirm: ConfirmTable,
    bans: Arc<Bans>,
    waiting_room: WaitingRoom,
    /// Charges in the shared store that no request waits for.
    background: Arc<AtomicUsize>,
    generations: AtomicU64,
    /// Counters by limit name: they never start again while the process lives.
    counters: Mutex<HashMap<Arc<str>, Arc<LimitCounters>>>,
    /// Rooms by limit name: the cells of a limit that is dropped and comes back lie in the room that
    /// they were counted in.
    rooms: Mutex<HashMap<Arc<str>, Arc<CellBudget>>>,
    durations: Durations,
}

impl Engine {
    /// An engine without any count. `secret` makes the hashes of its keys.
    pub fn new(clock: Arc<dyn Clock>, secret: KeySecret) -> Self {
        Self {
            clock,
            secret,
            exact: ExactTier::default(),
            confirm: ConfirmTable::default(),
            bans: Arc::default(),
            waiting_room: WaitingRoom::default(),
            background: Arc::default(),
            generations: AtomicU64::new(0),
            counters: Mutex::default(),
            rooms: Mutex::default(),
            durations: Durations::default(),
        }
    }

    /// An engine whose exact tier counts in a store of many nodes. `secret` is theirs in common.
    pub fn with_store(clock: Arc<dyn Clock>, secret: KeySecret, remote: Arc<SharedStore>) -> Self {
        let exact = ExactTier { shared: Some(remote), ..ExactTier::default() };
        Self { exact, ..Self::new(clock, secret) }
    }

    /// The store that many nodes share, if there is one.
    pub const fn remote(&self) -> Option<&Arc<SharedStore>> {
        self.exact.shared.as_ref()
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
        if let Some(remote) = self.remote()
            && generation.bans
        {
            remote.share_bans(&self.bans);
        }
        self.exact.embedded.set_budgets(generation.policy().max_keys, &generation.rooms());
        (generation, report)
    }

    /// Decides a request. It waits only where an exact limit counts in the shared store: for the
    /// answers of that store, and no longer than its timeout.
    ///
    /// Hold [`PendingSettlement`] until the request has ended, and tell [`Engine::finish`] of the answer.
    pub async fn decide(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
    ) -> (Decision, PendingSettlement) {
        let (mut decision, mut pending) =
            (generation.undecided(self.now()), PendingSettlement::default());
        let unsettled = self.begin(generation, facts, &mut decision, &mut pending);
        if let Some(unsettled) = unsettled {
            self.settle(generation, unsettled, &mut decision, &mut pending).await;
        }
        (decision, pending)
    }

    /// Decides a request without any wait, for callers that cannot. Exact limits of a shared store do
    /// as their `on_store_failure` says.
    pub fn decide_now(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
    ) -> (Decision, PendingSettlement) {
        let (mut decision, mut pending) =
            (generation.undecided(self.now()), PendingSettlement::default());
        let unsettled = self.begin(generation, facts, &mut decision, &mut pending);
        if let Some(mut unsettled) = unsettled {
            let mut settled = Settled::default();
            let outcome = {
                let request = self.exact_request(generation, &unsettled, &decision);
                self.exact.settle_without(&request, &mut settled)
            };
            let settled = (outcome, settled);
            self.conclude(generation, &mut unsettled, settled, &mut decision, &mut pending);
        }
        (decision, pending)
    }

    /// The part of [`Engine::decide`] that needs no wait, for callers that have a place for what is
    /// decided: a [`Generation::undecided`] decision and an empty [`PendingSettlement`]. `None`: it is decided.
    /// Otherwise the shared store has to be asked, by [`Engine::settle`].
    ///
    /// A future that holds facts and decision would cost as much as a decision.
    pub(crate) fn begin(
        &self,
        generation: &Generation,
        facts: &Facts<'_>,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) -> Option<Unsettled> {
        let mut unsettled = Unsettled::default();
        match self.find_targets(generation, facts, &mut unsettled, decision, pending) {
            Found::Targets => {}
            Found::Decided => return None,
        }
        let Unsettled { targets, tentative, owes_check, .. } = &mut unsettled;
        if self.remote().is_none() {
            let exact =
                targets.iter().filter(|target| generation.counting(target.limit).is_exact());
            self.exact.embedded.prefetch(exact.map(|target| target.key));
        }
        if self.banned(generation, targets, decision) {
            if *owes_check {
                self.charge_check(generation, targets, decision);
            }
            self.end(generation, targets, decision);
            return None;
        }
        self.charge_tentatively(generation, targets, decision, tentative);
        let mut settled = Settled::default();
        let outcome = {
            let request = self.exact_request(generation, &unsettled, decision);
            self.exact.settle_now(&request, &mut settled)
        };
        let Some(outcome) = outcome else {
            return Some(unsettled);
        };
        self.conclude(generation, &mut unsettled, (outcome, settled), decision, pending);
        None
    }

    /// Finishes what [`Engine::begin`] began: waits for the shared store.
    pub(crate) async fn settle(
        &self,
        generation: &Generation,
        mut unsettled: Unsettled,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        let mut settled = Settled::default();
        let outcome = {
            let request = self.exact_request(generation, &unsettled, decision);
            self.exact.settle(&request, &mut settled).await
        };
        self.conclude(generation, &mut unsettled, (outcome, settled), decision, pending);
    }

    /// What the exact tier is asked for.
    fn exact_request<'r>(
        &'r self,
        generation: &'r Generation,
        unsettled: &'r Unsettled,
        decision: &Decision,
    ) -> ExactRequest<'r> {
        let Unsettled { targets, tentative, .. } = unsettled;
        let may_wait = tentative.waiting.is_some();
        let part = |&index: &usize| ExactPart::new(generation, &targets[index], may_wait);
        ExactRequest {
            parts: tentative.exact.iter().filter_map(part).collect(),
            may_charge: decision.refusing().next().is_none(),
            generation: generation.number(),
            confirm: &self.confirm,
            now: decision.at,
            clock: &*self.clock,
        }
    }

    /// Makes the decision of what all tiers say, then asks shadow limits and candidates.
    fn conclude(
        &self,
        generation: &Generation,
        unsettled: &mut Unsettled,
        (outcome, mut settled): (ExactOutcome, Settled),
        decision: &mut Decision,
        pending: &mut PendingSettlement,
    ) {
        let (targets, tentative) = (&unsettled.targets, std::mem::take(&mut unsettled.tentative));
        decision.verdicts.extend(settled.verdicts);
        match outcome {
            ExactOutcome::Charged => {
                tentative.keep(decision.wait() > Nanos::ZERO, pending);
                pending.open.append(&mut settled.open);
            }
            ExactOutcome::Refused | ExactOutcome::Outage => {
                decision.outcome = match outcome {
                    ExactOutcome::Outage => Outcome::Outage,
                    ExactOutcome::Charged | ExactOutcome::Refused => Outcome::Limited,
                };
                self.give_back(generation, targets, tentative, decision);
                if unsettled.owes_check {
                    self.charge_check(generation, targets, decision);
                }
            }
        }
        self.watch_all(generation, targets, decision, pending);
        self.try_candidates(generation, targets, decision, pending);
        self.end(generation, targets, decision);
        if let (Outcome::Allowed, Some(rejected)) = (decision.outcome, unsettled.rejected) {
            self.reject(generation, rejected, decision, pending);
        }
    }

    /// Puts the answers in the order of the route, and counts what was decided.
    fn end(&self, generation: &Generation, targets: &[Target], decision: &mut Decision) {
        if decision.verdicts.len() > 1 {
            let index = |limit| targets.iter().position(|target| target.limit == limit);
            decision.verdicts.sort_by_key(|answer| index(answer.limit));
        }
        self.punish(generation, targets, decision);
        generation.record(decision);
        self.time(decision);
    }

    /// Turns sketches, sweeps a part of the store. Called ten times a second or so, by one task;
    /// called late, it only counts too much for a while.
    pub fn tick(&self, generation: &Generation) {
        let now = self.now();
        for estimate in generation.estimates() {
            estimate.rotate(now);
        }
        self.confirm.sweep(now);
        self.exact.embedded.sweep(SWEEP_SHARDS, now);
    }

    /// The table in which suspects of the estimate tier are counted.
    pub const fn confirm_table(&self) -> &ConfirmTable {
        &self.confirm
    }

    /// Whether nothing is on its way to the store.
    pub fn is_quiet(&self) -> bool {
        self.background.load(Ordering::Acquire) == 0
            && self.remote().is_none_or(|remote| remote.is_quiet())
    }

    /// Requests that wait for their turn, and those that are being judged and may have to.
    pub fn waiting(&self) -> usize {
        self.waiting_room.waiting()
    }

    /// Who is banned.
    pub const fn bans(&self) -> &Arc<Bans> {
        &self.bans
    }

    /// Quotas that cells of the store can be written under now: does not grow with reloads.
    pub fn issued_quotas(&self) -> usize {
        self.exact.embedded.issued_quotas()
    }

    /// Memory of the cells that this process keeps, logs and gaps included. Looks at every shard: not
    /// for the request path.
    pub fn cell_bytes(&self) -> usize {
        self.exact.embedded.bytes()
    }

    /// How long decisions take.
    pub const fn durations(&self) -> &Durations {
        &self.durations
    }

    /// Times one decision in [`TIMED_ONE_IN`], chosen by the low bits of its own time.
    fn time(&self, decision: &Decision) {
        let began = decision.at.mono;
        if (began.get() / 8).is_multiple_of(TIMED_ONE_IN) {
            let exact = decision.verdicts.iter().any(|answer| answer.tier == Tier::Exact);
            let tier = if exact { Tier::Exact } else { Tier::Estimate };
            self.durations.of(tier).record_span(self.now().mono.saturating_sub(began));
        }
    }

    fn room(&self, name: &Arc<str>) -> Arc<CellBudget> {
        Arc::clone(self.rooms.lock().entry(Arc::clone(name)).or_default())
    }

    fn counters(&self, name: &Arc<str>) -> Arc<LimitCounters> {
        Arc::clone(self.counters.lock().entry(Arc::clone(name)).or_default())
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}
