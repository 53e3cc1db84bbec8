//! The window lengths of all variants of a limit (own rate, plans, overrides). Its cells depend on them, and on the
//! quota that charges. This file knows no quota; `quota.rs` builds the value from the variants.

use std::sync::Arc;

use crate::clock::Nanos;

/// The largest number of distinct window lengths among the variants of one limit. Every charge writes a counter
/// of each.
pub const MAX_WINDOWS: usize = 8;

/// The distinct window lengths of all variants of one limit, and the number of its distinct buckets.
///
/// Two values are equal if their lengths are: cells do not depend on the number of buckets.
#[derive(Clone, Debug, Default)]
pub struct WindowLengths {
    /// Ascending; none for a bucket.
    lengths: Arc<[Nanos]>,
    /// Distinct buckets.
    buckets: usize,
}

impl PartialEq for WindowLengths {
    fn eq(&self, other: &Self) -> bool {
        self.lengths == other.lengths
    }
}

impl Eq for WindowLengths {}

impl WindowLengths {
    /// These lengths, in any order.
    pub fn new(lengths: impl IntoIterator<Item = Nanos>) -> Self {
        let mut all: Vec<Nanos> = lengths.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        Self { lengths: all.into(), buckets: 0 }
    }

    /// The same lengths, of a limit with this many distinct buckets.
    pub(super) fn with_buckets(self, buckets: usize) -> Self {
        Self { buckets, ..self }
    }

    /// The lengths, ascending.
    pub fn lengths(&self) -> &[Nanos] {
        &self.lengths
    }

    /// How many distinct buckets a key may have.
    pub const fn buckets(&self) -> usize {
        self.buckets
    }

    pub(super) fn contains(&self, length: Nanos) -> bool {
        self.lengths.contains(&length)
    }

    /// The longest length; zero if there is none.
    pub(super) fn longest(&self) -> Nanos {
        self.lengths.last().copied().unwrap_or_default()
    }
}
