//! What stands in the operator's log when things go wrong: few lines, and nothing of the request
//! but its id and its route.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use support::servers::{Gate, Origin, client, eventually, free_port, metric, now, origin_yaml};

const ROUTE: &str = "routes: [{ name: site }]\n";

#[tokio::test]
async fn an_origin_that_is_down_puts_no_query_into_the_log() {
    let dead = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(dead))).await;
    let client = client();
    let mut id = None;
    for n in 0..40 {
        let url = gate.url(&format!("/dead/PATHKEY{n}?api_key=SECRET{n}"));
        let request = client.get(url).header("x-api-key", "HEADERKEY").send();
        let answer = request.await.unwrap();
        assert_eq!(answer.status(), 502);
        id.get_or_insert(n);
    }
    let counted = async || {
        let metrics = gate.metrics().await;
        metric(&metrics, "tollgate_log_suppressed_total{kind=\"origin_failed\"}")
    };
    // Whatever of the 40 is not a line is counted, and a line says how many.
    let of_failures = || {
        let log = gate.log();
        log.lines().filter(|line| line.contains("cannot be reached")).count()
    };
    let adds_up = eventually(Duration::from_secs(5), || async {
        of_failures() as f64 + counted().await == 40.0
    });
    assert!(adds_up.await, "{} lines, {} counted: {}", of_failures(), counted().await, gate.log());
    let told = eventually(Duration::from_secs(5), || async { gate.log().contains(" more") });
    assert!(told.await, "{}", gate.log());
    let log = gate.log();
    assert!(of_failures() <= 20, "{log}");
    for secret in ["SECRET", "PATHKEY", "HEADERKEY", "api_key", "dead"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
    let line = log.lines().find(|line| line.contains("cannot be reached")).unwrap();
    let access: serde_json::Value =
        serde_json::from_str(gate.stdout().lines().next().unwrap()).unwrap();
    for part in ["route site", "origin site", &dead.to_string(), "502", "refused"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(line.contains(access["request_id"].as_str().unwrap()), "{line}");
}

/// An origin that closes every connection after an answer without saying so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_connection_that_had_closed_is_no_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let origin = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut chunk = [0; 4096];
                if stream.read(&mut chunk).await.unwrap_or(0) > 0 {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    let _ = stream.write_all(answer).await;
                }
            });
        }
    });
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(address))).await;
    let clients = (0..8).map(|_| {
        let (client, url) = (client(), gate.url("/x?api_key=SECRET"));
        tokio::spawn(async move {
            for _ in 0..200 {
                // Both connections that it was sent over may have gone: then it is a 502.
                let status = client.get(&url).send().await.unwrap().status().as_u16();
                assert!(matches!(status, 200 | 502), "{status}");
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let log = gate.log();
    assert!(!log.contains("reusable") && !log.contains("SECRET"), "{log}");
    origin.abort();
}

/// An origin that answers rubbish, half an answer, or nothing, and clients that leave: whoever
/// fails, no line holds a part of the request.
#[tokio::test]
async fn no_failure_of_any_kind_puts_a_key_into_the_log() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let origin = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut chunk = [0; 4096];
                let read = stream.read(&mut chunk).await.unwrap_or(0);
                let head = String::from_utf8_lossy(&chunk[..read]).into_owned();
                let answer: &[u8] = match head.as_bytes().get(5) {
                    Some(b'a') => b"NONSENSE SECRET\r\n\r\n",
                    Some(b'b') => b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
                    Some(b'c') => b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
                    Some(b'd') => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                    Some(b'e') => b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
                    _ => b"",
                };
                let _ = stream.write_all(answer).await;
            });
        }
    });
    let policy = format!(
        "origins: {{ site: {{ servers: [\"{address}\"], timeouts: {{ read: 300ms }} }} }}\n{ROUTE}"
    );
    let gate = Gate::start(&policy).await;
    for kind in ["a", "b", "c", "d", "e", "f"] {
        for method in ["GET", "POST"] {
            let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
            let head = format!(
                "{method} /{kind}?api_key=SECRET HTTP/1.1\r\nHost: SECRET.example\r\nX-Api-Key: \
                 SECRET\r\nCookie: s=SECRET\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
        }
        let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
        let head = format!("GET /{kind}?api_key=SECRET HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        drop(stream);
    }
    // A client leaves its own request in the middle of a body.
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    let head = b"POST /g?api_key=SECRET HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf";
    stream.write_all(head).await.unwrap();
    drop(stream);
    let all = eventually(Duration::from_secs(10), || async { gate.stdout().lines().count() >= 19 });
    assert!(all.await, "{}", gate.stdout());
    let log = gate.log();
    assert!(!log.contains("SECRET") && !log.contains("api_key"), "{log}");
    assert!(log.contains("origin site"), "the origin's failures are told: {log}");
    origin.abort();
}

/// As many descriptors as a start needs and no more: connections wait, and the log does not fill.
#[tokio::test]
async fn a_want_of_descriptors_is_said_once_in_a_while() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(gate.pid()).unwrap());
    let open = std::fs::read_dir(format!("/proc/{}/fd", gate.pid())).unwrap().count() as u64;
    let limit = rustix::process::Rlimit { current: Some(open + 4), maximum: Some(open + 4) };
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).unwrap();
    let began = now();
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap());
    }
    let lines = || gate.log().lines().filter(|line| line.contains("cannot accept")).count();
    assert!(eventually(Duration::from_secs(10), || async { lines() > 0 }).await, "{}", gate.log());
    // It is tried ten times a second, and said three times in each. When the rest is told depends on the machine.
    let rest = || -> usize {
        let log = gate.log();
        let told =
            log.lines().filter_map(|line| line.split_once("and ")?.1.split_once(" more (accept)"));
        told.filter_map(|(lines, _)| lines.parse::<usize>().ok()).sum()
    };
    let more = eventually(Duration::from_secs(20), || async { rest() >= 12 });
    assert!(more.await, "the rest is counted: {}", gate.log());
    let said = lines();
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(said <= 3 * (seconds + 2), "{said} lines in {seconds} s: {}", gate.log());
    drop(held);
    let metrics = async || gate.admin_get("/metrics").await.map(|(_, text)| text);
    let counted = eventually(Duration::from_secs(10), || async {
        metrics()
            .await
            .is_ok_and(|text| metric(&text, "tollgate_log_suppressed_total{kind=\"accept\"}") > 0.0)
    });
    assert!(counted.await);
}
