//! A cookie as a key part. The reader must agree with every common origin on which cookie has the name and on what its
//! value is; where origins differ, the request is refused.

use super::part::KeyPart;
use crate::policy::Facts;
use crate::policy::Unreadable;
use crate::policy::values::cookie;

/// The value of the first cookie of that name, over all `Cookie` lines (HTTP/2 may split them,
/// RFC 9113, section 8.2.3). Several cookies of one name are legitimate: their paths and domains may differ, and
/// browsers send the most specific one first.
///
/// The part is [`KeyPart::Unreadable`] if only some origins read a cookie as this one, or if they decode its value in
/// different ways.
pub(super) fn part<'r>(facts: &Facts<'r>, name: &str) -> KeyPart<'r> {
    let mut first = None;
    match cookie::each(facts, name, |value| {
        first.get_or_insert(value);
    }) {
        Err(Unreadable) => KeyPart::Unreadable,
        Ok(()) => first.map_or(KeyPart::Absent, value),
    }
}

/// The part for a raw value of a request or a configuration.
pub(super) fn value(written: &[u8]) -> KeyPart<'_> {
    cookie::decoded(written).map_or(KeyPart::Unreadable, KeyPart::of)
}
