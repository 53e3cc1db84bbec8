//! The hash of a key: SipHash-1-3 of 128 bits (Aumasson and Bernstein, 2012) under the deployment's secret.
//!
//! Only the hash is stored; the key's value is not kept. The hash covers the limit's identity and, for each part, the
//! tag of its source, its length and its value. Nodes that share a store must compute equal hashes, so neither the
//! order nor the framing may change.

use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip128::{Hash128, Hasher128, SipHasher13};

use super::address;
use super::source::Source;
use crate::clock::Nanos;
use crate::policy::{Facts, Limit};

/// The deployment's secret. Without it a client could choose colliding keys, or guess a key from its hash.
#[derive(Clone, Copy)]
pub struct KeySecret([u8; 16]);

/// The hash that identifies a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyHash {
    /// The first 64 bits.
    pub high: u64,
    /// The last 64 bits.
    pub low: u64,
}

/// A hasher that has read the secret and a limit's identity. It is copied for each key.
#[derive(Clone, Copy)]
pub struct KeyHasher(SipHasher13);

impl KeySecret {
    /// Its bytes, for a successor.
    #[cfg(feature = "bin")]
    pub(crate) const fn bytes(&self) -> [u8; 16] {
        self.0
    }

    /// From 16 bytes of randomness.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The secret of a deployment, derived from the bytes of its file.
    pub fn of_file(bytes: &[u8]) -> Self {
        let mut hasher = SipHasher13::new_with_key(&[0; 16]);
        write_framed(&mut hasher, b"tollgate key secret");
        write_framed(&mut hasher, bytes);
        let Hash128 { h1, h2 } = hasher.finish128();
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&h1.to_le_bytes());
        secret[8..].copy_from_slice(&h2.to_le_bytes());
        Self(secret)
    }

    /// The secret of nodes that share a store: of their file, or the one that all have without a file.
    pub fn of_shared_store(file: Option<&[u8]>) -> Self {
        const FIXED: &[u8] = b"tollgate: no key_secret_file";
        Self::of_file(file.unwrap_or(FIXED))
    }

    /// A hasher for families, the same for all limits.
    pub fn family_hasher(&self) -> KeyHasher {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        write_framed(&mut hasher, b"family");
        KeyHasher(hasher)
    }

    /// A hasher that is the same on all nodes and after a restart. It selects shares of keys; it must not identify
    /// keys, since it is not secret.
    pub fn fixed_hasher(limit: &Limit) -> KeyHasher {
        let mut hasher = SipHasher13::new_with_key(b"tollgate rollout");
        write_framed(&mut hasher, limit.name.as_bytes());
        KeyHasher(hasher)
    }

    /// The hash under which a log has the value of a source, by the source's text in a configuration.
    pub fn value_hash(&self, source: &str, value: &[u8]) -> u128 {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        write_framed(&mut hasher, b"log");
        write_framed(&mut hasher, source.as_bytes());
        write_framed(&mut hasher, value);
        let Hash128 { h1, h2 } = hasher.finish128();
        u128::from(h1) << 64 | u128::from(h2)
    }

    /// What nodes call a limit when they exchange its counts: limits that count the same (`what`) of the same keys in windows of
    /// the same length have the same name.
    pub fn fleet_tag(&self, limit: &Limit, what: &str, period: Nanos) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        write_framed(&mut hasher, b"fleet limit");
        write_framed(&mut hasher, what.as_bytes());
        write_framed(&mut hasher, limit.identity().as_bytes());
        hasher.write_u64(period.get());
        hasher.finish128().h1
    }

    /// A checksum over texts that nodes exchange. Who does not know the secret cannot compute it.
    pub fn fleet_checksum(&self, parts: &[&[u8]]) -> u128 {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        write_framed(&mut hasher, b"fleet chunk");
        parts.iter().for_each(|part| write_framed(&mut hasher, part));
        let Hash128 { h1, h2 } = hasher.finish128();
        u128::from(h1) << 64 | u128::from(h2)
    }

    /// A hasher for the keys of one limit.
    pub fn hasher(&self, limit: &Limit) -> KeyHasher {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        let identity = limit.identity();
        write_framed(&mut hasher, identity.as_bytes());
        KeyHasher(hasher)
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(..)")
    }
}

impl KeyHasher {
    /// The client's address as a key of its own, for `missing_key: client_ip`.
    pub fn hash_client_ip(&self, facts: &Facts<'_>) -> KeyHash {
        self.hash_address(facts.client.ip, facts.client.ipv6_prefix)
    }

    /// An address as the key of a limit by `client_ip` alone.
    pub fn hash_address(&self, address: IpAddr, ipv6_prefix: u8) -> KeyHash {
        let mut hasher = *self;
        hasher.write_part(Source::ClientIp.tag(), &address::bytes(address, ipv6_prefix));
        hasher.finish()
    }

    /// Adds one part. (Tag, length and value are hashed one by one: joining them in a buffer first took a third
    /// longer, since the bytes were read back before the store to memory had completed.)
    pub(super) fn write_part(&mut self, tag: u8, value: &[u8]) {
        self.0.write_u8(tag);
        write_framed(&mut self.0, value);
    }

    pub(super) fn finish(&self) -> KeyHash {
        let Hash128 { h1, h2 } = self.0.finish128();
        KeyHash { high: h1, low: h2 }
    }
}

/// Hashes the length first, so that two lists of parts never give the same bytes.
fn write_framed(hasher: &mut SipHasher13, value: &[u8]) {
    hasher.write_u64(value.len() as u64);
    hasher.write(value);
}

/// The form used in a store: 32 hexadecimal digits.
impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.high, self.low)
    }
}

/// Parses the form used in a store.
impl std::str::FromStr for KeyHash {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bits = u128::from_str_radix(text, 16)?;
        Ok(Self { high: (bits >> 64) as u64, low: bits as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_the_same_on_every_machine() {
        let mut hasher = KeyHasher(SipHasher13::new_with_key(b"0123456789abcdef"));
        hasher.write_part(2, b"a key");
        // Nodes that share a store must agree. The expected hash is of another implementation.
        assert_eq!(hasher.finish().to_string(), "12d49f4eacbdf3df66461045a278bd2e");
    }
}
