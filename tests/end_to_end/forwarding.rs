//! What an origin receives and a client is told: fields that an operator changes, rewritten paths, and redirects to https.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::tls::{ONE, folder};
use support::servers::{Gate, Origin, Reloaded, eventually, metric, origin_yaml};

const POLICY: &str = "
limits: { writes: { tier: exact, rate: 1/1h, key: path } }
routes:
  - name: api
    match: { path: /api/** }
    limits: [writes]
    rewrite: { strip_prefix: /api }
    request_headers: { set: { x-tier: free, authorization: Basic Zm9vOmJhcg== }, add: { x-hop: b, cookie: edge=1 }, remove: [x-debug] }
    response_headers: { set: { x-frame-options: DENY }, add: { link: a }, remove: [server] }
  - { name: rest }
";

/// Sends a request of HTTP/1; the head of the answer in lower case, and the rest.
async fn ask(port: u16, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, rest) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), rest.to_owned())
}

fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: one.example\r\n{fields}Connection: close\r\n\r\n")
}

/// Whether the access log comes to have a text.
async fn logs(gate: &Gate, text: &str) -> bool {
    eventually(Duration::from_secs(5), || async { gate.stdout().contains(text) }).await
}

async fn origin() -> Origin {
    Origin::with(|_| {
        let answer = hyper::Response::builder().header("server", "secret").header("link", "theirs");
        answer.body("site".into()).unwrap()
    })
    .await
}

#[tokio::test]
async fn fields_and_paths_are_changed_on_the_way() {
    for http in ["1", "2"] {
        let origin = origin().await;
        let yaml = format!("{}    http: {http}\n", origin_yaml(origin.address));
        let gate = Gate::start(&format!("{yaml}{POLICY}")).await;
        let fields = "X-Tier: gold\r\nX-Tier: gold\r\nx-hop: a\r\nX-Debug: 1\r\nCookie: a=b\r\n";
        let (head, body) = ask(gate.port, &get("/api/%61?q=/api", fields)).await;
        assert!(head.contains(" 200 ") && body == "site", "{head}");
        assert!(head.contains("x-frame-options: deny") && !head.contains("secret"), "{head}");
        assert_eq!(head.matches("\r\nlink: ").count(), 2, "{head}");
        let seen = origin.seen().pop().unwrap();
        let path = seen
            .target
            .split_once("//")
            .map_or(&*seen.target, |(_, rest)| &rest[rest.find('/').unwrap()..]);
        assert_eq!(path, "/a?q=/api");
        let lines = |name: &str| -> Vec<_> {
            seen.headers.get_all(name).iter().map(|line| line.to_str().unwrap()).collect()
        };
        assert_eq!((lines("x-tier"), lines("x-hop")), (vec!["free"], vec!["a", "b"]));
        let cookies = if http == "1" { vec!["a=b; edge=1"] } else { vec!["a=b", "edge=1"] };
        assert_eq!(lines("cookie"), cookies, "HTTP/{http}");
        assert_eq!((lines("authorization").len(), lines("x-debug").len()), (1, 0));
        // A spelling that an origin may read as the field that is set.
        assert!(ask(gate.port, &get("/api/b", "X_Tier: gold\r\n")).await.0.contains(" 400 "));
        // Our own answer: the route's fields, not those of a framing.
        let (head, _) = ask(gate.port, &get("/api/a", "")).await;
        assert!(head.contains(" 429 ") && head.contains("x-frame-options: deny"), "{head}");
        for path in ["/api//a", "/api/../a", "/api%2Fa", "/api/%2e%2e/api/a"] {
            assert!(ask(gate.port, &get(path, "")).await.0.contains(" 400 "), "{path}");
        }
        assert_eq!(origin.count(), 1);
        assert!(logs(&gate, "\"path\":\"/api/a\"").await, "the client's path: {}", gate.stdout());
        let absolute = get("http://one.example/api/c", "");
        assert!(ask(gate.port, &absolute).await.0.contains(" 200 "));
        assert!(origin.seen().pop().unwrap().target.ends_with("/c"));
    }
}

#[tokio::test]
async fn http2_has_the_same_fields() {
    let origin = origin().await;
    let (folder, pairs) = folder(&["one.example"]);
    let gate =
        Gate::start_in(folder, &format!("{}{POLICY}", origin_yaml(origin.address)), ONE).await;
    let address = (Ipv4Addr::LOCALHOST, gate.port).into();
    let client = crate::tls::trusting(&pairs[0], "one.example", address).build().unwrap();
    let url = format!("https://one.example:{}/api/x", gate.port);
    for status in [200, 429] {
        let answer = client.get(&url).header("x-debug", "1").send().await.unwrap();
        assert_eq!((answer.version(), answer.status().as_u16()), (http::Version::HTTP_2, status));
        assert_eq!(answer.headers()["x-frame-options"], "DENY");
        assert!(answer.headers().get("server").is_none());
    }
    let seen = origin.seen().pop().unwrap();
    assert_eq!((&*seen.target, seen.headers.get("x-debug")), ("/x", None));
}

#[tokio::test]
async fn an_upgrade_and_interim_answers_keep_their_fields() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = tokio::spawn(async move {
        let (mut heads, mut open) = (Vec::new(), Vec::new());
        for answer in [
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nServer: s\r\n\r\nbytes",
            "HTTP/1.1 103 Early Hints\r\nServer: s\r\n\r\nHTTP/1.1 200 OK\r\nServer: s\r\nContent-Length: 2\r\n\r\nok",
        ] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut head).await.unwrap() > 0);
            }
            heads.push(String::from_utf8(head).unwrap().to_lowercase());
            stream.write_all(answer.as_bytes()).await.unwrap();
            open.push(stream);
        }
        heads
    });
    let gate = Gate::start(&format!("{}{POLICY}", origin_yaml(address))).await;
    let upgrade =
        "GET /api/ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, gate.port)).await.unwrap();
    stream.write_all(upgrade.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"bytes") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
    }
    let answer = String::from_utf8(answer).unwrap().to_lowercase();
    assert!(
        answer.contains("upgrade: websocket") && answer.contains("x-frame-options: deny"),
        "{answer}"
    );
    assert!(!answer.contains("server: s"), "{answer}");
    drop(stream);
    let (head, rest) = ask(gate.port, &get("/api/hints", "")).await;
    assert!(head.contains(" 103 ") && head.contains("server: s"), "interim heads pass: {head}");
    assert!(rest.starts_with("HTTP/1.1 200") && rest.contains("x-frame-options: DENY"), "{rest}");
    assert!(!rest.contains("Server: s"), "{rest}");
    let heads = serve.await.unwrap();
    assert!(heads[0].starts_with("get /ws ") && heads[1].starts_with("get /hints "), "{heads:?}");
    assert!(heads[0].contains("upgrade: websocket"), "{heads:?}");
}

#[tokio::test]
async fn a_reload_changes_fields_and_paths_at_once() {
    let origin = origin().await;
    let policy = format!("{}{POLICY}", origin_yaml(origin.address));
    let gate = Gate::start(&policy).await;
    assert!(ask(gate.port, &get("/api/a", "")).await.0.contains(" 200 "));
    let next = policy
        .replace("x-tier: free", "x-tier: silver")
        .replace("strip_prefix: /api", "add_prefix: /v2");
    assert_eq!(gate.reload(&next, "").await, Reloaded::Applied);
    assert!(ask(gate.port, &get("/api/b", "")).await.0.contains(" 200 "));
    let seen = origin.seen().pop().unwrap();
    assert_eq!((&*seen.target, &seen.headers["x-tier"]), ("/v2/api/b", &"silver".parse().unwrap()));
    for broken in [
        "remove: [content-length]",
        "remove: [Connection]",
        "set: { host: evil }",
        "set: { x-request-id: a }",
        "set: { x: \"a\\r\\nb: c\" }",
        "set: { x: $host }",
        "set: { x: caf\u{e9} }",
        "set: { \"a b\": c }",
        "remove: [sec-websocket-key]",
    ] {
        let text = policy
            .replace("remove: [x-debug]", broken)
            .replace("set: { x-tier: free, authorization: Basic Zm9vOmJhcg== }, ", "");
        assert_eq!(gate.reload(&text, "").await, Reloaded::Refused, "{broken}");
    }
    let wide = policy.replace("path: /api/**", "path: /**");
    assert_eq!(gate.reload(&wide, "").await, Reloaded::Refused);
    assert!(gate.log().contains("the route takes paths that do not begin with /api"));
}

#[tokio::test]
async fn a_plain_listener_sends_its_clients_to_https() {
    let origin = Origin::start("site").await;
    let policy = "
limits: { writes: { tier: exact, rate: 1/1h, key: client_ip } }
routes: [{ name: site, match: { host: one.example }, limits: [writes] }]
";
    let policy = format!("{}{policy}", origin_yaml(origin.address));
    let redirect = "redirect: { scheme: https, port: 8443 }";
    let gate = Gate::start_in(tempfile::tempdir().unwrap(), &policy, redirect).await;
    for _ in 0..3 {
        let (head, body) = ask(gate.port, &get("/a?b=c", "")).await;
        assert!(head.starts_with("http/1.1 301 "), "{head}");
        assert!(head.contains("location: https://one.example:8443/a?b=c\r\n"), "{head}");
        assert!(head.contains("x-request-id: ") && body.is_empty(), "{head}");
    }
    let post = get("/a", "Content-Length: 3\r\n").replace("GET", "POST") + "abc";
    assert!(ask(gate.port, &post).await.0.starts_with("http/1.1 308 "));
    let other = get("/", "").replace("one.example", "evil.example");
    assert!(ask(gate.port, &other).await.0.contains(" 404 "));
    let old = "GET / HTTP/1.0\r\n\r\n";
    assert!(ask(gate.port, old).await.0.contains(" 400 "));
    assert_eq!(origin.count(), 0);
    let challenge = get("/.well-known/acme-challenge/token", "");
    assert_eq!(ask(gate.port, &challenge).await.1, "site");
    let metrics = gate.metrics().await;
    let redirected = "tollgate_requests_total{route=\"\",outcome=\"redirected\"}";
    assert!((metric(&metrics, redirected) - 4.0).abs() < 0.1, "{metrics}");
    assert!(logs(&gate, "\"decision\":\"redirected\"").await, "{}", gate.stdout());
    // What listeners do cannot change while they listen.
    assert_eq!(gate.reload(&policy, "").await, Reloaded::Refused);
}

#[tokio::test]
async fn a_redirect_behind_a_proxy_header() {
    let origin = Origin::start("site").await;
    let policy = format!(
        "{}clients: {{ trusted_proxies: [127.0.0.1], address_header: none }}\nroutes: [{{ name: site }}]\n",
        origin_yaml(origin.address)
    );
    let mut gate = Gate::spawn(&policy, "redirect: https\n    proxy_protocol: true");
    gate.wait_admin().await;
    let head = "PROXY TCP4 203.0.113.9 192.0.2.1 1 80\r\n";
    let (answer, _) = ask(gate.port, &format!("{head}{}", get("/", ""))).await;
    assert!(answer.contains("location: https://one.example/\r\n"), "{answer}");
    assert!(logs(&gate, "203.0.113.9").await, "{}", gate.stdout());
}
