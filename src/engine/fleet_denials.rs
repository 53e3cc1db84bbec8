//! Denials of a key, counted over all nodes of the fleet, for a `penalty` of a limit with `scope: fleet`.
//!
//! They are counted as an estimate limit counts requests, and exchanged in the same way. Each node still counts its own
//! exactly (`store::Bans`), so a ban comes at the latest when one node alone would make it. Of other nodes only the present
//! window counts: all of it is within the time of the rule. A ban clears the denials that led to it: the node that makes it at
//! once, each other node before it counts or publishes the next one.

use std::sync::Arc;

use crate::clock::{Nanos, Now};
use crate::estimator::{ConfirmTable, EstimateLimit, FleetView};
use crate::limit::{Rate, SlidingWindow};
use crate::policy::{DEFAULT_EXPECT_PER_SECOND, KeyHash, Penalty};

/// Turns the key of a limit into the key of its denials, and back.
const MARK: u64 = 0x6465_6e69_616c_7321;

/// The denials under one limit.
#[derive(Debug)]
pub(super) struct FleetDenials {
    counts: Arc<EstimateLimit>,
    view: Arc<FleetView>,
}

/// The key under which denials of a key are counted within a time, which has a cell of its own: what counted within another time
/// is not known to be within this one. The same again gives the key.
pub(super) const fn denial_key(key: KeyHash, within: Nanos) -> KeyHash {
    /// Odd, so that no two times give the same number.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mark = MARK ^ within.get().wrapping_mul(SPREAD);
    KeyHash { high: key.high ^ mark, low: key.low ^ mark.rotate_left(32) }
}

impl FleetDenials {
    /// For the limit that nodes call `tag`; `before`: those of the limit in the generation before. `None`: the time of the
    /// rule is no window that can be counted in, so each node counts by itself.
    pub(super) fn of(rule: &Penalty, tag: u64, before: Option<&Self>, now: Now) -> Option<Self> {
        let rate = Rate::new(rule.after, rule.within).ok()?;
        let Some(before) = before.filter(|before| before.view.tag() == tag) else {
            let view = Arc::new(FleetView::of_denials(tag));
            let counts = EstimateLimit::new(rate, DEFAULT_EXPECT_PER_SECOND, now);
            return Some(Self { counts: Arc::new(counts.in_fleet(Some(Arc::clone(&view)))), view });
        };
        let counts = if before.counts.rate() == rate {
            Arc::clone(&before.counts)
        } else {
            // It finds the cells of keys that are not denied again, and goes on to publish them.
            let expect = DEFAULT_EXPECT_PER_SECOND;
            Arc::new(EstimateLimit::after_reload(&before.counts, rate, expect, now))
        };
        Some(Self { counts, view: Arc::clone(&before.view) })
    }

    /// What other nodes counted of them.
    pub(super) const fn view(&self) -> &Arc<FleetView> {
        &self.view
    }

    /// What counts them.
    pub(super) const fn counts(&self) -> &Arc<EstimateLimit> {
        &self.counts
    }

    /// The key under which denials of a key are counted.
    pub(super) fn key_of(&self, key: KeyHash) -> KeyHash {
        denial_key(key, self.counts.rate().period())
    }

    /// Counts a denial. Returns how many other nodes have certainly counted within the time of the rule.
    pub(super) fn record(&self, table: &ConfirmTable, key: KeyHash, now: Now) -> u32 {
        // Also above `after`, which denials reach together with those of the window before.
        let _counted = self.counts.debit(table, self.key_of(key), 1, now);
        let latest = table.clock().read(now).latest;
        let window = SlidingWindow::new(self.counts.rate());
        self.view.units_in_window(self.key_of(key), window, latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_go_on_after_a_reload_of_the_rule() {
        let rule = |after, seconds| Penalty {
            after,
            within: Nanos::from_secs(seconds),
            ban: Nanos::SECOND,
            double_up_to: Nanos::SECOND,
            forgive: Nanos::SECOND,
            at_connection: false,
        };
        let now = Now { mono: Nanos::SECOND, wall: Nanos::SECOND };
        let first = FleetDenials::of(&rule(20, 60), 7, None, now).unwrap();
        let number = first.counts().number();
        let larger = FleetDenials::of(&rule(21, 60), 7, Some(&first), now).unwrap();
        assert!(Arc::ptr_eq(larger.view(), first.view()), "what other nodes counted is known");
        assert!(Arc::ptr_eq(larger.counts().fleet().unwrap(), first.view()));
        assert_eq!((larger.counts().number(), larger.counts().rate().count()), (number, 21));
        // Windows of another length are others.
        let longer = FleetDenials::of(&rule(21, 90), 8, Some(&larger), now).unwrap();
        assert!(!Arc::ptr_eq(longer.view(), first.view()));
        // And what counted in the one is not known to be in the other.
        let (table, key) = (ConfirmTable::default(), KeyHash { high: 1, low: 2 });
        for _ in 0..3 {
            let _of_others = longer.record(&table, key, now);
        }
        let spent = |counts: &FleetDenials| {
            let verdict = counts.counts().judge(&table, counts.key_of(key), now);
            verdict.limit - verdict.remaining
        };
        assert_eq!((spent(&longer), spent(&first)), (3, 0));
        assert_eq!(denial_key(longer.key_of(key), longer.counts().rate().period()), key);
    }
}
