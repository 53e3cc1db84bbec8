//! The format of the PROXY header that a load balancer writes before everything else, versions 1 and 2
//! (haproxy.org, doc/proxy-protocol.txt).
//!
//! Pure functions over bytes; they do not know which peers may send a header. What must always hold: a header that
//! violates the specification is an error, never an address.

use std::net::{IpAddr, SocketAddr};

use ppp::{v1, v2};

/// Bytes from which the version is known: the length of version 2's signature.
pub const PROXY_SIGNATURE_BYTES: usize = 12;

/// Bytes of the fixed part of version 2.
pub const PROXY_V2_FIXED_BYTES: usize = 16;

/// Bytes of the longest header of version 1, including its line end.
pub const MAX_PROXY_V1_BYTES: usize = 107;

/// Bytes of the longest header of version 2 that is read: addresses, and room for the fields that cloud providers add.
pub const MAX_PROXY_V2_BYTES: usize = 4 * 1024;

/// The source of a connection, according to its PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxySource {
    /// A client with this address.
    Client(SocketAddr),
    /// The load balancer itself (a health check), or something that has no address.
    Unknown,
}

/// The bytes are not a valid PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a PROXY header")]
pub struct InvalidProxyHeader;

/// The version of a header, according to its first [`PROXY_SIGNATURE_BYTES`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary: [`PROXY_V2_FIXED_BYTES`] bytes, then the rest; [`proxy_v2_size`] returns the total.
    V2,
}

/// Determines the version.
pub fn proxy_version(
    start: &[u8; PROXY_SIGNATURE_BYTES],
) -> Result<ProxyVersion, InvalidProxyHeader> {
    match start {
        b"\r\n\r\n\0\r\nQUIT\n" => Ok(ProxyVersion::V2),
        line if line.starts_with(b"PROXY ") => Ok(ProxyVersion::V1),
        _ => Err(InvalidProxyHeader),
    }
}

/// Bytes of a complete header of version 2, including the fixed part.
pub fn proxy_v2_size(fixed: &[u8; PROXY_V2_FIXED_BYTES]) -> Result<usize, InvalidProxyHeader> {
    let size = PROXY_V2_FIXED_BYTES + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if size <= MAX_PROXY_V2_BYTES { Ok(size) } else { Err(InvalidProxyHeader) }
}

/// Parses a complete header.
pub fn parse_proxy_header(header: &[u8]) -> Result<ProxySource, InvalidProxyHeader> {
    if header.starts_with(b"PROXY ") { parse_v1(header) } else { parse_v2(header) }
}

fn parse_v1(header: &[u8]) -> Result<ProxySource, InvalidProxyHeader> {
    let line = header.strip_suffix(b"\r\n").ok_or(InvalidProxyHeader)?;
    // "The receiver must ignore anything presented before the CRLF is found."
    if line == b"PROXY UNKNOWN" || line.starts_with(b"PROXY UNKNOWN ") {
        return Ok(ProxySource::Unknown);
    }
    // The parser of `ppp` also accepts signs in ports and a space before the line end.
    let fields = || line.split(|byte| *byte == b' ');
    if fields().count() != 6 || !fields().skip(4).all(is_port) {
        return Err(InvalidProxyHeader);
    }
    let header = v1::Header::try_from(header).map_err(|_| InvalidProxyHeader)?;
    Ok(match header.addresses {
        v1::Addresses::Tcp4(tcp) => client(tcp.source_address, tcp.source_port),
        v1::Addresses::Tcp6(tcp) => client(tcp.source_address, tcp.source_port),
        v1::Addresses::Unknown => ProxySource::Unknown,
    })
}

/// Digits without a leading zero (section 2.1).
fn is_port(text: &[u8]) -> bool {
    text == b"0" || text.iter().all(u8::is_ascii_digit) && !text.starts_with(b"0")
}

/// The version and command of a connection that the load balancer opened for itself.
const LOCAL: u8 = 0x20;

/// Address families with transports, as one byte. "Other values are unspecified and must be rejected as invalid by
/// receivers" (section 2.2). The parser of `ppp` does not reject them, because it reads the two halves separately.
const FAMILIES: [u8; 7] = [0x00, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32];

fn parse_v2(header: &[u8]) -> Result<ProxySource, InvalidProxyHeader> {
    let start = header.first_chunk().ok_or(InvalidProxyHeader)?;
    let fixed = header.first_chunk().ok_or(InvalidProxyHeader)?;
    if proxy_version(start)? != ProxyVersion::V2 || proxy_v2_size(fixed)? != header.len() {
        return Err(InvalidProxyHeader);
    }
    let (command, family) = (fixed[PROXY_SIGNATURE_BYTES], fixed[PROXY_SIGNATURE_BYTES + 1]);
    // "The receiver must accept this connection as valid and must discard the protocol block including
    // the family which is ignored."
    if command == LOCAL {
        return Ok(ProxySource::Unknown);
    }
    if !FAMILIES.contains(&family) {
        return Err(InvalidProxyHeader);
    }
    let header = v2::Header::try_from(header).map_err(|_| InvalidProxyHeader)?;
    Ok(match (header.command, header.addresses) {
        (v2::Command::Proxy, v2::Addresses::IPv4(ip)) => client(ip.source_address, ip.source_port),
        (v2::Command::Proxy, v2::Addresses::IPv6(ip)) => client(ip.source_address, ip.source_port),
        (v2::Command::Local, _) | (_, v2::Addresses::Unspecified | v2::Addresses::Unix(_)) => {
            ProxySource::Unknown
        }
    })
}

fn client(address: impl Into<IpAddr>, port: u16) -> ProxySource {
    ProxySource::Client(SocketAddr::new(address.into(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_version_1_are_parsed_or_refused() {
        for (line, expected) in [
            ("PROXY TCP4 192.0.2.1 192.0.2.9 4000 80\r\n", Some("192.0.2.1:4000")),
            ("PROXY TCP6 2001:db8::1 2001:db8::9 4000 80\r\n", Some("[2001:db8::1]:4000")),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN 1.2.3.4 x\r\n", None),
            ("PROXY UNKNOWN 1 2 3 4 5 6 7 \rX\r\n", None),
        ] {
            let expected = expected.map_or(ProxySource::Unknown, |address| {
                ProxySource::Client(address.parse().unwrap())
            });
            assert_eq!(parse_proxy_header(line.as_bytes()), Ok(expected), "{line}");
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
            assert_eq!(parse_proxy_header(line.as_bytes()), Err(InvalidProxyHeader), "{line}");
        }
    }

    #[test]
    fn headers_of_version_2_are_parsed_or_refused() {
        let header = |command: u8, family: u8, body: &[u8]| {
            let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
            bytes.extend([command, family]);
            bytes.extend((body.len() as u16).to_be_bytes());
            bytes.extend(body);
            bytes
        };
        let ipv4 = [192, 0, 2, 1, 192, 0, 2, 9, 15, 160, 0, 80];
        let client = ProxySource::Client("192.0.2.1:4000".parse().unwrap());
        assert_eq!(parse_proxy_header(&header(0x21, 0x11, &ipv4)), Ok(client));
        let with_extension = [&ipv4[..], &[4, 0, 1, 0]].concat();
        assert_eq!(parse_proxy_header(&header(0x21, 0x11, &with_extension)), Ok(client));
        assert_eq!(parse_proxy_header(&header(0x20, 0x11, &ipv4)), Ok(ProxySource::Unknown));
        assert_eq!(parse_proxy_header(&header(0x20, 0x00, &[])), Ok(ProxySource::Unknown));
        assert_eq!(parse_proxy_header(&header(0x21, 0x11, &ipv4[..8])), Err(InvalidProxyHeader));
        assert_eq!(parse_proxy_header(&header(0x11, 0x11, &ipv4)), Err(InvalidProxyHeader));
        assert_eq!(parse_proxy_header(&header(0x22, 0x11, &ipv4)), Err(InvalidProxyHeader));
        for family in [0x01, 0x02, 0x10, 0x13, 0x20, 0x30, 0x41] {
            let body = [0; 216];
            assert_eq!(
                parse_proxy_header(&header(0x21, family, &body)),
                Err(InvalidProxyHeader),
                "{family:#x}"
            );
        }
        // The rest of a LOCAL header is ignored.
        for (family, body) in [(0x11, &ipv4[..8]), (0x41, &[]), (0xff, &[7; 300])] {
            let local = header(0x20, family, body);
            assert_eq!(parse_proxy_header(&local), Ok(ProxySource::Unknown), "{family:#x}");
            assert_eq!(parse_proxy_header(&local[..local.len() - 1]), Err(InvalidProxyHeader));
        }
    }
}
