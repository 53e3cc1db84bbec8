use http::header::COOKIE;

use super::Part;
use crate::policy::Facts;

/// The value of the only cookie of that name, over all `Cookie` lines (HTTP/2 may split them,
/// RFC 9113, section 8.2.3). Names are compared as they are; quotes around a value are cut off.
pub(super) fn part<'r>(facts: &Facts<'r>, name: &str) -> Part<'r> {
    let lines = facts.headers.get_all(COOKIE).iter();
    Part::only(lines.flat_map(|line| line.as_bytes().split(|b| *b == b';')).filter_map(|pair| {
        let at = pair.iter().position(|b| *b == b'=')?;
        let (found, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
        (found == name.as_bytes()).then(|| unquoted(value))
    }))
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inside @ .., b'"'] => inside,
        _ => value,
    }
}
