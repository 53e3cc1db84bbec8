//! The keys of one limit that the confirm table counts, for operators who ask who sends most.
//!
//! Cells know their quota and a number of their limit, so a key is listed under the limit that counts it. What must always
//! hold: listing changes no cell, and holds the lock of one set at a time.

use super::confirm::ConfirmTable;
use crate::clock::Nanos;
use crate::limit::{SlidingWindow, WindowPair};
use crate::policy::KeyHash;

/// What a watched key sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The key.
    pub key: KeyHash,
    /// Units that it tried to send in this window and in the one before, refused ones included, since it is watched.
    pub sent: u32,
    /// Units that count now.
    pub spent: u32,
}

/// What this node counted of a key under one limit.
#[derive(Clone, Copy, Debug)]
pub struct NodeCount {
    /// The number of the limit ([`super::EstimateLimit::number`]).
    pub limit: u8,
    /// The length of its window.
    pub period: Nanos,
    /// The key.
    pub key: KeyHash,
    /// What the key certainly sent to this node.
    pub counted: WindowPair,
}

impl ConfirmTable {
    /// The keys of the limit with this number and quota that have cells.
    pub(super) fn senders(&self, limit: u8, quota: SlidingWindow, now: Nanos) -> Vec<Sender> {
        let mut found = Vec::new();
        for set in &self.sets {
            let ways = set.lock();
            let cells = ways.cells_of(limit).filter(|cell| cell.quota() == Some(quota));
            found.extend(cells.map(|cell| {
                let (sent, spent) = cell.sent_and_spent(now);
                Sender { key: cell.key(), sent, spent }
            }));
        }
        found.retain(|sender| sender.sent > 0);
        found
    }

    /// What this node counted of every key with a cell, whatever its limit. It locks one set at a time.
    pub fn visit_counts(&self, mut visit: impl FnMut(NodeCount)) {
        for set in &self.sets {
            let ways = set.lock();
            for (limit, cell) in ways.used() {
                if let Some(quota) = cell.quota() {
                    let (counted, _) = cell.windows();
                    visit(NodeCount {
                        limit,
                        period: quota.rate().period(),
                        key: cell.key(),
                        counted,
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::EstimateLimit;
    use super::*;
    use crate::clock::Now;
    use crate::limit::Rate;

    #[test]
    fn senders_are_listed_under_their_limit() {
        let at = |secs: u64| Now { mono: Nanos::from_secs(secs), wall: Nanos::from_secs(secs) };
        let rate = Rate::new(10, Nanos::from_secs(60)).unwrap();
        let table = ConfirmTable::default();
        let limits = [(); 2].map(|()| EstimateLimit::new(rate, 100, at(0)));
        let key = |n: u64| KeyHash { high: n.wrapping_mul(0x9e37_79b9_7f4a_7c15), low: n };
        for (n, times) in [(1, 30), (2, 4), (3, 12)] {
            let limit = &limits[usize::from(n == 3)];
            for _ in 0..times {
                limit.charge(&table, key(n), 1, at(1));
            }
        }
        let of = |limit: &EstimateLimit, count: usize, secs: u64| -> Vec<(u64, u32, u32)> {
            let senders = limit.heaviest(&table, count, at(secs));
            senders.iter().map(|sender| (sender.key.low, sender.sent, sender.spent)).collect()
        };
        assert_eq!(of(&limits[0], 9, 1), [(1, 30, 10), (2, 4, 4)]);
        assert_eq!(of(&limits[0], 1, 1), [(1, 30, 10)]);
        assert_eq!(of(&limits[1], 9, 1), [(3, 12, 10)]);
        assert!(of(&limits[0], 9, 300).is_empty(), "nobody sends any more");
        // After a reload the keys are still those of the limit.
        let reloaded = EstimateLimit::after_reload(&limits[0], rate, 50, at(1));
        assert_eq!(of(&reloaded, 9, 1).len(), 2);
    }

    #[test]
    fn a_cell_has_the_number_that_its_limit_has_now() {
        let now = Now { mono: Nanos::from_secs(1), wall: Nanos::from_secs(1) };
        let rate = Rate::new(10, Nanos::from_secs(60)).unwrap();
        let table = ConfirmTable::default();
        let key = KeyHash { high: 7, low: 9 };
        // A limit that is removed, and comes back in a later generation.
        for units in 1..=2 {
            let limit = EstimateLimit::new(rate, 100, now);
            limit.charge(&table, key, 1, now);
            let mut found = Vec::new();
            table.visit_counts(|count| found.push((count.limit, count.counted.counts().1)));
            assert_eq!(found, [(limit.number(), units)]);
        }
    }
}
