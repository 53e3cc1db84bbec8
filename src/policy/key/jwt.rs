//! A claim of a signed token as a key part. [`crate::tokens`] verifies the token; one that is not believed has no claims.

use std::fmt;
use std::sync::Arc;

use http::HeaderName;

use super::part::KeyPart;
use super::{cookie, credentials, header, query};
use crate::policy::Facts;
use crate::tokens::{ClaimLookup, SignatureCheck, TokenError, TokenVerifier, WantedClaim};

/// A claim of the token that a request carries.
#[derive(Clone)]
pub struct Claim {
    /// The claim, and which tokens are believed.
    pub wanted: WantedClaim,
    /// Where the token is.
    pub from: TokenSource,
    /// What becomes of a request with a token whose keys have not been fetched yet.
    pub on_keys_failure: OnKeysFailure,
    /// Verifies tokens.
    pub tokens: Arc<TokenVerifier>,
    /// The file or the URL of the verification keys. Two claims are equal if this and all settings are.
    pub keys: Box<str>,
}

/// Where a request carries its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// In `Authorization: Bearer`.
    Authorization,
    /// It is the value of a header field.
    Header(HeaderName),
    /// It is the value of the first cookie of that name.
    Cookie(Box<str>),
    /// It is the value of the query parameter of that name.
    Query(Box<str>),
}

/// What becomes of a request with a token whose keys have not been fetched yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnKeysFailure {
    /// The request has no such key, or no such plan.
    Absent,
    /// The request is answered 503: its client may have done nothing wrong.
    Deny,
}

/// The claim's value; absent if the token is not valid.
pub(super) fn part<'r>(
    facts: &Facts<'r>,
    claim: &Claim,
    signatures: SignatureCheck,
) -> KeyPart<'r> {
    match claim.token(facts) {
        KeyPart::Present(token) => {
            match claim.tokens.claim(&token, &claim.wanted, signatures, facts.now) {
                ClaimLookup::Value(value) => KeyPart::of(value.into_bytes()),
                ClaimLookup::Absent => KeyPart::Absent,
                ClaimLookup::Unchecked => KeyPart::Unchecked,
                ClaimLookup::NoKeys => match claim.on_keys_failure {
                    OnKeysFailure::Absent => KeyPart::Absent,
                    OnKeysFailure::Deny => KeyPart::Unknowable,
                },
            }
        }
        absent => absent,
    }
}

impl Claim {
    /// Whether an earlier check found the signature of the request's token valid, whatever its claims are.
    pub fn is_known_valid(&self, facts: &Facts<'_>) -> bool {
        match self.token(facts) {
            KeyPart::Present(token) => self.tokens.is_known_valid(&token),
            KeyPart::Absent
            | KeyPart::Repeated
            | KeyPart::Unreadable
            | KeyPart::Unchecked
            | KeyPart::Unknowable
            | KeyPart::Unrecorded => false,
        }
    }

    /// Why the request's token is not believed, for people who ask; `None` if it is, or if there is none.
    pub fn rejection(&self, facts: &Facts<'_>) -> Option<TokenError> {
        match self.token(facts) {
            KeyPart::Present(token) => self.tokens.rejection(&token, &self.wanted, facts.now),
            KeyPart::Absent
            | KeyPart::Repeated
            | KeyPart::Unreadable
            | KeyPart::Unchecked
            | KeyPart::Unknowable
            | KeyPart::Unrecorded => None,
        }
    }

    /// Whether a request carries a token whose keys have not been fetched.
    pub fn lacks_keys(&self, facts: &Facts<'_>) -> bool {
        self.tokens.published_set().is_some_and(|set| !set.has_keys())
            && matches!(self.token(facts), KeyPart::Present(_))
    }

    /// The header that the configuration names for it, if any.
    pub(super) const fn header_name(&self) -> Option<&HeaderName> {
        match &self.from {
            TokenSource::Header(name) => Some(name),
            TokenSource::Authorization | TokenSource::Cookie(_) | TokenSource::Query(_) => None,
        }
    }

    fn token<'r>(&self, facts: &Facts<'r>) -> KeyPart<'r> {
        match &self.from {
            TokenSource::Authorization => credentials::bearer(facts),
            TokenSource::Header(name) => match header::part(facts, name) {
                KeyPart::Present(token) if !credentials::is_token(&token) => KeyPart::Unreadable,
                part => part,
            },
            TokenSource::Cookie(name) => cookie::part(facts, name),
            TokenSource::Query(name) => query::part(facts, name),
        }
    }
}

impl PartialEq for Claim {
    fn eq(&self, other: &Self) -> bool {
        let Self { wanted, from, on_keys_failure, tokens, keys } = self;
        // One verifier has one set of algorithms.
        *wanted == other.wanted
            && *from == other.from
            && *on_keys_failure == other.on_keys_failure
            && *keys == other.keys
            && tokens.algorithms() == other.tokens.algorithms()
    }
}

impl Eq for Claim {}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({})", self.wanted.name)
    }
}

/// As written in a configuration.
impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authorization => f.write_str("authorization"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
        }
    }
}
