//! Signed tokens (JSON Web Tokens, RFC 7519): what they claim, once their signature is verified.
//!
//! Supported are HS256 with a secret, and [`PUBLIC_KEY_ALGORITHMS`] with the public keys of a JWKS (RFC 7517), which is a
//! file or published at a URL. This module does not know which request carries a token, what a claim is used for, or
//! how a set is fetched: [`crate::jwks`] fetches.
//!
//! Always true: the key and the configuration determine the algorithm, never the token alone; a token that fails verification claims
//! nothing, and is counted by its reason; and a published set is replaced whole, by a valid one.

mod algorithm;
mod claims;
mod error;
#[cfg(feature = "jwt")]
mod keys;
#[cfg(not(feature = "jwt"))]
#[path = "no_keys.rs"]
mod keys;
mod published;
mod refresh_schedule;
mod remembered;
#[cfg(feature = "jwt")]
mod ring_provider;
mod verifier;

pub use algorithm::{AlgorithmSet, PUBLIC_KEY_ALGORITHMS, TokenAlgorithm};
pub use claims::{ClaimLookup, DEFAULT_LEEWAY_SECS, WantedClaim};
pub use error::{KeysError, TokenError};
pub use published::{
    FetchError, FetchOutcome, FetchReport, FetchedKeySet, KeySetFetch, KeySetReport, KeySetUrl,
    PublishedKeySet,
};
pub use refresh_schedule::UNKNOWN_KEY_INTERVAL;
pub use verifier::{SignatureCheck, TokenVerifier, total_checks};
