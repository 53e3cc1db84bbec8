//! Who is answered by the admin listener: no page of another site, whatever its name resolves to,
//! and operators also while somebody holds connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use support::servers::{Gate, Origin, eventually, now, origin_yaml};

const ROUTE: &str = "routes: [{ name: site }]\n";

/// Sends one request to the admin listener and reads to its end.
async fn raw(port: u16, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

async fn status(port: u16, path: &str, fields: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\n{fields}Connection: close\r\n\r\n");
    let answer = raw(port, &request).await.unwrap();
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_name_that_is_not_ours_is_not_answered() {
    let origin = Origin::start("site").await;
    let hosts = "  hosts: [admin.example, \"[fd00::1]\"]\n";
    let gate = Gate::start(&format!("{hosts}{}{ROUTE}", origin_yaml(origin.address))).await;
    let port = gate.admin;
    for (host, expected) in [
        (format!("127.0.0.1:{port}"), "200"),
        // Behind a forwarded port.
        ("127.0.0.1:1".to_owned(), "200"),
        ("127.0.0.1".to_owned(), "200"),
        ("localhost".to_owned(), "200"),
        (format!("LocalHost:{port}"), "200"),
        ("admin.example".to_owned(), "200"),
        ("Admin.Example:8443".to_owned(), "200"),
        ("[fd00::1]:80".to_owned(), "200"),
        (format!("evil.example:{port}"), "421"),
        (format!("localhost.evil.example:{port}"), "421"),
        (format!("admin.example.evil.example:{port}"), "421"),
        (format!("127.0.0.1.evil.example:{port}"), "421"),
        (format!("[::1]:{port}"), "421"),
        (format!("192.0.2.1:{port}"), "421"),
        ("xadmin.example".to_owned(), "421"),
    ] {
        for path in ["/status", "/metrics", "/nothing"] {
            let expected = if path == "/nothing" && expected == "200" { "404" } else { expected };
            let got = status(port, path, &format!("Host: {host}\r\n")).await;
            assert_eq!(got, expected, "{path} of {host}");
        }
        for path in ["/healthz", "/ready"] {
            let got = status(port, path, &format!("Host: {host}\r\n")).await;
            assert_eq!(got, "200", "probes use addresses: {path} of {host}");
        }
    }
    let old = raw(port, "GET /status HTTP/1.0\r\n\r\n").await.unwrap();
    assert!(old.starts_with("HTTP/1.1 421") || old.starts_with("HTTP/1.0 421"), "{old}");
    let old = raw(port, "GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
    assert!(old.contains(" 200 "), "{old}");
}

#[tokio::test]
async fn a_page_of_another_origin_is_refused() {
    let origin = Origin::start("site").await;
    let hosts = "  hosts: [admin.example]\n";
    let gate = Gate::start(&format!("{hosts}{}{ROUTE}", origin_yaml(origin.address))).await;
    let port = gate.admin;
    let own = format!("Host: localhost:{port}\r\n");
    for (origin, expected) in [
        (format!("http://localhost:{port}"), "200"),
        ("https://admin.example".to_owned(), "200"),
        ("http://localhost:3000".to_owned(), "403"),
        ("http://evil.example".to_owned(), "403"),
        (format!("http://evil.example:{port}"), "403"),
        ("null".to_owned(), "403"),
        (String::new(), "403"),
        (format!("http://localhost:{port}.evil.example"), "403"),
        (format!("http://evil.example@localhost:{port}"), "403"),
        (format!("http://localhost:{port}/x"), "403"),
        ("file://".to_owned(), "403"),
    ] {
        for path in ["/status", "/metrics"] {
            let fields = format!("{own}Origin: {origin}\r\n");
            assert_eq!(status(port, path, &fields).await, expected, "{path} from {origin}");
        }
    }
    let two = format!("{own}Origin: http://localhost:{port}\r\nOrigin: http://evil.example\r\n");
    assert_eq!(status(port, "/status", &two).await, "403");
    let request = format!("GET /status HTTP/1.1\r\n{own}Origin: null\r\nConnection: close\r\n\r\n");
    let problem = raw(port, &request).await.unwrap();
    assert!(problem.contains("application/problem+json"), "{problem}");
}

/// A hundred connections that say nothing, or a byte now and then, and are opened again at once
/// when they are closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_idle_connections_do_not_lock_operators_out() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    let port = gate.admin;
    let (stop, open) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let holders: Vec<_> = (0..100)
        .map(|n| {
            let (stop, open) = (Arc::clone(&stop), Arc::clone(&open));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await else {
                        continue;
                    };
                    open.fetch_add(1, Ordering::Relaxed);
                    match n % 3 {
                        // Kept open after an answer.
                        0 => {
                            let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
                            let _ = stream.write_all(request).await;
                        }
                        1 => drop(stream.write_all(b"GET /hea").await),
                        _ => {}
                    }
                    let mut chunk = [0; 1024];
                    while !stop.load(Ordering::Relaxed) {
                        let read = tokio::time::timeout(
                            Duration::from_millis(100),
                            stream.read(&mut chunk),
                        );
                        match read.await {
                            Ok(Ok(0) | Err(_)) => break,
                            Ok(Ok(_)) => {}
                            Err(_) if n % 3 == 1 => drop(stream.write_all(b"l").await),
                            Err(_) => {}
                        }
                    }
                }
            })
        })
        .collect();
    let all = eventually(Duration::from_secs(10), || async { open.load(Ordering::Relaxed) >= 100 });
    assert!(all.await);
    for n in 0..5 {
        let began = now();
        let request = "GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answer = tokio::time::timeout(Duration::from_secs(10), raw(port, request)).await;
        let took = began.elapsed();
        let answer = answer.unwrap_or_else(|_| panic!("try {n}: nothing after {took:?}")).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "try {n} after {took:?}: {answer:?}");
        assert!(took < Duration::from_secs(5), "try {n}: {took:?}");
    }
    stop.store(true, Ordering::Relaxed);
    for holder in holders {
        let _ = holder.await;
    }
}

/// Without a lack of room nobody is closed: a scraper keeps its connection.
#[tokio::test]
async fn a_connection_is_kept_while_there_is_room() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    let mut stream = TcpStream::connect(("127.0.0.1", gate.admin)).await.unwrap();
    for silence in [0, 1_200, 0] {
        // Longer than a connection may be idle when there is no room.
        let mut byte = [0; 1];
        let idle = tokio::time::timeout(Duration::from_millis(silence), stream.read(&mut byte));
        assert!(idle.await.is_err(), "it is kept, and nothing is said on it");
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok\n") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
        }
    }
}

/// What a connection says that is to keep operators out.
#[derive(Clone, Copy, Debug)]
enum Occupation {
    Silent,
    /// Kept open after an answer.
    Idle,
    HalfHead,
    /// A question whose body never ends.
    EndlessBody,
    /// A body that is never sent, after a request that has none.
    UnsentBody,
    /// It does not read its answer.
    Unread,
}

impl Occupation {
    const ALL: [Self; 6] = [
        Self::Silent,
        Self::Idle,
        Self::HalfHead,
        Self::EndlessBody,
        Self::UnsentBody,
        Self::Unread,
    ];

    fn begins(self) -> Vec<u8> {
        let text = match self {
            Self::Silent => "",
            Self::Idle => "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
            Self::HalfHead => "GET /ready HTTP/1.1\r\nHost: loc",
            Self::EndlessBody => {
                "POST /keys HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
            }
            Self::UnsentBody => {
                "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
            }
            // More answers than the kernel takes for a client that reads none.
            Self::Unread => "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        };
        text.repeat(if matches!(self, Self::Unread) { 100 } else { 1 }).into_bytes()
    }
}

/// A thousand connections of each kind from the operator's own address, all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_of_any_kind_do_not_keep_operators_out() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], gate.admin));
    for kind in Occupation::ALL {
        let mut held = Vec::new();
        for _ in 0..1_000 {
            let here = std::net::IpAddr::from([127, 0, 0, 1]);
            let stream = support::frames::connect(here, address, Some(4_096)).await.unwrap();
            let _ = stream.try_write(&kind.begins());
            held.push(stream);
        }
        for path in ["/ready", "/metrics", "/ready", "/metrics"] {
            let began = now();
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            let answer =
                tokio::time::timeout(Duration::from_secs(10), raw(gate.admin, &request)).await;
            let took = began.elapsed();
            let answer = answer.unwrap_or_else(|_| panic!("{kind:?}: {path}: nothing")).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{kind:?}: {path}: {answer:?}");
            assert!(took < Duration::from_secs(1), "{kind:?}: {path}: {took:?}");
            println!("{kind:?}: {path}: {took:?}");
        }
    }
    assert!(!gate.log().contains("panicked"), "{}", gate.log());
}

/// A request whose answer is not taken, and one whose body never comes, end by themselves.
#[tokio::test]
async fn what_a_slow_peer_holds_ends_by_its_deadline() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    let ends = async |kind: Occupation| {
        let mut stream = TcpStream::connect(("127.0.0.1", gate.admin)).await.unwrap();
        stream.write_all(&kind.begins()).await.unwrap();
        let began = now();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        (String::from_utf8_lossy(&answer).into_owned(), began.elapsed())
    };
    let (half, endless, unsent) = tokio::join!(
        ends(Occupation::HalfHead),
        ends(Occupation::EndlessBody),
        ends(Occupation::UnsentBody)
    );
    assert!(half.0.starts_with("HTTP/1.1 408"), "{}", half.0);
    assert!(endless.0.starts_with("HTTP/1.1 408"), "{}", endless.0);
    assert!(unsent.0.starts_with("HTTP/1.1 200"), "{}", unsent.0);
    for (_, took) in [half, endless, unsent] {
        assert!(took < Duration::from_secs(32), "{took:?}");
    }
}
