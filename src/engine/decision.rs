//! The decision on a request as a value. Response headers, body, log and metrics are all made from it; no verdict is
//! computed twice.

use smallvec::SmallVec;

use super::candidate::CandidateVerdict;
use super::counters::{VerdictKind, VerdictKinds};
use super::target::Target;
use crate::clock::{Nanos, Now};
use crate::limit::Verdict;
use crate::policy::{Count, KeyHash, LimitIndex, Policy, RateIndex, RateSource, RouteIndex, Tier};

/// The retry time of a denial that ends when a cell or a slot becomes free. When that will be cannot be known, so this
/// is a guess.
pub(super) const GUESSED_RETRY_AFTER: Nanos = Nanos::SECOND;

/// The decision on a request.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The number of the generation that decided.
    pub generation: u64,
    /// When the request arrived.
    pub at: Now,
    /// The date of arrival, from the request's facts.
    pub date: Nanos,
    /// The route, if one matched.
    pub route: Option<RouteIndex>,
    /// What happens to the request.
    pub outcome: Outcome,
    /// One verdict for each limit that was asked, in the order of the route.
    pub verdicts: SmallVec<[LimitVerdict; 4]>,
    /// The verdicts of candidates, which refuse nothing.
    pub candidates: Vec<CandidateVerdict>,
    /// What has to be on the disk before the request is forwarded (`after_crash: deny`); see [`Engine::until_saved`].
    ///
    /// [`Engine::until_saved`]: super::Engine::until_saved
    pub save: Option<u64>,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is forwarded to the origin.
    Allowed,
    /// A limit refuses it.
    Limited,
    /// The shared store fails, and a limit requires it.
    Outage,
    /// It matches no route.
    NoRoute,
    /// Origins may read its path in another way that would be decided differently.
    AmbiguousPath,
    /// Which route, override, plan or key it has depends on a condition that cannot be known: origins may read its value in
    /// different ways, or the conditions of the request are too much work.
    UnreadableCondition,
    /// It lacks a key that a limit requires.
    MissingKey {
        /// The limit.
        limit: LimitIndex,
        /// The status of the response.
        status: u16,
    },
    /// It carries a key more than once.
    RepeatedKey {
        /// The limit.
        limit: LimitIndex,
    },
    /// It carries a key that origins may decode in different ways.
    UnreadableKey {
        /// The limit.
        limit: LimitIndex,
    },
    /// The keys that verify its token have not been fetched, and a limit requires them.
    NoTokenKeys {
        /// The limit.
        limit: LimitIndex,
    },
}

impl Outcome {
    /// Whether something of ours fails that a limit requires: no client is at fault.
    pub const fn is_outage(self) -> bool {
        matches!(self, Self::Outage | Self::NoTokenKeys { .. })
    }

    /// The limit whose key the request lacks, or has in a form that gives no key.
    pub const fn limit_without_key(self) -> Option<LimitIndex> {
        match self {
            Self::MissingKey { limit, .. }
            | Self::RepeatedKey { limit }
            | Self::UnreadableKey { limit }
            | Self::NoTokenKeys { limit } => Some(limit),
            Self::Allowed
            | Self::Limited
            | Self::Outage
            | Self::NoRoute
            | Self::AmbiguousPath
            | Self::UnreadableCondition => None,
        }
    }

    /// The status of the response; 200 if the origin's response is forwarded.
    pub const fn status(self) -> u16 {
        match self {
            Self::Allowed => 200,
            Self::Limited => 429,
            Self::Outage | Self::NoTokenKeys { .. } => 503,
            Self::NoRoute => 404,
            Self::MissingKey { status, .. } => status,
            Self::AmbiguousPath
            | Self::UnreadableCondition
            | Self::RepeatedKey { .. }
            | Self::UnreadableKey { .. } => 400,
        }
    }
}

/// The verdict of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitVerdict {
    /// The limit.
    pub limit: LimitIndex,
    /// The key of the cell that was judged.
    pub key: KeyHash,
    /// The rate that applied, by index.
    pub rate: RateIndex,
    /// Which terms of the limit gave that rate.
    pub rate_source: RateSource,
    /// The limit's tier.
    pub tier: Tier,
    /// How metrics count it.
    pub kind: VerdictKind,
    /// The verdict with its numbers.
    pub verdict: Verdict,
    /// The cost of the request in units, as far as it was known before forwarding.
    pub cost: u32,
    /// The units that the limit has charged if the request passes, corrected by the response.
    pub charged: u32,
    /// Whether the limit is in shadow mode for this key.
    pub shadow: bool,
    /// Whether a ban of the key refuses the request.
    pub banned: bool,
    /// Whether the key came from a credential.
    pub authenticated: bool,
}

impl LimitVerdict {
    /// The verdict of an enforcing limit.
    pub(super) const fn new(
        target: &Target,
        tier: Tier,
        verdict: Verdict,
        kinds: VerdictKinds,
    ) -> Self {
        Self {
            limit: target.limit,
            key: target.key,
            rate: target.rate,
            rate_source: target.rate_source,
            tier,
            kind: if verdict.allowed { kinds.allowed } else { kinds.denied },
            verdict,
            cost: target.cost,
            charged: if verdict.allowed { target.cost } else { 0 },
            shadow: false,
            banned: false,
            authenticated: target.authenticated,
        }
    }

    /// The verdict as it is without the charge of this request, which was taken back.
    pub(super) fn add_back_cost(&mut self) {
        let remaining = self.verdict.remaining.saturating_add(self.cost);
        self.verdict.remaining = remaining.min(self.verdict.limit);
    }

    /// Whether this limit refuses the request.
    pub const fn refuses(&self) -> bool {
        !self.shadow && !self.verdict.allowed
    }

    /// How close the limit is, for comparisons: the number of requests of this cost that are left.
    fn tightness(&self) -> (u32, Nanos) {
        let requests = self.verdict.remaining / self.cost.max(1);
        // With as many left, the limit that resets later is tighter.
        (requests, Nanos::new(u64::MAX).saturating_sub(self.verdict.reset))
    }
}

impl Decision {
    /// The limits that refuse, in the order of the route.
    pub fn refusing(&self) -> impl Iterator<Item = &LimitVerdict> {
        self.verdicts.iter().filter(|limit_verdict| limit_verdict.refuses())
    }

    /// Whether a limit was judged while the shared store failed.
    pub fn is_degraded(&self) -> bool {
        self.verdicts.iter().any(|limit_verdict| limit_verdict.kind.is_degraded())
    }

    /// How long the request is delayed before it is forwarded.
    pub fn wait(&self) -> Nanos {
        if self.outcome != Outcome::Allowed {
            return Nanos::ZERO;
        }
        let enforced = self.verdicts.iter().filter(|limit_verdict| !limit_verdict.shadow);
        enforced.map(|limit_verdict| limit_verdict.verdict.delay).max().unwrap_or_default()
    }

    /// Whether a ban refuses the request.
    pub fn is_banned(&self) -> bool {
        self.verdicts.iter().any(|limit_verdict| limit_verdict.banned)
    }

    /// The time until every refusing limit would admit the request. `None` if no limit refuses, or if one of them never
    /// admits it.
    pub fn retry_after(&self) -> Option<Nanos> {
        let mut latest = None;
        for limit_verdict in self.refusing() {
            latest = latest.max(Some(limit_verdict.verdict.retry_after?));
        }
        latest
    }

    /// The limit that is closest to denying, among the enforcing ones that `counts` selects.
    pub fn tightest(&self, counts: impl Fn(&LimitVerdict) -> bool) -> Option<&LimitVerdict> {
        self.verdicts
            .iter()
            .filter(|limit_verdict| !limit_verdict.shadow && counts(limit_verdict))
            .min_by_key(|limit_verdict| limit_verdict.tightness())
    }

    /// The most units that one enforcing limit has charged for the request; 0 if it was refused. Slots in flight are no
    /// units.
    pub fn charged(&self, policy: &Policy) -> u32 {
        if self.outcome != Outcome::Allowed {
            return 0;
        }
        let counts_units = |verdict: &&LimitVerdict| {
            !verdict.shadow && !matches!(policy.limit(verdict.limit).count, Count::InFlight { .. })
        };
        let verdicts = self.verdicts.iter().filter(counts_units);
        verdicts.map(|verdict| verdict.charged).max().unwrap_or(0)
    }

    /// The limit that the log names: the first that refuses, otherwise the tightest.
    pub fn deciding(&self) -> Option<&LimitVerdict> {
        self.refusing().next().or_else(|| self.tightest(|_| true))
    }
}
