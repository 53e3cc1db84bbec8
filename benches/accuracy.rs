//! How far `sliding_window` is from a true log: ten million requests for each row, fixed seeds.
//! `make accuracy`.
//!
//! Beside each decision stands what a log of the same admissions would have said. Over: admitted,
//! though as many as the limit were admitted within the last window. Under: refused, though fewer
//! were. Both in parts of all requests. Integers decide, as in the proxy; the arrivals alone are
//! drawn at random.

use std::collections::VecDeque;

use tollgate::clock::Nanos;
use tollgate::limit::{Rate, SlidingWindow, WindowPair};

const REQUESTS: usize = 10_000_000;

/// Units a minute.
const LIMIT: u32 = 100;

/// One key: its cell, and the times of what was admitted within the last window.
#[derive(Default)]
struct Key {
    cell: WindowPair,
    admitted: VecDeque<Nanos>,
}

#[derive(Default)]
struct Errors {
    over: usize,
    under: usize,
    refused: usize,
    /// The most that any window held.
    most: usize,
}

impl Errors {
    fn request(&mut self, quota: SlidingWindow, key: &mut Key, now: Nanos) {
        let period = quota.rate().period();
        while key.admitted.front().is_some_and(|at| at.saturating_add(period) <= now) {
            key.admitted.pop_front();
        }
        let fits = key.admitted.len() < quota.rate().count() as usize;
        let allowed = quota.judge(key.cell, 1, now).allowed;
        if allowed {
            quota.charge(&mut key.cell, 1, now);
            key.admitted.push_back(now);
            self.most = self.most.max(key.admitted.len());
        }
        self.refused += usize::from(!allowed);
        self.over += usize::from(allowed && !fits);
        self.under += usize::from(!allowed && fits);
    }

    fn row(&self, what: &str) {
        let share = |count: usize| count as f64 * 100.0 / REQUESTS as f64;
        println!(
            "| {what} | {:.4} % | {:.4} % | {:.2} % | {} |",
            share(self.over),
            share(self.under),
            share(self.refused),
            self.most
        );
    }
}

/// A time to the next of events that come `every` so often on average, at random.
fn after(random: &mut fastrand::Rng, every: f64) -> f64 {
    // In (0, 1], so that the logarithm is finite.
    -(1.0 - random.f64()).ln() * every
}

/// Requests of one key that come at random, evenly in time.
fn poisson(demand: f64, quota: SlidingWindow) -> Errors {
    let mut random = fastrand::Rng::with_seed(1);
    let every = 60e9 / (f64::from(LIMIT) * demand);
    let (mut key, mut errors, mut now) = (Key::default(), Errors::default(), 0.0);
    for _ in 0..REQUESTS {
        now += after(&mut random, every);
        errors.request(quota, &mut key, Nanos::new(now as u64));
    }
    errors
}

/// The same demand in bursts: on for six seconds on average, off for four times as long.
fn on_off(demand: f64, quota: SlidingWindow) -> Errors {
    let mut random = fastrand::Rng::with_seed(2);
    let every = 60e9 / (f64::from(LIMIT) * demand * 5.0);
    let (mut key, mut errors, mut now) = (Key::default(), Errors::default(), 0.0);
    let mut until = after(&mut random, 6e9);
    for _ in 0..REQUESTS {
        now += after(&mut random, every);
        while now > until {
            let off = after(&mut random, 24e9);
            now += off;
            until = until + off + after(&mut random, 6e9);
        }
        errors.request(quota, &mut key, Nanos::new(now as u64));
    }
    errors
}

/// The requests of a site within `minutes`: so many keys whose shares fall as 1 / rank.
fn site(keys: usize, minutes: f64, quota: SlidingWindow) -> Errors {
    let mut random = fastrand::Rng::with_seed(3);
    let mut sums: Vec<f64> = Vec::with_capacity(keys);
    for rank in 1..=keys {
        sums.push(sums.last().copied().unwrap_or_default() + 1.0 / rank as f64);
    }
    let all = sums.last().copied().unwrap_or_default();
    let every = minutes * 60e9 / REQUESTS as f64;
    let mut states: Vec<Key> = (0..keys).map(|_| Key::default()).collect();
    let (mut errors, mut now) = (Errors::default(), 0.0);
    for _ in 0..REQUESTS {
        now += after(&mut random, every);
        let drawn = random.f64() * all;
        let key = sums.partition_point(|sum| *sum < drawn).min(keys - 1);
        errors.request(quota, &mut states[key], Nanos::new(now as u64));
    }
    errors
}

fn main() {
    let Ok(rate) = Rate::new(LIMIT, Nanos::from_secs(60)) else {
        return;
    };
    let quota = SlidingWindow::new(rate);
    println!(
        "| 10,000,000 requests, limit {LIMIT}/1m | over | under | refused | most in any window |"
    );
    println!("|---|---|---|---|---|");
    for demand in [0.5, 0.9, 1.0, 1.1, 2.0] {
        poisson(demand, quota).row(&format!("at random, {demand} x the limit"));
    }
    for demand in [0.5, 0.9, 1.0, 1.1, 2.0] {
        on_off(demand, quota).row(&format!("on and off, {demand} x the limit"));
    }
    for minutes in [60.0, 600.0] {
        let what = format!("a site: 270,000 keys, shares as 1/rank, within {minutes:.0} minutes");
        site(270_000, minutes, quota).row(&what);
    }
}
