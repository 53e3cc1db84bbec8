//! Clients that hold connections or memory with refusals and acknowledgements that they never take, beside something
//! that they never end: others are served all the same.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connections::{rejected, said};
use crate::http2::{
    Attacker, CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PING, WINDOW_UPDATE, frame, request,
};
use crate::tls::{ONE, folder};
use support::frames::{agree, connect};
use support::servers::{Gate, Origin, eventually, metric, origin_yaml, resident_kib};
use support::wait::pause_of_a_slow_client;

/// A limit that refuses everybody after one request.
const POLICY: &str = "
limits: { few: { tier: exact, algorithm: fixed_window, rate: 1/1h, key: client_ip } }
routes: [{ name: refused, match: { path: /refused }, limits: [few] }, { name: rest }]
";

/// INITIAL_WINDOW_SIZE 0 (RFC 9113, section 6.5.2).
const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];

/// As small as the kernel makes it.
const SMALL: Option<u32> = Some(4096);

async fn gate(origin: &Origin, tls: bool, bounds: &str) -> Gate {
    let (folder, _) = folder(&["one.example"]);
    let bounds = format!("limits_of_this_proxy: {{ {bounds} }}\n");
    let policy = format!("{}{POLICY}{bounds}", origin_yaml(origin.address));
    match tls {
        true => Gate::start_in(folder, &policy, ONE).await,
        false => Gate::start(&policy).await,
    }
}

async fn tcp(last: u8, port: u16, buffer: Option<u32>) -> TcpStream {
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    connect(IpAddr::from([127, 0, 0, last]), to, buffer).await.unwrap()
}

async fn attacker(last: u8, port: u16, settings: &[u8], buffer: Option<u32>) -> Attacker {
    try_attacker(last, port, settings, buffer).await.unwrap()
}

/// None: the connection was closed to make room.
async fn try_attacker(
    last: u8,
    port: u16,
    settings: &[u8],
    buffer: Option<u32>,
) -> Option<Attacker> {
    Attacker::begin(agree(tcp(last, port, buffer).await).await.ok()?, settings).await.ok()
}

fn ask(path: &str, stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &request("GET", path, &[]))
}

/// Refusals that wait for window, and a head that is never whole: the memory of them is given back when others
/// need it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_beside_half_a_head_use_up_no_memory() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin, true, "memory: 64MiB, max_connections_per_client: 100").await;
    let mut held = Vec::new();
    for _ in 0..30 {
        let Some(mut client) = try_attacker(2, gate.port, &NO_WINDOW, None).await else {
            continue;
        };
        let asked: Vec<u8> = (0..90).flat_map(|n| ask("/refused", n * 2 + 1)).collect();
        client.write(&asked).await;
        let head = request("GET", "/half", &[]);
        client.write(&frame(HEADERS, END_STREAM, 181, &head[..4])).await;
        held.push((client, head));
    }
    let mut answered = 0;
    for round in 0..20_u32 {
        if let Some(mut good) = try_attacker(3, gate.port, &[], None).await {
            good.write(&ask("/good", 1)).await;
            answered += usize::from(good.answer(1).await == Some(200));
        }
        // The head goes on, and another begins, so that no deadline ends it.
        for (client, head) in held.iter_mut().filter(|_| round % 5 == 4) {
            let stream = 181 + round / 5 * 2;
            let rest = frame(CONTINUATION, END_HEADERS, stream, &head[4..]);
            let next = frame(HEADERS, END_STREAM, stream + 2, &head[..4]);
            client.write(&[rest, next].concat()).await;
        }
        pause_of_a_slow_client(Duration::from_millis(200)).await;
    }
    assert!(answered >= 19, "{answered} of 20; {}", gate.metrics().await);
}

/// Connections that are told to close close, whatever their clients leave unread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_that_nobody_takes_hold_no_connection() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin, true, "max_connections: 12, max_connections_per_client: 10").await;
    let pings = frame(PING, 0, 0, &[0; 8]).repeat(1_000);
    let mut held = Vec::new();
    for _ in 0..10 {
        let mut client = attacker(2, gate.port, &[], SMALL).await;
        // Until nothing more is taken: the acknowledgements fill all buffers.
        let flood = async { while client.write(&pings).await {} };
        let _ = timeout(Duration::from_secs(3), flood).await;
        held.push(client);
    }
    let mut come = Vec::new();
    for last in 10..18 {
        come.push(attacker(last, gate.port, &[], None).await);
    }
    let gone = eventually(Duration::from_secs(15), || async {
        metric(&gate.metrics().await, "tollgate_connections") <= 12.0
    });
    assert!(gone.await, "{}", gate.metrics().await);
    for client in &mut come {
        client.write(&ask("/good", 1)).await;
        assert_eq!(client.answer(1).await, Some(200));
    }
}

/// Refusals of pipelined requests that nobody takes keep nobody out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_refusals_that_nobody_takes_keep_nobody_out() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin, false, "max_connections: 8, max_connections_per_client: 4").await;
    let asked = b"GET /refused HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000);
    let mut held = Vec::new();
    for last in [2, 2, 2, 2, 3, 3, 3, 3] {
        let mut stream = tcp(last, gate.port, SMALL).await;
        let flood = async { while stream.write_all(&asked).await.is_ok() {} };
        let _ = timeout(Duration::from_secs(1), flood).await;
        held.push(stream);
    }
    for last in 10..14 {
        let is_answered = eventually(Duration::from_secs(5), || async {
            let mut stream = tcp(last, gate.port, None).await;
            said(&mut stream, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                .await
                .starts_with("HTTP/1.1 200")
        });
        assert!(is_answered.await, "{}", gate.metrics().await);
    }
}

fn signal(gate: &Gate, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(gate.pid().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A connection that was told to close, and stayed because its request came in that moment, hears the next order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_stayed_once_can_be_told_to_close_again() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin, false, "max_connections: 40, max_connections_per_client: 40").await;
    let ask = async |stream: &mut TcpStream| {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.is_ok()
    };
    let answer = async |stream: &mut TcpStream| {
        let mut answer = Vec::new();
        while !answer.ends_with(b"site") {
            let read = timeout(Duration::from_secs(5), stream.read_buf(&mut answer)).await;
            if !matches!(read, Ok(Ok(1..))) {
                return false;
            }
        }
        true
    };
    let mut held = Vec::new();
    for _ in 0..40 {
        let mut stream = tcp(2, gate.port, None).await;
        assert!(ask(&mut stream).await && answer(&mut stream).await);
        held.push(stream);
    }
    for _ in 0..5 {
        // The process finds newcomers and requests at once.
        signal(&gate, rustix::process::Signal::STOP);
        let mut newcomers = Vec::new();
        for last in 100..130 {
            newcomers.push(tcp(last, gate.port, None).await);
        }
        for stream in &mut held {
            ask(stream).await;
        }
        signal(&gate, rustix::process::Signal::CONT);
        let mut kept = Vec::new();
        for mut stream in held {
            if answer(&mut stream).await {
                kept.push(stream);
            }
        }
        held = kept;
    }
    let mut come = Vec::new();
    for last in 10..30 {
        let mut stream = tcp(last, gate.port, None).await;
        assert!(ask(&mut stream).await);
        come.push((answer(&mut stream).await, stream));
    }
    let gone = eventually(Duration::from_secs(10), || async {
        metric(&gate.metrics().await, "tollgate_connections") <= 40.0
    });
    assert!(gone.await, "{} held, {}", held.len(), gate.metrics().await);
    assert!(come.iter().all(|(is_answered, _)| *is_answered), "{}", gate.metrics().await);
}

/// Resets that a client makes the proxy send count as its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provoked_resets_are_bounded() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin, true, "h2_resets: 20").await;
    let mut client = attacker(2, gate.port, &[], None).await;
    for n in 0..60_u32 {
        let stream = n * 2 + 1;
        // The window may be 2^31 - 1 at most (RFC 9113, section 6.9.1).
        let window = frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes());
        if !client.write(&[ask("/x", stream), window].concat()).await {
            break;
        }
        // A reset, an answer that was faster, or the end of the connection.
        client.answer(stream).await;
    }
    let cut =
        eventually(Duration::from_secs(5), || async { rejected(&gate, "h2_resets").await == 1 });
    assert!(cut.await, "{}", gate.metrics().await);
}

/// An idle connection holds no buffer of a large head.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_head_is_not_held_after_its_request() {
    const CONNECTIONS: u64 = 500;
    let origin = Origin::start("site").await;
    let gate = gate(&origin, false, "max_connections_per_client: 1000").await;
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(30_000));
    let small = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut grown = Vec::new();
    for asked in [small.as_slice(), head.as_bytes()] {
        let before = resident_kib(gate.pid());
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = tcp(2, gate.port, None).await;
            stream.write_all(asked).await.unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200");
            held.push(stream);
        }
        grown.push(resident_kib(gate.pid()).saturating_sub(before));
    }
    // The first ones have gone and left their memory to the others.
    assert!(grown[1] < CONNECTIONS * 16, "{grown:?} KiB");
}
