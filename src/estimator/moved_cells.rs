//! Cells of the confirm table on their way to the table of a successor.
//!
//! The table's secret stays behind, so a key goes to another set there. What must always hold: what arrives is at most what
//! the key certainly sent. A cell without room is left out, which refuses nobody.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::cell::ConfirmCell;
use super::confirm::ConfirmTable;
use super::set::TaggedCell;
use crate::clock::Nanos;
use crate::limit::{Rate, SlidingWindow, WindowPair};
use crate::policy::KeyHash;

/// The cell of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MovedCell {
    key: (u64, u64),
    /// The number of its limit, for lists.
    limit: u8,
    count: u32,
    period: Nanos,
    counted: WindowPair,
    weight: WindowPair,
}

impl ConfirmTable {
    /// All cells in use of limits with such numbers.
    pub fn moved_cells(&self, is_wanted: impl Fn(u8) -> bool) -> Vec<MovedCell> {
        let mut cells = Vec::new();
        for set in &self.sets {
            let ways = set.lock();
            let used = ways.used().filter(|(limit, _)| is_wanted(*limit));
            cells.extend(used.filter_map(|(limit, cell)| MovedCell::of(limit, cell)));
        }
        cells
    }

    /// Puts a cell where none is in use. Returns whether there was room.
    pub fn adopt(&self, moved: &MovedCell) -> bool {
        let Some(cell) = moved.cell() else {
            return false;
        };
        let spot = self.locate(cell.key());
        for set in [spot.first, spot.second] {
            let mut ways = self.sets[set].lock();
            if ways.find(spot).is_some() {
                return false;
            }
            if let Some(way) = ways.unused() {
                if set != spot.first {
                    self.sets[spot.first].add_in_second();
                }
                // Nothing was there, so nothing is displaced.
                let _ = ways.replace(way, TaggedCell { tag: spot.tag, limit: moved.limit, cell });
                self.live.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }
}

impl MovedCell {
    /// The number of its limit in the process that it comes from.
    pub const fn limit(&self) -> u8 {
        self.limit
    }

    /// The key.
    pub const fn key(&self) -> KeyHash {
        KeyHash { high: self.key.0, low: self.key.1 }
    }

    /// The length of its windows.
    pub const fn period(&self) -> Nanos {
        self.period
    }

    /// The same cell, without some of its units.
    #[must_use]
    pub fn without(mut self, units: u32) -> Self {
        self.counted = self.counted.without(units);
        self
    }

    /// The same cell, with the number that its limit has here.
    pub const fn with_limit(mut self, limit: u8) -> Self {
        self.limit = limit;
        self
    }

    fn of(limit: u8, cell: &ConfirmCell) -> Option<Self> {
        let (counted, weight) = cell.windows();
        let rate = cell.quota()?.rate();
        let key = cell.key();
        Some(Self {
            key: (key.high, key.low),
            limit,
            count: rate.count(),
            period: rate.period(),
            counted,
            weight,
        })
    }

    fn cell(&self) -> Option<ConfirmCell> {
        let quota = SlidingWindow::new(Rate::new(self.count, self.period).ok()?);
        Some(ConfirmCell::moved(self.key(), quota, self.counted, self.weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Now;
    use crate::estimator::EstimateLimit;

    #[test]
    fn a_key_arrives_with_what_it_sent() {
        let now = Now { mono: Nanos::from_secs(50), wall: Nanos::from_secs(1_000) };
        let limit = EstimateLimit::new(Rate::new(10, Nanos::from_secs(60)).unwrap(), 1_000, now);
        let (old, new) = (ConfirmTable::default(), ConfirmTable::default());
        let key = |n: u64| KeyHash { high: n.wrapping_mul(0x9e37_79b9_7f4a_7c15), low: n };
        for n in 0..2_000 {
            for _ in 0..n % 13 {
                let _ = limit.charge(&old, key(n), 1, now);
            }
        }
        let cells = old.moved_cells(|_| true);
        assert_eq!(cells.len(), old.live_cells());
        let adopted = cells.iter().filter(|cell| new.adopt(cell)).count();
        assert_eq!((adopted, new.live_cells()), (cells.len(), cells.len()));
        for n in 0..2_100 {
            let (before, after) = (limit.judge(&old, key(n), now), limit.judge(&new, key(n), now));
            assert_eq!(before, after, "key {n}");
        }
        assert!(!new.adopt(&cells[0]), "a key has one cell");
    }
}
