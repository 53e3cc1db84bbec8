//! The reasons why the store did not settle a charge. Each says whether the charge may have been charged
//! nevertheless: such a charge is never sent again.

use super::metrics::CallOutcome;

/// Why the store did not settle a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFailure {
    /// No answer in time. It may have been charged.
    Timeout,
    /// No connection. It was not sent, and nothing was charged.
    Unreachable,
    /// The connection broke during the call. It may have been charged.
    Lost,
    /// The server refused it, redirects did not end, or no call can carry it. Nothing was charged.
    Refused,
    /// The reply is invalid. It may have been charged.
    Invalid,
    /// A cell of the call holds a value that tollgate did not write. Nothing was charged.
    Unreadable,
    /// Its deadline passed before it was sent. Nothing was charged.
    Withdrawn,
    /// The queue is full. It was not sent, and nothing was charged.
    QueueFull,
}

impl StoreFailure {
    /// Whether the charge may have been charged nevertheless.
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

    /// What a store does that fails in this way, for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Invalid => "the store's answer makes no sense",
            Self::Refused => "the store refuses the call",
            Self::Timeout
            | Self::Unreachable
            | Self::Lost
            | Self::Unreadable
            | Self::Withdrawn
            | Self::QueueFull => "the store does not answer",
        }
    }

    /// The outcome under which a call that failed in this way is counted. (`Unreachable`, `Withdrawn` and
    /// `QueueFull` describe calls that were not sent, which are not counted.)
    pub(super) const fn outcome(self) -> CallOutcome {
        match self {
            Self::Timeout | Self::Withdrawn => CallOutcome::Timeout,
            Self::Unreachable | Self::Lost | Self::QueueFull => CallOutcome::Unreachable,
            Self::Refused => CallOutcome::Refused,
            Self::Invalid | Self::Unreadable => CallOutcome::Invalid,
        }
    }
}
