//! Before HTTP: connection permits, PROXY headers, TLS handshakes.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::tls::{ONE, folder};
use support::servers::{Gate, Origin, eventually, metric, now, origin_yaml};

pub const ROUTE: &str = "routes: [{ name: r }]\n";
pub const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const BODY_TO_COME: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n";

/// Connects from an address of loopback.
pub async fn from(source: [u8; 4], port: u16) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::from(source), 0)).unwrap();
    socket.connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap()
}

/// What is answered to some bytes, up to the end; empty when the connection is closed without.
pub async fn said(stream: &mut TcpStream, bytes: &[u8]) -> String {
    // A connection that is refused may be gone before this is written.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

pub async fn rejected(gate: &Gate, reason: &str) -> u64 {
    metric(&gate.metrics().await, &format!("tollgate_rejected_total{{reason=\"{reason}\"}}")) as u64
}

#[tokio::test]
async fn connections_are_bounded_in_all_and_per_client() {
    let origin = Origin::start("site").await;
    let policy = format!(
        "{}{ROUTE}clients: {{ trusted_proxies: [127.0.0.9/32] }}\nlimits_of_this_proxy: {{ \
         max_connections: 12, max_connections_per_client: 5 }}\n",
        origin_yaml(origin.address)
    );
    let gate = Gate::start(&policy).await;
    let free = eventually(Duration::from_secs(5), || async {
        metric(&gate.metrics().await, "tollgate_connections") == 0.0
    });
    assert!(free.await);
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut stream = from([127, 0, 0, 2], gate.port).await;
        // One that waits for its client would make room for others; the origin has the head of this one.
        stream.write_all(BODY_TO_COME).await.unwrap();
        held.push(stream);
    }
    let begun = eventually(Duration::from_secs(5), || async {
        metric(&gate.metrics().await, "tollgate_origin_connections{origin=\"site\"}") == 5.0
    });
    assert!(begun.await);
    assert_eq!(said(&mut from([127, 0, 0, 2], gate.port).await, ASK).await, "");
    assert!(
        said(&mut from([127, 0, 0, 3], gate.port).await, ASK).await.starts_with("HTTP/1.1 200")
    );
    // A seat is given back when its connection has gone, which the client sees a little earlier.
    let given_back = eventually(Duration::from_secs(5), || async {
        metric(&gate.metrics().await, "tollgate_connections") == 5.0
    });
    assert!(given_back.await);
    // A trusted peer speaks for many, and is bounded with all others only.
    for _ in 0..7 {
        held.push(from([127, 0, 0, 9], gate.port).await);
    }
    assert_eq!(said(&mut from([127, 0, 0, 3], gate.port).await, ASK).await, "");
    assert_eq!(rejected(&gate, "connections").await, 2, "the operators' door is not among them");
    held.clear();
    let served = eventually(Duration::from_secs(5), || async {
        said(&mut from([127, 0, 0, 2], gate.port).await, ASK).await.starts_with("HTTP/1.1 200")
    });
    assert!(served.await, "permits are returned");
}

#[tokio::test]
async fn proxy_headers_name_the_client() {
    let origin = Origin::start("site").await;
    let policy = format!(
        "{}{ROUTE}clients: {{ trusted_proxies: [127.0.0.9/32, 10.0.0.0/8], address_header: x-forwarded-for }}\n\
         limits_of_this_proxy: {{ proxy_protocol_timeout: 1s, max_connections_per_client: 2 }}\n",
        origin_yaml(origin.address)
    );
    let mut gate = Gate::spawn(&policy, "proxy_protocol: true");
    gate.wait_admin().await;
    let ipv4 = |source: [u8; 4]| {
        let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
        header.extend(source);
        header.extend([192, 0, 2, 9, 15, 160, 0, 80]);
        header
    };
    let with = |header: &[u8], more: &str| {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{more}\r\n");
        [header, head.as_bytes()].concat()
    };
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    let local_with_block = b"\r\n\r\n\0\r\nQUIT\n\x20\x11\0\x04....";
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("v1", with(b"PROXY TCP4 198.51.100.7 192.0.2.9 4000 80\r\n", ""), "198.51.100.7"),
        ("v1 over IPv6", with(b"PROXY TCP6 2001:db8::7 2001:db8::9 1 2\r\n", ""), "2001:db8::7"),
        ("v2", with(&ipv4([198, 51, 100, 8]), ""), "198.51.100.8"),
        ("unknown", with(b"PROXY UNKNOWN\r\n", ""), "127.0.0.9"),
        ("local", with(local, ""), "127.0.0.9"),
        ("local, half an address", with(local_with_block, ""), "127.0.0.9"),
        (
            "a client that forges a header",
            with(b"PROXY TCP4 198.51.100.7 192.0.2.9 4000 80\r\n", "X-Forwarded-For: 1.1.1.1\r\n"),
            "198.51.100.7",
        ),
        (
            "a trusted hop before the balancer",
            with(&ipv4([10, 0, 0, 1]), "X-Forwarded-For: 198.51.100.9\r\n"),
            "198.51.100.9, 10.0.0.1",
        ),
    ];
    for (name, bytes, forwarded_for) in &cases {
        let answer = said(&mut from([127, 0, 0, 9], gate.port).await, bytes).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{name}: {answer}");
        let seen = origin.seen();
        assert_eq!(seen.last().unwrap().headers["x-forwarded-for"], *forwarded_for, "{name}");
    }
    let served = origin.count();
    assert_eq!(served, cases.len());

    let good = &cases[0].1;
    assert_eq!(said(&mut from([127, 0, 0, 1], gate.port).await, good).await, "", "not trusted");
    let broken: [&[u8]; 7] = [
        ASK,
        b"PROXY TCP4 198.51.100.7 192.0.2.9 4000\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PROXY TCP4 198.51.100.7 192.0.2.9 4000 80\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PROXY TCP4 198.51.100.777 192.0.2.9 4000 80\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c............",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x10\0\x0c............",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff............",
    ];
    for bytes in broken {
        let answer = said(&mut from([127, 0, 0, 9], gate.port).await, bytes).await;
        assert_eq!(answer, "", "{}", bytes.escape_ascii());
    }
    let long = [b"PROXY UNKNOWN ", &[b'x'; 200][..], b"\r\n", ASK].concat();
    assert_eq!(said(&mut from([127, 0, 0, 9], gate.port).await, &long).await, "");
    let began = now();
    assert_eq!(said(&mut from([127, 0, 0, 9], gate.port).await, b"PROXY TC").await, "", "too slow");
    assert!(began.elapsed() >= Duration::from_secs(1) && began.elapsed() < Duration::from_secs(2));
    assert_eq!(rejected(&gate, "proxy_protocol").await, 10);
    assert_eq!(origin.count(), served);

    // Clients behind a balancer are told apart.
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = from([127, 0, 0, 9], gate.port).await;
        stream.write_all(&ipv4([198, 51, 100, 50])).await.unwrap();
        held.push(stream);
    }
    let seated = eventually(Duration::from_secs(5), || async {
        metric(&gate.metrics().await, "tollgate_connections") == 2.0
    });
    assert!(seated.await);
    let third = with(&ipv4([198, 51, 100, 50]), "");
    assert_eq!(said(&mut from([127, 0, 0, 9], gate.port).await, &third).await, "");
    let other = with(&ipv4([198, 51, 100, 51]), "");
    let answer = said(&mut from([127, 0, 0, 9], gate.port).await, &other).await;
    assert!(answer.starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_header_comes_before_tls() {
    let origin = Origin::start("site").await;
    let (folder, _) = folder(&["one.example"]);
    let policy = format!(
        "{}{ROUTE}clients: {{ trusted_proxies: [127.0.0.0/8] }}\n",
        origin_yaml(origin.address)
    );
    let certificate = folder.path().join("one.example.crt");
    let port = Gate::prepare(&folder, &policy, &format!("{ONE}\n    proxy_protocol: true"));
    let mut gate = Gate::run(folder.into(), port.0, port.1, &[]);
    gate.wait_admin().await;
    // curl writes the header of version 1 itself.
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--haproxy-protocol", "--http1.1", "--cacert"])
        .arg(certificate)
        .args(["--resolve", &format!("one.example:{}:127.0.0.1", gate.port)])
        .arg(format!("https://one.example:{}/tls", gate.port))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"site");
    assert_eq!(origin.seen()[0].headers["x-forwarded-proto"], "https");
}

#[tokio::test]
async fn a_tls_handshake_that_does_not_end_is_cut() {
    let origin = Origin::start("site").await;
    let (folder, _) = folder(&["one.example"]);
    let policy = format!(
        "{}{ROUTE}limits_of_this_proxy: {{ tls_handshake_timeout: 1s }}\n",
        origin_yaml(origin.address)
    );
    let gate = Gate::start_in(folder, &policy, ONE).await;
    for start in [&b""[..], b"\x16\x03\x01\x02\0\x01"] {
        let began = now();
        let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
        assert_eq!(said(&mut stream, start).await, "");
        let took = began.elapsed();
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(2), "{took:?}");
    }
    let mut plain = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    said(&mut plain, ASK).await;
    assert!(rejected(&gate, "tls_handshake").await >= 3);
    assert_eq!(origin.count(), 0);
}
