//! The query parameters of one name.

use memchr::memchr;

use super::{Unreadable, each_piece};
use crate::policy::condition_results::ConditionResults;
use crate::policy::facts::Facts;
use crate::policy::names::{NameAndValue, Piece, Syntax, spelling};

/// Some origins also split parameters at semicolons.
const SYNTAX: Syntax = Syntax { separator: b'&', other_separator: b';', split };

/// Calls `visit` with the raw value of each parameter of that decoded name, until it returns false.
///
/// # Errors
/// Only some origins read a parameter as one of this name, or the conditions of the request have worked too much.
pub(in crate::policy) fn each<'r>(
    facts: &Facts<'r>,
    name: &str,
    mut visit: impl FnMut(&'r [u8]) -> bool,
) -> Result<(), Unreadable> {
    let (query, name) = (facts.query.unwrap_or("").as_bytes(), name.as_bytes());
    let index = facts.conditions.map(ConditionResults::query);
    each_piece(
        facts,
        index,
        || std::iter::once(query),
        SYNTAX,
        name,
        |piece| {
            let Piece { name: found, value, is_first, is_alone } = piece;
            if is_first && spelling::is_name(found, name) {
                if is_alone { Ok(visit(value)) } else { Err(Unreadable) }
            } else if spelling::is_like(found, name) {
                Err(Unreadable)
            } else {
                Ok(true)
            }
        },
    )
}

#[expect(clippy::unnecessary_wraps, reason = "as cookies are split")]
fn split(piece: &[u8]) -> Result<Option<NameAndValue<'_>>, Unreadable> {
    Ok(Some(match memchr(b'=', piece) {
        Some(at) => (&piece[..at], &piece[at + 1..]),
        None => (piece, &[][..]),
    }))
}
