//! The engine's state: what outlives a configuration.
//!
//! Counters and cell budgets are kept by a limit's name, so that they survive reloads, also if a limit is removed
//! and later added again. Decisions are made in `decide.rs`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::counters::Durations;
use super::decision::Decision;
use super::delay_slots::DelaySlots;
use super::event_order::EventOrder;
use super::exact::ExactTier;
use super::fleet::{Fleet, FleetProgress};
use super::generation::{Generation, GenerationContext};
use super::limit_registry::LimitRegistry;
use super::reload_report::ReloadReport;
use super::succession::Succession;
use crate::clock::{Clock, Nanos, Now};
use crate::estimator::{ConfirmTable, SharedInstant};
use crate::policy::{KeyRule, KeySecret, Policy};
#[cfg(feature = "bin")]
use crate::store::CellBudget;
use crate::store::redis::SharedStore;
use crate::store::{Bans, InFlightCounts, SHARDS};

/// Shards of the embedded store that one tick sweeps: all of them in 3 to 4 seconds.
const SWEEP_SHARDS: usize = 128;

/// So many sweeps visit every cell.
pub(crate) const SWEEPS_OF_ALL: u64 = SHARDS.div_ceil(SWEEP_SHARDS) as u64;

/// Decides requests. One engine serves all generations of the process.
pub struct Engine {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) secret: KeySecret,
    pub(super) exact: ExactTier,
    pub(super) confirm: ConfirmTable,
    pub(super) bans: Arc<Bans>,
    pub(super) delay_slots: DelaySlots,
    pub(super) events: EventOrder,
    /// The number of unfinished background charges in the shared store.
    pub(super) background: Arc<AtomicUsize>,
    /// The number of configurations that generations were built from.
    configurations: AtomicU64,
    /// The number of generations built.
    generations: AtomicU64,
    registry: Arc<LimitRegistry>,
    pub(super) durations: Durations,
    unsaved: AtomicU64,
    /// Rules that operators made for keys.
    pub(super) key_rules: Mutex<Arc<[KeyRule]>>,
    /// How the exchange of counts between nodes goes.
    fleet: Fleet,
    /// When this process began (monotonic).
    pub(super) began: Nanos,
    pub(super) succession: Succession,
    /// The counts of requests in flight that a successor has.
    pub(super) handed_in_flight: Mutex<Vec<Arc<InFlightCounts>>>,
}

impl Engine {
    /// An engine that counts in this process. `secret` keys the hashes of all keys.
    pub fn new(clock: Arc<dyn Clock>, secret: KeySecret) -> Self {
        Self {
            began: clock.now().mono,
            clock,
            secret,
            exact: ExactTier::default(),
            confirm: ConfirmTable::default(),
            bans: Arc::default(),
            delay_slots: DelaySlots::default(),
            events: EventOrder::default(),
            background: Arc::default(),
            configurations: AtomicU64::new(0),
            generations: AtomicU64::new(0),
            registry: Arc::default(),
            durations: Durations::default(),
            unsaved: AtomicU64::new(0),
            key_rules: Mutex::new(Arc::from([])),
            fleet: Fleet::default(),
            succession: Succession::default(),
            handed_in_flight: Mutex::default(),
        }
    }

    /// An engine that counts in this process, with a random secret.
    ///
    /// # Errors
    ///
    /// The operating system gives no random bytes for the secret of the keys.
    pub fn embedded(clock: Arc<dyn Clock>) -> Result<Self, getrandom::Error> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret)?;
        Ok(Self::new(clock, KeySecret::new(secret)))
    }

    /// An engine whose exact tier counts in a shared store. All nodes must have the same `secret`.
    pub fn with_store(clock: Arc<dyn Clock>, secret: KeySecret, shared: Arc<SharedStore>) -> Self {
        let exact = ExactTier { shared: Some(shared), ..ExactTier::default() };
        Self { exact, ..Self::new(clock, secret) }
    }

    /// The engine of another node, which has the exact limits and their cells in common with this one, as nodes with one
    /// shared store have. Everything else is its own. `secret`: that of this engine.
    #[cfg(feature = "bin")]
    pub(crate) fn with_same_cells(&self, secret: KeySecret) -> Self {
        let exact = ExactTier {
            embedded: self.exact.embedded.with_same_cells(),
            shared: self.exact.shared.clone(),
        };
        // Cells are counted in the budgets of their limits, which are found by the limits' names.
        let registry = Arc::clone(&self.registry);
        Self { exact, registry, ..Self::new(Arc::clone(&self.clock), secret) }
    }

    /// The shared store, if there is one.
    pub const fn remote(&self) -> Option<&Arc<SharedStore>> {
        self.exact.shared.as_ref()
    }

    /// The cell budget of the limit of this name.
    #[cfg(feature = "bin")]
    pub(super) fn cell_budget(&self, limit: &Arc<str>) -> Arc<CellBudget> {
        self.registry.obtain_budget(limit)
    }

    /// Waits until what a decision has charged is on the disk, if it has to be. Returns at once if the disk fails: a failing
    /// disk must not refuse requests.
    pub async fn until_saved(&self, decision: &Decision) {
        if let Some(batch) = decision.save
            && !self.exact.embedded.saves().wait(batch).await
        {
            self.unsaved.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether what a decision has charged is on the disk, as far as it has to be.
    pub fn is_saved(&self, decision: &Decision) -> bool {
        decision.save.is_none_or(|batch| self.exact.embedded.saves().saved() >= batch)
    }

    /// Requests that were forwarded although their charges were not on the disk.
    pub fn unsaved(&self) -> u64 {
        self.unsaved.load(Ordering::Relaxed)
    }

    /// The secret of the keys' hashes.
    #[cfg(feature = "bin")]
    pub(crate) const fn secret_bytes(&self) -> [u8; 16] {
        self.secret.bytes()
    }

    /// The engine's clock.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    /// The present time on the engine's clock.
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// The date at a time that the engine's clock has just given.
    pub fn date(&self, at: Now) -> Nanos {
        self.clock.date(at)
    }

    /// Builds the next generation, with the present rules for keys. It decides nothing until the caller publishes it.
    /// Limits of `previous` pass their counters on by name; the store's quotas and budgets change at once.
    pub fn generation(
        &self,
        policy: Policy,
        previous: Option<&Generation>,
    ) -> (Generation, ReloadReport) {
        let number = self.configurations.fetch_add(1, Ordering::Relaxed) + 1;
        self.generation_numbered(number, policy, previous)
    }

    /// Builds a generation of the configuration with this number.
    pub(super) fn generation_numbered(
        &self,
        number: u64,
        policy: Policy,
        previous: Option<&Generation>,
    ) -> (Generation, ReloadReport) {
        let policy = policy.with_key_rules(&self.key_rules());
        let epoch = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        let context = GenerationContext {
            registry: &self.registry,
            embedded: &self.exact.embedded,
            secret: &self.secret,
            has_slots: self.remote().is_some_and(|shared| shared.has_slots()),
            now: self.now(),
        };
        let (generation, report) = Generation::build(context, (number, epoch), policy, previous);
        if let Some(shared) = self.remote()
            && generation.has_penalties
        {
            shared.share_bans(&self.bans);
        }
        let max_keys = generation.policy().max_keys;
        self.exact.embedded.set_budgets(max_keys, &generation.cell_budgets());
        (generation, report)
    }

    /// Rotates the sketches and sweeps a part of the cells. One task calls it about ten times a second; a late call
    /// makes the estimate tier count too much until it comes.
    pub fn tick(&self, generation: &Generation) {
        self.rotate_sketches(generation);
        self.sweep();
    }

    /// Begins new windows of the sketches, where the present ones are over.
    pub(crate) fn rotate_sketches(&self, generation: &Generation) {
        let now = self.now();
        for estimate in generation.estimates() {
            estimate.rotate(&self.confirm, now);
        }
    }

    /// Frees cells that have the value of an absent one, in a part of the tables.
    pub(crate) fn sweep(&self) {
        let now = self.now();
        self.confirm.sweep(now);
        self.exact.embedded.sweep(SWEEP_SHARDS, now);
    }

    /// Whether a limit may soon have no room for a new key, so that it matters which idle cells have been swept.
    pub(crate) fn may_lack_room(&self, generation: &Generation) -> bool {
        let embedded = &self.exact.embedded;
        generation.exact_budgets().any(|budget| embedded.may_lack_room(budget))
    }

    /// How the exchange of counts between nodes goes.
    pub const fn fleet_progress(&self) -> &FleetProgress {
        &self.fleet.progress
    }

    pub(super) const fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Whether requests are judged by the counts of this engine, and not by a successor's.
    pub(super) fn counts_here(&self) -> bool {
        self.succession.is_here()
    }

    /// The present time by the clock that divides windows of the estimate tier.
    pub(super) fn shared_instant(&self) -> SharedInstant {
        self.confirm.clock().read(self.now())
    }

    /// The secret of the keys.
    pub(super) const fn key_secret(&self) -> &KeySecret {
        &self.secret
    }

    /// The table that counts the suspects of the estimate tier.
    pub const fn confirm_table(&self) -> &ConfirmTable {
        &self.confirm
    }

    /// Whether nothing is waiting to be sent to the shared store.
    pub fn is_quiet(&self) -> bool {
        self.background.load(Ordering::Acquire) == 0
            && self.remote().is_none_or(|shared| shared.is_quiet())
    }

    /// Whether the shared store was told of everything that this process admitted and banned.
    pub fn has_told_store(&self) -> bool {
        self.remote().is_none_or(|shared| shared.has_told(&self.bans))
    }

    /// Whether the shared store would be told now. It is, without one.
    pub fn could_tell_store(&self) -> bool {
        self.remote().is_none_or(|shared| shared.is_up())
    }

    /// The number of taken delay slots: requests that are delayed, and those being judged that may be.
    pub fn delayed_requests(&self) -> usize {
        self.delay_slots.taken()
    }

    /// The bans in force.
    pub const fn bans(&self) -> &Arc<Bans> {
        &self.bans
    }

    /// The number of quotas under which cells of the embedded store can be written. It does not grow with reloads.
    pub fn issued_quotas(&self) -> usize {
        self.exact.embedded.issued_quotas()
    }

    /// The memory of the cells in this process in bytes, logs and free slots included. It locks every shard in turn:
    /// not for the request path.
    pub fn cell_bytes(&self) -> usize {
        self.exact.embedded.bytes()
    }

    /// How long decisions take.
    pub const fn durations(&self) -> &Durations {
        &self.durations
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}
