//! The client's address as a key part. All addresses of one client's IPv6 prefix give one key.

use std::net::IpAddr;

use smallvec::SmallVec;

use super::part::KeyPart;
use crate::policy::{Facts, client};

/// The client's address as bytes.
pub(super) fn part<'r>(facts: &Facts<'r>) -> KeyPart<'r> {
    KeyPart::of(bytes(facts.client.ip, facts.client.ipv6_prefix).to_vec())
}

/// The 4 bytes of an IPv4 address, or the 16 of an IPv6 address cut to `ipv6_prefix` bits.
pub(super) fn bytes(address: IpAddr, ipv6_prefix: u8) -> SmallVec<[u8; 16]> {
    match client::prefix(address, ipv6_prefix) {
        IpAddr::V4(v4) => SmallVec::from_slice(&v4.octets()),
        IpAddr::V6(v6) => SmallVec::from_slice(&v6.octets()),
    }
}
