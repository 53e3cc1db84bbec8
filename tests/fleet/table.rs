//! How far an abuser exceeds its limit, by the number of nodes, the error and the interval, beside the two usual ways: each
//! node counts up to the limit, or up to its share of it.

use std::time::Duration;

use super::schedule::{Balance, Counting, Plan, Trouble, run};
use super::variable;

const LIMIT: u32 = 600;

fn plan(nodes: usize, error: u32, every: Duration, counting: Counting) -> Plan {
    Plan {
        seed: 1,
        nodes,
        limit: LIMIT,
        period: Duration::from_secs(60),
        every,
        error,
        keys: 100_000,
        is_flat: false,
        balance: Balance::Even,
        requests: 20_000,
        // Several in the shortest interval.
        steps: 2_000,
        pressure: 10,
        latency: Duration::from_millis(1),
        skew: Duration::from_millis(50),
        trouble: Trouble::Nothing,
        counting,
    }
}

/// The most units of an abuser in a window, above the limit, in percent of it, and refused requests of honest keys.
fn measured(plan: &Plan) -> (f64, u64) {
    let report = run(plan);
    let above = report.most as f64 / f64::from(LIMIT) * 100.0 - 100.0;
    if plan.counting == Counting::Fleet {
        assert!(report.above.is_empty() && report.wrong.is_empty(), "{plan:?}: {report:?}");
    }
    (above, report.refused_honest)
}

#[test]
fn a_fleet_keeps_the_limit_and_the_usual_ways_do_not() {
    // The whole table, of so many nodes.
    let asked = variable("TABLE");
    let is_long = asked.is_some();
    let nodes = asked.map_or(5, |nodes| nodes as usize);
    let errors: &[u32] = if is_long { &[1, 10, 50] } else { &[10] };
    let intervals: &[u64] = if is_long { &[100, 1_000, 5_000] } else { &[1_000] };
    println!("| nodes | counting | error | every | above the limit | honest requests refused |");
    println!("|---|---|---|---|---|---|");
    let second = Duration::from_secs(1);
    let (alone, refused) = measured(&plan(nodes, 10, second, Counting::Node));
    println!("| {nodes} | each node its own | | | {alone:.1} % | {refused} |");
    assert!(alone > 95.0 * (nodes as f64 - 1.0).min(8.0) && refused == 0);
    let (split, refused) = measured(&plan(nodes, 10, second, Counting::Split));
    println!("| {nodes} | an even share each | | | {split:.1} % | {refused} |");
    assert!(split <= 0.0 && refused > 0);
    for &error in errors {
        for &every in intervals {
            let every = Duration::from_millis(every);
            let (above, refused) = measured(&plan(nodes, error, every, Counting::Fleet));
            println!("| {nodes} | fleet | {error} % | {every:?} | {above:.1} % | {refused} |");
            assert_eq!(refused, 0);
        }
    }
}
