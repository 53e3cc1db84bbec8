//! `run --upgrade` with a shared store: the store counts for both processes, and requests in flight, which each node counts by
//! itself, go over. So do estimate limits, which each node counts too.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use support::servers::{Gate, eventually, metric, origin_yaml};
use support::spending::{CountingOrigin, Kept, Spenders, ask, ask_at};
use support::wait::pause_of_a_slow_link;

use crate::faults::slow_proxy;
use crate::fleet::all_meet;
use crate::fleet_restarts::{EVERY, admitted, all_know};
use crate::redis_servers::Redis;

const LIMIT: usize = 60;

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_admit_what_one_process_would() {
    let redis = Redis::start(&[]).await;
    let origin = CountingOrigin::start().await;
    let policy = format!(
        "{}store: {{ redis: {{ url: \"{}\", timeout: 1s }} }}
limits:
  day: {{ tier: exact, algorithm: token_bucket, rate: {LIMIT}/10d, burst: {LIMIT}, key: header:x-key, missing_key: deny }}
  flying: {{ tier: exact, max_in_flight: 3, key: header:x-key, missing_key: deny }}
routes: [{{ name: r, limits: [day, flying] }}]
limits_of_this_proxy: {{ drain: 300ms, finish: 10s }}
",
        origin_yaml(origin.address),
        redis.url()
    );
    let mut gate = Gate::start(&policy).await;
    let spenders = Spenders::start(gate.port, 16, 60);
    for _ in 0..4 {
        spenders.more(200).await;
        let mut new = gate.successor();
        let waits = || async { gate.log().contains("a successor is waiting") };
        assert!(eventually(Duration::from_secs(20), waits).await, "{}", new.log());
        gate.signal("QUIT");
        let status = gate.ended(Duration::from_secs(20)).await;
        assert!(status.is_some_and(|status| status.success()), "{}", gate.log());
        new.wait_ready().await;
        gate = new;
    }
    assert_eq!(spenders.totals(gate.port).await, vec![LIMIT; 60], "{}", gate.log());
    assert!(origin.most_in_flight() <= 3);
}

/// Connections to a process that hands over. It accepts them before, and answers one more request on each.
struct OldConnections {
    port: u16,
    kept: Vec<Kept>,
}

impl OldConnections {
    async fn open(port: u16, count: usize) -> Self {
        let mut kept: Vec<Kept> = Vec::new();
        for key in 0..count {
            kept.push(None);
            assert_eq!(ask(port, 1_000 + key, &mut kept[key]).await, Ok(true));
        }
        Self { port, kept }
    }

    /// How many of so many requests of a key the process before admits.
    async fn admitted(&mut self, path: &str, key: usize, requests: usize) -> usize {
        let mut admitted = 0;
        for _ in 0..requests {
            let mut kept = self.kept.pop().unwrap();
            admitted += usize::from(ask_at(self.port, path, key, &mut kept).await.unwrap());
        }
        admitted
    }
}

/// Two limits of a key: one of the tier estimate on all nodes, one in the store.
fn two_limits(origin: SocketAddr, store: &str, pages: usize, writes: &str) -> String {
    format!(
        "{}store: {{ redis: {{ {store} }} }}
fleet: {{ error: 10%, every: {}ms }}
limits:
  pages: {{ tier: estimate, rate: {pages}/10d, scope: fleet, key: header:x-key, missing_key: deny }}
  writes: {{ tier: exact, {writes}, key: header:x-key, missing_key: deny }}
routes:
  - {{ name: writes, match: {{ path: /writes }}, limits: [pages, writes] }}
  - {{ name: pages, limits: [pages] }}
limits_of_this_proxy: {{ drain: 20s, finish: 30s }}
",
        origin_yaml(origin),
        EVERY.as_millis(),
    )
}

/// A process that waits to take over.
async fn waiting_successor(old: &Gate) -> Gate {
    let new = old.successor();
    let waits = || async { old.log().contains("a successor is waiting") };
    assert!(eventually(PATIENCE, waits).await, "{}", new.log());
    new
}

/// Hands over. The process before goes on to answer old connections.
async fn hand_over(old: &Gate, new: &mut Gate) {
    old.signal("QUIT");
    let counts = || async { old.log().contains("the successor counts") };
    assert!(eventually(PATIENCE, counts).await, "{}", old.log());
    new.wait_ready().await;
}

/// Keys that come over old and new connections get their estimate limit once on this node and on the others, and what the
/// store refuses costs them nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_over_old_and_new_connections_gets_its_estimate_limit_once() {
    let _alone = crate::alone().await;
    let (origin, redis) = (CountingOrigin::start().await, Redis::start(&[]).await);
    let store = format!("{}, timeout: 1s", redis.yaml());
    let policy = two_limits(origin.address, &store, 50, "rate: 5/10d");
    let (old, other) = (Gate::start(&policy).await, Gate::start(&policy).await);
    all_meet(&[&old, &other], 2).await;
    let mut before = OldConnections::open(old.port, 40).await;
    assert_eq!(admitted(&old, 1, 10).await, 10);
    let mut new = waiting_successor(&old).await;
    hand_over(&old, &mut new).await;
    assert_eq!(before.admitted("/", 1, 10).await, 10);
    assert_eq!(admitted(&new, 1, 15).await, 15);
    assert_eq!(before.admitted("/writes", 1, 12).await, 5, "the store refuses the others");
    assert_eq!(admitted(&new, 1, 20).await, 10, "40 of 50 are spent: {}", new.log());
    assert_eq!(before.admitted("/", 1, 5).await, 0, "50 of 50 are spent: {}", old.log());
    assert_eq!(before.admitted("/", 2, 10).await, 10);
    all_know(&[&new, &other]).await;
    assert_eq!(admitted(&other, 1, 3).await, 0, "{}", other.log());
    assert_eq!(admitted(&other, 2, 60).await, 40, "10 on old connections: {}", other.log());
}

/// Requests that wait for the store at the switch, for longer than it waits for them, count at the successor when they pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_store_answers_after_the_switch_counts() {
    const FLYING: usize = 20;
    let _alone = crate::alone().await;
    let (origin, redis) = (CountingOrigin::start().await, Redis::start(&[]).await);
    let store = format!("{}, timeout: 5s", redis.yaml());
    let policy = two_limits(origin.address, &store, 50, "rate: 30/10d, on_store_failure: deny");
    let old = Gate::start(&policy).await;
    let mut before = OldConnections::open(old.port, FLYING + 1).await;
    let mut new = waiting_successor(&old).await;
    let _: String = redis.ask(&["CLIENT", "PAUSE", "1500"]);
    let mut flying = JoinSet::new();
    for _ in 0..FLYING {
        let (port, mut kept) = (old.port, before.kept.pop().unwrap());
        flying.spawn(async move { ask_at(port, "/writes", 1, &mut kept).await });
    }
    // Nothing tells that they wait for the store. Those that come later are judged by the successor.
    tokio::time::sleep(Duration::from_millis(200)).await;
    hand_over(&old, &mut new).await;
    let answers = flying.join_all().await;
    assert!(answers.iter().all(|answer| *answer == Ok(true)), "{answers:?}");
    // The successor has heard of them before it judges this one.
    assert_eq!(before.admitted("/", 1, 1).await, 1);
    assert_eq!(admitted(&new, 1, 40).await, 50 - FLYING - 1, "{}\n{}", old.log(), new.log());
}

/// A successor that hangs leaves the store the time that it has: a healthy store is asked, and answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_hangs_takes_no_time_of_the_store() {
    let _alone = crate::alone().await;
    let (origin, redis) = (CountingOrigin::start().await, Redis::start(&[]).await);
    let store = format!("{}, timeout: 200ms", redis.yaml());
    let policy = two_limits(origin.address, &store, 50, "rate: 4/10d, on_store_failure: deny");
    let old = Gate::start(&policy).await;
    let mut before = OldConnections::open(old.port, 6).await;
    let mut new = waiting_successor(&old).await;
    hand_over(&old, &mut new).await;
    new.signal("STOP");
    let passed = before.admitted("/writes", 1, 6).await;
    new.signal("CONT");
    assert_eq!(passed, 4, "{}", old.log());
}

/// What a process admitted and banned while the store did not answer is told before the process ends: nobody else knows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_hands_over_tells_the_store_what_it_admitted_without_it() {
    let _alone = crate::alone().await;
    let (origin, redis) = (CountingOrigin::start().await, Redis::start(&[]).await);
    let policy = format!(
        "{}store: {{ redis: {{ {}, timeout: 100ms }} }}
limits:
  writes: {{ tier: exact, rate: 40/10d, key: header:x-key, missing_key: deny, penalty: {{ after: 20, within: 1h, ban: 1h }} }}
routes: [{{ name: r, limits: [writes] }}]
limits_of_this_proxy: {{ drain: 300ms, finish: 20s }}
",
        origin_yaml(origin.address),
        redis.yaml()
    );
    let mut old = Gate::start(&policy).await;
    let mut new = waiting_successor(&old).await;
    redis.signal("STOP");
    assert_eq!(admitted(&old, 1, 45).await, 40);
    assert_eq!(admitted(&old, 2, 70).await, 40);
    old.signal("QUIT");
    let counts = || async { old.log().contains("the successor counts") };
    assert!(eventually(PATIENCE, counts).await, "{}", old.log());
    new.wait_ready().await;
    // Nobody has connections to the old process any more.
    assert!(old.ended(Duration::from_secs(2)).await.is_none(), "it knows what the store does not");
    redis.signal("CONT");
    assert!(old.ended(PATIENCE).await.is_some_and(|status| status.success()), "{}", old.log());
    assert_eq!(admitted(&new, 1, 10).await, 0, "{}", old.log());
    assert_eq!(redis.ask::<u32>(&["HLEN", "tollgate:{bans}:of"]), 1, "{}", old.log());
}

/// What the switch meets counts once: the successor is told of a denial, and finds it neither in a cell nor in what the process counted
/// for itself; and so of an estimate limit that is charged while it waits for the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_switch_meets_counts_once() {
    const PAGES: usize = 50;
    let _alone = crate::alone().await;
    let (origin, redis) = (CountingOrigin::start().await, Redis::start(&[]).await);
    let (distant, delay) = slow_proxy(redis.port).await;
    let policy = |port: u16| {
        let store = format!("url: \"redis://127.0.0.1:{port}\", timeout: 2s");
        let policy = two_limits(origin.address, &store, PAGES, "rate: 1000/10d");
        let of_keys = "rate: 5/10d, key: header:x-key, missing_key: deny";
        let penalty = "penalty: { after: 1000, within: 1h, ban: 1h }";
        let limits = format!(
            "  logins: {{ tier: exact, {of_keys}, {penalty}, scope: fleet }}
  signups: {{ tier: exact, {of_keys}, {penalty} }}
routes:
  - {{ name: logins, match: {{ path: /logins }}, limits: [logins] }}
  - {{ name: signups, match: {{ path: /signups }}, limits: [signups] }}"
        );
        policy.replace("routes:", &limits)
    };
    let old = Gate::start(&policy(distant)).await;
    let other = Gate::start(&policy(redis.port)).await;
    all_meet(&[&old, &other], 2).await;
    let mut before = OldConnections::open(old.port, 40).await;
    for path in ["/logins", "/signups"] {
        assert_eq!(before.admitted(path, 1, 11).await, 5);
    }
    let mut new = waiting_successor(&old).await;
    // The switch waits for the store, which is far away from now on.
    delay.store(300, Ordering::Relaxed);
    let over = Arc::new(AtomicBool::new(false));
    let (mut writers, mut deniers) = (JoinSet::new(), JoinSet::new());
    for key in 2..14 {
        let asking = ask_until(Arc::clone(&over), old.port, "/writes", key);
        writers.spawn(async move { (key, asking.await) });
    }
    // So many that some are being judged in every moment of the switch.
    for path in ["/logins", "/signups"] {
        for _ in 0..10 {
            let asking = ask_until(Arc::clone(&over), old.port, path, 1);
            deniers.spawn(async move { (path, asking.await) });
        }
    }
    hand_over(&old, &mut new).await;
    over.store(true, Ordering::Relaxed);
    let mut denials = HashMap::from([("/logins", 6), ("/signups", 6)]);
    for (path, (admitted, refused)) in deniers.join_all().await {
        assert_eq!(admitted, 0);
        *denials.get_mut(path).unwrap() += refused;
    }
    delay.store(0, Ordering::Relaxed);
    for (key, (written, refused)) in writers.join_all().await {
        assert_eq!(refused, 0, "of key {key}");
        let left = PAGES - written as usize;
        assert_eq!(admitted(&new, key, PAGES).await, left, "of key {key}: {}", new.log());
    }
    all_know(&[&new, &other]).await;
    bans_at_last(&other, "logins", denials["/logins"]).await;
    bans_at_last(&new, "signups", denials["/signups"]).await;
}

/// After so many denials of key 1, the one that is the thousandth bans it.
async fn bans_at_last(gate: &Gate, limit: &str, denials: u32) {
    let (mut kept, path) = (None, format!("/{limit}"));
    for _ in denials + 1..1_000 {
        assert_eq!(ask_at(gate.port, &path, 1, &mut kept).await, Ok(false));
    }
    let series = format!("tollgate_bans_total{{limit=\"{limit}\"}}");
    let bans = async || metric(&gate.metrics().await, &series);
    assert_eq!(bans().await, 0.0, "{limit}, {denials} at the switch: {}", gate.log());
    assert_eq!(ask_at(gate.port, &path, 1, &mut kept).await, Ok(false));
    assert_eq!(bans().await, 1.0, "{limit}, {denials} at the switch: {}", gate.log());
}

/// Asks again and again until it is over. How many requests were admitted and refused.
async fn ask_until(over: Arc<AtomicBool>, port: u16, path: &str, key: usize) -> (u32, u32) {
    let (mut kept, mut admitted, mut refused) = (None, 0, 0);
    while !over.load(Ordering::Relaxed) {
        match ask_at(port, path, key, &mut kept).await.unwrap() {
            true => admitted += 1,
            false => refused += 1,
        }
        pause_of_a_slow_link(Duration::from_millis(50)).await;
    }
    (admitted, refused)
}
