//! The confirm table under many heavy keys: keys that an attacker aims at one set, a table that is
//! half full, and a table with more heavy keys than cells.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::collections::HashMap;

use tollgate::clock::{Nanos, Now};
use tollgate::estimator::{CONFIRM_CELLS, ConfirmTable, EstimateLimit};
use tollgate::limit::Rate;
use tollgate::policy::KeyHash;

/// Makes the n-th key of an attack.
type Craft = fn(u64) -> KeyHash;

const MINUTE: Nanos = Nanos::from_secs(60);

/// The limit of every test in this file: 100 per minute.
const LIMIT: u64 = 100;

/// A time in a window of a minute, windows counted from 0.
fn at(window: u64, millis: u64) -> Now {
    let wall = Nanos::from_secs(1_800_057_600 + 60 * window);
    let wall = wall.saturating_add(Nanos::from_millis(millis));
    Now { mono: wall, wall }
}

fn limit(expect: u32) -> EstimateLimit {
    let count = u32::try_from(LIMIT).unwrap();
    EstimateLimit::new(Rate::new(count, MINUTE).unwrap(), expect, at(0, 0))
}

/// A finalizer of a good hash (splitmix64): its outputs are as spread as those of a real hash.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn random_key(number: u64) -> KeyHash {
    KeyHash { high: mix(number), low: mix(number ^ 0x5555_5555_5555_5555) }
}

/// The order in which keys send: each `times`, shuffled by a generator with a fixed seed.
fn shuffled(keys: usize, times: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..times).flat_map(|_| 0..u32::try_from(keys).unwrap()).collect();
    let mut random = fastrand::Rng::with_seed(16);
    random.shuffle(&mut order);
    order
}

/// What was admitted for each key in one window.
struct Outcome {
    admitted: Vec<u64>,
    /// The gauge's value at the end.
    error: u64,
    live: usize,
    /// Keys that were denied before they had sent their limit.
    wrongly_denied: u64,
}

impl Outcome {
    /// Keys that exceeded the limit by more than a tenth.
    fn exceeding(&self) -> usize {
        self.admitted.iter().filter(|sum| **sum > LIMIT + LIMIT / 10).count()
    }

    fn largest(&self) -> u64 {
        self.admitted.iter().copied().max().unwrap_or(0)
    }
}

/// Sends one request of a key for each entry of `order`, all in one window.
fn send(
    limit: &EstimateLimit,
    table: &ConfirmTable,
    keys: &[KeyHash],
    order: impl IntoIterator<Item = u32>,
) -> Outcome {
    let mut admitted = vec![0; keys.len()];
    let mut wrongly_denied = 0;
    for (sent, index) in order.into_iter().enumerate() {
        // A sweep per 50,000 requests, as if once per second.
        if sent % 50_000 == 0 {
            table.sweep(at(0, 0));
        }
        let index = index as usize;
        if limit.charge(table, keys[index], 1, at(0, 0)).0.allowed {
            admitted[index] += 1;
        } else {
            wrongly_denied += u64::from(admitted[index] < LIMIT);
        }
    }
    let error = limit.confirm_error(table);
    Outcome { admitted, error, live: table.live_cells(), wrongly_denied }
}

#[test]
fn nine_heavy_keys_of_one_set_are_all_limited() {
    // The keys agree in every bit that chose a set before the process had a secret.
    let keys: Vec<_> = (0..9).map(|n| KeyHash { high: 3, low: mix(n) }).collect();
    let (limit, table) = (limit(10_000), ConfirmTable::default());
    let outcome = send(&limit, &table, &keys, (0..5_000).flat_map(|_| 0..9));
    println!("admitted {:?} of 5,000, error {}", outcome.admitted, outcome.error);
    assert_eq!(outcome.wrongly_denied, 0);
    assert!(outcome.admitted.iter().all(|sum| *sum == LIMIT), "the table is nearly empty");
    assert_eq!(outcome.error, 0);
}

#[test]
fn half_a_table_of_heavy_keys_is_held_to_the_limit() {
    let keys: Vec<_> = (0..32_768).map(random_key).collect();
    let (limit, table) = (limit(200_000), ConfirmTable::default());
    let outcome = send(&limit, &table, &keys, shuffled(keys.len(), 300));
    let share = outcome.exceeding() as f64 / keys.len() as f64;
    println!(
        "{} heavy keys in {CONFIRM_CELLS} cells: {:.3} % exceed by more than a tenth, largest {} \
         of {LIMIT}, error {}, {} live",
        keys.len(),
        100.0 * share,
        outcome.largest(),
        outcome.error,
        outcome.live,
    );
    assert_eq!(outcome.wrongly_denied, 0);
    assert!(share <= 0.001, "{share}");
    assert!(outcome.largest() <= LIMIT + outcome.error);
}

#[test]
fn an_attacker_who_knows_the_hash_gains_nothing() {
    // Bits that agree in all keys of a crafted group: those that once chose a set and a tag, and full halves of the hash.
    let crafted: [(&str, Craft); 4] = [
        ("equal high halves", |n| KeyHash { high: 3, low: mix(n) }),
        ("equal low halves", |n| KeyHash { high: mix(n), low: 3 }),
        ("equal set and tag bits", |n| KeyHash { high: mix(n) << 20, low: mix(!n) & 0xffff_ffff }),
        ("neighbours in both halves", |n| KeyHash { high: n, low: n }),
    ];
    for (name, craft) in crafted {
        let keys: Vec<_> = (0..8_192).map(craft).collect();
        let (limit, table) = (limit(50_000), ConfirmTable::new(16_384));
        let outcome = send(&limit, &table, &keys, shuffled(keys.len(), 130));
        println!(
            "{name}: largest {} of {LIMIT}, error {}, {} live",
            outcome.largest(),
            outcome.error,
            outcome.live
        );
        // The same as for random keys in a half-full table: each has a cell of its own.
        assert_eq!(outcome.live, keys.len(), "{name}");
        assert!(outcome.admitted.iter().all(|sum| *sum == LIMIT), "{name}");
    }
}

#[test]
fn more_heavy_keys_than_cells_deny_no_other_key_and_the_gauge_is_true() {
    const HEAVY: usize = 100_000;
    const INNOCENT: usize = 2_000;
    let keys: Vec<_> = (0..(HEAVY + INNOCENT) as u64).map(random_key).collect();
    let (limit, table) = (limit(300_000), ConfirmTable::default());
    // Heavy keys send a fifth more than the limit; an innocent key sends a fifth less.
    let mut left = vec![0; HEAVY];
    left.resize(HEAVY + INNOCENT, 40u32);
    let order = shuffled(keys.len(), 120).into_iter().filter(|index| {
        let skipped = &mut left[*index as usize];
        let skips = *skipped > 0;
        *skipped = skipped.saturating_sub(1);
        !skips
    });
    let outcome = send(&limit, &table, &keys, order);
    let innocents_admitted: u64 = outcome.admitted[HEAVY..].iter().sum();
    println!(
        "{HEAVY} heavy keys in {CONFIRM_CELLS} cells: {:.2} % exceed by more than a tenth, largest \
         {} of {LIMIT}, error {}, {} live, noise {}",
        100.0 * outcome.exceeding() as f64 / HEAVY as f64,
        outcome.largest(),
        outcome.error,
        outcome.live,
        limit.noise(),
    );
    assert_eq!(outcome.wrongly_denied, 0);
    assert_eq!(innocents_admitted, 80 * INNOCENT as u64, "no innocent is denied");
    assert!(outcome.largest() <= LIMIT + outcome.error);
    // About as many as have no cell: keys do not displace one another alternately.
    let without_cell = HEAVY - CONFIRM_CELLS;
    assert!(outcome.exceeding() <= without_cell + HEAVY / 20, "{}", outcome.exceeding());
}

/// One limit of the oracle: what was admitted per key and window, in a list.
struct Counted {
    limit: EstimateLimit,
    period_millis: u64,
    sums: HashMap<(u64, u64), u64>,
}

impl Counted {
    const UNITS: u32 = 5;

    fn new(period: Nanos) -> Self {
        let limit = EstimateLimit::new(Rate::new(Self::UNITS, period).unwrap(), 1, at(0, 0));
        Self { limit, period_millis: period.get() / 1_000_000, sums: HashMap::new() }
    }

    fn send(&mut self, table: &ConfirmTable, number: u64, millis: u64) -> Result<(), String> {
        let (window, elapsed) = (millis / self.period_millis, millis % self.period_millis);
        let of = |window: u64| self.sums.get(&(number, window)).copied().unwrap_or(0);
        let previous = window.checked_sub(1).map_or(0, of);
        let share = (previous * (self.period_millis - elapsed)).div_ceil(self.period_millis);
        let fits = of(window) + share < u64::from(Self::UNITS);
        let now = at(0, millis);
        let before = self.limit.confirm_error(table);
        if !self.limit.charge(table, random_key(number), 1, now).0.allowed {
            return if fits {
                Err(format!("key {number} was denied within its limit"))
            } else {
                Ok(())
            };
        }
        let sum = self.sums.entry((number, window)).or_default();
        *sum += 1;
        let error = before.max(self.limit.confirm_error(table));
        if *sum > u64::from(Self::UNITS) + error {
            return Err(format!("key {number}: {sum} with an error of {error}"));
        }
        Ok(())
    }
}

#[test]
fn limits_of_unequal_windows_share_sets_and_the_gauge_stays_true() {
    let mut displaced = 0;
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let table = ConfirmTable::new(16);
        let periods = [MINUTE, Nanos::from_secs(10), Nanos::from_secs(3)];
        let mut limits = periods.map(Counted::new);
        let (keys, longest_pause) = (random.u64(10..80), random.u64(1..400));
        let mut millis = 0;
        for _ in 0..1_500 {
            millis += random.u64(0..=longest_pause);
            limits.iter().for_each(|counted| counted.limit.rotate(&table, at(0, millis)));
            table.sweep(at(0, millis));
            let number = random.u64(0..keys);
            let counted = &mut limits[(number % 3) as usize];
            counted.send(&table, number, millis).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
        displaced += limits.iter().filter(|one| one.limit.confirm_error(&table) > 4).count();
    }
    println!("{displaced} of 1,200 limits end with keys that had no cell");
    assert!(displaced > 20, "keys went without a cell in some runs: {displaced}");
}

#[test]
fn threads_that_move_and_displace_cells_deny_no_key_within_its_limit() {
    // Few cells and many keys: each charge searches two sets, moves cells and displaces them.
    let (limit, table) = (limit(10_000), ConfirmTable::new(128));
    let worst = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let (limit, table) = (&limit, &table);
                scope.spawn(move || {
                    let keys: Vec<_> = (0..40).map(|n| random_key(thread * 40 + n)).collect();
                    send(limit, table, &keys, shuffled(keys.len(), 2_000))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(0, |worst, outcome| {
            assert_eq!(outcome.wrongly_denied, 0);
            worst.max(outcome.largest())
        })
    });
    let error = limit.confirm_error(&table);
    println!("largest {worst} of {LIMIT}, error {error}, {} live", table.live_cells());
    assert!(worst <= LIMIT + error);
    assert!(table.live_cells() <= 128, "each cell is counted once");
    // Two windows later no cell is in use.
    table.sweep(at(2, 0));
    assert_eq!(table.live_cells(), 0);
}
