use std::borrow::Cow;

use super::Part;
use crate::policy::Facts;

/// The decoded value of the only parameter of that (decoded) name, as a form writes it:
/// `+` is a blank, `%61` is `a`. An origin that reads it otherwise is still limited by the
/// decoded value, so that no spelling of one key is another key.
pub(super) fn part<'r>(facts: &Facts<'r>, name: &str) -> Part<'r> {
    let query = facts.query.unwrap_or("");
    let pairs = form_urlencoded::parse(query.as_bytes());
    Part::only(pairs.filter(|(found, _)| found == name).map(|(_, value)| match value {
        Cow::Borrowed(value) => Cow::Borrowed(value.as_bytes()),
        Cow::Owned(value) => Cow::Owned(value.into_bytes()),
    }))
}
