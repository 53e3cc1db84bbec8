//! Method and path as key parts.

use super::part::KeyPart;
use crate::policy::Facts;

/// The method. HEAD counts as GET; otherwise a client could spend the budget of each.
pub(super) fn method<'r>(facts: &Facts<'r>) -> KeyPart<'r> {
    KeyPart::of(if facts.method == "HEAD" { "GET" } else { facts.method }.as_bytes())
}

/// The N-th segment of the path, from 1.
pub(super) fn segment<'r>(facts: &Facts<'r>, n: usize) -> KeyPart<'r> {
    let mut segments = facts.path.split('/').skip(1);
    match n.checked_sub(1).and_then(|before| segments.nth(before)) {
        Some(segment) => KeyPart::of(segment.as_bytes()),
        None => KeyPart::Absent,
    }
}
