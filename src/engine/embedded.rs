//! Charges in the embedded store, and in the overflow sketches for new keys that it has no room for.
//!
//! The store keeps the cells; this module turns its answers into the verdicts of limits. If the request is not
//! charged in the store, charges in overflow sketches are refunded.

use smallvec::SmallVec;

use super::counters::VerdictKinds;
use super::decision::GUESSED_RETRY_AFTER;
use super::exact::{ExactCharge, ExactRequest, ExactTier, ExactVerdicts};
use super::open_charge::ChargedIn;
use super::overflow::OverflowCharge;
use super::target::Target;
use crate::clock::Now;
use crate::estimator::ConfirmTable;
use crate::limit::Verdict;
use crate::policy::WhenFull;
use crate::store::{EmbeddedCharge, Settlement, SingleSettlement};

/// The judgment of a key that the store has no room for.
struct OverflowJudgment {
    verdict: Verdict,
    /// The charge in the overflow sketches; `None`: the key was not counted.
    charge: Option<OverflowCharge>,
}

/// The charge of a key without room in the overflow sketches, and its index among the request's charges.
struct IndexedOverflow {
    index: usize,
    charge: Option<OverflowCharge>,
}

/// What happened to one charge.
struct ChargeJudgment {
    verdict: Verdict,
    storage: CellStorage,
    /// Whether the request is charged.
    charged: bool,
}

/// Where a key was counted.
enum CellStorage {
    /// In a cell of the store.
    Cell,
    /// Outside the store, which had no room: in the overflow sketches, or nowhere.
    Overflow(Option<OverflowCharge>),
}

impl ExactTier {
    /// Charges some limits of a request in the embedded store, all or none, and returns whether they are charged; `None` if a
    /// successor has one of their cells. `kinds`: how their verdicts are recorded.
    pub(super) fn charge_embedded(
        &self,
        request: &ExactRequest<'_>,
        charges: &[ExactCharge<'_>],
        may_charge: bool,
        kinds: VerdictKinds,
        results: &mut ExactVerdicts,
    ) -> Option<bool> {
        if let [charge] = charges {
            return self.charge_single(request, charge, may_charge, kinds, results);
        }
        charge_several(request, charges, kinds, results, |embedded, when_full| {
            self.embedded.settle(embedded, may_charge, request.now, when_full)
        })
    }

    /// Charges all limits of a request or none, and returns whether they are charged: in the cells as they were when a
    /// successor got them, because it does not answer.
    pub(super) fn charge_kept(
        &self,
        request: &ExactRequest<'_>,
        results: &mut ExactVerdicts,
    ) -> bool {
        let (charges, kinds) = (request.charges.as_slice(), VerdictKinds::DEGRADED);
        if charges.is_empty() {
            return request.may_charge;
        }
        let charged = charge_several(request, charges, kinds, results, |embedded, when_full| {
            let may_charge = request.may_charge;
            Some(self.embedded.settle_kept(embedded, may_charge, request.now, when_full))
        });
        // Nothing is saved here any more.
        results.save = None;
        charged.unwrap_or(false)
    }

    /// [`ExactTier::charge_embedded`] for a single charge, which most requests have.
    fn charge_single(
        &self,
        request: &ExactRequest<'_>,
        charge: &ExactCharge<'_>,
        may_charge: bool,
        kinds: VerdictKinds,
        results: &mut ExactVerdicts,
    ) -> Option<bool> {
        let now = request.now;
        let mut storage = CellStorage::Cell;
        let embedded = charge.embedded_charge();
        let settlement = self.embedded.settle_single(&embedded, may_charge, now, || {
            let overflow = charge.judge_overflow(request.confirm, now);
            storage = CellStorage::Overflow(overflow.charge);
            overflow.verdict
        })?;
        let SingleSettlement { charged, verdict, save } = settlement;
        results.save = results.save.max(save);
        ChargeJudgment { verdict, storage, charged }.conclude(charge, request, kinds, results);
        Some(charged)
    }
}

/// Turns what the store finds for several charges into verdicts. `settle` asks the store.
fn charge_several(
    request: &ExactRequest<'_>,
    charges: &[ExactCharge<'_>],
    kinds: VerdictKinds,
    results: &mut ExactVerdicts,
    settle: impl FnOnce(&[EmbeddedCharge<'_>], &mut dyn FnMut(usize) -> Verdict) -> Option<Settlement>,
) -> Option<bool> {
    let (confirm, now) = (request.confirm, request.now);
    let embedded: SmallVec<[_; 4]> = charges.iter().map(ExactCharge::embedded_charge).collect();
    let mut overflows: SmallVec<[IndexedOverflow; 2]> = SmallVec::new();
    let settlement = settle(&embedded, &mut |index| {
        let OverflowJudgment { verdict, charge } = charges[index].judge_overflow(confirm, now);
        overflows.push(IndexedOverflow { index, charge });
        verdict
    })?;
    results.save = results.save.max(settlement.save);
    for (index, (charge, verdict)) in charges.iter().zip(&settlement.verdicts).enumerate() {
        let overflow = overflows.iter_mut().find(|overflow| overflow.index == index);
        let storage = match overflow {
            None => CellStorage::Cell,
            Some(overflow) => CellStorage::Overflow(overflow.charge.take()),
        };
        ChargeJudgment { verdict: *verdict, storage, charged: settlement.charged }
            .conclude(charge, request, kinds, results);
    }
    Some(settlement.charged)
}

impl ChargeJudgment {
    /// Records the verdict, and refunds a charge in the overflow sketches if the request is not charged.
    #[inline]
    fn conclude(
        mut self,
        charge: &ExactCharge<'_>,
        request: &ExactRequest<'_>,
        kinds: VerdictKinds,
        results: &mut ExactVerdicts,
    ) {
        let now = request.now;
        let kinds = match self.storage {
            CellStorage::Cell => kinds,
            CellStorage::Overflow(_) => VerdictKinds::OVERFLOW,
        };
        if !self.charged
            && let CellStorage::Overflow(overflow) = &mut self.storage
            && let Some(overflow) = overflow.take()
        {
            self.verdict = overflow.refund_and_judge(request.confirm, now);
        }
        let mut limit_verdict = charge.limit_verdict(self.verdict, kinds);
        if matches!(self.storage, CellStorage::Overflow(None)) {
            // Nothing keeps the units.
            limit_verdict.charged = 0;
        }
        results.verdicts.push(limit_verdict);
        if !self.charged || !charge.may_change {
            return;
        }
        results.open.push(charge.open(match self.storage {
            CellStorage::Cell => {
                let quota = charge.quota.quota();
                ChargedIn::Embedded(quota.receipt(&self.verdict, charge.target.cost, now))
            }
            CellStorage::Overflow(None) => ChargedIn::Nowhere,
            CellStorage::Overflow(Some(overflow)) => ChargedIn::Overflow(overflow),
        }));
    }
}

impl ExactCharge<'_> {
    /// Judges a new key that the store has no room for, and charges it where the limit counts such keys.
    fn judge_overflow(&self, confirm: &ConfirmTable, now: Now) -> OverflowJudgment {
        let fresh = self.quota.quota().judge(None, self.target.cost, now);
        match self.limit.when_full {
            WhenFull::Allow => OverflowJudgment { verdict: fresh, charge: None },
            WhenFull::Deny => {
                // There is room again when some cell has refilled.
                let retry_after = Some(GUESSED_RETRY_AFTER);
                let verdict = Verdict { allowed: false, remaining: 0, retry_after, ..fresh };
                OverflowJudgment { verdict, charge: None }
            }
            WhenFull::Estimate => {
                let Target { key, rate, cost, .. } = *self.target;
                let (verdict, charge) = self.overflow.charge(confirm, key, rate, cost, now);
                OverflowJudgment { verdict, charge }
            }
        }
    }
}
