//! A request header as a key part.

use http::HeaderName;
use http::header::AUTHORIZATION;

use super::credentials;
use super::part::KeyPart;
use crate::policy::Facts;

/// The value of the only header line of that name, without surrounding blanks. `Authorization` is brought into one
/// spelling.
pub(super) fn part<'r>(facts: &Facts<'r>, name: &HeaderName) -> KeyPart<'r> {
    if *name == AUTHORIZATION {
        return credentials::authorization(facts);
    }
    let lines = facts.headers.get_all(name).iter();
    KeyPart::only(lines.map(|value| value.as_bytes().trim_ascii()))
}
