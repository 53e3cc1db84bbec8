//! The query parameters of one name.

use memchr::memchr;

use super::{Unreadable, spelling};
use crate::policy::facts::Facts;

/// Calls `visit` with the raw value of each parameter of that decoded name, until it returns false.
///
/// # Errors
/// Only some origins read a parameter as one of this name.
pub(in crate::policy) fn each<'r>(
    facts: &Facts<'r>,
    name: &str,
    mut visit: impl FnMut(&'r [u8]) -> bool,
) -> Result<(), Unreadable> {
    let (query, name) = (facts.query.unwrap_or(""), name.as_bytes());
    for pair in query.as_bytes().split(|byte| *byte == b'&') {
        // Some origins also split parameters at semicolons.
        for (index, piece) in pair.split(|byte| *byte == b';').enumerate() {
            let (found, value) = match memchr(b'=', piece) {
                Some(at) => (&piece[..at], &piece[at + 1..]),
                None => (piece, &[][..]),
            };
            if index == 0 && spelling::is_name(found, name) {
                if piece.len() < pair.len() {
                    return Err(Unreadable);
                }
                if !visit(value) {
                    return Ok(());
                }
            } else if spelling::is_like(found, name) {
                return Err(Unreadable);
            }
        }
    }
    Ok(())
}
