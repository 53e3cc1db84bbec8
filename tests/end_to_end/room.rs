//! All connections are taken: who makes room, and who never does. And how many handshakes a client may
//! begin.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::connections::{ASK, ROUTE, from, rejected, said};
use crate::http2::{Attacker, END_HEADERS, END_STREAM, GOAWAY, HEADERS, frame, request};
use crate::tls::{ONE, folder};
use support::servers::{Gate, Origin, Reloaded, eventually, metric, origin_yaml};

const KEPT: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn policy(origin: SocketAddr, bounds: &str) -> String {
    format!("{}{ROUTE}limits_of_this_proxy: {{ {bounds} }}\n", origin_yaml(origin))
}

/// Waits until so many connections are there.
async fn taken(gate: &Gate, connections: usize) {
    let reached = eventually(Duration::from_secs(5), || async {
        metric(&gate.metrics().await, "tollgate_connections") == connections as f64
    });
    assert!(reached.await, "{connections} connections");
}

async fn shed(gate: &Gate) -> u64 {
    let sample = "tollgate_shed_total{reason=\"idle_connections\"}";
    metric(&gate.metrics().await, sample) as u64
}

/// Whether the other side has closed.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    matches!(timeout(Duration::from_millis(200), stream.read(&mut byte)).await, Ok(Ok(0) | Err(_)))
}

/// How many of them are closed.
async fn closed(streams: &mut [TcpStream]) -> usize {
    let mut count = 0;
    for stream in streams {
        count += usize::from(is_closed(stream).await);
    }
    count
}

/// Answers one request on a connection that stays.
async fn ask(stream: &mut TcpStream) {
    stream.write_all(KEPT).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"site") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn a_few_addresses_cannot_fill_all_connections() {
    let origin = Origin::start("site").await;
    let bounds = "max_connections: 40, max_connections_per_client: 20";
    let gate = Gate::start(&policy(origin.address, bounds)).await;
    taken(&gate, 0).await;
    // Two addresses hold everything: one says nothing, one keeps what it has asked over.
    let (mut silent, mut asked) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        silent.push(from([127, 0, 0, 2], gate.port).await);
        let mut stream = from([127, 0, 0, 3], gate.port).await;
        ask(&mut stream).await;
        asked.push(stream);
    }
    taken(&gate, 40).await;
    let mut come = Vec::new();
    for n in 0..10 {
        let mut stream = from([127, 0, 1, n], gate.port).await;
        ask(&mut stream).await;
        come.push(stream);
    }
    taken(&gate, 40).await;
    assert_eq!(shed(&gate).await, 10);
    assert_eq!(closed(&mut silent).await + closed(&mut asked).await, 10);
    assert_eq!(closed(&mut come).await, 0);
    assert_eq!(rejected(&gate, "connections").await, 0);
    // Both lost as much: each was the larger one in turn.
    assert_eq!(closed(&mut silent).await, 5);
}

/// Addresses that begin something on each connection, and do not go on, keep nobody out: over plain text with a byte
/// of a head, over TLS with a byte of a handshake, and with a handshake but no request.
#[tokio::test]
async fn connections_that_begin_something_keep_nobody_out() {
    let origin = Origin::start("site").await;
    let (folder, pairs) = folder(&["one.example"]);
    let bounds = "max_connections: 40, max_connections_per_client: 10, header_timeout: 60s, tls_handshake_timeout: 60s";
    let plain = Gate::start(&policy(origin.address, bounds)).await;
    let tls = Gate::start_in(folder, &policy(origin.address, bounds), ONE).await;
    for gate in [&plain, &tls] {
        let mut held = Vec::new();
        for n in 0..40 {
            let mut stream = from([127, 0, 0, 2 + n / 10], gate.port).await;
            stream.write_all(if gate.port == plain.port { b"G" } else { b"\x16" }).await.unwrap();
            held.push(stream);
        }
        taken(gate, 40).await;
        let mut served = Vec::new();
        for n in 0..20 {
            let source = std::net::IpAddr::from([127, 0, 1, n]);
            let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
            let client = crate::tls::trusting(&pairs[0], "one.example", to).local_address(source);
            let (client, url) = match gate.port == plain.port {
                true => (support::servers::client_from(source), gate.url("/")),
                false => (client.build().unwrap(), format!("https://one.example:{}/", gate.port)),
            };
            assert_eq!(client.get(url).send().await.unwrap().status(), 200, "{n}");
            // Its connection stays.
            served.push(client);
        }
        assert_eq!(rejected(gate, "connections").await, 0);
        assert_eq!((shed(gate).await, closed(&mut held).await), (20, 20));
    }
}

#[tokio::test]
async fn an_exchange_in_flight_is_never_closed_for_another() {
    let origin = Origin::start("site").await;
    let bounds = "max_connections: 6, max_connections_per_client: 5";
    let gate = Gate::start(&policy(origin.address, bounds)).await;
    taken(&gate, 0).await;
    // Half a head, and a request whose body is to come.
    let mut half = from([127, 0, 0, 2], gate.port).await;
    half.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n").await.unwrap();
    let mut bodies = Vec::new();
    for _ in 0..4 {
        let mut stream = from([127, 0, 0, 2], gate.port).await;
        ask(&mut stream).await;
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n1";
        stream.write_all(head).await.unwrap();
        bodies.push(stream);
    }
    let mut only = from([127, 0, 0, 3], gate.port).await;
    only.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    taken(&gate, 6).await;
    // Of the client with most, what has no whole request makes room; of the one with a single connection not yet.
    let mut newcomer = from([127, 0, 0, 4], gate.port).await;
    ask(&mut newcomer).await;
    newcomer.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n1").await.unwrap();
    assert!(is_closed(&mut half).await);
    let refused = eventually(Duration::from_secs(2), || async {
        said(&mut from([127, 0, 0, 5], gate.port).await, ASK).await.is_empty()
    });
    assert!(refused.await, "nothing else waits for its client");
    assert!(rejected(&gate, "connections").await >= 1);
    for stream in &mut bodies {
        stream.write_all(b"23").await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 200");
    }
    assert!(said(&mut only, b"Host: a\r\nConnection: close\r\n\r\n").await.contains(" 200 "));
    assert_eq!(shed(&gate).await, 1);
}

#[tokio::test]
async fn an_http2_connection_without_streams_makes_room_and_says_so() {
    let (asked, mut come) = watch::channel(0);
    let go_on = Arc::<Notify>::default();
    let origin = slow_origin(asked, Arc::clone(&go_on)).await;
    let (folder, _) = folder(&["one.example"]);
    let bounds = "max_connections: 4, max_connections_per_client: 4";
    let gate = Gate::start_in(folder, &policy(origin, bounds), ONE).await;
    taken(&gate, 0).await;
    let (mut idle, mut busy) = (Attacker::new(gate.port).await, Attacker::new(gate.port).await);
    let head = frame(HEADERS, END_HEADERS | END_STREAM, 1, &request("GET", "/now", &[]));
    assert!(idle.write(&head).await);
    assert_eq!(idle.answer(1).await, Some(200));
    for stream in [1, 3] {
        let path = if stream == 1 { "/now" } else { "/late" };
        let head = frame(HEADERS, END_HEADERS | END_STREAM, stream, &request("GET", path, &[]));
        assert!(busy.write(&head).await);
        if stream == 1 {
            assert_eq!(busy.answer(1).await, Some(200));
        }
    }
    come.wait_for(|late| *late == 1).await.unwrap();
    let mut plain = [from([127, 0, 0, 1], gate.port).await, from([127, 0, 0, 1], gate.port).await];
    taken(&gate, 4).await;
    // It wants a handshake: what it gets from a seat is that it is not closed at once.
    let mut newcomer = from([127, 0, 0, 5], gate.port).await;
    let last = loop {
        let (kind, _, _, payload) = idle.read().await.expect("it is told");
        if kind == GOAWAY {
            break u32::from_be_bytes(payload[..4].try_into().unwrap());
        }
    };
    assert_eq!(last, 1, "the last stream that was served");
    assert!(idle.read().await.is_none());
    taken(&gate, 4).await;
    assert!(!is_closed(&mut newcomer).await);
    assert_eq!(shed(&gate).await, 1);
    // Then those that have yet to begin their handshakes, and never the one with a stream.
    let mut more = Vec::new();
    for n in 6..8 {
        let mut newcomer = from([127, 0, 0, n], gate.port).await;
        assert!(!is_closed(&mut newcomer).await);
        more.push(newcomer);
    }
    assert_eq!(closed(&mut plain).await, 2);
    assert!(is_closed(&mut from([127, 0, 0, 8], gate.port).await).await);
    assert_eq!(shed(&gate).await, 3);
    go_on.notify_one();
    assert_eq!(busy.answer(3).await, Some(200), "the answer that was waited for");
}

/// Answers `/late` when it is told to go on, and says how many have asked for it.
async fn slow_origin(asked: watch::Sender<u32>, go_on: Arc<Notify>) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(asked);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (asked, go_on) = (Arc::clone(&asked), Arc::clone(&go_on));
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                if head.starts_with(b"GET /late") {
                    asked.send_modify(|late| *late += 1);
                    go_on.notified().await;
                }
                let answer =
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nsite";
                let _ = stream.write_all(answer).await;
            });
        }
    });
    address
}

/// Whether a TLS handshake is begun: a first message that makes no sense is answered by an alert.
async fn handshakes(stream: &mut TcpStream, first: &[u8]) -> bool {
    let _ = stream.write_all(first).await;
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
    // An alert is record type 21 (RFC 8446, section 5.1).
    answer.first() == Some(&21)
}

/// A record of a handshake whose message is of no known kind.
const NONSENSE: &[u8] = b"\x16\x03\x01\x00\x05\xff\x00\x00\x01\x00";

#[tokio::test]
async fn handshakes_are_bounded_for_each_client() {
    let origin = Origin::start("site").await;
    let (folder, _) = folder(&["one.example"]);
    let trusted = "clients: { trusted_proxies: [127.0.0.9/32] }\n";
    let bounded = |rate: &str| {
        let bounds = format!("handshakes_per_client: {rate}");
        format!("{}{trusted}", policy(origin.address, &bounds))
    };
    let ports = Gate::prepare(&folder, &bounded("3/1h"), ONE);
    let mut gate = Gate::run(folder.into(), ports.0, ports.1, &[]);
    gate.wait_admin().await;
    let begun = async |source: [u8; 4]| {
        let mut count = 0;
        for _ in 0..5 {
            count += u32::from(handshakes(&mut from(source, gate.port).await, NONSENSE).await);
        }
        count
    };
    assert_eq!(begun([127, 0, 0, 2]).await, 3);
    assert_eq!(begun([127, 0, 0, 3]).await, 3, "another client");
    assert_eq!(begun([127, 0, 0, 9]).await, 5, "a trusted proxy speaks for many");
    assert_eq!(rejected(&gate, "handshakes").await, 4);
    assert_eq!(gate.reload(&bounded("4/1h"), ONE).await, Reloaded::Applied);
    assert_eq!(begun([127, 0, 0, 2]).await, 4);
    assert_eq!(gate.reload(&bounded("none"), ONE).await, Reloaded::Applied);
    assert_eq!(begun([127, 0, 0, 2]).await, 5);
}

#[tokio::test]
async fn behind_a_proxy_header_handshakes_are_those_of_its_client() {
    let origin = Origin::start("site").await;
    let (folder, _) = folder(&["one.example"]);
    let bounds = policy(origin.address, "handshakes_per_client: 3/1h");
    let trusted = format!("{bounds}clients: {{ trusted_proxies: [127.0.0.9/32] }}\n");
    let ports = Gate::prepare(&folder, &trusted, &format!("{ONE}\n    proxy_protocol: true"));
    let mut gate = Gate::run(folder.into(), ports.0, ports.1, &[]);
    gate.wait_admin().await;
    // Of IPv6 the prefix counts.
    for (clients, expected) in [
        (["TCP4 198.51.100.7 192.0.2.9"; 5], 3),
        (["TCP4 198.51.100.8 192.0.2.9"; 5], 3),
        (
            [
                "TCP6 2001:db8::1 2001:db8:1::1",
                "TCP6 2001:db8::2 2001:db8:1::1",
                "TCP6 2001:db8::3 2001:db8:1::1",
                "TCP6 2001:db8::4 2001:db8:1::1",
                "TCP6 2001:db8:0:1::1 2001:db8:1::1",
            ],
            4,
        ),
    ] {
        let mut begun = 0;
        for client in clients {
            let first = [format!("PROXY {client} 4000 443\r\n").as_bytes(), NONSENSE].concat();
            let mut stream = from([127, 0, 0, 9], gate.port).await;
            begun += usize::from(handshakes(&mut stream, &first).await);
        }
        assert_eq!(begun, expected, "{clients:?}");
    }
}
