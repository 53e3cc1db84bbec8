//! A candidate: a second rate judged beside the one in force, to see how often they disagree.

use std::sync::{Arc, OnceLock};

use super::generation::{Counter, ExactLimit};
use super::target::Target;
use super::{Decision, Generation, LimitCounters};
use crate::policy::{KeyHash, LimitIndex};
use crate::store::IssuedQuota;

/// What a candidate says of a request.
#[derive(Clone, Debug)]
pub struct CandidateVerdict {
    /// The limit that it is a candidate for.
    pub limit: LimitIndex,
    /// Whether the rate in force lets the request pass.
    pub live: bool,
    /// Whether the candidate would; empty while the store is asked.
    pub candidate: Arc<OnceLock<bool>>,
}

/// How a candidate's verdict is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateComparison {
    /// It says what the rate in force says.
    Agrees,
    /// It would deny what is allowed.
    WouldDeny,
    /// It would allow what is denied.
    WouldAllow,
}

impl CandidateComparison {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 3] = [Self::Agrees, Self::WouldDeny, Self::WouldAllow];

    /// The word of the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::WouldDeny => "would_deny",
            Self::WouldAllow => "would_allow",
        }
    }
}

impl CandidateVerdict {
    /// What came of it, if that is known by now.
    pub fn kind(&self) -> Option<CandidateComparison> {
        Some(match (self.live, *self.candidate.get()?) {
            (true, false) => CandidateComparison::WouldDeny,
            (false, true) => CandidateComparison::WouldAllow,
            _ => CandidateComparison::Agrees,
        })
    }

    /// Whether the request would pass with the candidate in the limit's place, as far as the other
    /// limits say.
    pub(super) fn would_pass(&self, decision: &Decision) -> bool {
        decision.refusing().all(|answer| answer.limit == self.limit)
    }

    /// The target of the candidate: the limit's, with a cell of its own.
    pub(super) fn target(&self, target: &Target) -> Target {
        // Keys are hashes: one that differs by a constant is as far from all others as any.
        let key = KeyHash { high: target.key.high ^ APART, low: target.key.low ^ APART };
        Target { key, ..*target }
    }

    /// The candidate has been asked.
    pub(super) fn answered(&self, counters: &LimitCounters, allowed: bool) {
        let _ = self.candidate.set(allowed);
        if let Some(kind) = self.kind() {
            counters.record_candidate(kind);
        }
    }
}

/// What sets a candidate's cells apart from those of its limit.
const APART: u64 = 0x9e37_79b9_7f4a_7c15;

impl Generation {
    /// The candidate of a limit, unless the key has a rate of its own.
    pub(super) fn trial(
        &self,
        target: &Target,
        decision: &Decision,
    ) -> Option<(&ExactLimit, &Arc<IssuedQuota>, CandidateVerdict)> {
        let Counter::Exact(exact) = &self.counting(target.limit).counter else {
            return None;
        };
        let quota = exact.candidate.as_ref().filter(|_| target.rate == 0 && !target.denied)?;
        let live = decision.verdicts.iter().find(|answer| answer.limit == target.limit)?;
        let trial = CandidateVerdict {
            limit: target.limit,
            live: live.verdict.allowed,
            candidate: Arc::default(),
        };
        Some((exact, quota, trial))
    }
}
