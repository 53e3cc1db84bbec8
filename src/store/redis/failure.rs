//! Why the store did not settle a charge.

use super::metrics::CallOutcome;

/// Why a charge was not settled by the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFailure {
    /// No answer in time: it may have been spent.
    Timeout,
    /// No connection: it was not sent, and nothing was spent.
    Unreachable,
    /// The connection broke while the call was away: it may have been spent.
    Lost,
    /// The server refused it, redirects did not end, or no call can carry it: nothing was spent.
    Refused,
    /// An answer that means nothing: it may have been spent.
    Invalid,
    /// A cell of the call holds what tollgate did not write: nothing was spent.
    Unreadable,
    /// Its deadline passed before it was sent: nothing was spent.
    Withdrawn,
    /// The queue is full: it was not sent, and nothing was spent.
    QueueFull,
}

impl StoreFailure {
    /// Whether the charge may have been spent all the same.
    pub const fn may_have_charged(self) -> bool {
        match self {
            Self::Timeout | Self::Lost | Self::Invalid => true,
            Self::Unreachable
            | Self::Refused
            | Self::Unreadable
            | Self::Withdrawn
            | Self::QueueFull => false,
        }
    }

    /// How a call that failed so is counted. (`Unreachable`, `Withdrawn` and `QueueFull` stand for calls
    /// that were not sent, and are not counted.)
    pub(super) const fn outcome(self) -> CallOutcome {
        match self {
            Self::Timeout | Self::Withdrawn => CallOutcome::Timeout,
            Self::Unreachable | Self::Lost | Self::QueueFull => CallOutcome::Unreachable,
            Self::Refused => CallOutcome::Refused,
            Self::Invalid | Self::Unreadable => CallOutcome::Invalid,
        }
    }
}
