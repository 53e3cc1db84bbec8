//! `scope: fleet` while nodes end, begin, hand over and change: each unit counts once, on every node.

use std::sync::Arc;
use std::time::Duration;

use crate::fleet::{all_meet, calls, policy};
use crate::redis_servers::{Cluster, Redis, Watched};
use support::servers::{Gate, Reloaded, eventually, metric};
use support::spending::{CountingOrigin, ask};

/// Units of a window, which does not end during a test.
const FLEET: &str = "rate: 100/10d, scope: fleet";
const NODE: &str = "rate: 100/10d, scope: node";

/// The time between two exchanges of a node.
pub const EVERY: Duration = Duration::from_millis(100);

const PATIENCE: Duration = Duration::from_secs(20);

/// How many of so many requests of a key a node admits.
pub async fn admitted(gate: &Gate, key: usize, requests: usize) -> usize {
    let (mut kept, mut admitted) = (None, 0);
    for _ in 0..requests {
        admitted += usize::from(ask(gate.port, key, &mut kept).await.unwrap());
    }
    admitted
}

/// Waits until every node knows what each has counted so far: all have told it, then all have read.
pub async fn all_know(gates: &[&Gate]) {
    for _ in 0..2 {
        let mut goals = Vec::new();
        for gate in gates {
            // The first of them may have begun before.
            goals.push(calls(gate).await + 2.0);
        }
        for (gate, goal) in gates.iter().zip(goals) {
            let done = eventually(PATIENCE, || async { calls(gate).await >= goal });
            assert!(done.await, "{}", gate.log());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_ends_and_begins_again_counts_nothing_twice() {
    let _alone = crate::alone().await;
    let (origin, redis) = (CountingOrigin::start().await, Redis::start(&[]).await);
    let policy = policy(origin.address, &redis.yaml(), EVERY, FLEET);
    let (mut first, second) = (Gate::start(&policy).await, Gate::start(&policy).await);
    all_meet(&[&first, &second], 2).await;
    assert_eq!(admitted(&first, 1, 80).await, 80);
    assert_eq!(admitted(&first, 2, 80).await, 80);
    all_know(&[&first, &second]).await;
    first.signal("TERM");
    assert!(first.ended(PATIENCE).await.is_some_and(|status| status.success()));
    let mut first = Gate::run(Arc::clone(&first.folder), first.port, first.admin, &[]);
    first.wait_ready().await;
    all_know(&[&first, &second]).await;
    assert_eq!(admitted(&second, 1, 30).await, 20, "{}", second.log());
    assert_eq!(admitted(&first, 2, 30).await, 20, "{}", first.log());
    all_know(&[&first, &second]).await;
    assert_eq!(admitted(&first, 1, 10).await, 0, "{}", first.log());
    assert_eq!(admitted(&second, 2, 10).await, 0, "{}", second.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_upgraded_counts_nothing_twice() {
    let _alone = crate::alone().await;
    let (origin, redis) = (CountingOrigin::start().await, Redis::start(&[]).await);
    let policy = policy(origin.address, &redis.yaml(), EVERY, FLEET);
    let (mut first, second) = (Gate::start(&policy).await, Gate::start(&policy).await);
    all_meet(&[&first, &second], 2).await;
    assert_eq!(admitted(&first, 1, 80).await, 80);
    assert_eq!(admitted(&first, 2, 60).await, 60);
    assert_eq!(admitted(&second, 3, 80).await, 80);
    all_know(&[&first, &second]).await;
    for upgrade in 1..=2 {
        let mut new = first.successor();
        let waits = || async { first.log().contains("a successor is waiting") };
        assert!(eventually(PATIENCE, waits).await, "{}\n{}", first.log(), new.log());
        first.signal("QUIT");
        let status = first.ended(PATIENCE).await;
        assert!(status.is_some_and(|status| status.success()), "{}", first.log());
        new.wait_ready().await;
        first = new;
        // What a successor adds to the counts that it was handed is told under the same node.
        assert_eq!(admitted(&first, 2, 10).await, 10, "upgrade {upgrade}: {}", first.log());
        all_know(&[&first, &second]).await;
    }
    assert_eq!(metric(&second.metrics().await, "tollgate_fleet_nodes"), 2.0, "the same node");
    assert_eq!(admitted(&second, 1, 30).await, 20, "80 on the other node: {}", second.log());
    assert_eq!(admitted(&second, 2, 30).await, 20, "60 before and 20 after: {}", second.log());
    assert_eq!(admitted(&first, 3, 30).await, 20, "80 on the other node: {}", first.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_another_secret_is_not_believed() {
    let _alone = crate::alone().await;
    let (origin, redis) = (CountingOrigin::start().await, Redis::start(&[]).await);
    let policy = policy(origin.address, &redis.yaml(), EVERY, FLEET)
        .replace("timeout: 1s", "timeout: 1s, key_secret_file: secret");
    let start = async |secret: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), secret).unwrap();
        Gate::start_in(folder, &policy, "").await
    };
    let ours = "5b0ff7a1b0a2457c9a4ad5a3f1e0c6d2";
    let (first, second) = (start(ours).await, start(ours).await);
    let stranger = start("0d9e2c6f7b8144d1a5c3e2f1b0a99887").await;
    all_meet(&[&first, &second, &stranger], 3).await;
    assert_eq!(admitted(&stranger, 1, 99).await, 99);
    assert_eq!(admitted(&first, 2, 99).await, 99);
    all_know(&[&first, &second, &stranger]).await;
    for gate in [&first, &second, &stranger] {
        let refused = metric(&gate.metrics().await, "tollgate_fleet_refused_chunks_total");
        println!("{refused} chunks were refused");
        assert!(refused > 0.0, "{}", gate.log());
        let told = gate.log().matches("it has another key secret").count();
        assert_eq!(told, 1, "{}", gate.log());
    }
    assert_eq!(admitted(&first, 1, 99).await, 99, "a stranger refuses nobody: {}", first.log());
    assert_eq!(admitted(&stranger, 2, 99).await, 99, "nor do we: {}", stranger.log());
    assert_eq!(admitted(&second, 2, 10).await, 1, "one of ours does: {}", second.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_changes_the_scope_and_back() {
    let _alone = crate::alone().await;
    let (origin, redis) = (CountingOrigin::start().await, Redis::start(&[]).await);
    let [node, fleet] =
        [NODE, FLEET].map(|limit| policy(origin.address, &redis.yaml(), EVERY, limit));
    let (first, second) = (Gate::start(&node).await, Gate::start(&node).await);
    assert_eq!(admitted(&first, 1, 80).await, 80);
    assert_eq!(admitted(&second, 1, 30).await, 30, "each node counts by itself");
    assert!(!second.metrics().await.contains("tollgate_fleet_nodes"));
    for gate in [&first, &second] {
        assert_eq!(gate.reload(&fleet, "").await, Reloaded::Applied);
    }
    all_meet(&[&first, &second], 2).await;
    // Of another key: what was counted before may be dated one window back, since the store's time divides windows now.
    assert_eq!(admitted(&second, 2, 40).await, 40);
    all_know(&[&first, &second]).await;
    assert_eq!(admitted(&first, 2, 100).await, 60, "40 on the other node: {}", first.log());
    for gate in [&first, &second] {
        assert_eq!(gate.reload(&node, "").await, Reloaded::Applied);
    }
    for gate in [&first, &second] {
        let stopped = || async { !gate.metrics().await.contains("tollgate_fleet_nodes") };
        assert!(eventually(PATIENCE, stopped).await, "{}", gate.log());
    }
    assert_eq!(admitted(&second, 2, 100).await, 60, "40 on this node: {}", second.log());
    assert_eq!(admitted(&first, 2, 100).await, 40, "60 on this node: {}", first.log());
}

/// Two nodes count as one, also after the server that keeps the exchange was killed.
async fn a_failover_is_followed(store: &str, kill: impl FnOnce()) {
    let origin = CountingOrigin::start().await;
    let policy = policy(origin.address, store, EVERY, FLEET);
    let (first, second) = (Gate::start(&policy).await, Gate::start(&policy).await);
    all_meet(&[&first, &second], 2).await;
    assert_eq!(admitted(&first, 1, 80).await, 80);
    all_know(&[&first, &second]).await;
    assert_eq!(admitted(&second, 1, 30).await, 20, "80 on the other node: {}", second.log());
    all_know(&[&first, &second]).await;
    kill();
    let lag = || async { metric(&first.metrics().await, "tollgate_fleet_lag_seconds") };
    assert!(eventually(PATIENCE, || async { lag().await > 1.0 }).await, "the store is still there");
    assert_eq!(admitted(&first, 2, 80).await, 80, "nobody waits for the store: {}", first.log());
    assert_eq!(admitted(&first, 1, 10).await, 0, "what was heard before holds: {}", first.log());
    all_know(&[&first, &second]).await;
    all_meet(&[&first, &second], 2).await;
    assert_eq!(admitted(&second, 2, 30).await, 20, "80 on the other node: {}", second.log());
    for gate in [&first, &second] {
        assert_eq!(admitted(gate, 1, 10).await, 0, "each unit counts once: {}", gate.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_follow_a_failover_of_a_cluster() {
    let _alone = crate::alone().await;
    let mut cluster = Cluster::start().await;
    let store = cluster.yaml();
    a_failover_is_followed(&store, || {
        let keeps = |server: &usize| -> bool {
            !cluster.servers[*server].ask::<Vec<String>>(&["KEYS", "*fleet*"]).is_empty()
        };
        let master = cluster.masters().into_iter().find(keeps).expect("a master keeps the fleet");
        cluster.servers[master].kill();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_follow_a_failover_of_sentinels() {
    let _alone = crate::alone().await;
    let mut watched = Watched::start().await;
    let store = watched.yaml();
    a_failover_is_followed(&store, || watched.master.kill()).await;
}
