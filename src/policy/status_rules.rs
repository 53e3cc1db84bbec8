//! Which response statuses refund a charge (`count`, `refund`), as values. The engine makes the refund.

use std::fmt;
use std::ops::RangeInclusive;

/// Which responses refund what was charged before forwarding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusRules {
    /// Only these statuses of the origin keep the charge (`count`). Without a response of the origin this rule
    /// refunds nothing.
    pub only: Option<Statuses>,
    /// These statuses refund (`refund`), whether the origin or this proxy answers.
    pub refund: Option<Statuses>,
}

/// Ranges of response statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(pub Vec<RangeInclusive<u16>>);

impl Statuses {
    /// Whether a range contains the status.
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

impl StatusRules {
    /// Whether a response can refund the charge.
    pub const fn depends_on_status(&self) -> bool {
        self.only.is_some() || self.refund.is_some()
    }

    /// Whether a response refunds the charge. `by_origin`: the origin sent it; otherwise this proxy did, because
    /// the origin sent none.
    pub fn refunds(&self, status: u16, by_origin: bool) -> bool {
        let not_counted = self.only.as_ref().is_some_and(|only| !only.contains(status));
        (by_origin && not_counted)
            || self.refund.as_ref().is_some_and(|statuses| statuses.contains(status))
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}
