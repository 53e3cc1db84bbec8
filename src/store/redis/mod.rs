//! The exact tier in servers that speak the protocol of Redis: one number for every node.
//!
//! ```text
//!   settle -> batcher (queue -> batch -> call) -> StoreTransport (servers, slots, redirects)
//! ```
//!
//! A charge that may have been spent is never sent again.

mod address;
mod bans;
mod batch;
mod batcher;
mod call;
mod call_task;
mod cell_name;
mod charge;
mod circuit_breaker;
mod connection;
mod denial_cache;
mod failure;
mod metrics;
mod pending;
mod queue;
mod redis_transport;
mod reporter;
mod script;
mod server;
mod server_storage;
mod server_task;
mod slots;
mod topology;
mod transport;
mod unreported;
mod worker;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::{Clock, Nanos, Now};
use crate::limit::{Receipt, Verdict};

pub use address::{Address, Login, ServerDiscovery, StoreSettings, StoreTls};
pub use call::{Argument, Arguments, Call, CallFull};
pub use charge::{CellCharge, CellReply, ChargeReply, Operation, StoreCharge};
pub use failure::StoreFailure;
pub use metrics::{CallOutcome, StoreMetrics};
pub use script::SCRIPT;
pub use transport::{Readiness, StoreTransport};

use batcher::Batcher;
use denial_cache::DenialCache;
use redis_transport::RedisTransport;

/// Between two looks at whether the store answers.
const SOON: Duration = Duration::from_millis(2);

/// How long a refund or a debit, which nobody waits for, may wait in the queue: longer than a
/// decision, since it is only late then, not refused.
const UNATTENDED_TIMEOUT: Nanos = Nanos::SECOND;

/// A store of many nodes.
pub struct SharedStore {
    batcher: Arc<Batcher>,
    /// The batcher's transport, where it leads to real servers.
    servers: Option<Arc<RedisTransport>>,
    denials: DenialCache,
    /// Whether bans are shared yet.
    shares_bans: OnceLock<()>,
}

impl SharedStore {
    /// Begins to connect, on the runtime that this is called in. Ready or not, charges can be
    /// settled: while no server answers they fail at once.
    pub fn start(settings: StoreSettings, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (prefix, timeout) = (settings.prefix.clone(), settings.timeout);
        let servers = RedisTransport::start(settings, Arc::clone(&clock));
        // Not from the same number each time: a late answer to another process is not ours.
        let first_call = fastrand::u32(..);
        let transport = Arc::clone(&servers) as Arc<dyn StoreTransport>;
        Self::with(transport, Some(servers), prefix, timeout, clock, first_call)
    }

    /// A store behind another transport, on the runtime that this is called in: for tests.
    pub fn with_transport(
        transport: Arc<dyn StoreTransport>,
        prefix: String,
        timeout: Duration,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Self::with(transport, None, prefix, timeout, clock, 0)
    }

    fn with(
        transport: Arc<dyn StoreTransport>,
        servers: Option<Arc<RedisTransport>>,
        prefix: String,
        timeout: Duration,
        clock: Arc<dyn Clock>,
        first_call: u32,
    ) -> Arc<Self> {
        let batcher = Batcher::start(Arc::clone(&transport), prefix, timeout, clock, first_call);
        let (denials, shares_bans) = (DenialCache::default(), OnceLock::new());
        let remote = Arc::new(Self { batcher, servers, denials, shares_bans });
        tokio::spawn(reporter::run(Arc::downgrade(&remote), transport, u64::from(first_call)));
        remote
    }

    /// Waits until the store answers, for `limit` at most. Returns whether it does.
    pub async fn wait_until_up(&self, limit: Duration) -> bool {
        let up = async {
            while !self.is_up() {
                tokio::time::sleep(SOON).await;
            }
        };
        tokio::time::timeout(limit, up).await.is_ok()
    }

    /// Whether every server that keeps something answers.
    pub fn is_up(&self) -> bool {
        self.batcher.transport.is_up()
    }

    /// Bytes that the servers hold, as they say.
    pub fn bytes(&self) -> u64 {
        self.servers.as_ref().map_or(0, |servers| servers.bytes())
    }

    /// Whether a server may drop cells that have not refilled.
    pub fn may_evict(&self) -> bool {
        self.servers.as_ref().is_some_and(|servers| servers.may_evict())
    }

    /// Whether a server keeps nothing on disk.
    pub fn lacks_persistence(&self) -> bool {
        self.servers.as_ref().is_some_and(|servers| servers.lacks_persistence())
    }

    /// How long a decision waits at most.
    pub fn timeout(&self) -> Duration {
        self.batcher.timeout
    }

    /// How calls and charges ended.
    pub fn metrics(&self) -> &StoreMetrics {
        &self.batcher.metrics
    }

    /// Whether cells lie in slots, those of a family together.
    pub fn has_slots(&self) -> bool {
        self.batcher.has_slots
    }

    /// Cells that can be charged together have the same slot.
    pub fn slot(&self, spend: &CellCharge) -> u16 {
        self.batcher.slot(spend.cell_name())
    }

    /// Whether the server of a charge is known to be away: the charge would fail at once.
    pub fn is_away(&self, spend: &CellCharge) -> bool {
        self.batcher.transport.readiness(self.slot(spend)) == Readiness::Away
    }

    /// The cached denial of a charge, if the store denied it a moment ago.
    pub fn cached_denial(
        &self,
        spend: &CellCharge,
        generation: u64,
        now: Nanos,
    ) -> Option<Verdict> {
        if spend.refundable { None } else { self.denials.get(spend.denial_key(), generation, now) }
    }

    /// Charges or asks all parts or none ([`Operation::Charge`], [`Operation::Check`]); the parts have the same
    /// [`SharedStore::slot`]. Ends by `deadline`. Denials are cached for `generation`; `now` is any
    /// instant before.
    ///
    /// Dropping the future withdraws a charge that was not sent; one that was sent stays charged.
    pub async fn settle(
        &self,
        charge: StoreCharge,
        generation: u64,
        deadline: Nanos,
        now: Nanos,
    ) -> Result<ChargeReply, StoreFailure> {
        // What is refundable has no denial key, because its denials are not cached.
        let denial_keys: SmallVec<[_; 4]> = charge
            .cell_charges
            .iter()
            .map(|cell_charge| (!cell_charge.refundable).then(|| cell_charge.denial_key()))
            .collect();
        let reply = self.batcher.submit(charge, deadline)?.await?;
        for (denial_key, cell) in denial_keys.into_iter().zip(&reply.cells) {
            if let Some(denial_key) = denial_key
                && !cell.verdict.allowed
            {
                self.denials.record(denial_key, generation, now, cell.verdict);
            }
        }
        Ok(reply)
    }

    /// Refunds what was charged at an instant of the store's clock; `log_chunk` of each is what the store
    /// replied then. Nobody waits for it.
    pub fn refund(&self, spends: SmallVec<[CellCharge; 4]>, at: u64) {
        self.submit(Operation::Refund(at), spends);
    }

    /// Refunds some units of a charge that was made at an instant of the store's clock; its
    /// `log_chunk` is what the store replied then. Nobody waits for it.
    pub fn refund_units(&self, spend: CellCharge, units: u32, at: u64) {
        self.submit(Operation::Refund(at), SmallVec::from_iter([spend.limited_to(units)]));
    }

    /// Charges without judging; nobody waits for it.
    pub fn debit(&self, spend: CellCharge) {
        self.submit(Operation::Debit, SmallVec::from_iter([spend]));
    }

    fn submit(&self, order: Operation, spends: SmallVec<[CellCharge; 4]>) {
        let deadline = self.batcher.clock.now().mono.saturating_add(UNATTENDED_TIMEOUT);
        self.batcher
            .submit_unattended(StoreCharge { operation: order, cell_charges: spends }, deadline);
    }

    /// Whether no charge waits or is away.
    pub fn is_quiet(&self) -> bool {
        self.batcher.is_quiet()
    }

    /// Records what this node admitted by itself, to be reported to the store later. Not for a
    /// charge whose failure [may have charged](StoreFailure::may_have_charged): it counts as charged.
    pub fn record_unreported(&self, spend: &CellCharge, now: Now) {
        self.batcher.unreported.record(spend, now, &self.batcher.metrics);
    }

    /// What this node admitted by itself is refunded.
    pub fn refund_unreported(&self, spend: &CellCharge, units: u32, receipt: Receipt, now: Now) {
        self.batcher.unreported.refund(spend, units, receipt, now);
    }
}

impl Drop for SharedStore {
    fn drop(&mut self) {
        self.batcher.close();
    }
}
