//! The forms in which requests have a host, a path and a segment, for texts that a person wrote.
//!
//! Request validation, in a room above, brings every request into these forms or refuses it. Here is told which form a
//! text would have there. This module knows no requests, keys or messages. What must always hold: a text is its own form
//! exactly if a request can have it and every origin reads it alike; the tests of the validation compare the two.

use std::net::Ipv6Addr;

/// The longest host of a request.
const MAX_HOST: usize = 255;

/// The host that a request for this one has: lower case, without the dot at its end. `None` if no request has it.
pub(super) fn host(text: &str) -> Option<String> {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_usual);
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_host = match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => name.split('.').all(is_label),
    };
    (is_host && text.len() <= MAX_HOST).then(|| name.to_ascii_lowercase())
}

/// The path of a request for this one. `None` if it cannot be sent, or if origins read it in different ways: it has `//`,
/// `;`, `\`, a dot segment, or an escape of an ASCII character that may stand bare.
pub(super) fn path(text: &str) -> Option<String> {
    let segments: Vec<&str> = text.strip_prefix('/')?.split('/').collect();
    let (last, before) = segments.split_last()?;
    let mut path = String::with_capacity(text.len());
    for text in before {
        path.push('/');
        path.push_str(&segment(text).filter(|segment| !segment.is_empty())?);
    }
    path.push('/');
    path.push_str(&segment(last)?);
    Some(path)
}

/// The segment of a request whose path has this one. `None` as for a path.
pub(super) fn segment(text: &str) -> Option<String> {
    let mut written = String::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let byte = match byte {
            b'%' => {
                let digits = after.split_first_chunk::<2>();
                let (digits, after) =
                    digits.filter(|(it, _)| it.iter().all(u8::is_ascii_hexdigit))?;
                rest = after;
                let byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
                if byte.is_ascii_graphic() && !is_unreserved(byte) {
                    return None;
                }
                byte
            }
            b'/' | b'\\' | b';' | b'?' | b'#' | b'<' | b'>' | b'`' => return None,
            other => other,
        };
        match byte {
            byte if byte.is_ascii_control() => return None,
            b' ' | 0x80.. => written.push_str(&format!("%{byte:02X}")),
            byte => written.push(char::from(byte)),
        }
    }
    let is_sendable = !matches!(&*written, "." | "..") && !hides_ascii(&written);
    is_sendable.then_some(written)
}

/// Characters that mean the same escaped or not (RFC 3986, section 2.3).
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether the escapes encode an ASCII character in more bytes than UTF-8 allows (RFC 3629, section 3): some decoders read
/// `%C1%A1` as `a`.
fn hides_ascii(written: &str) -> bool {
    let escape = |text: &str| {
        let digits = text.strip_prefix('%')?.get(..2)?;
        u8::from_str_radix(digits, 16).ok()
    };
    written.match_indices('%').any(|(at, _)| {
        let next = written.get(at + 3..).and_then(escape).unwrap_or_default();
        match written.get(at..).and_then(escape) {
            Some(0xc0 | 0xc1) => true,
            Some(0xe0) => matches!(next, 0x80..=0x9f),
            Some(0xf0) => matches!(next, 0x80..=0x8f),
            Some(0xf8) => matches!(next, 0x80..=0x87),
            Some(0xfc) => matches!(next, 0x80..=0x83),
            Some(_) | None => false,
        }
    })
}
