//! Tokens that somebody signed (JSON Web Tokens, RFC 7519): what they claim, once the signature is
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
pub struct Tokens {
    keys: Keys,
    secret: (u64, u64),
    checked: Box<[Mutex<Checked>]>,
}

type Checked = HashMap<u128, Arc<Claims>>;

/// What a token with a true signature claims.
#[derive(Debug)]
struct Claims {
    claims: Map<String, Value>,
    until: Option<u64>,
    from: Option<u64>,
}

/// Why a token is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disbelief {
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

impl Disbelief {
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
        DISBELIEVED[self as usize].load(Ordering::Relaxed)
    }
}

/// Counted for the process: keys come and go with configurations.
static DISBELIEVED: [AtomicU64; Disbelief::ALL.len()] =
    [const { AtomicU64::new(0) }; Disbelief::ALL.len()];

impl Tokens {
    /// Tokens signed with a secret (HS256).
    pub fn of_secret(secret: &[u8]) -> Result<Self, KeysError> {
        Keys::of_secret(secret).map(Self::new)
    }

    /// Tokens signed for the public keys of a JWKS.
    pub fn of_jwks(json: &str) -> Result<Self, KeysError> {
        Keys::of_jwks(json).map(Self::new)
    }

    fn new(keys: Keys) -> Self {
        verifier::install();
        let secret = (fastrand::u64(..), fastrand::u64(..));
        Self { keys, secret, checked: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// A claim of a token as text: a string, a number or a truth value as it is written. `now` is
    /// the date.
    pub fn claim(&self, token: &[u8], claim: &str, now: Nanos) -> Option<String> {
        match self.believe(token, claim, now) {
            Ok(value) => Some(value),
            Err(why) => {
                DISBELIEVED[why as usize].fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    fn believe(&self, token: &[u8], claim: &str, now: Nanos) -> Result<String, Disbelief> {
        let claims = self.checked(token)?;
        let now = now.secs();
        if claims.until.is_some_and(|until| now >= until.saturating_add(LEEWAY.secs())) {
            return Err(Disbelief::Expired);
        }
        if claims.from.is_some_and(|from| now.saturating_add(LEEWAY.secs()) < from) {
            return Err(Disbelief::NotYet);
        }
        match claims.claims.get(claim) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Number(number)) => Ok(number.to_string()),
            Some(Value::Bool(value)) => Ok(value.to_string()),
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => {
                Err(Disbelief::Malformed)
            }
        }
    }

    /// What a token claims if its signature is true, whatever the time is.
    fn checked(&self, token: &[u8]) -> Result<Arc<Claims>, Disbelief> {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        hasher.write(token);
        let hash = hasher.finish128().as_u128();
        let shard = &self.checked[hash as usize % SHARDS];
        if let Some(claims) = shard.lock().get(&hash) {
            return Ok(Arc::clone(claims));
        }
        let Verified { claims } = self.keys.verify(token)?;
        let claims = Arc::new(Claims {
            until: seconds(&claims, "exp")?,
            from: seconds(&claims, "nbf")?,
            claims,
        });
        let mut shard = shard.lock();
        if shard.len() >= MOST {
            shard.clear();
        }
        shard.insert(hash, Arc::clone(&claims));
        Ok(claims)
    }
}

/// A time of a token, in seconds since the epoch; a part of a second does not count.
fn seconds(claims: &Map<String, Value>, name: &str) -> Result<Option<u64>, Disbelief> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    let whole = value.as_u64();
    let whole = whole.or_else(|| {
        // A float saturates on its way to an integer.
        value.as_f64().filter(|time| *time >= 0.0).map(|time| time as u64)
    });
    whole.map(Some).ok_or(Disbelief::Malformed)
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens(..)")
    }
}
