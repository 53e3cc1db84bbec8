//! Mixtures on one cell at once, through the engine: plans, refunds, and a store that is far away.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tollgate::clock::{Clock, Nanos};
use tollgate::engine::{FinalResponse, Outcome};
use tollgate::histogram::HistogramTotals;
use tollgate::store::redis::{Address, Readiness, ServerDiscovery};

use crate::engines::{Node, one};
use crate::redis_servers::{Cluster, Redis};
use crate::virtual_store::{Plan, VirtualStore};
use support::servers::eventually;
use support::wait::virtual_time;

const MS: Duration = Duration::from_millis(1);

/// An organisation with one plan for half of its requests, beside a limit for each user.
const PLANS: &str = "
clients: { trusted_proxies: [10.0.0.0/8] }
limits:
  user: { tier: exact, algorithm: fixed_window, rate: 1000000/30d, key: header:x-user, missing_key: deny }
  org: { tier: exact, algorithm: fixed_window, rate: 3000000/30d, key: header:x-org, missing_key: deny,
         plans: { by: header:x-plan, rates: { gold: 4000000/30d } } }
routes: [{ name: r, limits: [user, org] }]
";

/// 256 callers, half of them with a plan. Returns how many were admitted; none is degraded.
async fn callers_with_plans(node: &Arc<Node>, each: usize) -> u64 {
    let tasks: Vec<_> = (0..256usize)
        .map(|caller| {
            let node = Arc::clone(node);
            tokio::spawn(async move {
                let user = caller.to_string();
                let (mut admitted, mut degraded) = (0, 0);
                for n in 0..each {
                    let mut keys = vec![("x-user", &*user), ("x-org", "o")];
                    if (caller + n) % 2 == 0 {
                        keys.push(("x-plan", "gold"));
                    }
                    let decision = node.decide("/", &keys).await;
                    let limits: Vec<u32> =
                        decision.verdicts.iter().map(|answer| answer.verdict.limit).collect();
                    let org = if keys.len() == 3 { 4_000_000 } else { 3_000_000 };
                    assert_eq!(limits, [1_000_000, org], "each has its own verdict");
                    admitted += u64::from(decision.outcome == Outcome::Allowed);
                    degraded += u64::from(decision.is_degraded());
                }
                (admitted, degraded)
            })
        })
        .collect();
    let (mut admitted, mut degraded) = (0, 0);
    for task in tasks {
        let one = task.await.unwrap();
        (admitted, degraded) = (admitted + one.0, degraded + one.1);
    }
    println!("{admitted} admitted, {degraded} degraded");
    assert_eq!(degraded, 0);
    admitted
}

#[tokio::test(start_paused = true)]
async fn plans_in_shared_calls_lose_no_charge_over_a_far_store() {
    for slots in [false, true] {
        let (store, remote) = VirtualStore::start_with(5 * MS, Duration::from_millis(100), slots);
        let node = Arc::new(Node::over(&store, remote, PLANS));
        let admitted = callers_with_plans(&node, 157).await;
        assert_eq!(admitted, 256 * 157);
        assert_eq!(store.cell(&node.cell("org", &[("x-org", "o")])), admitted, "slots: {slots}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_in_shared_calls_lose_no_charge() {
    let _alone = crate::alone().await;
    let redis = Redis::start(&[]).await;
    let node = Node::start(one(redis.port), Duration::from_secs(2), PLANS).await;
    let node = Arc::new(node);
    let admitted = callers_with_plans(&node, 40).await;
    let cell: String = redis.ask(&["GET", &node.cell("org", &[("x-org", "o")])]);
    assert_eq!(cell.split(' ').nth(2), Some(&*admitted.to_string()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_in_shared_calls_lose_no_charge_in_a_cluster() {
    let _alone = crate::alone().await;
    let cluster = Cluster::start().await;
    let seed = Address::Tcp("127.0.0.1".to_owned(), cluster.servers[0].port);
    let node =
        Node::start(ServerDiscovery::Cluster(vec![seed]), Duration::from_secs(5), PLANS).await;
    let node = Arc::new(node);
    let admitted = callers_with_plans(&node, 20).await;
    let name = node.cell("org", &[("x-org", "o")]);
    let kept = || {
        let masters = cluster.masters();
        let found =
            masters.iter().find_map(|index| cluster.servers[*index].try_ask(&["GET", &name]).ok());
        found.and_then(|text: String| text.split(' ').nth(2)?.parse::<u64>().ok())
    };
    let told = eventually(Duration::from_secs(5), || async { kept() == Some(admitted) });
    assert!(told.await, "{:?} kept, {admitted} admitted", kept());
}

/// Everything is given back: nothing is ever spent for long.
fn counted(limit: u32) -> String {
    format!(
        "
limits:
  logins: {{ tier: exact, algorithm: fixed_window, rate: {limit}/30d, key: header:x-key, missing_key: deny,
            count: {{ status: [401] }} }}
routes: [{{ name: r, limits: [logins] }}]
"
    )
}

/// Requests on one key, each answered 200 at once. `pause`: of each caller between two. Returns the
/// refused, the slowest of a hundred, and charges and calls.
async fn logins(
    (store, node): (&Arc<VirtualStore>, &Arc<Node>),
    callers: usize,
    each: usize,
    pause: Duration,
) -> (usize, Duration, (u64, u64)) {
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (node, clock) = (Arc::clone(node), Arc::clone(&store.clock));
            tokio::spawn(async move {
                let (mut refused, mut took) = (0, Vec::new());
                virtual_time(pause * caller as u32 / callers as u32).await;
                for _ in 0..each {
                    let began = clock.now().mono;
                    let (mut decision, mut pending) = node.open("/", &[("x-key", "k")]).await;
                    took.push(clock.now().mono.saturating_sub(began));
                    refused += usize::from(decision.outcome != Outcome::Allowed);
                    assert!(!decision.is_degraded());
                    let headers = HeaderMap::new();
                    let response =
                        FinalResponse { status: 200, headers: &headers, by_origin: true };
                    node.engine.finish(&node.generation, &mut decision, &mut pending, &response);
                    virtual_time(pause).await;
                }
                (refused, took)
            })
        })
        .collect();
    let (mut refused, mut took) = (0, Vec::<Nanos>::new());
    for task in tasks {
        let one = task.await.unwrap();
        refused += one.0;
        took.extend(one.1);
    }
    took.sort_unstable();
    let HistogramTotals { count: calls, sum: charges } = node.remote.metrics().batches.totals();
    (refused, took[took.len() * 99 / 100].into(), (charges, calls))
}

/// A key whose requests all give back what they reserved is refused nothing, waits for nothing, and
/// its charges and refunds share calls.
#[tokio::test(start_paused = true)]
async fn refunds_on_a_hot_key_refuse_nothing() {
    let timeout = Duration::from_millis(20);
    // With a limit of 100 no more than that may be reserved at once: 256 callers that ask one after
    // the other without a pause are refused for good reason, so these send 2,000 requests a second.
    for (limit, callers, pause) in [
        (100, 64, Duration::ZERO),
        (100, 64, 32 * MS),
        (100, 256, 128 * MS),
        (1_000_000, 64, Duration::ZERO),
        (1_000_000, 256, Duration::ZERO),
    ] {
        let (store, remote) = VirtualStore::start(MS, timeout);
        let node = Arc::new(Node::over(&store, remote, &counted(limit)));
        let (refused, p99, (charges, calls)) = logins((&store, &node), callers, 100, pause).await;
        println!(
            "limit {limit}, {callers} callers, pause {pause:?}: {refused} refused, p99 {p99:?}, \
             {charges} charges and refunds in {calls} calls"
        );
        assert_eq!(refused, 0);
        assert!(p99 <= timeout, "{p99:?}");
        if pause == Duration::ZERO {
            assert!(charges > 8 * calls, "{charges} in {calls}");
        }
        let quiet = eventually(Duration::from_secs(5), || async { node.remote.is_quiet() });
        assert!(quiet.await);
        let left = store.cell(&node.cell("logins", &[("x-key", "k")]));
        assert_eq!(left, 0, "nothing is spent");
    }
}

/// A line in which 20,000 may wait, beside a limit of everybody in another slot.
const LINE: &str = "
limits:
  all: { tier: exact, algorithm: fixed_window, rate: 1000000/30d, key: client_ip }
  line: { tier: exact, algorithm: leaky_bucket, rate: 1/s, max_delay: 20000s, key: header:x-key, missing_key: deny }
routes: [{ name: r, limits: [all, line] }]
";

/// When as many wait as there is room for, whoever would have to wait is refused and charged nothing;
/// when there is room again, the denial does not linger.
async fn a_full_waiting_room(servers: ServerDiscovery) {
    let node = Arc::new(Node::start(servers, Duration::from_secs(2), LINE).await);
    let lines: Vec<_> = (0..100)
        .map(|_| {
            let node = Arc::clone(&node);
            tokio::spawn(async move {
                let mut waiting = Vec::new();
                for _ in 0..100 {
                    waiting.push(node.open("/", &[("x-key", "a")]).await);
                }
                waiting
            })
        })
        .collect();
    let mut waiting = Vec::new();
    for line in lines {
        waiting.extend(line.await.unwrap());
    }
    waiting.retain(|(decision, _)| decision.wait() > Nanos::ZERO);
    // The first one needed not wait.
    waiting.push(node.open("/", &[("x-key", "a")]).await);
    assert_eq!((waiting.len(), node.engine.delayed_requests()), (10_000, 10_000));

    let b = [("x-key", "b")];
    assert!(node.allows("/", &b).await, "who need not wait passes");
    for _ in 0..3 {
        let refused = node.decide("/", &b).await;
        assert_eq!((refused.outcome, refused.is_degraded()), (Outcome::Limited, false));
        let retry = refused.retry_after().unwrap();
        assert!(retry <= Nanos::SECOND, "{retry:?}");
    }
    assert!(!node.allows("/", &[("x-key", "a")]).await);
    waiting.truncate(9_000);
    let (waits, _pending) = node.open("/", &b).await;
    assert_eq!(waits.outcome, Outcome::Allowed, "there is room again");
    let left = waits.verdicts[0].verdict.remaining;
    assert_eq!(left, 1_000_000 - 10_003, "nothing of a refused request is charged");
    assert!((Nanos::ZERO..=Nanos::SECOND).contains(&waits.wait()), "{:?}", waits.wait());
    drop(waiting);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_finds_no_room_to_wait_in_is_not_charged() {
    let redis = Redis::start(&[]).await;
    a_full_waiting_room(one(redis.port)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_finds_no_room_to_wait_in_is_not_charged_in_a_cluster() {
    let cluster = Cluster::start().await;
    let seed = Address::Tcp("127.0.0.1".to_owned(), cluster.servers[0].port);
    a_full_waiting_room(ServerDiscovery::Cluster(vec![seed])).await;
}

/// A line of ten a second, beside a limit of each user in another slot.
const PACE: &str = "
limits:
  pace: { tier: exact, algorithm: leaky_bucket, rate: 10/1s, max_delay: 8s, key: header:x-key, missing_key: deny }
  user: { tier: exact, algorithm: fixed_window, rate: 10/1h, key: header:x-user, missing_key: deny }
routes: [{ name: r, limits: [pace, user] }]
";

/// Requests that another slot refuses after they were given a turn make nobody leave beside others: 1 + rate x T
/// leave in any interval T.
#[tokio::test(start_paused = true)]
async fn a_refusal_in_another_slot_gives_no_turn_away_twice() {
    let (store, remote) = VirtualStore::start_with(5 * MS, Duration::from_millis(100), true);
    let node = Arc::new(Node::over(&store, remote, PACE));
    let mut tasks = Vec::new();
    for round in 0..2 {
        for n in 0..60 {
            let (node, clock) = (Arc::clone(&node), Arc::clone(&store.clock));
            tasks.push(tokio::spawn(async move {
                // Two of three are of one user, whose ten units are gone soon.
                let user = if n % 3 == 0 { format!("{round} {n}") } else { "busy".to_owned() };
                let keys = [("x-key", "k"), ("x-user", &*user)];
                let (decision, _pending) = node.open("/", &keys).await;
                let leaves = clock.now().mono.saturating_add(decision.wait());
                (decision.outcome == Outcome::Allowed).then_some(leaves)
            }));
        }
        virtual_time(400 * MS).await;
    }
    let mut leaves = Vec::new();
    for task in tasks {
        leaves.extend(task.await.unwrap());
    }
    leaves.sort_unstable();
    assert!(leaves.len() > 40, "{leaves:?}");
    for (index, first) in leaves.iter().enumerate() {
        let until = first.saturating_add(Nanos::SECOND);
        let within = leaves[index..].iter().take_while(|at| **at < until).count();
        assert!(within <= 11, "{within} in a second from {first:?}: {leaves:?}");
    }
}

/// A store that hangs for three seconds, its timeout, and is away from then on. What waited for it is judged
/// by this node together with what has just come: nobody by the time at which he came.
async fn a_hanging_store(algorithm: &str, rate: &str, every: Duration) -> Vec<(Nanos, Outcome)> {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let policy = format!(
        "limits: {{ l: {{ tier: exact, algorithm: {algorithm}, rate: {rate}, key: client_ip }} }}\n\
         routes: [{{ name: r, limits: [l] }}]"
    );
    let (store, remote) = VirtualStore::start(MS, TIMEOUT);
    let node = Arc::new(Node::over(&store, remote, &policy));
    store.plan(Plan::LoseReply);
    let mut asked = Vec::new();
    let began = store.clock.now().mono;
    while Duration::from(store.clock.now().mono.saturating_sub(began)) < 3 * TIMEOUT {
        if Duration::from(store.clock.now().mono.saturating_sub(began)) >= TIMEOUT {
            store.set_readiness(Readiness::Away);
        }
        let (node, clock) = (Arc::clone(&node), Arc::clone(&store.clock));
        asked.push(tokio::spawn(async move {
            let decision = node.decide("/", &[]).await;
            (clock.now().wall, decision.outcome)
        }));
        virtual_time(every).await;
    }
    let mut answered = Vec::new();
    for one in asked {
        answered.push(one.await.unwrap());
    }
    answered
}

#[tokio::test(start_paused = true)]
async fn what_waited_for_a_hanging_store_is_judged_when_the_wait_is_over() {
    for algorithm in ["fixed_window", "sliding_window", "sliding_log", "token_bucket"] {
        let answered = a_hanging_store(algorithm, "10/1s", 2 * MS).await;
        let mut seconds = std::collections::BTreeMap::<u64, u32>::new();
        for (at, _) in answered.iter().filter(|(_, outcome)| *outcome == Outcome::Allowed) {
            *seconds.entry(at.secs()).or_default() += 1;
        }
        // A bucket has its burst and a second's refill in its first second.
        let most = if algorithm == "token_bucket" { 20 } else { 10 };
        assert!(seconds.values().all(|admitted| *admitted <= most), "{algorithm}: {seconds:?}");
    }
    let answered = a_hanging_store("token_bucket", "10/1s", Duration::from_secs(1)).await;
    assert!(answered.iter().all(|(_, outcome)| *outcome == Outcome::Allowed), "{answered:?}");
}
