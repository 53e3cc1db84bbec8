//! Why tokens are rejected, and how many were; and why keys cannot be used.

use std::sync::atomic::{AtomicU64, Ordering};

use super::algorithm::PUBLIC_KEY_ALGORITHMS;

/// Rejected tokens by reason. The counters belong to the process, since keys come and go with configurations.
static REJECTED: [AtomicU64; TokenError::ALL.len()] =
    [const { AtomicU64::new(0) }; TokenError::ALL.len()];

/// Why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// It is not a token, or lacks the claim.
    Malformed,
    /// It names a key (`kid`) that is not in the set, and no other key has made its signature.
    UnknownKey,
    /// No key is for its algorithm, or the configuration does not allow it.
    Algorithm,
    /// Its signature was not made with the matching key.
    Signature,
    /// Its expiration time has passed (`exp`, RFC 7519, section 4.1.4).
    Expired,
    /// Its validity has not begun (`nbf`, RFC 7519, section 4.1.5).
    NotYet,
    /// Another one than the configured issuer issued it (`iss`, RFC 7519, section 4.1.1).
    Issuer,
    /// It is for others (`aud`, RFC 7519, section 4.1.3).
    Audience,
    /// The keys have not been fetched yet.
    NoKeys,
}

impl TokenError {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 9] = [
        Self::Malformed,
        Self::UnknownKey,
        Self::Algorithm,
        Self::Signature,
        Self::Expired,
        Self::NotYet,
        Self::Issuer,
        Self::Audience,
        Self::NoKeys,
    ];

    /// The label value of the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Algorithm => "algorithm",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::NotYet => "not_yet",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::NoKeys => "no_keys",
        }
    }

    /// The reason in words, for people who ask about their own token. (A client is told none: that would help forgers.)
    pub const fn description(self) -> &'static str {
        match self {
            Self::Malformed => "it is no token, or lacks the claim",
            Self::UnknownKey => "it names a key (kid) that is not in the set",
            Self::Algorithm => {
                "no key is for its algorithm (alg), or algorithms does not allow it, or it is not supported"
            }
            Self::Signature => "its signature was not made with the key that it names",
            Self::Expired => "it has expired (exp, with leeway)",
            Self::NotYet => "it is not valid yet (nbf, with leeway)",
            Self::Issuer => "its issuer (iss) is not the configured one",
            Self::Audience => "it is for others (aud)",
            Self::NoKeys => "the keys have not been fetched",
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
    #[error("has no key for {PUBLIC_KEY_ALGORITHMS}{}", exception_text(*unsupported))]
    NoKey {
        /// The algorithm of a key that it has, if that is not supported.
        unsupported: Option<&'static str>,
    },
    /// No key is for one of the allowed algorithms.
    #[error("has no key for one of the algorithms")]
    NoKeyAllowed,
    /// Two keys for one algorithm have the same id.
    #[error("has two keys with the same id (kid)")]
    SameId,
    /// A set that everybody can fetch has a secret: everybody could sign.
    #[error("publishes a secret (kty oct)")]
    PublishedSecret,
    /// A set that everybody can fetch has a private key: everybody could sign.
    #[error("publishes a private key (d)")]
    PublishedPrivateKey,
    /// A file of public keys has a private key.
    #[error("has a private key (d), which only signs; leave d, p, q, dp, dq and qi out")]
    PrivateKey,
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

/// The end of [`KeysError::NoKey`].
fn exception_text(unsupported: Option<&str>) -> String {
    unsupported.map(|name| format!("; {name} is not supported")).unwrap_or_default()
}
