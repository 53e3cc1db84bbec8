//! A request between the steps of its decision.

use super::decision::Outcome;
use super::succession::LateJudgment;
use super::target::Targets;
use super::tentative::Tentative;

/// A request that the shared store or a successor has yet to judge. Dropping it frees its slots in flight and refunds nothing, like
/// any aborted request.
#[must_use = "the request is not decided yet"]
#[derive(Default)]
pub(crate) struct Unsettled {
    pub(super) targets: Targets,
    pub(super) tentative: Tentative,
    /// The outcome if no limit refuses: the request's token was checked and gives no key.
    pub(super) rejected: Option<Outcome>,
    /// Whether a successor has its cells; nothing is charged then.
    pub(super) is_handed_over: bool,
    /// Where the judgment of a successor goes that did not answer in time.
    pub(super) late: Option<LateJudgment>,
    /// Whether a token was checked in vain. The client is charged for the check, whatever the outcome is.
    pub(super) failed_token_check: bool,
    /// When the limits were asked, for a trace.
    pub(super) asked: AskedAt,
}

/// The positions of the questions of one request in the order of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AskedAt {
    /// Of that without a charge, before a token is checked.
    pub(super) before_check: Option<u64>,
    /// Of that with a charge.
    pub(super) charging: Option<u64>,
}
