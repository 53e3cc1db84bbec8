//! The estimate tier: a collision denies no key, a flood frees no heavy key, and memory does not grow.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tollgate::clock::{Nanos, Now};
use tollgate::estimator::{ConfirmTable, EstimateLimit};
use tollgate::limit::Rate;
use tollgate::policy::KeyHash;

const MINUTE: Nanos = Nanos::from_secs(60);

/// A time in a window of a minute, windows counted from 0.
fn at(window: u64, millis: u64) -> Now {
    let wall = Nanos::from_secs(1_800_057_600 + 60 * window);
    let wall = wall.saturating_add(Nanos::from_millis(millis));
    Now { mono: wall, wall }
}

/// Keys of a group are spread as real hashes are.
fn key(group: u64, number: u64) -> KeyHash {
    let mix = |seed: u64| {
        let mut z = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    KeyHash { high: mix(group), low: mix(group ^ 0x5555_5555_5555_5555) }
}

fn hundred_a_minute(expect: u32) -> EstimateLimit {
    EstimateLimit::new(Rate::new(100, MINUTE).unwrap(), expect, at(0, 0))
}

fn allowed(limit: &EstimateLimit, table: &ConfirmTable, key: KeyHash, now: Now) -> bool {
    limit.charge(table, key, 1, now).0.allowed
}

/// The housekeeping between windows, with a sweep of the full table.
fn housekeeping(limit: &EstimateLimit, table: &ConfirmTable, now: Now) {
    limit.rotate(table, now);
    (0..8).for_each(|_| table.sweep(now));
}

#[test]
fn a_million_keys_of_three_requests_and_one_that_sends_far_too_much() {
    let (limit, table) = (hundred_a_minute(50_000), ConfirmTable::default());
    let memory = limit.bytes() + table.bytes();
    println!("memory: {} KiB sketch, {} KiB table", limit.bytes() / 1024, table.bytes() / 1024);
    assert!(memory <= 32 << 20, "{memory} bytes");
    let heavy = key(9, 9);
    for window in 0..4 {
        let mut denied = 0;
        let (mut admitted, mut worst_error) = (0u64, 0);
        for number in 0..3_000_000u64 {
            let now = at(window, number / 50);
            // A sweep every second of simulated time.
            if number % 50_000 == 0 {
                table.sweep(now);
                worst_error = worst_error.max(limit.confirm_error(&table));
            }
            denied += u64::from(!allowed(&limit, &table, key(window, number % 1_000_000), now));
            if number % 300 == 0 {
                admitted += u64::from(allowed(&limit, &table, heavy, now));
            }
        }
        worst_error = worst_error.max(limit.confirm_error(&table));
        println!(
            "window {window}: {denied} denied, heavy {admitted} of 100, error at most {worst_error}, noise {}",
            limit.noise()
        );
        assert_eq!(denied, 0, "nobody within the limit is denied");
        assert!(admitted <= 100 + worst_error);
        if window > 0 {
            assert!(admitted <= 105, "counted exactly once it is in the table: {admitted}");
        }
        housekeeping(&limit, &table, at(window + 1, 0));
    }
}

/// Ten million keys send one request each, while a heavy key is over its limit and a thousand honest keys send 90 of
/// their 100.
fn flood(expect: u32) -> (u64, u64, u64) {
    let (limit, table) = (hundred_a_minute(expect), ConfirmTable::default());
    let heavy = key(7, 7);
    let (mut honest_denied, mut heavy_admitted, mut worst_error) = (0, 0u64, 0);
    for number in 0..10_000_000u64 {
        let now = at(0, number / 200);
        let flooding = allowed(&limit, &table, key(1, number), now);
        assert!(flooding, "a first request is never denied");
        if number % 111 == 0 {
            let honest = (number / 111) % 1_000;
            if number / 111 < 90_000 {
                honest_denied += u64::from(!allowed(&limit, &table, key(2, honest), now));
            }
            heavy_admitted += u64::from(allowed(&limit, &table, heavy, now));
        }
        if number % 100_000 == 0 {
            table.sweep(now);
            worst_error = worst_error.max(limit.confirm_error(&table));
        }
    }
    worst_error = worst_error.max(limit.confirm_error(&table));
    (honest_denied, heavy_admitted, worst_error)
}

#[test]
fn a_flood_of_keys_denies_no_honest_key_and_frees_no_heavy_one() {
    let (honest_denied, heavy, error) = flood(100_000);
    println!("sized: {honest_denied} denied, heavy {heavy} of 100, error {error}");
    assert_eq!(honest_denied, 0);
    assert!(heavy <= 100, "it was in the table before the flood and stays: {heavy}");
    // A sketch for one request per second gets 170,000: every key is a suspect.
    let (honest_denied, heavy, error) = flood(1);
    println!("undersized: {honest_denied} denied, heavy {heavy} of 100, error {error}");
    assert_eq!(honest_denied, 0);
    assert!(heavy <= 100 + error, "{heavy} with an error of {error}");
}

#[test]
fn rotations_under_eight_threads_lose_no_charge() {
    // A rotation is published after it is made. So while the published number does not change, at most one rotation is
    // made, and what was charged in between must be read back. (A unit test of the sketch covers charges to slots that
    // were rotated out twice.)
    const WINDOW: Nanos = Nanos::from_millis(1);
    let rate = Rate::new(1_000_000, WINDOW).unwrap();
    let limit = EstimateLimit::new(rate, 1, Now { mono: WINDOW, wall: WINDOW });
    let table = ConfirmTable::new(64);
    let rotations = AtomicU64::new(1);
    let (lost, checked) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (limit, table, rotations, lost, checked) =
                (&limit, &table, &rotations, &lost, &checked);
            scope.spawn(move || {
                let mine = key(thread, 1);
                while rotations.load(Ordering::SeqCst) < 10_000 {
                    let before = rotations.load(Ordering::SeqCst);
                    let wall = WINDOW.saturating_mul(before);
                    limit.charge(table, mine, 1, Now { mono: wall, wall });
                    let read = limit.sum(mine);
                    if rotations.load(Ordering::SeqCst) == before {
                        checked.fetch_add(1, Ordering::SeqCst);
                        lost.fetch_add(u64::from(read == 0), Ordering::SeqCst);
                    }
                    if thread < 4 {
                        let wall = WINDOW.saturating_mul(before + 1);
                        limit.rotate(table, Now { mono: wall, wall });
                        rotations.fetch_max(before + 1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!(checked.load(Ordering::SeqCst) > 1_000, "the race was observed");
    assert_eq!(lost.load(Ordering::SeqCst), 0);
}

#[test]
fn a_refunded_charge_leaves_no_trace() {
    let (limit, table) = (hundred_a_minute(1_000), ConfirmTable::default());
    let (one, now) = (key(1, 1), at(0, 1_000));
    for _ in 0..40 {
        assert!(allowed(&limit, &table, one, now));
    }
    let (before, sum) = (limit.judge(&table, one, now), limit.sum(one));
    for _ in 0..1_000 {
        let (verdict, receipt) = limit.charge(&table, one, 7, now);
        assert!(verdict.allowed && verdict.remaining == 53);
        limit.refund(&table, receipt);
        assert_eq!((limit.judge(&table, one, now), limit.sum(one)), (before, sum));
    }
    // Also after a rotation: the charge is taken out of the window in which it was made.
    let (_, receipt) = limit.charge(&table, one, 50, now);
    let next = at(1, 0);
    limit.rotate(&table, next);
    limit.refund(&table, receipt);
    assert_eq!(limit.judge(&table, one, next).remaining, 60);
    assert_eq!(limit.sum(one), sum);
    // A refused charge leaves no trace either.
    let (verdict, _) = limit.charge(&table, one, 61, next);
    assert!(!verdict.allowed);
    assert_eq!((limit.judge(&table, one, next).remaining, limit.sum(one)), (60, sum));
}

#[test]
fn a_reload_keeps_what_was_counted() {
    let (limit, table) = (hundred_a_minute(1_000), ConfirmTable::default());
    let (one, now) = (key(1, 1), at(0, 1_000));
    (0..100).for_each(|_| assert!(allowed(&limit, &table, one, now)));
    assert!(!allowed(&limit, &table, one, now));
    let raised = EstimateLimit::after_reload(&limit, Rate::new(120, MINUTE).unwrap(), 1_000, now);
    assert_eq!((0..50).filter(|_| allowed(&raised, &table, one, now)).count(), 20);
    let lowered = EstimateLimit::after_reload(&raised, Rate::new(10, MINUTE).unwrap(), 1_000, now);
    assert!(!allowed(&lowered, &table, one, now));
    let other = Rate::new(200, Nanos::from_secs(30)).unwrap();
    let other = EstimateLimit::after_reload(&raised, other, 1_000, now);
    assert!(!other.shares_sketch_with(&raised));
    assert_eq!((0..100).filter(|_| allowed(&other, &table, one, now)).count(), 80);
}

/// The oracle: what was admitted per key and window.
#[derive(Default)]
struct Counted(HashMap<(u64, u64), u64>);

impl Counted {
    /// The formula of the sliding window, computed from the list.
    fn fits(&self, key: u64, window: u64, millis: u64, limit: u64) -> bool {
        let of = |window: u64| self.0.get(&(key, window)).copied().unwrap_or(0);
        let previous = window.checked_sub(1).map_or(0, of);
        let share = (previous * (60_000 - millis)).div_ceil(60_000);
        of(window) + share < limit
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// In a table that is far too small, with rotations and gaps: a key within its limit is never denied, and any other
    /// key exceeds the limit by at most the error that the gauge shows.
    #[test]
    fn no_key_is_denied_for_what_others_sent(
        steps in proptest::collection::vec((0u64..40, 0u64..400), 200..1_500),
        keys in 1u64..60,
        alike: bool,
    ) {
        let limit = EstimateLimit::new(Rate::new(5, MINUTE).unwrap(), 1, at(0, 0));
        let table = ConfirmTable::new(16);
        let mut counted = Counted::default();
        let mut time = 0u64;
        for (chosen, pause) in steps {
            time += pause;
            let (window, millis) = (time / 60_000, time % 60_000);
            let now = at(window, millis);
            limit.rotate(&table, now);
            table.sweep(now);
            let chosen = chosen % keys;
            let fits = counted.fits(chosen, window, millis, 5);
            let error = limit.confirm_error(&table);
            // Similar keys: one half of the hash is equal, the other nearly.
            let key = if alike { KeyHash { high: 3, low: chosen } } else { key(3, chosen) };
            let admitted = allowed(&limit, &table, key, now);
            prop_assert!(admitted || !fits, "key {chosen} was denied within its limit");
            if admitted {
                let sum = counted.0.entry((chosen, window)).or_default();
                *sum += 1;
                let error = error.max(limit.confirm_error(&table));
                prop_assert!(*sum <= 5 + error, "{sum} with an error of {error}");
            }
        }
    }
}
