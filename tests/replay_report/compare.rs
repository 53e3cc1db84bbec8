//! Two policies against plain sets.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tollgate::replay::compare::{Comparison, ComparisonSummary};
use tollgate::replay::judged::{JudgedRequest, KeyResult, KeyVerdict};

use crate::requests::{Shown, names, request, verdict};

const LIVE: [&str; 3] = ["a", "b", "old"];
const OTHER: [&str; 3] = ["new", "b", "a"];

/// For each limit, the key and whether it is refused; and whether it is in shadow mode.
type Answers = Vec<Option<(u128, bool, bool)>>;

fn answers() -> impl Strategy<Value = Answers> {
    let answer = (0..6_u128, any::<bool>(), prop::bool::weighted(0.2));
    prop::collection::vec(prop::option::of(answer), 3)
}

fn verdicts(answers: &Answers) -> Vec<KeyVerdict> {
    let limits = answers.iter().enumerate().filter_map(|(limit, answer)| {
        let (key, is_refused, shadow) = (*answer)?;
        let result = if is_refused { KeyResult::Refused } else { KeyResult::Admitted };
        Some(KeyVerdict { shadow, ..verdict(limit, key, result) })
    });
    limits.collect()
}

fn compared(stream: &[(Answers, Answers)]) -> ComparisonSummary {
    let mut comparison = Comparison::new(&names(&LIVE), &names(&OTHER));
    for (live, other) in stream {
        let (live, other) = (verdicts(live), verdicts(other));
        comparison.add_pair(&request(0, &live), &request(0, &other));
    }
    comparison.finish()
}

fn refusals<'v>(verdicts: &'v [KeyVerdict], names: &'v [&str]) -> Vec<(&'v str, u128)> {
    let refusing = verdicts.iter().filter(|verdict| verdict.result.refuses() && !verdict.shadow);
    refusing.map(|verdict| (names[verdict.limit], verdict.key)).collect()
}

#[derive(Default)]
struct Oracle {
    requests: u64,
    keys: BTreeSet<(String, u128)>,
    limits: Vec<(String, u128)>,
}

fn oracle(stream: &[(Answers, Answers)], to_other: bool) -> Oracle {
    let mut oracle = Oracle::default();
    for (live, other) in stream {
        let (live, other) = (verdicts(live), verdicts(other));
        let (live, other) = (refusals(&live, &LIVE), refusals(&other, &OTHER));
        let (before, after) = if to_other { (live, other) } else { (other, live) };
        if before.is_empty() && !after.is_empty() {
            oracle.requests += 1;
            oracle.keys.insert((after[0].0.to_owned(), after[0].1));
        }
        let is_known = |name: &str| before.iter().any(|(known, _)| *known == name);
        let new = after.iter().filter(|(name, _)| !is_known(name));
        oracle.limits.extend(new.map(|(name, key)| ((*name).to_owned(), *key)));
    }
    oracle
}

proptest! {
    #[test]
    fn changes_are_those_of_plain_sets(
        stream in prop::collection::vec((answers(), answers()), 0..60),
    ) {
        let found = compared(&stream);
        let directions = [(&found.newly_refused, true), (&found.newly_admitted, false)];
        for (change, to_other) in directions {
            let oracle = oracle(&stream, to_other);
            assert_eq!((change.requests, change.without_key), (oracle.requests, 0));
            assert_eq!(change.keys.number, oracle.keys.len() as u64);
            let keys: BTreeSet<_> = change.examples.iter().map(|example| &example.key).collect();
            assert_eq!(keys.len(), change.examples.len());
            for example in &change.examples {
                let (limit, key) = (example.limit.as_deref().unwrap(), example.key.as_deref().unwrap());
                assert!(oracle.keys.contains(&(limit.to_owned(), key[1..].parse().unwrap())));
            }
            for limit in &found.limits {
                let of_limit = oracle.limits.iter().filter(|(name, _)| **name == *limit.name);
                let keys: BTreeSet<u128> = of_limit.clone().map(|(_, key)| *key).collect();
                let change = if to_other { limit.newly_refused } else { limit.newly_admitted };
                assert_eq!(change.requests, of_limit.count() as u64);
                assert_eq!(change.keys.number, keys.len() as u64);
            }
        }
    }
}

#[test]
fn limits_of_a_single_policy_are_listed_so() {
    let found = compared(&[]);
    let listed = found
        .limits
        .iter()
        .map(|limit| (&*limit.name, limit.live.is_some(), limit.other.is_some()));
    let expected =
        [("a", true, true), ("b", true, true), ("old", true, false), ("new", false, true)];
    assert_eq!(listed.collect::<Vec<_>>(), expected);
}

#[test]
fn requests_that_no_key_decides_are_counted_apart() {
    let mut comparison = Comparison::new(&names(&LIVE), &names(&OTHER));
    let admitted = request(0, &[]);
    for path in ["/1", "/2"] {
        comparison.add_pair(&admitted, &JudgedRequest { refused: true, path, ..admitted });
    }
    let change = comparison.finish().newly_refused;
    assert_eq!((change.requests, change.keys.number, change.without_key), (2, 0, 2));
    assert_eq!(change.examples.len(), 1);
    assert_eq!((&change.examples[0].key, &*change.examples[0].path), (&None, "/1"));
}

#[test]
fn a_key_has_one_example_and_limits_share_the_room() {
    let (admitted, shown) = (request(0, &[]), Shown("one text"));
    for is_same_text in [false, true] {
        let mut comparison = Comparison::new(&names(&LIVE), &names(&OTHER));
        for key in 0..1_000 {
            for limit in 0..3 {
                let verdicts = [verdict(limit, key + 10_000 * limit as u128, KeyResult::Refused)];
                let mut refused = request(0, &verdicts);
                if is_same_text {
                    refused.shown = &shown;
                }
                comparison.add_pair(&admitted, &refused);
                comparison.add_pair(&admitted, &refused);
            }
        }
        let change = comparison.finish().newly_refused;
        assert_eq!((change.requests, change.keys.number), (6_000, 3_000));
        assert_eq!(change.examples.len(), if is_same_text { 1 } else { 20 });
    }
}
