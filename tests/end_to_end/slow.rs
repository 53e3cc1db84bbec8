//! Clients that take their time, many at once, and those beside them.

use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use support::servers::{Gate, Origin, eventually, metric, now, origin_yaml, resident_kib};
use support::wait::pause_of_a_slow_client;

const ROUTE: &str = "routes: [{ name: r }]\n";

async fn gate(origin: &Origin, bounds: &str) -> Gate {
    let bounds = format!("limits_of_this_proxy: {{ {bounds} }}\n");
    Gate::start(&format!("{}{ROUTE}{bounds}", origin_yaml(origin.address))).await
}

async fn connect(gate: &Gate) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Writes bytes one by one; what is answered, and after how long, or nothing.
async fn trickle(stream: &mut TcpStream, bytes: &[u8], every: Duration) -> (String, Duration) {
    in_pieces(stream, bytes.chunks(1), every).await
}

/// The same for larger pieces.
async fn in_pieces(
    stream: &mut TcpStream,
    pieces: impl Iterator<Item = &[u8]>,
    every: Duration,
) -> (String, Duration) {
    let began = now();
    let mut answer = Vec::new();
    for piece in pieces {
        if stream.write_all(piece).await.is_err() {
            break;
        }
        if let Ok(read) = timeout(every, stream.read_buf(&mut answer)).await {
            drop(read);
            break;
        }
    }
    let _ = timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await;
    (String::from_utf8_lossy(&answer).into_owned(), began.elapsed())
}

/// A whole answer of the test's origin.
async fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"site") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
    }
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_byte_of_head_every_four_seconds_is_cut_in_time() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin, "header_timeout: 10s").await;
    let head = b"GET / HTTP/1.1\r\nHost: abcdefgh\r\n\r\n";
    let first = async {
        let mut stream = connect(&gate).await;
        trickle(&mut stream, head, Duration::from_secs(4)).await
    };
    let tenth = async {
        let mut stream = connect(&gate).await;
        for _ in 0..9 {
            ask(&mut stream).await;
        }
        trickle(&mut stream, head, Duration::from_secs(4)).await
    };
    let (first, tenth) = tokio::join!(first, tenth);
    for (answer, took) in [first, tenth] {
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(took < Duration::from_secs(11) && took >= Duration::from_secs(10), "{took:?}");
    }
    assert_eq!(origin.count(), 9);
}

#[tokio::test]
async fn a_body_that_trickles_is_cut_and_one_that_flows_is_not() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin, "body_min_rate: 1KiB/s").await;
    let slow = async {
        let mut stream = connect(&gate).await;
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n";
        stream.write_all(head).await.unwrap();
        trickle(&mut stream, &[b'x'; 1_000], Duration::from_millis(500)).await
    };
    let chunks = async {
        let mut stream = connect(&gate).await;
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head).await.unwrap();
        trickle(&mut stream, &b"1\r\nx\r\n".repeat(200), Duration::from_millis(500)).await
    };
    let steady = async {
        let mut stream = connect(&gate).await;
        let head =
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 56000\r\nConnection: close\r\n\r\n";
        stream.write_all(head).await.unwrap();
        in_pieces(&mut stream, [b'x'; 56_000].chunks(2_000), Duration::from_millis(800)).await
    };
    let (slow, chunks, steady) = tokio::join!(slow, chunks, steady);
    for (answer, took) in [slow, chunks] {
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(answer.contains("\"reason\":\"body_rate\""), "{answer}");
        let bounds = Duration::from_secs(19)..Duration::from_secs(24);
        assert!(bounds.contains(&took), "{took:?}");
    }
    // Longer than one that brings nothing is borne, and never slower than it may be.
    let (answer, took) = steady;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(took > Duration::from_secs(21), "{took:?}");
    let metrics = gate.metrics().await;
    assert_eq!(metric(&metrics, "tollgate_rejected_total{reason=\"body_rate\"}") as u64, 2);
}

#[tokio::test]
async fn who_takes_nothing_is_cut_and_who_takes_slowly_is_served() {
    let origin = Origin::with(|_| hyper::Response::new(vec![b'x'; 16 << 20].into())).await;
    let gate = gate(&origin, "write_timeout: 1s").await;
    let ask = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut idle = connect(&gate).await;
    idle.write_all(ask).await.unwrap();
    let slow = async {
        let mut stream = connect(&gate).await;
        stream.write_all(ask).await.unwrap();
        let (mut read, mut buffer) = (0, vec![0; 64 * 1024]);
        // Three times as long as who takes nothing is borne, at a pace that kernels hide in bursts.
        for _ in 0..30 {
            read += stream.read(&mut buffer).await.unwrap();
            pause_of_a_slow_client(Duration::from_millis(100)).await;
        }
        while read < 16 << 20 {
            let more = stream.read(&mut buffer).await.unwrap();
            assert_ne!(more, 0, "cut after {read} bytes");
            read += more;
        }
    };
    slow.await;
    let gone = eventually(Duration::from_secs(10), || async {
        metric(&gate.metrics().await, "tollgate_connections") <= 1.0
    });
    assert!(gone.await, "the one that takes nothing is cut");
    // It had only what fits into the kernels' buffers.
    let mut rest = Vec::new();
    let _ = timeout(Duration::from_secs(5), idle.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.len() < 16 << 20);
}

/// A good client beside others: how many of so many requests were answered.
/// From an address of its own: those who attack have their share of what an origin can take.
async fn good_client(gate: &Gate, requests: usize) -> usize {
    let address = std::net::IpAddr::from([127, 0, 0, 2]);
    let client = reqwest::Client::builder().local_address(address).build().unwrap();
    let mut answered = 0;
    for _ in 0..requests {
        let answer = client.get(gate.url("/")).send().await;
        answered += usize::from(answer.is_ok_and(|answer| answer.status() == 200));
    }
    answered
}

#[tokio::test]
async fn thousands_that_say_nothing_or_half_a_head_harm_nobody() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin, "max_connections_per_client: 20000, header_timeout: 5s").await;
    let before = resident_kib(gate.pid());
    let mut idle = Vec::new();
    for n in 0..3_000 {
        let mut stream = connect(&gate).await;
        if n % 3 == 0 {
            stream.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
        }
        idle.push(stream);
    }
    let held = eventually(Duration::from_secs(10), || async {
        metric(&gate.metrics().await, "tollgate_connections") >= 2_000.0
    });
    assert!(held.await, "{}", gate.metrics().await);
    assert_eq!(good_client(&gate, 2_000).await, 2_000);
    let each = (resident_kib(gate.pid()) - before) / 3_000;
    assert!(each < 24, "{each} KiB for each of them");
    let cut = eventually(Duration::from_secs(15), || async {
        metric(&gate.metrics().await, "tollgate_rejected_total{reason=\"header_timeout\"}")
            == 1000.0
    });
    assert!(cut.await);
}

/// Debian's own attacker against a small gate, with a good client beside it.
async fn attacked_by(options: &[&str], bounds: &str) {
    let origin = Origin::start("site").await;
    let bounds = format!("{bounds}, max_connections_per_client: 5000");
    let gate = gate(&origin, &bounds).await;
    let mut attack = Command::new("slowhttptest")
        .args(["-c", "1500", "-r", "500", "-l", "12", "-p", "2", "-u", &gate.url("/")])
        .args(options)
        .current_dir(gate.folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("slowhttptest is installed by make test");
    let (mut asked, mut answered) = (0, 0);
    while attack.try_wait().unwrap().is_none() {
        asked += 100;
        answered += good_client(&gate, 100).await;
    }
    assert!(asked >= 1_000, "{asked}");
    assert!(answered * 1_000 >= asked * 999, "{answered} of {asked} answered");
    assert!(!gate.log().contains("panicked"), "{}", gate.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_of_slowhttptest() {
    attacked_by(&["-H", "-i", "4"], "header_timeout: 5s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_of_slowhttptest() {
    attacked_by(&["-B", "-i", "4", "-s", "8192", "-x", "10"], "header_timeout: 5s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reading_of_slowhttptest() {
    attacked_by(&["-X", "-w", "1", "-y", "10", "-n", "2", "-z", "1"], "write_timeout: 2s").await;
}
