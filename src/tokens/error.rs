//! Why tokens are rejected, and how many were.

use std::sync::atomic::{AtomicU64, Ordering};

/// Rejected tokens by reason. These are counters of the process, since keys come and go with configurations.
static REJECTED: [AtomicU64; TokenError::ALL.len()] =
    [const { AtomicU64::new(0) }; TokenError::ALL.len()];

/// Why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// It is not a token, or lacks the claim.
    Malformed,
    /// No key matches its algorithm and key id.
    UnknownKey,
    /// Its signature was not made with the matching key.
    Signature,
    /// Its expiration time has passed (`exp`, RFC 7519, section 4.1.4).
    Expired,
    /// Its validity has not begun (`nbf`, RFC 7519, section 4.1.5).
    NotYet,
}

impl TokenError {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 5] =
        [Self::Malformed, Self::UnknownKey, Self::Signature, Self::Expired, Self::NotYet];

    /// The label value of the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::NotYet => "not_yet",
        }
    }

    /// How many tokens were rejected for this reason since the process started.
    pub fn count(self) -> u64 {
        REJECTED[self as usize].load(Ordering::Relaxed)
    }

    /// Records one rejected token.
    pub(super) fn record(self) {
        REJECTED[self as usize].fetch_add(1, Ordering::Relaxed);
    }
}
