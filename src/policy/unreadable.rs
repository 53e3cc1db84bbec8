//! What is the matter with a value that decides nothing.

/// A value that origins may read in different ways, or that would make conditions work too much; the request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;
