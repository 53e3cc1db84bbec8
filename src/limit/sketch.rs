//! How wide a count-min sketch must be for a limit: arithmetic that both the estimator and
//! `check` need.

use super::Rate;

/// Rows of a sketch: the least of four counters is read.
pub const SKETCH_ROWS: usize = 4;

/// Fewest counters of a row: 64 KiB for both slots, below which nothing is saved.
const MIN_WIDTH: u64 = 1 << 10;

/// Most counters of a row: 16 MiB for both slots. Beyond it the noise grows, and is shown.
const MAX_WIDTH: u64 = 1 << 18;

/// The size of the sketch of one limit, both slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SketchSize {
    width: u64,
    /// Requests in both slots, as declared.
    expected: u64,
}

impl SketchSize {
    /// As wide as keeps the expected over-count within a tenth of the limit, within the bounds.
    /// `expect_per_second`: requests of all keys together.
    pub fn new(rate: Rate, expect_per_second: u32) -> Self {
        let period = u128::from(rate.period().get());
        let per_window = u128::from(expect_per_second) * period / 1_000_000_000;
        let expected = u64::try_from(per_window * 2).unwrap_or(u64::MAX);
        let wanted = expected.saturating_mul(10) / u64::from(rate.count());
        let width = wanted.clamp(MIN_WIDTH, MAX_WIDTH).next_power_of_two();
        Self { width, expected }
    }

    /// Counters of a row.
    pub const fn width(self) -> u64 {
        self.width
    }

    /// What a key that sent nothing is expected to read: requests per counter. The least of the
    /// rows reads less.
    pub const fn expected_overcount(self) -> u64 {
        self.expected / self.width
    }

    /// Memory of both slots, with counters of 8 bytes.
    pub const fn bytes(self) -> usize {
        2 * SKETCH_ROWS * self.width as usize * 8
    }
}
