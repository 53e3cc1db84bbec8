//! The client's address as a key part. All addresses of one client's IPv6 prefix give one key.

use std::net::IpAddr;

use smallvec::SmallVec;

use super::part::KeyPart;
use crate::policy::{Facts, client};

/// The client's address as bytes.
pub(super) fn part<'r>(facts: &Facts<'r>) -> KeyPart<'r> {
    KeyPart::of(bytes(facts.client.ip, facts.client.ipv6_prefix).to_vec())
}

/// The 4 bytes of an IPv4 address, or the 16 of an IPv6 address cut to `ipv6_prefix` bits, and the number of bits: networks of
/// different sizes are different clients, also where nodes or a reload disagree on the size.
pub(super) fn bytes(address: IpAddr, ipv6_prefix: u8) -> SmallVec<[u8; 17]> {
    match client::prefix(address, ipv6_prefix) {
        IpAddr::V4(v4) => SmallVec::from_slice(&v4.octets()),
        IpAddr::V6(v6) => {
            let mut bytes = SmallVec::from_slice(&v6.octets());
            bytes.push(ipv6_prefix);
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_different_sizes_are_different_clients() {
        let address: IpAddr = "2001:db8:1::9".parse().unwrap();
        assert_eq!(bytes(address, 64), bytes("2001:db8:1::8".parse().unwrap(), 64));
        // Both are cut to the same bits.
        assert_ne!(bytes(address, 64), bytes(address, 48));
        let v4: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(bytes(v4, 64), bytes(v4, 48));
    }
}
