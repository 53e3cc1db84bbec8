//! Candidates: a second rate of a limit that is judged as well, to measure how often it would decide otherwise.
//!
//! A candidate never refuses a request. It is charged only if no other limit refuses, on a cell of its own.

use std::sync::{Arc, OnceLock};

use super::counters::{CandidateComparison, LimitCounters};
use crate::policy::LimitIndex;

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

impl CandidateVerdict {
    /// The comparison, if the candidate's verdict is known.
    pub fn comparison(&self) -> Option<CandidateComparison> {
        Some(match (self.live, *self.candidate.get()?) {
            (true, false) => CandidateComparison::WouldDeny,
            (false, true) => CandidateComparison::WouldAllow,
            (true, true) | (false, false) => CandidateComparison::Agrees,
        })
    }

    /// Records the candidate's verdict.
    pub(super) fn record(&self, counters: &LimitCounters, allowed: bool) {
        // The first verdict stays.
        let _ = self.candidate.set(allowed);
        if let Some(comparison) = self.comparison() {
            counters.record_candidate(comparison);
        }
    }
}
