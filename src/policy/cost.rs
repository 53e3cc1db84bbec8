//! The cost of a request under a limit, and when it is known.
//!
//! A cost is fixed, read from a header of the request, or read from the response (a header, a trailer, or a number in the
//! body); then a reserve is charged first and corrected later. This module computes costs; it does not charge them. What
//! must always hold: a client that names its own cost pays at least 1 unit and at most the maximum.

use std::fmt;

use http::{HeaderMap, HeaderName};

use super::facts::Facts;
use super::log_values::MissingValue;
use super::response_body::{BodyNumber, JsonPointer};

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
    /// Read from the response. A reserve is charged before the request is forwarded; the charge is corrected when the
    /// response has named the cost.
    Response {
        /// Where the response names it.
        source: ResponseSource,
        /// Charged before forwarding; final if the response names no cost.
        reserve: u32,
        /// The upper bound.
        max: u32,
    },
}

/// Where a response names a cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseSource {
    /// In a header.
    Header(HeaderName),
    /// In a trailer: a field after the body.
    Trailer(HeaderName),
    /// In the body: the number at a JSON pointer, in a document or in the last event of an event stream that has it.
    Body(JsonPointer),
}

/// What a response says of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedCost {
    /// This is the cost.
    Final(u32),
    /// It is at least this; what more there was to read is not known.
    AtLeast(u32, UnreadCost),
    /// The response names no cost that could be read.
    Unread(UnreadCost),
}

/// Why the cost of a response is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadCost {
    /// The response does not name it.
    Absent,
    /// The body is compressed.
    Encoded,
    /// The body is not JSON.
    Invalid,
    /// The response has not come to its end.
    Incomplete,
}

impl UnreadCost {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 4] = [Self::Absent, Self::Encoded, Self::Invalid, Self::Incomplete];

    /// The label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Encoded => "encoded",
            Self::Invalid => "invalid",
            Self::Incomplete => "incomplete",
        }
    }
}

impl From<BodyNumber> for NamedCost {
    fn from(number: BodyNumber) -> Self {
        match number {
            BodyNumber::Final(units) => Self::Final(units),
            BodyNumber::SoFar(units) => Self::AtLeast(units, UnreadCost::Incomplete),
            BodyNumber::Absent => Self::Unread(UnreadCost::Absent),
            BodyNumber::Invalid => Self::Unread(UnreadCost::Invalid),
            BodyNumber::Incomplete => Self::Unread(UnreadCost::Incomplete),
        }
    }
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
                    (None, _) => {
                        if let Some(log) =
                            facts.log().filter(|log| !log.has_costs(header, facts.headers))
                        {
                            log.note(MissingValue::Cost(header.clone()));
                        }
                        Ok(*default)
                    }
                    (Some(line), None) => {
                        Ok(units(line.as_bytes()).map_or(*max, |cost| cost.clamp(1, *max)))
                    }
                    (Some(_), Some(_)) => Err(RepeatedCost),
                }
            }
        }
    }

    /// Where the response names the cost; `None` if it does not depend on the response.
    pub const fn response_source(&self) -> Option<&ResponseSource> {
        match self {
            Self::Response { source, .. } => Some(source),
            Self::Fixed(_) | Self::Request { .. } => None,
        }
    }

    /// The same cost, at most the maximum.
    pub fn bounded(&self, named: NamedCost) -> NamedCost {
        let max = match self {
            Self::Response { max, .. } => *max,
            Self::Fixed(_) | Self::Request { .. } => u32::MAX,
        };
        match named {
            NamedCost::Final(units) => NamedCost::Final(units.min(max)),
            NamedCost::AtLeast(units, reason) => NamedCost::AtLeast(units.min(max), reason),
            NamedCost::Unread(reason) => NamedCost::Unread(reason),
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
            Self::Response { source, reserve, max } => {
                write!(f, "{source} of the response, up to {max} ({reserve} reserved)")
            }
        }
    }
}

/// As `check` and `explain` print it.
impl fmt::Display for ResponseSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Trailer(name) => write!(f, "trailer {name}"),
            Self::Body(pointer) => write!(f, "{pointer} in the body"),
        }
    }
}

/// The cost that a field of the response names. A field that occurs twice, or whose value is not a number, names none.
pub(super) fn named_by_field(name: &HeaderName, fields: &HeaderMap) -> NamedCost {
    let mut lines = fields.get_all(name).iter();
    let units = match (lines.next(), lines.next()) {
        (Some(line), None) => units(line.as_bytes()),
        _ => None,
    };
    units.map_or(NamedCost::Unread(UnreadCost::Absent), NamedCost::Final)
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
