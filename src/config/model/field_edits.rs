//! `request_headers` and `response_headers`: what is changed in the fields of a request on its way to the origin, and of an
//! answer on its way to the client.

use http::{HeaderName, HeaderValue};

/// Changes of header fields, in this order: `remove`, `set`, `add`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldEdits {
    /// Fields that are removed.
    pub remove: Vec<HeaderName>,
    /// Fields whose lines are replaced by one line.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Fields that get one more line.
    pub add: Vec<(HeaderName, HeaderValue)>,
}

/// The changes of requests and of answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    /// `request_headers`
    pub request: FieldEdits,
    /// `response_headers`
    pub response: FieldEdits,
}

/// The changes on a route: first those of its origin, then its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteEdits {
    /// Those of the origin.
    pub origin: HeaderEdits,
    /// Those of the route itself.
    pub route: HeaderEdits,
}

impl FieldEdits {
    /// Whether nothing is changed.
    pub const fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }

    /// The names of all fields that are changed.
    pub fn names(&self) -> impl Iterator<Item = &HeaderName> {
        let written = self.set.iter().chain(&self.add).map(|(name, _)| name);
        self.remove.iter().chain(written)
    }
}

impl RouteEdits {
    /// The changes of requests, in order.
    pub const fn of_request(&self) -> [&FieldEdits; 2] {
        [&self.origin.request, &self.route.request]
    }

    /// The changes of an origin's answers, in order.
    pub const fn of_response(&self) -> [&FieldEdits; 2] {
        [&self.origin.response, &self.route.response]
    }
}
