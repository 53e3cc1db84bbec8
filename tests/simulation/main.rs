//! A whole fleet in one thread: real engines, the real batcher, the real script, and everything
//! between them simulated. One seed is one schedule; `seeds.txt` lists those that once failed.
//!
//! | variable | |
//! |---|---|
//! | `TOLLGATE_SIMULATE_SECONDS` | goes on for so long (`make simulate`) |
//! | `TOLLGATE_SIMULATE_SCHEDULES` | runs so many |
//! | `TOLLGATE_SIMULATE_FIRST` | the first failure ends it (`make planted`) |
//! | `TOLLGATE_SIMULATE_SEED` | runs one seed and prints its trace |
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

mod cell;
mod charged;
mod client;
mod conclude;
mod coverage;
mod draw;
mod fault;
mod link;
mod node;
mod oracle;
mod request;
mod schedule;
mod server;
mod settle;
mod world;
mod yaml;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use coverage::Coverage;
use schedule::Report;

/// Schedules of one run.
const SCHEDULES: u64 = 1_000;

/// Each is one thread, and runs schedules of its own.
const THREADS: u64 = 2;

/// What once failed, one seed a line.
const SEEDS: &str = include_str!("seeds.txt");

/// Lines of a trace that are shown.
const SHOWN: usize = 400;

#[expect(clippy::disallowed_methods, reason = "a bound of real time, which no schedule sees")]
fn now() -> Instant {
    Instant::now()
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(format!("TOLLGATE_SIMULATE_{name}")).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is no number")))
}

/// Runs one seed. What panics has failed too.
fn run(seed: u64, limit: usize) -> Report {
    let report = catch_unwind(AssertUnwindSafe(|| schedule::run(seed, limit)));
    report.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        let failure = Some(format!("panicked: {}", text.unwrap_or_default()));
        Report { failure, trace: Vec::new(), seen: Coverage::default() }
    })
}

/// The same failure with as few steps as it takes.
fn shrunk(seed: u64, report: Report) -> (usize, Report) {
    (1..schedule::MAX_STEPS)
        .map(|limit| (limit, run(seed, limit)))
        .find(|(_, report)| report.failure.is_some())
        .unwrap_or((schedule::MAX_STEPS, report))
}

fn tell(seed: u64, report: Report) {
    let failure = report.failure.clone().unwrap_or_default();
    let (steps, report) = shrunk(seed, report);
    let from = report.trace.len().saturating_sub(SHOWN);
    println!("{}", report.trace[from..].join("\n"));
    println!("seed {seed} fails: {failure}");
    println!("in {steps} steps: {}", report.failure.unwrap_or_default());
    println!("TOLLGATE_SIMULATE_SEED={seed} cargo test --test simulation -- --nocapture");
}

fn seeds() -> impl Iterator<Item = u64> {
    let lines = SEEDS.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    lines.filter(|line| !line.is_empty()).map(|line| line.parse().unwrap())
}

#[test]
fn a_fleet_keeps_every_promise_in_every_schedule() {
    if let Some(seed) = variable("SEED") {
        let report = run(seed, usize::MAX);
        println!("{}", report.trace.join("\n"));
        assert_eq!(report.failure, None, "seed {seed}");
        return;
    }
    let began = now();
    let seconds = variable("SECONDS").map(Duration::from_secs);
    let schedules = variable("SCHEDULES").unwrap_or(SCHEDULES);
    let first = variable("FIRST").is_some();
    let next = AtomicU64::new(0);
    let stopped = AtomicBool::new(false);
    let seen = Mutex::new(Coverage::default());
    let failed = Mutex::new(Vec::new());
    let listed: Vec<u64> = seeds().collect();
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let over = match seconds {
                Some(seconds) => began.elapsed() >= seconds,
                None => n >= schedules + listed.len() as u64,
            };
            if over || stopped.load(Ordering::Relaxed) {
                return;
            }
            let seed = listed.get(n as usize).copied().unwrap_or(n);
            let report = run(seed, usize::MAX);
            seen.lock().unwrap().add(&report.seen);
            if report.failure.is_some() {
                stopped.fetch_or(first, Ordering::Relaxed);
                println!("seed {seed}: {}", report.failure.clone().unwrap_or_default());
                failed.lock().unwrap().push((seed, report));
            }
        }
    };
    std::thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(work)));
    });
    let mut failed = failed.into_inner().unwrap();
    failed.sort_by_key(|(seed, _)| *seed);
    let seen = seen.into_inner().unwrap();
    println!("{seen}in {} s", began.elapsed().as_secs());
    println!("{} schedules, {} failures", seen.schedules, failed.len());
    let seeds: Vec<u64> = failed.iter().map(|(seed, _)| *seed).collect();
    failed.into_iter().take(1).for_each(|(seed, report)| tell(seed, report));
    assert!(seeds.is_empty(), "these seeds fail: {seeds:?}");
    seen.assert_enough();
}

#[test]
fn one_seed_is_one_schedule() {
    for seed in 0..12 {
        let (one, other) = (run(seed, 30), run(seed, 30));
        let differs = one.trace.iter().zip(&other.trace).position(|(one, other)| one != other);
        if let Some(n) = differs {
            panic!("seed {seed} differs at line {n}:\n{}\n{}", one.trace[n], other.trace[n]);
        }
        assert_eq!(one.trace.len(), other.trace.len(), "seed {seed}");
    }
}
