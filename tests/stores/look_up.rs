//! `POST /keys`: what a key has spent, in every store, and that asking changes nothing.

use serde_json::{Value, json};

use crate::redis_servers::{Cluster, Redis};
use support::servers::{Gate, Origin, client, origin_yaml};

const LIMITS: &str = "
limits:
  org: { tier: exact, algorithm: token_bucket, rate: 1/1d, burst: 1000, key: header:x-org, missing_key: deny }
  user: { tier: exact, algorithm: sliding_log, rate: 50/1d, key: [header:x-org, header:x-user], missing_key: deny }
  writes: { tier: exact, algorithm: fixed_window, rate: 60/30d, key: header:x-api-key, missing_key: client_ip, overrides: [{ key: demo, rate: 7/30d }] }
  plans: { tier: exact, algorithm: fixed_window, rate: 60/30d, key: client_ip, plans: { by: header:x-plan, rates: { gold: 500/30d } } }
  running: { tier: exact, max_in_flight: 9, key: client_ip }
  views: { tier: estimate, rate: 100/1d, key: client_ip }
routes: [{ name: r, limits: [org, user, { limit: writes, cost: 2 }, plans, running, views] }]
access_log: { to: none }
check: { silence: [fixed-key-secret, spoofable-key] }
";

async fn ask(gate: &Gate, question: &Value) -> (u16, Value) {
    let url = format!("http://127.0.0.1:{}/keys", gate.admin);
    let answer = client().post(url).body(question.to_string()).send().await.unwrap();
    let status = answer.status().as_u16();
    (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap())
}

async fn spent(gate: &Gate, question: Value) -> (u64, u64) {
    let (status, state) = ask(gate, &question).await;
    assert_eq!(status, 200, "{question}: {state}");
    assert_eq!(
        state["spent"].as_u64().unwrap() + state["remaining"].as_u64().unwrap(),
        state["of"].as_u64().unwrap(),
        "{state}"
    );
    (state["spent"].as_u64().unwrap(), state["of"].as_u64().unwrap())
}

async fn send(gate: &Gate, key: Option<&str>) -> u16 {
    let mut request = client().get(gate.url("/")).header("x-org", "acme").header("x-user", "ann");
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    request.send().await.unwrap().status().as_u16()
}

async fn answers(store: &str) {
    let origin = Origin::start("site").await;
    let gate =
        Gate::start(&format!("store: {store}\n{}{LIMITS}", origin_yaml(origin.address))).await;
    for _ in 0..3 {
        assert_eq!(send(&gate, Some("k1")).await, 200);
    }
    for _ in 0..3 {
        assert_eq!(send(&gate, Some("demo")).await, 200);
    }
    // The seventh unit is left, and a request costs two.
    assert_eq!(send(&gate, Some("demo")).await, 429);
    assert_eq!(send(&gate, None).await, 200);
    // Asking twice: the second answer is the first.
    for _ in 0..2 {
        for (question, expected) in [
            (json!({ "limit": "org", "key": "acme" }), (7, 1_000)),
            (json!({ "limit": "org", "key": ["nobody"] }), (0, 1_000)),
            (json!({ "limit": "user", "key": ["acme", "ann"] }), (7, 50)),
            (json!({ "limit": "user", "key": ["acme", "bob"] }), (0, 50)),
            (json!({ "limit": "writes", "key": "k1" }), (6, 60)),
            (json!({ "limit": "writes", "key": "demo" }), (6, 7)),
            (json!({ "limit": "writes", "key": { "client_ip": "127.0.0.1" } }), (2, 60)),
            (json!({ "limit": "plans", "key": "127.0.0.1" }), (7, 60)),
            (json!({ "limit": "plans", "key": "127.0.0.1", "plan": "gold" }), (7, 500)),
            (json!({ "limit": "running", "key": "127.0.0.1" }), (0, 9)),
        ] {
            assert_eq!(spent(&gate, question.clone()).await, expected, "{question} in {store}");
        }
        let (_, state) = ask(&gate, &json!({ "limit": "writes", "key": "demo" })).await;
        assert_eq!(state["override"]["rate"], "7/30d", "as it is configured");
        // By the hash that an answer shows.
        let (_, state) = ask(&gate, &json!({ "limit": "writes", "key": "k1" })).await;
        let by_hash = json!({ "limit": "writes", "key": { "hash": state["hash"] } });
        assert_eq!(spent(&gate, by_hash).await, (6, 60));
        let (views, of) = spent(&gate, json!({ "limit": "views", "key": "127.0.0.1" })).await;
        assert!(
            views <= 7 && of == 100,
            "{views}: an unconfirmed key has spent nothing for certain"
        );
    }
    for (question, status, words) in [
        (json!({ "limit": "none", "key": "k" }), 404, "no limit of this name"),
        (json!({ "limit": "plans", "key": "127.0.0.1", "plan": "tin" }), 404, "no plan \"tin\""),
        (json!({ "limit": "plans", "key": "s3cret" }), 400, "is no address"),
        (json!({ "limit": "user", "key": "s3cret" }), 400, "which has 2"),
        (json!({ "limit": "writes", "key": "" }), 400, "empty"),
        (json!({ "limit": "writes", "key": { "hash": "00" } }), 400, "32 hexadecimal digits"),
        (json!({ "limit": "writes", "key": "s3cret", "more": 1 }), 400, "write {"),
    ] {
        let (found, problem) = ask(&gate, &question).await;
        let detail = problem["detail"].as_str().unwrap();
        assert!(found == status && detail.contains(words), "{question}: {found} {problem}");
        assert!(!problem.to_string().contains("s3cret"), "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_looked_up_in_this_process() {
    let _alone = crate::alone().await;
    answers("embedded").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_looked_up_in_a_server_and_in_a_cluster() {
    let _alone = crate::alone().await;
    let redis = Redis::start(&[]).await;
    answers(&format!("{{ redis: {{ url: \"{}\", timeout: 1s }} }}", redis.url())).await;
    let cluster = Cluster::start().await;
    answers(&format!("{{ redis: {{ {}, timeout: 1s }} }}", cluster.yaml())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_answer_is_told() {
    let _alone = crate::alone().await;
    let origin = Origin::start("site").await;
    let redis = Redis::start(&[]).await;
    let store = format!("{{ redis: {{ url: \"{}\", timeout: 50ms }} }}", redis.url());
    let gate =
        Gate::start(&format!("store: {store}\n{}{LIMITS}", origin_yaml(origin.address))).await;
    drop(redis);
    let (status, problem) = ask(&gate, &json!({ "limit": "org", "key": "acme" })).await;
    assert_eq!((status, problem["detail"].as_str().unwrap()), (503, "the store does not answer"));
}
