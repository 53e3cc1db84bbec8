use http::HeaderName;

use super::Part;
use crate::policy::Facts;

/// The value of the only line of that name, blanks around it cut off.
pub(super) fn part<'r>(facts: &Facts<'r>, name: &HeaderName) -> Part<'r> {
    let lines = facts.headers.get_all(name).iter();
    Part::only(lines.map(|value| value.as_bytes().trim_ascii()))
}
