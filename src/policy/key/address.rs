use std::net::IpAddr;

use super::Part;
use crate::policy::{Facts, client};

/// 4 bytes of IPv4, or 16 of an IPv6 address cut to the configured prefix.
pub(super) fn part<'r>(facts: &Facts<'r>) -> Part<'r> {
    match client::prefix(facts.client_ip, facts.ipv6_prefix) {
        IpAddr::V4(v4) => Part::of(v4.octets().to_vec()),
        IpAddr::V6(v6) => Part::of(v6.octets().to_vec()),
    }
}
