//! Why tokens are rejected, and how many were; and why keys cannot be used.

use std::sync::atomic::{AtomicU64, Ordering};

/// Rejected tokens by reason. The counters belong to the process, since keys come and go with configurations.
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

/// The largest number of keys of a set.
pub(super) const MAX_KEYS: usize = 64;

/// The shortest secret for HS256, in bytes (RFC 7518, section 3.2).
pub(super) const MIN_SECRET: usize = 32;

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// The secret has this many bytes, too few for HS256.
    #[error("a secret for HS256 has at least {MIN_SECRET} bytes, this one {0}")]
    ShortSecret(usize),
    /// The text is not a JWKS.
    #[error("is no JWKS: {0}")]
    Jwks(String),
    /// The JWKS has no key that can be used.
    #[error("has no key for RS256, ES256 or EdDSA")]
    NoKey,
    /// The system provides no random numbers.
    #[error("no random bytes for the cache of checked tokens: {0}")]
    Randomness(getrandom::Error),
    /// The build leaves out the code that checks signatures.
    #[error("this build checks no signatures: build with the feature `jwt`")]
    LeftOut,
    /// The JWKS has too many keys.
    #[error("has more than {MAX_KEYS} keys")]
    TooMany,
}
