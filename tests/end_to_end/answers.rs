//! What a client sees: fields, bodies, and a connection that is kept when it safely can.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use support::servers::{Gate, Origin, client, now, origin_yaml};
use support::wait::pause_of_a_slow_client;

const ONE: &str = "
limits:
  writes: { tier: exact, algorithm: fixed_window, rate: 1/1h, key: header:x-api-key, missing_key: skip }
routes: [{ name: api, limits: [writes] }]
";

/// Sends bytes, reads until the answer is complete or the connection ends.
async fn raw(stream: &mut TcpStream, bytes: &[u8]) -> String {
    stream.write_all(bytes).await.unwrap();
    let mut got = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&got).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
            });
            if length.is_some_and(|length: usize| body.len() >= length) {
                return text;
            }
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return String::from_utf8_lossy(&got).into_owned(),
            Ok(read) => got.extend_from_slice(&chunk[..read]),
        }
    }
}

#[tokio::test]
async fn a_refusal_says_everything() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ONE}", origin_yaml(origin.address))).await;
    let get = || client().get(gate.url("/")).header("x-api-key", "secret-key-value").send();
    let allowed = get().await.unwrap();
    assert_eq!(allowed.status(), 200);
    assert_eq!(allowed.headers()["ratelimit-policy"], "\"writes\";q=1;w=3600");
    assert_eq!(allowed.headers()["x-ratelimit-limit"], "1");
    assert_eq!(allowed.headers()["x-ratelimit-remaining"], "0");
    assert_eq!(allowed.text().await.unwrap(), "site");

    let refused = get().await.unwrap();
    assert_eq!(refused.status(), 429);
    let headers = refused.headers().clone();
    let wait: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=3_600).contains(&wait));
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(headers["content-type"], "application/problem+json");
    assert_eq!(headers["ratelimit"].to_str().unwrap(), format!("\"writes\";r=0;t={wait}"));
    let id = headers["x-request-id"].to_str().unwrap();
    let body = refused.text().await.unwrap();
    let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    let expected = format!(
        "{{\"type\":\"{kind}\",\"title\":\"Too many requests\",\"status\":429,\
         \"violated-policies\":[\"writes\"],\"retry_after\":{wait},\"request_id\":\"{id}\"}}"
    );
    assert_eq!(body, expected);
}

#[tokio::test]
async fn head_has_the_same_fields_and_no_body() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ONE}", origin_yaml(origin.address))).await;
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    let get = raw(&mut stream, b"GET / HTTP/1.1\r\nHost: a\r\nx-api-key: k\r\n\r\n").await;
    assert!(get.starts_with("HTTP/1.1 200"), "{get}");
    // HEAD is answered without the body that its length speaks of; the next request follows.
    stream.write_all(b"HEAD / HTTP/1.1\r\nHost: a\r\nx-api-key: k\r\n\r\n").await.unwrap();
    let mut chunk = [0; 4096];
    let read = stream.read(&mut chunk).await.unwrap();
    let head = String::from_utf8_lossy(&chunk[..read]).into_owned();
    assert!(head.starts_with("HTTP/1.1 429") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.to_lowercase().contains("content-length: 2"), "{head}");
    let next = raw(&mut stream, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(next.starts_with("HTTP/1.1 200"), "the connection was kept: {next}");
}

#[tokio::test]
async fn http_1_0_is_closed_unless_it_asks_to_go_on() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ONE}", origin_yaml(origin.address))).await;
    // Forwarded, then refused.
    for status in ["200", "429"] {
        let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\nHost: a\r\nx-api-key: k\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(5), reading).await.unwrap().unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(status), "{answer}");
    }
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    let asks = b"GET / HTTP/1.0\r\nHost: a\r\nx-api-key: k\r\nConnection: keep-alive\r\n\r\n";
    for _ in 0..2 {
        let answer = raw(&mut stream, asks).await;
        assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    }
}

#[tokio::test]
async fn a_refused_request_keeps_the_connection_when_its_body_is_small() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ONE}", origin_yaml(origin.address))).await;
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    let request = b"POST / HTTP/1.1\r\nHost: a\r\nx-api-key: k\r\nContent-Length: 5\r\n\r\nhello";
    assert!(raw(&mut stream, request).await.starts_with("HTTP/1.1 200"));
    for _ in 0..3 {
        assert!(raw(&mut stream, request).await.starts_with("HTTP/1.1 429"));
    }
    let free = raw(&mut stream, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(free.starts_with("HTTP/1.1 200"), "{free}");
    assert_eq!(origin.count(), 2);
}

#[tokio::test]
async fn a_large_refused_upload_sees_its_answer() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ONE}", origin_yaml(origin.address))).await;
    let body = vec![b'x'; 20 << 20];
    let url = gate.url("/");
    assert_eq!(client().get(&url).header("x-api-key", "k").send().await.unwrap().status(), 200);
    for _ in 0..5 {
        let upload = client().post(&url).header("x-api-key", "k").body(body.clone());
        assert_eq!(upload.send().await.unwrap().status(), 429);
    }
    assert_eq!(origin.count(), 1);
}

#[tokio::test]
async fn an_operators_own_body_and_fields() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("denied.html"), "<h1>slow down</h1>").unwrap();
    let origin = Origin::start("site").await;
    let policy = "
limits:
  writes: { tier: exact, rate: 1/1h, key: client_ip }
  hidden: { tier: exact, rate: 100/1h, key: client_ip, headers: hidden }
  watched: { tier: exact, rate: 1/1h, key: client_ip, mode: shadow }
routes:
  - { name: quiet, match: { path: /quiet }, limits: [hidden], responses: { headers: [] } }
  - { name: watched, match: { path: /watched }, limits: [watched] }
  - { name: api, limits: [writes, hidden] }
responses: { headers: [x-ratelimit], body: { file: denied.html, type: text/html } }
";
    let gate =
        Gate::start_in(folder, &format!("{}{policy}", origin_yaml(origin.address)), "").await;
    let get = async |path: &str| client().get(gate.url(path)).send().await.unwrap();
    let first = get("/").await;
    assert_eq!(first.headers()["x-ratelimit-limit"], "1", "a hidden limit is in no field");
    assert!(!first.headers().contains_key("ratelimit"));
    let refused = get("/").await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["content-type"], "text/html");
    assert_eq!(refused.text().await.unwrap(), "<h1>slow down</h1>");
    let quiet = get("/quiet").await;
    assert!(quiet.headers().keys().all(|name| !name.as_str().contains("ratelimit")));
    for _ in 0..3 {
        let watched = get("/watched").await;
        assert_eq!(watched.status(), 200, "shadow never refuses");
        assert!(!watched.headers().contains_key("x-ratelimit-limit"));
    }
    let metrics = gate.metrics().await;
    let sample =
        "tollgate_decisions_total{limit=\"watched\",tier=\"exact\",verdict=\"shadow_denied\"} 2";
    assert!(metrics.contains(sample), "{metrics}");
}

#[tokio::test]
async fn an_origins_tighter_fields_go_out_whole() {
    let origin = Origin::with(|seen| {
        let remaining = if seen.target == "/tight" { "3" } else { "5000" };
        Response::builder()
            .header("x-ratelimit-limit", "7")
            .header("x-ratelimit-remaining", remaining)
            .header("x-ratelimit-reset", "1")
            .header("ratelimit", "\"theirs\";r=9")
            .body(Full::from(Bytes::new()))
            .unwrap()
    })
    .await;
    let policy = ONE.replace("1/1h", "100/1h");
    let gate = Gate::start(&format!("{}{policy}", origin_yaml(origin.address))).await;
    let get = async |path: &str| {
        let answer = client().get(gate.url(path)).header("x-api-key", "k").send().await.unwrap();
        answer.headers().clone()
    };
    let theirs = get("/tight").await;
    assert_eq!(
        (&theirs["x-ratelimit-limit"], &theirs["x-ratelimit-reset"]),
        (&"7".parse().unwrap(), &"1".parse().unwrap())
    );
    let ours = get("/loose").await;
    assert_eq!(ours["x-ratelimit-limit"], "100");
    let lines: Vec<_> = ours.get_all("ratelimit").iter().collect();
    assert_eq!(lines.len(), 2, "ours stands beside theirs");
}

#[tokio::test]
async fn an_unclean_request_is_refused_and_forwarded_to_nobody() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ONE}", origin_yaml(origin.address))).await;
    let head = |first: &str, rest: &str| format!("{first}\r\nHost: a\r\n{rest}\r\n");
    let cases = [
        (head("GET /../b HTTP/1.1", ""), "400"),
        (head("GET /a%00b HTTP/1.1", ""), "400"),
        (head("GET /a\tb HTTP/1.1", ""), "400"),
        (head("GET / HTTP/1.1", "Connection: x-api-key\r\n"), "400"),
        (head("GET / HTTP/1.1", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), "400"),
        (head("GET / HTTP/2.0", ""), "505"),
        (head("CONNECT a:80 HTTP/1.1", ""), "501"),
        ("GET / HTTP/1.1\nHost: a\n\n".to_owned(), "400"),
        (head("FOO / HTTP/1.1", ""), "501"),
        (head("get / HTTP/1.1", ""), "501"),
        (head("GET / HTTP/1.1", "x-api-key: a\r\nx-api-key: b\r\n"), "400"),
        (head("GET / HTTP/1.1", "Host: b\r\n"), "400"),
        (head("GET http://other/ HTTP/1.1", ""), "400"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400"),
        (head("GET / HTTP/1.1", &format!("x: {}\r\n", "y".repeat(40_000))), "431"),
        (head("GET / HTTP/1.1", &"x: y\r\n".repeat(120)), "431"),
    ];
    for (request, status) in cases {
        let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
        let answer = raw(&mut stream, request.as_bytes()).await;
        let line = answer.lines().next().unwrap_or("").to_owned();
        assert!(line.contains(status), "{request:.60}: {line}");
    }
    assert_eq!(origin.count(), 0);
    // What is only written otherwise is forwarded as it was matched.
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    let answer = raw(&mut stream, head("GET /%61pi/x?q=%61 HTTP/1.1", "").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let absolute = raw(&mut stream, head("GET http://a/x?y HTTP/1.1", "").as_bytes()).await;
    assert!(absolute.starts_with("HTTP/1.1 200"), "{absolute}");
    let targets: Vec<String> = origin.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(targets, ["/api/x?q=%61", "/x?y"]);
}

#[tokio::test]
async fn a_body_above_its_bound_is_413() {
    let origin = Origin::start("site").await;
    let policy = format!("{ONE}limits_of_this_proxy: {{ body_size: 1KiB }}\n");
    let gate = Gate::start(&format!("{}{policy}", origin_yaml(origin.address))).await;
    let post = async |size: usize| {
        client().post(gate.url("/")).body(vec![b'x'; size]).send().await.unwrap().status().as_u16()
    };
    assert_eq!((post(1_024).await, post(1_025).await), (200, 413));
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    let chunk = format!("800\r\n{}\r\n", "x".repeat(0x800));
    let request =
        format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n");
    let answer = raw(&mut stream, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_time() {
    let origin = Origin::start("site").await;
    let policy = format!("{ONE}limits_of_this_proxy: {{ idle_timeout: 1500ms }}\n");
    let gate = Gate::start(&format!("{}{policy}", origin_yaml(origin.address))).await;
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    for pause in [Duration::ZERO, Duration::from_millis(500)] {
        pause_of_a_slow_client(pause).await;
        let answer = raw(&mut stream, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    // The time is that since the last request, whatever was waited for before.
    let (began, mut rest) = (now(), Vec::new());
    let closed = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest));
    assert_eq!(closed.await.expect("closed in time").unwrap(), 0);
    let took = began.elapsed();
    assert!(took > Duration::from_millis(1_400), "{took:?}");
}
