//! Which limits of a policy form a family: those that stand together in a route and whose keys
//! begin with the same parts, so that in a store of many servers their cells can lie together and
//! `org > user > operation` is one call.
//!
//! The common parts must spread the keys: a host, a path, a method or a route is the same for a
//! whole site, and would gather it in one place.

use super::{Policy, Source};

/// What a limit's cells are put together by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// How many leading parts of the key all members have in common.
    pub parts: usize,
    /// The limits of the family, by place.
    pub members: Vec<usize>,
}

impl Policy {
    /// The families, each of at least two limits of the exact tier.
    pub fn families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = Vec::new();
        for route in &self.routes {
            let exact: Vec<usize> = route
                .limits
                .iter()
                .map(|one| one.limit.0)
                .filter(|place| self.limits[*place].count.tier() == super::Tier::Exact)
                .collect();
            for (n, one) in exact.iter().enumerate() {
                for other in &exact[n + 1..] {
                    self.join(&mut families, *one, *other);
                }
            }
        }
        // A chain of pairs may have nothing in common that spreads.
        families.retain_mut(|family| {
            family.members.sort_unstable();
            family.parts = self.common(&family.members);
            family.parts > 0
        });
        families
    }

    fn join(&self, families: &mut Vec<Family>, one: usize, other: usize) {
        if one == other || self.common(&[one, other]) == 0 {
            return;
        }
        let mut members = vec![one, other];
        families.retain(|family| {
            let meets = family.members.contains(&one) || family.members.contains(&other);
            if meets {
                members.extend(&family.members);
            }
            !meets
        });
        members.sort_unstable();
        members.dedup();
        families.push(Family { parts: 0, members });
    }

    /// How many leading parts these limits' keys have in common; 0 when none of them spreads.
    fn common(&self, members: &[usize]) -> usize {
        let keys = || members.iter().map(|place| self.limits[*place].key.sources());
        let Some(first) = keys().next() else {
            return 0;
        };
        let same = |part: &usize| keys().all(|key| key.get(*part) == first.get(*part));
        let parts = (0..first.len()).take_while(same).count();
        if first[..parts].iter().any(spreads) { parts } else { 0 }
    }
}

/// Whether a source takes many values over the clients of a site.
const fn spreads(source: &Source) -> bool {
    match source {
        Source::ClientIp
        | Source::Header(_)
        | Source::Cookie(_)
        | Source::Query(_)
        | Source::Bearer
        | Source::BasicUser
        | Source::Jwt(_) => true,
        Source::Host
        | Source::Path
        | Source::Method
        | Source::Route
        | Source::PathSegment(_)
        | Source::Shard { .. } => false,
    }
}
