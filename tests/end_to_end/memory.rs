//! One budget for what clients make the process hold.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::http2::{
    Attacker, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, WINDOW_UPDATE, frame, request,
};
use crate::tls::{ONE, folder};
use support::frames::{SlowReader, agree, connect};
use support::servers::{Gate, Origin, eventually, metric, origin_yaml};
use support::wait::pause_between_arrivals;

const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 0xb];
const OBJECT: usize = 4 << 20;

/// An origin of large answers; small ones at `/small`.
async fn large() -> Origin {
    Origin::with(|seen| {
        let size = if seen.target == "/small" { 5 } else { OBJECT };
        hyper::Response::new(vec![b'x'; size].into())
    })
    .await
}

fn policy(origin: SocketAddr, bounds: &str) -> String {
    let route = "routes: [{ name: r }]\n";
    format!("{}{route}limits_of_this_proxy: {{ memory: 16MiB{bounds} }}\n", origin_yaml(origin))
}

/// A client with an address of its own.
fn client_at(last: u8) -> reqwest::Client {
    let address = IpAddr::from([127, 0, 0, last]);
    reqwest::Client::builder()
        .local_address(address)
        .danger_accept_invalid_certs(true)
        .build()
        .unwrap()
}

/// Asks over HTTP/1 from one of the addresses of the loopback network, with small buffers in the kernel.
async fn ask_from(last: u8, port: u16, request: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8 * 1024).unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    let mut stream = socket.connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
    stream.write_all(request).await.unwrap();
    stream
}

fn used(metrics: &str, kind: &str) -> f64 {
    metric(metrics, &format!("tollgate_memory_bytes{{kind=\"{kind}\"}}"))
}

fn shed(metrics: &str, reason: &str) -> f64 {
    metric(metrics, &format!("tollgate_shed_total{{reason=\"{reason}\"}}"))
}

async fn nothing_is_used(gate: &Gate) {
    let kinds = ["connections", "tls", "streams", "requests", "answers"];
    let free = eventually(Duration::from_secs(10), || async {
        let metrics = gate.metrics().await;
        kinds.iter().all(|kind| used(&metrics, kind) == 0.0)
    });
    assert!(free.await, "{}", gate.metrics().await);
}

/// Above half of the budget a client has so many exchanges: a quarter of it, in the largest that there are.
const SHARE: u8 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_not_read_are_reset_and_others_served() {
    let origin = large().await;
    let (folder, _) = folder(&["one.example"]);
    let gate = Gate::start_in(folder, &policy(origin.address, ""), ONE).await;
    let (head, to) = (request("GET", "/x", &[]), SocketAddr::from(([127, 0, 0, 1], gate.port)));
    let mut attackers = Vec::new();
    for last in 10..17 {
        let tcp = connect(IpAddr::from([127, 0, 0, last]), to, None).await.unwrap();
        let mut attacker = Attacker::begin(agree(tcp).await.unwrap(), &[]).await.unwrap();
        for n in 0..u32::from(SHARE) {
            attacker.write(&frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &head)).await;
        }
        attackers.push(attacker);
    }
    let cut = eventually(Duration::from_secs(10), || async {
        shed(&gate.metrics().await, "slow_reader") >= 2.0
    });
    assert!(cut.await, "{}", gate.metrics().await);
    let mut reset = 0;
    for attacker in &mut attackers {
        while let Ok(read) = timeout(Duration::from_millis(500), attacker.read()).await {
            let (kind, _, _, payload) = read.expect("only streams are ended");
            if kind == RST_STREAM {
                assert_eq!(payload, ENHANCE_YOUR_CALM);
                reset += 1;
            }
        }
    }
    assert!(reset >= 2 * SHARE, "{reset}");
    let metrics = gate.metrics().await;
    let total: f64 = ["connections", "tls", "streams", "requests", "answers"]
        .iter()
        .map(|kind| used(&metrics, kind))
        .sum();
    assert!(total < 16e6, "{total}");
    let (url, client) = (format!("https://127.0.0.1:{}/small", gate.port), client_at(2));
    assert_eq!(client.get(url).send().await.unwrap().status(), 200);
    drop((attackers, client));
    nothing_is_used(&gate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_with_most_unread_answers_is_cut_first() {
    let origin = large().await;
    let gate = Gate::start(&policy(origin.address, "")).await;
    let ask = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut alone = ask_from(3, gate.port, ask).await;
    let mut many = Vec::new();
    for n in 0..40 {
        many.push(ask_from(10 + n % 7, gate.port, ask).await);
    }
    let cut = eventually(Duration::from_secs(10), || async {
        shed(&gate.metrics().await, "slow_reader") >= 5.0
    });
    assert!(cut.await, "{}", gate.metrics().await);
    let client = client_at(4);
    let served = eventually(Duration::from_secs(5), || async {
        // Its own idle connection may be among those that close.
        client.get(gate.url("/small")).send().await.is_ok_and(|answer| answer.status() == 200)
    });
    assert!(served.await);
    drop(client);
    // A client that is slow by itself takes its answer to the end.
    let (mut came, mut some) = (0, vec![0; 64 * 1024]);
    while came < OBJECT {
        let read = timeout(Duration::from_secs(10), alone.read(&mut some)).await;
        let bytes = read.expect("more").unwrap();
        assert_ne!(bytes, 0, "cut after {came} bytes");
        came += bytes;
    }
    drop((alone, many));
    nothing_is_used(&gate).await;
}

/// An origin that reads no more of a request than its kernel takes.
fn deaf() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let held: Vec<_> = listener.incoming().flatten().collect();
        drop(held);
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_work_is_refused_while_the_budget_is_used_up() {
    let timeouts = |policy: String| {
        policy.replace("servers", "timeouts: { write: 1s, read: 3s }\n    servers")
    };
    let gate = Gate::start(&timeouts(policy(deaf(), ""))).await;
    let head = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n";
    let mut uploads = Vec::new();
    for n in 0..40 {
        let mut upload = ask_from(10 + n % 7, gate.port, head).await;
        let part = vec![b'x'; 8 << 20];
        // Until nobody takes any more.
        let _ = timeout(Duration::from_millis(100), upload.write_all(&part)).await;
        uploads.push(upload);
    }
    // The last of them found none.
    let before = shed(&gate.metrics().await, "memory");
    assert!(before >= 1.0, "{}", gate.metrics().await);
    let answer = client_at(3).get(gate.url("/small")).send().await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "1");
    let body = answer.text().await.unwrap();
    assert!(body.contains("#temporary-reduced-capacity"), "{body}");
    let logged = eventually(Duration::from_secs(5), || async {
        gate.log().contains("no memory is left for it")
    });
    assert!(logged.await, "{}", gate.log());
    assert_eq!(shed(&gate.metrics().await, "memory"), before + 1.0);
    // Operators are answered.
    assert_eq!(gate.admin_get("/ready").await.unwrap().0, 200);
    // A reload may give it more.
    let more = timeouts(policy(deaf(), "")).replace("16MiB", "1GiB");
    gate.reload(&more, "").await;
    let ask = b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n";
    let _waits = ask_from(3, gate.port, ask).await;
    drop(uploads);
    // A client may keep its body back for 20 s, and a server that takes none of it holds it a little longer.
    let free = eventually(Duration::from_secs(40), || async {
        used(&gate.metrics().await, "requests") < 100_000.0
    });
    assert!(free.await, "{}", gate.metrics().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_client_does_not_use_up_the_budget() {
    let origin = large().await;
    let policy = format!(
        "origins: {{ deaf: {{ servers: [\"{}\"] }}, site: {{ servers: [\"{}\"] }} }}
routes: [{{ name: deaf, match: {{ path: /x }}, origin: deaf }}, {{ name: site, origin: site }}]
limits_of_this_proxy: {{ memory: 16MiB }}
",
        deaf(),
        origin.address
    );
    let gate = Gate::start(&policy).await;
    let head = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n";
    let mut uploads = Vec::new();
    for _ in 0..40 {
        let mut upload = ask_from(2, gate.port, head).await;
        let part = vec![b'x'; 8 << 20];
        let _ = timeout(Duration::from_millis(100), upload.write_all(&part)).await;
        uploads.push(upload);
    }
    let metrics = gate.metrics().await;
    assert!(shed(&metrics, "memory") >= 10.0, "{metrics}");
    assert!(used(&metrics, "requests") < 10.0 * f64::from(1 << 20), "{metrics}");
    let answer = client_at(3).get(gate.url("/small")).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_do_not_end_are_counted() {
    let origin = large().await;
    let gate = Gate::start(&policy(origin.address, "")).await;
    let half = [&b"GET / HTTP/1.1\r\nHost: a\r\nX: "[..], &[b'x'; 20_000]].concat();
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(ask_from(2, gate.port, &half).await);
    }
    let counted = eventually(Duration::from_secs(10), || async {
        used(&gate.metrics().await, "connections") > 10.0 * 30_000.0
    });
    assert!(counted.await, "{}", gate.metrics().await);
    drop(held);
    nothing_is_used(&gate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_close_for_their_memory() {
    let origin = large().await;
    let gate = Gate::start(&policy(origin.address, "")).await;
    let mut idle = Vec::new();
    for n in 0..1_400_u16 {
        idle.push(ask_from(2 + (n % 2) as u8, gate.port, b"").await);
    }
    let client = client_at(4);
    let served = eventually(Duration::from_secs(10), || async {
        // Its own idle connection may be among those that close.
        client.get(gate.url("/small")).send().await.is_ok_and(|answer| answer.status() == 200)
    });
    assert!(served.await, "{}", gate.metrics().await);
    let closed = eventually(Duration::from_secs(10), || async {
        let metrics = gate.metrics().await;
        let fits = used(&metrics, "connections") < 16.0 * f64::from(1 << 20);
        fits && shed(&metrics, "idle_connections") > 60.0
    });
    assert!(closed.await, "{}", gate.metrics().await);
}

/// A client that reads steadily is not cut for what it asks at once while nobody needs the memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_is_not_cut_while_memory_is_free() {
    const STREAMS: u32 = 10;
    const SIZE: usize = 390 << 10;
    let origin = Origin::with(|_| hyper::Response::new(vec![b'x'; SIZE].into())).await;
    let (folder, _) = folder(&["one.example"]);
    let gate = Gate::start_in(folder, &policy(origin.address, ""), ONE).await;
    let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
    let tcp = connect([127, 0, 0, 1].into(), to, Some(16 * 1024)).await.unwrap();
    // INITIAL_WINDOW_SIZE of a MiB (RFC 9113, section 6.5.2), as browsers say it or more.
    let mut client =
        Attacker::begin(agree(tcp).await.unwrap(), &[0, 4, 0, 0x10, 0, 0]).await.unwrap();
    let mut ask = frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
    for n in 0..STREAMS {
        let head = request("GET", "/x", &[]);
        ask.extend(frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &head));
    }
    assert!(client.write(&ask).await);
    // Two seconds for all: twice as long as what waits for a client may take when memory is short.
    let (mut pace, mut bytes) = (SlowReader::new(2_000_000), 0);
    while bytes < STREAMS as usize * SIZE {
        let (kind, _, _, payload) = client.read().await.expect("the connection goes on");
        assert_ne!(kind, RST_STREAM);
        let taken = if kind == DATA { payload.len() } else { 0 };
        bytes += taken;
        pace.took(taken).await;
    }
    assert_eq!(shed(&gate.metrics().await, "slow_reader"), 0.0);
}

/// Downloads go on while the memory that is short is that of another client's idle connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downloads_are_not_cut_for_idle_connections_of_another() {
    let origin = large().await;
    let (folder, _) = folder(&["one.example"]);
    let gate = Gate::start_in(folder, &policy(origin.address, ""), ONE).await;
    let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
    let mut readers = Vec::new();
    for last in 10..13 {
        let source = IpAddr::from([127, 0, 0, last]);
        let tcp = connect(source, to, Some(16 * 1024)).await.unwrap();
        let mut reader = Attacker::begin(agree(tcp).await.unwrap(), &[]).await.unwrap();
        let head = frame(HEADERS, END_HEADERS | END_STREAM, 1, &request("GET", "/x", &[]));
        assert!(reader.write(&head).await);
        assert_eq!(reader.answer(1).await, Some(200));
        readers.push(reader);
    }
    let mut idle = Vec::new();
    for n in 0..200 {
        // A client may not begin more handshakes at once.
        let tcp = connect([127, 0, 1, n % 10].into(), to, None).await.unwrap();
        // Until it is complete, it may be among the idle connections that close.
        idle.extend(agree(tcp).await);
        pause_between_arrivals(Duration::from_millis(10)).await;
    }
    let metrics = gate.metrics().await;
    assert!(shed(&metrics, "idle_connections") >= 10.0, "{metrics}");
    assert_eq!(shed(&metrics, "slow_reader"), 0.0, "{metrics}");
}
