use http::HeaderName;
use http::header::AUTHORIZATION;

use super::{KeyPart, credentials};
use crate::policy::Facts;

/// The value of the only line of that name, blanks around it cut off. Credentials have many spellings and
/// are read in one.
pub(super) fn part<'r>(facts: &Facts<'r>, name: &HeaderName) -> KeyPart<'r> {
    if *name == AUTHORIZATION {
        return credentials::authorization(facts);
    }
    let lines = facts.headers.get_all(name).iter();
    KeyPart::only(lines.map(|value| value.as_bytes().trim_ascii()))
}
