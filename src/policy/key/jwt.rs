use std::fmt;
use std::sync::Arc;

use super::{KeyPart, credentials};
use crate::policy::Facts;
use crate::tokens::{ClaimLookup, SignatureCheck, TokenVerifier};

/// A claim of the bearer token.
#[derive(Clone)]
pub struct Claim {
    /// Which claim.
    pub name: Box<str>,
    /// What tells whether the token is to be believed.
    pub tokens: Arc<TokenVerifier>,
    /// The file that the keys are from, by which equal sources are told.
    pub file: Box<str>,
}

/// The claim's value; a token that is not to be believed has none.
pub(super) fn part<'r>(
    facts: &Facts<'r>,
    claim: &Claim,
    signatures: SignatureCheck,
) -> KeyPart<'r> {
    match credentials::bearer(facts) {
        KeyPart::Present(token) => {
            match claim.tokens.claim(&token, &claim.name, signatures, facts.now) {
                ClaimLookup::Value(value) => KeyPart::of(value.into_bytes()),
                ClaimLookup::Absent => KeyPart::Absent,
                ClaimLookup::Unchecked => KeyPart::Unchecked,
            }
        }
        none => none,
    }
}

impl Claim {
    /// Whether the request has a token that was found to be true by an earlier check, whatever it claims.
    pub fn is_believed(&self, facts: &Facts<'_>) -> bool {
        match credentials::bearer(facts) {
            KeyPart::Present(token) => self.tokens.is_known_valid(&token),
            KeyPart::Absent | KeyPart::Repeated | KeyPart::Unreadable | KeyPart::Unchecked => false,
        }
    }
}

impl PartialEq for Claim {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.file == other.file
    }
}

impl Eq for Claim {}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({})", self.name)
    }
}
