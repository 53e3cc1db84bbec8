//! A key: one or more sources, and the hash of what they find.
//!
//! All sources are read before the key is used. A request in which one of them is repeated or ambiguous has no
//! key, whatever the others found.

use std::fmt;

use super::address;
use super::hash::{KeyHash, KeyHasher};
use super::part::KeyPart;
use super::source::Source;
use crate::policy::{Facts, Route};
use crate::tokens::SignatureCheck;

/// The largest number of sources of one key. It bounds the cost of extraction.
pub const MAX_KEY_SOURCES: usize = 8;

/// The sources of a limit's key: one to [`MAX_KEY_SOURCES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpec(Vec<Source>);

/// Why a request has no key under a [`KeySpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoKey {
    /// A part is absent or empty.
    Absent,
    /// A part occurs more than once.
    Repeated,
    /// A part may be decoded in different ways.
    Unreadable,
    /// A part is a class, and whether the request is in it cannot be known.
    UnreadableCondition,
    /// A part is a claim of a token whose signature was not checked ([`SignatureCheck::Recall`]).
    Unchecked,
    /// A part is a claim of a token whose keys have not been fetched, and on which the policy insists.
    Unknowable,
    /// The request is read from a log that does not have a part.
    Unrecorded,
}

impl NoKey {
    /// Why there is no key where a source is unreadable.
    pub(in crate::policy) fn of_unreadable(source: &Source) -> Self {
        if source.classes().is_empty() { Self::Unreadable } else { Self::UnreadableCondition }
    }
}

impl KeySpec {
    /// A key of between one and [`MAX_KEY_SOURCES`] sources.
    pub fn new(sources: Vec<Source>) -> Option<Self> {
        (1..=MAX_KEY_SOURCES).contains(&sources.len()).then_some(Self(sources))
    }

    /// The client's address alone.
    pub fn client_ip() -> Self {
        Self(vec![Source::ClientIp])
    }

    /// Its sources.
    pub fn sources(&self) -> &[Source] {
        &self.0
    }

    /// Whether a request can lack the key.
    pub fn can_be_absent(&self) -> bool {
        self.0.iter().any(Source::can_be_absent)
    }

    /// Whether a part is a credential; the log then calls the key authenticated.
    pub fn is_credential(&self) -> bool {
        self.0.iter().any(|source| source.is_credential())
    }

    /// Hashes the key of a request.
    pub fn hash(
        &self,
        hasher: &KeyHasher,
        facts: &Facts<'_>,
        route: &Route,
    ) -> Result<KeyHash, NoKey> {
        self.hash_with(hasher, facts, route, SignatureCheck::Verify)
    }

    /// Hashes the key of a request. With [`SignatureCheck::Recall`] a claim of an unchecked token gives
    /// [`NoKey::Unchecked`]; if another part is absent, the key is absent whatever the token contains.
    pub fn hash_with(
        &self,
        hasher: &KeyHasher,
        facts: &Facts<'_>,
        route: &Route,
        signatures: SignatureCheck,
    ) -> Result<KeyHash, NoKey> {
        let mut hasher = *hasher;
        let (mut absent, mut unchecked, mut unknowable) = (false, false, false);
        let mut unrecorded = false;
        for source in &self.0 {
            if *source == Source::ClientIp {
                // The most frequent source. It is written here without a copy on the heap.
                let address = address::bytes(facts.client.ip, facts.client.ipv6_prefix);
                hasher.write_part(source.tag(), &address);
                continue;
            }
            match source.part_with(facts, route, signatures) {
                KeyPart::Present(value) => hasher.write_part(source.tag(), &value),
                // All parts are read: a repeated one refuses the request even if another is absent.
                KeyPart::Absent => absent = true,
                KeyPart::Unchecked => unchecked = true,
                KeyPart::Repeated => return Err(NoKey::Repeated),
                KeyPart::Unreadable => return Err(NoKey::of_unreadable(source)),
                KeyPart::Unknowable => unknowable = true,
                KeyPart::Unrecorded => unrecorded = true,
            }
        }
        if unrecorded {
            return Err(NoKey::Unrecorded);
        }
        match (absent, unknowable, unchecked) {
            (true, ..) => Err(NoKey::Absent),
            (false, true, _) => Err(NoKey::Unknowable),
            (false, false, true) => Err(NoKey::Unchecked),
            (false, false, false) => Ok(hasher.finish()),
        }
    }

    /// Hashes the parts of the first `sources` sources: the key of the family ([`crate::policy::Family`]). `None`
    /// if one of them has no single value.
    pub fn hash_first(
        &self,
        sources: usize,
        hasher: &KeyHasher,
        facts: &Facts<'_>,
        route: &Route,
    ) -> Option<KeyHash> {
        let mut hasher = *hasher;
        for source in self.0.iter().take(sources) {
            match source.part(facts, route) {
                KeyPart::Present(value) => hasher.write_part(source.tag(), &value),
                KeyPart::Absent
                | KeyPart::Repeated
                | KeyPart::Unreadable
                | KeyPart::Unchecked
                | KeyPart::Unknowable
                | KeyPart::Unrecorded => {
                    return None;
                }
            }
        }
        Some(hasher.finish())
    }

    /// Hashes a configured key, given by the values of its sources in order.
    pub fn hash_values(&self, hasher: &KeyHasher, values: &[impl AsRef<[u8]>]) -> KeyHash {
        self.hash_first_values(self.0.len(), hasher, values)
    }

    /// Hashes the values of the first `sources` sources of a configured key: with the hasher of families, the key of the
    /// family.
    pub fn hash_first_values(
        &self,
        sources: usize,
        hasher: &KeyHasher,
        values: &[impl AsRef<[u8]>],
    ) -> KeyHash {
        let mut hasher = *hasher;
        for (source, value) in self.0.iter().take(sources).zip(values) {
            let value = value.as_ref();
            match source.read_configured(value) {
                KeyPart::Present(part) => hasher.write_part(source.tag(), &part),
                KeyPart::Absent
                | KeyPart::Repeated
                | KeyPart::Unreadable
                | KeyPart::Unchecked
                | KeyPart::Unknowable
                | KeyPart::Unrecorded => {
                    hasher.write_part(source.tag(), value);
                }
            }
        }
        hasher.finish()
    }
}

impl fmt::Display for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(f);
        }
        f.write_str("[")?;
        for (index, source) in self.0.iter().enumerate() {
            write!(f, "{}{source}", if index == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}
