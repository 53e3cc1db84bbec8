//! Verifies tokens and remembers the results.

use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::algorithm::AlgorithmSet;
use super::claims::{ClaimLookup, VerifiedClaims, WantedClaim};
use super::error::{KeysError, TokenError};
use super::keys::VerificationKeys;
use super::published::PublishedKeySet;
use super::remembered::{CheckedTokens, SHARDS};
use crate::clock::Nanos;

/// The largest token that is read, in bytes. Tokens of identity providers have one or two thousand; most servers accept no
/// larger header.
const MAX_TOKEN_BYTES: usize = 16 * 1_024;

/// The version of keys that never change.
const FIXED_VERSION: u64 = 1;

/// Signature checks since the process started.
static TOTAL_CHECKS: AtomicU64 = AtomicU64::new(0);

/// How many signatures were checked since the process started. A remembered token is not checked again.
pub fn total_checks() -> u64 {
    TOTAL_CHECKS.load(Ordering::Relaxed)
}

/// Whether a lookup may check a signature, which can take a hundred times as long as a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureCheck {
    /// It checks the signature of a token that is not remembered.
    Verify,
    /// It only recalls earlier results.
    Recall,
}

/// Keys, and the tokens that were recently verified with them.
pub struct TokenVerifier {
    keys: KeySource,
    /// Keys for other algorithms are not used.
    algorithms: AlgorithmSet,
    /// The key of the hash by which tokens are remembered.
    hash_key: (u64, u64),
    shards: Box<[Mutex<CheckedTokens>]>,
    /// Signature checks with these keys.
    checks: AtomicU64,
}

/// Where the keys are.
enum KeySource {
    /// In a file, which a reload reads again.
    Fixed(VerificationKeys),
    /// At a URL.
    Published(Arc<PublishedKeySet>),
}

impl KeySource {
    /// The number of the keys in force; 0: there are none yet.
    fn version(&self) -> u64 {
        match self {
            Self::Fixed(_) => FIXED_VERSION,
            Self::Published(set) => set.version(),
        }
    }
}

impl TokenVerifier {
    /// A verifier of tokens that are signed with a secret (HS256).
    ///
    /// # Errors
    ///
    /// [`KeysError::ShortSecret`], [`KeysError::Randomness`].
    pub fn from_secret(secret: &[u8]) -> Result<Self, KeysError> {
        VerificationKeys::from_secret(secret).and_then(|keys| Self::new(KeySource::Fixed(keys)))
    }

    /// A verifier of tokens that are signed for the public keys of a JWKS, given as JSON.
    ///
    /// # Errors
    ///
    /// [`KeysError::Jwks`], [`KeysError::NoKey`], [`KeysError::SameId`], [`KeysError::TooMany`],
    /// [`KeysError::Randomness`].
    pub fn from_jwks(json: &str) -> Result<Self, KeysError> {
        VerificationKeys::from_jwks(json).and_then(|keys| Self::new(KeySource::Fixed(keys)))
    }

    /// A verifier of tokens that are signed for the public keys of a published set.
    ///
    /// # Errors
    ///
    /// [`KeysError::Randomness`].
    pub fn published(set: Arc<PublishedKeySet>) -> Result<Self, KeysError> {
        Self::new(KeySource::Published(set))
    }

    /// The same, for these algorithms only.
    ///
    /// # Errors
    ///
    /// [`KeysError::NoKeyAllowed`]. (Which keys a published set has is not known yet.)
    pub fn only(self, algorithms: AlgorithmSet) -> Result<Self, KeysError> {
        match &self.keys {
            KeySource::Fixed(keys) if !keys.is_allowed_by(algorithms) => {
                Err(KeysError::NoKeyAllowed)
            }
            KeySource::Fixed(_) | KeySource::Published(_) => Ok(Self { algorithms, ..self }),
        }
    }

    fn new(keys: KeySource) -> Result<Self, KeysError> {
        // The hash needs a secret key. Otherwise an attacker could search for a token with the hash of a valid one,
        // and would get its claims.
        let random = || getrandom::u64().map_err(KeysError::Randomness);
        Ok(Self {
            keys,
            algorithms: AlgorithmSet::ALL,
            hash_key: (random()?, random()?),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            checks: AtomicU64::new(0),
        })
    }

    /// Looks up a claim of a token. `now` is the date. A rejected token is recorded.
    pub fn claim(
        &self,
        token: &[u8],
        wanted: &WantedClaim,
        signature: SignatureCheck,
        now: Nanos,
    ) -> ClaimLookup {
        let Some(checked) = self.checked(token, signature) else {
            return ClaimLookup::Unchecked;
        };
        match checked.and_then(|claims| claims.claim(wanted, now)) {
            Ok(value) => ClaimLookup::Value(value),
            Err(error) => {
                error.record();
                if error == TokenError::NoKeys { ClaimLookup::NoKeys } else { ClaimLookup::Absent }
            }
        }
    }

    /// Why a token is rejected, for people who ask; `None` if it is believed and has the claim. Nothing is recorded.
    pub fn rejection(&self, token: &[u8], wanted: &WantedClaim, now: Nanos) -> Option<TokenError> {
        let checked = self.checked(token, SignatureCheck::Verify)?;
        checked.and_then(|claims| claims.claim(wanted, now)).err()
    }

    /// The algorithms that it uses keys for.
    pub const fn algorithms(&self) -> AlgorithmSet {
        self.algorithms
    }

    /// The published set that it verifies with, if any.
    pub fn published_set(&self) -> Option<&Arc<PublishedKeySet>> {
        match &self.keys {
            KeySource::Published(set) => Some(set),
            KeySource::Fixed(_) => None,
        }
    }

    /// Whether an earlier check found the signature valid, and that result is still remembered.
    pub fn is_known_valid(&self, token: &[u8]) -> bool {
        matches!(self.checked(token, SignatureCheck::Recall), Some(Ok(_)))
    }

    /// How many signatures were checked with these keys.
    pub fn checks(&self) -> u64 {
        self.checks.load(Ordering::Relaxed)
    }

    /// The claims of a token with a valid signature, whether or not they hold now. `None`: the token is not remembered,
    /// and `signature` forbids a check.
    fn checked(
        &self,
        token: &[u8],
        signature: SignatureCheck,
    ) -> Option<Result<Arc<VerifiedClaims>, TokenError>> {
        if token.len() > MAX_TOKEN_BYTES {
            return Some(Err(TokenError::Malformed));
        }
        let version = self.keys.version();
        if version == 0 {
            return Some(Err(TokenError::NoKeys));
        }
        let mut hasher = SipHasher13::new_with_keys(self.hash_key.0, self.hash_key.1);
        hasher.write(token);
        let hash = hasher.finish128().as_u128();
        let shard = &self.shards[hash as usize % SHARDS];
        let recalled = {
            let mut checked = shard.lock();
            checked.use_version(version);
            checked.recall(hash)
        };
        if recalled.is_some() || signature == SignatureCheck::Recall {
            self.want_unknown_key(recalled.as_ref());
            return recalled;
        }
        // The lock is not held during the check.
        let verified = self.verify(token);
        self.want_unknown_key(Some(&verified));
        let mut checked = shard.lock();
        checked.remember(version, hash, &verified);
        Some(verified)
    }

    fn verify(&self, token: &[u8]) -> Result<Arc<VerifiedClaims>, TokenError> {
        self.checks.fetch_add(1, Ordering::Relaxed);
        TOTAL_CHECKS.fetch_add(1, Ordering::Relaxed);
        let claims = match &self.keys {
            KeySource::Fixed(keys) => keys.verify(token, self.algorithms),
            KeySource::Published(set) => set.verify(token, self.algorithms),
        };
        VerifiedClaims::new(&claims?).map(Arc::new)
    }

    /// Asks for a fetch if a token names a key that is not in the published set: the publisher may have a new one. A
    /// token that is remembered asks, too, because the fetch may have been too early.
    fn want_unknown_key(&self, checked: Option<&Result<Arc<VerifiedClaims>, TokenError>>) {
        if let (KeySource::Published(set), Some(Err(TokenError::UnknownKey))) =
            (&self.keys, checked)
        {
            set.want();
        }
    }
}

/// Shows no keys.
impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenVerifier(..)")
    }
}

#[cfg(all(test, feature = "jwt"))]
mod tests {
    use super::super::remembered::MAX_REMEMBERED;
    use super::*;

    #[test]
    fn a_forged_token_is_checked_once_and_evicts_no_valid_token() {
        use base64::Engine;
        let text = |json: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json);
        let secret = [7; 32];
        let tokens = TokenVerifier::from_secret(&secret).unwrap();
        let signed = |claims: &str| {
            let body = format!("{}.{}", text(r#"{"alg":"HS256","typ":"JWT"}"#), text(claims));
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret);
            let tag = ring::hmac::sign(&key, body.as_bytes());
            let tag = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(tag);
            format!("{body}.{tag}").into_bytes()
        };
        let lookup = |token: &[u8], signature| {
            tokens.claim(token, &WantedClaim::named("sub"), signature, Nanos::from_secs(100))
        };
        let verified = |token: &[u8]| lookup(token, SignatureCheck::Verify);
        let recalled = |token: &[u8]| lookup(token, SignatureCheck::Recall);
        let known = ClaimLookup::Value("a".to_owned());

        let good = signed(r#"{"sub":"a"}"#);
        let mut forged = good.clone();
        let index = forged.len() - 10;
        forged[index] = if forged[index] == b'A' { b'B' } else { b'A' };
        assert_eq!(recalled(&good), ClaimLookup::Unchecked);
        assert_eq!(tokens.checks(), 0);
        for _ in 0..100 {
            assert_eq!((verified(&good), verified(&forged)), (known.clone(), ClaimLookup::Absent));
            assert_eq!(recalled(&good), known);
            assert_eq!(recalled(&forged), ClaimLookup::Absent);
        }
        assert_eq!(tokens.checks(), 2);
        for n in 0..SHARDS * MAX_REMEMBERED * 2 {
            let mut other = forged.clone();
            other.extend_from_slice(n.to_string().as_bytes());
            assert_eq!(verified(&other), ClaimLookup::Absent);
        }
        let before = tokens.checks();
        assert_eq!(verified(&good), known);
        assert_eq!(tokens.checks(), before, "it is remembered");
    }

    #[test]
    fn an_algorithm_that_is_not_supported_is_told_from_a_token_that_is_none() {
        use base64::Engine;
        let text = |json: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json);
        let tokens = TokenVerifier::from_secret(&[7; 32]).unwrap();
        for (header, expected) in [
            (r#"{"alg":"ES512"}"#, TokenError::Algorithm),
            (r#"{"alg":"HS512"}"#, TokenError::Algorithm),
            (r#"{"alg":"none"}"#, TokenError::Algorithm),
            (r#"{"alg":"hs256"}"#, TokenError::Algorithm),
            (r#"{"alg":"RS256"}"#, TokenError::Algorithm),
            (r#"{"alg":"HS256"}"#, TokenError::Signature),
            (r#"{"alg":"HS256","kid":7}"#, TokenError::Malformed),
            (r#"{"alg":7}"#, TokenError::Malformed),
            (r#"{}"#, TokenError::Malformed),
            ("no json", TokenError::Malformed),
        ] {
            let token = format!("{}.{}.AAAA", text(header), text("{}"));
            let wanted = WantedClaim::named("sub");
            let found = tokens.rejection(token.as_bytes(), &wanted, Nanos::ZERO);
            assert_eq!(found, Some(expected), "{header}");
        }
    }
}
