//! `run --upgrade` with a shared store: the store counts for both processes, and requests in flight, which each node counts by
//! itself, go over. So do estimate limits, which each node counts too.

use std::time::Duration;

use support::servers::{Gate, eventually, origin_yaml};
use support::spending::{CountingOrigin, Kept, Spenders, ask, ask_at};

use crate::fleet::all_meet;
use crate::fleet_restarts::{EVERY, all_know};
use crate::redis_servers::Redis;

const LIMIT: usize = 60;

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

/// Keys that come over old and new connections get their estimate limit once on this node and on the others, and what the
/// store refuses costs them nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_over_old_and_new_connections_gets_its_estimate_limit_once() {
    let _alone = crate::alone().await;
    let (origin, redis) = (CountingOrigin::start().await, Redis::start(&[]).await);
    let policy = format!(
        "{}store: {{ redis: {{ {}, timeout: 1s }} }}
fleet: {{ error: 10%, every: {}ms }}
limits:
  pages: {{ tier: estimate, rate: 50/10d, scope: fleet, key: header:x-key, missing_key: deny }}
  writes: {{ tier: exact, rate: 5/10d, key: header:x-key, missing_key: deny }}
routes:
  - {{ name: writes, match: {{ path: /writes }}, limits: [pages, writes] }}
  - {{ name: pages, limits: [pages] }}
limits_of_this_proxy: {{ drain: 20s, finish: 30s }}
",
        origin_yaml(origin.address),
        redis.yaml(),
        EVERY.as_millis(),
    );
    let (old, other) = (Gate::start(&policy).await, Gate::start(&policy).await);
    all_meet(&[&old, &other], 2).await;
    let mut before = OldConnections::open(old.port, 40).await;
    let (mut new_kept, mut other_kept) = (None, None);
    for _ in 0..10 {
        assert_eq!(ask(old.port, 1, &mut None).await, Ok(true));
    }
    let mut new = old.successor();
    let waits = || async { old.log().contains("a successor is waiting") };
    assert!(eventually(Duration::from_secs(20), waits).await, "{}", new.log());
    old.signal("QUIT");
    let counts = || async { old.log().contains("the successor counts") };
    assert!(eventually(Duration::from_secs(20), counts).await, "{}", old.log());
    new.wait_ready().await;
    let mut over_new = async |requests: usize| {
        let mut admitted = 0;
        for _ in 0..requests {
            admitted += usize::from(ask(new.port, 1, &mut new_kept).await.unwrap());
        }
        admitted
    };
    assert_eq!(before.admitted("/", 1, 10).await, 10);
    assert_eq!(over_new(15).await, 15);
    assert_eq!(before.admitted("/writes", 1, 12).await, 5, "the store refuses the others");
    assert_eq!(over_new(20).await, 10, "40 of 50 are spent: {}\n{}", old.log(), new.log());
    assert_eq!(before.admitted("/", 1, 5).await, 0, "50 of 50 are spent: {}", old.log());
    assert_eq!(before.admitted("/", 2, 10).await, 10);
    all_know(&[&new, &other]).await;
    let mut over_other = async |key: usize, requests: usize| {
        let mut admitted = 0;
        for _ in 0..requests {
            admitted += usize::from(ask(other.port, key, &mut other_kept).await.unwrap());
        }
        admitted
    };
    assert_eq!(over_other(1, 3).await, 0, "{}", other.log());
    assert_eq!(over_other(2, 60).await, 40, "10 on old connections: {}", other.log());
}
