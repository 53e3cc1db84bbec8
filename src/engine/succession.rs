//! What an engine does whose counts belong to a successor (`run --upgrade`).
//!
//! From one instant on another process counts, while requests on old connections still arrive here. Their keys are found here,
//! under the policy that they began with; the successor judges and charges, and hears of every refund and end. Before that
//! instant everything is counted here, and also again when the successor is given up.
//!
//! ```text
//!   Here ──begin_switch──► Switching ──set_successor──► There
//!    ▲                         │                          │       the cells change hands shard by shard while Switching;
//!    └────────take_back────────┴──────────────────────────┘       a request whose cell is gone waits for the next state
//! ```
//!
//! What must always hold: a charge is made here or there. Only what the successor does not answer is charged here, in the cells
//! as they were, and it may be charged there too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::watch;

use crate::clock::{Nanos, Now};
use crate::limit::{Receipt, Verdict};
use crate::policy::KeyHash;

/// How long a request waits until the switch has ended. The switch has a shorter deadline of its own.
const MAX_WAIT: Duration = Duration::from_secs(3);

/// The engine that has the counts, in another process.
pub trait Successor: Send + Sync {
    /// Judges a request, and charges all of its limits or none.
    fn judge(&self, request: HandedRequest) -> BoxFuture<'static, SuccessorAnswer>;

    /// Tells what became of a request. It arrives before everything that is told or asked later.
    fn tell(&self, event: HandedEvent);
}

/// What the successor answers.
#[derive(Debug)]
pub enum SuccessorAnswer {
    /// It has judged.
    Judged(HeldJudgment),
    /// It has not answered in time, and may have charged. The judgment that comes later goes there.
    Silent(LateJudgment),
    /// It has ended, and what it was sent counts no more.
    Gone,
}

/// What becomes of a judgment that comes when nobody waits for it any more: its charges stay, unless the request was refused
/// or will be.
#[derive(Clone, Debug, Default)]
pub struct LateJudgment(Arc<Mutex<LateState>>);

#[derive(Debug, Default)]
struct LateState {
    is_refused: bool,
    /// The judgment, if it came before the request was settled.
    came: Option<(HeldJudgment, HandedRequest)>,
}

impl LateJudgment {
    /// The request was refused. Returns what the successor has to take back, if that is known already.
    #[must_use]
    pub(super) fn set_refused(&self) -> Option<(HeldJudgment, HandedRequest)> {
        let mut state = self.0.lock();
        state.is_refused = true;
        state.came.take()
    }

    /// The judgment has come. Returns it if the successor has to take it back.
    #[must_use]
    pub fn arrive(
        &self,
        held: HeldJudgment,
        request: HandedRequest,
    ) -> Option<(HeldJudgment, HandedRequest)> {
        let mut state = self.0.lock();
        let judged = Some((held, request));
        if state.is_refused {
            return judged;
        }
        state.came = judged;
        None
    }
}

/// The key of a cell, as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct HandedKey(pub u64, pub u64);

/// The enforced limits of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct HandedRequest {
    /// In the order of the route.
    pub charges: Vec<HandedCharge>,
    /// Whether to charge if all admit; otherwise they are only judged.
    pub may_charge: bool,
}

/// The charge of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct HandedCharge {
    /// The key.
    pub key: HandedKey,
    /// The cost in units.
    pub cost: u32,
    /// How it is counted.
    pub count: HandedCount,
    /// Whether a ban of the key refuses the request.
    pub may_be_banned: bool,
}

/// How a limit counts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub enum HandedCount {
    /// In a cell, under the quota of this number.
    Exact {
        /// As in the quotas that were sent with the cells.
        quota: u32,
        /// Whether a new key is refused when there is no room.
        denies_when_full: bool,
    },
    /// Requests in flight.
    InFlight {
        /// The limit's name.
        limit: String,
        /// Requests at once.
        max: u32,
    },
    /// By the sketch of the limit.
    Estimate {
        /// The limit's name.
        limit: String,
    },
}

/// What the successor found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct HandedJudgment {
    /// Whether every limit is charged.
    pub charged: bool,
    /// When, on the time lines that both processes share.
    pub at: Now,
    /// The verdict on each charge, in order. `None`: the successor has no such limit.
    pub verdicts: Vec<Option<Verdict>>,
    /// The charges that no cell keeps, for want of room, by index.
    pub uncounted: Vec<u32>,
    /// The charge whose key is banned, by index, and for how long. Nothing else is judged then.
    pub banned: Option<(u32, Nanos)>,
}

/// What became of a request that one of the processes has charged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub enum HandedEvent {
    /// Up to this many units of a charge do not count.
    Refund {
        /// The quota's number.
        quota: u32,
        /// The key.
        key: HandedKey,
        /// Units.
        units: u32,
        /// Of the charge.
        receipt: Receipt,
    },
    /// More units count.
    Debit {
        /// The quota's number.
        quota: u32,
        /// The key.
        key: HandedKey,
        /// Units.
        units: u32,
    },
    /// A request is no more in flight.
    Ended {
        /// The limit's name.
        limit: String,
        /// The key.
        key: HandedKey,
        /// Its cost.
        cost: u32,
    },
    /// A limit has refused a request, which may ban its key.
    Denied {
        /// The limit's name.
        limit: String,
        /// The key.
        key: HandedKey,
    },
    /// A token was checked in vain, or a request that the switch met has passed.
    Charge(HandedCharge),
    /// A request that was charged under an estimate limit is settled: the charge counts, or is taken back.
    Settled {
        /// The limit's name.
        limit: String,
        /// The key.
        key: HandedKey,
        /// Its cost.
        cost: u32,
        /// Whether another limit has refused the request.
        is_refused: bool,
    },
}

/// A charge that the successor has made under an estimate limit. Dropping it tells that the charge counts.
pub(super) struct HandedEstimate {
    limit: String,
    key: HandedKey,
    cost: u32,
    is_refused: bool,
    successor: Arc<dyn Successor>,
}

/// A judgment of the successor, which counts requests in flight for it, and waits to hear whether charges of estimate limits count.
///
/// Dropping it ends those in flight that were not taken over by a permit of this process, and lets the charges count: the request
/// has gone meanwhile.
#[must_use = "dropping it ends the request"]
pub struct HeldJudgment {
    judgment: HandedJudgment,
    /// Limit, key and cost of what the successor counts as in flight.
    in_flight: Vec<(String, HandedKey, u32)>,
    /// The charges of estimate limits, in the order of the request.
    estimates: Vec<HandedEstimate>,
    successor: Arc<dyn Successor>,
}

/// Who counts.
#[derive(Clone, Default)]
enum CountingSide {
    #[default]
    Here,
    Switching,
    There(Arc<dyn Successor>),
}

/// Who counts now, and what happened while that changed.
pub(super) struct Succession {
    side: watch::Sender<CountingSide>,
    /// Whether that is `Here`, for requests that only want to know this.
    is_here: AtomicBool,
    /// Events of the switch, for whoever counts after it.
    events: Mutex<Vec<HandedEvent>>,
    /// Held while a denial is told and counted, and by the switch until all that were counted are copied: each goes over once.
    denials: RwLock<()>,
    /// Whether a successor that counted has gone, with what it has counted.
    is_abandoned: AtomicBool,
    /// Requests that were settled here, because the successor did not answer.
    unanswered: AtomicU64,
}

/// What to do with an event.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Nothing: the successor knows, or will.
    There,
    /// It has to be done here.
    Here,
}

impl Default for Succession {
    fn default() -> Self {
        Self {
            side: watch::Sender::new(CountingSide::Here),
            is_here: AtomicBool::new(true),
            events: Mutex::default(),
            denials: RwLock::default(),
            is_abandoned: AtomicBool::new(false),
            unanswered: AtomicU64::new(0),
        }
    }
}

impl Succession {
    /// The successor, as soon as it is known whether there is one; `None` if this process counts. An error if that takes too
    /// long.
    pub(super) async fn successor(
        &self,
    ) -> Result<Option<Arc<dyn Successor>>, tokio::time::error::Elapsed> {
        let mut side = self.side.subscribe();
        let is_known = |side: &CountingSide| !matches!(side, CountingSide::Switching);
        let known = tokio::time::timeout(MAX_WAIT, side.wait_for(is_known)).await?;
        Ok(match known.as_deref() {
            Ok(CountingSide::There(successor)) => Some(Arc::clone(successor)),
            // The sender lives as long as `self`, so there is no error.
            Ok(CountingSide::Here | CountingSide::Switching) | Err(_) => None,
        })
    }

    /// Whether this process has all cells: `false` from the switch on.
    pub(super) fn is_here(&self) -> bool {
        self.is_here.load(Ordering::Acquire)
    }

    /// Tells the successor, now or once it counts.
    pub(super) fn tell(&self, event: HandedEvent) -> Told {
        let mut events = self.events.lock();
        match &*self.side.borrow() {
            CountingSide::Here => return Told::Here,
            CountingSide::Switching => events.push(event),
            CountingSide::There(successor) => successor.tell(event),
        }
        Told::There
    }

    /// To be held while a denial is told and counted.
    pub(super) fn hold_denials(&self) -> RwLockReadGuard<'_, ()> {
        self.denials.read()
    }

    /// From now on events are told. `copy_denials` copies those of before; none is counted meanwhile.
    pub(super) fn begin_switch<T>(&self, copy_denials: impl FnOnce() -> T) -> T {
        let _all_counted = self.denials.write();
        {
            let _order = self.events.lock();
            self.is_here.store(false, Ordering::Release);
            self.side.send_replace(CountingSide::Switching);
        }
        copy_denials()
    }

    pub(super) fn set_successor(&self, successor: Arc<dyn Successor>) {
        let mut events = self.events.lock();
        events.drain(..).for_each(|event| successor.tell(event));
        self.side.send_replace(CountingSide::There(successor));
    }

    /// This process counts again. `take_back` makes it able to. Returns what happened meanwhile, to be done here.
    pub(super) fn take_back(&self, take_back: impl FnOnce()) -> Vec<HandedEvent> {
        let mut events = self.events.lock();
        take_back();
        self.is_here.store(true, Ordering::Release);
        self.side.send_replace(CountingSide::Here);
        std::mem::take(&mut events)
    }

    pub(super) fn set_abandoned(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    pub(super) fn record_unanswered(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }
}

impl HandedKey {
    pub(super) const fn of(key: KeyHash) -> Self {
        Self(key.high, key.low)
    }

    /// The key's hash.
    pub const fn hash(self) -> KeyHash {
        KeyHash { high: self.0, low: self.1 }
    }
}

impl HeldJudgment {
    /// A judgment on a request. What it has in flight at the successor ends when this is dropped.
    pub fn new(
        judgment: HandedJudgment,
        request: &HandedRequest,
        successor: Arc<dyn Successor>,
    ) -> Self {
        let (mut in_flight, mut estimates) = (Vec::new(), Vec::new());
        let judged = request.charges.iter().zip(&judgment.verdicts);
        for (charge, _) in judged.filter(|(_, verdict)| judgment.charged && verdict.is_some()) {
            let HandedCharge { key, cost, .. } = *charge;
            match &charge.count {
                HandedCount::InFlight { limit, .. } => in_flight.push((limit.clone(), key, cost)),
                HandedCount::Estimate { limit } => estimates.push(HandedEstimate {
                    limit: limit.clone(),
                    key,
                    cost,
                    is_refused: false,
                    successor: Arc::clone(&successor),
                }),
                HandedCount::Exact { .. } => {}
            }
        }
        Self { judgment, in_flight, estimates, successor }
    }

    /// The judgment, and its charges of estimate limits in the order of the request. Permits of this process stand for what is
    /// in flight from now on.
    pub(super) fn take(mut self) -> (HandedJudgment, Vec<HandedEstimate>) {
        self.in_flight.clear();
        (self.judgment.clone(), std::mem::take(&mut self.estimates))
    }

    pub(super) const fn judgment(&self) -> &HandedJudgment {
        &self.judgment
    }

    /// Has the charges of estimate limits taken back.
    pub(super) fn refuse_estimates(&mut self) {
        self.estimates.drain(..).for_each(HandedEstimate::refuse);
    }

    pub(super) fn successor(&self) -> &Arc<dyn Successor> {
        &self.successor
    }
}

impl Drop for HeldJudgment {
    fn drop(&mut self) {
        for (limit, key, cost) in self.in_flight.drain(..) {
            self.successor.tell(HandedEvent::Ended { limit, key, cost });
        }
    }
}

impl HandedEstimate {
    /// Has the charge taken back, because the request is refused.
    pub(super) fn refuse(mut self) {
        self.is_refused = true;
    }
}

impl Drop for HandedEstimate {
    fn drop(&mut self) {
        let Self { key, cost, is_refused, .. } = *self;
        let limit = std::mem::take(&mut self.limit);
        self.successor.tell(HandedEvent::Settled { limit, key, cost, is_refused });
    }
}

impl std::fmt::Debug for HeldJudgment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldJudgment").field("judgment", &self.judgment).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_denial_is_counted_while_those_before_are_copied() {
        let succession = Succession::default();
        let is_held = succession.begin_switch(|| {
            assert!(!succession.is_here(), "denials are told from now on");
            succession.denials.try_read().is_none()
        });
        assert!(is_held);
        assert!(succession.denials.try_read().is_some());
    }
}
