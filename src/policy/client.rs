//! The client's address: the peer's, or the one that trusted proxies vouch for.
//!
//! A request comes from a peer. If the peer is a trusted proxy, a header names the client; it is read from
//! the right, over all trusted hops. This module knows no sockets and no configuration file. An untrusted
//! peer must never be able to choose the address that is believed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

/// The largest number of forwarded addresses that are read, from the right. No real chain of trusted hops is longer; a
/// longer list is an attack on the parser.
const MAX_HOPS: usize = 64;

/// `clients:` of the configuration.
#[derive(Clone, Debug)]
pub struct ClientRules {
    /// Peers and hops whose forwarded addresses are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// The header in which they name the client; `None`: the peer is the client.
    pub address_header: Option<AddressHeader>,
    /// The number of leading bits of an IPv6 address that identify one client, 1 to 128.
    pub ipv6_prefix: u8,
}

/// The client of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestClient {
    /// Its address, after trusted proxies were skipped. IPv4-mapped IPv6 addresses are IPv4.
    pub ip: IpAddr,
    /// The number of leading bits of an IPv6 address that identify one client.
    pub ipv6_prefix: u8,
    /// Whether the peer is a trusted proxy. A plan's name in a header is believed only then.
    pub peer_trusted: bool,
}

/// A header that carries client addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressHeader {
    /// `X-Forwarded-For`: a list, the newest hop last.
    XForwardedFor,
    /// `Forwarded` (RFC 7239): a list of `for=` parameters, the newest hop last.
    Forwarded,
    /// A single address, such as `X-Real-IP` or `CF-Connecting-IP`.
    Single(HeaderName),
}

/// The field's name.
impl fmt::Display for AddressHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::XForwardedFor => f.write_str("x-forwarded-for"),
            Self::Forwarded => f.write_str("forwarded"),
            Self::Single(name) => name.fmt(f),
        }
    }
}

impl Default for ClientRules {
    fn default() -> Self {
        Self { trusted_proxies: Vec::new(), address_header: None, ipv6_prefix: 64 }
    }
}

impl RequestClient {
    /// The address, an IPv6 one cut to [`RequestClient::ipv6_prefix`] bits.
    pub fn prefix(&self) -> IpAddr {
        prefix(self.ip, self.ipv6_prefix)
    }
}

impl ClientRules {
    /// The client of a request with these headers from this peer.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> RequestClient {
        RequestClient {
            ip: resolve(peer, headers, self),
            ipv6_prefix: self.ipv6_prefix,
            peer_trusted: self.trusts(peer),
        }
    }

    /// Whether an address belongs to a trusted proxy.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = unmapped(address);
        self.trusted_proxies.iter().any(|net| net.contains(&address))
    }
}

/// Walks the forwarded addresses from the right (all header lines, in order) and takes the first that is not a
/// trusted proxy. If an entry cannot be parsed, the client is the last address before it, never one further
/// left.
fn resolve(peer: IpAddr, headers: &HeaderMap, rules: &ClientRules) -> IpAddr {
    let peer = unmapped(peer);
    if !rules.trusts(peer) {
        return peer;
    }
    match &rules.address_header {
        None => peer,
        Some(AddressHeader::Single(name)) => single(headers, name).unwrap_or(peer),
        Some(AddressHeader::XForwardedFor) => {
            let lines = headers.get_all("x-forwarded-for").iter().rev();
            let entries = lines.flat_map(|line| line.as_bytes().rsplit(|b| *b == b','));
            walk(peer, entries, parse_address, rules)
        }
        Some(AddressHeader::Forwarded) => {
            let lines = headers.get_all("forwarded").iter().rev();
            let entries = lines.flat_map(|line| rsplit_unquoted(line.as_bytes()));
            walk(peer, entries, forwarded_for, rules)
        }
    }
}

/// The part of an address that identifies one client: all of IPv4, `ipv6_prefix` bits of IPv6.
pub fn prefix(address: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match unmapped(address) {
        IpAddr::V6(v6) => {
            let bits = u32::from(ipv6_prefix.min(128));
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
        v4 => v4,
    }
}

/// Turns an IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) into the IPv4 address.
pub fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

fn walk<'h>(
    peer: IpAddr,
    entries: impl Iterator<Item = &'h [u8]>,
    read: impl Fn(&[u8]) -> Option<IpAddr>,
    rules: &ClientRules,
) -> IpAddr {
    let mut client = peer;
    for entry in entries.take(MAX_HOPS) {
        let Some(address) = read(entry) else {
            return client;
        };
        client = address;
        if !rules.trusts(address) {
            return client;
        }
    }
    client
}

/// A header that must occur once and hold one address.
fn single(headers: &HeaderMap, name: &HeaderName) -> Option<IpAddr> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?;
    match lines.next() {
        None => parse_address(line.as_bytes()),
        Some(_) => None,
    }
}

/// Parses `192.0.2.1`, `192.0.2.1:443`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:443`, with spaces or
/// tabs around it; mapped addresses become IPv4. Anything else (a zone, a name, `unknown`) is not an address.
fn parse_address(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?.trim_matches([' ', '\t']);
    let address = if let Some(rest) = text.strip_prefix('[') {
        let (inside, port) = rest.split_once(']')?;
        if !(port.is_empty() || port.strip_prefix(':').is_some_and(is_port)) {
            return None;
        }
        IpAddr::V6(inside.parse::<Ipv6Addr>().ok()?)
    } else if let Ok(address) = text.parse::<IpAddr>() {
        address
    } else {
        match text.parse::<SocketAddr>().ok()?.ip() {
            IpAddr::V4(v4) => IpAddr::V4(v4),
            IpAddr::V6(_) => return None,
        }
    };
    (address != IpAddr::V4(Ipv4Addr::UNSPECIFIED)).then(|| unmapped(address))
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// The address of one element of `Forwarded`: its only `for=` parameter (RFC 7239, section 4).
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let element = std::str::from_utf8(element).ok()?;
    let mut found = None;
    for pair in element.split(';') {
        let (name, value) = pair.trim_matches([' ', '\t']).split_once('=')?;
        // A quoted string must end in its own pair; otherwise the element is not parsed.
        let bare = match value.strip_prefix('"') {
            Some(rest) => rest.strip_suffix('"')?,
            None => value,
        };
        if name.eq_ignore_ascii_case("for") {
            if found.is_some() {
                return None;
            }
            found = Some(parse_address(bare.as_bytes())?);
        }
    }
    found
}

/// Elements of a list from the right. A comma inside quotes does not separate elements.
fn rsplit_unquoted(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut quoted = false;
    let mut elements: Vec<&[u8]> = line
        .split(|b| {
            quoted ^= *b == b'"';
            *b == b',' && !quoted
        })
        .collect();
    // With an unclosed quote the line is one element, which `forwarded_for` refuses.
    if quoted {
        elements = vec![line];
    }
    elements.into_iter().rev()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_prefix_identifies_a_client() {
        let cut = |text: &str, bits| prefix(text.parse().unwrap(), bits).to_string();
        assert_eq!(cut("2001:db8:1:2:3::4", 64), "2001:db8:1:2::");
        assert_eq!(cut("2001:db8:1:2:3::4", 0), "::");
        assert_eq!(cut("2001:db8:1:2:3::4", 128), "2001:db8:1:2:3::4");
        assert_eq!(cut("::ffff:192.0.2.1", 64), "192.0.2.1");
        assert_eq!(cut("192.0.2.1", 64), "192.0.2.1");
    }
}
