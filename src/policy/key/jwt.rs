//! A claim of a signed bearer token as a key part. [`crate::tokens`] verifies the token; one that is not valid has no
//! claims.

use std::fmt;
use std::sync::Arc;

use super::credentials;
use super::part::KeyPart;
use crate::policy::Facts;
use crate::tokens::{ClaimLookup, SignatureCheck, TokenVerifier};

/// A claim of the bearer token.
#[derive(Clone)]
pub struct Claim {
    /// The claim's name.
    pub name: Box<str>,
    /// Verifies tokens.
    pub tokens: Arc<TokenVerifier>,
    /// The file with the verification keys. Two claims are equal if name and file are.
    pub file: Box<str>,
}

/// The claim's value; absent if the token is not valid.
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
        absent => absent,
    }
}

impl Claim {
    /// Whether an earlier check found the signature of the request's token valid, whatever its claims are.
    pub fn is_known_valid(&self, facts: &Facts<'_>) -> bool {
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
