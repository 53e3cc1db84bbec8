//! The answer of one limit to one charge.

use crate::clock::Nanos;

/// The answer of one limit to one charge. Units are the limit's own; all spans count from the `now` of the
/// question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct Verdict {
    /// Whether the charge fits.
    pub allowed: bool,
    /// Units that a key with a full cell can spend at once: of a window its limit; of a bucket its burst, plus
    /// the units that requests may wait for.
    pub limit: u32,
    /// Units that can be spent at once after this verdict (after the charge, if it is allowed).
    pub remaining: u32,
    /// How long the request waits before it is forwarded, if it is allowed. Zero except for a bucket with
    /// `max_delay`.
    pub delay: Nanos,
    /// Time until the cell is full again, if nothing more is spent.
    pub reset: Nanos,
    /// Time until the same charge can first succeed, if nothing else is spent: `Some(0)` when it is allowed,
    /// `None` when it is larger than the limit and can never succeed.
    pub retry_after: Option<Nanos>,
}

/// [`Verdict::retry_after`] of a charge of `cost`. `wait` computes the time until the charge fits; it runs only
/// for a refused charge that is not larger than `limit`.
pub(super) fn retry_after(
    allowed: bool,
    cost: u32,
    limit: u32,
    wait: impl FnOnce() -> Nanos,
) -> Option<Nanos> {
    if allowed {
        Some(Nanos::ZERO)
    } else if cost > limit {
        None
    } else {
        Some(wait())
    }
}
