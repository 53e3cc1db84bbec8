//! Verifies tokens and remembers the results.

use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::claims::{ClaimLookup, VerifiedClaims};
use super::error::{KeysError, TokenError};
use super::keys::VerificationKeys;
use crate::clock::Nanos;

/// Shards of the remembered tokens, each with its own lock.
const SHARDS: usize = 16;

/// Tokens that each list of a shard remembers. Signature checks are expensive ([`SignatureCheck`]), and clients send
/// the same token again and again.
const MAX_REMEMBERED: usize = 1_024;

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
    keys: VerificationKeys,
    /// The key of the hash by which tokens are remembered.
    hash_key: (u64, u64),
    shards: Box<[Mutex<CheckedTokens>]>,
    /// Signature checks with these keys.
    checks: AtomicU64,
}

/// Remembered results by the token's hash. Two lists of at most [`MAX_REMEMBERED`] each, so that forged tokens do not
/// push out valid ones.
#[derive(Debug, Default)]
struct CheckedTokens {
    verified: HashMap<u128, Arc<VerifiedClaims>>,
    /// With the same keys, a forged token stays forged.
    rejected: HashMap<u128, TokenError>,
}

impl CheckedTokens {
    fn recall(&self, hash: u128) -> Option<Result<Arc<VerifiedClaims>, TokenError>> {
        if let Some(claims) = self.verified.get(&hash) {
            return Some(Ok(Arc::clone(claims)));
        }
        self.rejected.get(&hash).map(|error| Err(*error))
    }

    fn remember(&mut self, hash: u128, result: &Result<Arc<VerifiedClaims>, TokenError>) {
        match result {
            Ok(claims) => insert_bounded(&mut self.verified, hash, Arc::clone(claims)),
            Err(error) => insert_bounded(&mut self.rejected, hash, *error),
        }
    }
}

/// Inserts into a list, which is cleared first if it is full.
fn insert_bounded<T>(list: &mut HashMap<u128, T>, hash: u128, value: T) {
    if list.len() >= MAX_REMEMBERED {
        list.clear();
    }
    list.insert(hash, value);
}

impl TokenVerifier {
    /// A verifier of tokens that are signed with a secret (HS256).
    ///
    /// # Errors
    ///
    /// [`KeysError::ShortSecret`], [`KeysError::Randomness`].
    pub fn from_secret(secret: &[u8]) -> Result<Self, KeysError> {
        VerificationKeys::from_secret(secret).and_then(Self::new)
    }

    /// A verifier of tokens that are signed for the public keys of a JWKS, given as JSON.
    ///
    /// # Errors
    ///
    /// [`KeysError::Jwks`], [`KeysError::NoKey`], [`KeysError::TooMany`], [`KeysError::Randomness`].
    pub fn from_jwks(json: &str) -> Result<Self, KeysError> {
        VerificationKeys::from_jwks(json).and_then(Self::new)
    }

    fn new(keys: VerificationKeys) -> Result<Self, KeysError> {
        // The hash needs a secret key. Otherwise an attacker could search for a token with the hash of a valid one,
        // and would get its claims.
        let random = || getrandom::u64().map_err(KeysError::Randomness);
        Ok(Self {
            keys,
            hash_key: (random()?, random()?),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            checks: AtomicU64::new(0),
        })
    }

    /// Looks up the claim `name` of a token. `now` is the date. A rejected token is recorded.
    pub fn claim(
        &self,
        token: &[u8],
        name: &str,
        signature: SignatureCheck,
        now: Nanos,
    ) -> ClaimLookup {
        let Some(checked) = self.checked(token, signature) else {
            return ClaimLookup::Unchecked;
        };
        match checked.and_then(|claims| claims.claim(name, now)) {
            Ok(value) => ClaimLookup::Value(value),
            Err(error) => {
                error.record();
                ClaimLookup::Absent
            }
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
        let mut hasher = SipHasher13::new_with_keys(self.hash_key.0, self.hash_key.1);
        hasher.write(token);
        let hash = hasher.finish128().as_u128();
        let shard = &self.shards[hash as usize % SHARDS];
        let recalled = shard.lock().recall(hash);
        if recalled.is_some() || signature == SignatureCheck::Recall {
            return recalled;
        }
        // The lock is not held during the check.
        let verified = self.verify(token);
        shard.lock().remember(hash, &verified);
        Some(verified)
    }

    fn verify(&self, token: &[u8]) -> Result<Arc<VerifiedClaims>, TokenError> {
        self.checks.fetch_add(1, Ordering::Relaxed);
        TOTAL_CHECKS.fetch_add(1, Ordering::Relaxed);
        let claims = self.keys.verify(token)?;
        VerifiedClaims::new(claims).map(Arc::new)
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
        let lookup =
            |token: &[u8], signature| tokens.claim(token, "sub", signature, Nanos::from_secs(100));
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
}
