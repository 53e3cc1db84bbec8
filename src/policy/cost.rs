//! What a request costs, and when that is known.

use std::fmt;

use http::{HeaderMap, HeaderName};

use super::Facts;

/// What a request costs under a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Always so much.
    Fixed(u32),
    /// What a field of the request says.
    Request {
        /// The field.
        header: HeaderName,
        /// Without the field.
        default: u32,
        /// Never more; and what a value costs that is no number.
        max: u32,
    },
    /// What a field of the answer says: so much is reserved at the door, the rest is settled when
    /// the answer begins.
    Response {
        /// The field.
        header: HeaderName,
        /// Charged at the door; stays spent where the answer does not say.
        reserve: u32,
        /// Never more.
        max: u32,
    },
}

/// A field that says the cost stands more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatedCost;

impl Cost {
    /// What is charged at the door. A request that names its own cost pays at least 1, so that
    /// nobody passes for nothing, and the most for what cannot be read.
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

    /// What the answer says the request cost after all; `None`: what was charged stands. More than
    /// one line, or no number, says nothing.
    pub fn from_response(&self, headers: &HeaderMap) -> Option<u32> {
        let Self::Response { header, max, .. } = self else {
            return None;
        };
        let mut lines = headers.get_all(header).iter();
        match (lines.next(), lines.next()) {
            (Some(line), None) => units(line.as_bytes()).map(|cost| cost.min(*max)),
            _ => None,
        }
    }

    /// What is surely charged to every request.
    pub const fn minimum(&self) -> u32 {
        match self {
            Self::Fixed(cost) => *cost,
            Self::Request { default, .. } => *default,
            Self::Response { reserve, .. } => *reserve,
        }
    }

    /// Whether an answer can change it.
    pub const fn depends_on_response(&self) -> bool {
        matches!(self, Self::Response { .. })
    }
}

/// As `check` and `explain` tell it.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(cost) => write!(f, "{cost}"),
            Self::Request { header, default, max } => {
                write!(f, "header {header} of the request, 1 to {max} ({default} without)")
            }
            Self::Response { header, reserve, max } => {
                write!(f, "header {header} of the answer, up to {max} ({reserve} at the door)")
            }
        }
    }
}

/// A whole number as decimal digits. One that does not fit is the largest that does.
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
