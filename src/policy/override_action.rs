//! What an override does, whoever made it: the configuration, or an operator while the process runs.

/// The index of a rate: 0 is the limit's own, the others are [`Terms::quotas`](super::Terms::quotas) from 1.
pub type RateIndex = u32;

/// What an override does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideAction {
    /// The limit does not apply.
    Allow,
    /// The limit refuses every request.
    Deny,
    /// Another rate applies.
    Rate(RateIndex),
}
