//! Candidates: a second rate of a limit that is judged as well, to measure how often it would decide otherwise.
//!
//! A candidate never refuses a request. It is charged only if no other limit refuses, on a cell of its own.

use std::sync::{Arc, OnceLock};

use super::counters::LimitCounters;
use super::decision::Decision;
use super::generation::Generation;
use super::loaded_limit::{ExactLimit, TierState};
use super::target::Target;
use crate::policy::{KeyHash, LimitIndex};
use crate::store::IssuedQuota;

/// What a candidate would decide for a request.
#[derive(Clone, Debug)]
pub struct CandidateVerdict {
    /// The limit whose candidate it is.
    pub limit: LimitIndex,
    /// Whether the rate in force admits the request.
    pub live: bool,
    /// Whether the candidate admits it; empty until the store has answered.
    pub candidate: Arc<OnceLock<bool>>,
}

/// A candidate's verdict compared with that of the rate in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateComparison {
    /// Both decide the same.
    Agrees,
    /// The candidate would deny what is allowed.
    WouldDeny,
    /// The candidate would allow what is denied.
    WouldAllow,
}

/// The candidate of a limit for one request.
pub(super) struct CandidateJudgment<'g> {
    pub(super) limit: &'g ExactLimit,
    pub(super) quota: &'g Arc<IssuedQuota>,
    pub(super) verdict: CandidateVerdict,
}

impl CandidateComparison {
    /// Every comparison, in the order of the counters.
    pub const ALL: [Self; 3] = [Self::Agrees, Self::WouldDeny, Self::WouldAllow];

    /// The label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::WouldDeny => "would_deny",
            Self::WouldAllow => "would_allow",
        }
    }
}

impl CandidateVerdict {
    /// The comparison, if the candidate's verdict is known.
    pub fn comparison(&self) -> Option<CandidateComparison> {
        Some(match (self.live, *self.candidate.get()?) {
            (true, false) => CandidateComparison::WouldDeny,
            (false, true) => CandidateComparison::WouldAllow,
            (true, true) | (false, false) => CandidateComparison::Agrees,
        })
    }

    /// Whether no other limit refuses the request.
    pub(super) fn others_admit(&self, decision: &Decision) -> bool {
        decision.refusing().all(|limit_verdict| limit_verdict.limit == self.limit)
    }

    /// The target of the candidate: that of the limit with another cell.
    pub(super) fn target(&self, target: &Target) -> Target {
        // Keys are hashes, so a key that differs by a constant collides no more often than any other.
        let high = target.key.high ^ CANDIDATE_CELLS;
        let low = target.key.low ^ CANDIDATE_CELLS;
        Target { key: KeyHash { high, low }, ..*target }
    }

    /// Records the candidate's verdict.
    pub(super) fn record(&self, counters: &LimitCounters, allowed: bool) {
        let _ = self.candidate.set(allowed);
        if let Some(comparison) = self.comparison() {
            counters.record_candidate(comparison);
        }
    }
}

/// Separates a candidate's cells from those of its limit.
const CANDIDATE_CELLS: u64 = 0x9e37_79b9_7f4a_7c15;

impl Generation {
    /// The candidate of a limit; `None` if it has none, or if the key has a rate of its own.
    pub(super) fn candidate(
        &self,
        target: &Target,
        decision: &Decision,
    ) -> Option<CandidateJudgment<'_>> {
        let TierState::Exact(limit) = &self.loaded(target.limit).state else {
            return None;
        };
        let quota = limit.candidate.as_ref().filter(|_| target.rate == 0 && !target.denied)?;
        let mut verdicts = decision.verdicts.iter();
        let live = verdicts.find(|limit_verdict| limit_verdict.limit == target.limit)?;
        let verdict = CandidateVerdict {
            limit: target.limit,
            live: live.verdict.allowed,
            candidate: Arc::default(),
        };
        Some(CandidateJudgment { limit, quota, verdict })
    }
}
