use memchr::memchr;

use super::{KeyPart, spelling};
use crate::policy::Facts;

/// The decoded value of the only parameter of that (decoded) name, as a form writes it: `+` is a blank,
/// `%61` is `a`. An origin that reads it otherwise is still limited by the decoded value, so that no
/// spelling of one key is another key. What only some origins take for the parameter, or decode, makes
/// the request unclean.
pub(super) fn part<'r>(facts: &Facts<'r>, name: &str) -> KeyPart<'r> {
    let (query, name) = (facts.query.unwrap_or(""), name.as_bytes());
    let mut only = None;
    for pair in query.as_bytes().split(|byte| *byte == b'&') {
        // Some origins part parameters at semicolons too.
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
