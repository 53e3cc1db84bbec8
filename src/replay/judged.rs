//! What the engine decided of one request of a log, as everything that counts for a report reads it.
//!
//! These are plain values. They know neither the engine nor the log.

use std::borrow::Cow;

use crate::clock::Nanos;

/// What reports show in the stead of a path that may hold a key.
pub(super) const HIDDEN: &str = "(hidden)";

/// One request of a log, judged.
#[derive(Clone, Copy)]
pub struct JudgedRequest<'r> {
    /// Its position in the order in which the requests were judged, from 0.
    pub number: u64,
    /// When it began, since the Unix epoch.
    pub at: Nanos,
    /// By how much the true beginning may be later. It is not earlier.
    pub uncertainty: Nanos,
    /// The index of its route in the policy.
    pub route: Option<usize>,
    /// Whether a limit that is enforced refuses it.
    pub refused: bool,
    /// The status that the log has.
    pub status: Option<u16>,
    /// The method.
    pub method: &'r str,
    /// The host; empty if the log has none.
    pub host: &'r str,
    /// The path without the query.
    pub path: &'r str,
    /// What each limit of the route found, in the order of the route. A limit that could not be judged is left out.
    pub verdicts: &'r [KeyVerdict],
    /// Gives the text of the key of a verdict, by its index in `verdicts`.
    pub shown: &'r dyn ShowKey,
}

impl JudgedRequest<'_> {
    /// The same request, without its path or host if that is hidden in the other one: another policy may have keys in it.
    pub(super) fn hidden_as(self, other: &JudgedRequest<'_>) -> Self {
        let path = if other.path == HIDDEN { HIDDEN } else { self.path };
        let host = if other.host == HIDDEN { HIDDEN } else { self.host };
        Self { path, host, ..self }
    }
}

/// Shows keys in reports: addresses as they are, other keys as a hash, or as text if the operator asks for it.
pub trait ShowKey {
    /// The text for the key of a verdict.
    fn show(&self, verdict: &KeyVerdict) -> Cow<'_, str>;
}

/// What one limit found for the key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyVerdict {
    /// The index of the limit in the policy.
    pub limit: usize,
    /// The hash of the key.
    pub key: u128,
    /// Units that the request costs.
    pub cost: u32,
    /// Whose rate was applied.
    pub rate: AppliedRate,
    /// The answer.
    pub result: KeyResult,
    /// Whether the limit refuses no request here: it is in shadow mode, or its rollout leaves the key out.
    pub shadow: bool,
}

/// Whose rate a limit applied to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppliedRate {
    /// The limit's own.
    Own,
    /// That of a plan, an override or a rule.
    Other,
}

/// The answer of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyResult {
    /// The request is within the limit.
    Admitted,
    /// It is above the limit.
    Refused,
    /// A ban refuses it.
    Banned,
}

impl KeyResult {
    /// Whether the limit refuses the request, or would without shadow mode.
    pub const fn refuses(self) -> bool {
        matches!(self, Self::Refused | Self::Banned)
    }
}
