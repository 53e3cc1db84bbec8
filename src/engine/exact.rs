//! The exact tier: charges all exact limits of a request or none of them, whichever store counts.
//!
//! The embedded store, and a single slot of the shared store, settle a request in one operation. Several slots
//! of the shared store are first checked and then charged, within one deadline. [`ExactTier::settle_now`] handles
//! every request that needs no wait; only a request that the shared store has to judge is left to
//! [`ExactTier::settle`] (`shared.rs`). This module knows neither routes nor keys: it receives cells. After it has
//! returned, either every charge of the request is made, or none is.

use std::sync::Arc;

use smallvec::SmallVec;

use super::counters::{VerdictKind, VerdictKinds};
use super::decision::LimitVerdict;
use super::loaded_limit::{ExactLimit, LoadedLimit, TierState};
use super::open_charge::{ChargedIn, OpenCharge};
use super::overflow::Overflow;
use super::target::Target;
use crate::clock::{Clock, Now};
use crate::estimator::ConfirmTable;
use crate::limit::Verdict;
use crate::policy::Tier;
use crate::store::redis::{CellCharge, SharedStore};
use crate::store::{EmbeddedCharge, EmbeddedStore, IssuedQuota};

/// The stores of the exact tier.
#[derive(Default)]
pub(super) struct ExactTier {
    /// The store in this process. With a shared store, it counts what this node admits while the shared store
    /// fails.
    pub(super) embedded: EmbeddedStore,
    /// The store that many nodes share, if one is configured.
    pub(super) shared: Option<Arc<SharedStore>>,
}

/// The exact limits of one request.
#[derive(Clone)]
pub(super) struct ExactRequest<'r> {
    /// Either all of them are charged or none.
    pub(super) charges: ExactCharges<'r>,
    /// Whether to charge if all limits admit; otherwise they are only judged.
    pub(super) may_charge: bool,
    /// The number of the generation that decides.
    pub(super) generation: u64,
    /// The table in which overflowing keys are counted.
    pub(super) confirm: &'r ConfirmTable,
    /// The time of arrival.
    pub(super) now: Now,
    /// Gives the time after a wait for the shared store.
    pub(super) clock: &'r dyn Clock,
}

/// Exact charges of one request, in the order of the route.
pub(super) type ExactCharges<'r> = SmallVec<[ExactCharge<'r>; 4]>;

/// The charge of one exact limit for one request.
#[derive(Clone, Copy)]
pub(super) struct ExactCharge<'r> {
    pub(super) target: &'r Target,
    pub(super) limit: &'r ExactLimit,
    pub(super) quota: &'r Arc<IssuedQuota>,
    /// Whether the response of the origin may change the charge.
    pub(super) may_change: bool,
    /// Counts the key if the store has no room for it.
    pub(super) overflow: &'r Arc<Overflow>,
    /// Whether the limit delays requests and no delay slot is free.
    pub(super) lacks_delay_slot: bool,
}

/// What the exact tier found for the limits of a request.
#[derive(Default)]
pub(super) struct ExactVerdicts {
    /// The verdicts, in no particular order. A limit without one was not judged.
    pub(super) verdicts: SmallVec<[LimitVerdict; 4]>,
    /// Charges that the response of the origin may change.
    pub(super) open: Vec<OpenCharge>,
    /// The batch of saved cells that has to be on the disk before the request is forwarded.
    pub(super) save: Option<u64>,
}

/// What the exact tier did with a request.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExactOutcome {
    /// Every limit is charged.
    Charged,
    /// No limit is charged: one of them refuses.
    Refused,
    /// No limit is charged: the store fails, and a limit requires it.
    Outage,
    /// No limit is charged: a successor has a cell.
    HandedOver,
}

impl ExactTier {
    /// Settles a request if that needs no wait. `None`: the shared store has to judge it.
    pub(super) fn settle_now(
        &self,
        request: &ExactRequest<'_>,
        results: &mut ExactVerdicts,
    ) -> Option<ExactOutcome> {
        let charges = request.charges.as_slice();
        let charged = match &self.shared {
            _ if charges.is_empty() => request.may_charge,
            None => {
                let kinds = VerdictKinds::NORMAL;
                match self.charge_embedded(request, charges, request.may_charge, kinds, results) {
                    Some(charged) => charged,
                    None => return Some(ExactOutcome::HandedOver),
                }
            }
            Some(shared) => {
                // A flood of requests that are refused anyway must not reach the shared store.
                if request.may_charge && !add_cached_denials(shared, request, results) {
                    return None;
                }
                false
            }
        };
        Some(if charged { ExactOutcome::Charged } else { ExactOutcome::Refused })
    }

    /// Judges a request without charging and without a wait: in the embedded store, or by what this node knows of
    /// the shared one. `None`: no limit is known to refuse.
    pub(super) fn peek(
        &self,
        request: &ExactRequest<'_>,
        results: &mut ExactVerdicts,
    ) -> Option<ExactOutcome> {
        let charges = request.charges.as_slice();
        match &self.shared {
            _ if charges.is_empty() => None,
            None => {
                // Where a successor has the cells, no limit is known to refuse.
                let _ =
                    self.charge_embedded(request, charges, false, VerdictKinds::NORMAL, results);
                results.has_denial().then_some(ExactOutcome::Refused)
            }
            // The request is already refused.
            Some(_) if !request.may_charge => None,
            Some(shared) if add_cached_denials(shared, request, results) => {
                Some(ExactOutcome::Refused)
            }
            Some(shared) => self.peek_unavailable(shared, request, results),
        }
    }
}

impl ExactVerdicts {
    /// Whether a limit denies.
    pub(super) fn has_denial(&self) -> bool {
        self.verdicts.iter().any(|limit_verdict| !limit_verdict.verdict.allowed)
    }
}

/// Adds the denials of this request's cells that the denial cache holds. Returns whether there is one: the request
/// cannot succeed yet.
fn add_cached_denials(
    shared: &SharedStore,
    request: &ExactRequest<'_>,
    results: &mut ExactVerdicts,
) -> bool {
    for charge in &request.charges {
        let denial =
            shared.cached_denial(&charge.cell_charge(), request.generation, request.now.mono);
        if let Some(verdict) = denial {
            results.verdicts.push(charge.limit_verdict(verdict, VerdictKinds::NORMAL));
        }
    }
    !results.verdicts.is_empty()
}

impl<'r> ExactCharge<'r> {
    /// The charge for a target of a limit; `None` if the limit is not exact. `may_delay`: whether the request has a delay slot,
    /// or is treated as if it had one.
    pub(super) fn new(
        loaded: &'r LoadedLimit,
        target: &'r Target,
        may_delay: bool,
    ) -> Option<Self> {
        let TierState::Exact(limit) = &loaded.state else {
            return None;
        };
        let lacks_delay_slot = !may_delay && limit.delays();
        let quota = match lacks_delay_slot {
            true => limit.undelayed(target.rate),
            false => limit.quota(target.rate),
        };
        let (overflow, may_change) = (&limit.overflow, loaded.may_change);
        Some(Self { target, limit, quota, may_change, overflow, lacks_delay_slot })
    }

    /// The charge in the form of the embedded store.
    pub(super) const fn embedded_charge(&self) -> EmbeddedCharge<'r> {
        EmbeddedCharge { key: self.target.key, quota: self.quota, cost: self.target.cost }
    }

    /// The charge in the form of the shared store.
    pub(super) fn cell_charge(&self) -> CellCharge {
        let Target { key, family, cost, .. } = *self.target;
        CellCharge {
            refundable: self.may_change,
            ..CellCharge::new(key, family, Arc::clone(self.quota), cost)
        }
    }

    /// The limit's verdict for the decision. A denial for want of a delay slot counts as overflow, not as a denial
    /// of the limit.
    pub(super) fn limit_verdict(&self, verdict: Verdict, kinds: VerdictKinds) -> LimitVerdict {
        let kinds = match self.lacks_delay_slot {
            true => VerdictKinds { denied: VerdictKind::OverflowDenied, ..kinds },
            false => kinds,
        };
        LimitVerdict::new(self.target, Tier::Exact, verdict, kinds)
    }

    /// The made charge, which the response of the origin may change.
    pub(super) fn open(&self, charged: ChargedIn) -> OpenCharge {
        OpenCharge::new(self.target, self.quota, charged)
    }
}
