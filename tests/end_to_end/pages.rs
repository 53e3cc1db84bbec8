//! Pages of the operator in place of problem documents, and the identifier of every answer.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::tls::{ONE, folder};
use support::servers::{Gate, Origin, Reloaded, client, eventually, free_port, origin_yaml};

const PAGE: &str = "<h1>{{status}}</h1> {{retry_after}} {{limit}} {{request_id}}";

const POLICY: &str = "
clients: { trusted_proxies: [127.0.0.1], address_header: none }
limits:
  writes: { tier: exact, algorithm: fixed_window, rate: 1/1h, key: header:x-api-key, missing_key: skip }
  keyed: { tier: exact, rate: 9/1h, key: bearer, missing_key: { deny: 401 } }
routes:
  - { name: keyed, match: { path: /keyed }, limits: [keyed] }
  - { name: grpc, match: { path: /grpc }, limits: [writes], responses: { body: [problem, grpc] } }
  - { name: plain, match: { path: /plain }, limits: [writes], responses: { pages: {} } }
  - { name: api, match: { host: a }, limits: [writes] }
responses: { pages: { 429: slow.html, 4xx: [other.html, other.txt], 5xx: sorry.html } }
";

async fn gate(policy: &str) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("slow.html", PAGE),
        ("other.html", "<p>{{status}}"),
        ("other.txt", "status {{status}}"),
        ("sorry.html", "<p>sorry {{status}} {{request_id}}"),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    Gate::start_in(folder, policy, "").await
}

/// Sends a request of HTTP/1; its head in lower case, and its body.
async fn ask(gate: &Gate, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

fn request(line: &str, fields: &[&str]) -> String {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n")
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[tokio::test]
async fn each_status_has_its_page_for_who_prefers_it() {
    let origin = Origin::start("site").await;
    let gate = gate(&format!("{}{POLICY}", origin_yaml(origin.address))).await;
    let browser = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let get = |path: &str, fields: &[&str]| request(&format!("GET {path}"), fields);
    assert!(ask(&gate, &get("/", &["x-api-key: k"])).await.0.contains(" 200 "));

    let (head, body) = ask(&gate, &get("/", &["x-api-key: k", browser])).await;
    let id = field(&head, "x-request-id").unwrap();
    let retry = field(&head, "retry-after").unwrap();
    assert_eq!(body, format!("<h1>429</h1> {retry} writes {id}"));
    assert_eq!(field(&head, "content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(field(&head, "cache-control"), Some("no-store"));
    assert_eq!(field(&head, "vary"), Some("accept"));
    assert_eq!(field(&head, "x-content-type-options"), Some("nosniff"));
    assert!(field(&head, "content-security-policy").unwrap().contains("default-src 'none'"));

    let (head, nothing) = ask(&gate, &request("HEAD /", &["x-api-key: k", browser])).await;
    assert_eq!(nothing, "");
    assert_eq!(field(&head, "content-length"), Some(&*body.len().to_string()));

    let (head, body) = ask(&gate, &get("/", &["x-api-key: k"])).await;
    assert!(body.starts_with('{'), "{body}");
    let id = field(&head, "x-request-id").unwrap();
    assert!(body.contains(&format!("\"request_id\":\"{id}\"")), "{body}");
    assert_eq!(field(&head, "vary"), Some("accept"));

    for (wanted, accept, expected) in [
        ("/%00", browser, "<p>400"),
        ("/%00", "Accept: text/plain", "status 400"),
        ("/%00", "Accept: image/png", "{\"type"),
        ("/plain", browser, "{\"type"),
    ] {
        let (_, body) = ask(&gate, &get(wanted, &[accept, "x-api-key: k"])).await;
        assert!(body.starts_with(expected), "{wanted} {accept}: {body}");
    }
    let no_route = request("GET /", &[browser]).replace("Host: a", "Host: other");
    assert_eq!(ask(&gate, &no_route).await.1, "<p>404");
    let large = format!("POST / HTTP/1.1\r\nHost: a\r\n{browser}\r\nTransfer-Encoding: x\r\n\r\n");
    assert!(ask(&gate, &large).await.1.starts_with("{\"type"), "nobody has read that head");

    let (head, body) = ask(&gate, &get("/keyed", &[browser])).await;
    assert_eq!((field(&head, "www-authenticate"), &*body), (Some("bearer"), "<p>401"));

    let grpc = ["x-api-key: k", "content-type: application/grpc", browser];
    let (head, body) = ask(&gate, &request("POST /grpc", &grpc)).await;
    assert!(head.contains(" 200 ") && head.contains("grpc-status: 8") && body.is_empty(), "{head}");
}

#[tokio::test]
async fn an_origin_that_is_down_has_a_page_and_its_own_answers_pass() {
    let origin = Origin::with(|_| {
        let answer = hyper::Response::builder().status(503).header("x-request-id", "theirs");
        answer.body("theirs".into()).unwrap()
    })
    .await;
    let policy = format!("{}{POLICY}", origin_yaml(origin.address));
    let gate = gate(&policy).await;
    let browser = ["Accept: text/html", "X-Request-Id: from-the-balancer_1"];
    let (head, body) = ask(&gate, &request("GET /", &browser)).await;
    assert_eq!(body, "theirs");
    assert_eq!(head.matches("x-request-id").count(), 1, "{head}");
    assert_eq!(field(&head, "x-request-id"), Some("from-the-balancer_1"));
    assert_eq!(origin.seen()[0].headers["x-request-id"], "from-the-balancer_1");
    // An identifier with other characters is not believed.
    for hostile in ["<script>", "a\"b", "a b", "a&b", "a'b", "a\\b"] {
        let (head, _) = ask(&gate, &request("GET /", &[&format!("X-Request-Id: {hostile}")])).await;
        assert_eq!(field(&head, "x-request-id").unwrap().len(), 32, "{hostile}: {head}");
    }
    let dead = policy.replace(&origin.address.to_string(), &format!("127.0.0.1:{}", free_port()));
    assert_eq!(gate.reload(&dead, "").await, Reloaded::Applied);
    let (head, body) = ask(&gate, &request("GET /", &["Accept: text/html"])).await;
    let id = field(&head, "x-request-id").unwrap();
    assert_eq!(body, format!("<p>sorry 502 {id}"));
    let (_, body) = ask(&gate, &request("GET /", &[])).await;
    assert!(body.contains("\"status\":502,\"request_id\":\""), "{body}");
}

#[tokio::test]
async fn a_page_changes_with_a_reload_and_a_broken_one_is_refused() {
    let origin = Origin::start("site").await;
    let policy = format!("{}{POLICY}", origin_yaml(origin.address));
    let gate = gate(&policy).await;
    let not_found = request("GET /", &["Accept: text/html"]).replace("Host: a", "Host: other");
    let page = gate.folder.path().join("other.html");
    std::fs::write(&page, "<b>\n\n{{retry_aftr}}").unwrap();
    assert_eq!(gate.hup().await, Reloaded::Refused);
    let log = gate.log();
    assert!(log.contains("other.html, line 3: unknown placeholder {{retry_aftr}}"), "{log}");
    assert!(log.contains("did you mean \"retry_after\"?"), "{log}");
    assert_eq!(ask(&gate, &not_found).await.1, "<p>404", "the page in force stays");
    std::fs::write(&page, "x".repeat(64 * 1024 + 1)).unwrap();
    assert_eq!(gate.hup().await, Reloaded::Refused);
    std::fs::write(&page, "<i>{{ status }}").unwrap();
    assert_eq!(gate.hup().await, Reloaded::Applied);
    assert_eq!(ask(&gate, &not_found).await.1, "<i>404");
}

#[tokio::test]
async fn pages_and_identifiers_over_http2() {
    let origin = Origin::start("site").await;
    let policy = POLICY.replace("host: a", "host: one.example");
    let policy = format!("{}{policy}", origin_yaml(origin.address));
    let files = [("slow.html", PAGE), ("other.html", "x"), ("other.txt", "x"), ("sorry.html", "x")];
    let (folder, _) = folder(&["one.example"]);
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let client = reqwest::Client::builder()
        .no_proxy()
        .danger_accept_invalid_certs(true)
        .resolve("one.example", ([127, 0, 0, 1], gate.port).into())
        .build()
        .unwrap();
    let url = format!("https://one.example:{}/", gate.port);
    let get = || client.get(&url).header("x-api-key", "k").header("accept", "text/html").send();
    let allowed = get().await.unwrap();
    assert_eq!((allowed.version(), allowed.status().as_u16()), (http::Version::HTTP_2, 200));
    let id = allowed.headers()["x-request-id"].to_str().unwrap();
    assert_eq!(origin.seen()[0].headers["x-request-id"], id);
    let refused = get().await.unwrap();
    assert_eq!((refused.version(), refused.status().as_u16()), (http::Version::HTTP_2, 429));
    let headers = refused.headers().clone();
    let told = |name: &str| headers[name].to_str().unwrap().to_owned();
    let expected = format!("<h1>429</h1> {} writes {}", told("retry-after"), told("x-request-id"));
    assert_eq!(refused.text().await.unwrap(), expected);
}

#[tokio::test]
async fn every_answer_has_an_identifier() {
    let origin = Origin::start("site").await;
    let gate = gate(&format!("{}{POLICY}", origin_yaml(origin.address))).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = client().get(gate.url("/")).header("host", "a").send().await.unwrap();
        ids.push(answer.headers()["x-request-id"].to_str().unwrap().to_owned());
    }
    for bad in ["GET / HTTP/1.1\r\nHost a\r\n\r\n", "GET / HTTP/3.0\r\nHost: a\r\n\r\n"] {
        let (head, body) = ask(&gate, bad).await;
        let id = field(&head, "x-request-id").unwrap().to_owned();
        assert!(body.contains(&id), "{body}");
        ids.push(id);
    }
    let logged = eventually(Duration::from_secs(5), || async {
        let lines = gate.stdout();
        ids.iter().all(|id| id.len() == 32 && lines.contains(id.as_str()))
    });
    assert!(logged.await, "{ids:?}: {}", gate.stdout());
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4);
}
