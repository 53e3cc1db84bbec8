//! Ways to a store: TLS with a certificate of the node's own, a socket of this machine, a user with
//! few rights; and nodes of different generations on one store.

use std::path::Path;
use std::time::Duration;

use crate::load::Client;
use crate::policy;
use crate::redis_servers::Redis;
use support::servers::{Gate, Origin, Reloaded, eventually, free_port, metric};

async fn up(gate: &Gate) -> f64 {
    metric(&gate.metrics().await, "tollgate_store_up")
}

/// A certificate that vouches for itself, and its key.
fn certificate(folder: &Path, name: &str) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join(format!("{name}.crt")), made.cert.pem()).unwrap();
    std::fs::write(folder.join(format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_spoken_and_checked_both_ways() {
    let _alone = crate::alone().await;
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    for name in ["server", "node", "stranger"] {
        certificate(folder.path(), name);
    }
    let file = |name: &str| folder.path().join(name).display().to_string();
    let port = free_port();
    let _redis = Redis::start(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &file("server.crt"),
        "--tls-key-file",
        &file("server.key"),
        "--tls-ca-cert-file",
        &file("node.crt"),
    ])
    .await;
    for (ca, node, expected) in [
        ("server", "node", 1.0),
        // Who cannot check the server does not talk to it; whom the server does not know is sent away.
        ("stranger", "node", 0.0),
        ("server", "stranger", 0.0),
    ] {
        let store = format!(
            "url: \"rediss://localhost:{port}\", tls: {{ ca_file: \"{}\", certificate: \"{}\", private_key: \"{}\" }}",
            file(&format!("{ca}.crt")),
            file(&format!("{node}.crt")),
            file(&format!("{node}.key"))
        );
        let gate = Gate::start(&policy(&origin, &store, "rate: 2/1h")).await;
        let mut client = Client::default();
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(client.ask(gate.port, "/", ca).await);
        }
        assert_eq!(seen.last(), Some(&429));
        assert_eq!(up(&gate).await, expected, "{ca} {node}: {}", gate.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_of_this_machine_and_a_user_with_few_rights() {
    let _alone = crate::alone().await;
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock").display().to_string();
    let redis = Redis::start(&["--unixsocket", &socket]).await;
    // What docs/src/operating/redis.md says a user of the store needs.
    let rights = [
        "~tollgate:*",
        "+evalsha",
        "+script|load",
        "+time",
        "+get",
        "+set",
        "+del",
        "+exists",
        "+hget",
        "+hset",
        "+hdel",
        "+pexpire",
        "+info",
        "+config|get",
        "+ping",
        "+select",
        "+client",
        "+eval",
        "+zadd",
        "+zrem",
        "+zcard",
        "+zrange",
        "+zrangebyscore",
        "+type",
        "+hlen",
        "+hstrlen",
        "+hkeys",
        "+getrange",
        "+zscore",
        "+zremrangebyscore",
        "+zremrangebyrank",
    ];
    let mut words = vec!["ACL", "SETUSER", "gate", "on", ">open-sesame"];
    words.extend(rights);
    let _: String = redis.ask(&words);
    let password = folder.path().join("password");
    std::fs::write(&password, "open-sesame").unwrap();
    let store = format!(
        "url: \"unix:{socket}\", username: gate, password_file: \"{}\"",
        password.display()
    );
    for limit in ["sliding_window", "sliding_log", "fixed_window", "token_bucket"] {
        let gate =
            Gate::start(&policy(&origin, &store, &format!("algorithm: {limit}, rate: 2/1h"))).await;
        let mut client = Client::default();
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(client.ask(gate.port, "/", "k").await);
        }
        assert_eq!(seen, [200, 200, 429], "{limit}");
        let text = gate.metrics().await;
        assert_eq!(metric(&text, "tollgate_store_up"), 1.0, "{}", gate.log());
        assert!(
            metric(&text, "tollgate_store_calls_total{outcome=\"ok\"}") >= 3.0,
            "{}",
            gate.log()
        );
    }
    let bans = "rate: 2/1h, penalty: { after: 2, within: 1m, ban: 10m }";
    let gate = Gate::start(&policy(&origin, &store, bans)).await;
    let mut client = Client::default();
    for _ in 0..4 {
        client.ask(gate.port, "/", "bad").await;
    }
    let told = eventually(Duration::from_secs(3), || async {
        redis.ask::<u64>(&["HLEN", "tollgate:{bans}:of"]) == 1
    });
    assert!(told.await, "the store was not told of a ban: {}", gate.log());
    // A right that is missing is told, once.
    let _: String = redis.ask(&["ACL", "SETUSER", "gate", "-eval"]);
    let loud = eventually(Duration::from_secs(3), || async {
        gate.log().matches("bans are not shared with the other nodes: ").count() == 1
    });
    assert!(loud.await, "{}", gate.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valkey_counts_as_redis_does() {
    let _alone = crate::alone().await;
    let found = std::process::Command::new("valkey-server").arg("--version").output().is_ok();
    let server = if found { "valkey-server" } else { "redis-server" };
    println!("on {server}");
    let (origin, redis) = (Origin::start("site").await, Redis::start_as(server).await);
    let store = format!("url: \"valkey://127.0.0.1:{}\"", redis.port);
    let gate = Gate::start(&policy(&origin, &store, "algorithm: sliding_log, rate: 5/1h")).await;
    let mut client = Client::default();
    for n in 0..8 {
        assert_eq!(client.ask(gate.port, "/", "k").await, if n < 5 { 200 } else { 429 });
    }
    assert_eq!(up(&gate).await, 1.0);
}

/// While a new limit is rolled out, nodes differ. What was spent is spent for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_different_generations_agree_on_what_was_spent() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    for (algorithm, more) in
        [("fixed_window", ""), ("sliding_window", ""), ("sliding_log", ""), ("token_bucket", "")]
    {
        let limit = |rate: u32| format!("algorithm: {algorithm}, rate: {rate}/30d{more}");
        let old = Gate::start(&policy(&origin, &store, &limit(10))).await;
        let new = Gate::start(&policy(&origin, &store, &limit(10))).await;
        let mut client = Client::default();
        let key = format!("k-{algorithm}");
        for _ in 0..8 {
            assert_eq!(client.ask(old.port, "/", &key).await, 200);
        }
        let raised = policy(&origin, &store, &limit(15));
        assert_eq!(new.reload(&raised, "").await, Reloaded::Applied);
        let mut more = 0;
        while client.ask(new.port, "/", &key).await == 200 {
            more += 1;
        }
        assert_eq!(more, 7, "{algorithm}: 15 less the 8 that were spent");
        // Who still has the old limit has nothing left, and takes nothing away from the new one.
        assert_eq!(client.ask(old.port, "/", &key).await, 429, "{algorithm}");
        let lowered = policy(&origin, &store, &limit(12));
        assert_eq!(new.reload(&lowered, "").await, Reloaded::Applied);
        assert_eq!(client.ask(new.port, "/", &key).await, 429, "{algorithm}");
        // A denial at home does not outlive a reload that raises the limit.
        assert_eq!(new.reload(&policy(&origin, &store, &limit(16)), "").await, Reloaded::Applied);
        assert_eq!(client.ask(new.port, "/", &key).await, 200, "{algorithm}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_cannot_change_the_store() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let store = format!("url: \"{}\"", redis.url());
    let gate = Gate::start(&policy(&origin, &store, "rate: 5/1h")).await;
    let other = policy(&origin, &format!("{store}, prefix: other"), "rate: 5/1h");
    assert_eq!(gate.reload(&other, "").await, Reloaded::Refused);
    assert!(gate.log().contains("store: a reload cannot change it"), "{}", gate.log());
    let well = eventually(Duration::from_secs(2), || async { up(&gate).await == 1.0 });
    assert!(well.await);
}
