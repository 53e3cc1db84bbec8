//! Connections that switched to another protocol: how long they may be idle, and what is logged.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use support::servers::{Gate, eventually, metric, now};
use support::wait::pause_of_a_slow_origin;

const SWITCH: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n";

const ASK: &[u8] = b"GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n";

/// What the origin does with an upgrade.
#[derive(Clone, Copy)]
enum Origin {
    /// Switches, then echoes.
    Echoes,
    /// Switches, then closes when the first bytes come.
    Closes,
    /// Switches, then sends a byte every 100 ms.
    Ticks,
    /// Does not answer.
    Hangs,
    /// Answers 200 and stops in the middle of the body.
    Stalls,
}

async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// Switches to another protocol, as an origin does.
pub async fn switch(stream: &mut TcpStream) -> std::io::Result<()> {
    // One that answers within microseconds loses a tunnel of forty to the framework (ARCHITECTURE.md).
    pause_of_a_slow_origin(Duration::from_millis(5)).await;
    stream.write_all(SWITCH).await
}

async fn serve(mut stream: TcpStream, kind: Origin) {
    if read_head(&mut stream).await.is_none() {
        return;
    }
    if matches!(kind, Origin::Echoes | Origin::Closes | Origin::Ticks) {
        let _ = switch(&mut stream).await;
    }
    match kind {
        Origin::Echoes => {
            let (mut from, mut to) = stream.split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
        }
        Origin::Closes => drop(stream.read_u8().await),
        Origin::Ticks => {
            while stream.write_all(b"x").await.is_ok() {
                pause_of_a_slow_origin(Duration::from_millis(100)).await;
            }
        }
        Origin::Hangs => drop(stream.read_u8().await),
        Origin::Stalls => {
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
                .await;
            drop(stream.read_u8().await);
        }
    }
}

async fn start(kind: Origin, timeouts: &str) -> Gate {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, kind));
        }
    });
    let site = format!("origins: {{ site: {{ servers: [\"{address}\"], timeouts: {timeouts} }} }}");
    Gate::start(&format!("{site}\nroutes: [{{ name: ws }}]\n")).await
}

async fn ask(gate: &Gate) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    let head = read_head(&mut stream).await.unwrap_or_default();
    (stream, head)
}

async fn line(gate: &Gate) -> Value {
    let one = eventually(Duration::from_secs(5), || async { gate.stdout().lines().count() == 1 });
    assert!(one.await, "{}", gate.stdout());
    serde_json::from_str(gate.stdout().trim()).unwrap()
}

async fn is_forwarded(gate: &Gate) {
    let metrics = gate.metrics().await;
    let sample = "tollgate_requests_total{route=\"ws\",outcome=\"forwarded\"}";
    assert_eq!(metric(&metrics, sample), 1.0, "{metrics}");
    let log = gate.log();
    assert!(!log.contains(" error ") && !log.contains("origin site"), "it is no error: {log}");
}

#[tokio::test]
async fn an_idle_tunnel_outlives_the_read_timeout() {
    let gate = start(Origin::Echoes, "{ read: 300ms, tunnel: 20s }").await;
    let (mut stream, head) = ask(&gate).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    for _ in 0..3 {
        // Three times as long as the origin may take for an answer.
        let mut byte = [0; 1];
        let idle = tokio::time::timeout(Duration::from_millis(900), stream.read(&mut byte)).await;
        assert!(idle.is_err(), "the tunnel was closed: {idle:?}");
        stream.write_all(b"echo").await.unwrap();
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, b"echo");
    }
    drop(stream);
    let line = line(&gate).await;
    assert_eq!(line["status"], 101, "{line}");
    assert_eq!(line["decision"], "allowed", "{line}");
    assert_eq!(line["tunnel"], "closed", "{line}");
    is_forwarded(&gate).await;
}

#[tokio::test]
async fn a_tunnel_that_is_idle_for_too_long_is_closed_and_said_to_be() {
    let gate = start(Origin::Echoes, "{ read: 10s, tunnel: 500ms }").await;
    let (mut stream, head) = ask(&gate).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    let began = now();
    let closed = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0; 1])).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(450) && took < Duration::from_secs(3), "{took:?}");
    let line = line(&gate).await;
    assert_eq!(line["status"], 101, "{line}");
    assert_eq!(line["decision"], "allowed", "{line}");
    assert_eq!(line["tunnel"], "idle", "{line}");
    is_forwarded(&gate).await;
}

/// Bytes in either direction keep it open.
#[tokio::test]
async fn a_tunnel_in_which_one_side_speaks_is_not_idle() {
    let gate = start(Origin::Ticks, "{ read: 200ms, tunnel: 500ms }").await;
    let (mut stream, _) = ask(&gate).await;
    let mut ticks = [0; 12];
    stream
        .read_exact(&mut ticks)
        .await
        .expect("ticks for more than twice as long as it may be idle");
    drop(stream);
    assert_eq!(line(&gate).await["tunnel"], "closed");

    let gate = start(Origin::Hangs, "{ read: 200ms, tunnel: 500ms }").await;
    let (_, head) = ask(&gate).await;
    assert!(head.starts_with("HTTP/1.1 504"), "no tunnel was made: {head}");
}

#[tokio::test]
async fn the_end_of_either_side_ends_the_tunnel() {
    let gate = start(Origin::Closes, "{ read: 1s, tunnel: 20s }").await;
    let (mut stream, _) = ask(&gate).await;
    stream.write_all(b"bye").await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0; 1])).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
    assert_eq!(line(&gate).await["tunnel"], "closed");
    is_forwarded(&gate).await;
}

/// What is no tunnel keeps the deadline of an answer, though it asked for one.
#[tokio::test]
async fn an_upgrade_that_is_not_granted_keeps_the_read_timeout() {
    for (kind, status) in [(Origin::Hangs, "504"), (Origin::Stalls, "200")] {
        let gate = start(kind, "{ read: 400ms, tunnel: 20s }").await;
        let began = now();
        let (mut stream, head) = ask(&gate).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest));
        assert!(ended.await.is_ok(), "{status}: it is cut");
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(350) && took < Duration::from_secs(3), "{took:?}");
        let line = line(&gate).await;
        assert_eq!(line["status"].to_string(), status, "{line}");
        assert!(line.get("tunnel").is_none(), "{line}");
        let metrics = gate.metrics().await;
        let sample = "tollgate_requests_total{route=\"ws\",outcome=\"failed\"}";
        assert_eq!(metric(&metrics, sample), 1.0, "{status}: {metrics}");
    }
}
