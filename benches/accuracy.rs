//! How far `sliding_window` is from a true log: ten million requests for each row, fixed seeds.
//! `make accuracy`.
//!
//! Both see the same arrivals, each with a state of its own. Over: what the window admits of a key in
//! a minute above what the log admits; under: what it admits below. Both are summed over keys and
//! minutes and shown in parts of all requests. Then the most that any minute, wherever it begins,
//! held of what the window admitted. Integers decide, as in the proxy; only the arrivals are drawn
//! at random.

use std::collections::VecDeque;

use tollgate::clock::Nanos;
use tollgate::limit::{Rate, SlidingWindow, WindowPair};

const REQUESTS: usize = 10_000_000;

/// Units a minute.
const LIMIT: u32 = 100;

/// One key: its cell, and the log beside it.
#[derive(Default)]
struct Key {
    cell: WindowPair,
    log: VecDeque<Nanos>,
    /// What the window admitted within the last minute.
    admitted: VecDeque<Nanos>,
    /// The present clock minute, and what both admitted in it.
    minute: u64,
    by_window: u64,
    by_log: u64,
}

#[derive(Default)]
struct Errors {
    over: u64,
    under: u64,
    refused: u64,
    /// The most that any minute held.
    most: usize,
}

fn forget(log: &mut VecDeque<Nanos>, period: Nanos, now: Nanos) {
    while log.front().is_some_and(|at| at.saturating_add(period) <= now) {
        log.pop_front();
    }
}

impl Errors {
    fn request(&mut self, quota: SlidingWindow, key: &mut Key, now: Nanos) {
        let period = quota.rate().period();
        let minute = now.get() / period.get();
        if minute != key.minute {
            self.settle(key);
            key.minute = minute;
        }
        forget(&mut key.log, period, now);
        forget(&mut key.admitted, period, now);
        if key.log.len() < quota.rate().count() as usize {
            key.log.push_back(now);
            key.by_log += 1;
        }
        if quota.judge(key.cell, 1, now).allowed {
            quota.charge(&mut key.cell, 1, now);
            key.admitted.push_back(now);
            key.by_window += 1;
            self.most = self.most.max(key.admitted.len());
        } else {
            self.refused += 1;
        }
    }

    /// A minute of a key is over.
    fn settle(&mut self, key: &mut Key) {
        self.over += key.by_window.saturating_sub(key.by_log);
        self.under += key.by_log.saturating_sub(key.by_window);
        (key.by_window, key.by_log) = (0, 0);
    }

    fn row(&self, what: &str) {
        let share = |count: u64| count as f64 * 100.0 / REQUESTS as f64;
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

/// The requests of a site: 270,000 keys whose shares fall as 1 / (rank + `shift`), and so many that
/// send a hundredth of all requests in equal parts.
struct Site {
    minutes: f64,
    shift: usize,
    hammering: usize,
}

fn site(site: &Site, quota: SlidingWindow) -> Errors {
    const KEYS: usize = 270_000;
    let mut random = fastrand::Rng::with_seed(3);
    let mut sums: Vec<f64> = Vec::with_capacity(KEYS);
    for rank in 1..=KEYS {
        sums.push(sums.last().copied().unwrap_or_default() + 1.0 / (rank + site.shift) as f64);
    }
    let all = sums.last().copied().unwrap_or_default();
    let every = site.minutes * 60e9 / REQUESTS as f64;
    let mut states: Vec<Key> = (0..KEYS + site.hammering).map(|_| Key::default()).collect();
    let (mut errors, mut now) = (Errors::default(), 0.0);
    for _ in 0..REQUESTS {
        now += after(&mut random, every);
        let key = if site.hammering > 0 && random.u32(..100) == 0 {
            KEYS + random.usize(..site.hammering)
        } else {
            let drawn = random.f64() * all;
            sums.partition_point(|sum| *sum < drawn).min(KEYS - 1)
        };
        errors.request(quota, &mut states[key], Nanos::new(now as u64));
    }
    states.iter_mut().for_each(|key| errors.settle(key));
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
    for minutes in [60.0, 600.0, 6_000.0] {
        let what = format!("270,000 keys, shares as 1/rank, within {minutes:.0} minutes");
        site(&Site { minutes, shift: 0, hammering: 0 }, quota).row(&what);
    }
    site(&Site { minutes: 60.0, shift: 1_000, hammering: 2 }, quota).row(
        "a site: 270,000 keys, shares as 1/(rank + 1000), the busiest at a third of the limit; two \
         more send 1 % of all, eight times the limit each",
    );
}
