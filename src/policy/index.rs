//! Indices into the lists of a policy. They are valid for one policy only: across reloads, limits are found by
//! name.

/// The index of a limit in [`super::Policy::limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitIndex(pub usize);

/// The index of a route in [`super::Policy::routes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteIndex(pub usize);
