//! What a limit does when the answer is known.

use std::fmt;
use std::ops::RangeInclusive;

/// Which answers give back what was charged at the door.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusRules {
    /// Only these statuses stay spent (`count`); without an answer of the origin nothing comes
    /// back.
    pub only: Option<Statuses>,
    /// These statuses give back (`refund`), whoever answers.
    pub refund: Option<Statuses>,
}

/// Statuses of answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(pub Vec<RangeInclusive<u16>>);

impl Statuses {
    /// Whether a status is one of them.
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

impl StatusRules {
    /// Whether an answer may change what was charged.
    pub const fn depends_on_status(&self) -> bool {
        self.only.is_some() || self.refund.is_some()
    }

    /// Whether an answer gives back. `by_origin`: it is the origin's, and not one of this proxy's
    /// for an origin that gave none.
    pub fn refunds(&self, status: u16, by_origin: bool) -> bool {
        let not_counted = self.only.as_ref().is_some_and(|only| !only.contains(status));
        (by_origin && not_counted) || self.refund.as_ref().is_some_and(|one| one.contains(status))
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}
