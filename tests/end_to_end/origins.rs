//! Where requests go, what origins are told, and what is said when they do not answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::Full;
use hyper::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use support::servers::{Gate, Origin, client, eventually, free_port, metric};

fn policy(origin: &str) -> String {
    format!("origins:\n  site: {origin}\nroutes: [{{ name: site }}]\n")
}

async fn get(gate: &Gate, path: &str) -> (u16, String) {
    let answer = client().get(gate.url(path)).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn servers_are_chosen_by_turn_by_weight_by_chance_and_by_key() {
    let (a, b) = (Origin::start("a").await, Origin::start("b").await);
    let servers = format!(
        "[{{ address: \"{}\", weight: 3 }}, {{ address: \"{}\", weight: 1 }}]",
        a.address, b.address
    );
    for (balance, least_b, most_b) in [("round_robin", 10, 10), ("random", 1, 30)] {
        let before = b.count();
        let gate =
            Gate::start(&policy(&format!("{{ servers: {servers}, balance: {balance} }}"))).await;
        for _ in 0..40 {
            assert_eq!(get(&gate, "/").await.0, 200);
        }
        let of_b = b.count() - before;
        assert!((least_b..=most_b).contains(&of_b), "{balance}: {of_b} of 40");
    }
    let hash = format!("{{ servers: {servers}, balance: {{ hash: header:x-user }} }}");
    let gate = Gate::start(&policy(&hash)).await;
    let mut seen = std::collections::HashSet::new();
    for user in 0..60 {
        let mut names = std::collections::HashSet::new();
        for _ in 0..3 {
            let request = client().get(gate.url("/")).header("x-user", format!("u{user}"));
            names.insert(request.send().await.unwrap().text().await.unwrap());
        }
        assert_eq!(names.len(), 1, "one user, one server");
        seen.extend(names);
    }
    assert_eq!(seen.len(), 2, "users are spread");
    // Of several cookies of one name the first says where a request goes.
    let hash = format!("{{ servers: {servers}, balance: {{ hash: cookie:user }} }}");
    let gate = Gate::start(&policy(&hash)).await;
    let mut seen = std::collections::HashSet::new();
    for user in 0..20 {
        let mut names = std::collections::HashSet::new();
        for cookies in [format!("user=u{user}"), format!("a=1; user=u{user}; user=u{}", user + 1)] {
            let request = client().get(gate.url("/")).header("cookie", cookies);
            names.insert(request.send().await.unwrap().text().await.unwrap());
        }
        assert_eq!(names.len(), 1, "one user, one server");
        seen.extend(names);
    }
    assert_eq!(seen.len(), 2, "users are spread");
}

#[tokio::test]
async fn an_origin_is_told_who_asks() {
    let origin = Origin::start("site").await;
    let address = origin.address;
    let site = format!("{{ servers: [\"{address}\"] }}");
    let spoofed = async |gate: &Gate| {
        let request = client()
            .get(gate.url("/"))
            .header("x-forwarded-for", "203.0.113.9")
            .header("x-forwarded-proto", "https")
            .header("x-forwarded-host", "evil.example")
            .header("forwarded", "for=203.0.113.9")
            .header("x-request-id", "chosen-by-client");
        assert_eq!(request.send().await.unwrap().status(), 200);
        origin.seen().last().unwrap().headers.clone()
    };
    let gate = Gate::start(&policy(&site)).await;
    let told = spoofed(&gate).await;
    assert_eq!(told["x-forwarded-for"], "127.0.0.1");
    assert_eq!(told["x-forwarded-proto"], "http");
    assert_eq!(told["x-forwarded-host"], *format!("127.0.0.1:{}", gate.port));
    assert!(!told.contains_key("forwarded"));
    assert_eq!(told["x-request-id"].len(), 32);
    assert_eq!(told["host"], format!("127.0.0.1:{}", gate.port));

    let trusting = format!("clients: {{ trusted_proxies: [127.0.0.0/8] }}\n{}", policy(&site));
    let told = spoofed(&Gate::start(&trusting).await).await;
    assert_eq!(told["x-forwarded-for"], "203.0.113.9, 127.0.0.1");
    assert_eq!(told["x-forwarded-proto"], "https");
    assert_eq!(told["x-forwarded-host"], "evil.example");
    assert_eq!(told["x-request-id"], "chosen-by-client");

    let renamed = policy(&format!("{{ servers: [\"{address}\"], host: site.internal }}"));
    assert_eq!(spoofed(&Gate::start(&renamed).await).await["host"], "site.internal");
}

#[tokio::test]
async fn of_several_values_an_origin_is_told_the_one_that_the_trusted_peer_wrote() {
    let origin = Origin::start("site").await;
    let site = policy(&format!("{{ servers: [\"{}\"] }}", origin.address));
    let gate = Gate::start(&format!("clients: {{ trusted_proxies: [127.0.0.0/8] }}\n{site}")).await;
    let own_host = format!("127.0.0.1:{}", gate.port);
    for (lines, scheme, host) in [
        (&[("x-forwarded-proto", "https")][..], "https", &*own_host),
        (&[("x-forwarded-proto", "https, http")], "http", &own_host),
        (&[("x-forwarded-proto", "http ,\thttps ")], "https", &own_host),
        (&[("x-forwarded-proto", "https"), ("x-forwarded-proto", "http")], "http", &own_host),
        (&[("x-forwarded-proto", "http"), ("x-forwarded-proto", "a, wss")], "wss", &own_host),
        // Nothing that a peer can have written: the scheme of this connection.
        (&[("x-forwarded-proto", "https,")], "http", &own_host),
        (&[("x-forwarded-proto", "https"), ("x-forwarded-proto", "")], "http", &own_host),
        (&[("x-forwarded-proto", "https;q=1")], "http", &own_host),
        (&[("x-forwarded-host", "evil.example, a.example:81")], "http", "a.example:81"),
        (
            &[("x-forwarded-host", "evil.example"), ("x-forwarded-host", "a.example")],
            "http",
            "a.example",
        ),
        (&[("x-forwarded-host", "evil.example,")], "http", &own_host),
    ] {
        let mut request = client().get(gate.url("/"));
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        assert_eq!(request.send().await.unwrap().status(), 200, "{lines:?}");
        let told = origin.seen().last().unwrap().headers.clone();
        let all = |name: &str| told.get_all(name).iter().cloned().collect::<Vec<_>>();
        assert_eq!(all("x-forwarded-proto"), [scheme], "{lines:?}");
        assert_eq!(all("x-forwarded-host"), [host], "{lines:?}");
    }
}

#[tokio::test]
async fn what_an_origin_must_not_be_told_is_taken_out_however_it_comes() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&policy(&format!("{{ servers: [\"{}\"] }}", origin.address))).await;
    for (mark, field) in [
        "FORWARDED: for=203.0.113.9",
        "hTTP2-sETTINGS: AAMAAABkAAQAAP__",
        "uPGRADE: h2c\r\nConnection: Upgrade",
        "Upgrade: websocket, TLS/1.0\r\nConnection: Upgrade",
        "X-First: 1\r\nForwarded: for=203.0.113.9\r\nX-Last: 1",
    ]
    .into_iter()
    .enumerate()
    {
        let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\nX-Mark: {mark}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200", "{field}");
        let told = origin.seen().last().unwrap().headers.clone();
        assert_eq!(told["x-mark"], mark.to_string(), "{field}");
        for name in ["forwarded", "http2-settings", "upgrade"] {
            assert!(!told.contains_key(name), "{field}");
        }
    }
}

/// Behind a body that an origin does not take, a tunnel would have no deadline.
#[tokio::test]
async fn a_request_with_a_body_asks_for_another_protocol_in_vain() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&policy(&format!("{{ servers: [\"{}\"] }}", origin.address))).await;
    for (framing, body) in [
        ("Content-Length: 2", "ab"),
        ("Transfer-Encoding: chunked", "2\r\nab\r\n0\r\n\r\n"),
        ("Content-Length: 2\r\nExpect: 100-continue", "ab"),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{framing}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert!([b"HTTP/1.1 200", b"HTTP/1.1 100"].contains(&&answer), "{framing}: {answer:?}");
        let seen = eventually(Duration::from_secs(5), || async { !origin.seen().is_empty() });
        assert!(seen.await, "{framing}");
        let told = origin.seen().pop().unwrap().headers;
        assert!(!told.contains_key("upgrade"), "{framing}: {told:?}");
    }
}

#[tokio::test]
async fn an_origin_that_does_not_answer_has_its_own_status() {
    let dead = format!("{{ servers: [\"127.0.0.1:{}\"] }}", free_port());
    let gate = Gate::start(&policy(&dead)).await;
    let answer = client().get(gate.url("/")).send().await.unwrap();
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    assert!(answer.text().await.unwrap().contains("\"status\":502"));

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slow = format!(
        "{{ servers: [\"{}\"], timeouts: {{ read: 200ms }} }}",
        silent.local_addr().unwrap()
    );
    let gate = Gate::start(&policy(&slow)).await;
    assert_eq!(get(&gate, "/").await.0, 504);
    let metrics = gate.metrics().await;
    let failed = "tollgate_requests_total{route=\"site\",outcome=\"failed\"}";
    assert_eq!(metric(&metrics, failed), 1.0, "{metrics}");
}

#[tokio::test]
async fn a_dead_server_is_left_out_and_the_living_one_answers() {
    let living = Origin::start("living").await;
    let servers = format!("[\"127.0.0.1:{}\", \"{}\"]", free_port(), living.address);
    // Without health checks: a connection that fails is tried at the other server.
    let gate = Gate::start(&policy(&format!("{{ servers: {servers} }}"))).await;
    for _ in 0..10 {
        assert_eq!(get(&gate, "/").await, (200, "living".to_owned()));
    }
    assert_eq!(living.count(), 10, "no request was sent twice");
}

/// An origin that closes a kept connection when the next request is on its way: a race that every
/// proxy meets. A GET is sent again, over a new connection to the same server.
#[tokio::test]
async fn a_kept_connection_that_has_gone_is_no_dead_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let origin = tokio::spawn(async move {
        for _ in 0..4 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut chunk = [0; 4096];
            assert!(stream.read(&mut chunk).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            // The next request is read and never answered.
            let _ = stream.read(&mut chunk).await;
        }
    });
    let gate = Gate::start(&policy(&format!("{{ servers: [\"{address}\"] }}"))).await;
    for _ in 0..4 {
        assert_eq!(get(&gate, "/").await, (200, "ok".to_owned()));
    }
    origin.abort();
}

/// An origin that reads requests and drops every second one: what it sees of writes is what was
/// admitted, and a read it sees at most twice.
#[tokio::test]
async fn a_write_is_sent_once_whatever_the_origin_does() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(Vec::<String>::new()));
    let book = Arc::clone(&seen);
    let origin = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let book = Arc::clone(&book);
            tokio::spawn(async move {
                let mut chunk = [0; 4096];
                for answers in [true, false] {
                    let read = stream.read(&mut chunk).await.unwrap_or(0);
                    if read == 0 {
                        return;
                    }
                    let head = String::from_utf8_lossy(&chunk[..read]);
                    book.lock().unwrap().push(head.lines().next().unwrap_or_default().to_owned());
                    if answers {
                        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                        let _ = stream.write_all(answer).await;
                    }
                }
            });
        }
    });
    let gate = Gate::start(&policy(&format!("{{ servers: [\"{address}\"] }}"))).await;
    let client = client();
    for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"] {
        let method: reqwest::Method = method.parse().unwrap();
        for n in 0..10 {
            let url = gate.url(&format!("/{method}/{n}"));
            let _ = client.request(method.clone(), url).send().await.unwrap();
        }
    }
    let seen = seen.lock().unwrap().clone();
    for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"] {
        for n in 0..10 {
            let line = format!("{method} /{method}/{n} HTTP/1.1");
            let times = seen.iter().filter(|one| **one == line).count();
            let most = if matches!(method, "GET" | "HEAD") { 2 } else { 1 };
            assert!((1..=most).contains(&times), "{line}: {times} times");
        }
    }
    origin.abort();
}

#[tokio::test]
async fn health_checks_take_servers_out_and_back_in() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let well = std::sync::Arc::new(AtomicBool::new(true));
    let asked = well.clone();
    let origin = Origin::with(move |seen| {
        let ok = seen.target != "/healthz" || asked.load(Ordering::SeqCst);
        Response::builder().status(if ok { 200 } else { 500 }).body(Full::from("site")).unwrap()
    })
    .await;
    let site = format!(
        "{{ servers: [\"{}\"], health_check: {{ path: /healthz, every: 50ms, timeout: 1s }} }}",
        origin.address
    );
    let gate = Gate::start(&policy(&site)).await;
    let is = async |status: u16| {
        eventually(Duration::from_secs(5), || async { get(&gate, "/").await.0 == status }).await
    };
    assert!(is(200).await);
    well.store(false, Ordering::SeqCst);
    assert!(is(503).await, "nobody is well");
    let (_, status) = gate.admin_get("/status").await.unwrap();
    assert!(status.contains("\"healthy\": 0"), "{status}");
    well.store(true, Ordering::SeqCst);
    assert!(is(200).await);
}

#[tokio::test]
async fn names_are_resolved() {
    let origin = Origin::start("site").await;
    let site = format!("{{ servers: [\"localhost:{}\"] }}", origin.address.port());
    let gate = Gate::start(&policy(&site)).await;
    assert_eq!(get(&gate, "/").await.0, 200);
}

#[tokio::test]
async fn http2_goes_to_an_origin_that_speaks_it() {
    let origin = Origin::start("site").await;
    let site = format!("{{ servers: [\"{}\"], http: 2 }}", origin.address);
    let gate = Gate::start(&policy(&site)).await;
    assert_eq!(get(&gate, "/x?y").await.0, 200);
    let seen = origin.seen();
    assert_eq!(seen[0].version, hyper::Version::HTTP_2);
    assert_eq!(seen[0].headers["x-forwarded-for"], "127.0.0.1");
}

/// An origin that switches protocols and then echoes.
#[tokio::test]
async fn websockets_pass() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let origin = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        crate::tunnels::switch(&mut stream).await.unwrap();
        let (mut from, mut to) = stream.split();
        tokio::io::copy(&mut from, &mut to).await.unwrap();
        String::from_utf8(head).unwrap()
    });
    let site = format!("origins:\n  site: {{ servers: [\"{address}\"] }}\n");
    let limits = "limits: { sockets: { tier: exact, rate: 5/1h, key: client_ip } }\nroutes: [{ name: ws, limits: [sockets] }]\n";
    let gate = Gate::start(&format!("{site}{limits}")).await;
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    let ask = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n";
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    for text in ["hello", "again"] {
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut echo = vec![0; text.len()];
        stream.read_exact(&mut echo).await.unwrap();
        assert_eq!(echo, text.as_bytes());
    }
    drop(stream);
    let asked = origin.await.unwrap().to_lowercase();
    assert!(asked.contains("upgrade: websocket") && asked.contains("get /chat"), "{asked}");
}
