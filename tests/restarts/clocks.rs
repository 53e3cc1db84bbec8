//! The system's clock is set while no process runs, within one run of the machine and across its starts (as which a name space
//! of clocks counts). `libfaketime` is the clock.

use std::path::Path;

use support::servers::metric;

use crate::node::{LIMIT, Node, ask, end};

const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

const LIMITS: [(&str, &str); 3] = [
    // A unit in an hour.
    ("bucket", "rate: 24/24h, algorithm: token_bucket"),
    ("fixed", "rate: 24/366d, algorithm: fixed_window"),
    ("log", "rate: 24/366d, algorithm: sliding_log"),
];

/// Spends everything, sets the clock by so much, and returns what each limit has left then. `is_other_boot`: the machine has
/// been started again.
async fn left_after(offset: &str, is_other_boot: bool) -> Option<Vec<u32>> {
    if !Path::new(FAKETIME).exists() {
        eprintln!("SKIPPED: {FAKETIME} does not exist; install faketime");
        return None;
    }
    let node = Node::new(None, &LIMITS).await;
    let gate = node.start(&[]).await;
    for (limit, _) in LIMITS {
        for left in (0..LIMIT).rev() {
            assert_eq!(ask(&gate, limit, "a").await, (200, left));
        }
    }
    end(gate).await;
    let preload = format!("LD_PRELOAD={FAKETIME}");
    let offset = format!("FAKETIME={offset}");
    let clock = ["env", &preload, &offset, "DONT_FAKE_MONOTONIC=1"];
    let boot = ["unshare", "-T", "--monotonic", "1000", "--fork", "--kill-child"];
    let before = if is_other_boot { [&boot[..], &clock].concat() } else { clock.to_vec() };
    let gate = node.start(&before).await;
    let recovered = metric(&gate.metrics().await, "tollgate_state_recovered_cells");
    assert_eq!(recovered, 3.0, "{}", gate.log());
    let mut left = Vec::new();
    for (limit, _) in LIMITS {
        let (status, remaining) = ask(&gate, limit, "a").await;
        left.push(remaining + u32::from(status == 200));
    }
    Some(left)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_set_back_gives_nothing_back() {
    for is_other_boot in [false, true] {
        if let Some(left) = left_after("-400d", is_other_boot).await {
            assert_eq!(left, [0, 0, 0], "another start of the machine: {is_other_boot}");
        }
    }
}

/// Buckets and logs know how much time has passed. Windows are the calendar's, as while a process runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_set_forward_gives_buckets_nothing_back_within_a_run_of_the_machine() {
    if let Some(left) = left_after("+400d", false).await {
        assert_eq!(left, [0, LIMIT, 0]);
    }
}

/// Across starts of the machine only its clock tells how long it was down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_between_two_starts_of_the_machine_counts() {
    if let Some(left) = left_after("+3h", true).await {
        assert_eq!(left, [3, 0, 0]);
    }
}
