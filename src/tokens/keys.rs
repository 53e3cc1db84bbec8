//! The keys that verify tokens, and which of them may verify a given token.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::algorithm::{AlgorithmSet, TokenAlgorithm};
use super::error::{KeysError, MAX_KEYS, MIN_SECRET, TokenError};
use super::ring_provider;

/// The largest number of keys that are tried for one token. For a token that names its key, one is enough. Without this
/// bound, a forged token would cost as many signature checks as the set has matching keys.
const MAX_TRIED: usize = 4;

/// The sizes of an RSA modulus that the signature check accepts, in bytes.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1_024;

/// Keys for signatures. Two of them are equal if they were read from equal keys in the same order.
pub(super) struct VerificationKeys {
    keys: Vec<VerificationKey>,
}

struct VerificationKey {
    /// What it was read from; a secret has none.
    jwk: Option<Jwk>,
    use_for: UseFor,
    key: DecodingKey,
}

/// Which algorithms a key verifies.
#[derive(Clone, Copy)]
enum UseFor {
    /// The one that it names, or the only one of its type.
    Only(TokenAlgorithm),
    /// An RSA key that names none: RS256, or those of RSA that the configuration names.
    AnyRsa,
}

impl UseFor {
    /// The algorithms, where the configuration allows these.
    fn within(self, allowed: AlgorithmSet) -> AlgorithmSet {
        match self {
            Self::AnyRsa if allowed == AlgorithmSet::ALL => {
                AlgorithmSet::from_iter([TokenAlgorithm::Rs256])
            }
            Self::AnyRsa => TokenAlgorithm::RSA
                .into_iter()
                .filter(|algorithm| allowed.contains(*algorithm))
                .collect(),
            Self::Only(algorithm) => {
                AlgorithmSet::from_iter(allowed.contains(algorithm).then_some(algorithm))
            }
        }
    }

    /// Whether both keys may be for the same algorithm.
    fn meets(self, other: Self) -> bool {
        let all = |use_for| match use_for {
            Self::Only(algorithm) => AlgorithmSet::from_iter([algorithm]),
            Self::AnyRsa => AlgorithmSet::from_iter(TokenAlgorithm::RSA),
        };
        all(self).meets(all(other))
    }
}

impl VerificationKeys {
    pub(super) fn from_secret(secret: &[u8]) -> Result<Self, KeysError> {
        ring_provider::install();
        if secret.len() < MIN_SECRET {
            return Err(KeysError::ShortSecret(secret.len()));
        }
        let key = DecodingKey::from_secret(secret);
        let key = VerificationKey { jwk: None, use_for: UseFor::Only(TokenAlgorithm::Hs256), key };
        Ok(Self { keys: vec![key] })
    }

    /// The public keys of a set that the operator has written into a file. One with a key that signs is refused: only the
    /// issuer of tokens needs it.
    pub(super) fn from_jwks(json: &str) -> Result<Self, KeysError> {
        let listed = listed(json.as_bytes())?;
        if listed.iter().any(|key| key.get("d").is_some()) {
            return Err(KeysError::PrivateKey);
        }
        Self::from_listed(&listed)
    }

    /// The public keys of a set that anyone can fetch. One with a key that signs is refused whole: whoever reads it can
    /// sign, and what else its publisher did wrong is not known.
    pub(super) fn from_published_jwks(json: &[u8]) -> Result<Self, KeysError> {
        let listed = listed(json)?;
        for key in &listed {
            if key.get("kty").and_then(Value::as_str) == Some("oct") {
                return Err(KeysError::PublishedSecret);
            }
            if key.get("d").is_some() {
                return Err(KeysError::PublishedPrivateKey);
            }
        }
        Self::from_listed(&listed)
    }

    fn from_listed(listed: &[Value]) -> Result<Self, KeysError> {
        ring_provider::install();
        // Each key is parsed by itself: a set may have keys of types that the library does not know, which are
        // ignored (RFC 7517, section 5).
        let known = listed.iter().filter_map(|key| serde_json::from_value(key.clone()).ok());
        let keys: Vec<_> = known.filter_map(VerificationKey::from_jwk).collect();
        if keys.is_empty() {
            return Err(KeysError::NoKey { unsupported: listed.iter().find_map(unsupported) });
        }
        // Which of them a token names cannot be known. (Keys for different algorithms may share an id: RFC 7517, section 4.5.)
        let is_repeated = |(index, key): (usize, &VerificationKey)| {
            let is_same = |other: &VerificationKey| {
                key.id().is_some() && other.id() == key.id() && other.use_for.meets(key.use_for)
            };
            keys[..index].iter().any(is_same)
        };
        if keys.iter().enumerate().any(is_repeated) {
            return Err(KeysError::SameId);
        }
        Ok(Self { keys })
    }

    /// How many keys there are.
    pub(super) fn count(&self) -> usize {
        self.keys.len()
    }

    /// Whether a key is for one of these algorithms.
    pub(super) fn is_allowed_by(&self, algorithms: AlgorithmSet) -> bool {
        self.keys.iter().any(|key| key.use_for.within(algorithms).meets(algorithms))
    }

    /// Verifies the signature with the keys that match the token's header and are for one of the algorithms. Returns
    /// the claims.
    pub(super) fn verify(
        &self,
        token: &[u8],
        algorithms: AlgorithmSet,
    ) -> Result<Map<String, Value>, TokenError> {
        let header = decode_header(token).map_err(|_| unreadable(token))?;
        // A token that names critical extensions must be rejected by a reader that does not understand them (RFC 7515,
        // section 4.1.11). We understand none, and the library leaves this check to its caller.
        if header.crit.is_some() {
            return Err(TokenError::Malformed);
        }
        let kid = header.kid.as_deref();
        let names_unknown_key =
            kid.is_some() && !self.keys.iter().any(|key| key.id().is_some() && key.id() == kid);
        let algorithm = own_algorithm(&header).ok_or(TokenError::Algorithm)?;
        let matching = self.keys.iter().filter(|key| {
            key.use_for.within(algorithms).contains(algorithm)
                // A key without an id matches whatever id the token names.
                && (kid.is_none() || key.id().is_none() || key.id() == kid)
        });
        let mut last_error = TokenError::Algorithm;
        for key in matching.take(MAX_TRIED) {
            match decode::<Map<String, Value>>(token, &key.key, &signature_only(header.alg)) {
                Ok(token) => return Ok(token.claims),
                Err(error) => {
                    last_error = match error.kind() {
                        ErrorKind::InvalidSignature => TokenError::Signature,
                        _ => TokenError::Malformed,
                    };
                }
            }
        }
        Err(if names_unknown_key { TokenError::UnknownKey } else { last_error })
    }
}

impl PartialEq for VerificationKeys {
    fn eq(&self, other: &Self) -> bool {
        let jwks = |set: &Self| set.keys.iter().map(|key| key.jwk.clone()).collect::<Vec<_>>();
        jwks(self) == jwks(other)
    }
}

/// The keys of a set as JSON values.
fn listed(json: &[u8]) -> Result<Vec<Value>, KeysError> {
    let set: Value =
        serde_json::from_slice(json).map_err(|error| KeysError::Jwks(error.to_string()))?;
    let Value::Object(mut members) = set else {
        return Err(KeysError::Jwks("no list of keys".to_owned()));
    };
    match members.remove("keys") {
        Some(Value::Array(listed)) if listed.len() > MAX_KEYS => Err(KeysError::TooMany),
        Some(Value::Array(listed)) => Ok(listed),
        _ => Err(KeysError::Jwks("no list of keys".to_owned())),
    }
}

impl VerificationKey {
    /// A public key for signatures, if it is for one of the supported algorithms.
    fn from_jwk(jwk: Jwk) -> Option<Self> {
        let common = &jwk.common;
        let declared = common.key_algorithm.as_ref().map(ToString::to_string);
        let use_for = match (&jwk.algorithm, &declared) {
            (AlgorithmParameters::RSA(key), name) => {
                let modulus = URL_SAFE_NO_PAD.decode(&key.n).ok()?;
                let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
                if !RSA_BYTES.contains(&(modulus.len() - zeros)) {
                    return None;
                }
                match name {
                    None => UseFor::AnyRsa,
                    Some(name) => {
                        let mut of_rsa = TokenAlgorithm::RSA.into_iter();
                        UseFor::Only(of_rsa.find(|algorithm| algorithm.name() == name)?)
                    }
                }
            }
            (AlgorithmParameters::EllipticCurve(key), name) => {
                let algorithm = match key.curve {
                    EllipticCurve::P256 => TokenAlgorithm::Es256,
                    EllipticCurve::P384 => TokenAlgorithm::Es384,
                    _ => return None,
                };
                only(algorithm, name.as_deref())?
            }
            (AlgorithmParameters::OctetKeyPair(key), name)
                if key.curve == EllipticCurve::Ed25519 =>
            {
                only(TokenAlgorithm::EdDsa, name.as_deref())?
            }
            _ => return None,
        };
        let is_for_signatures = !matches!(
            common.public_key_use,
            Some(PublicKeyUse::Encryption | PublicKeyUse::Other(_))
        );
        let verifies = common
            .key_operations
            .as_ref()
            .is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        if !is_for_signatures || !verifies {
            return None;
        }
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        Some(Self { jwk: Some(jwk), use_for, key })
    }

    /// The key id (`kid`), if the set gives one.
    fn id(&self) -> Option<&str> {
        self.jwk.as_ref()?.common.key_id.as_deref()
    }
}

/// The algorithm of a key whose type has one. `None`: the key is for something else.
fn only(algorithm: TokenAlgorithm, declared: Option<&str>) -> Option<UseFor> {
    declared.is_none_or(|name| name == algorithm.name()).then_some(UseFor::Only(algorithm))
}

/// The algorithm that a token names, as one of ours.
const fn own_algorithm(header: &Header) -> Option<TokenAlgorithm> {
    Some(match header.alg {
        Algorithm::HS256 => TokenAlgorithm::Hs256,
        Algorithm::RS256 => TokenAlgorithm::Rs256,
        Algorithm::RS384 => TokenAlgorithm::Rs384,
        Algorithm::RS512 => TokenAlgorithm::Rs512,
        Algorithm::PS256 => TokenAlgorithm::Ps256,
        Algorithm::PS384 => TokenAlgorithm::Ps384,
        Algorithm::PS512 => TokenAlgorithm::Ps512,
        Algorithm::ES256 => TokenAlgorithm::Es256,
        Algorithm::ES384 => TokenAlgorithm::Es384,
        Algorithm::EdDSA => TokenAlgorithm::EdDsa,
        _ => return None,
    })
}

/// Why the library cannot read the header of a token: it has an algorithm that the library does not know, or is none.
fn unreadable(token: &[u8]) -> TokenError {
    let header = token.split(|byte| *byte == b'.').next().unwrap_or_default();
    let header: Option<Value> =
        URL_SAFE_NO_PAD.decode(header).ok().and_then(|json| serde_json::from_slice(&json).ok());
    match header.as_ref().and_then(|header| header.get("alg")?.as_str()) {
        Some(name) if TokenAlgorithm::of_name(name).is_none() => TokenError::Algorithm,
        _ => TokenError::Malformed,
    }
}

/// The algorithm of a key of a set, if it is one that tollgate does not support.
fn unsupported(key: &Value) -> Option<&'static str> {
    let text = |name: &str| key.get(name).and_then(Value::as_str).unwrap_or_default();
    match (text("alg"), text("crv")) {
        (name, _) if TokenAlgorithm::unsupported(name).is_some() => {
            TokenAlgorithm::unsupported(name)
        }
        (_, "P-521") => Some("ES512"),
        (_, "secp256k1") => Some("ES256K"),
        (_, "Ed448") => Some("EdDSA with Ed448"),
        _ => None,
    }
}

/// Lets the library check the signature only. `claims.rs` checks the times, by a clock that is an argument; no
/// other claim is required.
fn signature_only(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation
}
