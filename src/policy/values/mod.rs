//! The values of query parameters and cookies, for keys and for conditions.
//!
//! Origins read them in different ways. The readers here agree with every common origin on which parameter or cookie has a
//! name and on what its value is; where origins differ, the value is [`Unreadable`].

pub(super) mod cookie;
pub(super) mod query;

use super::condition_results::ConditionResults;
use super::facts::Facts;
use super::names::{self, NameIndex, Piece, Syntax, spelling};
use super::unreadable::Unreadable;
use super::work_budget::WorkBudget;

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

/// Calls `visit` with each piece of the lines that some origin may read as one of this name, and perhaps with others, in
/// order, until it returns false or fails.
fn each_piece<'r, L: Iterator<Item = &'r [u8]>>(
    facts: &Facts<'r>,
    index: Option<&NameIndex>,
    lines: impl Fn() -> L,
    syntax: Syntax,
    name: &[u8],
    visit: impl FnMut(Piece<'r>) -> Result<bool, Unreadable>,
) -> Result<(), Unreadable> {
    match index.zip(facts.conditions.map(ConditionResults::budget)) {
        Some((index, budget)) => index.each(lines, syntax, name, budget, visit),
        None => names::each_of_all(lines(), syntax, &WorkBudget::unlimited(), visit),
    }
}

#[cfg(test)]
mod tests;
