//! Families: limits whose cells are stored in one slot of a Redis Cluster.
//!
//! Limits form a family if a route applies them together and their keys begin with the same sources. A
//! request under `org > user > operation` then needs one call. This module only computes the families; the
//! store decides where a cell is stored. The common sources must take many values: a host, path, method or route is the
//! same for many clients, so a family by it alone would put nearly all cells of a site into one slot.

use super::index::LimitIndex;
use super::key::Source;
use super::limit::Tier;
use super::ruleset::Policy;

/// Limits whose cells are stored together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// The number of leading key sources that all members have in common.
    pub common_sources: usize,
    /// The limits of the family, by index.
    pub members: Vec<LimitIndex>,
}

impl Policy {
    /// The families, each of at least two limits of the exact tier.
    pub fn families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = Vec::new();
        for route in self.routes.iter() {
            let exact: Vec<LimitIndex> = route
                .limits
                .iter()
                .map(|route_limit| route_limit.limit)
                .filter(|index| self.limit(*index).count.tier() == Tier::Exact)
                .collect();
            for (n, first) in exact.iter().enumerate() {
                for second in &exact[n + 1..] {
                    self.join(&mut families, *first, *second);
                }
            }
        }
        // Each pair has common sources, but the joined family may have none.
        families.retain_mut(|family| {
            family.members.sort_unstable();
            family.common_sources = self.common_sources(&family.members);
            family.common_sources > 0
        });
        families
    }

    /// Joins the families of two limits, if the two have common sources.
    fn join(&self, families: &mut Vec<Family>, first: LimitIndex, second: LimitIndex) {
        if first == second || self.common_sources(&[first, second]) == 0 {
            return;
        }
        let mut members = vec![first, second];
        families.retain(|family| {
            let overlaps = family.members.contains(&first) || family.members.contains(&second);
            if overlaps {
                members.extend(&family.members);
            }
            !overlaps
        });
        members.sort_unstable();
        members.dedup();
        families.push(Family { common_sources: 0, members });
    }

    /// The number of leading sources that these limits' keys have in common; 0 if none of them spreads keys.
    fn common_sources(&self, members: &[LimitIndex]) -> usize {
        let keys = || members.iter().map(|index| self.limit(*index).key.sources());
        let Some(first) = keys().next() else {
            return 0;
        };
        let same = |source: &usize| keys().all(|key| key.get(*source) == first.get(*source));
        let common = (0..first.len()).take_while(same).count();
        let spreads = |source: &Source| !source.is_shared_by_clients();
        if first[..common].iter().any(spreads) { common } else { 0 }
    }
}
