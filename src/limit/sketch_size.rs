//! How wide a count-min sketch must be for a limit: arithmetic that both the estimator and `tollgate check` need.
//! It holds no counters.

use super::rate::Rate;

/// Rows of a sketch. A key has one counter in each row, and reads the smallest of them.
pub const SKETCH_ROWS: usize = 4;

/// A sketch is made wide enough that keys read too much by at most the limit divided by this.
pub const OVERCOUNT_DIVISOR: u64 = 10;

/// The fewest counters of a row: 64 KiB for both slots. A smaller sketch would save nothing worth having.
const MIN_WIDTH: u64 = 1 << 10;

/// The largest number of counters of a row: 16 MiB for both slots. A limit that needs more gets a noisier
/// sketch: `check` warns, and a gauge shows the noise.
const MAX_WIDTH: u64 = 1 << 18;

/// The size of the sketch of one limit, both slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SketchSize {
    /// Counters of a row.
    width: u64,
    /// Requests in both slots, as the configuration declares.
    expected: u64,
}

impl SketchSize {
    /// The width that keeps the expected over-count within the limit divided by [`OVERCOUNT_DIVISOR`], between the
    /// bounds. `expect_per_second`: requests per second of all keys together.
    ///
    /// A row spreads N requests over W counters, so a key reads N / W too many on average (Cormode and
    /// Muthukrishnan, "An improved data stream summary: the count-min sketch and its applications", 2005).
    pub fn new(rate: Rate, expect_per_second: u32) -> Self {
        let period = u128::from(rate.period().get());
        let per_window = u128::from(expect_per_second) * period / 1_000_000_000;
        let expected = u64::try_from(per_window * 2).unwrap_or(u64::MAX);
        let wanted = expected.saturating_mul(OVERCOUNT_DIVISOR) / u64::from(rate.count());
        let width = wanted.clamp(MIN_WIDTH, MAX_WIDTH).next_power_of_two();
        Self { width, expected }
    }

    /// Counters of a row.
    pub const fn width(self) -> u64 {
        self.width
    }

    /// Requests that one row reads on average for a key that sent nothing. The smallest of all rows is less.
    pub const fn expected_overcount(self) -> u64 {
        self.expected / self.width
    }

    /// Bytes of both slots, with counters of 8 bytes.
    pub const fn bytes(self) -> usize {
        2 * SKETCH_ROWS * self.width as usize * 8
    }
}
