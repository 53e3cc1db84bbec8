//! Charges in the embedded store, and what happens to new keys for which it has no room.

use std::sync::Arc;

use smallvec::SmallVec;

use super::exact::{ExactPart, ExactRequest, ExactTier, Settled};
use super::pending::ChargedIn;
use super::tally::VerdictKinds;
use crate::clock::{Nanos, Now};
use crate::estimator::{ConfirmTable, EstimateLimit, Receipt};
use crate::limit::Verdict;
use crate::policy::WhenFull;

/// What the sketch of an overflowing limit was charged, if anything.
type Overflow = Option<Receipt>;

impl ExactTier {
    /// Charges some parts of a request in the embedded store, all or none, and says whether they are
    /// charged. `kinds`: how their verdicts are counted.
    pub(super) fn charge_embedded(
        &self,
        request: &ExactRequest<'_>,
        parts: &[ExactPart<'_>],
        may_charge: bool,
        kinds: VerdictKinds,
        settled: &mut Settled,
    ) -> bool {
        if let [part] = parts {
            return self.charge_one(request, part, may_charge, kinds, settled);
        }
        let (confirm, now) = (request.confirm, request.now);
        let charges: SmallVec<[_; 4]> = parts.iter().map(ExactPart::charge).collect();
        let mut overflows: SmallVec<[(usize, Overflow); 2]> = SmallVec::new();
        let settlement = self.embedded.settle(&charges, may_charge, now, |index| {
            let (verdict, overflow) = parts[index].charge_overflow(confirm, now);
            overflows.push((index, overflow));
            verdict
        });
        for (index, (part, verdict)) in parts.iter().zip(&settlement.verdicts).enumerate() {
            let overflow = overflows.iter().find(|(other, _)| *other == index);
            let overflow = overflow.map(|(_, overflow)| *overflow);
            let charged = Charged { verdict: *verdict, overflow, spent: settlement.spent };
            charged.conclude(part, request, kinds, settled);
        }
        settlement.spent
    }

    /// The same for one part, as most requests have it.
    fn charge_one(
        &self,
        request: &ExactRequest<'_>,
        part: &ExactPart<'_>,
        may_charge: bool,
        kinds: VerdictKinds,
        settled: &mut Settled,
    ) -> bool {
        let now = request.now;
        let mut overflow = None;
        let (spent, verdict) = self.embedded.settle_one(&part.charge(), may_charge, now, || {
            let (verdict, receipt) = part.charge_overflow(request.confirm, now);
            overflow = Some(receipt);
            verdict
        });
        Charged { verdict, overflow, spent }.conclude(part, request, kinds, settled);
        spent
    }
}

/// What became of one part.
struct Charged {
    verdict: Verdict,
    /// There is no room for the key.
    overflow: Option<Overflow>,
    /// Whether all parts of the request are charged.
    spent: bool,
}

impl Charged {
    #[inline]
    fn conclude(
        mut self,
        part: &ExactPart<'_>,
        request: &ExactRequest<'_>,
        kinds: VerdictKinds,
        settled: &mut Settled,
    ) {
        let now = request.now;
        if let (false, Some(Some(receipt))) = (self.spent, self.overflow) {
            let sketch = part.overflow_sketch(now);
            sketch.give_back(request.confirm, receipt);
            self.verdict = sketch.judge(request.confirm, part.target.key, now);
        }
        let kinds = if self.overflow.is_some() { VerdictKinds::OVERFLOW } else { kinds };
        settled.answers.push(part.answer(self.verdict, kinds));
        if !self.spent || !part.may_change {
            return;
        }
        settled.open.push(part.open(match self.overflow {
            None => {
                let quota = part.quota.quota();
                ChargedIn::Embedded(quota.receipt(&self.verdict, part.target.cost, now))
            }
            Some(None) => ChargedIn::Nowhere,
            Some(Some(receipt)) => {
                ChargedIn::Overflow(Arc::clone(part.overflow_sketch(now)), receipt)
            }
        }));
    }
}

impl<'r> ExactPart<'r> {
    fn overflow_sketch(&self, now: Now) -> &'r Arc<EstimateLimit> {
        self.limit.overflow(self.target.rate, now)
    }

    /// Judges a new key for which there is no room. The receipt is there when the sketch was charged.
    fn charge_overflow(&self, confirm: &ConfirmTable, now: Now) -> (Verdict, Overflow) {
        let fresh = self.quota.quota().judge(None, self.target.cost, now);
        match self.limit.when_full {
            WhenFull::Allow => (fresh, None),
            WhenFull::Deny => {
                // There is room when a cell has refilled; nobody knows when. A second is a guess.
                let retry_after = Some(Nanos::SECOND);
                (Verdict { allowed: false, remaining: 0, retry_after, ..fresh }, None)
            }
            WhenFull::Estimate => {
                let sketch = self.overflow_sketch(now);
                let (verdict, receipt) =
                    sketch.charge(confirm, self.target.key, self.target.cost, now);
                (verdict, verdict.allowed.then_some(receipt))
            }
        }
    }
}
