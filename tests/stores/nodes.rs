//! Several proxies over one store: one number, to the unit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::load::{Statuses, hammer};
use crate::redis_servers::{Cluster, Redis};
use support::servers::{Gate, Origin, eventually, metric};
use support::wait::pause_in_thread;

const NODES: usize = 4;
const CLIENTS: usize = 64;
const SPAN: Duration = Duration::from_secs(10);

/// Nodes that share a store.
async fn nodes(origin: &Origin, store: &str, limit: &str) -> Vec<Gate> {
    let policy = crate::policy(origin, store, limit);
    let mut gates = Vec::new();
    for _ in 0..NODES {
        gates.push(Gate::start(&policy).await);
    }
    gates
}

async fn hammered(gates: &[Gate]) -> Statuses {
    let ports: Vec<u16> = gates.iter().map(|gate| gate.port).collect();
    hammer(&ports, CLIENTS, SPAN, "/").await
}

async fn verdicts(gates: &[Gate], kind: &str) -> usize {
    let mut sum = 0.0;
    for gate in gates {
        let name =
            format!("tollgate_decisions_total{{limit=\"one\",tier=\"exact\",verdict=\"{kind}\"}}");
        sum += metric(&gate.metrics().await, &name);
    }
    sum as usize
}

/// Exactly the promise was admitted, nothing was degraded, and more was asked for.
async fn to_the_unit(gates: &[Gate], seen: &Statuses, promise: usize) {
    assert_eq!(verdicts(gates, "degraded_allowed").await, 0);
    assert_eq!(seen.get(&200), Some(&promise), "{seen:?}");
    assert!(seen[&429] > promise, "{seen:?}");
    assert_eq!(seen.len(), 2, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_nodes_admit_exactly_the_limit() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\", timeout: 1s", redis.url());
    let limit = "algorithm: fixed_window, rate: 2000/30d";
    let gates = nodes(&origin, &store, limit).await;
    let seen = hammered(&gates).await;
    to_the_unit(&gates, &seen, 2_000).await;
    assert_eq!(origin.count(), 2_000);
    let told: u64 = redis.ask::<Vec<String>>(&["KEYS", "tollgate:*"]).len() as u64;
    assert!(told <= 2, "one cell, and perhaps a probe");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_nodes_admit_exactly_the_limit_over_a_cluster() {
    let _alone = crate::alone().await;
    let (origin, cluster) = (Origin::start("site").await, Cluster::start().await);
    let store = format!("{}, timeout: 1s", cluster.yaml());
    let limit = "algorithm: token_bucket, rate: 2000/30d, burst: 2000";
    let gates = nodes(&origin, &store, limit).await;
    let seen = hammered(&gates).await;
    to_the_unit(&gates, &seen, 2_000).await;
}

/// Does something to the store every few milliseconds while the nodes are hammered.
async fn hammered_while(gates: &[Gate], disturb: impl Fn() + Send + 'static) -> Statuses {
    let stop = Arc::<AtomicBool>::default();
    let told = Arc::clone(&stop);
    let disturber = std::thread::spawn(move || {
        while !told.load(Ordering::Relaxed) {
            disturb();
            pause_in_thread(Duration::from_millis(50));
        }
    });
    let seen = hammered(gates).await;
    stop.store(true, Ordering::Relaxed);
    disturber.join().unwrap();
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_of_the_scripts_loses_no_unit() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Arc::new(Redis::start(&[]).await));
    let store = format!("url: \"{}\", timeout: 1s", redis.url());
    let gates = nodes(&origin, &store, "algorithm: sliding_log, rate: 2000/30d").await;
    let server = Arc::clone(&redis);
    let seen =
        hammered_while(&gates, move || drop(server.ask::<String>(&["SCRIPT", "FLUSH"]))).await;
    to_the_unit(&gates, &seen, 2_000).await;
}

/// Calls whose answers never came, with the charges they carried.
async fn ambiguous(gates: &[Gate]) -> usize {
    let mut sum = 0.0;
    for gate in gates {
        let text = gate.metrics().await;
        for outcome in ["timeout", "unreachable", "invalid"] {
            sum += metric(&text, &format!("tollgate_store_calls_total{{outcome=\"{outcome}\"}}"));
        }
    }
    sum as usize * 64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_insists_on_the_store_never_exceeds_it_while_connections_break() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Arc::new(Redis::start(&[]).await));
    let store = format!("url: \"{}\", timeout: 1s", redis.url());
    let limit = "algorithm: fixed_window, rate: 2000/30d, on_store_failure: deny";
    let gates = nodes(&origin, &store, limit).await;
    let server = Arc::clone(&redis);
    let kill =
        move || drop(server.try_ask::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]));
    let seen = hammered_while(&gates, kill).await;
    let (admitted, lost) = (seen[&200], ambiguous(&gates).await);
    assert!(admitted <= 2_000, "{seen:?}");
    assert!(admitted + lost >= 2_000, "{seen:?}, at most {lost} ambiguous");
    assert!(seen.keys().all(|status| [200, 429, 503].contains(status)), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_judges_alone_admits_no_more_than_a_limit_for_each_node_and_one() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Arc::new(Redis::start(&[]).await));
    let store = format!("url: \"{}\", timeout: 1s", redis.url());
    let gates = nodes(&origin, &store, "algorithm: fixed_window, rate: 500/30d").await;
    let server = Arc::clone(&redis);
    let kill =
        move || drop(server.try_ask::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]));
    let seen = hammered_while(&gates, kill).await;
    assert!(seen[&200] <= 500 * (NODES + 1), "{seen:?}");
    assert!(seen.keys().all(|status| [200, 429].contains(status)), "no outage is told: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_killed_costs_no_unit_above_the_limit() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\", timeout: 1s", redis.url());
    let mut gates = nodes(&origin, &store, "algorithm: fixed_window, rate: 4000/30d").await;
    let ports: Vec<u16> = gates.iter().map(|gate| gate.port).collect();
    let hammering = tokio::spawn(async move { hammer(&ports, CLIENTS, SPAN / 2, "/").await });
    let begun = eventually(SPAN / 2, || async { origin.count() >= 500 });
    assert!(begun.await, "an eighth of the limit: {}", origin.count());
    // With all that it has charged and not forwarded, and not forwarded yet.
    drop(gates.remove(0));
    let mut seen = hammering.await.unwrap();
    // A busy machine has not asked for the limit yet.
    let ports: Vec<u16> = gates.iter().map(|gate| gate.port).collect();
    for _ in 0..60 {
        if origin.count() >= 4_000 - CLIENTS {
            break;
        }
        for (status, count) in hammer(&ports, CLIENTS, Duration::from_secs(1), "/").await {
            *seen.entry(status).or_default() += count;
        }
    }
    assert_eq!(verdicts(&gates, "degraded_allowed").await, 0);
    let passed = origin.count();
    assert!((4_000 - CLIENTS..=4_000).contains(&passed), "{passed}: {seen:?}");
}
