//! A query parameter as a key part.

use memchr::memchr;

use super::part::KeyPart;
use super::spelling;
use crate::policy::Facts;

/// The decoded value of the only parameter of that decoded name. It is decoded as a form: `+` is a space and `%61` is
/// `a`. All spellings of a value are one key, also if the origin does not decode them. The part is
/// [`KeyPart::Unreadable`] if only some origins read a parameter as this one, or if they decode its value in
/// different ways.
pub(super) fn part<'r>(facts: &Facts<'r>, name: &str) -> KeyPart<'r> {
    let (query, name) = (facts.query.unwrap_or(""), name.as_bytes());
    let mut only = None;
    for pair in query.as_bytes().split(|byte| *byte == b'&') {
        // Some origins also split parameters at semicolons.
        for (index, piece) in pair.split(|byte| *byte == b';').enumerate() {
            let (found, value) = match memchr(b'=', piece) {
                Some(at) => (&piece[..at], &piece[at + 1..]),
                None => (piece, &[][..]),
            };
            if index == 0 && spelling::is_name(found, name) {
                if piece.len() < pair.len() {
                    return KeyPart::Unreadable;
                }
                if only.replace(value).is_some() {
                    return KeyPart::Repeated;
                }
            } else if spelling::is_like(found, name) {
                return KeyPart::Unreadable;
            }
        }
    }
    only.map_or(KeyPart::Absent, |value| {
        spelling::decoded(value, true).map_or(KeyPart::Unreadable, KeyPart::of)
    })
}
