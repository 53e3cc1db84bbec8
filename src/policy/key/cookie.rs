//! A cookie as a key part. The reader must agree with every common origin on which cookie has the name and on what its
//! value is; where origins differ, the request is refused.

use std::borrow::Cow;

use http::header::COOKIE;
use memchr::{memchr, memchr2};

use super::part::KeyPart;
use super::spelling;
use crate::policy::Facts;

/// The value of the first cookie of that name, over all `Cookie` lines (HTTP/2 may split them,
/// RFC 9113, section 8.2.3). Several cookies of one name are legitimate: their paths and domains may differ, and
/// browsers send the most specific one first.
///
/// The part is [`KeyPart::Unreadable`] if only some origins read a cookie as this one, or if they decode its value in
/// different ways.
pub(super) fn part<'r>(facts: &Facts<'r>, name: &str) -> KeyPart<'r> {
    let name = name.as_bytes();
    let mut first = None;
    for line in facts.headers.get_all(COOKIE) {
        for pair in line.as_bytes().split(|byte| *byte == b';') {
            // Some origins also split cookies at commas.
            for (index, piece) in pair.split(|byte| *byte == b',').enumerate() {
                let Some(at) = memchr(b'=', piece) else {
                    continue;
                };
                let (found, value) = (piece[..at].trim_ascii(), piece[at + 1..].trim_ascii());
                // Some origins read a quoted value up to the closing quote, past the `;`.
                if value.starts_with(b"\"") && (value.len() == 1 || !value.ends_with(b"\"")) {
                    return KeyPart::Unreadable;
                }
                if found == name && index == 0 && piece.len() == pair.len() {
                    first.get_or_insert(value);
                } else if spelling::is_like(found, name) {
                    return KeyPart::Unreadable;
                }
            }
        }
    }
    first.map_or(KeyPart::Absent, value)
}

/// The part for a raw value of a request or a configuration.
pub(super) fn value(written: &[u8]) -> KeyPart<'_> {
    read(written).map_or(KeyPart::Unreadable, KeyPart::of)
}

/// The value without quotes and escapes. Some origins remove quotes, others decode escapes, so both spellings are one
/// key. A space becomes `+`, since some origins read `+` as a space.
fn read(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let bare = match value {
        [b'"', inside @ .., b'"'] => unquoted(inside)?,
        plain if memchr2(b'"', b'\\', plain).is_some() => return None,
        plain => Cow::Borrowed(plain),
    };
    let mut value = match bare {
        Cow::Borrowed(bare) => spelling::decoded(bare, false)?,
        Cow::Owned(bare) => Cow::Owned(spelling::decoded(&bare, false)?.into_owned()),
    };
    if value.contains(&b' ') {
        value.to_mut().iter_mut().filter(|byte| **byte == b' ').for_each(|byte| *byte = b'+');
    }
    Some(value)
}

/// Decodes a quoted value: `\"` is a quote and `\054` a comma (Python writes cookies this way).
fn unquoted(inside: &[u8]) -> Option<Cow<'_, [u8]>> {
    if memchr2(b'"', b'\\', inside).is_none() {
        return Some(Cow::Borrowed(inside));
    }
    let mut bytes = Vec::with_capacity(inside.len());
    let mut rest = inside;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        bytes.push(match (byte, after) {
            (b'"', _) => return None,
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                rest = &after[3..];
                (a - b'0') << 6 | (b - b'0') << 3 | (c - b'0')
            }
            (b'\\', [escaped, ..]) => {
                rest = &after[1..];
                *escaped
            }
            (b'\\', []) => return None,
            (plain, _) => plain,
        });
    }
    let is_text = !bytes.iter().any(u8::is_ascii_control);
    is_text.then_some(Cow::Owned(bytes))
}
