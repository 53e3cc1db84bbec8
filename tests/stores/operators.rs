//! What operators change on one node holds on all nodes that share a store: overrides, bans, resets and their ends.

use std::time::Duration;

use serde_json::{Value, json};

use crate::redis_servers::{Cluster, Redis, Watched};
use support::servers::{Gate, Origin, client, eventually, origin_yaml};

/// The longest time until a change holds on another node.
const EVERYWHERE: Duration = Duration::from_secs(1);

const TOKEN: &str = "0123456789abcdef";

/// Two limits of one key, as a stack, with everything that a key may be counted in.
const POLICY: &str = "
limits:
  writes:
    tier: exact
    algorithm: fixed_window
    rate: 3/30d
    key: [header:x-org, header:x-key]
    missing_key: skip
    candidate: { rate: 2/30d }
    refund: { status: [500] }
  org: { tier: exact, algorithm: token_bucket, rate: 50/30d, key: header:x-org, missing_key: skip }
routes: [{ name: r, limits: [org, writes] }]
access_log: { to: none }
check: { silence: [fixed-key-secret, spoofable-key, unlimited-preflights] }
";

async fn node(origin: &Origin, store: &str) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), TOKEN).unwrap();
    let policy = format!(
        "  token_file: token\n{}store: {{ redis: {{ {store}, timeout: 1s }} }}\n{POLICY}",
        origin_yaml(origin.address)
    );
    Gate::start_in(folder, &policy, "").await
}

async fn change(node: &Gate, path: &str, more: Value) -> Value {
    let mut body = json!({ "limit": "writes", "key": ["acme", "k1"], "reason": "a test" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let url = format!("http://127.0.0.1:{}{path}", node.admin);
    let answer = client().post(url).bearer_auth(TOKEN).body(body.to_string()).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

async fn status(node: &Gate, key: &str) -> u16 {
    let sent =
        client().get(node.url("/")).header("x-org", "acme").header("x-key", key).send().await;
    sent.unwrap().status().as_u16()
}

/// How many of `times` requests pass.
async fn admitted(node: &Gate, key: &str, times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(status(node, key).await == 200);
    }
    admitted
}

/// Waits until a node has as many rules, at most as long as a change may take.
async fn has_rules(node: &Gate, count: usize) {
    let url = format!("http://127.0.0.1:{}/overrides", node.admin);
    let learned = eventually(EVERYWHERE, || async {
        let answer = client().get(&url).bearer_auth(TOKEN).send().await.unwrap();
        let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        answer["overrides"].as_array().unwrap().len() == count
    });
    assert!(learned.await, "{count} rules within {EVERYWHERE:?}");
}

/// An evening with two nodes of one store.
async fn an_evening(origin: &Origin, store: &str) {
    let (a, b) = (node(origin, store).await, node(origin, store).await);
    assert_eq!((admitted(&a, "k1", 5).await, admitted(&b, "k1", 2).await), (3, 0));

    // A rate raised on one node admits the customer on the other.
    let state = change(&a, "/keys/override", json!({ "rate": "7/30d", "for": "2h" })).await;
    assert_eq!((&state["spent"], &state["remaining"]), (&json!(3), &json!(4)));
    has_rules(&b, 1).await;
    assert_eq!((admitted(&b, "k1", 3).await, admitted(&a, "k1", 3).await), (3, 1));

    // A reset on one node is one on the other, whatever it has cached.
    let state = change(&b, "/keys/reset", json!({})).await;
    assert_eq!((&state["spent"], &state["remaining"]), (&json!(0), &json!(7)));
    assert_eq!(admitted(&b, "k1", 2).await, 2);
    let forgotten = eventually(EVERYWHERE, || async { status(&a, "k1").await == 200 });
    assert!(forgotten.await, "the other node has forgotten its denials");

    // A ban, and its end.
    change(&b, "/keys/ban", json!({ "for": "1h" })).await;
    assert_eq!(status(&b, "k1").await, 429);
    has_rules(&a, 2).await;
    let refused = client().get(a.url("/")).header("x-org", "acme").header("x-key", "k1");
    let text = refused.send().await.unwrap().text().await.unwrap();
    assert!(text.contains("abnormal-usage-detected"), "{text}");
    assert_eq!(status(&a, "k2").await, 200, "another key of the organisation");
    change(&a, "/keys/unban", json!({})).await;
    assert_eq!(status(&a, "k1").await, 200);
    has_rules(&b, 1).await;
    assert_eq!(status(&b, "k1").await, 200);

    // A node that starts later knows the rule, and a reload keeps it.
    let c = node(origin, store).await;
    has_rules(&c, 1).await;
    let url = format!("http://127.0.0.1:{}/reload", c.admin);
    let reloaded = client().post(url).bearer_auth(TOKEN).send().await.unwrap();
    assert_eq!(reloaded.status(), 200);
    has_rules(&c, 1).await;

    // An override that is ended ends everywhere; what was spent stays spent.
    change(&c, "/keys/override", json!({ "action": "none" })).await;
    has_rules(&a, 0).await;
    has_rules(&b, 0).await;
    assert_eq!((admitted(&a, "k1", 2).await, admitted(&b, "k1", 2).await), (0, 0));

    // An override of two seconds ends by itself.
    change(&a, "/keys/override", json!({ "action": "allow", "for": "2s" })).await;
    has_rules(&b, 1).await;
    assert_eq!(admitted(&b, "k1", 5).await, 5);
    let ended = eventually(Duration::from_secs(4), || async {
        status(&a, "k1").await == 429 && status(&b, "k1").await == 429
    });
    assert!(ended.await, "it has an end");
}

#[tokio::test]
async fn changes_of_one_node_hold_on_all_nodes_over_one_server() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    an_evening(&origin, &format!("url: \"{}\"", redis.url())).await;
}

#[tokio::test]
async fn changes_of_one_node_hold_on_all_nodes_over_a_cluster() {
    let _alone = crate::alone().await;
    let (origin, cluster) = (Origin::start("site").await, Cluster::start().await);
    an_evening(&origin, &cluster.yaml()).await;
}

#[tokio::test]
async fn changes_of_one_node_hold_on_all_nodes_over_sentinels() {
    let _alone = crate::alone().await;
    let (origin, watched) = (Origin::start("site").await, Watched::start().await);
    an_evening(&origin, &watched.yaml()).await;
}

#[tokio::test]
async fn rules_outlive_a_store_that_loses_them_and_changes_need_the_store() {
    let _alone = crate::alone().await;
    let (origin, mut redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let (a, b) = (node(&origin, &store).await, node(&origin, &store).await);
    change(&a, "/keys/override", json!({ "action": "allow", "for": "2h" })).await;
    has_rules(&b, 1).await;
    assert_eq!(admitted(&b, "k1", 9).await, 9);

    let _: String = redis.ask(&["FLUSHALL"]);
    let restored = eventually(EVERYWHERE, || async {
        redis.ask::<Vec<String>>(&["KEYS", "*rules*"]).len() == 1
    });
    assert!(restored.await, "a node that knows the rules tells the store again");
    has_rules(&a, 1).await;
    has_rules(&b, 1).await;
    assert_eq!(admitted(&b, "k1", 9).await, 9);

    redis.kill();
    let url = format!("http://127.0.0.1:{}/keys/ban", a.admin);
    let body = json!({ "limit": "writes", "key": ["acme", "k2"], "for": "1h", "reason": "a test" });
    let answer = client().post(url).bearer_auth(TOKEN).body(body.to_string()).send().await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(admitted(&a, "k1", 9).await, 9, "the rule holds while the store is away");
    redis.restart().await;
    let again = eventually(Duration::from_secs(10), || async {
        let url = format!("http://127.0.0.1:{}/keys/ban", b.admin);
        let sent = client().post(url).bearer_auth(TOKEN).body(body.to_string()).send().await;
        sent.unwrap().status() == 200
    });
    assert!(again.await);
    has_rules(&a, 2).await;
    assert_eq!((status(&a, "k2").await, admitted(&a, "k1", 9).await), (429, 9));
}
