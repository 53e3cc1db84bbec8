//! The cost of a request under a limit, and when it is known.
//!
//! A cost is fixed, read from a request header, or read from a response header; in the last case a reserve is
//! charged first and corrected later. This module computes costs; it does not charge them. What must always hold: a
//! client that names its own cost pays at least 1 unit and at most the maximum.

use std::fmt;

use http::{HeaderMap, HeaderName};

use super::facts::Facts;

/// The cost of a request under a limit, in units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The same for every request.
    Fixed(u32),
    /// Read from a header of the request.
    Request {
        /// The header's name.
        header: HeaderName,
        /// The cost without the header.
        default: u32,
        /// The upper bound, and the cost if the value is not a number.
        max: u32,
    },
    /// Read from a header of the response. A reserve is charged before the request is forwarded; the charge is
    /// corrected when the response begins.
    Response {
        /// The header's name.
        header: HeaderName,
        /// Charged before forwarding; final if the response names no cost.
        reserve: u32,
        /// The upper bound.
        max: u32,
    },
}

/// The cost header occurs more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatedCost;

impl Cost {
    /// The charge before the request is forwarded.
    ///
    /// # Errors
    ///
    /// [`RepeatedCost`]: origins may read another one of the lines.
    pub fn upfront(&self, facts: &Facts<'_>) -> Result<u32, RepeatedCost> {
        match self {
            Self::Fixed(cost) => Ok(*cost),
            Self::Response { reserve, .. } => Ok(*reserve),
            Self::Request { header, default, max } => {
                let mut lines = facts.headers.get_all(header).iter();
                match (lines.next(), lines.next()) {
                    (None, _) => Ok(*default),
                    (Some(line), None) => {
                        Ok(units(line.as_bytes()).map_or(*max, |cost| cost.clamp(1, *max)))
                    }
                    (Some(_), Some(_)) => Err(RepeatedCost),
                }
            }
        }
    }

    /// The cost that the response names; `None`: the reserve is final. A header that occurs twice, or whose value is
    /// not a number, is ignored.
    pub fn read_response(&self, headers: &HeaderMap) -> Option<u32> {
        let Self::Response { header, max, .. } = self else {
            return None;
        };
        let mut lines = headers.get_all(header).iter();
        match (lines.next(), lines.next()) {
            (Some(line), None) => units(line.as_bytes()).map(|cost| cost.min(*max)),
            _ => None,
        }
    }

    /// The charge before forwarding of a request that names no cost itself.
    pub const fn minimum(&self) -> u32 {
        match self {
            Self::Fixed(cost) => *cost,
            Self::Request { default, .. } => *default,
            Self::Response { reserve, .. } => *reserve,
        }
    }

    /// Whether the response can change it.
    pub const fn depends_on_response(&self) -> bool {
        matches!(self, Self::Response { .. })
    }
}

/// As `check` and `explain` print it.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(cost) => write!(f, "{cost}"),
            Self::Request { header, default, max } => {
                write!(f, "header {header} of the request, 1 to {max} ({default} without)")
            }
            Self::Response { header, reserve, max } => {
                write!(f, "header {header} of the response, up to {max} ({reserve} reserved)")
            }
        }
    }
}

/// Parses an integer of decimal digits. One above `u32::MAX` becomes `u32::MAX`.
fn units(value: &[u8]) -> Option<u32> {
    let value = value.trim_ascii();
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(
        value.iter().fold(0u32, |sum, digit| {
            sum.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
        }),
    )
}
