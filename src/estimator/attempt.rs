//! What a limit asks of the confirm table, and what the table answers.

use super::shared_clock::SharedInstant;
use super::spot::Spot;
use crate::limit::{SlidingWindow, Verdict, WindowPair};

/// A charge that a key attempts.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeAttempt {
    pub(super) spot: Spot,
    pub(super) quota: SlidingWindow,
    /// The number of the limit, for lists of its suspects.
    pub(super) limit: u8,
    pub(super) spending: Spending,
    /// What the sketch knows if the key is a suspect. A suspect without a cell gets one if possible.
    pub(super) suspect: Option<Suspect>,
    /// What other nodes of the fleet have counted of the key.
    pub(super) elsewhere: Option<WindowPair>,
    /// When it is charged.
    pub(super) at: SharedInstant,
}

/// How units are spent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spending {
    /// If they fit.
    Charge(u32),
    /// Whether they fit or not.
    Debit(u32),
}

/// What the sketch knows of a suspect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    /// The units that it sent before, in both windows, as the sketch reads them: never too few.
    pub(super) sent: u32,
    /// The largest number of units that a key can send below the threshold.
    pub(super) unwatched: u32,
}

/// The confirm table's answer to an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptResult {
    pub(super) verdict: Verdict,
    /// Set for a suspect that had no cell before: the largest number of its units that no cell counts.
    pub(super) uncounted: Option<u32>,
}

impl Spending {
    /// The units.
    pub(super) const fn cost(self) -> u32 {
        match self {
            Self::Charge(cost) | Self::Debit(cost) => cost,
        }
    }
}

impl ChargeAttempt {
    /// The result for a key without a cell: nothing that it sent to this node is certain, so it is judged as if it sent
    /// nothing here.
    pub(super) fn result_without_cell(self) -> AttemptResult {
        AttemptResult { verdict: self.judge(WindowPair::default()), uncounted: None }
    }

    /// The verdict for a key of which this node counted `own`.
    pub(super) fn judge(&self, own: WindowPair) -> Verdict {
        judge_counts(self.quota, own, self.elsewhere, self.spending.cost(), self.at)
    }
}

/// Judges a cost by what this node and other nodes counted.
///
/// What this node counted is judged alone first, by the reading of the clock that dates its charges: it refuses as it would
/// without a fleet, however uncertain the fleet's time is. The sum is judged at the latest time that it can be.
pub(super) fn judge_counts(
    quota: SlidingWindow,
    own: WindowPair,
    elsewhere: Option<WindowPair>,
    cost: u32,
    at: SharedInstant,
) -> Verdict {
    let alone = quota.judge(own, cost, at.earliest);
    match elsewhere {
        None => alone,
        Some(elsewhere) => {
            let sum = quota.sum_of_counters(own, elsewhere, at.latest);
            stricter(alone, quota.judge(sum, cost, at.latest))
        }
    }
}

/// The verdict that leaves a client less.
fn stricter(alone: Verdict, together: Verdict) -> Verdict {
    match (alone.allowed, together.allowed) {
        (true, false) => together,
        (false, true) => alone,
        (true, true) if together.remaining <= alone.remaining => together,
        (true, true) => alone,
        // None: it never fits.
        (false, false) => match (alone.retry_after, together.retry_after) {
            (Some(own), Some(other)) if own < other => together,
            (Some(_), None) => together,
            _ => alone,
        },
    }
}
