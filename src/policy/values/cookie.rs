//! The cookies of one name, and their values without quotes and escapes.

use std::borrow::Cow;

use http::HeaderValue;
use http::header::COOKIE;
use memchr::{memchr, memchr2};

use super::{Unreadable, each_piece};
use crate::policy::condition_results::ConditionResults;
use crate::policy::facts::Facts;
use crate::policy::names::{NameAndValue, Piece, Syntax, spelling};

/// Some origins also split cookies at commas.
const SYNTAX: Syntax = Syntax { separator: b';', other_separator: b',', split };

/// Calls `visit` with the raw value of each cookie of that name.
///
/// # Errors
/// Only some origins read a cookie as one of this name, or the conditions of the request have worked too much.
pub(in crate::policy) fn each<'r>(
    facts: &Facts<'r>,
    name: &str,
    mut visit: impl FnMut(&'r [u8]),
) -> Result<(), Unreadable> {
    let name = name.as_bytes();
    let headers = facts.headers;
    let lines = || headers.get_all(COOKIE).into_iter().map(HeaderValue::as_bytes);
    let index = facts.conditions.map(ConditionResults::cookies);
    each_piece(facts, index, lines, SYNTAX, name, |piece| {
        let Piece { name: found, value, is_alone, .. } = piece;
        if found == name && is_alone {
            visit(value);
        } else if spelling::is_like(found, name) {
            return Err(Unreadable);
        }
        Ok(true)
    })
}

fn split(piece: &[u8]) -> Result<Option<NameAndValue<'_>>, Unreadable> {
    let Some(at) = memchr(b'=', piece) else {
        return Ok(None);
    };
    let (found, value) = (piece[..at].trim_ascii(), piece[at + 1..].trim_ascii());
    // Some origins read a quoted value up to the closing quote, past the `;`.
    if value.starts_with(b"\"") && (value.len() == 1 || !value.ends_with(b"\"")) {
        return Err(Unreadable);
    }
    Ok(Some((found, value)))
}

/// The value without quotes and escapes. Some origins remove quotes, others decode escapes, so both spellings are one
/// key. A space becomes `+`, since some origins read `+` as a space.
pub(in crate::policy) fn decoded(value: &[u8]) -> Option<Cow<'_, [u8]>> {
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
