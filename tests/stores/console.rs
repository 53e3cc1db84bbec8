//! An evening at the console: a flood comes, an operator finds out who it is, explains a refusal to a customer, lets the customer
//! through, bans the flood, and the audit log tells the story. With the commands that an operator types.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::redis_servers::{Cluster, Redis};
use support::servers::{Gate, Origin, client, client_from, eventually, origin_yaml};

const POLICY: &str = "
limits:
  writes: { tier: exact, algorithm: fixed_window, rate: 5/30d, key: header:x-api-key, missing_key: skip }
  pages: { tier: estimate, rate: 200/1h, key: client_ip }
routes:
  - { name: writes, match: { methods: [POST] }, limits: [writes] }
  - { name: pages, limits: [pages] }
access_log: { to: none }
check: { silence: [fixed-key-secret, spoofable-key, unlimited-preflights] }
";

/// The longest time until a change holds on the other node.
const EVERYWHERE: Duration = Duration::from_secs(1);

async fn node(origin: &Origin, store: &str) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "0123456789abcdef").unwrap();
    let admin = "  token_file: token\n  show_addresses: true\n";
    let policy = format!("{admin}{}{store}\n{POLICY}", origin_yaml(origin.address));
    Gate::start_in(folder, &policy, "").await
}

/// What `tollgate ctl .. --json` answers.
fn ctl(node: &Gate, words: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["ctl", "--json", "--config"])
        .arg(node.file())
        .args(words)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{words:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_str(&text).unwrap()
}

async fn write(node: &Gate, key: &str) -> reqwest::Response {
    client().post(node.url("/orders")).header("x-api-key", key).send().await.unwrap()
}

fn first(answer: &Value, list: &str) -> Value {
    answer[list][0].clone()
}

async fn an_evening(store: &str, nodes: usize) {
    let origin = Origin::start("site").await;
    let mut gates = Vec::new();
    for _ in 0..nodes {
        gates.push(node(&origin, store).await);
    }
    let (a, b) = (&gates[0], gates.last().unwrap());

    // A flood of one key and of one address, a customer among it, and refused keys of no interest.
    let flood = client_from([127, 0, 0, 9].into());
    for n in 0..60 {
        write(a, "k-flood").await;
        if n % 10 == 0 {
            for _ in 0..6 {
                write(a, &format!("k-other-{n}")).await;
            }
        }
    }
    for _ in 0..260 {
        flood.get(a.url("/")).send().await.unwrap();
    }
    for _ in 0..5 {
        assert_eq!(write(a, "k-customer").await.status(), 200);
    }
    let refused = write(b, "k-customer").await;
    assert_eq!(refused.status(), 429);
    let id = refused.headers()["x-request-id"].to_str().unwrap().to_owned();

    // Who is it?
    let top = ctl(a, &["top", "writes"]);
    let heaviest = first(&top, "keys");
    assert_eq!(heaviest["refused"], 55, "{top}");
    let flood_key = heaviest["hash"].as_str().unwrap().to_owned();
    let top = ctl(a, &["top", "pages"]);
    assert_eq!(first(&top, "keys")["address"], "127.0.0.9", "{top}");
    let history = ctl(a, &["history"]);
    assert!(history.to_string().contains("\"writes\""), "{history}");

    // Why was the customer refused?
    let why = ctl(b, &["why", &id]);
    let limit = first(&why, "limits");
    assert_eq!(
        (&limit["name"], &limit["spent"], &limit["limit"]),
        (&"writes".into(), &5.into(), &5.into())
    );
    assert_eq!(why["route"], "writes");

    // The customer gets more for two hours, on both nodes; the flood gets nothing.
    let reason = ["--reason", "launch tonight"];
    ctl(
        a,
        &[
            &["key", "override", "writes", "k-customer", "--rate", "50/30d", "--for", "2h"][..],
            &reason,
        ]
        .concat(),
    );
    let through = eventually(EVERYWHERE, || async { write(b, "k-customer").await.status() == 200 });
    assert!(through.await, "within {EVERYWHERE:?}");
    assert_eq!(write(a, "k-customer").await.status(), 200);
    ctl(b, &["key", "ban", "writes", "--hash", &flood_key, "--for", "1h", "--reason", "flood"]);
    let banned = eventually(EVERYWHERE, || async {
        write(a, "k-flood").await.text().await.unwrap().contains("abnormal-usage-detected")
    });
    assert!(banned.await);
    let overrides = ctl(b, &["overrides"]);
    assert_eq!(overrides["overrides"].as_array().unwrap().len(), 2, "{overrides}");

    // The audit log tells the story, without any key.
    let stories: Vec<Value> = gates.iter().map(|gate| ctl(gate, &["audit"])).collect();
    let told = stories.iter().map(Value::to_string).collect::<String>();
    assert!(told.contains("launch tonight") && told.contains("flood"), "{told}");
    let everything = format!("{told}{overrides}{top}{why}{}{}", a.log(), b.log());
    assert!(!everything.contains("k-customer") && !everything.contains("k-flood"), "{everything}");
}

#[tokio::test]
async fn an_evening_with_the_embedded_store() {
    let _alone = crate::alone().await;
    an_evening("", 1).await;
}

#[tokio::test]
async fn an_evening_with_two_nodes_of_one_server() {
    let _alone = crate::alone().await;
    let redis = Redis::start(&[]).await;
    an_evening(&format!("store: {{ redis: {{ url: \"{}\", timeout: 1s }} }}", redis.url()), 2)
        .await;
    let rules: Vec<String> = redis.ask(&["HGETALL", "tollgate:{bans}:rules"]);
    let kept = format!("{rules:?}{:?}", redis.ask::<Vec<String>>(&["KEYS", "*"]));
    assert!(kept.contains("launch tonight"), "{kept}");
    assert!(!kept.contains("k-customer") && !kept.contains("k-flood"), "no key is stored: {kept}");
}

#[tokio::test]
async fn an_evening_with_two_nodes_of_a_cluster() {
    let _alone = crate::alone().await;
    let cluster = Cluster::start().await;
    an_evening(&format!("store: {{ redis: {{ {}, timeout: 1s }} }}", cluster.yaml()), 2).await;
}
