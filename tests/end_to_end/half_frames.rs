//! Clients of HTTP/2 that never let a read end with a frame, or never take what they were answered: their deadlines
//! hold, and they keep nobody out.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::exchanges::{early, gate, held_are};
use crate::http2::{Attacker, END_HEADERS, END_STREAM, HEADERS, PING, frame, request};
use crate::tls::{ONE, folder};
use support::frames::{agree, connect};
use support::servers::{Gate, Origin, eventually, metric, now, origin_yaml};
use support::wait::eventually_some;

const EARLY: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnever";

/// INITIAL_WINDOW_SIZE 0 (RFC 9113, section 6.5.2).
const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];

/// How long a newcomer tries: as long as a client does that meets a busy server.
const PATIENCE: Duration = Duration::from_secs(3);

/// The end of a PING, and the beginning of the next.
fn between_pings() -> Vec<u8> {
    let ping = frame(PING, 0, 0, &[0; 8]);
    [&ping[1..], &ping[..1]].concat()
}

/// A connection from one of the addresses of loopback; `buffer` is the size of its receive buffer.
async fn attacker(last: u8, port: u16, settings: &[u8], buffer: Option<u32>) -> Attacker {
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    let tcp = connect(IpAddr::from([127, 0, 0, last]), to, buffer).await.unwrap();
    Attacker::begin(agree(tcp).await.unwrap(), settings).await.unwrap()
}

/// Whether a new client from such an address is answered. Its connection stays.
async fn newcomer(last: u8, port: u16) -> Option<Attacker> {
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    let tcp = connect(IpAddr::from([127, 0, 0, last]), to, None).await.ok()?;
    let mut client = Attacker::begin(agree(tcp).await.ok()?, &[]).await.ok()?;
    client.write(&ask("/small", 1)).await;
    (client.answer(1).await == Some(200)).then_some(client)
}

fn ask(path: &str, stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &request("GET", path, &[]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_frames_put_off_no_deadline_of_a_stream() {
    let (origin, held) = early(EARLY);
    let gate = gate(origin, "").await;
    let mut client = Attacker::new(gate.port).await;
    let head = request("POST", "/x", &[]);
    let mut streams: Vec<u8> =
        (0..20_u32).flat_map(|n| frame(HEADERS, END_HEADERS, n * 2 + 1, &head)).collect();
    streams.extend(&frame(PING, 0, 0, &[0; 8])[..1]);
    assert!(client.write(&streams).await);
    assert!(held_are(&held, 20).await);
    let (began, mut free) = (now(), false);
    while !free && began.elapsed() < Duration::from_secs(10) {
        assert!(client.write(&between_pings()).await);
        let every = Duration::from_millis(100);
        free = eventually(every, || async { held.load(Ordering::SeqCst) == 0 }).await;
    }
    assert!(free, "{} connections to the origin", held.load(Ordering::SeqCst));
    // The connection goes on.
    let rest = frame(PING, 0, 0, &[0; 8]);
    assert!(client.write(&[&rest[1..], &ask("/y", 41)].concat()).await);
    assert_eq!(client.answer(41).await, Some(404));
}

async fn small_gate(origin: &Origin) -> Gate {
    let (folder, _) = folder(&["one.example"]);
    let bounds = "max_connections: 4, max_connections_per_client: 2";
    let policy = format!(
        "{}routes: [{{ name: r }}]\nlimits_of_this_proxy: {{ {bounds} }}\n",
        origin_yaml(origin.address)
    );
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let free = eventually(Duration::from_secs(5), || async {
        metric(&gate.metrics().await, "tollgate_connections") == 0.0
    });
    assert!(free.await);
    gate
}

/// Answers with 60 KB, or five bytes at `/small`.
async fn origin() -> Origin {
    Origin::with(|seen| {
        let size = if seen.target == "/small" { 5 } else { 60_000 };
        hyper::Response::new(vec![b'x'; size].into())
    })
    .await
}

/// Two addresses hold all connections; others are served all the same, and those make room.
async fn others_are_served(gate: &Gate) {
    let mut come = Vec::new();
    // With a third, all that are left may have one connection each, which is safe for a while.
    for last in 10..12 {
        // tollgate may have yet to read what those that hold the connections have sent.
        let client = eventually_some(PATIENCE, || newcomer(last, gate.port)).await;
        assert!(client.is_some(), "{last}: {}{}", gate.metrics().await, gate.log());
        come.extend(client);
    }
    let gone = eventually(Duration::from_secs(10), || async {
        metric(&gate.metrics().await, "tollgate_connections") == 4.0
    });
    assert!(gone.await, "{}", gate.metrics().await);
    for client in &mut come {
        assert!(client.write(&ask("/small", 3)).await);
        assert_eq!(client.answer(3).await, Some(200), "its connection stayed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_frames_keep_nobody_out() {
    let origin = origin().await;
    let gate = small_gate(&origin).await;
    let mut held = Vec::new();
    for last in [2, 2, 3, 3] {
        let mut client = attacker(last, gate.port, &[], None).await;
        assert!(client.write(&frame(PING, 0, 0, &[0; 8])[..1]).await);
        assert!(client.write(&between_pings()).await);
        held.push(client);
    }
    others_are_served(&gate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_that_nobody_takes_keep_nobody_out() {
    let origin = origin().await;
    let gate = small_gate(&origin).await;
    let mut held = Vec::new();
    for last in [2, 2, 3, 3] {
        let mut client = attacker(last, gate.port, &NO_WINDOW, None).await;
        assert!(client.write(&ask("/../x", 1)).await);
        assert_eq!(client.answer(1).await, Some(400));
        held.push(client);
    }
    others_are_served(&gate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_answers_that_nobody_takes_keep_nobody_out() {
    let origin = origin().await;
    let gate = small_gate(&origin).await;
    let mut held = Vec::new();
    for last in [2, 2, 3, 3] {
        let mut client = attacker(last, gate.port, &[], Some(4096)).await;
        assert!(client.write(&ask("/large", 1)).await);
        assert_eq!(client.answer(1).await, Some(200));
        held.push(client);
    }
    others_are_served(&gate).await;
}
