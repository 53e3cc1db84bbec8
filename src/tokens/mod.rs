//! Tokens that somebody signed (JSON Web TokenVerifier, RFC 7519): what they claim, once the signature is
//! checked.
//!
//! HS256 with a secret; RS256, ES256 and EdDSA with the public keys of a JWKS (RFC 7517). The
//! algorithm is the key's to say, never the token's alone. A token that cannot be believed claims
//! nothing; why is counted.

mod keys;
mod verifier;

use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::clock::Nanos;

pub use keys::KeysError;
use keys::{Keys, Verified};

/// How far the clock of who signed may be from ours: the usual minute.
const LEEWAY: Nanos = Nanos::from_secs(60);

/// Locks among which checked tokens are spread.
const SHARDS: usize = 16;

/// Checked tokens that a shard remembers: checking a signature costs more than a hundred decisions,
/// and a client shows its token again and again.
const MOST: usize = 1_024;

/// Keys, and the tokens that were lately checked with them.
pub struct TokenVerifier {
    keys: Keys,
    secret: (u64, u64),
    checked: Box<[Mutex<Checked>]>,
    /// How many tokens were checked.
    checks: AtomicU64,
}

/// Two lists, each of at most [`MOST`]: forged tokens push out no true ones.
#[derive(Debug, Default)]
struct Checked {
    believed: HashMap<u128, Arc<Claims>>,
    /// Forged once, forged for ever, as long as the keys are these.
    forged: HashMap<u128, TokenError>,
}

/// Which tokens a caller may have checked. A signature takes as long as some hundred decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureCheck {
    /// All of them.
    Verify,
    /// None: only the outcome of an earlier check is known.
    Recall,
}

/// What a token says of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimLookup {
    /// The claim as text: a string, a number or a truth value as it is written.
    Value(String),
    /// Nothing: the token is not believed, or does not have the claim.
    Absent,
    /// Nobody knows: the token is not remembered, and was not to be checked.
    Unchecked,
}

/// What a token with a true signature claims.
#[derive(Debug)]
struct Claims {
    claims: Map<String, Value>,
    until: Option<u64>,
    from: Option<u64>,
}

/// Why a token is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// It is no token, or one without the claim.
    Malformed,
    /// No key is for it.
    UnknownKey,
    /// Its signature is not of that key.
    Signature,
    /// Its time is over (`exp`).
    Expired,
    /// Its time has not come (`nbf`).
    NotYet,
}

impl TokenError {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 5] =
        [Self::Malformed, Self::UnknownKey, Self::Signature, Self::Expired, Self::NotYet];

    /// The word of the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::NotYet => "not_yet",
        }
    }

    /// How many tokens were not believed for this reason, since the process began.
    pub fn count(self) -> u64 {
        REJECTED[self as usize].load(Ordering::Relaxed)
    }
}

/// Counted for the process: keys come and go with configurations.
static REJECTED: [AtomicU64; TokenError::ALL.len()] =
    [const { AtomicU64::new(0) }; TokenError::ALL.len()];

/// As [`REJECTED`].
static CHECKED: AtomicU64 = AtomicU64::new(0);

/// How many tokens were checked since the process began; a token that is remembered is not checked again.
pub fn total_checks() -> u64 {
    CHECKED.load(Ordering::Relaxed)
}

impl TokenVerifier {
    /// Tokens signed with a secret (HS256).
    pub fn from_secret(secret: &[u8]) -> Result<Self, KeysError> {
        Keys::from_secret(secret).and_then(Self::new)
    }

    /// Tokens signed for the public keys of a JWKS.
    pub fn from_jwks(json: &str) -> Result<Self, KeysError> {
        Keys::from_jwks(json).and_then(Self::new)
    }

    fn new(keys: Keys) -> Result<Self, KeysError> {
        verifier::install();
        // Nobody may find two tokens of one hash: the second would be believed for the first.
        let random = || getrandom::u64().map_err(KeysError::Randomness);
        let secret = (random()?, random()?);
        Ok(Self {
            keys,
            secret,
            checked: (0..SHARDS).map(|_| Mutex::default()).collect(),
            checks: AtomicU64::new(0),
        })
    }

    /// A claim of a token. `now` is the date.
    pub fn claim(
        &self,
        token: &[u8],
        claim: &str,
        signatures: SignatureCheck,
        now: Nanos,
    ) -> ClaimLookup {
        let Some(checked) = self.checked(token, signatures) else {
            return ClaimLookup::Unchecked;
        };
        match checked.and_then(|claims| claims.believe(claim, now)) {
            Ok(value) => ClaimLookup::Value(value),
            Err(why) => {
                REJECTED[why as usize].fetch_add(1, Ordering::Relaxed);
                ClaimLookup::Absent
            }
        }
    }

    /// Whether an earlier check found the token's signature to be true.
    pub fn is_known_valid(&self, token: &[u8]) -> bool {
        matches!(self.checked(token, SignatureCheck::Recall), Some(Ok(_)))
    }

    /// How many tokens were checked with these keys.
    pub fn checks(&self) -> u64 {
        self.checks.load(Ordering::Relaxed)
    }

    /// What a token claims if its signature is true, whatever the time is. `None`: it is not remembered,
    /// and is not to be checked.
    fn checked(
        &self,
        token: &[u8],
        signatures: SignatureCheck,
    ) -> Option<Result<Arc<Claims>, TokenError>> {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        hasher.write(token);
        let hash = hasher.finish128().as_u128();
        let shard = &self.checked[hash as usize % SHARDS];
        {
            let shard = shard.lock();
            if let Some(claims) = shard.believed.get(&hash) {
                return Some(Ok(Arc::clone(claims)));
            }
            if let Some(why) = shard.forged.get(&hash) {
                return Some(Err(*why));
            }
        }
        if signatures == SignatureCheck::Recall {
            return None;
        }
        let verified = self.verify(token);
        let mut shard = shard.lock();
        match &verified {
            Ok(claims) => remember(&mut shard.believed, hash, Arc::clone(claims)),
            Err(why) => remember(&mut shard.forged, hash, *why),
        }
        Some(verified)
    }

    fn verify(&self, token: &[u8]) -> Result<Arc<Claims>, TokenError> {
        self.checks.fetch_add(1, Ordering::Relaxed);
        CHECKED.fetch_add(1, Ordering::Relaxed);
        let Verified { claims } = self.keys.verify(token)?;
        let (until, from) = (seconds(&claims, "exp")?, seconds(&claims, "nbf")?);
        Ok(Arc::new(Claims { until, from, claims }))
    }
}

impl Claims {
    fn believe(&self, claim: &str, now: Nanos) -> Result<String, TokenError> {
        let now = now.secs();
        if self.until.is_some_and(|until| now >= until.saturating_add(LEEWAY.secs())) {
            return Err(TokenError::Expired);
        }
        if self.from.is_some_and(|from| now.saturating_add(LEEWAY.secs()) < from) {
            return Err(TokenError::NotYet);
        }
        match self.claims.get(claim) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Number(number)) => Ok(number.to_string()),
            Some(Value::Bool(value)) => Ok(value.to_string()),
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => {
                Err(TokenError::Malformed)
            }
        }
    }
}

/// Adds to a list that begins anew when it is full.
fn remember<T>(list: &mut HashMap<u128, T>, hash: u128, what: T) {
    if list.len() >= MOST {
        list.clear();
    }
    list.insert(hash, what);
}

/// A time of a token, in seconds since the epoch; a part of a second does not count.
fn seconds(claims: &Map<String, Value>, name: &str) -> Result<Option<u64>, TokenError> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    let whole = value.as_u64();
    let whole = whole.or_else(|| {
        // A float saturates on its way to an integer.
        value.as_f64().filter(|time| *time >= 0.0).map(|time| time as u64)
    });
    whole.map(Some).ok_or(TokenError::Malformed)
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenVerifier(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_token_is_checked_once_and_pushes_out_no_true_one() {
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
        let asked = |token: &[u8], signatures| {
            tokens.claim(token, "sub", signatures, Nanos::from_secs(100))
        };
        let told = |token: &[u8]| asked(token, SignatureCheck::Verify);
        let known = ClaimLookup::Value("a".to_owned());

        let good = signed(r#"{"sub":"a"}"#);
        let mut forged = good.clone();
        let place = forged.len() - 10;
        forged[place] = if forged[place] == b'A' { b'B' } else { b'A' };
        assert_eq!(asked(&good, SignatureCheck::Recall), ClaimLookup::Unchecked);
        assert_eq!(tokens.checks(), 0);
        for _ in 0..100 {
            assert_eq!((told(&good), told(&forged)), (known.clone(), ClaimLookup::Absent));
            assert_eq!(asked(&good, SignatureCheck::Recall), known);
            assert_eq!(asked(&forged, SignatureCheck::Recall), ClaimLookup::Absent);
        }
        assert_eq!(tokens.checks(), 2);
        for n in 0..SHARDS * MOST * 2 {
            let mut other = forged.clone();
            other.extend_from_slice(n.to_string().as_bytes());
            assert_eq!(told(&other), ClaimLookup::Absent);
        }
        let before = tokens.checks();
        assert_eq!(told(&good), known);
        assert_eq!(tokens.checks(), before, "it is remembered");
    }
}
