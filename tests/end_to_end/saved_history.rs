//! The traffic history of a process with a state directory, after its end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use support::servers::{Gate, Origin, client, eventually, origin_yaml};

const POLICY: &str = "
store: { embedded: { state: state, flush: 10ms, sync: 20ms } }
limits: { writes: { tier: exact, rate: 2/30d, key: header:x-key, missing_key: skip } }
routes: [{ name: site, limits: [writes] }]
";

/// What all minutes together counted: requests that were forwarded and limited, and refusals of the limit.
async fn counted(gate: &Gate) -> (u64, u64, u64) {
    let (status, text) = gate.admin_get("/history?minutes=30").await.unwrap();
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let sum = |path: &str| {
        let minutes = answer["minutes"].as_array().unwrap().iter();
        minutes.map(|minute| minute.pointer(path).and_then(Value::as_u64).unwrap_or(0)).sum()
    };
    (sum("/routes/site/forwarded"), sum("/total/limited"), sum("/limits/writes/refused"))
}

async fn send(gate: &Gate, requests: u32) {
    for _ in 0..requests {
        client().get(gate.url("/")).header("x-key", "a").send().await.unwrap();
    }
}

#[tokio::test]
async fn the_minutes_before_an_orderly_end_are_shown_by_the_next_process() {
    let origin = Origin::start("site").await;
    let policy = format!("{}{POLICY}", origin_yaml(origin.address));
    let mut gate = Gate::start_in(tempfile::tempdir().unwrap(), &policy, "").await;
    send(&gate, 5).await;
    assert_eq!(counted(&gate).await, (2, 3, 3));
    for more in 1..3 {
        gate.signal("TERM");
        assert!(gate.ended(Duration::from_secs(20)).await.is_some());
        let (port, admin) = (gate.port, gate.admin);
        let next = Gate::run(Arc::clone(&gate.folder), port, admin, &[]);
        gate = next;
        gate.wait_ready().await;
        assert_eq!(counted(&gate).await, (2, 2 + more, 2 + more));
        send(&gate, 1).await;
        assert_eq!(counted(&gate).await, (2, 3 + more, 3 + more));
    }
}

/// With a directory and without one.
#[tokio::test]
async fn the_minutes_before_an_upgrade_are_shown_by_the_successor() {
    let origin = Origin::start("site").await;
    let policy = format!("{}{POLICY}", origin_yaml(origin.address));
    for policy in [&*policy, &policy.replace("store: { embedded: { state: state", "#")] {
        let mut gate = Gate::start_in(tempfile::tempdir().unwrap(), policy, "").await;
        send(&gate, 5).await;
        for more in 0..2 {
            let new = gate.successor();
            let waits = || async { gate.log().contains("a successor is waiting") };
            assert!(eventually(Duration::from_secs(20), waits).await, "{}", gate.log());
            gate.signal("QUIT");
            assert!(gate.ended(Duration::from_secs(20)).await.is_some(), "{}", gate.log());
            gate = new;
            gate.wait_ready().await;
            assert_eq!(counted(&gate).await, (2, 3 + more, 3 + more), "{policy}");
            send(&gate, 1).await;
            assert_eq!(counted(&gate).await, (2, 4 + more, 4 + more), "{policy}");
        }
    }
}
