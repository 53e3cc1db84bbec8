//! Signed tokens (JSON Web Tokens, RFC 7519): what they claim, once their signature is verified.
//!
//! Supported are HS256 with a secret, and RS256, ES256 and EdDSA with the public keys of a JWKS (RFC 7517). This
//! module does not know which request carries a token, nor what a claim is used for.
//!
//! Always true: the key determines the algorithm, never the token alone; and a token that fails verification claims
//! nothing, and is counted by its reason.

mod claims;
mod error;
#[cfg(feature = "jwt")]
mod keys;
#[cfg(not(feature = "jwt"))]
#[path = "no_keys.rs"]
mod keys;
#[cfg(feature = "jwt")]
mod ring_provider;
mod verifier;

pub use claims::ClaimLookup;
pub use error::{KeysError, TokenError};
pub use verifier::{SignatureCheck, TokenVerifier, total_checks};
