//! What operators change while the process runs, through the admin API and `tollgate ctl`.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use support::servers::{Gate, Origin, client, eventually, metric, origin_yaml};

const TOKEN: &str = "0123456789abcdef";

const POLICY: &str = "
limits:
  writes: { tier: exact, algorithm: fixed_window, rate: 2/30d, key: header:x-api-key, missing_key: skip }
  pages: { tier: estimate, rate: 3/30d, key: client_ip }
  open: { tier: exact, max_in_flight: 5, key: client_ip }
  quiet: { tier: exact, mode: shadow, rate: 1/30d, key: client_ip }
routes:
  - { name: writes, match: { methods: [POST] }, limits: [writes, quiet] }
  - { name: pages, limits: [pages, open] }
";

async fn gate(origin: &Origin) -> Gate {
    gate_with(origin, "  token_file: token\n  by_header: x-forwarded-user\n").await
}

async fn gate_with(origin: &Origin, admin: &str) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), TOKEN).unwrap();
    Gate::start_in(folder, &format!("{admin}{}{POLICY}", origin_yaml(origin.address)), "").await
}

/// Sends a change with the token. Returns the status and the answer.
async fn change(gate: &Gate, path: &str, body: &str) -> (u16, Value) {
    let url = format!("http://127.0.0.1:{}{path}", gate.admin);
    let sent = client().post(url).bearer_auth(TOKEN).header("x-forwarded-user", "ann");
    let answer = sent.body(body.to_owned()).send().await.unwrap();
    let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
    (status, serde_json::from_str(&text).unwrap_or_else(|_| json!(text)))
}

async fn read(gate: &Gate, path: &str) -> Value {
    let url = format!("http://127.0.0.1:{}{path}", gate.admin);
    let answer = client().get(url).bearer_auth(TOKEN).send().await.unwrap();
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

async fn write(gate: &Gate, key: &str) -> u16 {
    client().post(gate.url("/")).header("x-api-key", key).send().await.unwrap().status().as_u16()
}

fn ctl(gate: &Gate, words: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["ctl", "--config"])
        .arg(gate.file())
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test]
async fn changes_hold_at_once_and_are_recorded() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let sent = |n: usize| {
        let gate = &gate;
        async move {
            let mut statuses = Vec::new();
            for _ in 0..n {
                statuses.push(write(gate, "very-secret-key").await);
            }
            statuses
        }
    };
    assert_eq!(sent(3).await, [200, 200, 429]);
    let key = r#""limit": "writes", "key": "very-secret-key", "reason": "the <launch>""#;
    let (status, state) =
        change(&gate, "/keys/override", &format!(r#"{{ {key}, "rate": "4/30d", "for": "1h" }}"#))
            .await;
    assert_eq!((status, &state["remaining"]), (200, &json!(2)), "{state}");
    assert_eq!(
        (&state["override"]["rate"], &state["override"]["by"]),
        (&json!("4/30d"), &json!("ann"))
    );
    assert_eq!(sent(3).await, [200, 200, 429]);
    let (_, state) = change(&gate, "/keys/reset", &format!("{{ {key} }}")).await;
    assert_eq!((&state["spent"], &state["of"]), (&json!(0), &json!(4)));
    let (_, state) = change(&gate, "/keys/ban", &format!(r#"{{ {key}, "for": "1h" }}"#)).await;
    assert_eq!(state["ban"]["reason"], "the <launch>");
    assert_eq!(sent(2).await, [429, 429]);
    let (_, state) = change(&gate, "/keys/unban", &format!("{{ {key} }}")).await;
    assert_eq!(state["ban"], Value::Null);
    assert_eq!(sent(1).await, [200], "a ban charges nothing");

    let hash = state["hash"].as_str().unwrap();
    let by_hash = format!(
        r#"{{ "limit": "writes", "key": {{ "hash": "{hash}" }}, "reason": "r", "action": "deny", "for": "30d" }}"#
    );
    assert_eq!(change(&gate, "/keys/override", &by_hash).await.0, 200);
    assert_eq!(sent(1).await, [429]);
    let overrides = read(&gate, "/overrides").await;
    assert_eq!(overrides["overrides"][0]["hash"], hash);
    assert_eq!(overrides["overrides"].as_array().unwrap().len(), 1, "it replaced the other one");
    assert_eq!(metric_of(&gate, "tollgate_overrides").await, 1.0);

    let audit = read(&gate, "/audit").await;
    let changes: Vec<&str> = audit["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["change"].as_str().unwrap())
        .collect();
    assert_eq!(changes, ["override", "unban", "ban", "reset", "override"]);
    let first = &audit["changes"][4];
    for (name, value) in [
        ("by", "ann"),
        ("from", "127.0.0.1"),
        ("limit", "writes"),
        ("hash", hash),
        ("reason", "the <launch>"),
        ("detail", "4/30d"),
    ] {
        assert_eq!(first[name], value, "{first}");
    }
    assert_eq!(read(&gate, "/audit?count=2").await["changes"].as_array().unwrap().len(), 2);
    let count = "tollgate_admin_changes_total{change=\"override\"}";
    assert_eq!(metric_of(&gate, count).await, 2.0);
    assert!(gate.log().contains("audit:") && gate.log().contains("the <launch>"));
    let told = format!("{audit}{overrides}{}{}", gate.log(), gate.stdout());
    assert!(!told.contains("very-secret-key"), "no value of a key is told");
}

async fn metric_of(gate: &Gate, name: &str) -> f64 {
    let url = format!("http://127.0.0.1:{}/metrics", gate.admin);
    let answer = client().get(url).bearer_auth(TOKEN).send().await.unwrap();
    metric(&answer.text().await.unwrap(), name)
}

#[tokio::test]
async fn an_estimate_limit_forgets_a_client_and_knows_no_other_rate() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let get = async || client().get(gate.url("/")).send().await.unwrap().status().as_u16();
    let refused = eventually(Duration::from_secs(5), || async { get().await == 429 });
    assert!(refused.await);
    let key = r#""limit": "pages", "key": "127.0.0.1", "reason": "r""#;
    let reset = change(&gate, "/keys/reset", &format!("{{ {key} }}")).await;
    assert_eq!((reset.0, &reset.1["spent"]), (200, &json!(0)));
    assert_eq!([get().await, get().await, get().await, get().await], [200, 200, 200, 429]);
    let (status, problem) =
        change(&gate, "/keys/override", &format!(r#"{{ {key}, "rate": "9/1h", "for": "1h" }}"#))
            .await;
    assert_eq!(status, 409, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("allow or deny it instead"));
    let allow = format!(r#"{{ {key}, "action": "allow", "for": "1h" }}"#);
    assert_eq!(change(&gate, "/keys/override", &allow).await.0, 200);
    assert_eq!(get().await, 200);
}

#[tokio::test]
async fn a_change_that_makes_no_sense_is_refused_and_changes_nothing() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let key = r#""limit": "writes", "key": "secret-k1""#;
    let long = "r".repeat(501);
    for (path, body, status, detail) in [
        ("reset", format!("{{ {key} }}"), 400, "needs a \"reason\""),
        ("reset", format!(r#"{{ {key}, "reason": " " }}"#), 400, "needs a \"reason\""),
        ("reset", format!(r#"{{ {key}, "reason": "{long}" }}"#), 400, "more than 500"),
        ("reset", format!(r#"{{ {key}, "reason": "a\nb" }}"#), 400, "one line"),
        ("reset", format!(r#"{{ {key}, "reason": "r", "for": "1h" }}"#), 400, "has no effect"),
        ("reset", format!(r#"{{ {key}, "reason": "r", "rate": "1/1h" }}"#), 400, "belong to"),
        ("reset", format!(r#"{{ {key}, "reason": "r", "why": "?" }}"#), 400, "write {"),
        ("reset", "{".to_owned(), 400, "is no JSON"),
        ("reset", r#"{ "limit": "no", "key": "k", "reason": "r" }"#.to_owned(), 404, "no limit"),
        (
            "reset",
            r#"{ "limit": "open", "key": "127.0.0.1", "reason": "r" }"#.to_owned(),
            409,
            "end by themselves",
        ),
        ("ban", format!(r#"{{ {key}, "reason": "r" }}"#), 400, "30d at most"),
        ("ban", format!(r#"{{ {key}, "reason": "r", "for": "31d" }}"#), 400, "30d at most"),
        ("ban", format!(r#"{{ {key}, "reason": "r", "for": "10ms" }}"#), 400, "30d at most"),
        (
            "ban",
            r#"{ "limit": "quiet", "key": "127.0.0.1", "reason": "r", "for": "1h" }"#.to_owned(),
            409,
            "shadow mode",
        ),
        (
            "override",
            format!(r#"{{ {key}, "reason": "r", "for": "1h" }}"#),
            400,
            "either a \"rate\"",
        ),
        (
            "override",
            format!(r#"{{ {key}, "reason": "r", "for": "1h", "rate": "1/1h", "action": "deny" }}"#),
            400,
            "either a \"rate\"",
        ),
        (
            "override",
            format!(r#"{{ {key}, "reason": "r", "for": "1h", "rate": "60/min" }}"#),
            400,
            "60/1m",
        ),
        (
            "override",
            format!(r#"{{ {key}, "reason": "r", "for": "1h", "rate": "60/1m", "burst": 5 }}"#),
            409,
            "token_bucket",
        ),
        (
            "override",
            format!(r#"{{ {key}, "reason": "r", "for": "1h", "action": "deny", "burst": 5 }}"#),
            400,
            "burst",
        ),
        (
            "override",
            format!(r#"{{ {key}, "reason": "r", "for": "1h", "action": "open" }}"#),
            400,
            "\"none\"",
        ),
        (
            "override",
            format!(r#"{{ {key}, "reason": "r", "for": "1h", "action": "none" }}"#),
            400,
            "no effect",
        ),
    ] {
        let (got, answer) = change(&gate, &format!("/keys/{path}"), &body).await;
        let told = answer["detail"].as_str().unwrap_or_default();
        assert!(got == status && told.contains(detail), "{path} {body}: {got} {answer}");
        assert!(!answer.to_string().contains("secret-k1"), "{answer}");
    }
    assert_eq!(read(&gate, "/overrides").await["overrides"], json!([]));
    assert_eq!(read(&gate, "/audit").await["changes"], json!([]));
    assert!(!gate.log().contains("secret-k1"));
}

#[tokio::test]
async fn nobody_changes_anything_without_the_token() {
    let origin = Origin::start("site").await;
    let guarded = gate(&origin).await;
    let body = r#"{ "limit": "writes", "key": "k", "reason": "r", "for": "1h" }"#;
    let url = |gate: &Gate, path: &str| format!("http://127.0.0.1:{}{path}", gate.admin);
    let status =
        async |request: reqwest::RequestBuilder| request.send().await.unwrap().status().as_u16();
    for path in ["/keys", "/keys/ban", "/keys/reset", "/keys/unban", "/keys/override", "/reload"] {
        let post = || client().post(url(&guarded, path)).body(body);
        assert_eq!(status(post()).await, 401, "{path}");
        assert_eq!(status(post().bearer_auth("0123456789abcdeX")).await, 401, "{path}");
        let foreign = post().bearer_auth(TOKEN).header("origin", "http://evil.example");
        assert_eq!(status(foreign).await, 403, "{path}");
        let rebound = post().bearer_auth(TOKEN).header("host", "evil.example");
        assert_eq!(status(rebound).await, 421, "{path}");
        assert_eq!(
            status(client().get(url(&guarded, path)).bearer_auth(TOKEN)).await,
            405,
            "{path}"
        );
    }
    for path in ["/overrides", "/audit"] {
        assert_eq!(status(client().get(url(&guarded, path))).await, 401, "{path}");
    }
    let huge = format!(r#"{{ "limit": "writes", "key": "{}" }}"#, "k".repeat(1 << 20));
    let sent =
        client().post(url(&guarded, "/keys/reset")).bearer_auth(TOKEN).body(huge).send().await;
    // The answer comes before the body has been sent, and the connection is closed behind it.
    assert!(sent.map_or(true, |answer| answer.status() == 413));
    let nested = format!(r#"{{ "limit": {} }}"#, "[".repeat(30_000));
    assert_eq!(change(&guarded, "/keys/reset", &nested).await.0, 400);
    assert_eq!(read(&guarded, "/overrides").await["overrides"], json!([]));

    let open = gate_with(&origin, "").await;
    let sent = client().post(url(&open, "/keys/ban")).body(body).send().await.unwrap();
    assert_eq!(sent.status(), 403);
    assert!(sent.text().await.unwrap().contains("admin.token_file"));
    assert_eq!(status(client().post(url(&open, "/reload"))).await, 403);
    assert_eq!(status(client().get(url(&open, "/overrides"))).await, 200);
}

#[tokio::test]
async fn a_client_that_asks_too_often_is_told_to_wait() {
    let origin = Origin::start("site").await;
    let gate = gate_with(&origin, "").await;
    let kept = client();
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", gate.admin);
    let mut refused = None;
    for _ in 0..2_000 {
        let answer = kept.get(url("/overrides")).send().await.unwrap();
        if answer.status() == 429 {
            refused = Some(answer);
            break;
        }
    }
    assert_eq!(refused.expect("there is a bound").headers()["retry-after"], "1");
    for path in ["/ready", "/metrics"] {
        assert_eq!(kept.get(url(path)).send().await.unwrap().status(), 200, "{path}");
    }
}

#[tokio::test]
async fn a_reload_without_a_signal_answers_with_its_outcome() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let good = std::fs::read_to_string(gate.file()).unwrap();
    std::fs::write(gate.file(), good.replace("rate: 2/30d", "rate: 5/30d")).unwrap();
    let (status, outcome) = change(&gate, "/reload", "").await;
    assert_eq!((status, &outcome["outcome"]), (200, &json!("applied")), "{outcome}");
    assert!(outcome["changes"].to_string().contains("writes"), "{outcome}");
    std::fs::write(gate.file(), good.replace("rate: 2/30d", "rate: nonsense")).unwrap();
    let (status, outcome) = change(&gate, "/reload", "").await;
    assert_eq!((status, &outcome["outcome"]), (422, &json!("refused")), "{outcome}");
    assert!(outcome["errors"][0].as_str().unwrap().contains("nonsense"), "{outcome}");
    let told = ctl(&gate, &["reload"], "");
    assert_eq!(told.status.code(), Some(1), "{}", text(&told));
    assert!(text(&told).contains("nonsense") && text(&told).contains("stays"), "{}", text(&told));
    std::fs::write(gate.file(), &good).unwrap();
    let told = ctl(&gate, &["reload"], "");
    assert!(told.status.success() && text(&told).contains("is in force"), "{}", text(&told));
    assert_eq!(read(&gate, "/audit").await["changes"].as_array().unwrap().len(), 4);
}

/// A rule is no configuration: what tells operators which file is in force stays as it is.
#[tokio::test]
async fn a_change_of_a_key_is_no_new_generation() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let key = r#"{ "limit": "writes", "key": "k", "reason": "r", "rate": "4/30d", "for": "1h" }"#;
    let (_, state) = change(&gate, "/keys/override", key).await;
    assert_eq!(state["generation"], 1);
    assert_eq!(metric_of(&gate, "tollgate_config_generation").await, 1.0);
    let (_, outcome) = change(&gate, "/reload", "").await;
    assert_eq!(outcome["generation"], 2);
}

/// `why` prints the hashes of several limits, so one is easily given with the name of another limit.
#[tokio::test]
async fn a_hash_of_another_limit_is_refused() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    for _ in 0..3 {
        write(&gate, "k").await;
    }
    let (_, state) = change(&gate, "/keys", r#"{ "limit": "writes", "key": "k" }"#).await;
    let hash = state["hash"].as_str().unwrap();
    for limit in ["quiet", "pages", "open"] {
        let body =
            format!(r#"{{ "limit": "{limit}", "key": {{ "hash": "{hash}" }}, "reason": "r" }}"#);
        let (status, problem) = change(&gate, "/keys/reset", &body).await;
        assert_eq!(status, 400, "{limit}: {problem}");
        assert!(
            problem["detail"].as_str().unwrap().contains("of another limit")
                || problem["detail"].as_str().unwrap().contains("of limit writes"),
            "{problem}"
        );
    }
    let (_, state) = change(&gate, "/keys", r#"{ "limit": "writes", "key": "k" }"#).await;
    assert_eq!(state["spent"], 2, "it was not reset");
}

#[tokio::test]
async fn a_denial_by_an_operator_is_explained_with_its_end_and_reason() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let deny =
        r#"{ "limit": "writes", "key": "k", "reason": "unpaid", "action": "deny", "for": "1h" }"#;
    assert_eq!(change(&gate, "/keys/override", deny).await.0, 200);
    let refused = client().post(gate.url("/")).header("x-api-key", "k").send().await.unwrap();
    let id = refused.headers()["x-request-id"].to_str().unwrap().to_owned();
    let why = text(&ctl(&gate, &["why", &id], ""));
    assert!(why.contains("an override of limit writes denies the key until 20"), "{why}");
    assert!(why.contains("unpaid"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_goes_to_an_admin_listener_only() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let wrong = format!("http://127.0.0.1:{}", gate.port);
    for words in [&["status"][..], &["key", "reset", "writes", "k", "--reason", "r"]] {
        let output = ctl(&gate, &[&["--admin", &wrong][..], words].concat(), "");
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains("no admin listener"), "{}", text(&output));
    }
    let seen = origin.seen();
    assert!(seen.iter().all(|request| !request.headers.contains_key("authorization")));
}

#[tokio::test]
async fn a_token_that_was_replaced_is_in_force_after_a_reload() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    std::fs::write(gate.folder.path().join("token"), "another-token-of-operators").unwrap();
    let wrong = ctl(&gate, &["status"], "");
    assert!(
        wrong.status.code() == Some(1) && text(&wrong).contains("token is wrong"),
        "{}",
        text(&wrong)
    );
    assert_eq!(change(&gate, "/reload", "").await.0, 200);
    assert!(ctl(&gate, &["status"], "").status.success());
    assert_eq!(change(&gate, "/reload", "").await.0, 401);
}

/// A rule of a limit that was removed can be listed and ended, by its hash.
#[tokio::test]
async fn a_rule_of_a_limit_that_is_gone_can_be_ended() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let deny = r#"{ "limit": "writes", "key": "k", "reason": "r", "action": "deny", "for": "1h" }"#;
    let (_, state) = change(&gate, "/keys/override", deny).await;
    let hash = state["hash"].as_str().unwrap();
    let text = std::fs::read_to_string(gate.file()).unwrap();
    let without: Vec<&str> = text.lines().filter(|line| !line.starts_with("  writes:")).collect();
    std::fs::write(
        gate.file(),
        without.join("\n").replace("limits: [writes, quiet]", "limits: [quiet]"),
    )
    .unwrap();
    assert_eq!(change(&gate, "/reload", "").await.0, 200);
    assert_eq!(read(&gate, "/overrides").await["overrides"][0]["applies"], false);
    let end = format!(
        r#"{{ "limit": "writes", "key": {{ "hash": "{hash}" }}, "reason": "r", "action": "none" }}"#
    );
    assert_eq!(change(&gate, "/keys/override", &end).await.0, 200);
    assert_eq!(read(&gate, "/overrides").await["overrides"], json!([]));
}

#[tokio::test]
async fn ctl_shows_and_changes_keys() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    for expected in [200, 200, 429] {
        assert_eq!(write(&gate, "secret-k1").await, expected);
    }
    let shown = ctl(&gate, &["key", "show", "writes", "-"], "secret-k1\n");
    assert!(text(&shown).contains("spent 2 of 2; 0 left"), "{}", text(&shown));
    let raised = ctl(
        &gate,
        &[
            "key",
            "override",
            "writes",
            "secret-k1",
            "--rate",
            "3/30d",
            "--for",
            "2h",
            "--reason",
            "launch",
        ],
        "",
    );
    assert!(text(&raised).contains("override: 3/30d until 20"), "{}", text(&raised));
    assert_eq!(write(&gate, "secret-k1").await, 200);
    let listed = ctl(&gate, &["overrides"], "");
    assert!(
        text(&listed).lines().count() == 2 && text(&listed).contains("launch"),
        "{}",
        text(&listed)
    );
    let json = ctl(&gate, &["overrides", "--json"], "");
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["overrides"][0]["rate"], "3/30d");
    let ended =
        ctl(&gate, &["key", "override", "writes", "secret-k1", "--none", "--reason", "over"], "");
    assert!(ended.status.success(), "{}", text(&ended));
    for (words, told) in [
        (
            &["key", "ban", "writes", "secret-k1", "--for", "1h", "--reason", "abuse"][..],
            "banned until",
        ),
        (&["key", "unban", "writes", "secret-k1", "--reason", "ok"], "spent 2 of 2"),
        (&["key", "reset", "writes", "secret-k1", "--reason", "ok"], "spent 0 of 2"),
        (&["audit"], "end_override"),
    ] {
        let output = ctl(&gate, words, "");
        assert!(
            output.status.success() && text(&output).contains(told),
            "{words:?}: {}",
            text(&output)
        );
        assert!(!text(&output).contains("secret-k1"), "{}", text(&output));
    }
    for (words, code) in [
        (&["key", "show", "nothing", "k"][..], 1),
        (&["key", "ban", "writes", "k", "--reason", "no end"], 2),
        (&["key", "override", "writes", "k", "--for", "1h", "--reason", "no rule"], 2),
        (
            &[
                "key", "override", "writes", "k", "--allow", "--deny", "--for", "1h", "--reason",
                "both",
            ],
            2,
        ),
        (&["key", "show", "writes", "--hash", "xyz"], 1),
    ] {
        let output = ctl(&gate, words, "");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output));
    }
}

#[tokio::test]
async fn requests_without_the_token_do_not_hold_up_those_with_it() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let url = format!("http://127.0.0.1:{}", gate.admin);
    let ask = |token: Option<&'static str>, path: &str| {
        let asked = client().get(format!("{url}{path}"));
        let asked = match token {
            Some(token) => asked.bearer_auth(token),
            None => asked,
        };
        async move { asked.send().await.unwrap().status().as_u16() }
    };
    let guesses = (0..8).map(|task| {
        let url = url.clone();
        tokio::spawn(async move {
            // One for all: making one takes long, and what is allowed comes back meanwhile.
            let client = client();
            let mut refused = 0;
            for n in 0..100 {
                // A guess counts on every path.
                let path = if (n + task) % 2 == 0 { "/status" } else { "/metrics" };
                let asked = client.get(format!("{url}{path}"));
                let answer = asked.bearer_auth("a-wrong-token-of-24-chars").send().await.unwrap();
                refused += u32::from(answer.status() == 429);
            }
            refused
        })
    });
    let mut refused = 0;
    for guess in guesses.collect::<Vec<_>>() {
        refused += guess.await.unwrap();
    }
    assert!(refused > 20, "{refused}");
    assert_eq!(ask(Some(TOKEN), "/status").await, 200);
    assert_eq!(ask(None, "/healthz").await, 200);
}
