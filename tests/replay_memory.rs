//! The memory of the counts of a replay, however many keys a log has.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

use std::alloc::System;
use std::borrow::Cow;
use std::sync::Arc;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tollgate::clock::Nanos;
use tollgate::replay::compare::Comparison;
use tollgate::replay::judged::{AppliedRate, JudgedRequest, KeyResult, KeyVerdict, ShowKey};
use tollgate::replay::names::{LimitLabel, Names};
use tollgate::replay::tally::{MAX_KEYS_PER_LIMIT, Tally};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LIMITS: usize = 6;
const KEYS: u64 = 1_000_000;
const COMPARED: u64 = 500_000;

struct Long;

impl ShowKey for Long {
    fn show(&self, verdict: &KeyVerdict) -> Cow<'_, str> {
        format!("{:0300}", verdict.key).into()
    }
}

fn names(limits: usize) -> Arc<Names> {
    let label = |index: usize| LimitLabel {
        name: Arc::from(format!("limit {index}")),
        key: "client_ip".to_owned(),
        rate: "100/1m".to_owned(),
        window: Nanos::from_secs(60),
        algorithm: "token_bucket",
        tier: "exact",
        max_delay: None,
        is_shadow: false,
        rollout: None,
    };
    Arc::new(Names { routes: vec![Arc::from("api")], limits: (0..limits).map(label).collect() })
}

fn verdict(limit: usize, key: u64, result: KeyResult) -> KeyVerdict {
    let key = u128::from(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 32 | limit as u128;
    KeyVerdict { limit, key, cost: 1, rate: AppliedRate::Own, result, shadow: false }
}

fn request(number: u64, verdicts: &[KeyVerdict]) -> JudgedRequest<'_> {
    JudgedRequest {
        number,
        at: Nanos::from_millis(number),
        uncertainty: Nanos::ZERO,
        route: Some(0),
        refused: verdicts.iter().any(|verdict| verdict.result.refuses()),
        status: Some(200),
        method: "GET",
        host: "example.com",
        path: "/a/path",
        verdicts,
        shown: &Long,
    }
}

/// The allocations of one thread must not be counted as those of another, so all of it is one test.
#[test]
fn memory_is_bounded_and_admitted_requests_take_none() {
    let region = Region::new(ALLOCATOR);
    let mut tally = Tally::new(names(LIMITS));
    let mut largest = 0;
    for number in 0..KEYS {
        let result = if number % 3 == 0 { KeyResult::Refused } else { KeyResult::Admitted };
        let verdicts: [KeyVerdict; LIMITS] =
            std::array::from_fn(|limit| verdict(limit, number, result));
        tally.add(&request(number, &verdicts));
        if number % 10_000 == 0 {
            let held = region.change();
            largest = largest.max(held.bytes_allocated - held.bytes_deallocated);
        }
    }
    // 1,000,000 entries of 64 bytes in tables that are half full, and 6 x 1,024 entries with long texts.
    assert!(largest < 180 << 20, "{largest}");
    admitted_requests_allocate_nothing(&mut tally);
    let summary = tally.finish(10);
    let limit = &summary.limits[0];
    assert!(limit.keys.is_estimate && limit.keys.number.abs_diff(KEYS) < KEYS / 25);
    let refused = limit.keys_refused.number;
    assert!(refused.abs_diff(KEYS / 3) < KEYS / 75, "{refused}");
    assert!(limit.keys.number > MAX_KEYS_PER_LIMIT as u64);
    comparisons_are_bounded();
    many_limits_share_the_memory();
}

fn admitted_requests_allocate_nothing(tally: &mut Tally) {
    let region = Region::new(ALLOCATOR);
    for number in 0..10_000 {
        // Keys that have an entry, and keys that are estimated.
        let key = if number % 2 == 0 { number } else { KEYS - number };
        let verdicts = [verdict(0, key, KeyResult::Admitted), verdict(1, key, KeyResult::Admitted)];
        tally.add(&request(KEYS + number / 1_000, &verdicts));
    }
    assert_eq!(region.change().allocations, 0);
}

fn comparisons_are_bounded() {
    let region = Region::new(ALLOCATOR);
    let mut comparison = Comparison::new(&names(LIMITS), &names(LIMITS));
    for number in 0..COMPARED {
        let verdicts: [KeyVerdict; LIMITS] =
            std::array::from_fn(|limit| verdict(limit, number, KeyResult::Refused));
        comparison.add_pair(&request(number, &[]), &request(number, &verdicts));
    }
    let held = region.change();
    let held = held.bytes_allocated - held.bytes_deallocated;
    assert!(held < 40 << 20, "{held}");
    let found = comparison.finish().newly_refused;
    assert!(found.keys.number.abs_diff(COMPARED) < COMPARED / 25);
    assert_eq!(found.examples.first().unwrap().limit.as_deref(), Some("limit 0"));
}

fn many_limits_share_the_memory() {
    const MANY: usize = 512;
    let region = Region::new(ALLOCATOR);
    let mut tally = Tally::new(names(MANY));
    for number in 0..2_500 {
        let verdicts: Vec<KeyVerdict> =
            (0..MANY).map(|limit| verdict(limit, number, KeyResult::Refused)).collect();
        tally.add(&request(number, &verdicts));
    }
    let held = region.change();
    let held = held.bytes_allocated - held.bytes_deallocated;
    // The same tables, 512 x 128 entries with long texts, and 512 x 3 estimates of 16 KiB.
    assert!(held < 240 << 20, "{held}");
    assert_eq!(tally.finish(10).limits[MANY - 1].refused, 2_500);
}
