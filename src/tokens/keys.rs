//! Keys that tokens are checked with, and which of them a token is for.

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::TokenError;

/// Most keys of a set.
const MOST_KEYS: usize = 64;

/// Most keys that a token is tried with. One that names its key needs one; a set of many keys without
/// names would let a forged token cost as many signatures.
const MOST_TRIED: usize = 4;

/// The least bytes of a secret for HS256 (RFC 7518, section 3.2).
const LEAST_SECRET: usize = 32;

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// Too short for HS256.
    #[error("a secret for HS256 has at least {LEAST_SECRET} bytes, this one {0}")]
    ShortSecret(usize),
    /// Not a set of keys.
    #[error("is no JWKS: {0}")]
    Jwks(String),
    /// Nothing in it can be used.
    #[error("has no key for RS256, ES256 or EdDSA")]
    NoKey,
    /// The system gives no random numbers.
    #[error("no randomness for the memory of checked tokens: {0}")]
    Randomness(getrandom::Error),
    /// Too many.
    #[error("has more than {MOST_KEYS} keys")]
    TooMany,
}

/// Keys by what they are for.
pub(super) struct Keys(Vec<Key>);

struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

/// A token whose signature is true.
pub(super) struct Verified {
    pub(super) claims: Map<String, Value>,
}

impl Keys {
    pub(super) fn from_secret(secret: &[u8]) -> Result<Self, KeysError> {
        if secret.len() < LEAST_SECRET {
            return Err(KeysError::ShortSecret(secret.len()));
        }
        let key = DecodingKey::from_secret(secret);
        Ok(Self(vec![Key { id: None, algorithm: Algorithm::HS256, key }]))
    }

    pub(super) fn from_jwks(json: &str) -> Result<Self, KeysError> {
        // A set may hold keys of kinds that nobody here knows: each is read by itself.
        let set: Value =
            serde_json::from_str(json).map_err(|error| KeysError::Jwks(error.to_string()))?;
        let listed = set.get("keys").and_then(Value::as_array);
        let listed = listed.ok_or_else(|| KeysError::Jwks("no list of keys".to_owned()))?;
        if listed.len() > MOST_KEYS {
            return Err(KeysError::TooMany);
        }
        let known = listed.iter().filter_map(|one| serde_json::from_value(one.clone()).ok());
        let set = JwkSet { keys: known.collect() };
        let keys: Vec<Key> = set.keys.iter().filter_map(Key::of).collect();
        if keys.is_empty() { Err(KeysError::NoKey) } else { Ok(Self(keys)) }
    }

    /// Checks the signature with the keys that the token can be for.
    pub(super) fn verify(&self, token: &[u8]) -> Result<Verified, TokenError> {
        let header = decode_header(token).map_err(|_| TokenError::Malformed)?;
        // A token may name extensions that its reader has to understand or refuse it (RFC 7515, section
        // 4.1.11). None is known here, and the library leaves that to its caller.
        if header.crit.is_some() {
            return Err(TokenError::Malformed);
        }
        let fitting = self.0.iter().filter(|key| {
            key.algorithm == header.alg
                && header.kid.as_ref().is_none_or(|kid| {
                    // A secret has no name, and a token may name it all the same.
                    key.id.as_ref().is_none_or(|id| id == kid)
                })
        });
        let mut why = TokenError::UnknownKey;
        for key in fitting.take(MOST_TRIED) {
            let mut rules = Validation::new(key.algorithm);
            // Times are checked against a clock that is an argument; nobody is asked for others.
            rules.required_spec_claims.clear();
            rules.validate_exp = false;
            rules.validate_aud = false;
            match decode::<Map<String, Value>>(token, &key.key, &rules) {
                Ok(token) => return Ok(Verified { claims: token.claims }),
                Err(error) => {
                    why = match error.kind() {
                        ErrorKind::InvalidSignature => TokenError::Signature,
                        _ => TokenError::Malformed,
                    };
                }
            }
        }
        Err(why)
    }
}

impl Key {
    /// A public key for signatures, of one of the algorithms that are checked.
    fn of(jwk: &Jwk) -> Option<Self> {
        let algorithm = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => Algorithm::RS256,
            AlgorithmParameters::EllipticCurve(one) if one.curve == EllipticCurve::P256 => {
                Algorithm::ES256
            }
            AlgorithmParameters::OctetKeyPair(one) if one.curve == EllipticCurve::Ed25519 => {
                Algorithm::EdDSA
            }
            _ => return None,
        };
        let said = jwk.common.key_algorithm.as_ref();
        let other = said.is_some_and(|said| said.to_string() != format!("{algorithm:?}"));
        let encrypts = jwk.common.public_key_use == Some(PublicKeyUse::Encryption);
        if other || encrypts {
            return None;
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        Some(Self { id: jwk.common.key_id.clone(), algorithm, key })
    }
}
