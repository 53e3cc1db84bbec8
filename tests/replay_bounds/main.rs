//! The true number of refusals lies within the bounds, whatever the true instants were.
#![expect(clippy::unwrap_used, reason = "a test that cannot build its quotas shall fail")]

mod simulation;
mod tightness;

use simulation::{ALGORITHMS, Algorithm, Outcome, Stamps, TrueRequest, instants, quota, snapped};
use tollgate::clock::{Nanos, Now};
use tollgate::limit::{Cell, Quota};
use tollgate::replay::MemoryBounds;
use tollgate::replay::bounds::{
    Certainty, CostRange, RefusalBounds, StampBounds, StampPrecision, StampedRequest,
};

const CASES: u64 = 10_000;

/// The bounds from requests in the order of their earliest instants, shuffled a little if there is disorder.
fn bounds(
    quota: Quota,
    precision: StampPrecision,
    costs: CostRange,
    mut requests: Vec<StampedRequest>,
    random: &mut fastrand::Rng,
) -> RefusalBounds {
    let disorder = precision.disorder.get();
    requests.sort_by_cached_key(|request| {
        // Some come later than the precision says.
        let late = if random.u32(0..50) == 0 { 2 * disorder } else { disorder };
        (request.earliest.get() + random.u64(0..=late), request.key)
    });
    let mut bounds = StampBounds::new(quota, precision, costs, MemoryBounds::default());
    for request in requests {
        bounds.record(request);
    }
    bounds.finish()
}

fn precision(stamps: Stamps, random: &mut fastrand::Rng) -> StampPrecision {
    let unit = if stamps.unknown == 0 { stamps.unit } else { 1 };
    // Sometimes a few requests are more uncertain than the precision says.
    let uncertainty =
        if random.u32(0..6) == 0 { stamps.uncertainty() / 2 } else { stamps.uncertainty() };
    let disorder = [0, 0, 20_000_000, 2_000_000_000][random.usize(0..4)];
    StampPrecision {
        unit: Nanos::new(unit),
        uncertainty: Nanos::new(uncertainty),
        disorder: Nanos::new(disorder),
    }
}

fn costs(random: &mut fastrand::Rng) -> CostRange {
    match random.u32(0..4) {
        0 | 1 => CostRange::UNIT,
        2 => {
            let cost = random.u32(1..6);
            CostRange { min: cost, max: cost }
        }
        _ => {
            let min = random.u32(1..4);
            CostRange { min, max: min + random.u32(0..8) }
        }
    }
}

fn outcome(cost: u32, random: &mut fastrand::Rng) -> Outcome {
    match random.u32(0..5) {
        0 => Outcome::NotReached,
        1 => Outcome::RefusedElsewhere,
        2 => Outcome::Cheaper(random.u32(0..=cost)),
        3 => Outcome::RefundedAfter(random.u64(0..20_000_000_000)),
        _ => Outcome::Charged,
    }
}

/// One random case.
fn check(algorithm: Algorithm, seed: u64) -> (RefusalBounds, u64) {
    let random = &mut fastrand::Rng::with_seed(seed);
    let quota = quota(algorithm, random);
    let (stamps, costs) = (Stamps::any(random), costs(random));
    let possible_percent = [0, 0, 10, 50][random.usize(0..4)];
    // A few costs are outside of the range that was declared.
    let stray_costs = random.u32(0..8) == 0;
    let mut requests = Vec::new();
    for key in 0..random.u128(1..4) {
        let count = random.usize(1..120);
        let times = instants(&quota, count, random);
        for at in snapped(times, stamps.unit, random) {
            let mut cost = random.u32(costs.min..=costs.max);
            if stray_costs && random.u32(0..30) == 0 {
                cost = random.u32(0..=2 * costs.max);
            }
            let is_possible = random.u32(0..100) < possible_percent;
            let outcome = if is_possible { outcome(cost, random) } else { Outcome::Charged };
            let certainty = if is_possible { Certainty::Possible } else { Certainty::Certain };
            let request = TrueRequest { key, at, cost, outcome };
            requests.push((request, stamps.stamped(&request, certainty, random)));
        }
    }
    let (real, stamped): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
    let truth = simulation::truly_refused(quota, &real);
    let precision = precision(stamps, random);
    let bounds = bounds(quota, precision, costs, stamped, random);
    assert!(
        bounds.lower(0) <= truth && truth <= bounds.upper,
        "{algorithm:?} {seed}: {truth} not in {bounds:?}: {quota:?} {stamps:?} {precision:?} {costs:?}"
    );
    (bounds, truth)
}

#[test]
fn the_truth_lies_within_the_bounds() {
    for algorithm in ALGORITHMS {
        let (mut judged, mut lower, mut truth, mut upper) = (0, 0, 0, 0);
        for seed in 0..CASES {
            let (bounds, refused) = check(algorithm, seed);
            judged += bounds.judged;
            lower += bounds.lower(0);
            truth += refused;
            upper += bounds.upper;
        }
        println!("{algorithm:?}: {judged} judged, {lower} <= {truth} <= {upper}");
        // The bounds must say something: neither is trivial in random cases.
        assert!(lower * 4 > truth && upper < judged, "{algorithm:?} {lower} {truth} {upper}");
    }
}

#[test]
fn exact_stamps_of_equal_requests_give_the_exact_number() {
    for algorithm in ALGORITHMS {
        for seed in 0..300 {
            let random = &mut fastrand::Rng::with_seed(seed);
            let quota = quota(algorithm, random);
            let stamps = Stamps { unit: 1, unknown: 0 };
            let certain = |at| TrueRequest { key: 1, at, cost: 1, outcome: Outcome::Charged };
            let requests: Vec<_> = instants(&quota, 100, random).into_iter().map(certain).collect();
            let truth = simulation::truly_refused(quota, &requests);
            let stamped = requests
                .iter()
                .map(|request| stamps.stamped(request, Certainty::Certain, random))
                .collect();
            let precision = StampPrecision::rounded_down(Nanos::new(1));
            let found = bounds(quota, precision, CostRange::UNIT, stamped, random);
            assert_eq!((found.lower(0), found.upper), (truth, truth), "{algorithm:?} {seed}");
        }
    }
}

/// Several limits that are charged all or none. Requests are refused by the first limit that refuses them, and the others
/// may or may not be asked.
fn check_stack(seed: u64) -> (u64, u64) {
    let random = &mut fastrand::Rng::with_seed(seed);
    let algorithm = |random: &mut fastrand::Rng| ALGORITHMS[random.usize(0..ALGORITHMS.len())];
    let quotas: Vec<Quota> =
        (0..random.usize(2..4)).map(|_| quota(algorithm(random), random)).collect();
    let (stamps, asks_all) = (Stamps::any(random), random.bool());
    let count = random.usize(1..300);
    let times = instants(&quotas[0], count, random);
    let times = snapped(times, stamps.unit, random);
    let requests: Vec<(u64, Vec<u128>)> = times
        .into_iter()
        .map(|at| (at, quotas.iter().map(|_| random.u128(0..3)).collect()))
        .collect();

    let mut cells = std::collections::HashMap::<(usize, u128), Cell>::new();
    let mut refused = vec![0u64; quotas.len()];
    for (at, keys) in &requests {
        let now = Now { mono: Nanos::new(*at), wall: Nanos::new(*at) };
        let mut is_refused = false;
        for (limit, quota) in quotas.iter().enumerate() {
            let verdict = quota.judge(cells.get(&(limit, keys[limit])), 1, now);
            if !verdict.allowed && (asks_all || !is_refused) {
                refused[limit] += 1;
            }
            is_refused |= !verdict.allowed;
        }
        if is_refused {
            continue;
        }
        for (limit, quota) in quotas.iter().enumerate() {
            let cell = cells.entry((limit, keys[limit])).or_insert_with(|| quota.empty_cell());
            quota.charge(cell, 1, now);
        }
    }

    let precision = precision(stamps, random);
    let found: Vec<RefusalBounds> = quotas
        .iter()
        .enumerate()
        .map(|(limit, quota)| {
            let stamped = requests
                .iter()
                .map(|(at, keys)| {
                    let request = TrueRequest {
                        key: keys[limit],
                        at: *at,
                        cost: 1,
                        outcome: Outcome::Charged,
                    };
                    stamps.stamped(&request, Certainty::UnlessRefused, random)
                })
                .collect();
            bounds(*quota, precision, CostRange::UNIT, stamped, random)
        })
        .collect();
    let mut lower_sum = 0;
    for (limit, bounds) in found.iter().enumerate() {
        let others = found.iter().enumerate().filter(|(other, _)| *other != limit);
        let lower = bounds.lower(others.map(|(_, bounds)| bounds.upper).sum());
        let truth = refused[limit];
        lower_sum += lower;
        assert!(
            lower <= truth && truth <= bounds.upper,
            "{seed} limit {limit}: {truth} not in {lower}, {bounds:?}: {quotas:?} {stamps:?} {precision:?}"
        );
    }
    (lower_sum, refused.iter().sum())
}

#[test]
fn the_truth_lies_within_the_bounds_of_every_limit_of_a_stack() {
    let (mut lower, mut truth) = (0, 0);
    for seed in 0..3 * CASES {
        let (found, refused) = check_stack(seed);
        lower += found;
        truth += refused;
    }
    println!("stacks: {lower} <= {truth}");
    assert!(lower > truth / 50, "the lower bounds of stacks say nothing: {lower} of {truth}");
}

#[test]
fn keys_without_room_and_unbounded_limits_are_counted() {
    let random = &mut fastrand::Rng::with_seed(1);
    for algorithm in ALGORITHMS {
        let quota = quota(algorithm, random);
        let precision = StampPrecision::rounded_down(Nanos::new(1));
        let request = |key| {
            let (earliest, latest) = (Nanos::from_secs(99), Nanos::from_secs(99));
            StampedRequest { earliest, latest, key, cost: 1, certainty: Certainty::Certain }
        };
        let memory = MemoryBounds { max_keys: 10, ..MemoryBounds::default() };
        let mut few = StampBounds::new(quota, precision, CostRange::UNIT, memory);
        let mut unbounded = StampBounds::unbounded();
        for key in 0..30 {
            few.record(request(key));
            unbounded.record(request(key));
        }
        let few = few.finish();
        assert_eq!((few.judged, few.lower(0), few.upper), (30, 0, 20), "{algorithm:?}");
        let unbounded = unbounded.finish();
        assert_eq!((unbounded.lower(0), unbounded.upper), (0, 30));
    }
}
