use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tollgate::edge::{
    MAX_PROXY_V1_BYTES, MAX_PROXY_V2_BYTES, PROXY_SIGNATURE_BYTES, PROXY_V2_FIXED_BYTES,
    ProxySource, ProxyVersion, parse_proxy_header, proxy_v2_size, proxy_version,
};

/// The first bytes of a connection behind a load balancer. A PROXY header that is believed says what
/// the protocol's text says (haproxy.org, doc/proxy-protocol.txt), and no part of it is one.
pub fn proxy_headers(bytes: &[u8]) {
    let Some(header) = header(bytes) else {
        return;
    };
    let told = parse_proxy_header(header).ok();
    let read = match header.starts_with(b"PROXY ") {
        true => version_1(header),
        false => version_2(header),
    };
    assert_eq!(told, read, "{}", header.escape_ascii());
    if told.is_some() {
        for cut in super::cuts(header.len()).filter(|cut| *cut < header.len()) {
            assert!(parse_proxy_header(&header[..cut]).is_err(), "cut at {cut}");
        }
    }
    if let Some(ProxySource::Client(client)) = told {
        is_read_back(client);
    }
}

/// What is read of a connection as its header, if all of it has come.
fn header(bytes: &[u8]) -> Option<&[u8]> {
    let version = proxy_version(bytes.first_chunk::<PROXY_SIGNATURE_BYTES>()?).ok()?;
    match version {
        ProxyVersion::V1 => {
            let rest = bytes[PROXY_SIGNATURE_BYTES - 1..].iter().position(|byte| *byte == b'\n')?;
            let size = PROXY_SIGNATURE_BYTES + rest;
            (size <= MAX_PROXY_V1_BYTES).then(|| &bytes[..size])
        }
        ProxyVersion::V2 => {
            let size = proxy_v2_size(bytes.first_chunk::<PROXY_V2_FIXED_BYTES>()?).ok()?;
            assert!((PROXY_V2_FIXED_BYTES..=MAX_PROXY_V2_BYTES).contains(&size));
            bytes.get(..size)
        }
    }
}

/// One line of text, its parts parted by single blanks.
fn version_1(header: &[u8]) -> Option<ProxySource> {
    let line = header.strip_suffix(b"\r\n")?;
    let after = line.strip_prefix(b"PROXY UNKNOWN");
    if after.is_some_and(|after| matches!(after.first(), None | Some(b' '))) {
        return Some(ProxySource::Unknown);
    }
    let line = std::str::from_utf8(line).ok()?;
    let parts: Vec<&str> = line.split(' ').collect();
    let port = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let is_short = text == "0" || !text.starts_with('0');
        (is_number && is_short).then(|| text.parse::<u16>().ok()).flatten()
    };
    match parts[..] {
        ["PROXY", "TCP4", from, to, from_port, to_port] => {
            let (from, _) = (from.parse::<Ipv4Addr>().ok()?, to.parse::<Ipv4Addr>().ok()?);
            let (from_port, _) = (port(from_port)?, port(to_port)?);
            Some(ProxySource::Client((from, from_port).into()))
        }
        ["PROXY", "TCP6", from, to, from_port, to_port] => {
            let (from, _) = (from.parse::<Ipv6Addr>().ok()?, to.parse::<Ipv6Addr>().ok()?);
            let (from_port, _) = (port(from_port)?, port(to_port)?);
            Some(ProxySource::Client((from, from_port).into()))
        }
        _ => None,
    }
}

/// Command, family, size, addresses, and anything after them.
fn version_2(header: &[u8]) -> Option<ProxySource> {
    let (command, family, body) = (header[12], header[13], &header[PROXY_V2_FIXED_BYTES..]);
    match command {
        0x20 => return Some(ProxySource::Unknown),
        0x21 => {}
        _ => return None,
    }
    let port = |at: usize| Some(u16::from_be_bytes([*body.get(at)?, *body.get(at + 1)?]));
    let (ip, port) = match family {
        0x00 => return Some(ProxySource::Unknown),
        0x11 | 0x12 if body.len() >= 12 => (IpAddr::from(*body.first_chunk::<4>()?), port(8)?),
        0x21 | 0x22 if body.len() >= 36 => (IpAddr::from(*body.first_chunk::<16>()?), port(32)?),
        0x31 | 0x32 if body.len() >= 216 => return Some(ProxySource::Unknown),
        _ => return None,
    };
    Some(ProxySource::Client(SocketAddr::new(ip, port)))
}

/// What a load balancer writes of an address is that address.
fn is_read_back(client: SocketAddr) {
    let (ip, port) = (client.ip(), client.port());
    let family = if ip.is_ipv4() { "TCP4" } else { "TCP6" };
    let line = format!("PROXY {family} {ip} {ip} {port} 80\r\n");
    assert_eq!(parse_proxy_header(line.as_bytes()), Ok(ProxySource::Client(client)), "{line}");
}
