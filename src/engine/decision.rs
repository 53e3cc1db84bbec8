//! The answer to a request, as a value. Headers, body, log and metrics all read this one.

use smallvec::SmallVec;

use super::VerdictKind;
use super::counters::VerdictKinds;
use super::target::Target;
use super::trial::CandidateVerdict;
use crate::clock::{Nanos, Now};
use crate::limit::Verdict;
use crate::policy::{LimitIndex, RateIndex, RouteIndex, Tier};

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The number of the generation that decided.
    pub generation: u64,
    /// When.
    pub at: Now,
    /// The date then, as the request's facts have it.
    pub date: Nanos,
    /// The route, if one matched.
    pub route: Option<RouteIndex>,
    /// What happens to the request.
    pub outcome: Outcome,
    /// One per limit that was asked, in the order of the route.
    pub verdicts: SmallVec<[LimitVerdict; 4]>,
    /// What candidates say, which refuse nothing.
    pub candidates: Vec<CandidateVerdict>,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It goes to the origin.
    Allowed,
    /// A limit refuses it.
    Limited,
    /// The store is away, and a limit insists on it.
    Outage,
    /// It matches no route.
    NoRoute,
    /// Another reading of its path would be decided otherwise.
    AmbiguousPath,
    /// It lacks a key that a limit insists on.
    MissingKey {
        /// Which limit.
        limit: LimitIndex,
        /// The answer's status.
        status: u16,
    },
    /// It carries a key more than once.
    RepeatedKey {
        /// Which limit.
        limit: LimitIndex,
    },
    /// It carries a key that origins may decode in different ways.
    UnreadableKey {
        /// Which limit.
        limit: LimitIndex,
    },
}

impl Outcome {
    /// The status of the answer that a client gets; 200 stands for the origin's.
    pub const fn status(self) -> u16 {
        match self {
            Self::Allowed => 200,
            Self::Limited => 429,
            Self::Outage => 503,
            Self::NoRoute => 404,
            Self::MissingKey { status, .. } => status,
            Self::AmbiguousPath | Self::RepeatedKey { .. } | Self::UnreadableKey { .. } => 400,
        }
    }
}

/// What one limit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitVerdict {
    /// Which limit.
    pub limit: LimitIndex,
    /// Which of its rates.
    pub rate: RateIndex,
    /// Its tier.
    pub tier: Tier,
    /// How it is counted.
    pub kind: VerdictKind,
    /// The verdict with its numbers.
    pub verdict: Verdict,
    /// What the request costs under it.
    pub cost: u32,
    /// Whether it only watches.
    pub shadow: bool,
    /// Whether the key is banned: it was denied too often.
    pub banned: bool,
    /// Whether the key came from a credential.
    pub authenticated: bool,
}

impl LimitVerdict {
    /// The answer of an enforcing limit.
    pub(super) const fn new(
        target: &Target,
        tier: Tier,
        verdict: Verdict,
        kinds: VerdictKinds,
    ) -> Self {
        Self {
            limit: target.limit,
            rate: target.rate,
            tier,
            kind: if verdict.allowed { kinds.allowed } else { kinds.denied },
            verdict,
            cost: target.cost,
            shadow: false,
            banned: false,
            authenticated: target.authenticated,
        }
    }

    /// Whether this limit refuses the request.
    pub const fn refuses(&self) -> bool {
        !self.shadow && !self.verdict.allowed
    }

    /// Orders by how near the limit is: what is left, in requests of this cost.
    fn left(&self) -> (u32, Nanos) {
        let requests = self.verdict.remaining / self.cost.max(1);
        // Of equally near ones the later refill is the tighter.
        (requests, Nanos::new(u64::MAX).saturating_sub(self.verdict.reset))
    }
}

impl Decision {
    /// The limits that refuse, in the order of the route.
    pub fn refusing(&self) -> impl Iterator<Item = &LimitVerdict> {
        self.verdicts.iter().filter(|answer| answer.refuses())
    }

    /// Whether a limit was judged while the store was away.
    pub fn is_degraded(&self) -> bool {
        self.verdicts.iter().any(|answer| answer.kind.is_degraded())
    }

    /// How long the request waits for its turn.
    pub fn wait(&self) -> Nanos {
        if self.outcome != Outcome::Allowed {
            return Nanos::ZERO;
        }
        let waits = self.verdicts.iter().filter(|one| !one.shadow).map(|one| one.verdict.delay);
        waits.max().unwrap_or_default()
    }

    /// Whether a ban refuses the request.
    pub fn is_banned(&self) -> bool {
        self.verdicts.iter().any(|answer| answer.banned)
    }

    /// The first instant at which every refusing limit would let the request pass. `None` when
    /// nothing refuses, or when one of them never will.
    pub fn retry_after(&self) -> Option<Nanos> {
        let mut latest = None;
        for answer in self.refusing() {
            latest = latest.max(Some(answer.verdict.retry_after?));
        }
        latest
    }

    /// The limit with the least left, among those that `counts` names.
    pub fn tightest(&self, counts: impl Fn(&LimitVerdict) -> bool) -> Option<&LimitVerdict> {
        self.verdicts
            .iter()
            .filter(|answer| !answer.shadow && counts(answer))
            .min_by_key(|a| a.left())
    }

    /// The limit that stands in the log: the first that refuses, else the tightest.
    pub fn deciding(&self) -> Option<&LimitVerdict> {
        self.refusing().next().or_else(|| self.tightest(|_| true))
    }
}
