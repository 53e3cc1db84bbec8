//! What a limit asks of the confirm table, and what the table answers.

use super::spot::Spot;
use crate::clock::Nanos;
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
    /// Wall time.
    pub(super) now: Nanos,
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
    /// The result for a key without a cell: nothing that it sent is certain, so it is judged as if it sent nothing.
    pub(super) fn result_without_cell(self) -> AttemptResult {
        let verdict = self.quota.judge(WindowPair::default(), self.spending.cost(), self.now);
        AttemptResult { verdict, uncounted: None }
    }
}
