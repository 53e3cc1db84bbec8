//! `run --upgrade` with a shared store: the store counts for both processes, and requests in flight, which each node counts by
//! itself, go over.

use std::time::Duration;

use support::servers::{Gate, eventually, origin_yaml};
use support::spending::{CountingOrigin, Spenders};

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
