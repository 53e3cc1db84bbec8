//! The claims of a token whose signature is verified, and the times within which they hold.

use serde_json::{Map, Value};

use super::error::TokenError;
use crate::clock::Nanos;

/// How far the signer's clock may differ from ours. One minute is common (RFC 7519, sections 4.1.4 and 4.1.5, allows
/// "no more than a few minutes").
const LEEWAY: Nanos = Nanos::from_secs(60);

/// The result of looking up a claim of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimLookup {
    /// The claim as text: a string, or a number or boolean in JSON notation.
    Value(String),
    /// The token is rejected, or lacks the claim.
    Absent,
    /// The token is not remembered, and [`SignatureCheck::Recall`](super::SignatureCheck::Recall) forbids a check.
    Unchecked,
}

/// The claims of a token whose signature is verified.
#[derive(Debug)]
pub(super) struct VerifiedClaims {
    claims: Map<String, Value>,
    /// `exp`, in seconds since the epoch.
    expires: Option<u64>,
    /// `nbf`, in seconds since the epoch.
    valid_from: Option<u64>,
}

impl VerifiedClaims {
    /// Reads the times of a token. Fails if `exp` or `nbf` is not a time.
    pub(super) fn new(claims: Map<String, Value>) -> Result<Self, TokenError> {
        let (expires, valid_from) = (seconds(&claims, "exp")?, seconds(&claims, "nbf")?);
        Ok(Self { claims, expires, valid_from })
    }

    /// The claim `name` as text, if the token is valid at `now` (the date).
    pub(super) fn claim(&self, name: &str, now: Nanos) -> Result<String, TokenError> {
        let now = now.secs();
        if self.expires.is_some_and(|expires| now >= expires.saturating_add(LEEWAY.secs())) {
            return Err(TokenError::Expired);
        }
        if self.valid_from.is_some_and(|from| now.saturating_add(LEEWAY.secs()) < from) {
            return Err(TokenError::NotYet);
        }
        match self.claims.get(name) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Number(number)) => Ok(number.to_string()),
            Some(Value::Bool(value)) => Ok(value.to_string()),
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => {
                Err(TokenError::Malformed)
            }
        }
    }
}

/// A time of a token (`NumericDate`, RFC 7519, section 2) in seconds since the epoch, rounded down.
fn seconds(claims: &Map<String, Value>, name: &str) -> Result<Option<u64>, TokenError> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    let seconds = value.as_u64().or_else(|| {
        // The conversion of a float to an integer saturates.
        value.as_f64().filter(|time| *time >= 0.0).map(|time| time as u64)
    });
    seconds.map(Some).ok_or(TokenError::Malformed)
}
