//! The PROXY header that a load balancer writes before everything else, versions 1 and 2
//! (haproxy.org, doc/proxy-protocol.txt).

use std::net::{IpAddr, SocketAddr};

use ppp::{v1, v2};

/// Bytes after which the version is known: the signature of version 2.
pub const PROXY_SIGNATURE: usize = 12;

/// The fixed part of version 2.
pub const PROXY_V2_FIXED: usize = 16;

/// The longest header of version 1, its line end included.
pub const PROXY_V1_MOST: usize = 107;

/// The longest header of version 2 that is read: addresses, and room for what cloud providers add.
pub const PROXY_V2_MOST: usize = 4 * 1024;

/// Who is at the other end, as a PROXY header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxiedFrom {
    /// This client.
    Client(SocketAddr),
    /// The load balancer itself (a health check), or something that has no address.
    Unknown,
}

/// Not a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a PROXY header")]
pub struct NoProxyHeader;

/// How a header goes on, by its first [`PROXY_SIGNATURE`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// A line of text.
    One,
    /// [`PROXY_V2_FIXED`] bytes, then as many as [`proxy_v2_size`] says.
    Two,
}

/// Tells the versions apart.
pub fn proxy_version(start: &[u8; PROXY_SIGNATURE]) -> Result<ProxyVersion, NoProxyHeader> {
    match start {
        b"\r\n\r\n\0\r\nQUIT\n" => Ok(ProxyVersion::Two),
        line if line.starts_with(b"PROXY ") => Ok(ProxyVersion::One),
        _ => Err(NoProxyHeader),
    }
}

/// Bytes of a whole header of version 2, the fixed part included.
pub fn proxy_v2_size(fixed: &[u8; PROXY_V2_FIXED]) -> Result<usize, NoProxyHeader> {
    let size = PROXY_V2_FIXED + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if size <= PROXY_V2_MOST { Ok(size) } else { Err(NoProxyHeader) }
}

/// Reads a whole header.
pub fn proxied_from(header: &[u8]) -> Result<ProxiedFrom, NoProxyHeader> {
    if header.starts_with(b"PROXY ") { version_1(header) } else { version_2(header) }
}

fn version_1(header: &[u8]) -> Result<ProxiedFrom, NoProxyHeader> {
    let line = header.strip_suffix(b"\r\n").ok_or(NoProxyHeader)?;
    // "The receiver must ignore anything presented before the CRLF is found."
    if line == b"PROXY UNKNOWN" || line.starts_with(b"PROXY UNKNOWN ") {
        return Ok(ProxiedFrom::Unknown);
    }
    // The parser also takes signs in ports and a blank before the line end.
    let parts = || line.split(|byte| *byte == b' ');
    if parts().count() != 6 || !parts().skip(4).all(is_port) {
        return Err(NoProxyHeader);
    }
    let header = v1::Header::try_from(header).map_err(|_| NoProxyHeader)?;
    Ok(match header.addresses {
        v1::Addresses::Tcp4(tcp) => client(tcp.source_address, tcp.source_port),
        v1::Addresses::Tcp6(tcp) => client(tcp.source_address, tcp.source_port),
        v1::Addresses::Unknown => ProxiedFrom::Unknown,
    })
}

/// Digits without a zero before them (section 2.1).
fn is_port(text: &[u8]) -> bool {
    text == b"0" || text.iter().all(u8::is_ascii_digit) && !text.starts_with(b"0")
}

/// The command of a connection that the load balancer opened for itself.
const LOCAL: u8 = 0x20;

/// Families with their transports, as one byte. "Other values are unspecified and must be rejected as
/// invalid by receivers" (section 2.2), which the parser does not: it reads the two halves apart.
const FAMILIES: [u8; 7] = [0x00, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32];

fn version_2(header: &[u8]) -> Result<ProxiedFrom, NoProxyHeader> {
    let start = header.first_chunk().ok_or(NoProxyHeader)?;
    let fixed = header.first_chunk().ok_or(NoProxyHeader)?;
    if proxy_version(start)? != ProxyVersion::Two || proxy_v2_size(fixed)? != header.len() {
        return Err(NoProxyHeader);
    }
    let (command, family) = (fixed[PROXY_SIGNATURE], fixed[PROXY_SIGNATURE + 1]);
    // "The receiver must accept this connection as valid and must discard the protocol block including
    // the family which is ignored."
    if command == LOCAL {
        return Ok(ProxiedFrom::Unknown);
    }
    if !FAMILIES.contains(&family) {
        return Err(NoProxyHeader);
    }
    let header = v2::Header::try_from(header).map_err(|_| NoProxyHeader)?;
    Ok(match (header.command, header.addresses) {
        (v2::Command::Proxy, v2::Addresses::IPv4(ip)) => client(ip.source_address, ip.source_port),
        (v2::Command::Proxy, v2::Addresses::IPv6(ip)) => client(ip.source_address, ip.source_port),
        (v2::Command::Local, _) | (_, v2::Addresses::Unspecified | v2::Addresses::Unix(_)) => {
            ProxiedFrom::Unknown
        }
    })
}

fn client(address: impl Into<IpAddr>, port: u16) -> ProxiedFrom {
    ProxiedFrom::Client(SocketAddr::new(address.into(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_version_1() {
        for (line, expected) in [
            ("PROXY TCP4 192.0.2.1 192.0.2.9 4000 80\r\n", Some("192.0.2.1:4000")),
            ("PROXY TCP6 2001:db8::1 2001:db8::9 4000 80\r\n", Some("[2001:db8::1]:4000")),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN 1.2.3.4 x\r\n", None),
            ("PROXY UNKNOWN 1 2 3 4 5 6 7 \rX\r\n", None),
        ] {
            let expected = expected.map_or(ProxiedFrom::Unknown, |address| {
                ProxiedFrom::Client(address.parse().unwrap())
            });
            assert_eq!(proxied_from(line.as_bytes()), Ok(expected), "{line}");
        }
        for line in [
            "PROXY TCP4 192.0.2.1 192.0.2.9 4000 80\n",
            "PROXY TCP4 192.0.2.1 192.0.2.9 4000 80 \n",
            "PROXY UNKNOWN \n",
            "PROXY UNKNOWNX\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.9 +4000 80\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.9 4000 +80\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.9 04000 80\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.9 4000\r\n",
            "PROXY TCP4 192.0.2.256 192.0.2.9 4000 80\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.9 4000 80000\r\n",
            "PROXY TCP4 2001:db8::1 192.0.2.9 4000 80\r\n",
            "PROXY UDP4 192.0.2.1 192.0.2.9 4000 80\r\n",
            "PROXY TCP4  192.0.2.1 192.0.2.9 4000 80\r\n",
            "PROXY \r\n",
            "GET / HTTP/1.1\r\n",
        ] {
            assert_eq!(proxied_from(line.as_bytes()), Err(NoProxyHeader), "{line}");
        }
    }

    #[test]
    fn headers_of_version_2() {
        let header = |command: u8, family: u8, body: &[u8]| {
            let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
            bytes.extend([command, family]);
            bytes.extend((body.len() as u16).to_be_bytes());
            bytes.extend(body);
            bytes
        };
        let ipv4 = [192, 0, 2, 1, 192, 0, 2, 9, 15, 160, 0, 80];
        let client = ProxiedFrom::Client("192.0.2.1:4000".parse().unwrap());
        assert_eq!(proxied_from(&header(0x21, 0x11, &ipv4)), Ok(client));
        let with_more = [&ipv4[..], &[4, 0, 1, 0]].concat();
        assert_eq!(proxied_from(&header(0x21, 0x11, &with_more)), Ok(client));
        assert_eq!(proxied_from(&header(0x20, 0x11, &ipv4)), Ok(ProxiedFrom::Unknown));
        assert_eq!(proxied_from(&header(0x20, 0x00, &[])), Ok(ProxiedFrom::Unknown));
        assert_eq!(proxied_from(&header(0x21, 0x11, &ipv4[..8])), Err(NoProxyHeader));
        assert_eq!(proxied_from(&header(0x11, 0x11, &ipv4)), Err(NoProxyHeader));
        assert_eq!(proxied_from(&header(0x22, 0x11, &ipv4)), Err(NoProxyHeader));
        for family in [0x01, 0x02, 0x10, 0x13, 0x20, 0x30, 0x41] {
            let body = [0; 216];
            assert_eq!(
                proxied_from(&header(0x21, family, &body)),
                Err(NoProxyHeader),
                "{family:#x}"
            );
        }
        // The rest of a local one means nothing.
        for (family, body) in [(0x11, &ipv4[..8]), (0x41, &[]), (0xff, &[7; 300])] {
            let local = header(0x20, family, body);
            assert_eq!(proxied_from(&local), Ok(ProxiedFrom::Unknown), "{family:#x}");
            assert_eq!(proxied_from(&local[..local.len() - 1]), Err(NoProxyHeader));
        }
    }
}
