//! What an answer gives back, while clients and origins leave at every point: what the cell says is
//! what was admitted and not given back.

use std::sync::Arc;
use std::time::Duration;

use crate::redis_servers::{Cluster, Redis};
use support::moody;
use support::servers::{Gate, eventually, metric};

const CLIENTS: u64 = 64;
const REQUESTS: u64 = 25;

fn policy(origin: std::net::SocketAddr, store: &str, counted: &str) -> String {
    format!(
        "origins: {{ site: {{ servers: [\"{origin}\"], timeouts: {{ read: 1s }} }} }}
store: {store}
limits:
  one: {{ tier: exact, algorithm: fixed_window, rate: 100000/30d, key: header:x-api-key, missing_key: deny, {counted} }}
routes: [{{ name: r, limits: [one] }}]
access_log: {{ to: none }}
check: {{ silence: [fixed-key-secret, spoofable-key] }}
"
    )
}

/// 64 clients that leave, and an origin that fails, at random points.
async fn trouble(port: u16) {
    let clients = (0..CLIENTS).map(|seed| {
        tokio::task::spawn_blocking(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..REQUESTS {
                let mood = random.choice(moody::MOODS).unwrap();
                let leave = random.choice(moody::LEAVES).unwrap();
                moody::ask(port, mood, leave, random.u64(0..12));
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
}

/// What the cell says, by a request that is given back itself.
async fn told(gate: &Gate) -> u64 {
    let asked = support::servers::client().get(gate.url("/")).header("x-api-key", "k");
    let answer = asked.header("x-mood", "200").send().await.unwrap();
    let left: u64 = answer.headers()["x-ratelimit-remaining"].to_str().unwrap().parse().unwrap();
    100_000 - left
}

/// What was admitted and not given back, by the proxy's books: `back` are the classes of answers
/// that give back.
async fn kept(gate: &Gate, back: &[&str]) -> u64 {
    let text = gate.metrics().await;
    let admitted =
        "tollgate_decisions_total{limit=\"one\",tier=\"exact\",verdict=\"allowed\"}".to_owned();
    let given = back.iter().map(|class| {
        metric(
            &text,
            &format!("tollgate_origin_requests_total{{origin=\"site\",class=\"{class}\"}}"),
        )
    });
    (metric(&text, &admitted) - given.sum::<f64>()) as u64
}

async fn settles(store: &str) {
    let (origin, _) = moody::start();
    let policy = policy(origin, store, "count: { status: [401, 503] }");
    let gate = Gate::start(&policy).await;
    trouble(gate.port).await;
    // What the last ones left behind ends by itself: the origin is given a second.
    let settled = eventually(Duration::from_secs(20), || async {
        told(&gate).await == kept(&gate, &["1xx", "2xx"]).await
    });
    let (cell, books) = (told(&gate).await, kept(&gate, &["1xx", "2xx"]).await);
    assert!(settled.await, "the cell says {cell}, the books {books}");
    let text = gate.metrics().await;
    let answered = |class: &str| {
        metric(
            &text,
            &format!("tollgate_origin_requests_total{{origin=\"site\",class=\"{class}\"}}"),
        )
    };
    assert!(answered("2xx") > 100.0 && answered("4xx") > 50.0 && cell > 100, "{text}");
    assert!(!gate.log().contains("panic"), "{}", gate.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_give_back_exactly_in_this_process() {
    let _alone = crate::alone().await;
    settles("embedded").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_give_back_exactly_in_a_store() {
    let _alone = crate::alone().await;
    let redis = Redis::start(&[]).await;
    settles(&format!("{{ redis: {{ url: \"{}\", timeout: 1s }} }}", redis.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ban_is_seen_by_all_nodes_within_a_second() {
    let _alone = crate::alone().await;
    let redis = Redis::start(&[]).await;
    bans(&format!("{{ redis: {{ url: \"{}\", timeout: 1s }} }}", redis.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ban_is_seen_by_all_nodes_of_a_cluster() {
    let _alone = crate::alone().await;
    let cluster = Cluster::start().await;
    bans(&format!("{{ redis: {{ {}, timeout: 1s }} }}", cluster.yaml())).await;
}

/// A ban that one node makes is known to the other within a second.
async fn bans(store: &str) {
    let (origin, _) = moody::start();
    let rule = "penalty: { after: 3, within: 1m, ban: 10m, double_up_to: 1h }";
    let policy = policy(origin, store, rule).replace("100000/30d", "2/30d");
    let nodes = [Gate::start(&policy).await, Gate::start(&policy).await];
    let client = support::servers::client();
    let ask = async |gate: &Gate, key: &str| {
        let answer = client.get(gate.url("/")).header("x-api-key", key).send().await.unwrap();
        let wait =
            answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        (answer.status().as_u16(), wait, answer.text().await.unwrap())
    };
    for _ in 0..5 {
        ask(&nodes[0], "bad").await;
    }
    let began = support::servers::now();
    let (status, _, body) = ask(&nodes[0], "bad").await;
    assert!(status == 429 && body.contains("#abnormal-usage-detected"), "{body}");
    let known = eventually(Duration::from_secs(3), || async {
        ask(&nodes[1], "bad").await.2.contains("#abnormal-usage-detected")
    });
    assert!(known.await, "the other node was never told");
    let took = began.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    let (_, wait, _) = ask(&nodes[1], "bad").await;
    let wait: u64 = wait.unwrap().parse().unwrap();
    assert!((595..=600).contains(&wait), "{wait}");
    assert_eq!(ask(&nodes[1], "good").await.0, 200);
    // It is in the store: a node that starts later hears of it.
    let late = Gate::start(&policy).await;
    let known = eventually(Duration::from_secs(3), || async {
        ask(&late, "bad").await.2.contains("#abnormal-usage-detected")
    });
    assert!(known.await, "a node that starts later hears of it");
    let metrics = nodes[0].metrics().await;
    assert_eq!(metric(&metrics, "tollgate_bans_total{limit=\"one\"}"), 1.0);
    assert_eq!(metric(&metrics, "tollgate_banned_keys"), 1.0);
}

/// Thousands of bans at once reach the other node soon: each makes two requests, of which the second is denied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_bans_are_told() {
    const KEYS: usize = 2_000;
    let _alone = crate::alone().await;
    let redis = Redis::start(&[]).await;
    let policy = "limits: { l: { tier: exact, rate: 1/1h, key: header:x-key, missing_key: deny, \
                  penalty: { after: 1, within: 1m, ban: 10m } } }\nroutes: [{ name: r, limits: [l] }]";
    let start = async || {
        let servers = crate::engines::one(redis.port);
        Arc::new(crate::engines::Node::start(servers, Duration::from_secs(1), policy).await)
    };
    let nodes = [start().await, start().await];
    let banned = |n: usize| nodes[n].engine.bans().count(nodes[n].engine.now().mono);
    let callers = (0..50).map(|caller| {
        let node = Arc::clone(&nodes[0]);
        tokio::spawn(async move {
            for key in (caller..KEYS).step_by(50) {
                let key = key.to_string();
                node.decide("/", &[("x-key", &key)]).await;
                node.decide("/", &[("x-key", &key)]).await;
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    assert_eq!(banned(0), KEYS);
    let began = support::servers::now();
    let all = eventually(Duration::from_secs(10), || async { banned(1) == KEYS });
    assert!(all.await, "{} of {KEYS} are known", banned(1));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// An outage is nobody's fault: what is refused because of it leads to no ban.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_bans_nobody() {
    let _alone = crate::alone().await;
    let redis = Redis::start(&[]).await;
    let policy = "limits: { l: { tier: exact, rate: 2/1h, key: header:x-key, missing_key: deny, \
                  on_store_failure: deny, penalty: { after: 2, within: 1m, ban: 10m } } }\n\
                  routes: [{ name: r, limits: [l] }]";
    let second = Duration::from_secs(1);
    let node = crate::engines::Node::start(crate::engines::one(redis.port), second, policy).await;
    assert!(node.allows("/", &[("x-key", "k")]).await);
    drop(redis);
    for _ in 0..10 {
        let decision = node.decide("/", &[("x-key", "k")]).await;
        assert_eq!(decision.outcome, tollgate::engine::Outcome::Outage);
    }
    assert_eq!(node.engine.bans().count(node.engine.now().mono), 0);
}

/// While the store is away this node gives back by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_give_back_while_the_store_is_away() {
    let _alone = crate::alone().await;
    let redis = Redis::start(&[]).await;
    let policy = "limits: { l: { tier: exact, rate: 2/1h, key: header:x-key, missing_key: deny, \
                  count: { status: [401] } } }\nroutes: [{ name: r, limits: [l] }]";
    let second = Duration::from_secs(1);
    let node = crate::engines::Node::start(crate::engines::one(redis.port), second, policy).await;
    drop(redis);
    let answered = async |status: u16| {
        let (mut decision, mut pending) = node.open("/", &[("x-key", "k")]).await;
        let headers = http::HeaderMap::new();
        let response =
            tollgate::engine::FinalResponse { status, headers: &headers, by_origin: true };
        node.engine.finish(&node.generation, &mut decision, &mut pending, &response);
        assert!(decision.is_degraded(), "{decision:?}");
        decision.outcome == tollgate::engine::Outcome::Allowed
    };
    for _ in 0..20 {
        assert!(answered(200).await);
    }
    assert!(answered(401).await && answered(401).await);
    assert!(!answered(200).await);
}

/// Each further ban is twice as long, whichever node makes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bans_of_all_nodes_double() {
    let _alone = crate::alone().await;
    let ((origin, _), redis) = (moody::start(), Redis::start(&[]).await);
    let store = format!("{{ redis: {{ url: \"{}\", timeout: 1s }} }}", redis.url());
    let rule = "penalty: { after: 3, within: 1m, ban: 1s, double_up_to: 1h }";
    let policy = policy(origin, &store, rule).replace("100000/30d", "1/30d");
    let nodes = [Gate::start(&policy).await, Gate::start(&policy).await];
    let client = support::servers::client();
    let banned = async |gate: &Gate| {
        let answer = client.get(gate.url("/")).header("x-api-key", "bad").send().await.unwrap();
        let wait = answer.headers().get("retry-after").cloned();
        let wait: Option<u64> = wait.and_then(|value| value.to_str().unwrap().parse().ok());
        let banned = answer.text().await.unwrap().contains("#abnormal-usage-detected");
        wait.filter(|_| banned)
    };
    let told = async |level: &str| {
        let told = eventually(Duration::from_secs(3), || async {
            let kept: Vec<String> = redis.ask(&["HVALS", "tollgate:{bans}:of"]);
            kept.len() == 1 && kept[0].starts_with(level)
        });
        assert!(told.await, "the store never had level {level}");
    };
    for _ in 0..5 {
        banned(&nodes[0]).await;
    }
    told("1 ").await;
    let known = eventually(Duration::from_secs(1), || async { banned(&nodes[1]).await.is_some() });
    assert!(known.await);
    let over = eventually(Duration::from_secs(5), || async { banned(&nodes[1]).await.is_none() });
    assert!(over.await, "a ban ends");
    // The other node has made no ban yet: by itself it would begin with one second again.
    for _ in 0..3 {
        banned(&nodes[1]).await;
    }
    told("2 ").await;
    let longer =
        eventually(Duration::from_secs(1), || async { banned(&nodes[0]).await == Some(2) });
    assert!(longer.await, "{:?}", banned(&nodes[0]).await);
}

/// An origin that names 700 units in its body and goes on. Returns its address.
async fn endless_origin() -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let answer =
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"u\":700, ";
                let _ = stream.write_all(answer).await;
                // Until the proxy closes.
                let _ = stream.read(&mut head).await;
            });
        }
    });
    address
}

/// What is cut when the time to finish is over is settled in the store and logged, and then the process ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_cut_at_the_end_are_settled_and_logged() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let _alone = crate::alone().await;
    let redis = Redis::start(&[]).await;
    let origin = endless_origin().await;
    let mut gate = Gate::start(&format!(
        "origins: {{ site: {{ servers: [\"{origin}\"] }} }}
store: {{ redis: {{ url: \"{}\" }} }}
limits:
  units: {{ tier: exact, algorithm: fixed_window, rate: 1000/30d, key: client_ip,
           cost: {{ response_body: /u, reserve: 50, max: 900 }} }}
routes: [{{ name: r, limits: [units] }}]
limits_of_this_proxy: {{ drain: 100ms, finish: 300ms }}
check: {{ silence: [fixed-key-secret, overspend] }}
",
        redis.url()
    ))
    .await;
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("700, ") {
        assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
    }
    gate.signal("TERM");
    let status = gate.ended(Duration::from_secs(5)).await.expect("it ends");
    assert!(status.success(), "{}", gate.log());
    assert!(gate.log().contains("finish is over; 1 connections are cut"), "{}", gate.log());
    let logged = gate.stdout();
    assert!(logged.contains("\"charged\":700,"), "{logged}");
    assert!(logged.contains("\"failure\":\"shutdown\""), "{logged}");
    let cells: Vec<String> = redis.ask(&["KEYS", "*"]);
    let cells: Vec<String> = cells
        .iter()
        .filter_map(|name| redis.try_ask::<String>(&["GET", name]).ok())
        .filter(|text| text.starts_with("f1 "))
        .collect();
    let spent: Vec<_> = cells.iter().map(|text| text.split(' ').nth(2).unwrap()).collect();
    assert_eq!(spent, ["700"]);
}
