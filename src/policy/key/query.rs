//! A query parameter as a key part.

use super::part::KeyPart;
use crate::policy::Facts;
use crate::policy::Unreadable;
use crate::policy::names::spelling;
use crate::policy::values::query;

/// The decoded value of the only parameter of that decoded name. It is decoded as a form: `+` is a space and `%61` is
/// `a`. All spellings of a value are one key, also if the origin does not decode them. The part is
/// [`KeyPart::Unreadable`] if only some origins read a parameter as this one, or if they decode its value in
/// different ways.
pub(super) fn part<'r>(facts: &Facts<'r>, name: &str) -> KeyPart<'r> {
    let mut only = None;
    let mut is_repeated = false;
    let read = query::each(facts, name, |value| {
        is_repeated = only.replace(value).is_some();
        !is_repeated
    });
    match (read, only) {
        (Err(Unreadable), _) => KeyPart::Unreadable,
        (Ok(()), _) if is_repeated => KeyPart::Repeated,
        (Ok(()), None) => KeyPart::Absent,
        (Ok(()), Some(value)) => {
            spelling::decoded(value, true).map_or(KeyPart::Unreadable, KeyPart::of)
        }
    }
}
