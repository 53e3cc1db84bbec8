//! The unit in which shared stores count time.

use crate::clock::Nanos;

/// One microsecond: the unit in which a shared store counts time. With such a store, buckets are built for this
/// unit, so that a node that judges by itself gives the same verdicts.
pub const MICROSECOND: Nanos = Nanos::new(1_000);
