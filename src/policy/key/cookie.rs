use std::borrow::Cow;

use http::header::COOKIE;
use memchr::{memchr, memchr2};

use super::{KeyPart, spelling};
use crate::policy::Facts;

/// The value of the first cookie of that name, over all `Cookie` lines (HTTP/2 may split them,
/// RFC 9113, section 8.2.3). Several are legitimate, since cookies of different paths and domains may have
/// one name; browsers send the most specific one first.
///
/// A cookie that only some origins take for this one, or whose value they decode in different ways, makes
/// the request unclean.
pub(super) fn part<'r>(facts: &Facts<'r>, name: &str) -> KeyPart<'r> {
    let name = name.as_bytes();
    let mut first = None;
    for line in facts.headers.get_all(COOKIE) {
        for pair in line.as_bytes().split(|byte| *byte == b';') {
            // Some origins part cookies at commas too.
            for (index, piece) in pair.split(|byte| *byte == b',').enumerate() {
                let Some(at) = memchr(b'=', piece) else {
                    continue;
                };
                let (found, value) = (piece[..at].trim_ascii(), piece[at + 1..].trim_ascii());
                // Some origins read on to the closing quote, over the `;`.
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

/// A value as it is written, in a request or in a configuration.
pub(super) fn value(written: &[u8]) -> KeyPart<'_> {
    read(written).map_or(KeyPart::Unreadable, KeyPart::of)
}

/// The value that origins read, some of which cut quotes off, some of which decode escapes. A blank is a
/// `+`, since some take one for the other.
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

/// What stands between quotes: `\"` is a quote and `\054` a comma (as Python writes them).
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
