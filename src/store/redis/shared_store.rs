//! The shared store as the engine uses it: settles, refunds and debits charges in servers that many nodes share.
//!
//! It puts together the batcher, which sends charges, the cache of denials, and the tasks that report unreported
//! usage and share bans. It does not know limits or requests. Nothing here blocks a thread; only
//! [`SharedStore::settle`] and [`SharedStore::wait_until_up`] wait.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use smallvec::SmallVec;

use super::batcher::{Batcher, UNATTENDED_TIMEOUT};
use super::charge::{CellCharge, ChargeReply, Operation, StoreCharge};
use super::denial_cache::{DenialCache, DenialKey};
use super::failure::StoreFailure;
use super::metrics::StoreMetrics;
use super::reporter;
use super::transport::{Readiness, StoreTransport};
use super::unreported::UnreportedReceipt;
use crate::clock::{Clock, Nanos, Now};
use crate::limit::Verdict;
use crate::policy::KeyHash;
use crate::store::Bans;

/// The time between two checks whether the store answers.
const UP_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// A store that many nodes share.
pub struct SharedStore {
    batcher: Arc<Batcher>,
    denials: DenialCache,
    /// Set once the task that shares bans is started.
    shares_bans: OnceLock<()>,
}

impl SharedStore {
    /// A store behind another transport than the real one, on the current Tokio runtime. For tests.
    pub fn with_transport(
        transport: Arc<dyn StoreTransport>,
        prefix: String,
        timeout: Duration,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Self::new(transport, prefix, timeout, clock, 0)
    }

    pub(super) fn new(
        transport: Arc<dyn StoreTransport>,
        prefix: String,
        timeout: Duration,
        clock: Arc<dyn Clock>,
        first_call: u32,
    ) -> Arc<Self> {
        let batcher = Batcher::start(Arc::clone(&transport), prefix, timeout, clock, first_call);
        let (denials, shares_bans) = (DenialCache::default(), OnceLock::new());
        let store = Arc::new(Self { batcher, denials, shares_bans });
        tokio::spawn(reporter::run(Arc::downgrade(&store), transport, u64::from(first_call)));
        store
    }

    /// Waits until the store answers, but no longer than `limit`. Returns whether it answers.
    pub async fn wait_until_up(&self, limit: Duration) -> bool {
        let up = async {
            while !self.is_up() {
                tokio::time::sleep(UP_CHECK_INTERVAL).await;
            }
        };
        tokio::time::timeout(limit, up).await.is_ok()
    }

    /// Whether every server that keeps cells answers.
    pub fn is_up(&self) -> bool {
        self.batcher.transport.is_up()
    }

    /// Bytes of memory that the servers report to use.
    pub fn bytes(&self) -> u64 {
        self.batcher.transport.bytes()
    }

    /// Whether a server may evict cells that have not refilled.
    pub fn may_evict(&self) -> bool {
        self.batcher.transport.may_evict()
    }

    /// Whether a server writes nothing to disk.
    pub fn lacks_persistence(&self) -> bool {
        self.batcher.transport.lacks_persistence()
    }

    /// The longest time that a decision waits for the store.
    pub fn timeout(&self) -> Duration {
        self.batcher.timeout
    }

    /// Counters of calls and charges.
    pub fn metrics(&self) -> &StoreMetrics {
        &self.batcher.metrics
    }

    /// Whether cells lie in slots, as in a Cluster. The cells of a family share a slot.
    pub fn has_slots(&self) -> bool {
        self.batcher.has_slots
    }

    /// The slot of a charge's cell. Charges in one slot can be settled together.
    pub fn slot(&self, charge: &CellCharge) -> u16 {
        self.batcher.slot(charge.cell_name())
    }

    /// Whether the server of a charge is known to be away, so that the charge would fail at once.
    pub fn is_away(&self, charge: &CellCharge) -> bool {
        self.batcher.transport.readiness(self.slot(charge)) == Readiness::Away
    }

    /// The cached denial of a charge, if the store denied it a moment ago.
    pub fn cached_denial(
        &self,
        charge: &CellCharge,
        generation: u64,
        now: Nanos,
    ) -> Option<Verdict> {
        if charge.refundable {
            None
        } else {
            self.denials.get(charge.denial_key(), generation, now)
        }
    }

    /// Charges all cells or none ([`Operation::Charge`]), or only judges them ([`Operation::Check`]). All cells are
    /// in one [slot](SharedStore::slot). Ends by `deadline`. Denials are cached for `generation`, with `now`, which
    /// is before the store is asked.
    ///
    /// Dropping the future withdraws a charge that was not sent yet. A charge that was sent stays charged.
    pub async fn settle(
        &self,
        charge: StoreCharge,
        generation: u64,
        deadline: Nanos,
        now: Nanos,
    ) -> Result<ChargeReply, StoreFailure> {
        // The denial of a refundable charge is not cached: a refund may make it wrong at any time.
        let cacheable = |charge: &CellCharge| (!charge.refundable).then(|| charge.denial_key());
        let denial_keys: SmallVec<[Option<DenialKey>; 4]> =
            charge.cell_charges.iter().map(cacheable).collect();
        let reply = self.batcher.submit(charge, deadline)?.await?;
        for (key, cell) in denial_keys.into_iter().zip(&reply.cells) {
            if let Some(key) = key
                && !cell.verdict.allowed
            {
                self.denials.record(key, generation, now, cell.verdict);
            }
        }
        Ok(reply)
    }

    /// Refunds charges that were made at an instant of the store's clock. `log_chunk` of each is taken from the
    /// reply to the charge. The caller does not wait.
    pub fn refund(&self, charges: SmallVec<[CellCharge; 4]>, at: u64) {
        self.submit(Operation::Refund(at), charges);
    }

    /// Refunds some units of a charge that was made at an instant of the store's clock. Its `log_chunk` is taken
    /// from the reply to the charge. The caller does not wait.
    pub fn refund_units(&self, charge: CellCharge, units: u32, at: u64) {
        self.submit(Operation::Refund(at), SmallVec::from_iter([charge.limited_to(units)]));
    }

    /// Charges a cell without a judgement. The caller does not wait.
    pub fn debit(&self, charge: CellCharge) {
        self.submit(Operation::Debit, SmallVec::from_iter([charge]));
    }

    fn submit(&self, operation: Operation, cell_charges: SmallVec<[CellCharge; 4]>) {
        let deadline = self.batcher.clock.now().mono.saturating_add(UNATTENDED_TIMEOUT);
        self.batcher.submit_unattended(StoreCharge { operation, cell_charges }, deadline);
    }

    /// Whether nothing is left that the store was not told of: charges, what was admitted without it, and bans.
    pub fn has_told(&self, bans: &Bans) -> bool {
        self.is_quiet()
            && self.batcher.unreported.is_empty()
            && (self.shares_bans.get().is_none() || bans.are_told())
    }

    /// Whether no charge is queued or in a call.
    pub fn is_quiet(&self) -> bool {
        self.batcher.is_quiet()
    }

    /// Records a charge that this node admitted without the store, to be reported later. This must not be used for a
    /// charge whose failure [may have charged](StoreFailure::may_have_charged), which counts as charged. `None`: the
    /// list has no room for it, and the store is never told.
    pub fn record_unreported(&self, charge: &CellCharge, now: Now) -> Option<UnreportedReceipt> {
        self.batcher.unreported.record(charge, now, &self.batcher.metrics)
    }

    /// Refunds some units of a charge that this node admitted without the store: before it is reported, or in the
    /// store. Returns false if nobody knows whether the store was told of it; then nothing is refunded.
    #[must_use]
    pub fn refund_unreported(&self, charge: &UnreportedReceipt, units: u32, now: Now) -> bool {
        let refunds = self.batcher.unreported.refund(charge, units, now);
        let is_refunded = refunds.is_some();
        self.batcher.send_refunds(refunds.unwrap_or_default());
        is_refunded
    }

    /// Shares the bans of this node with other nodes, from now on. Further calls do nothing.
    pub fn share_bans(self: &Arc<Self>, bans: &Arc<Bans>) {
        if self.shares_bans.set(()).is_ok() {
            Arc::clone(&self.batcher.transport).share_bans(Arc::clone(bans));
        }
    }

    pub(super) fn forget_denials(&self, key: KeyHash) {
        self.denials.forget(key);
    }

    pub(super) fn batcher(&self) -> &Batcher {
        &self.batcher
    }
}

impl Drop for SharedStore {
    fn drop(&mut self) {
        self.batcher.close();
    }
}
