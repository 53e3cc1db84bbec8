//! Stands for `keys.rs` in a build without the feature `jwt`: there are no keys, so no token can be verified.

use serde_json::{Map, Value};

use super::algorithm::AlgorithmSet;
use super::error::{KeysError, TokenError};

/// Has no values, since no keys can be made.
#[derive(PartialEq)]
pub(super) enum NoKeys {}

pub(super) use NoKeys as VerificationKeys;

impl NoKeys {
    pub(super) fn from_secret(_: &[u8]) -> Result<Self, KeysError> {
        Err(KeysError::LeftOut)
    }

    pub(super) fn from_jwks(_: &str) -> Result<Self, KeysError> {
        Err(KeysError::LeftOut)
    }

    pub(super) fn from_published_jwks(_: &[u8]) -> Result<Self, KeysError> {
        Err(KeysError::LeftOut)
    }

    pub(super) fn count(&self) -> usize {
        match *self {}
    }

    pub(super) fn is_allowed_by(&self, _: AlgorithmSet) -> bool {
        match *self {}
    }

    pub(super) fn verify(
        &self,
        _: &[u8],
        _: AlgorithmSet,
    ) -> Result<Map<String, Value>, TokenError> {
        match *self {}
    }
}
