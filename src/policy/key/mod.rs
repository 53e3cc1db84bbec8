//! Whose cell is charged: sources of key parts, and the keys they make.

mod address;
mod cookie;
mod credentials;
mod hash;
mod header;
mod jwt;
mod query;
mod shard;
mod spelling;
mod target;

use std::borrow::Cow;
use std::fmt;

use http::HeaderName;
use http::header::AUTHORIZATION;

use super::{Facts, Route};
use crate::tokens::SignatureCheck;

pub use address::bytes as address_bytes;
pub use hash::{KeyHash, KeyHasher, KeySecret};
pub use jwt::Claim;

/// Most parts of one key. Nobody names more than a few; the bound keeps extraction cheap.
pub const MAX_KEY_SOURCES: usize = 8;

/// Where a part of a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client's address, IPv6 cut to the configured prefix.
    ClientIp,
    /// The value of a header field.
    Header(HeaderName),
    /// The value of the first cookie of that name.
    Cookie(String),
    /// The decoded value of a query parameter.
    Query(String),
    /// The token of `Authorization: Bearer`.
    Bearer,
    /// The user of `Authorization: Basic`.
    BasicUser,
    /// A claim of the bearer token, whose signature is checked.
    Jwt(Claim),
    /// The host asked for.
    Host,
    /// The whole path.
    Path,
    /// The method.
    Method,
    /// The route's name.
    Route,
    /// The N-th segment of the path, from 1.
    PathSegment(usize),
    /// Another source, cut down to one of a number of buckets.
    Shard {
        /// What is hashed.
        of: Box<Source>,
        /// How many buckets.
        buckets: u32,
    },
}

/// What a source found in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart<'r> {
    /// A value that is not empty.
    Present(Cow<'r, [u8]>),
    /// Nothing, or an empty value.
    Absent,
    /// More than one value where one is meant: the request is unclean.
    Repeated,
    /// A value that origins may decode in different ways: the request is unclean.
    Unreadable,
    /// Something that only the signature of a token tells ([`SignatureCheck::Recall`]).
    Unchecked,
}

impl<'r> KeyPart<'r> {
    /// Present unless empty.
    fn of(value: impl Into<Cow<'r, [u8]>>) -> Self {
        let value = value.into();
        if value.is_empty() { Self::Absent } else { Self::Present(value) }
    }

    /// The only one of several values.
    fn only<V: Into<Cow<'r, [u8]>>>(mut values: impl Iterator<Item = V>) -> Self {
        match (values.next(), values.next()) {
            (None, _) => Self::Absent,
            (Some(value), None) => Self::of(value),
            (Some(_), Some(_)) => Self::Repeated,
        }
    }
}

/// One or more sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpec(Vec<Source>);

/// Why a request has no key under a [`KeySpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoKey {
    /// A part is absent or empty.
    Absent,
    /// A part stands more than once.
    Repeated,
    /// A part may be decoded in different ways.
    Unreadable,
    /// A part is told by a token whose signature is not checked ([`SignatureCheck::Recall`]).
    Unchecked,
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

    /// Whether a request can be without it.
    pub fn can_be_absent(&self) -> bool {
        self.0.iter().any(Source::can_be_absent)
    }

    /// Whether a part is a credential, so that the log may call the key authenticated.
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

    /// Hashes the key of a request as far as it is known with these signatures. A key that lacks another
    /// part is absent, whatever its token says.
    pub fn hash_with(
        &self,
        hasher: &KeyHasher,
        facts: &Facts<'_>,
        route: &Route,
        signatures: SignatureCheck,
    ) -> Result<KeyHash, NoKey> {
        let mut hasher = *hasher;
        let (mut absent, mut unchecked) = (false, false);
        for source in &self.0 {
            if *source == Source::ClientIp {
                // The commonest, and the only one that nothing else has in memory.
                let address = address::bytes(facts.client.ip, facts.client.ipv6_prefix);
                hasher.write_part(source.tag(), &address);
                continue;
            }
            match source.part_with(facts, route, signatures) {
                KeyPart::Present(value) => hasher.write_part(source.tag(), &value),
                // Every part is looked at: a repeated one is unclean whatever else is absent.
                KeyPart::Absent => absent = true,
                KeyPart::Unchecked => unchecked = true,
                KeyPart::Repeated => return Err(NoKey::Repeated),
                KeyPart::Unreadable => return Err(NoKey::Unreadable),
            }
        }
        match (absent, unchecked) {
            (true, _) => Err(NoKey::Absent),
            (false, true) => Err(NoKey::Unchecked),
            (false, false) => Ok(hasher.finish()),
        }
    }
}

impl KeySpec {
    /// Hashes the first parts of the key: what a family's cells are put together by. `None` when
    /// one of them is not there once.
    pub fn hash_first(
        &self,
        parts: usize,
        hasher: &KeyHasher,
        facts: &Facts<'_>,
        route: &Route,
    ) -> Option<KeyHash> {
        let mut hasher = *hasher;
        for source in self.0.iter().take(parts) {
            match source.part(facts, route) {
                KeyPart::Present(value) => hasher.write_part(source.tag(), &value),
                KeyPart::Absent | KeyPart::Repeated | KeyPart::Unreadable | KeyPart::Unchecked => {
                    return None;
                }
            }
        }
        Some(hasher.finish())
    }
}

impl KeySpec {
    /// The hash of a key whose parts are known: those that the sources would find, in order.
    pub fn hash_values(&self, hasher: &KeyHasher, parts: &[impl AsRef<[u8]>]) -> KeyHash {
        let mut hasher = *hasher;
        for (source, part) in self.0.iter().zip(parts) {
            let part = part.as_ref();
            match source.as_found(part) {
                KeyPart::Present(part) => hasher.write_part(source.tag(), &part),
                KeyPart::Absent | KeyPart::Repeated | KeyPart::Unreadable | KeyPart::Unchecked => {
                    hasher.write_part(source.tag(), part);
                }
            }
        }
        hasher.finish()
    }
}

impl Source {
    /// What this source finds in a request.
    pub fn part<'r>(&self, facts: &Facts<'r>, route: &'r Route) -> KeyPart<'r> {
        self.part_with(facts, route, SignatureCheck::Verify)
    }

    /// What this source finds in a request as far as it is known with these signatures.
    pub fn part_with<'r>(
        &self,
        facts: &Facts<'r>,
        route: &'r Route,
        signatures: SignatureCheck,
    ) -> KeyPart<'r> {
        match self {
            Self::ClientIp => address::part(facts),
            Self::Header(name) => header::part(facts, name),
            Self::Cookie(name) => cookie::part(facts, name),
            Self::Query(name) => query::part(facts, name),
            Self::Bearer => credentials::bearer(facts),
            Self::BasicUser => credentials::basic_user(facts),
            Self::Jwt(claim) => jwt::part(facts, claim, signatures),
            Self::Host => KeyPart::of(facts.host.as_bytes()),
            Self::Path => KeyPart::of(facts.path.as_bytes()),
            Self::Method => target::method(facts),
            Self::Route => KeyPart::of(route.name.as_bytes()),
            Self::PathSegment(n) => target::segment(facts, *n),
            Self::Shard { of, buckets } => {
                shard::part(of.part_with(facts, route, signatures), *buckets)
            }
        }
    }

    /// What this source would find of a value that is written in a configuration.
    pub(super) fn as_found<'p>(&self, part: &'p [u8]) -> KeyPart<'p> {
        match self {
            Self::Header(name) if *name == AUTHORIZATION => credentials::spelt(part),
            Self::Cookie(_) => cookie::value(part),
            _ => KeyPart::of(part),
        }
    }

    /// Whether a request can be without it. (`host` is always there over HTTP/1.1 and HTTP/2;
    /// HTTP/1.0 may go without, and is then one client of the empty host's bucket: absent.)
    pub fn can_be_absent(&self) -> bool {
        match self {
            Self::ClientIp | Self::Path | Self::Method | Self::Route => false,
            Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Jwt(_)
            | Self::Host
            | Self::PathSegment(_) => true,
            Self::Shard { of, .. } => of.can_be_absent(),
        }
    }

    /// The field that it reads, where the configuration names one.
    pub fn header_name(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name) => Some(name),
            Self::Shard { of, .. } => of.header_name(),
            Self::ClientIp
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Jwt(_)
            | Self::Host
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_) => None,
        }
    }

    /// Whether it reads the path, which origins may read otherwise.
    pub fn reads_path(&self) -> bool {
        match self {
            Self::Path | Self::PathSegment(_) => true,
            Self::Shard { of, .. } => of.reads_path(),
            Self::ClientIp
            | Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Jwt(_)
            | Self::Host
            | Self::Method
            | Self::Route => false,
        }
    }

    /// The claim of a signed token that this source reads, if it does.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Self::Jwt(claim) => Some(claim),
            Self::Shard { of, .. } => of.claim(),
            Self::ClientIp
            | Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Host
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_) => None,
        }
    }

    /// Whether any client can write what it likes there.
    pub fn is_written_by_clients(&self) -> bool {
        match self {
            Self::Header(_) | Self::Cookie(_) | Self::Query(_) | Self::BasicUser | Self::Bearer => {
                true
            }
            Self::Shard { of, .. } => of.is_written_by_clients(),
            Self::Jwt(_)
            | Self::ClientIp
            | Self::Host
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_) => false,
        }
    }

    fn is_credential(&self) -> bool {
        match self {
            Self::Bearer | Self::BasicUser | Self::Jwt(_) => true,
            Self::Header(name) => {
                let name = name.as_str();
                name == "authorization" || name.contains("api-key") || name.contains("token")
            }
            Self::Cookie(_) => true,
            Self::Shard { of, .. } => of.is_credential(),
            Self::ClientIp
            | Self::Query(_)
            | Self::Host
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_) => false,
        }
    }

    /// The kind of the source, hashed with each part: a cookie `203.0.113.9` is not that address.
    const fn tag(&self) -> u8 {
        match self {
            Self::ClientIp => 1,
            Self::Header(_) => 2,
            Self::Cookie(_) => 3,
            Self::Query(_) => 4,
            Self::Bearer => 5,
            Self::BasicUser => 6,
            Self::Host => 7,
            Self::Path => 8,
            Self::Method => 9,
            Self::Route => 10,
            Self::PathSegment(_) => 11,
            Self::Shard { .. } => 12,
            Self::Jwt(_) => 13,
        }
    }
}

/// As it is written in a configuration.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp => f.write_str("client_ip"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Bearer => f.write_str("bearer"),
            Self::BasicUser => f.write_str("basic_user"),
            Self::Jwt(claim) => write!(f, "jwt:{}", claim.name),
            Self::Host => f.write_str("host"),
            Self::Path => f.write_str("path"),
            Self::Method => f.write_str("method"),
            Self::Route => f.write_str("route"),
            Self::PathSegment(n) => write!(f, "path_segment:{n}"),
            Self::Shard { of, buckets } => write!(f, "{{ shard: {of}, of: {buckets} }}"),
        }
    }
}

impl fmt::Display for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(f);
        }
        f.write_str("[")?;
        for (i, source) in self.0.iter().enumerate() {
            write!(f, "{}{source}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}
