//! The host of a request: the same text for every spelling of a name.
//!
//! An authority that is not clearly a host with an optional port is refused.

use std::borrow::Cow;

use memchr::memchr;

use super::bytes;
use super::reject_reason::RejectReason;

/// The longest host: a domain name has at most 253 characters (RFC 1035).
const MAX_HOST: usize = 255;

/// An authority's host: lower case, without port and one trailing dot.
pub(crate) fn host(authority: &[u8]) -> Result<Cow<'_, str>, RejectReason> {
    let authority = std::str::from_utf8(authority).map_err(|_| RejectReason::Host)?;
    if authority.is_empty() {
        return Ok(Cow::Borrowed(""));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (inside, port) = rest.split_once(']').ok_or(RejectReason::Host)?;
            inside.parse::<std::net::Ipv6Addr>().map_err(|_| RejectReason::Host)?;
            (&authority[..inside.len() + 2], port)
        }
        None => match memchr(b':', authority.as_bytes()) {
            Some(colon) => authority.split_at(colon),
            None => (authority, ""),
        },
    };
    let is_port = match port.strip_prefix(':') {
        None => port.is_empty(),
        Some(digits) => {
            digits.is_empty() || digits.bytes().all(|b| b.is_ascii_digit()) && digits.len() <= 5
        }
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    let clean = host.starts_with('[') || is_name(name.as_bytes());
    if !is_port || !clean || host.len() > MAX_HOST {
        return Err(RejectReason::Host);
    }
    Ok(if bytes::any(name.as_bytes(), bytes::UPPER) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    })
}

/// Labels between single dots.
fn is_name(name: &[u8]) -> bool {
    let mut before = b'.';
    for byte in name {
        if bytes::of(*byte) & bytes::NAME == 0 || (*byte == b'.' && before == b'.') {
            return false;
        }
        before = *byte;
    }
    before != b'.'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{KeySpec, Source};

    #[test]
    fn every_spelling_of_a_host_has_the_same_name() {
        for (authority, expected) in [
            ("example.com", Some("example.com")),
            ("EXAMPLE.com:8080", Some("example.com")),
            ("example.com.", Some("example.com")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("[2001:db8::1]:80", Some("[2001:db8::1]")),
            ("example.com:", Some("example.com")),
            ("example.com..", None),
            ("user@example.com", None),
            ("example.com:80:80", None),
            ("example.com:x", None),
            ("exa mple.com", None),
            ("[::1", None),
            (".example.com", None),
            ("a..b", None),
        ] {
            assert_eq!(host(authority.as_bytes()).ok().as_deref(), expected, "{authority}");
        }
    }
    /// A key of a limit that a person writes is accepted exactly if a request can have it, but for letters in upper case.
    #[test]
    fn written_keys_are_the_hosts_of_requests() {
        const PIECES: [&str; 16] = [
            "a",
            "B",
            "example",
            ".",
            ".",
            "-",
            "_",
            "1",
            ":80",
            "[",
            "]",
            "[2001:db8::1]",
            " ",
            "@",
            "*",
            "\u{fc}",
        ];
        let spec = KeySpec::new(vec![Source::Host]).unwrap();
        let mut draw = fastrand::Rng::with_seed(8);
        let (mut keys, mut others) = (0, 0);
        for length in [4, 300] {
            for _ in 0..10_000 / length {
                let count = draw.usize(1..=length);
                let text: String = match length {
                    4 => (0..count).map(|_| PIECES[draw.usize(..PIECES.len())]).collect(),
                    _ => "a".repeat(count),
                };
                let read = host(text.as_bytes()).ok();
                let expected = read.is_some_and(|read| *read == text.to_ascii_lowercase());
                assert_eq!(spec.typed_values(&[&text], 64).is_ok(), expected, "{text:?}");
                *(if expected { &mut keys } else { &mut others }) += 1;
            }
        }
        assert!(keys > 200 && others > 200, "{keys} {others}");
    }
}
