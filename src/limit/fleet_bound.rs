//! How far a fleet of nodes may exceed a limit for which each node counts by itself and publishes the counts of heavy
//! keys. Arithmetic only: who publishes, and where, is decided elsewhere.
//!
//! ```text
//!  node 1:  own count 0 ... threshold - 1 | threshold ...
//!           known to this node only       | published: every node adds it to its own count
//! ```
//!
//! A node refuses a key when its own count and what the others have published reach the limit. So a key exceeds the
//! limit at most by what the other nodes have counted and not published, and by what arrives before a published count
//! is known everywhere.

/// Units of parts per million in the whole.
const PPM: u64 = 1_000_000;

/// Exchanges until a count that reaches the threshold is known to all nodes: the node publishes it in its next
/// exchange, and each other node reads it in its own next one.
pub const PROPAGATION_EXCHANGES: u32 = 2;

/// What a fleet of nodes may admit of one key under one limit, beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetBound {
    /// Units: a node publishes a key when its own count reaches this number. At least 1.
    pub threshold: u32,
    /// Units that the other nodes may have admitted without publishing the key.
    pub hidden: u64,
}

impl FleetBound {
    /// The bound for `nodes` live nodes. `limit`: units of a window. `error_ppm`: the hidden units that are allowed, as
    /// a share of the limit in parts per million. A node that is alone hides nothing from another one.
    ///
    /// `hidden` is at most `error_ppm` of `limit`, for any numbers.
    pub fn of(limit: u32, error_ppm: u32, nodes: u32) -> Self {
        let highest = limit.max(1);
        let others = u64::from(nodes.saturating_sub(1));
        if others == 0 {
            return Self { threshold: highest, hidden: 0 };
        }
        let allowed = u64::from(limit) * u64::from(error_ppm) / PPM;
        let share = u32::try_from(allowed / others).unwrap_or(u32::MAX);
        let threshold = share.clamp(1, highest);
        Self { threshold, hidden: others * u64::from(threshold - 1) }
    }

    /// The most units of one key that `nodes` nodes admit in a window, without those that arrive within
    /// [`PROPAGATION_EXCHANGES`] exchanges. With those it is still at most `nodes` times `limit`, because each node
    /// keeps the limit by itself.
    pub fn admitted(self, limit: u32, nodes: u32) -> u64 {
        let alone = u64::from(limit) * u64::from(nodes.max(1));
        (u64::from(limit) + self.hidden).min(alone)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_threshold_is_the_share_of_each_other_node() {
        for (limit, error_ppm, nodes, threshold, hidden, admitted) in [
            (100, 100_000, 0, 100, 0, 100),
            (100, 100_000, 1, 100, 0, 100),
            (100, 100_000, 2, 10, 9, 109),
            (100, 100_000, 5, 2, 4, 104),
            // Less than two units for each other node: every count is published, and nothing is hidden.
            (100, 100_000, 20, 1, 0, 100),
            (3, 10_000, 2, 1, 0, 3),
            (1, 1_000_000, 2, 1, 0, 1),
            // Twice the limit is what two nodes admit in any case.
            (100, 1_000_000, 2, 100, 99, 199),
            (100, u32::MAX, 2, 100, 99, 199),
            (0, 100_000, 5, 1, 0, 0),
        ] {
            let bound = FleetBound::of(limit, error_ppm, nodes);
            let found = (bound.threshold, bound.hidden, bound.admitted(limit, nodes));
            let expected = (threshold, hidden, admitted);
            assert_eq!(found, expected, "{limit}, {error_ppm} ppm, {nodes} nodes");
        }
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let max = u32::MAX;
        for (limit, error_ppm, nodes) in [(max, max, max), (max, 1_000_000, max), (max, max, 2)] {
            let bound = FleetBound::of(limit, error_ppm, nodes);
            assert!(bound.threshold <= limit, "{bound:?}");
            assert!(bound.admitted(limit, nodes) >= u64::from(limit), "{bound:?}");
        }
    }

    /// Numbers of every size, small ones as often as large ones.
    fn any_size() -> impl Strategy<Value = u32> {
        (any::<u32>(), 0_u32..32).prop_map(|(number, shift)| number >> shift)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_096))]

        #[test]
        fn no_more_is_hidden_than_the_error_allows(
            limit in any_size(),
            error_ppm in 0_u32..=1_000_000,
            nodes in any_size(),
        ) {
            let bound = FleetBound::of(limit, error_ppm, nodes);
            let allowed = u128::from(limit) * u128::from(error_ppm);
            prop_assert!(u128::from(bound.hidden) * 1_000_000 <= allowed, "{bound:?}");
            prop_assert!((1..=limit.max(1)).contains(&bound.threshold), "{bound:?}");
            // A larger threshold could hide more than is allowed.
            let others = u128::from(nodes.saturating_sub(1));
            let next = others * (u128::from(bound.threshold) + 1) * 1_000_000;
            let is_largest = bound.threshold == limit.max(1) || next > allowed;
            prop_assert!(is_largest, "{bound:?}");
            let alone = u64::from(limit) * u64::from(nodes.max(1));
            prop_assert!(bound.admitted(limit, nodes) <= alone, "{bound:?}");
        }

        #[test]
        fn a_larger_limit_or_error_never_lowers_the_bound(
            limit in any_size(),
            more in any_size(),
            error_ppm in 0_u32..=1_000_000,
            more_ppm in any_size(),
            nodes in any_size(),
            more_nodes in any_size(),
        ) {
            let bound = FleetBound::of(limit, error_ppm, nodes);
            let larger = limit.saturating_add(more);
            let of_limit = FleetBound::of(larger, error_ppm, nodes);
            let of_error = FleetBound::of(limit, error_ppm.saturating_add(more_ppm), nodes);
            for wider in [of_limit, of_error] {
                prop_assert!(wider.threshold >= bound.threshold, "{bound:?} {wider:?}");
                prop_assert!(wider.hidden >= bound.hidden, "{bound:?} {wider:?}");
            }
            prop_assert!(of_limit.admitted(larger, nodes) >= bound.admitted(limit, nodes));
            // More nodes publish earlier.
            let of_nodes = FleetBound::of(limit, error_ppm, nodes.saturating_add(more_nodes));
            prop_assert!(of_nodes.threshold <= bound.threshold, "{bound:?} {of_nodes:?}");
        }
    }
}
