//! The counts against plain maps.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tollgate::clock::Nanos;
use tollgate::replay::judged::{AppliedRate, JudgedRequest, KeyResult, KeyVerdict};
use tollgate::replay::tally::{Summary, Tally};

use crate::requests::{names, request, verdict};

const LIMITS: [&str; 3] = ["a", "b", "c"];

/// A request of a test: its time in milliseconds, its route, its status, and verdicts.
#[derive(Clone, Debug)]
struct Given {
    at: u64,
    route: Option<usize>,
    status: Option<u16>,
    verdicts: Vec<KeyVerdict>,
}

fn result() -> impl Strategy<Value = KeyResult> {
    prop_oneof![
        3 => Just(KeyResult::Admitted),
        2 => Just(KeyResult::Refused),
        1 => Just(KeyResult::Banned),
    ]
}

fn verdicts() -> impl Strategy<Value = Vec<KeyVerdict>> {
    let answer = (0..8_u128, 0..4_u32, result(), any::<bool>(), any::<bool>());
    let answers = prop::collection::vec(prop::option::of(answer), LIMITS.len());
    answers.prop_map(|answers| {
        let limits = answers.into_iter().enumerate();
        let judged = limits.filter_map(|(limit, answer)| {
            let (key, cost, result, shadow, is_own) = answer?;
            let rate = if is_own { AppliedRate::Own } else { AppliedRate::Other };
            Some(KeyVerdict { limit, key, cost, rate, result, shadow })
        });
        judged.collect()
    })
}

fn stream() -> impl Strategy<Value = Vec<Given>> {
    let status = prop_oneof![Just(None), Just(Some(200)), Just(Some(429)), Just(Some(503))];
    let route = prop_oneof![Just(None), Just(Some(0)), Just(Some(1))];
    let given = (0..9_000_u64, route, status, verdicts());
    let stream = prop::collection::vec(given, 0..200);
    (stream, prop_oneof![Just(1_u64), Just(1_000), Just(10_000_000)]).prop_map(|(stream, scale)| {
        let mut at = 1_700_000_000_000;
        let given = stream.into_iter().map(|(step, route, status, verdicts)| {
            at += step * scale;
            Given { at, route, status, verdicts }
        });
        given.collect()
    })
}

fn tallied(stream: &[Given], top: usize) -> Summary {
    let mut tally = Tally::new(names(&LIMITS));
    for given in stream {
        let mut request = request(given.at, &given.verdicts);
        (request.route, request.status) = (given.route, given.status);
        tally.add(&request);
    }
    tally.finish(top)
}

fn number(stream: &[Given], matches: impl Fn(&Given) -> bool) -> u64 {
    stream.iter().filter(|given| matches(given)).count() as u64
}

fn is_refused(given: &Given) -> bool {
    given.verdicts.iter().any(|verdict| verdict.result.refuses() && !verdict.shadow)
}

fn is_shadow_refused(given: &Given) -> bool {
    given.verdicts.iter().any(|verdict| verdict.result.refuses() && verdict.shadow)
}

/// The most units in a window, by trying each group of eight slots.
fn peak(charges: &[(u64, u32)]) -> u64 {
    let slot = |at: u64| at / 7_500;
    let of = |end: u64| {
        let charges = charges.iter().filter(|(at, _)| (slot(*at)..slot(*at) + 8).contains(&end));
        charges.map(|(_, cost)| u64::from(*cost)).sum()
    };
    charges.iter().map(|(at, _)| of(slot(*at))).max().unwrap_or(0)
}

/// The most units in any window of a minute that begins with a request.
fn true_peak(charges: &[(u64, u32)]) -> u64 {
    let of = |begin: u64| {
        let charges = charges.iter().filter(|(at, _)| (begin..begin + 60_000).contains(at));
        charges.map(|(_, cost)| u64::from(*cost)).sum()
    };
    charges.iter().map(|(at, _)| of(*at)).max().unwrap_or(0)
}

fn check_limit(stream: &[Given], summary: &Summary, index: usize) {
    let of_limit = |given: &Given| {
        let mut found = given.verdicts.iter().filter(|verdict| verdict.limit == index);
        found.next().map(|verdict| (given.at, *verdict))
    };
    let judged: Vec<(u64, KeyVerdict)> = stream.iter().filter_map(of_limit).collect();
    let refusals = |shadow: bool| {
        let found = judged.iter().filter(|(_, v)| v.result.refuses() && v.shadow == shadow);
        found.copied().collect::<Vec<_>>()
    };
    let keys = |of: &[(u64, KeyVerdict)]| of.iter().map(|(_, v)| v.key).collect::<BTreeSet<_>>();
    let (refused, shadow) = (refusals(false), refusals(true));
    let limit = &summary.limits[index];
    assert_eq!(limit.judged, judged.len() as u64);
    assert_eq!((limit.refused, limit.shadow_refused), (refused.len() as u64, shadow.len() as u64));
    let banned = judged.iter().filter(|(_, v)| v.result == KeyResult::Banned).count();
    assert_eq!(limit.banned, banned as u64);
    let other = judged.iter().filter(|(_, v)| v.rate == AppliedRate::Other).count();
    assert_eq!(limit.other_rate, other as u64);
    assert_eq!(limit.units, judged.iter().map(|(_, v)| u64::from(v.cost)).sum::<u64>());
    for (found, of) in [
        (limit.keys, &judged),
        (limit.keys_refused, &refused),
        (limit.keys_shadow_refused, &shadow),
    ] {
        assert_eq!((found.number, found.is_estimate), (keys(of).len() as u64, false));
    }
    let both: Vec<(u64, KeyVerdict)> =
        judged.iter().filter(|(_, v)| v.result.refuses()).copied().collect();
    check_keys(&judged, &both, summary, index);
    check_first(&both, summary, index);
    let buckets = &limit.over_time;
    assert_eq!(buckets.iter().map(|b| b.requests).sum::<u64>(), limit.judged);
    assert_eq!(buckets.iter().map(|b| b.refused).sum::<u64>(), limit.refused);
    assert_eq!(buckets.iter().map(|b| b.shadow_refused).sum::<u64>(), limit.shadow_refused);
    assert_eq!(buckets.len(), summary.over_time.len());
}

fn check_keys(
    judged: &[(u64, KeyVerdict)],
    refused: &[(u64, KeyVerdict)],
    summary: &Summary,
    index: usize,
) {
    let mut by_key = BTreeMap::<u128, Vec<u64>>::new();
    refused.iter().for_each(|(at, v)| by_key.entry(v.key).or_default().push(*at));
    let limit = &summary.limits[index];
    assert_eq!(limit.top.len(), by_key.len().min(5));
    let mut counts: Vec<u64> = by_key.values().map(|times| times.len() as u64).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    for (key, count) in limit.top.iter().zip(&counts) {
        assert_eq!(key.refused + key.shadow_refused, *count);
        let number: u128 = key.key[1..].parse().unwrap();
        let times = &by_key[&number];
        assert_eq!(times.len() as u64, *count);
        assert_eq!(key.first_refused, Nanos::from_millis(times[0]));
        assert_eq!(key.last_refused, Nanos::from_millis(times[times.len() - 1]));
        let of_key = judged.iter().filter(|(_, v)| v.key == number);
        let charges: Vec<(u64, u32)> = of_key.map(|(at, v)| (*at, v.cost)).collect();
        assert_eq!(key.requests, charges.len() as u64);
        assert_eq!(key.peak_rate, peak(&charges));
        let most = true_peak(&charges);
        assert!(key.peak_rate <= most && most <= 2 * key.peak_rate, "{key:?}: {most}");
        assert!(!key.is_lower_bound && !key.is_first_uncertain);
    }
    let sum = |keys: usize| counts.iter().take(keys).sum::<u64>();
    match &limit.dominance {
        None => assert!(refused.is_empty()),
        Some(found) => {
            assert_eq!((found.first, found.first_10), (sum(1), sum(10)));
            assert_eq!((found.first_100, found.total), (sum(100), sum(usize::MAX)));
        }
    }
}

fn check_first(refused: &[(u64, KeyVerdict)], summary: &Summary, index: usize) {
    let mut seen = BTreeSet::new();
    let first: Vec<(u64, String)> = refused
        .iter()
        .filter(|(_, v)| seen.insert(v.key))
        .map(|(at, v)| (*at, format!("k{}", v.key)))
        .take(10)
        .collect();
    let found = summary.limits[index]
        .first_refusals
        .iter()
        .map(|example| (example.at.get() / 1_000_000, example.key.as_deref().unwrap().to_owned()));
    assert_eq!(found.collect::<Vec<_>>(), first);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn counts_are_those_of_plain_maps(stream in stream()) {
        let summary = tallied(&stream, 5);
        assert_eq!(summary.requests, stream.len() as u64);
        assert_eq!(summary.refused, number(&stream, is_refused));
        let only_shadow = |given: &Given| !is_refused(given) && is_shadow_refused(given);
        assert_eq!(summary.shadow_refused, number(&stream, only_shadow));
        let of_status = |status| number(&stream, |given| given.status == Some(status));
        assert_eq!(summary.earlier.too_many_requests, of_status(429));
        assert_eq!(summary.earlier.unavailable, of_status(503));
        assert_eq!(summary.unrouted, number(&stream, |given| given.route.is_none()));
        for (index, route) in summary.routes.iter().enumerate() {
            let is_there = |given: &Given| given.route == Some(index);
            assert_eq!(route.requests, number(&stream, is_there));
            let refused = number(&stream, |given| is_there(given) && is_refused(given));
            assert_eq!(route.refused, refused);
        }
        let times = stream.iter().map(|given| Nanos::from_millis(given.at));
        assert_eq!(summary.span, times.clone().min().zip(times.max()));
        assert_eq!(summary.over_time.iter().map(|b| b.requests).sum::<u64>(), summary.requests);
        assert_eq!(summary.over_time.iter().map(|b| b.refused).sum::<u64>(), summary.refused);
        (0..LIMITS.len()).for_each(|index| check_limit(&stream, &summary, index));
    }
}

#[test]
fn nothing_is_counted_of_no_request() {
    let summary = tallied(&[], 10);
    assert_eq!((summary.requests, summary.span, summary.over_time.len()), (0, None, 0));
    assert!(summary.limits.iter().all(|limit| limit.dominance.is_none() && limit.top.is_empty()));
}

#[test]
fn refusals_without_a_key_are_counted_apart() {
    let mut tally = Tally::new(names(&["a"]));
    let refused = [verdict(0, 1, KeyResult::Refused)];
    let shadow = [KeyVerdict { shadow: true, ..refused[0] }];
    for verdicts in [&[][..], &shadow, &refused] {
        tally.add(&JudgedRequest { refused: true, ..request(0, verdicts) });
    }
    let summary = tally.finish(10);
    assert_eq!((summary.refused, summary.refused_without_key), (3, 2));
    assert_eq!((summary.limits[0].refused, summary.limits[0].shadow_refused), (1, 1));
}

#[test]
fn unknown_limits_and_routes_are_left_out() {
    let verdicts = [verdict(9, 1, KeyResult::Refused)];
    let mut tally = Tally::new(names(&["a"]));
    let mut unknown = request(0, &verdicts);
    unknown.route = Some(7);
    tally.add(&unknown);
    let summary = tally.finish(10);
    assert_eq!((summary.requests, summary.refused, summary.limits[0].judged), (1, 1, 0));
}

#[test]
fn more_refused_keys_than_entries_keep_the_heaviest() {
    let mut tally = Tally::new(names(&["a"]));
    let mut add = |at: u64, key: u128| {
        tally.add(&request(at, &[verdict(0, key, KeyResult::Refused)]));
    };
    for round in 0..5_000 {
        add(round, 1_000_000 + u128::from(round));
        (0..12_u32)
            .filter(|key| round % (u64::from(*key) + 1) == 0)
            .for_each(|key| add(round, u128::from(key)));
    }
    let summary = tally.finish(10);
    let keys = summary.limits[0].top.iter().map(|key| key.key.to_string());
    assert_eq!(keys.collect::<Vec<_>>(), (0..10).map(|key| format!("k{key}")).collect::<Vec<_>>());
    assert_eq!(summary.limits[0].top[1].refused, 2_500);
    assert_eq!(summary.limits[0].keys.number, 5_012);
}
