//! The arithmetic of limits: what a key has spent, and whether it may spend more.
//!
//! Each algorithm is one file. It is a value, the [`Quota`], whose functions take a [`Cell`], a cost and the time,
//! and return a [`Verdict`]. This module knows no key, store, lock or clock, and uses integers only.
//!
//! Always true: an absent cell and a cell that has refilled completely are equal, so a store may drop a cell for
//! which [`Quota::is_idle`] holds; [`Quota::judge`] never changes a cell; and callers call [`Quota::charge`] only
//! after every limit of the request has allowed it, so a refusal spends nothing anywhere.

mod buckets;
mod cell;
#[cfg(feature = "bin")]
mod cell_bytes;
mod charge_log;
mod conversion;
mod counters;
mod error;
mod fixed_window;
mod fleet_bound;
mod quota;
mod rate;
mod reading;
mod receipt;
mod refill;
mod retention;
mod sketch_size;
mod sliding_log;
mod sliding_window;
mod tick;
mod token_bucket;
mod verdict;
mod window_grid;
mod window_lengths;

pub use buckets::{Buckets, MAX_RATES};
pub use cell::Cell;
#[cfg(feature = "bin")]
pub use cell_bytes::QuotaNumbers;
pub use charge_log::{ChargeLog, MAX_LOG_LIMIT, log_bytes};
pub use counters::CountersByLength;
pub use error::QuotaError;
pub use fixed_window::{FixedWindow, WindowCount};
pub use fleet_bound::{FleetBound, PROPAGATION_EXCHANGES};
pub use quota::Quota;
#[cfg(feature = "bin")]
pub use rate::TypedRate;
pub use rate::{MAX_PERIOD, Rate};
pub use receipt::Receipt;
pub use refill::FullAt;
pub use sketch_size::{OVERCOUNT_DIVISOR, SKETCH_ROWS, SketchSize};
pub use sliding_log::SlidingLog;
pub use sliding_window::{SlidingWindow, WindowPair};
pub use tick::MICROSECOND;
pub use token_bucket::TokenBucket;
pub use verdict::Verdict;
pub use window_lengths::{MAX_WINDOWS, WindowLengths};
