//! Exchanges that one side never ends: each ends all the same, and holds nothing afterwards.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::http2::{
    Attacker, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, WINDOW_UPDATE, frame,
    request,
};
use crate::tls::{ONE, folder};
use support::frames::{SlowReader, agree, connect};
use support::servers::{Gate, Origin, eventually, metric, now, origin_yaml, resident_kib};
use support::wait::{eventually_in_thread, stands_still};

const NO_ERROR: [u8; 4] = [0, 0, 0, 0];
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// Serves each connection on a thread. The address, and how many connections there are.
fn serve_early(
    serve: impl Fn(TcpStream) + Copy + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let held = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&held);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let count = Arc::clone(&count);
            std::thread::spawn(move || {
                count.fetch_add(1, Ordering::SeqCst);
                serve(stream);
                count.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (address, held)
}

/// Reads a head; how many bytes came after it.
fn read_head(stream: &mut TcpStream) -> Option<usize> {
    use std::io::Read;
    let mut read = Vec::new();
    let mut some = [0; 4096];
    loop {
        let bytes = stream.read(&mut some).ok().filter(|bytes| *bytes > 0)?;
        read.extend_from_slice(&some[..bytes]);
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            return Some(read.len() - end - 4);
        }
    }
}

/// An origin that answers a head at once with these bytes, reads nothing more, and keeps the connection.
pub fn early(answer: &'static [u8]) -> (SocketAddr, Arc<AtomicUsize>) {
    use std::io::Write;
    serve_early(move |mut stream| {
        if read_head(&mut stream).is_none() || stream.write_all(answer).is_err() {
            return;
        }
        // Until the other side closes; bytes that come are left where they are.
        let mut some = [0; 64];
        let closed = || matches!(stream.peek(&mut some), Ok(0) | Err(_)).then_some(());
        eventually_in_thread(Duration::from_secs(600), closed);
    })
}

const FLIGHT: &str = "
limits:
  at_once: { tier: exact, max_in_flight: 1000, key: client_ip }
routes: [{ name: r, limits: [at_once] }]
";

pub async fn gate(origin: SocketAddr, bounds: &str) -> Gate {
    let (folder, _) = folder(&["one.example"]);
    let policy = format!("{}{FLIGHT}limits_of_this_proxy: {{ {bounds} }}\n", origin_yaml(origin));
    Gate::start_in(folder, &policy, ONE).await
}

/// Nothing is held any more: no connection to the origin, and no slot in flight.
async fn all_is_free(gate: &Gate, held: &AtomicUsize) {
    let free = eventually(Duration::from_secs(10), || async {
        let in_flight = metric(&gate.metrics().await, "tollgate_in_flight{limit=\"at_once\"}");
        in_flight == 0.0 && held.load(Ordering::SeqCst) == 0
    });
    assert!(free.await, "{} connections to the origin", held.load(Ordering::SeqCst));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_does_not_come_after_the_answer_holds_nothing() {
    for answer in [
        &b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnever"[..],
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nnever\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ] {
        let (origin, held) = early(answer);
        let (tls, plain) = (gate(origin, "").await, early_plain_gate(origin).await);

        // HTTP/1: the answer, and the end of the connection soon after.
        let began = now();
        let mut client = tokio::net::TcpStream::connect(("127.0.0.1", plain.port)).await.unwrap();
        let head = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n";
        client.write_all(head).await.unwrap();
        let mut told = Vec::new();
        let end = timeout(Duration::from_secs(10), client.read_to_end(&mut told)).await;
        assert!(end.is_ok(), "{}", String::from_utf8_lossy(&told));
        assert!(told.starts_with(&answer[..12]), "{}", String::from_utf8_lossy(&told));
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        all_is_free(&plain, &held).await;
        assert!(plain.stdout().contains("\"decision\":\"allowed\""), "{}", plain.stdout());

        // HTTP/2: each stream is reset without an error, and the connection goes on.
        let mut client = Attacker::new(tls.port).await;
        let head = request("POST", "/x", &[]);
        for n in 0..100_u32 {
            client.write(&frame(HEADERS, END_HEADERS, n * 2 + 1, &head)).await;
        }
        let mut reset = 0;
        while reset < 100 {
            let Some((kind, _, _, payload)) = client.read().await else {
                panic!("the connection ended after {reset} resets: {}", tls.log());
            };
            if kind == RST_STREAM {
                assert_eq!(payload, NO_ERROR);
                reset += 1;
            }
            assert_ne!(kind, GOAWAY);
        }
        all_is_free(&tls, &held).await;
        let streams = "tollgate_memory_bytes{kind=\"streams\"}";
        assert!(metric(&tls.metrics().await, streams) < 62.0 * 1024.0, "of the connection alone");
        client.write(&frame(HEADERS, END_HEADERS | END_STREAM, 201, &head)).await;
        assert!(client.answer(201).await.is_some());
    }
}

async fn early_plain_gate(origin: SocketAddr) -> Gate {
    Gate::start(&format!("{}{FLIGHT}", origin_yaml(origin))).await
}

/// A stream whose body moves keeps no other alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_stream_has_its_own_deadline_for_its_body() {
    let origin = Origin::start("site").await;
    let gate = gate(origin.address, "").await;
    let mut client = Attacker::new(gate.port).await;
    let head = request("POST", "/x", &[]);
    for stream in [1, 3, 5] {
        client.write(&frame(HEADERS, END_HEADERS, stream, &head)).await;
    }
    let began = now();
    let mut reset = Vec::new();
    while reset.len() < 2 && began.elapsed() < Duration::from_secs(40) {
        client.write(&frame(DATA, 0, 1, &[b'x'; 600])).await;
        if let Ok(Some((kind, _, stream, payload))) =
            timeout(Duration::from_secs(1), client.read()).await
            && kind == RST_STREAM
        {
            assert_eq!(payload, CANCEL);
            reset.push(stream);
        }
    }
    reset.sort_unstable();
    assert_eq!(reset, [3, 5]);
    let took = began.elapsed();
    assert!(took > Duration::from_secs(18) && took < Duration::from_secs(25), "{took:?}");
    client.write(&frame(DATA, END_STREAM, 1, b"x")).await;
    assert_eq!(client.answer(1).await, Some(200));
    let counted = eventually(Duration::from_secs(5), || async {
        metric(&gate.metrics().await, "tollgate_rejected_total{reason=\"body_rate\"}") == 2.0
    });
    assert!(counted.await);
    all_is_free(&gate, &AtomicUsize::new(0)).await;
}

/// A download that flows is not idle, however long ago the origin was done with it; a connection that is
/// idle ends with GOAWAY.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_still_flows_is_not_idle() {
    const SIZE: usize = 120_000;
    let origin =
        Origin::with(|_| hyper::Response::new(http_body_util::Full::from(vec![b'x'; SIZE]))).await;
    let gate = gate(origin.address, "idle_timeout: 1s").await;
    // INITIAL_WINDOW_SIZE of 16 KiB (RFC 9113, section 6.5.2): no more is on the way than a quarter of a second takes.
    let mut client = Attacker::with_settings(gate.port, &[0, 4, 0, 0, 0x40, 0]).await;
    let head = request("GET", "/x", &[]);
    client.write(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head)).await;
    let (mut came, mut owed) = (0, 0_u32);
    let (began, mut pace) = (now(), SlowReader::new(60_000));
    loop {
        let (kind, flags, _, payload) = client.read().await.expect("a download that goes on");
        assert_ne!(kind, GOAWAY, "after {came} bytes");
        if kind != DATA {
            continue;
        }
        came += payload.len();
        owed += payload.len() as u32;
        if flags & END_STREAM != 0 {
            break;
        }
        pace.took(payload.len()).await;
        if owed > 10_000 {
            for stream in [0, 1] {
                client.write(&frame(WINDOW_UPDATE, 0, stream, &owed.to_be_bytes())).await;
            }
            owed = 0;
        }
    }
    assert_eq!(came, SIZE);
    let took = began.elapsed();
    assert!(took > Duration::from_millis(1_600), "{took:?}");
    let began = now();
    let mut last = None;
    while let Some((kind, ..)) = client.read().await {
        last = Some(kind);
    }
    assert_eq!(last, Some(GOAWAY));
    let took = began.elapsed();
    // Since the last byte left: the client's kernel may have had it for a while.
    assert!(took > Duration::from_millis(500) && took < Duration::from_millis(1_800), "{took:?}");
}

/// Trailers of a stream that was refused and reset begin no exchange: the connection idles, and ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_of_a_stream_that_was_reset_keeps_no_connection() {
    let origin = Origin::start("site").await;
    let (folder, _) = folder(&["one.example"]);
    let limits = "
limits: { few: { tier: exact, rate: 1/1h, key: client_ip } }
routes: [{ name: r, limits: [few] }]
limits_of_this_proxy: { idle_timeout: 2s }
";
    let policy = format!("{}{limits}", origin_yaml(origin.address));
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let mut client = Attacker::new(gate.port).await;
    let (get, post) = (request("GET", "/x", &[]), request("POST", "/x", &[]));
    client.write(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get)).await;
    assert_eq!(client.answer(1).await, Some(200));
    client.write(&frame(HEADERS, END_HEADERS, 3, &post)).await;
    assert!(client.answer(3).await.is_some_and(|status| status != 200));
    let trailers = crate::http2::fields(&[(b"x-sum", b"1")]);
    client.write(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &trailers)).await;
    let streams = "tollgate_memory_bytes{kind=\"streams\"}";
    assert!(metric(&gate.metrics().await, streams) < 62.0 * 1024.0);
    assert!(client.closed().await < Duration::from_secs(8));
}

/// An origin that takes requests and never answers.
fn hanging() -> (SocketAddr, Arc<AtomicUsize>) {
    serve_early(|mut stream| while read_head(&mut stream).is_some() {})
}

/// A request from one of the addresses of the loopback network.
async fn connect_from(source: [u8; 4], port: u16) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((source, 0))).unwrap();
    socket.connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap()
}

async fn ask_from(source: [u8; 4], port: u16) -> tokio::net::TcpStream {
    let mut stream = connect_from(source, port).await;
    stream.write_all(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    stream
}

/// A client that asks for another protocol.
async fn ask_to_switch_from(source: [u8; 4], port: u16) -> tokio::net::TcpStream {
    let mut stream = connect_from(source, port).await;
    let asked = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream.write_all(asked).await.unwrap();
    stream
}

/// What is told.
async fn told(stream: &mut tokio::net::TcpStream) -> String {
    let mut told = vec![0; 4096];
    let read = timeout(Duration::from_secs(10), stream.read(&mut told)).await;
    String::from_utf8_lossy(&told[..read.expect("an answer").unwrap()]).into_owned()
}

/// Whether so many are held by the origin, and nobody more.
pub async fn held_are(held: &AtomicUsize, wanted: usize) -> bool {
    eventually(Duration::from_secs(10), || async { held.load(Ordering::SeqCst) == wanted }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_origin_has_as_many_exchanges_as_it_may_and_no_client_takes_all() {
    let (origin, held) = hanging();
    let origins =
        format!("origins: {{ site: {{ servers: [\"{origin}\"], max_connections: 8 }} }}\n");
    let gate = Gate::start(&format!("{origins}{FLIGHT}")).await;
    let (one, other) = ([127, 0, 0, 2], [127, 0, 0, 3]);
    let mut held_by_one = Vec::new();
    for _ in 0..6 {
        held_by_one.push(ask_from(one, gate.port).await);
    }
    assert!(
        eventually(Duration::from_secs(5), || async { held.load(Ordering::SeqCst) == 6 }).await
    );
    let refused = told(&mut ask_from(one, gate.port).await).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.to_lowercase().contains("retry-after: 1\r\n"), "{refused}");
    assert!(refused.contains("#temporary-reduced-capacity"), "{refused}");
    let logged = eventually(Duration::from_secs(5), || async {
        gate.log().contains("no connection is left for this client")
    });
    assert!(logged.await, "{}", gate.log());
    // What is left is for others, and nobody takes all of it.
    let mut held_by_others = vec![ask_from(other, gate.port).await];
    assert!(held_are(&held, 7).await);
    let refused = told(&mut ask_from(other, gate.port).await).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    held_by_others.push(ask_from([127, 0, 0, 4], gate.port).await);
    assert!(held_are(&held, 8).await);
    let metrics = gate.metrics().await;
    assert_eq!(metric(&metrics, "tollgate_shed_total{reason=\"origin_connections\"}"), 2.0);
    assert_eq!(metric(&metrics, "tollgate_origin_connections{origin=\"site\"}"), 8.0);
    drop(held_by_one);
    all_is_free_but(&gate, &held, 2).await;
    let _again = ask_from(one, gate.port).await;
    assert!(held_are(&held, 3).await, "there is room again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnels_of_a_client_hold_no_more_than_a_quarter() {
    let (origin, held) = hanging();
    let origins =
        format!("origins: {{ site: {{ servers: [\"{origin}\"], max_connections: 8 }} }}\n");
    let gate = Gate::start(&format!("{origins}{FLIGHT}")).await;
    let one = [127, 0, 0, 2];
    let _held =
        [ask_to_switch_from(one, gate.port).await, ask_to_switch_from(one, gate.port).await];
    assert!(held_are(&held, 2).await);
    let refused = told(&mut ask_to_switch_from(one, gate.port).await).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    let _plain = ask_from(one, gate.port).await;
    assert!(held_are(&held, 3).await);
}

/// A request that is refused for want of room, or of a server, costs no unit that only the origin could name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_origin_was_asked_costs_no_reserve() {
    let (origin, held) = hanging();
    let limits = "
limits:
  units: { tier: exact, rate: 100/1h, key: client_ip, cost: { response_header: x-units, reserve: 10, max: 50 } }
  failures: { tier: exact, rate: 50/1h, key: client_ip, count: { status: [401] } }
  calls: { tier: exact, algorithm: fixed_window, rate: 40/1h, key: client_ip }
routes: [{ name: r, limits: [units, failures, calls] }]
";
    let origins =
        format!("origins: {{ site: {{ servers: [\"{origin}\"], max_connections: 4 }} }}\n");
    let gate = Gate::start(&format!("{origins}{limits}")).await;
    let one = [127, 0, 0, 2];
    let mut held_by_one = Vec::new();
    for _ in 0..3 {
        held_by_one.push(ask_from(one, gate.port).await);
    }
    assert!(held_are(&held, 3).await);
    for n in 1..4 {
        let refused = told(&mut ask_from(one, gate.port).await).await;
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        for left in ["\"units\";r=70;", "\"failures\";r=47;", &format!("\"calls\";r={};", 37 - n)] {
            assert!(refused.contains(left), "{refused}");
        }
    }
    drop(held_by_one);

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let check = "health_check: { path: /, every: 50ms, timeout: 1s }";
    let origins = format!("origins: {{ site: {{ servers: [\"{closed}\"], {check} }} }}\n");
    let gate = Gate::start(&format!("{origins}{limits}")).await;
    let is_out = eventually(Duration::from_secs(10), || async {
        gate.admin_get("/status").await.is_ok_and(|(_, told)| told.contains("\"healthy\": 0"))
    });
    assert!(is_out.await);
    let refused = told(&mut ask_from(one, gate.port).await).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    for left in ["\"units\";r=100;", "\"failures\";r=50;", "\"calls\";r=39;"] {
        assert!(refused.contains(left), "{refused}");
    }
}

async fn all_is_free_but(gate: &Gate, held: &AtomicUsize, most: usize) {
    let sample = "tollgate_origin_connections{origin=\"site\"}";
    let free = eventually(Duration::from_secs(10), || async {
        let slots = metric(&gate.metrics().await, sample) as usize;
        (slots, held.load(Ordering::SeqCst)) == (most, most)
    });
    assert!(free.await, "{} connections to the origin", held.load(Ordering::SeqCst));
}

/// With few descriptors, neither idle connections nor streams that the origin never answers use up those that
/// operators need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptors_are_kept_back() {
    let (origin, held) = hanging();
    let (folder, _) = folder(&["one.example"]);
    let policy = format!("{}{FLIGHT}", origin_yaml(origin));
    let (port, admin) = Gate::prepare(&folder, &policy, ONE);
    let mut gate = Gate::run(Arc::new(folder), port, admin, &["nofile=600"]);
    gate.wait_ready().await;
    let mut attackers = Vec::new();
    for _ in 0..4 {
        let mut attacker = Attacker::new(gate.port).await;
        let head = request("GET", "/x", &[]);
        for n in 0..100_u32 {
            attacker.write(&frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &head)).await;
        }
        attackers.push(attacker);
    }
    let mut idle = Vec::new();
    for _ in 0..500 {
        if let Ok(Ok(stream)) = timeout(
            Duration::from_secs(1),
            tokio::net::TcpStream::connect(("127.0.0.1", gate.port)),
        )
        .await
        {
            idle.push(stream);
        }
    }
    for path in ["/healthz", "/ready", "/metrics"] {
        assert_eq!(gate.admin_get(path).await.unwrap().0, 200, "{path}");
    }
    let metrics = gate.metrics().await;
    assert!(metric(&metrics, "tollgate_shed_total{reason=\"origin_connections\"}") >= 200.0);
    assert!(metric(&metrics, "tollgate_connections") <= 140.0, "{metrics}");
    assert!(held.load(Ordering::SeqCst) <= 140);
    assert!(!gate.log().contains("cannot accept"), "{}", gate.log());
}

/// What a client holds that asks for much and takes nothing: of each stream two frames, and what the framework
/// has read ahead, nine pieces of 64 KiB. (The HTTP/2 implementation alone held 400 KiB of each.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_hold_little() {
    const CONNECTIONS: u64 = 5;
    const MOST_KIB_A_STREAM: u64 = 640;
    let body = bytes::Bytes::from(vec![b'x'; 4 << 20]);
    let origin =
        Origin::with(move |_| hyper::Response::new(http_body_util::Full::from(body.clone()))).await;
    let (folder, _) = folder(&["one.example"]);
    let origins = format!(
        "origins: {{ site: {{ servers: [\"{}\"], timeouts: {{ connect: 20s }} }} }}\n",
        origin.address
    );
    let gate = Gate::start_in(folder, &format!("{origins}{FLIGHT}"), ONE).await;
    let before = resident_kib(gate.pid());
    let head = request("GET", "/big", &[]);
    let mut attackers = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut attacker = Attacker::new(gate.port).await;
        for n in 0..100_u32 {
            attacker.write(&frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &head)).await;
        }
        attackers.push(attacker);
    }
    let sample = "tollgate_origin_connections{origin=\"site\"}";
    let streams = CONNECTIONS * 100;
    let all = eventually(Duration::from_secs(20), || async {
        metric(&gate.metrics().await, sample) as u64 == streams
    });
    assert!(all.await);
    // The most that there was, when it has not grown for half a second.
    let mut most = 0;
    let peak = || {
        most = resident_kib(gate.pid()).max(most);
        most
    };
    assert!(stands_still(Duration::from_secs(20), 25, peak).await, "{most} KiB, and more");
    let grown = most.saturating_sub(before);
    println!("{streams} slow readers hold {grown} KiB, {} KiB each", grown / streams);
    assert!(grown < streams * MOST_KIB_A_STREAM, "{grown} KiB");
}

/// Several answers share what a slow client takes: each moves, though a part of it needs longer than `write_timeout`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_share_a_slow_connection_come_whole() {
    const STREAMS: u32 = 8;
    const OBJECT: usize = 100_000;
    let origin = Origin::with(|_| hyper::Response::new(vec![b'x'; OBJECT].into())).await;
    let gate = gate(origin.address, "write_timeout: 1s, body_min_rate: 4KiB/s").await;
    let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
    let tcp = connect([127, 0, 0, 1].into(), to, Some(16 * 1024)).await.unwrap();
    let mut client = Attacker::begin(agree(tcp).await.unwrap(), &[]).await.unwrap();
    let mut head = frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
    for n in 0..STREAMS {
        let (stream, block) = (n * 2 + 1, request("GET", "/x", &[]));
        head.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block));
        head.extend(frame(WINDOW_UPDATE, 0, stream, &(1_u32 << 20).to_be_bytes()));
    }
    assert!(client.write(&head).await);
    // An eighth of that is for each: far more than the least rate, and what is written at once takes longer than
    // `write_timeout`.
    let mut pace = SlowReader::new(200_000);
    let (began, mut bytes, mut ended) = (now(), 0, 0);
    while ended < STREAMS {
        let (kind, flags, _, payload) = client.read().await.expect("the connection goes on");
        assert!(kind != RST_STREAM && kind != GOAWAY, "{bytes} bytes, {:?}", began.elapsed());
        if kind == DATA {
            (bytes, ended) = (bytes + payload.len(), ended + u32::from(flags & END_STREAM));
            pace.took(payload.len()).await;
        }
    }
    assert_eq!(bytes, STREAMS as usize * OBJECT);
}
