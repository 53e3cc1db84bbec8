//! Requests as their stamps tell them, and how many a limit refuses.

use crate::clock::Nanos;

/// A request that a limit may have judged.
///
/// Requests are ordered by their earliest instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StampedRequest {
    /// The earliest instant at which it may have begun, since the Unix epoch.
    pub earliest: Nanos,
    /// The latest instant. A stamp of whole seconds gives 999,999,999 ns more than `earliest`, since the next second is
    /// excluded.
    pub latest: Nanos,
    /// The hash of the key.
    pub key: u128,
    /// Units. Of a [`Certainty::Possible`] request the largest number that it may have cost.
    pub cost: u32,
    /// What is certain of it.
    pub certainty: Certainty,
}

/// What is certain of a request, apart from its instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// It reaches the limit, and is charged exactly `cost` if the limit admits it.
    Certain,
    /// The same, unless another limit refuses it. Such requests give a lower bound once it is known how many the others
    /// refuse: [`RefusalBounds::lower`].
    UnlessRefused,
    /// It may not reach the limit, not be charged, be refunded, or cost less.
    Possible,
}

/// How exactly the instants are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampPrecision {
    /// Earliest instants are multiples of this; 1 ns if nothing is known. It only makes bounds tighter and states
    /// smaller.
    pub unit: Nanos,
    /// The usual largest difference between the latest and the earliest instant. Requests of a larger one count as
    /// unknown.
    pub uncertainty: Nanos,
    /// By how much a request may come after one with a later earliest instant. Requests of more count as unknown.
    pub disorder: Nanos,
}

impl StampPrecision {
    /// Stamps that are rounded down to multiples of `unit`.
    pub const fn rounded_down(unit: Nanos) -> Self {
        Self { unit, uncertainty: unit.saturating_sub(Nanos::new(1)), disorder: Nanos::ZERO }
    }
}

/// The costs of requests, except zero. Keys whose requests cost more than `max` are unbounded; requests that cost less
/// than `min` do not count towards the lower bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostRange {
    /// The smallest cost.
    pub min: u32,
    /// The largest cost.
    pub max: u32,
}

impl CostRange {
    /// Every request costs 1.
    pub const UNIT: Self = Self { min: 1, max: 1 };
}

/// How many requests a limit would have refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusalBounds {
    /// Requests that it may have judged.
    pub judged: u64,
    /// It refuses at most this number.
    pub upper: u64,
    /// It refuses at least this number if no other limit refuses a request.
    pub lower_alone: u64,
    /// Requests of [`Certainty::UnlessRefused`].
    pub unless_refused: u64,
}

impl RefusalBounds {
    /// It refuses at least this number, if other limits refuse at most `refused_by_others` requests of
    /// [`Certainty::UnlessRefused`]. (The upper bounds of the other limits add up to such a number.)
    ///
    /// Proof: without the X requests that others refuse, the rest is sure. Fewer requests leave no more refusals of the
    /// rest than `lower_alone` less X, since the largest number that can be admitted does not grow.
    pub fn lower(&self, refused_by_others: u64) -> u64 {
        self.lower_alone.saturating_sub(refused_by_others.min(self.unless_refused))
    }
}

/// What is settled of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyRefusals {
    pub(super) judged: u64,
    pub(super) lower: u64,
    pub(super) upper: u64,
    /// Whether the assumptions do not hold for this key.
    pub(super) is_unbounded: bool,
}
