//! Sorted sets of the stand-in: members in the order of their scores, and those of one score in the order of their bytes.

use std::collections::BTreeMap;

/// A sorted set. It is sorted when it is asked, which is fast enough for tests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SortedSet(BTreeMap<String, f64>);

impl SortedSet {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the member is new.
    pub fn add(&mut self, member: &str, score: f64) -> bool {
        self.0.insert(member.to_owned(), score).is_none()
    }

    /// Returns how many of the members were there.
    pub fn remove(&mut self, members: &[String]) -> usize {
        members.iter().filter(|member| self.0.remove(*member).is_some()).count()
    }

    pub fn score(&self, member: &str) -> Option<f64> {
        self.0.get(member).copied()
    }

    /// The members from one rank to another, both included. A negative rank counts from the end.
    pub fn by_rank(&self, first: i64, last: i64) -> Vec<(String, f64)> {
        let len = self.0.len() as i64;
        let rank = |rank: i64| if rank < 0 { rank + len } else { rank };
        let first = rank(first).max(0) as usize;
        let end = usize::try_from(rank(last) + 1).unwrap_or(0).min(self.0.len());
        self.in_order().get(first..end).unwrap_or_default().to_vec()
    }

    /// The members between two scores, spelt as `5`, `(5`, `-inf` or `+inf`.
    pub fn by_score(&self, from: &str, to: &str) -> Vec<(String, f64)> {
        let (from, is_behind) = bound(from);
        let (to, is_before) = bound(to);
        let is_between = |score: f64| {
            (from < score || from == score && !is_behind)
                && (score < to || score == to && !is_before)
        };
        self.in_order().into_iter().filter(|(_, score)| is_between(*score)).collect()
    }

    fn in_order(&self) -> Vec<(String, f64)> {
        let mut members: Vec<_> =
            self.0.iter().map(|(member, score)| (member.clone(), *score)).collect();
        // The sort is stable, and the members are in the order of their bytes.
        members.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        members
    }
}

/// A score, and whether it is excluded itself.
fn bound(text: &str) -> (f64, bool) {
    let number = text.strip_prefix('(');
    (number.unwrap_or(text).parse().expect("a score"), number.is_some())
}
