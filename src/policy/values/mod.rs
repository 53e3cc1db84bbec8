//! The values of query parameters and cookies, for keys and for conditions.
//!
//! Origins read them in different ways. The readers here agree with every common origin on which parameter or cookie has a
//! name and on what its value is; where origins differ, the value is [`Unreadable`].

pub(super) mod cookie;
pub(super) mod query;
pub(super) mod spelling;

use super::facts::Facts;

/// A value that origins may read in different ways; the request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// Calls `visit` with each decoded value of the query parameter of this name until it returns true.
pub(super) fn any_query(
    facts: &Facts<'_>,
    name: &str,
    mut visit: impl FnMut(&[u8]) -> bool,
) -> Result<bool, Unreadable> {
    let mut found = Ok(false);
    query::each(facts, name, |value| {
        match spelling::decoded(value, true) {
            Some(value) => found = found.map(|found| found || visit(&value)),
            None => found = Err(Unreadable),
        }
        found.is_ok()
    })?;
    found
}

/// Calls `visit` with each value of the cookies of this name until it returns true.
pub(super) fn any_cookie(
    facts: &Facts<'_>,
    name: &str,
    mut visit: impl FnMut(&[u8]) -> bool,
) -> Result<bool, Unreadable> {
    let mut found = Ok(false);
    cookie::each(facts, name, |value| match cookie::decoded(value) {
        Some(value) => found = found.map(|found| found || visit(&value)),
        None => found = Err(Unreadable),
    })?;
    found
}
