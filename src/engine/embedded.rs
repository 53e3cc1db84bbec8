//! Charges in the embedded store, and what happens to new keys for which it has no room.

use smallvec::SmallVec;

use super::counters::VerdictKinds;
use super::exact::{ExactPart, ExactRequest, ExactTier, Settled};
use super::overflow::OverflowCharge;
use super::pending::ChargedIn;
use super::target::Target;
use crate::clock::{Nanos, Now};
use crate::estimator::ConfirmTable;
use crate::limit::Verdict;
use crate::policy::WhenFull;
use crate::store::SingleSettlement;

/// What the overflow of a limit was charged, if anything.
type Overflowed = Option<OverflowCharge>;

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
        let mut overflows: SmallVec<[(usize, Overflowed); 2]> = SmallVec::new();
        let settlement = self.embedded.settle(&charges, may_charge, now, |index| {
            let (verdict, overflow) = parts[index].charge_overflow(confirm, now);
            overflows.push((index, overflow));
            verdict
        });
        for (index, (part, verdict)) in parts.iter().zip(&settlement.verdicts).enumerate() {
            let overflow = overflows.iter_mut().find(|(other, _)| *other == index);
            let overflow = overflow.map(|(_, overflow)| overflow.take());
            let charged = Charged { verdict: *verdict, overflow, spent: settlement.charged };
            charged.conclude(part, request, kinds, settled);
        }
        settlement.charged
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
        let settlement = self.embedded.settle_single(&part.charge(), may_charge, now, || {
            let (verdict, receipt) = part.charge_overflow(request.confirm, now);
            overflow = Some(receipt);
            verdict
        });
        let SingleSettlement { charged: spent, verdict } = settlement;
        Charged { verdict, overflow, spent }.conclude(part, request, kinds, settled);
        spent
    }
}

/// What became of one part.
struct Charged {
    verdict: Verdict,
    /// There is no room for the key.
    overflow: Option<Overflowed>,
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
        let is_overflow = self.overflow.is_some();
        if !self.spent
            && let Some(Some(charge)) = self.overflow.take()
        {
            self.verdict = charge.refund_and_judge(request.confirm, now);
        }
        let kinds = if is_overflow { VerdictKinds::OVERFLOW } else { kinds };
        settled.verdicts.push(part.answer(self.verdict, kinds));
        if !self.spent || !part.may_change {
            return;
        }
        settled.open.push(part.open(match self.overflow {
            None => {
                let quota = part.quota.quota();
                ChargedIn::Embedded(quota.receipt(&self.verdict, part.target.cost, now))
            }
            Some(None) => ChargedIn::Nowhere,
            Some(Some(charge)) => ChargedIn::Overflow(charge),
        }));
    }
}

impl ExactPart<'_> {
    /// Judges a new key for which there is no room. The charge is there when it was charged.
    fn charge_overflow(&self, confirm: &ConfirmTable, now: Now) -> (Verdict, Overflowed) {
        let fresh = self.quota.quota().judge(None, self.target.cost, now);
        match self.limit.when_full {
            WhenFull::Allow => (fresh, None),
            WhenFull::Deny => {
                // There is room when a cell has refilled; nobody knows when. A second is a guess.
                let retry_after = Some(Nanos::SECOND);
                (Verdict { allowed: false, remaining: 0, retry_after, ..fresh }, None)
            }
            WhenFull::Estimate => {
                let Target { key, rate, cost, .. } = *self.target;
                self.overflow.charge(confirm, key, rate, cost, now)
            }
        }
    }
}
