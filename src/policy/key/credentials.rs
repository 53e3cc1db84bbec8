//! Credentials in `Authorization` as key parts. One credential must give one key in all its spellings, and a
//! spelling that origins read in different ways is refused.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use memchr::memchr;

use super::part::KeyPart;
use crate::policy::Facts;

/// The token of `Authorization: Bearer TOKEN` (RFC 6750). The scheme is case-insensitive.
pub(super) fn bearer<'r>(facts: &Facts<'r>) -> KeyPart<'r> {
    credentials(facts, b"bearer", |token| match is_token(token) {
        true => KeyPart::of(token),
        false => KeyPart::Unreadable,
    })
}

/// The user of `Authorization: Basic` (RFC 7617).
pub(super) fn basic_user<'r>(facts: &Facts<'r>) -> KeyPart<'r> {
    credentials(facts, b"basic", |encoded| match user(encoded) {
        Some(user) => KeyPart::of(user),
        None => KeyPart::Unreadable,
    })
}

/// The only `Authorization` line in its normal spelling: the scheme begins with a capital and one space follows it.
pub(super) fn authorization<'r>(facts: &Facts<'r>) -> KeyPart<'r> {
    match only_line(facts) {
        Ok(line) => normalized(line),
        Err(part) => part,
    }
}

/// Brings the value of `Authorization` into its normal spelling.
pub(super) fn normalized(line: &[u8]) -> KeyPart<'_> {
    if line.contains(&b'\t') {
        return KeyPart::Unreadable;
    }
    let Some(blank) = memchr(b' ', line) else {
        return KeyPart::of(line);
    };
    // A configured text may begin with a blank, which no line does.
    if blank == 0 {
        return KeyPart::Unreadable;
    }
    let (scheme, rest) = (&line[..blank], line[blank..].trim_ascii());
    let is_read_alike = match scheme.to_ascii_lowercase().as_slice() {
        b"bearer" => is_token(rest),
        b"basic" => user(rest).is_some(),
        _ => true,
    };
    let is_capitalized = scheme.split_first().is_some_and(|(first, rest)| {
        !first.is_ascii_lowercase() && !rest.iter().any(u8::is_ascii_uppercase)
    });
    match is_read_alike {
        false => KeyPart::Unreadable,
        true if is_capitalized && line.len() == blank + 1 + rest.len() => KeyPart::of(line),
        true => {
            let mut normal = scheme.to_ascii_lowercase();
            normal[..1].make_ascii_uppercase();
            normal.push(b' ');
            normal.extend_from_slice(rest);
            KeyPart::of(normal)
        }
    }
}

/// The only `Authorization` line.
fn only_line<'r>(facts: &Facts<'r>) -> Result<&'r [u8], KeyPart<'r>> {
    let mut lines = facts.headers.get_all(AUTHORIZATION).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Err(KeyPart::Absent),
        (Some(line), None) => Ok(line.as_bytes().trim_ascii()),
        (Some(_), Some(_)) => Err(KeyPart::Repeated),
    }
}

/// The credentials after the scheme in the only `Authorization` line, if it has that scheme. Spaces follow the scheme
/// (RFC 9110, section 11.4); some origins accept other separators.
fn credentials<'r>(
    facts: &Facts<'r>,
    scheme: &[u8],
    read: impl FnOnce(&'r [u8]) -> KeyPart<'r>,
) -> KeyPart<'r> {
    let line = match only_line(facts) {
        Ok(line) => line,
        Err(part) => return part,
    };
    match line.split_at_checked(scheme.len()) {
        Some((found, rest)) if found.eq_ignore_ascii_case(scheme) => match rest.first() {
            None => KeyPart::Absent,
            Some(b' ') => {
                let blanks = rest.iter().take_while(|byte| **byte == b' ').count();
                read(&rest[blanks..])
            }
            // The name of another scheme.
            Some(byte) if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') => {
                KeyPart::Absent
            }
            Some(_) => KeyPart::Unreadable,
        },
        _ => KeyPart::Absent,
    }
}

/// Whether all origins read the same token: those that split the line at blanks or commas, and those that remove
/// quotes.
pub(super) fn is_token(token: &[u8]) -> bool {
    token.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b'"'))
}

/// The user of basic credentials. `None` if decoders differ: another alphabet, missing or superfluous padding, control
/// bytes, no colon.
fn user(encoded: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut decoded = STANDARD.decode(encoded).ok()?;
    let colon = memchr(b':', &decoded)?;
    let is_text = !decoded.iter().any(u8::is_ascii_control);
    decoded.truncate(colon);
    is_text.then_some(Cow::Owned(decoded))
}
