//! The exact tier behind one seam: with every store, the exact limits of a request are charged all or
//! none.
//!
//! The embedded store, and a single slot of the shared store, settle a request in one operation. Several
//! slots are asked first and then charged, within one deadline. [`ExactTier::settle_now`] settles what
//! needs no wait. Only a request that the shared store has to judge is left to
//! [`ExactTier::settle`] (`shared.rs`).

use std::sync::Arc;

use smallvec::SmallVec;

use super::counters::VerdictKinds;
use super::generation::{Counter, ExactLimit};
use super::overflow::Overflow;
use super::pending::{ChargedIn, OpenCharge};
use super::target::Target;
use super::{Generation, LimitVerdict, VerdictKind};
use crate::clock::{Clock, Now};
use crate::estimator::ConfirmTable;
use crate::limit::Verdict;
use crate::policy::Tier;
use crate::store::redis::{CellCharge, SharedStore};
use crate::store::{EmbeddedCharge, EmbeddedStore, IssuedQuota};

/// Where the cells of the exact tier are.
#[derive(Default)]
pub(super) struct ExactTier {
    /// The store in this process. With a shared store, it counts what this node admits while that
    /// store fails.
    pub(super) embedded: EmbeddedStore,
    /// The store that many nodes share.
    pub(super) shared: Option<Arc<SharedStore>>,
}

/// The exact limits of one request.
#[derive(Clone)]
pub(super) struct ExactRequest<'r> {
    /// Charged all or none.
    pub(super) parts: Parts<'r>,
    /// Whether the parts are charged if all admit; otherwise they are judged only.
    pub(super) may_charge: bool,
    /// The number of the generation that decides.
    pub(super) generation: u64,
    pub(super) confirm: &'r ConfirmTable,
    /// When the request arrived.
    pub(super) now: Now,
    /// For what is judged after a wait.
    pub(super) clock: &'r dyn Clock,
}

/// Parts of a request, in the order of the route.
pub(super) type Parts<'r> = SmallVec<[ExactPart<'r>; 4]>;

/// One exact limit of a request.
#[derive(Clone, Copy)]
pub(super) struct ExactPart<'r> {
    pub(super) target: &'r Target,
    pub(super) limit: &'r ExactLimit,
    pub(super) quota: &'r Arc<IssuedQuota>,
    /// Whether the answer of the origin may change the charge.
    pub(super) may_change: bool,
    /// Where the key is counted if there is no room for it.
    pub(super) overflow: &'r Arc<Overflow>,
    /// Whether the limit delays requests, and there is no room for one more to wait.
    pub(super) lacks_slot: bool,
}

/// What the exact tier says of each part.
#[derive(Default)]
pub(super) struct Settled {
    /// The answers, in no particular order. A part without one was not asked.
    pub(super) verdicts: SmallVec<[LimitVerdict; 4]>,
    /// Charges that the answer of the origin may change.
    pub(super) open: Vec<OpenCharge>,
}

/// What the exact tier says of a request as a whole.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExactOutcome {
    /// Every part is charged.
    Charged,
    /// No part is charged: a limit refuses.
    Refused,
    /// No part is charged: the store fails, and a limit requires it.
    Outage,
}

impl ExactTier {
    /// Settles a request whose outcome depends on no wait. `None`: the shared store has to judge it.
    pub(super) fn settle_now(
        &self,
        request: &ExactRequest<'_>,
        settled: &mut Settled,
    ) -> Option<ExactOutcome> {
        let parts = request.parts.as_slice();
        let charged = match &self.shared {
            _ if parts.is_empty() => request.may_charge,
            None => {
                let kinds = VerdictKinds::NORMAL;
                self.charge_embedded(request, parts, request.may_charge, kinds, settled)
            }
            Some(remote) => {
                // A flood that is refused without the store must not reach it.
                if request.may_charge && !has_cached_denial(remote, request, settled) {
                    return None;
                }
                false
            }
        };
        Some(if charged { ExactOutcome::Charged } else { ExactOutcome::Refused })
    }

    /// Judges a request and charges nothing, as far as that needs no wait: in the embedded store, or by
    /// what is known of the shared one without asking it. `None`: no limit is known to refuse.
    pub(super) fn peek(
        &self,
        request: &ExactRequest<'_>,
        settled: &mut Settled,
    ) -> Option<ExactOutcome> {
        let parts = request.parts.as_slice();
        match &self.shared {
            _ if parts.is_empty() => None,
            None => {
                self.charge_embedded(request, parts, false, VerdictKinds::NORMAL, settled);
                settled.has_denial().then_some(ExactOutcome::Refused)
            }
            // What is refused by now does not look at that store.
            Some(_) if !request.may_charge => None,
            Some(remote) if has_cached_denial(remote, request, settled) => {
                Some(ExactOutcome::Refused)
            }
            Some(remote) => self.peek_away(remote, request, settled),
        }
    }
}

impl Settled {
    /// Whether a limit denies.
    pub(super) fn has_denial(&self) -> bool {
        self.verdicts.iter().any(|answer| !answer.verdict.allowed)
    }
}

/// Whether the shared store denied one of the parts a moment ago, so that it cannot succeed yet.
fn has_cached_denial(
    remote: &SharedStore,
    request: &ExactRequest<'_>,
    settled: &mut Settled,
) -> bool {
    for part in &request.parts {
        let denial = remote.cached_denial(&part.spend(), request.generation, request.now.mono);
        if let Some(verdict) = denial {
            settled.verdicts.push(part.answer(verdict, VerdictKinds::NORMAL));
        }
    }
    !settled.verdicts.is_empty()
}

impl<'r> ExactPart<'r> {
    /// The part of a target, if its limit counts in a store. `may_wait`: whether the request has a slot
    /// in the waiting room, or would be given one.
    pub(super) fn new(
        generation: &'r Generation,
        target: &'r Target,
        may_wait: bool,
    ) -> Option<Self> {
        let counting = generation.counting(target.limit);
        let Counter::Exact(limit) = &counting.counter else {
            return None;
        };
        let lacks_slot = !may_wait && limit.delays();
        let quota = match lacks_slot {
            true => limit.undelayed(target.rate),
            false => limit.quota(target.rate),
        };
        let (overflow, may_change) = (&limit.overflow, counting.may_change);
        Some(Self { target, limit, quota, may_change, overflow, lacks_slot })
    }

    /// The charge of the embedded store.
    pub(super) const fn charge(&self) -> EmbeddedCharge<'r> {
        EmbeddedCharge { key: self.target.key, quota: self.quota, cost: self.target.cost }
    }

    /// The charge of the shared store.
    pub(super) fn spend(&self) -> CellCharge {
        let Target { key, family, cost, .. } = *self.target;
        CellCharge {
            refundable: self.may_change,
            ..CellCharge::new(key, family, Arc::clone(self.quota), cost)
        }
    }

    /// A denial for want of a slot is a lack of room, and no denial of the limit.
    pub(super) fn answer(&self, verdict: Verdict, kinds: VerdictKinds) -> LimitVerdict {
        let kinds = match self.lacks_slot {
            true => VerdictKinds { denied: VerdictKind::OverflowDenied, ..kinds },
            false => kinds,
        };
        LimitVerdict::new(self.target, Tier::Exact, verdict, kinds)
    }

    /// The charge that the answer of the origin may change.
    pub(super) fn open(&self, charged: ChargedIn) -> OpenCharge {
        OpenCharge::new(self.target, self.quota, charged)
    }
}
