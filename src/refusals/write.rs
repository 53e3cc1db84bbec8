//! Writes the record of a refused request: the decision as words.
//!
//! It runs while a request is answered, so it copies numbers and looks up no name. What must always hold: of the values
//! of a request only its identifier and its address get into a record; keys are hashes.

use std::net::IpAddr;

use super::layout::{
    AUTHENTICATED, CellFlags, DEGRADED, FoundWord, ID, LIMIT_WORDS, LIMITS, MAX_ID_BYTES,
    MAX_RECORDED_LIMITS, META, ROUTE, RefusalSlot, pair, text_word,
};
use super::names::PolicyNames;
use super::reason::RefusalReason;
use crate::engine::{Decision, LimitVerdict, Outcome, VerdictKind};
use crate::limit::Rate;
use crate::policy::client::RequestClient;
use crate::policy::{Count, Limit, LimitIndex, OverrideAction, Policy, RateSource, WhenFull};

/// A request that is being refused.
#[derive(Clone, Copy)]
pub struct RefusedRequest<'r> {
    /// The identifier that its answer has.
    pub request_id: &'r [u8],
    /// Its client.
    pub client: RequestClient,
    /// The status of the answer.
    pub status: u16,
    /// The decision.
    pub decision: &'r Decision,
    /// The policy that decided.
    pub policy: &'r Policy,
    /// The numbers of its names.
    pub names: &'r PolicyNames,
}

impl RefusedRequest<'_> {
    /// Writes the record of the request.
    pub(super) fn write(&self, reason: RefusalReason, slot: &RefusalSlot) {
        let Self { decision, client, .. } = *self;
        let id = self.request_id.get(..MAX_ID_BYTES).unwrap_or(self.request_id);
        for (index, bytes) in id.chunks(8).enumerate() {
            slot.set(ID + index, text_word(bytes));
        }
        let keyless = decision.outcome.limit_without_key();
        let mut written = 0;
        if let Some(limit) = keyless {
            self.write_keyless(limit, slot);
            written = 1;
        }
        let all = decision.verdicts.len() + written;
        let is_crowded = all > MAX_RECORDED_LIMITS;
        let first = decision.verdicts.iter().filter(|found| !is_crowded || found.refuses());
        let rest = decision.verdicts.iter().filter(|found| is_crowded && !found.refuses());
        for found in first.chain(rest).take(MAX_RECORDED_LIMITS - written) {
            self.write_limit(found, LIMITS + written * LIMIT_WORDS, slot);
            written += 1;
        }
        let authenticated =
            keyless.is_none() && decision.deciding().is_some_and(|found| found.authenticated);
        let flags = if authenticated { AUTHENTICATED } else { 0 }
            | if decision.is_degraded() { DEGRADED } else { 0 };
        let [high, low] = address_words(client.ip);
        slot.set(0, decision.date.get());
        slot.set(1, decision.generation);
        slot.set(2, high);
        slot.set(3, low);
        let bytes = [id.len() as u64, reason as u64, flags, client.ipv6_prefix.into()];
        let meta = bytes.iter().fold(u64::from(self.status), |word, byte| word << 8 | byte);
        slot.set(META, meta << 16 | (written as u64) << 8 | (all - written).min(255) as u64);
        let route = decision.route.and_then(|route| self.names.routes.get(route).copied());
        slot.set(ROUTE, route.unwrap_or_default().0.into());
    }

    /// Writes the limit whose key is missing or gives no key.
    fn write_keyless(&self, limit: LimitIndex, slot: &RefusalSlot) {
        let Some(names) = self.names.limits.get(limit) else {
            return;
        };
        slot.set(LIMITS + 2, pair(names.name.0, 0));
        let flags = CellFlags::default().with(CellFlags::KEYLESS, true);
        let kind = FoundWord { kind: VerdictKind::Denied, flags, retry_after: None };
        slot.set(LIMITS + 6, kind.word(names.tier, names.algorithm, 0));
    }

    fn write_limit(&self, found: &LimitVerdict, at: usize, slot: &RefusalSlot) {
        let Some(names) = self.names.limits.get(found.limit) else {
            return;
        };
        let limit = self.policy.limit(found.limit);
        let (rate, period) =
            rate_of(limit, found).map_or((0, 0), |rate| (rate.count(), rate.period().get()));
        let (source, source_kind) = match found.rate_source {
            RateSource::Own => (0, 0),
            RateSource::Plan(index) => {
                (names.plans.get(index as usize).copied().unwrap_or_default().0, 1)
            }
            RateSource::Override(index) => (index, 2),
            RateSource::KeyRule => (0, 3),
        };
        slot.set(at, found.key.high);
        slot.set(at + 1, found.key.low);
        slot.set(at + 2, pair(names.name.0, found.verdict.limit));
        slot.set(at + 3, pair(found.verdict.remaining, found.cost));
        slot.set(at + 4, pair(rate, source));
        slot.set(at + 5, period);
        let flags = CellFlags::default()
            .with(CellFlags::SHADOW, found.shadow)
            .with(CellFlags::BANNED, found.banned)
            .with(CellFlags::ADDRESS, names.address_as_key.holds(found.authenticated))
            .with(CellFlags::UNCOUNTED, self.is_uncounted(limit, found));
        let retry_after = found.verdict.retry_after;
        let kind = FoundWord { kind: found.kind, flags, retry_after };
        slot.set(at + 6, kind.word(names.tier, names.algorithm, source_kind));
    }

    /// Whether the limit refused without counting: what the key has spent is not known then.
    fn is_uncounted(&self, limit: &Limit, found: &LimitVerdict) -> bool {
        let is_override = || match found.rate_source {
            RateSource::Override(index) => {
                let rule = limit.terms.overrides.get(index as usize);
                rule.is_some_and(|rule| rule.action == OverrideAction::Deny)
            }
            RateSource::KeyRule => {
                let rules = limit.terms.key_rules.of_key(found.key);
                let action = rules.and_then(|rules| rules.action(self.decision.date));
                action == Some(OverrideAction::Deny)
            }
            RateSource::Own | RateSource::Plan(_) => false,
        };
        let has_no_room = || match (found.kind, &limit.count) {
            (VerdictKind::OverflowDenied, Count::Exact { when_full, .. }) => {
                *when_full == WhenFull::Deny
            }
            (VerdictKind::DegradedDenied, _) => self.decision.outcome == Outcome::Outage,
            _ => false,
        };
        !found.verdict.allowed && (found.banned || is_override() || has_no_room())
    }
}

/// The rate by which a limit judged.
fn rate_of(limit: &Limit, found: &LimitVerdict) -> Option<Rate> {
    match &limit.count {
        Count::Estimate { rate, .. } => Some(*rate),
        Count::Exact { .. } => limit.quota(found.rate).map(|quota| quota.rate()),
        Count::InFlight { .. } => None,
    }
}

fn address_words(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}
