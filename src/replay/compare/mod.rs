//! Two policies that judged the same requests: what changes, in both directions.
//!
//! "Live" is the policy of `--config`, "other" that of `--compare`. Limits are matched by name. Limits in shadow mode
//! refuse nothing, so they change nothing either. Memory is bounded as in the tally.

mod examples;

use std::sync::Arc;

use self::examples::Examples;
use super::judged::{JudgedRequest, KeyVerdict};
use super::names::{LimitLabel, Names};
use super::tally::{
    DistinctKeys, KeyBudget, KeyNumber, MAX_KEYS_PER_LIMIT, RequestExample, folded, key_text,
};

/// Keys that are remembered over all limits: 36 MiB.
const MAX_COMPARED_KEYS: usize = 2_000_000;

/// Compares the decisions of two policies.
pub struct Comparison {
    requests: u64,
    only_live: u64,
    only_other: u64,
    live_refused: u64,
    other_refused: u64,
    newly_refused: ChangeTally,
    newly_admitted: ChangeTally,
    limits: Vec<ComparedLimit>,
    /// The position in `limits` of each limit of the live policy.
    live: Vec<usize>,
    /// The same for the other policy.
    other: Vec<usize>,
    budget: KeyBudget,
}

/// What two policies decide differently.
#[derive(Clone, Debug)]
pub struct ComparisonSummary {
    /// Requests that both judged.
    pub requests: u64,
    /// Requests that only the live policy could judge.
    pub only_live: u64,
    /// Requests that only the other policy could judge.
    pub only_other: u64,
    /// Those that the live policy refuses.
    pub live_refused: u64,
    /// Those that the other policy refuses.
    pub other_refused: u64,
    /// Those that only the other policy refuses.
    pub newly_refused: DecisionChange,
    /// Those that only the live policy refuses.
    pub newly_admitted: DecisionChange,
    /// The limits of both policies.
    pub limits: Vec<LimitComparison>,
}

/// Requests whose decision changes in one direction.
#[derive(Clone, Debug)]
pub struct DecisionChange {
    /// How many.
    pub requests: u64,
    /// The different keys that decide. The first limit that refuses a request decides.
    pub keys: KeyNumber,
    /// Requests that are refused although no limit refuses a key, as one without a required key is.
    pub without_key: u64,
    /// Examples, each of another key.
    pub examples: Vec<RequestExample>,
}

/// What changes for one limit. Other limits may still decide as before.
#[derive(Clone, Debug)]
pub struct LimitComparison {
    /// The name.
    pub name: Arc<str>,
    /// The limit in the live policy, if it is there.
    pub live: Option<LimitLabel>,
    /// The limit in the other policy, if it is there.
    pub other: Option<LimitLabel>,
    /// What it refuses in the other policy only.
    pub newly_refused: LimitChange,
    /// What it refuses in the live policy only.
    pub newly_admitted: LimitChange,
}

/// Requests for which a limit's answer changes in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitChange {
    /// How many.
    pub requests: u64,
    /// Their different keys.
    pub keys: KeyNumber,
}

/// One direction.
#[derive(Default)]
struct ChangeTally {
    requests: u64,
    without_key: u64,
    keys: DistinctKeys,
    examples: Examples,
}

struct ComparedLimit {
    name: Arc<str>,
    live: Option<LimitLabel>,
    other: Option<LimitLabel>,
    newly_refused: LimitChangeTally,
    newly_admitted: LimitChangeTally,
}

#[derive(Default)]
struct LimitChangeTally {
    requests: u64,
    keys: DistinctKeys,
}

/// A request as one policy judged it.
#[derive(Clone, Copy)]
struct Side<'s> {
    request: &'s JudgedRequest<'s>,
    /// The position of each limit.
    positions: &'s [usize],
}

impl Comparison {
    /// Begins to compare policies with these names.
    pub fn new(live: &Names, other: &Names) -> Self {
        let mut limits = Vec::new();
        Self {
            live: positions(&mut limits, live, |limit| &mut limit.live),
            other: positions(&mut limits, other, |limit| &mut limit.other),
            limits,
            requests: 0,
            only_live: 0,
            only_other: 0,
            live_refused: 0,
            other_refused: 0,
            newly_refused: ChangeTally::default(),
            newly_admitted: ChangeTally::default(),
            budget: KeyBudget::new(MAX_COMPARED_KEYS),
        }
    }

    /// Counts a request that both policies judged.
    pub fn add_pair(&mut self, live: &JudgedRequest<'_>, other: &JudgedRequest<'_>) {
        self.requests += 1;
        self.live_refused += u64::from(live.refused);
        self.other_refused += u64::from(other.refused);
        let live = Side { request: live, positions: &self.live };
        let other = Side { request: other, positions: &self.other };
        match (live.request.refused, other.request.refused) {
            (false, true) => self.newly_refused.add(other, &self.limits, &mut self.budget),
            (true, false) => self.newly_admitted.add(live, &self.limits, &mut self.budget),
            (false, false) | (true, true) => {}
        }
        for (position, verdict) in other.refusals().filter(|(at, _)| !live.is_refused_at(*at)) {
            self.limits[position].newly_refused.add(verdict, &mut self.budget);
        }
        for (position, verdict) in live.refusals().filter(|(at, _)| !other.is_refused_at(*at)) {
            self.limits[position].newly_admitted.add(verdict, &mut self.budget);
        }
    }

    /// Counts a request that only the live policy judged.
    pub const fn add_only_live(&mut self) {
        self.only_live += 1;
    }

    /// Counts a request that only the other policy judged.
    pub const fn add_only_other(&mut self) {
        self.only_other += 1;
    }

    /// What changes.
    pub fn finish(self) -> ComparisonSummary {
        let limit = |limit: ComparedLimit| LimitComparison {
            name: limit.name,
            live: limit.live,
            other: limit.other,
            newly_refused: limit.newly_refused.finish(),
            newly_admitted: limit.newly_admitted.finish(),
        };
        ComparisonSummary {
            requests: self.requests,
            only_live: self.only_live,
            only_other: self.only_other,
            live_refused: self.live_refused,
            other_refused: self.other_refused,
            newly_refused: self.newly_refused.finish(),
            newly_admitted: self.newly_admitted.finish(),
            limits: self.limits.into_iter().map(limit).collect(),
        }
    }
}

impl LimitComparison {
    /// Whether an answer of the limit changes, or the limit itself.
    pub fn is_changed(&self) -> bool {
        let changes = self.newly_refused.requests + self.newly_admitted.requests;
        changes > 0 || self.live != self.other
    }
}

/// Finds or adds the limits of a policy.
fn positions(
    limits: &mut Vec<ComparedLimit>,
    names: &Names,
    side: fn(&mut ComparedLimit) -> &mut Option<LimitLabel>,
) -> Vec<usize> {
    let mut position = |label: &LimitLabel| {
        let known = limits.iter().position(|limit| limit.name == label.name);
        let position = known.unwrap_or_else(|| {
            limits.push(ComparedLimit {
                name: label.name.clone(),
                live: None,
                other: None,
                newly_refused: LimitChangeTally::default(),
                newly_admitted: LimitChangeTally::default(),
            });
            limits.len() - 1
        });
        *side(&mut limits[position]) = Some(label.clone());
        position
    };
    names.limits.iter().map(&mut position).collect()
}

impl<'s> Side<'s> {
    /// The verdicts that refuse the request, with the positions of their limits.
    fn refusals(self) -> impl Iterator<Item = (usize, &'s KeyVerdict)> {
        let position = |limit: usize| self.positions.get(limit).copied();
        let refusing = self.request.verdicts.iter().filter(|verdict| refuses(verdict));
        refusing.filter_map(move |verdict| Some((position(verdict.limit)?, verdict)))
    }

    fn is_refused_at(self, position: usize) -> bool {
        self.refusals().any(|(refusing, _)| refusing == position)
    }
}

fn refuses(verdict: &KeyVerdict) -> bool {
    verdict.result.refuses() && !verdict.shadow
}

impl ChangeTally {
    #[cold]
    fn add(&mut self, side: Side<'_>, limits: &[ComparedLimit], budget: &mut KeyBudget) {
        self.requests += 1;
        let request = side.request;
        let Some((position, verdict)) = side.refusals().next() else {
            self.without_key += 1;
            self.examples.add_without_key(request);
            return;
        };
        // Equal keys of two limits are two keys.
        let hash = folded(verdict.key).rotate_left(17) ^ mixed(position);
        self.keys.add(hash, MAX_KEYS_PER_LIMIT, budget);
        self.examples.add(hash, position, || {
            let key = Some(key_text(request, verdict));
            RequestExample::of(request, Some(limits[position].name.clone()), key)
        });
    }

    fn finish(self) -> DecisionChange {
        DecisionChange {
            requests: self.requests,
            keys: self.keys.number(),
            without_key: self.without_key,
            examples: self.examples.into_list(),
        }
    }
}

/// Different numbers for different positions, in all bits (the constant is 2^64 divided by the golden ratio).
const fn mixed(position: usize) -> u64 {
    (position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl LimitChangeTally {
    #[cold]
    fn add(&mut self, verdict: &KeyVerdict, budget: &mut KeyBudget) {
        self.requests += 1;
        self.keys.add(folded(verdict.key), MAX_KEYS_PER_LIMIT, budget);
    }

    fn finish(self) -> LimitChange {
        LimitChange { requests: self.requests, keys: self.keys.number() }
    }
}
