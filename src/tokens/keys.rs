//! The keys that verify tokens, and which of them may verify a given token.

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::error::{KeysError, MAX_KEYS, MIN_SECRET, TokenError};
use super::ring_provider;

/// The largest number of keys that are tried for one token. For a token that names its key, one is enough. Without this
/// bound, a forged token would cost as many signature checks as the set has matching keys.
const MAX_TRIED: usize = 4;

/// Keys for signatures.
pub(super) struct VerificationKeys(Vec<VerificationKey>);

struct VerificationKey {
    /// The key id (`kid`), if the set gives one; a secret has none.
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl VerificationKeys {
    pub(super) fn from_secret(secret: &[u8]) -> Result<Self, KeysError> {
        ring_provider::install();
        if secret.len() < MIN_SECRET {
            return Err(KeysError::ShortSecret(secret.len()));
        }
        let key = DecodingKey::from_secret(secret);
        Ok(Self(vec![VerificationKey { id: None, algorithm: Algorithm::HS256, key }]))
    }

    pub(super) fn from_jwks(json: &str) -> Result<Self, KeysError> {
        ring_provider::install();
        // Each key is parsed by itself: a set may have keys of types that the library does not know, which are
        // ignored (RFC 7517, section 5).
        let set: Value =
            serde_json::from_str(json).map_err(|error| KeysError::Jwks(error.to_string()))?;
        let listed = set.get("keys").and_then(Value::as_array);
        let listed = listed.ok_or_else(|| KeysError::Jwks("no list of keys".to_owned()))?;
        if listed.len() > MAX_KEYS {
            return Err(KeysError::TooMany);
        }
        let known = listed.iter().filter_map(|key| serde_json::from_value(key.clone()).ok());
        let set = JwkSet { keys: known.collect() };
        let keys: Vec<_> = set.keys.iter().filter_map(VerificationKey::from_jwk).collect();
        if keys.is_empty() { Err(KeysError::NoKey) } else { Ok(Self(keys)) }
    }

    /// Verifies the signature with the keys that match the token's header. Returns the claims.
    pub(super) fn verify(&self, token: &[u8]) -> Result<Map<String, Value>, TokenError> {
        let header = decode_header(token).map_err(|_| TokenError::Malformed)?;
        // A token that names critical extensions must be rejected by a reader that does not understand them (RFC 7515,
        // section 4.1.11). We understand none, and the library leaves this check to its caller.
        if header.crit.is_some() {
            return Err(TokenError::Malformed);
        }
        let matching = self.0.iter().filter(|key| {
            key.algorithm == header.alg
                && header.kid.as_ref().is_none_or(|kid| {
                    // A key without an id matches whatever id the token names.
                    key.id.as_ref().is_none_or(|id| id == kid)
                })
        });
        let mut last_error = TokenError::UnknownKey;
        for key in matching.take(MAX_TRIED) {
            match decode::<Map<String, Value>>(token, &key.key, &key.signature_only()) {
                Ok(token) => return Ok(token.claims),
                Err(error) => {
                    last_error = match error.kind() {
                        ErrorKind::InvalidSignature => TokenError::Signature,
                        _ => TokenError::Malformed,
                    };
                }
            }
        }
        Err(last_error)
    }
}

impl VerificationKey {
    /// A public key for signatures, if it is for one of the supported algorithms.
    fn from_jwk(jwk: &Jwk) -> Option<Self> {
        let algorithm = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => Algorithm::RS256,
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
                Algorithm::ES256
            }
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                Algorithm::EdDSA
            }
            _ => return None,
        };
        let declared = jwk.common.key_algorithm.as_ref();
        let is_other = declared.is_some_and(|name| name.to_string() != format!("{algorithm:?}"));
        let is_for_encryption = jwk.common.public_key_use == Some(PublicKeyUse::Encryption);
        if is_other || is_for_encryption {
            return None;
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        Some(Self { id: jwk.common.key_id.clone(), algorithm, key })
    }

    /// Lets the library check the signature only. `claims.rs` checks the times, by a clock that is an argument; no
    /// other claim is required.
    fn signature_only(&self) -> Validation {
        let mut validation = Validation::new(self.algorithm);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation
    }
}
