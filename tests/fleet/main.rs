//! Limits with `scope: fleet`, over simulated fleets: real engines, the real exchange, the real script, on turned time. A seed
//! is a schedule.
//!
//! | variable | |
//! |---|---|
//! | `TOLLGATE_FLEET_SCHEDULES` | how many schedules are run |
//! | `TOLLGATE_FLEET_SEED` | runs one, and says what it was |
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

mod crowding;
mod forgetting;
mod histories;
mod mixtures;
mod node;
mod oracle;
mod schedule;
mod store;
mod table;
mod time;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use schedule::{Plan, run};

/// Schedules of one run.
const SCHEDULES: u64 = 30;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(format!("TOLLGATE_FLEET_{name}")).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is no number")))
}

#[test]
fn nobody_is_refused_for_what_was_not_sent_and_the_bound_holds() {
    let seeds = match variable("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("SCHEDULES").unwrap_or(SCHEDULES),
    };
    let (next, failed) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        return;
                    }
                    let plan = Plan::draw(seed);
                    let report = run(&plan);
                    refused.fetch_add(report.refused, Ordering::SeqCst);
                    let wrong = report.wrong.iter().chain(&report.above).take(5);
                    let wrong: Vec<_> = wrong.cloned().collect();
                    if !wrong.is_empty() {
                        failed.lock().unwrap().push(format!("{plan:?}\n  {}", wrong.join("\n  ")));
                    }
                    if seeds.end == seeds.start + 1 {
                        println!("{plan:?}\n{report:?}");
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} schedules fail:\n{}", failed.len(), failed.join("\n"));
    assert!(refused.into_inner() > 0);
}
