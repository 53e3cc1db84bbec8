//! A whole fleet in one thread: real engines, the real batcher, the real script, and everything
//! between them simulated. One seed is one schedule.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

mod cell;
mod client;
mod conclude;
mod coverage;
mod draw;
mod fault;
mod link;
#[path = "../support/lua.rs"]
#[expect(dead_code, reason = "the tests of the script use the rest")]
mod lua;
mod node;
mod oracle;
mod request;
mod schedule;
mod server;
mod settle;
mod world;

use coverage::Coverage;

/// Schedules of one run.
const SCHEDULES: u64 = 1_000;

#[test]
fn a_thousand_schedules_keep_every_promise() {
    let from: u64 = std::env::var("FROM").ok().and_then(|one| one.parse().ok()).unwrap_or(0);
    let count: u64 = std::env::var("COUNT").ok().and_then(|one| one.parse().ok()).unwrap_or(SCHEDULES);
    let mut seen = Coverage::default();
    let mut failures = 0;
    for seed in from..from + count {
        let report = schedule::run(seed, usize::MAX);
        seen.add(&report.seen);
        if let Some(failure) = report.failure {
            failures += 1;
            println!("seed {seed}: {failure}");
            if count == 1 {
                println!("{}", report.trace.join("\n"));
            }
        }
    }
    println!("{seen}");
    assert_eq!(failures, 0, "of {count} schedules");
}
