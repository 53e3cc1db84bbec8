//! Why a request was refused, whom a limit refuses most, and what happened in the last minutes: over the admin API and
//! with `tollgate ctl`.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::tls::{ONE, folder, trusting};
use support::servers::{Gate, Origin, Reloaded, client, eventually, origin_yaml};

/// A value that no answer may contain.
const SECRET: &str = "very-secret-value";

const LIMITS: &str = "
clients: { trusted_proxies: [127.0.0.0/8] }
limits:
  pages: { tier: estimate, rate: 2/1h, key: client_ip }
  writes:
    tier: exact
    algorithm: fixed_window
    rate: 2/1h
    key: header:x-api-key
    missing_key: { deny: 401 }
    plans: { by: header:x-plan, rates: { gold: 3/1h } }
    overrides: [{ key: slow-very-secret-value, rate: 1/1h }, { key: banished-very-secret-value, action: deny }]
  bucket: { tier: exact, algorithm: token_bucket, rate: 1/1h, burst: 1, key: client_ip }
  logins: { tier: exact, rate: 1/1h, key: client_ip, penalty: { after: 2, within: 1h, ban: 2h } }
  tried: { tier: exact, rate: 1/1h, key: client_ip, mode: shadow }
  a: { tier: exact, rate: 100/1h, key: client_ip }
  b: { tier: exact, rate: 100/1h, key: client_ip }
routes:
  - { name: page, match: { path: /page }, limits: [pages] }
  - { name: write, match: { path: /write }, limits: [writes] }
  - { name: stacked, match: { path: /stacked }, limits: [tried, writes, bucket] }
  - { name: tall, match: { path: /tall }, limits: [tried, a, b, writes, pages, bucket] }
  - { name: login, match: { path: /login }, limits: [logins] }
  - { name: free }
check: { silence: [spoofable-key] }
";

fn ctl(gate: &Gate, args: &[&str]) -> Output {
    let admin = format!("http://127.0.0.1:{}", gate.admin);
    let all = [&["ctl", "--admin", &admin], args].concat();
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(all).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Sends the request until it is refused; the status and the identifier of the answer.
async fn refused(request: &RequestBuilder) -> (u16, String) {
    for _ in 0..10 {
        let answer = request.try_clone().unwrap().send().await.unwrap();
        if answer.status() != 200 {
            let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
            return (answer.status().as_u16(), id);
        }
    }
    panic!("ten requests passed");
}

async fn asked(gate: &Gate, path: &str) -> (u16, Value) {
    let (status, text) = gate.admin_get(path).await.unwrap();
    assert!(!text.contains(SECRET), "{path}: {text}");
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

async fn why(gate: &Gate, id: &str) -> Value {
    let (status, refusal) = asked(gate, &format!("/refusals/{id}")).await;
    assert_eq!((status, &refusal["request_id"]), (200, &id.into()), "{refusal}");
    refusal
}

/// The named members of a value.
fn members(value: &Value, names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| value[*name].clone()).collect()
}

/// Compares the members of a value, given as a list in JSON.
fn assert_members(value: &Value, names: &[&str], expected: Value) {
    assert_eq!(Value::from(members(value, names)), expected, "{names:?} of {value:#}");
}

#[tokio::test]
async fn every_kind_of_refusal_is_explained() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{LIMITS}", origin_yaml(origin.address))).await;
    let from =
        |path: &str, address: &str| client().get(gate.url(path)).header("x-forwarded-for", address);
    let of_limit = [
        "name",
        "tier",
        "algorithm",
        "rate",
        "verdict",
        "spent",
        "limit",
        "cost",
        "plan",
        "override",
    ];
    let keyed = |path: &str, key: &str| {
        from(path, "192.0.2.1").header("x-api-key", format!("{key}{SECRET}"))
    };

    // The estimate tier.
    let (status, id) = refused(&from("/page", "192.0.2.1")).await;
    let refusal = why(&gate, &id).await;
    let of_refusal = ["route", "status", "reason", "authenticated", "degraded", "generation"];
    assert_members(
        &refusal,
        &of_refusal,
        serde_json::json!(["page", status, "limit", false, false, 1]),
    );
    let expected = serde_json::json!([
        "pages",
        "estimate",
        "sliding_window",
        "2/1h",
        "denied",
        2,
        2,
        1,
        null,
        null
    ]);
    assert_members(&refusal["limits"][0], &of_limit, expected);
    assert_eq!(refusal["limits"][0]["key_hash"].as_str().unwrap().len(), 32);
    assert_eq!(refusal.get("client_ip"), None, "addresses are not shown");
    assert!(refusal["retry_at"].as_str() > refusal["time"].as_str(), "{refusal}");
    assert_eq!(refusal["retry_at"], refusal["limits"][0]["retry_at"]);

    // The exact tier: its own rate, a plan, overrides.
    for (request, expected) in [
        (keyed("/write", ""), serde_json::json!(["2/1h", "denied", 2, 2, null, null])),
        (
            keyed("/write", "g").header("x-plan", "gold"),
            serde_json::json!(["3/1h", "denied", 3, 3, "gold", null]),
        ),
        (
            keyed("/write", "slow-"),
            serde_json::json!(["1/1h", "denied", 1, 1, null, "overrides[0]"]),
        ),
        (
            keyed("/write", "banished-"),
            serde_json::json!(["2/1h", "denied", null, 2, null, "overrides[1]"]),
        ),
    ] {
        let (status, id) = refused(&request).await;
        let refusal = why(&gate, &id).await;
        assert_members(
            &refusal,
            &of_refusal,
            serde_json::json!(["write", status, "limit", true, false, 1]),
        );
        let names = ["rate", "verdict", "spent", "limit", "plan", "override"];
        assert_members(&refusal["limits"][0], &names, expected);
        // A key that an override denies never passes.
        assert_eq!(refusal["retry_at"].is_null(), refusal["limits"][0]["spent"].is_null());
    }

    // A missing key.
    let (status, id) = refused(&from("/write", "192.0.2.1")).await;
    let refusal = why(&gate, &id).await;
    assert_members(
        &refusal,
        &of_refusal,
        serde_json::json!(["write", 401, "missing_key", false, false, 1]),
    );
    assert_eq!(status, 401);
    let expected = serde_json::json!([
        "writes",
        "exact",
        "fixed_window",
        null,
        "missing_key",
        null,
        null,
        null,
        null,
        null
    ]);
    assert_members(&refusal["limits"][0], &of_limit, expected);
    let (status, id) = refused(&keyed("/write", "").header("x-api-key", "two")).await;
    assert_eq!((status, &why(&gate, &id).await["reason"]), (400, &"repeated_key".into()));

    // Several limits, one of them in shadow mode; then more than a record has room for.
    let (_, id) = refused(&keyed("/stacked", "s")).await;
    let refusal = why(&gate, &id).await;
    let verdicts: Vec<Vec<Value>> = refusal["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| members(limit, &["name", "verdict", "shadow"]))
        .collect();
    let expected = serde_json::json!([
        ["tried", "shadow_denied", true],
        ["writes", "allowed", false],
        ["bucket", "denied", false],
    ]);
    assert_eq!(Value::from(verdicts), expected);
    let (_, id) = refused(&keyed("/tall", "t")).await;
    let refusal = why(&gate, &id).await;
    let names: Vec<&Value> =
        refusal["limits"].as_array().unwrap().iter().map(|l| &l["name"]).collect();
    assert_eq!(
        (&names[..2], names.len()),
        (&[&"pages".into(), &"bucket".into()][..], 4),
        "{refusal}"
    );
    assert_eq!(refusal["limits_left_out"], 2);
    // It is listed for a limit that refused it, and not for one that was only asked.
    for (limit, is_listed) in
        [("bucket", true), ("pages", true), ("writes", false), ("tried", false)]
    {
        let (_, answer) = asked(&gate, &format!("/refusals?route=tall&limit={limit}")).await;
        let listed = answer["refusals"].as_array().unwrap();
        assert_eq!(listed.iter().any(|it| it["request_id"] == *id), is_listed, "{limit}: {answer}");
    }

    // A ban.
    let login = from("/login", "192.0.2.9");
    for _ in 0..2 {
        refused(&login).await;
    }
    let (_, id) = refused(&login).await;
    let refusal = why(&gate, &id).await;
    assert_members(
        &refusal,
        &of_refusal,
        serde_json::json!(["login", 429, "ban", false, false, 1]),
    );
    let names = ["name", "verdict", "spent", "banned"];
    assert_members(
        &refusal["limits"][0],
        &names,
        serde_json::json!(["logins", "denied", null, true]),
    );
    let told = text(&ctl(&gate, &["why", &id]));
    assert!(
        told.contains("reason         limit logins has banned the key, for too many refusals\n"),
        "{told}"
    );

    // What no limit refused is not there.
    for path in ["/a%00b", "/free"] {
        let answer = client().get(gate.url(path)).send().await.unwrap();
        if let Some(id) = answer.headers().get("x-request-id") {
            let (status, problem) =
                asked(&gate, &format!("/refusals/{}", id.to_str().unwrap())).await;
            assert_eq!(status, 404);
            assert!(problem["detail"].as_str().unwrap().contains("the last 65536"), "{problem}");
        }
    }
    assert!(!gate.log().contains("panicked"), "{}", gate.log());
}

#[tokio::test]
async fn refusals_over_http2_and_of_former_configurations_are_explained() {
    let origin = Origin::start("site").await;
    let (folder, pairs) = folder(&["one.example"]);
    let policy = |rate: &str, more: &str| {
        format!(
            "  show_addresses: true\n{}limits:\n  {more}l: {{ tier: exact, rate: {rate}, key: client_ip }}\n\
             routes: [{{ name: api, limits: [l] }}]\n",
            origin_yaml(origin.address)
        )
    };
    let gate = Gate::start_in(folder, &policy("1/1h", ""), ONE).await;
    let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
    let client = trusting(&pairs[0], "one.example", to).build().unwrap();
    let (_, id) = refused(&client.get(format!("https://one.example:{}/x", gate.port))).await;
    // The limit has another number in the next configuration, and the same name.
    let other = "other: { tier: exact, rate: 9/1h, key: client_ip }\n  ";
    assert_eq!(gate.reload(&policy("5/1h", other), ONE).await, Reloaded::Applied);
    let refusal = why(&gate, &id).await;
    assert_members(
        &refusal,
        &["route", "client_ip", "generation"],
        serde_json::json!(["api", "127.0.0.1", 1]),
    );
    assert_members(
        &refusal["limits"][0],
        &["name", "rate", "limit"],
        serde_json::json!(["l", "1/1h", 1]),
    );
    let (_, top) = asked(&gate, "/top?limit=l").await;
    assert_members(
        &top["keys"][0],
        &["address", "refused", "error"],
        serde_json::json!(["127.0.0.1", 1, 0]),
    );
    assert_eq!(top["keys"][0]["hash"], refusal["limits"][0]["key_hash"]);
}

#[tokio::test]
async fn a_refusal_for_a_failing_store_is_explained() {
    let origin = Origin::start("site").await;
    let policy = format!(
        "{}store: {{ redis: {{ url: \"redis://127.0.0.1:1\" }} }}
limits:
  l: {{ tier: exact, rate: 1/1h, key: client_ip, on_store_failure: deny }}
routes: [{{ name: api, limits: [l] }}]
",
        origin_yaml(origin.address)
    );
    let gate = Gate::start(&policy).await;
    let (status, id) = refused(&client().get(gate.url("/"))).await;
    let refusal = why(&gate, &id).await;
    assert_members(
        &refusal,
        &["status", "reason", "degraded"],
        serde_json::json!([status, "store_outage", true]),
    );
    assert_eq!(status, 503);
    let names = ["name", "verdict", "spent"];
    assert_members(
        &refusal["limits"][0],
        &names,
        serde_json::json!(["l", "degraded_denied", null]),
    );
}

/// Identifiers of a trusted peer are any text, also a long one, one with marks of paths, and one that comes twice.
#[tokio::test]
async fn identifiers_of_trusted_peers_are_found() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{LIMITS}", origin_yaml(origin.address))).await;
    let send = async |id: &str| {
        let request = client().get(gate.url("/write")).header("x-request-id", id);
        assert_eq!(request.send().await.unwrap().status(), 401);
    };
    let long = "0123456789abcdef".repeat(8);
    for id in ["Root=1-67891233-abcdef012345678912345678", "a/b:c+d@e._~-", "x", &long] {
        send(id).await;
        let (status, refusal) = asked(&gate, &format!("/refusals/{id}")).await;
        assert_eq!((status, refusal["request_id"].as_str()), (200, Some(id)));
        let told = text(&ctl(&gate, &["why", id]));
        assert!(told.contains(id) && told.contains("it has no key for limit writes"), "{told}");
    }
    send("x").await;
    let (_, refusal) = asked(&gate, "/refusals/x").await;
    assert_eq!(refusal["earlier"], 1);
    // Neither the beginning of an identifier nor a longer one finds it.
    for id in [&long[..127], "xx", "Root"] {
        assert_eq!(asked(&gate, &format!("/refusals/{id}")).await.0, 404, "{id}");
    }
}

/// Sends one request for each key over a connection, which is kept, and reads the answers.
async fn send_keys(port: u16, keys: impl Iterator<Item = String>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut answer = Vec::new();
    for key in keys {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nx-api-key: {key}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        answer.clear();
        while !answer.ends_with(b"}") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
        }
        assert!(answer.starts_with(b"HTTP/1.1 429"), "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heavy_key_is_found_among_a_hundred_thousand_others() {
    const KEYS: usize = 100_000;
    const HEAVY: usize = 2_000;
    let origin = Origin::start("site").await;
    let policy = format!(
        "{}limits:
  l: {{ tier: exact, rate: 1/1h, key: header:x-api-key, missing_key: deny, overrides: [{{ network: 0.0.0.0/0, action: deny }}] }}
routes: [{{ name: api, limits: [l] }}]
access_log: {{ to: none }}
check: {{ silence: [spoofable-key] }}
",
        origin_yaml(origin.address)
    );
    let gate = Gate::start(&policy).await;
    let (port, connections) = (gate.port, 16);
    let senders = (0..connections).map(|connection| {
        let key = move |n: usize| match n % (KEYS / HEAVY) {
            0 => vec![format!("k{n}"), "heavy".to_owned()],
            _ => vec![format!("k{n}")],
        };
        let keys = (connection..KEYS).step_by(connections).flat_map(key);
        tokio::spawn(send_keys(port, keys))
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.await.unwrap();
    }
    let hash = client().post(format!("http://127.0.0.1:{}/keys", gate.admin));
    let hash = hash.body("{\"limit\": \"l\", \"key\": \"heavy\"}").send().await.unwrap();
    let hash: Value = serde_json::from_str(&hash.text().await.unwrap()).unwrap();
    let (_, top) = asked(&gate, "/top?limit=l&count=5").await;
    let first = &top["keys"][0];
    assert_eq!(first["hash"], hash["hash"], "{top:#}");
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let (at_most, error, missed) =
        (number(&first["refused"]), number(&first["error"]), number(&top["missed"]));
    assert!(at_most + missed >= HEAVY && at_most - error <= HEAVY, "{top:#}");
    assert_eq!(number(&top["refused"]) + missed, KEYS + HEAVY, "each is counted or missed");
    assert_eq!(top["keys"].as_array().unwrap().len(), 5);
    let told = text(&ctl(&gate, &["top", "l", "--count", "3"]));
    assert!(told.contains(hash["hash"].as_str().unwrap()) && told.lines().count() == 5, "{told}");
    // The last 65,536 are kept.
    let (_, all) = asked(&gate, "/refusals?count=1000").await;
    assert_eq!((all["refusals"].as_array().unwrap().len(), &all["more"]), (1_000, &true.into()));
}

#[tokio::test]
async fn the_heaviest_senders_of_an_estimate_limit_are_listed() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{LIMITS}", origin_yaml(origin.address))).await;
    for (address, times) in [("192.0.2.1", 7), ("192.0.2.2", 1)] {
        for _ in 0..times {
            let request = client().get(gate.url("/page")).header("x-forwarded-for", address);
            request.send().await.unwrap();
        }
    }
    let (_, top) = asked(&gate, "/top?limit=pages").await;
    let senders = top["senders"].as_array().unwrap();
    let sent: Vec<(u64, u64)> = senders
        .iter()
        .map(|sender| (sender["sent"].as_u64().unwrap(), sender["spent"].as_u64().unwrap()))
        .collect();
    assert_eq!(sent, [(7, 2), (1, 1)], "{top:#}");
    assert_eq!(
        (&top["keys"][0]["refused"], &top["keys"][0]["hash"]),
        (&5.into(), &senders[0]["hash"])
    );
    assert_eq!(asked(&gate, "/top?limit=writes").await.1["senders"], serde_json::json!([]));
}

#[tokio::test]
async fn refusals_are_filtered() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{LIMITS}", origin_yaml(origin.address))).await;
    let mut ids = Vec::new();
    for path in ["/page", "/write", "/login", "/write"] {
        let request = client().get(gate.url(path));
        ids.push(refused(&request.header("x-forwarded-for", "192.0.2.1")).await.1);
    }
    let listed = async |query: &str| -> Vec<String> {
        let (status, answer) = asked(&gate, &format!("/refusals{query}")).await;
        assert_eq!(status, 200, "{query}: {answer}");
        let refusals = answer["refusals"].as_array().unwrap().iter();
        refusals.map(|refusal| refusal["request_id"].as_str().unwrap().to_owned()).collect()
    };
    let some = |numbers: &[usize]| numbers.iter().map(|n| ids[*n].clone()).collect::<Vec<_>>();
    assert_eq!(listed("").await, some(&[3, 2, 1, 0]), "newest first");
    assert_eq!(listed("?count=2").await, some(&[3, 2]));
    assert_eq!(listed("?route=write").await, some(&[3, 1]));
    assert_eq!(listed("?limit=logins&route=login").await, some(&[2]));
    assert_eq!(listed("?limit=logins&route=page").await, some(&[]));
    assert_eq!(listed("?since=1h").await.len(), 4);
    assert!(listed("?since=2999-01-01T00:00:00Z").await.is_empty());
    let since = why(&gate, &ids[2]).await["time"].as_str().unwrap().to_owned();
    assert!(listed(&format!("?since={since}")).await.len() <= 2);
    let told = text(&ctl(&gate, &["refusals", "--route", "write", "--count", "1"]));
    assert!(told.contains(&ids[3]) && told.contains("there are more"), "{told}");
    let json = ctl(&gate, &["refusals", "--json", "--limit", "pages"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["refusals"][0]["request_id"], ids[0]);
}

#[tokio::test]
async fn hostile_questions_are_refused_by_name() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{LIMITS}", origin_yaml(origin.address))).await;
    let long = format!("/refusals/{}", "a".repeat(200));
    let longer = format!("/refusals?limit={}", "a".repeat(2_000));
    for (path, status, expected) in [
        (
            "/refusals?cuont=1",
            400,
            "unknown parameter \"cuont\"; known are since, route, limit, count",
        ),
        ("/refusals?count=1001", 400, "from 1 to 1000"),
        ("/refusals?count=1&count=2", 400, "count comes twice"),
        ("/refusals?since=yesterday", 400, "write a date as"),
        ("/refusals?limit=nothing", 404, "has had a limit \"nothing\""),
        ("/refusals?route=%3Cscript%3E", 404, "has had a route \"<script>\""),
        ("/refusals/x?count=1", 400, "there are none here"),
        ("/refusals/", 400, "write the identifier"),
        (&*long, 400, "1 to 128 characters"),
        (&*longer, 400, "more than 1024 bytes"),
        ("/top", 400, "write /top?limit=NAME"),
        ("/top?limit=nothing", 404, "has had a limit"),
        ("/top?limit=pages&hours=25", 400, "from 1 to 24"),
        ("/history?minutes=1441", 400, "from 1 to 1440"),
        ("/history?route=nothing", 404, "has had a route"),
        ("/history?detail=some", 400, "write all or none"),
    ] {
        let answer = client().get(format!("http://127.0.0.1:{}{path}", gate.admin)).send();
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
        assert_eq!(answer.headers()["content-type"], "application/problem+json", "{path}");
        let text = answer.text().await.unwrap();
        let problem: Value = serde_json::from_str(&text).unwrap();
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{path}: {problem}");
    }
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", gate.admin);
    let posted = client().post(url("/refusals")).send().await.unwrap();
    assert_eq!(
        (posted.status().as_u16(), &posted.headers()["allow"]),
        (405, &"GET, HEAD".parse().unwrap())
    );
    for path in ["/refusals", "/top?limit=pages", "/history", "/refusals/none"] {
        let head = client().head(url(path)).send().await.unwrap();
        let status = if path.ends_with("none") { 404 } else { 200 };
        assert_eq!(head.status(), status, "{path}");
        assert_ne!(head.headers()["content-length"], "0", "{path}");
        assert!(head.bytes().await.unwrap().is_empty());
    }
    for (args, status, expected) in [
        (&["why", "none"][..], 1, "404 Not Found: no refusal with this identifier"),
        (&["top", "nothing"], 1, "has had a limit"),
        (&["refusals", "--count", "0"], 1, "from 1 to 1000"),
        (&["top"], 2, "<LIMIT>"),
        (&["nothing"], 2, "unrecognized subcommand"),
    ] {
        let output = ctl(&gate, args);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {}", text(&output));
        assert!(text(&output).contains(expected), "{args:?}: {}", text(&output));
    }
}

#[tokio::test]
async fn ctl_finds_address_and_token_in_the_configuration() {
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "0123456789abcdef\n").unwrap();
    let policy = format!("  token_file: token\n{}{LIMITS}", origin_yaml(origin.address));
    let gate = Gate::start_in(folder, &policy, "").await;
    for path in ["/refusals", "/refusals/x", "/top?limit=pages", "/history"] {
        assert_eq!(gate.admin_get(path).await.unwrap().0, 401, "{path} on loopback too");
    }
    let file = gate.file();
    let run = |args: &[&str]| {
        let all = [&["ctl", "--config", file.to_str().unwrap()], args].concat();
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(all).output().unwrap()
    };
    for args in
        [&["status"][..], &["refusals"], &["top", "pages"], &["history"], &["status", "--json"]]
    {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output));
        assert!(output.stderr.is_empty() && !output.stdout.is_empty());
    }
    assert!(text(&run(&["status"])).contains("generation     1\n"));
    assert_eq!(text(&run(&["refusals"])), "nothing was refused\n");
    let without = ctl(&gate, &["refusals"]);
    assert_eq!(without.status.code(), Some(1), "{}", text(&without));
    assert!(text(&without).contains("401"), "{}", text(&without));
    let file = gate.folder.path().join("token");
    let with = ctl(&gate, &["refusals", "--token-file", file.to_str().unwrap()]);
    assert_eq!(with.status.code(), Some(0), "{}", text(&with));
    let none =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["ctl", "status"]).output().unwrap();
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none).contains("--config FILE, or --admin"), "{}", text(&none));
}

#[tokio::test]
async fn minutes_say_what_happened() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{LIMITS}", origin_yaml(origin.address))).await;
    for _ in 0..5 {
        let write = client().get(gate.url("/write")).header("x-api-key", SECRET);
        write.send().await.unwrap();
        client().get(gate.url("/page")).send().await.unwrap();
    }
    client().get(gate.url("/a%00b")).send().await.unwrap();
    // Requests are counted when they have ended. The test may run over the end of a minute.
    let sums = async |query: &str| {
        let (_, answer) = asked(&gate, &format!("/history?minutes=3{query}")).await;
        let minutes = answer["minutes"].as_array().unwrap().clone();
        let sum = |kind: &str, of: &str, name: &str| -> u64 {
            minutes.iter().filter_map(|minute| minute[kind][of][name].as_u64()).sum()
        };
        let total = |name: &str| -> u64 {
            minutes.iter().filter_map(|minute| minute["total"][name].as_u64()).sum()
        };
        let route = |of: &str| {
            ["forwarded", "limited", "limited_authenticated"].map(|name| sum("routes", of, name))
        };
        let limit =
            |of: &str| ["admitted", "refused", "degraded"].map(|name| sum("limits", of, name));
        let totals = ["forwarded", "limited", "rejected"].map(total);
        (route("write"), route("page"), limit("writes"), limit("pages"), totals)
    };
    let all = ([2, 3, 3], [2, 3, 0], [2, 3, 0], [2, 3, 0], [4, 6, 1]);
    let counted = eventually(Duration::from_secs(10), || async { sums("").await == all });
    assert!(counted.await, "{:?}", sums("").await);
    let nothing = [0, 0, 0];
    let of_page = (nothing, [2, 3, 0], nothing, nothing, [2, 3, 0]);
    assert_eq!(sums("&route=page").await, of_page);
    assert_eq!(sums("&detail=none").await, (nothing, nothing, nothing, nothing, [4, 6, 1]));
    let (_, answer) = asked(&gate, "/history").await;
    let last = answer["minutes"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["complete"], false);
    let told = text(&ctl(&gate, &["history", "--minutes", "3"]));
    assert!(told.contains("(so far)") && told.contains("authenticated"), "{told}");
}

/// Keys of every kind of source: no answer has their values, in whatever form.
#[tokio::test]
async fn no_answer_has_the_value_of_a_key() {
    let origin = Origin::start("site").await;
    let sources = [
        ("h", "header:x-api-key"),
        ("c", "cookie:session"),
        ("q", "query:token"),
        ("b", "bearer"),
        ("u", "basic_user"),
        ("p", "path_segment:2"),
    ];
    let limits = sources.map(|(name, source)| {
        format!("  {name}: {{ tier: exact, rate: 1/1h, key: \"{source}\", missing_key: skip }}\n")
    });
    let routes = sources.map(|(name, _)| {
        format!("  - {{ name: {name}, match: {{ path: /{name}/** }}, limits: [{name}] }}\n")
    });
    let policy = format!(
        "  show_addresses: true\n{}limits:\n{}routes:\n{}check: {{ silence: [spoofable-key] }}\n",
        origin_yaml(origin.address),
        limits.concat(),
        routes.concat()
    );
    let gate = Gate::start(&policy).await;
    let basic = "dmVyeS1zZWNyZXQtdmFsdWU6dmVyeS1zZWNyZXQtdmFsdWU=";
    let mut ids = Vec::new();
    for (name, _) in sources {
        let request = client()
            .get(gate.url(&format!("/{name}/{SECRET}?token={SECRET}")))
            .header("x-api-key", SECRET)
            .header("cookie", format!("session={SECRET}"));
        let authorization = match name {
            "u" => format!("Basic {basic}"),
            _ => format!("Bearer {SECRET}"),
        };
        let (status, id) = refused(&request.header("authorization", authorization)).await;
        assert_eq!(status, 429, "{name}");
        ids.push(id);
    }
    let mut paths: Vec<String> = ids.iter().map(|id| format!("/refusals/{id}")).collect();
    paths.extend(sources.map(|(name, _)| format!("/top?limit={name}")));
    paths.extend(["/refusals", "/history", "/status", "/metrics"].map(str::to_owned));
    for path in paths {
        let (status, text) = gate.admin_get(&path).await.unwrap();
        assert_eq!(status, 200, "{path}: {text}");
        assert!(!text.contains(SECRET) && !text.contains(&basic[..20]), "{path}: {text}");
        let expected = if path.starts_with("/refusals") { "127.0.0.1" } else { "" };
        assert!(text.contains(expected), "{path}: {text}");
    }
    let told = text(&ctl(&gate, &["refusals"]));
    assert_eq!(told.lines().count(), sources.len() + 1, "{told}");
    assert!(!told.contains(SECRET), "{told}");
}
