//! Keys at a URL and tokens outside `Authorization`, in the binary: start, reload, what operators see, what logs hide.

use std::time::Duration;

use support::key_server::{KeyServer, Publishes};
use support::servers::{Gate, Origin, Reloaded, client, eventually, metric, origin_yaml};
use support::signing::{SigningKey, set_of};

const CLAIMS: &str = r#"{"sub":"ann","aud":"api"}"#;
const PATIENCE: Duration = Duration::from_secs(20);

fn policy(origin: &Origin, url: &str, more: &str) -> String {
    format!(
        "{}
limits:
  user:
    tier: exact
    rate: 100/1h
    key: {{ jwt: {{ jwks_url: \"{url}\", jwks_ca_file: ca.pem, claim: sub, audience: api, {more} }} }}
    missing_key: {{ deny: 401 }}
routes: [{{ name: r, limits: [user] }}]
",
        origin_yaml(origin.address)
    )
}

async fn start(server: &KeyServer, policy: &str) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.pem"), &server.certificate.pem).unwrap();
    Gate::start_in(folder, policy, "").await
}

async fn status(gate: &Gate, token: &str) -> u16 {
    client().get(gate.url("/")).bearer_auth(token).send().await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_request_finds_keys_and_reloads_keep_them() {
    let (first, second) = (SigningKey::new("1"), SigningKey::new("2"));
    let origin = Origin::start("site").await;
    let server = KeyServer::start(Publishes::Set(set_of(&[&first]), "")).await;
    let gate = start(&server, &policy(&origin, &server.url(), "")).await;
    let token = first.sign(CLAIMS);
    assert_eq!(status(&gate, &token).await, 200, "{}", gate.log());
    assert_eq!(status(&gate, &second.sign(CLAIMS)).await, 401);
    let name = format!("localhost:{}/keys", server.address.port());
    let metrics = gate.metrics().await;
    let of = |text: &str, name: &str, outcome: &str| {
        metric(
            text,
            &format!("tollgate_jwks_fetches_total{{set=\"{name}\",outcome=\"{outcome}\"}}"),
        )
    };
    assert_eq!(metric(&metrics, &format!("tollgate_jwks_keys{{set=\"{name}\"}}")), 1.0);
    assert!(metric(&metrics, &format!("tollgate_jwks_age_seconds{{set=\"{name}\"}}")) < 60.0);
    assert_eq!((of(&metrics, &name, "updated"), of(&metrics, &name, "invalid")), (1.0, 0.0));
    let (_, body) = gate.admin_get("/status").await.unwrap();
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let sets = &body["key_sets"];
    assert_eq!((&sets[0]["set"], &sets[0]["keys"]), (&name.as_str().into(), &1.into()));
    assert!(sets[0]["failure"].is_null() && sets[1].is_null(), "{sets}");

    // The same URL: the set stays, and nothing is fetched. Another one is fetched before it is in force.
    let reloaded = gate.reload(&policy(&origin, &server.url(), "leeway: 5s"), "").await;
    assert_eq!((reloaded, server.asked()), (Reloaded::Applied, 1));
    assert_eq!(status(&gate, &token).await, 200);
    server.publish(Publishes::Set(set_of(&[&second]), ""));
    let other = format!("{}?tenant=2", server.url());
    assert_eq!(gate.reload(&policy(&origin, &other, ""), "").await, Reloaded::Applied);
    assert_eq!(status(&gate, &second.sign(CLAIMS)).await, 200);
    assert_eq!((status(&gate, &token).await, server.asked()), (401, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_keys_answers_503_until_they_come() {
    let key = SigningKey::new("1");
    let origin = Origin::start("site").await;
    let server = KeyServer::start(Publishes::Status(500, String::new())).await;
    let gate = start(&server, &policy(&origin, &server.url(), "")).await;
    let token = key.sign(CLAIMS);
    let answer = client().get(gate.url("/")).bearer_auth(&token).send().await.unwrap();
    assert_eq!(answer.status(), 503);
    let body = answer.text().await.unwrap();
    assert!(body.contains("#temporary-reduced-capacity"), "{body}");
    assert_eq!(client().get(gate.url("/")).send().await.unwrap().status(), 401);
    let metrics = gate.metrics().await;
    let name = format!("localhost:{}/keys", server.address.port());
    assert_eq!(metric(&metrics, &format!("tollgate_jwks_keys{{set=\"{name}\"}}")), 0.0);
    assert!(!metrics.contains("tollgate_jwks_age_seconds{"));
    assert!(metric(&metrics, "tollgate_tokens_refused_total{reason=\"no_keys\"}") >= 1.0);
    let rejected = metric(&metrics, "tollgate_rejected_total{reason=\"missing_key\"}");
    let failed = metric(&metrics, "tollgate_requests_total{route=\"r\",outcome=\"failed\"}");
    assert_eq!((rejected, failed), (1.0, 1.0), "an outage is no fault of the client");
    assert_eq!(origin.count(), 0);
    server.publish(Publishes::Set(set_of(&[&key]), ""));
    let served = eventually(PATIENCE, || async { status(&gate, &token).await == 200 }).await;
    assert!(served, "{}", gate.log());
    let log = gate.log();
    assert!(log.contains(&format!("{name}: the answer has status 500")), "{log}");
    assert!(log.contains(&format!("{name}: keys in force: 1")), "{log}");
    let logged = eventually(PATIENCE, || async {
        let lines = gate.stdout();
        lines.contains("\"failure\":\"token_keys\"") && lines.contains("\"status\":401")
    });
    assert!(logged.await, "{}", gate.stdout());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_in_a_query_or_a_header_of_choice_stands_in_no_log() {
    let key = SigningKey::new("1");
    let origin = Origin::start("site").await;
    let server = KeyServer::start(Publishes::Set(set_of(&[&key]), "")).await;
    let token = key.sign(CLAIMS);
    for from in ["query:access_token", "header:user-agent", "header:traceparent", "cookie:session"]
    {
        for format in ["json", "combined", "ecs", "otel"] {
            let more = format!("from: \"{from}\"");
            let policy = format!(
                "{}\naccess_log: {{ to: stdout, format: {format}, log_key: hash }}\n",
                policy(&origin, &server.url(), &more)
            );
            let gate = start(&server, &policy).await;
            let (name, value) = from.split_once(':').unwrap();
            let url = match name {
                "query" => gate.url(&format!("/?x=1&{value}={token}")),
                _ => gate.url("/"),
            };
            let mut request = client().get(url);
            if name == "header" {
                request = request.header(value, &token);
            }
            if name == "cookie" {
                request = request.header("cookie", format!("{value}={token}"));
            }
            assert_eq!(request.send().await.unwrap().status(), 200, "{from}, {format}");
            let logged = eventually(PATIENCE, || async { !gate.stdout().trim().is_empty() }).await;
            assert!(logged, "{from}, {format}");
            let (lines, log) = (gate.stdout(), gate.log());
            let signature = token.rsplit_once('.').unwrap().1;
            for text in [&lines, &log] {
                assert!(!text.contains(signature), "{from}, {format}: {text}");
            }
            assert!(!gate.metrics().await.contains(signature));
        }
    }
}

#[test]
fn commands_take_keys_from_files_and_never_fetch() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (key, url) = (SigningKey::new("1"), "https://id.invalid/keys?code=MARKER");
    let policy = format!(
        "version: 1
listeners: [{{ address: 127.0.0.1:1 }}]
origins: {{ site: {{ servers: [127.0.0.1:1] }} }}
limits:
  user: {{ tier: exact, rate: 5/1h, key: {{ jwt: {{ jwks_url: \"{url}\", claim: sub, audience: api }} }}, missing_key: skip }}
  all: {{ tier: estimate, rate: 100/1s, key: client_ip }}
routes: [{{ name: r, limits: [user, all] }}]
"
    );
    let token = key.sign(CLAIMS);
    let cases = format!(
        "cases: [{{ name: c, steps: [{{ send: {{ url: \"http://a/\", headers: {{ authorization: \"Bearer {token}\" }} }}, expect: {{ limit: user }} }}] }}]"
    );
    std::fs::write(path("policy.yaml"), policy).unwrap();
    std::fs::write(path("keys.json"), set_of(&[&key])).unwrap();
    let run = |args: &[&str]| {
        let ran = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate")).args(args).output();
        let ran = ran.unwrap();
        let text = [ran.stdout, ran.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert!(!text.contains("MARKER"), "the query of a URL may be a secret: {text}");
        (ran.status.code().unwrap(), text)
    };
    let policy = path("policy.yaml");
    assert_eq!(run(&["check", &policy]).0, 0);
    let here = std::fs::read_to_string(&policy)
        .unwrap()
        .replace("https://id.invalid", "http://127.0.0.1:1");
    std::fs::write(path("here.yaml"), here).unwrap();
    let (_, text) = run(&["check", "--connect", &path("here.yaml")]);
    assert!(text.contains("the keys at 127.0.0.1:1/keys cannot be used"), "{text}");
    for (jwks, code, expected) in [
        (String::new(), 1, "no keys for id.invalid/keys; write jwks: {".to_owned()),
        (format!("jwks: {{ \"{url}\": keys.json }}\n"), 0, "1 of 1 cases pass".to_owned()),
        (format!("jwks: {{ \"{url}\": none }}\n"), 1, "limit".to_owned()),
        (format!("jwks: {{ \"{url}\": policy.yaml }}\n"), 1, "is no JWKS".to_owned()),
        (format!("jwks: {{ \"{url}\": nowhere }}\n"), 2, "nowhere: No such file".to_owned()),
        (
            format!("jwks: {{ \"{url}\": keys.json, \"https://b/k?code=MARKER\": none }}\n"),
            1,
            "keys for https://b/k, which is no jwks_url of the policy".to_owned(),
        ),
    ] {
        std::fs::write(path("cases.yaml"), format!("{jwks}{cases}")).unwrap();
        let (status, text) = run(&["test", "--config", &policy, &path("cases.yaml")]);
        assert!(status == code && text.contains(&expected), "{jwks}: {status}, {text}");
    }
    let bearer = format!("authorization: Bearer {token}");
    let file = format!("{url}={}", path("keys.json"));
    let other = format!("https://b/k?code=MARKER={}", path("keys.json"));
    for (more, code, expected) in [
        (
            &["-H", &bearer][..],
            2,
            "the keys at https://id.invalid/keys are not fetched here; add --jwks",
        ),
        (&["-H", &bearer, "--jwks", &file], 0, "jwt:sub = ann"),
        (&["--jwks", "https://b/k=x"], 2, "x: No such file"),
        (&["--jwks", &other], 2, "--jwks https://b/k: write URL=FILE"),
        (&["--jwks", "keys.json"], 2, "write URL=FILE"),
        (&[], 0, "decision   allowed"),
    ] {
        let args = [&["explain", "--config", &policy], more, &["GET", "http://a/"]].concat();
        let (status, text) = run(&args);
        assert!(status == code && text.contains(expected), "{more:?}: {status}, {text}");
    }
}
