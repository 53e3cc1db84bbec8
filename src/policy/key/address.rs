use std::net::IpAddr;

use smallvec::SmallVec;

use super::KeyPart;
use crate::policy::{Facts, client};

/// The client's address as a part of a key.
pub(super) fn part<'r>(facts: &Facts<'r>) -> KeyPart<'r> {
    KeyPart::of(bytes(facts.client.ip, facts.client.ipv6_prefix).to_vec())
}

/// 4 bytes of IPv4, or 16 of an IPv6 address cut to `ipv6_prefix` bits.
pub fn bytes(address: IpAddr, ipv6_prefix: u8) -> SmallVec<[u8; 16]> {
    match client::prefix(address, ipv6_prefix) {
        IpAddr::V4(v4) => SmallVec::from_slice(&v4.octets()),
        IpAddr::V6(v6) => SmallVec::from_slice(&v6.octets()),
    }
}
