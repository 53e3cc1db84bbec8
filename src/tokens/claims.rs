//! The claims of a token whose signature is verified: for whom it holds, when, and what it says.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::error::TokenError;
use crate::clock::Nanos;

/// How far the signer's clock may differ from ours, unless the configuration says otherwise. One minute is common
/// (RFC 7519, sections 4.1.4 and 4.1.5, allows "no more than a few minutes").
pub const DEFAULT_LEEWAY_SECS: u64 = 60;

/// A claim that is looked up, and which tokens are believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedClaim {
    /// The claim's name.
    pub name: Box<str>,
    /// The only issuer that is believed (`iss`); `None`: any one that has the key.
    pub issuer: Option<Box<str>>,
    /// A token must name one of these (`aud`); empty: it may name anyone.
    pub audiences: Box<[Box<str>]>,
    /// How far the signer's clock may differ from ours, in seconds.
    pub leeway_secs: u64,
}

impl WantedClaim {
    /// A claim of any issuer, for any audience, with the default leeway.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            issuer: None,
            audiences: Box::default(),
            leeway_secs: DEFAULT_LEEWAY_SECS,
        }
    }
}

/// The result of looking up a claim of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimLookup {
    /// The claim as text: a string, or a number or boolean in JSON notation.
    Value(String),
    /// The token is rejected, or lacks the claim.
    Absent,
    /// The token is not remembered, and [`SignatureCheck::Recall`](super::SignatureCheck::Recall) forbids a check.
    Unchecked,
    /// The keys have not been fetched yet, so the token is neither valid nor invalid.
    NoKeys,
}

/// What is kept of the claims of a token whose signature is verified. Lists and objects are left out, since none is ever
/// looked up, but for the list of audiences.
#[derive(Debug)]
pub(super) struct VerifiedClaims {
    /// The name of each claim and then its value, as text.
    texts: Texts,
    /// `iss`, if it is a text.
    issuer: Option<Box<str>>,
    /// The texts in `aud`.
    audiences: Texts,
    /// `exp`, in seconds since the epoch.
    expires: Option<u64>,
    /// `nbf`, in seconds since the epoch.
    valid_from: Option<u64>,
}

impl VerifiedClaims {
    /// Reads the times of a token. Fails if `exp` or `nbf` is not a time.
    pub(super) fn new(claims: &Map<String, Value>) -> Result<Self, TokenError> {
        let (expires, valid_from) = (seconds(claims, "exp")?, seconds(claims, "nbf")?);
        let texts = claims.iter().filter_map(|(name, value)| {
            let value = match value {
                Value::String(text) => Cow::Borrowed(&**text),
                Value::Number(number) => Cow::Owned(number.to_string()),
                Value::Bool(value) => Cow::Owned(value.to_string()),
                Value::Null | Value::Array(_) | Value::Object(_) => return None,
            };
            Some([Cow::Borrowed(&**name), value])
        });
        let audiences = match claims.get("aud") {
            Some(Value::Array(listed)) => &listed[..],
            Some(single) => std::slice::from_ref(single),
            None => &[],
        };
        Ok(Self {
            texts: Texts::of(texts.flatten()),
            issuer: claims.get("iss").and_then(Value::as_str).map(Box::from),
            audiences: Texts::of(audiences.iter().filter_map(Value::as_str)),
            expires,
            valid_from,
        })
    }

    /// The bytes that it takes in memory.
    pub(super) fn bytes(&self) -> usize {
        let issuer = self.issuer.as_ref().map_or(0, |issuer| issuer.len());
        size_of::<Self>() + self.texts.bytes() + self.audiences.bytes() + issuer
    }

    /// The wanted claim as text, if the token is believed at `now` (the date).
    pub(super) fn claim(&self, wanted: &WantedClaim, now: Nanos) -> Result<String, TokenError> {
        let (now, leeway) = (now.secs(), wanted.leeway_secs);
        if self.expires.is_some_and(|expires| now >= expires.saturating_add(leeway)) {
            return Err(TokenError::Expired);
        }
        if self.valid_from.is_some_and(|from| now.saturating_add(leeway) < from) {
            return Err(TokenError::NotYet);
        }
        if wanted.issuer.is_some() && wanted.issuer != self.issuer {
            return Err(TokenError::Issuer);
        }
        if !wanted.audiences.is_empty() && !self.is_for(&wanted.audiences) {
            return Err(TokenError::Audience);
        }
        self.texts.value_of(&wanted.name).map(str::to_owned).ok_or(TokenError::Malformed)
    }

    /// Whether `aud`, one text or a list of them (RFC 7519, section 4.1.3), names one of these.
    fn is_for(&self, audiences: &[Box<str>]) -> bool {
        self.audiences.iter().any(|named| audiences.iter().any(|audience| **audience == *named))
    }
}

/// Texts one after the other in one allocation, so that thousands of short ones take little more than their bytes.
#[derive(Debug)]
struct Texts {
    text: Box<str>,
    /// Where each one ends.
    ends: Box<[u32]>,
}

impl Texts {
    fn of<T: AsRef<str>>(texts: impl Iterator<Item = T>) -> Self {
        let (mut text, mut ends) = (String::new(), Vec::new());
        for added in texts {
            text.push_str(added.as_ref());
            // They come from one token, whose size is bounded.
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        Self { text: text.into(), ends: ends.into() }
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        let mut begin = 0;
        self.ends.iter().map(move |end| {
            let end = *end as usize;
            self.text.get(std::mem::replace(&mut begin, end)..end).unwrap_or_default()
        })
    }

    /// The text after this name, where names and values alternate.
    fn value_of(&self, name: &str) -> Option<&str> {
        let mut texts = self.iter();
        while let (Some(found), value @ Some(_)) = (texts.next(), texts.next()) {
            if found == name {
                return value;
            }
        }
        None
    }

    fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.ends)
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
