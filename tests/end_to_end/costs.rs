//! Costs that the rest of an answer names: in its body, in the last event of its event stream, in its trailers; over
//! HTTP/1 and HTTP/2 to the client and to the origin; and what clients and origins do that leave early.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::tls::{ONE, folder, futures_stream, trusting};
use support::servers::{Gate, eventually, metric};

/// Asks for a path over a connection of its own, over HTTP/1, and reads until the connection closes.
async fn ask(port: u16, path: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Waits until this many units of the limit are charged and not refunded.
async fn are_spent(gate: &Gate, units: f64) {
    let spent = async || {
        let metrics = gate.metrics().await;
        let of = |name: &str| {
            metric(&metrics, &format!("tollgate_{name}_units_total{{limit=\"units\"}}"))
        };
        let refunded =
            if metrics.contains("tollgate_refunded_units_total") { of("refunded") } else { 0.0 };
        of("charged") - refunded
    };
    let is_spent = eventually(Duration::from_secs(10), || async { spent().await == units });
    assert!(is_spent.await, "{} instead of {units}", spent().await);
}

/// A client of HTTP/2 over TLS.
fn http2_client(folder: &[crate::tls::Pair], port: u16) -> reqwest::Client {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    trusting(&folder[0], "one.example", address).build().unwrap()
}

/// An origin of HTTP/1 that answers by the path, a piece of the body in each write, and keeps the heads that it read.
async fn origin() -> (std::net::SocketAddr, std::sync::Arc<parking_lot::Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let heads = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let kept = std::sync::Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let kept = std::sync::Arc::clone(&kept);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let head = String::from_utf8(head).unwrap().to_lowercase();
                let path = head.split(' ').nth(1).unwrap().to_owned();
                kept.lock().push(head);
                let _ = answer(&mut stream, &path).await;
            });
        }
    });
    (address, heads)
}

async fn answer(stream: &mut TcpStream, path: &str) -> std::io::Result<()> {
    let document = r#"{"choices":[{"text":"\"usage\":{\"n\":9}"}],"usage":{"n":40}}"#;
    let events = "data: {\"usage\":null}\n\ndata: {\"usage\":{\"n\":40}}\n\ndata: [DONE]\n\n";
    let (fields, body) = match path {
        "/json" => ("content-type: application/json", document),
        "/silent" => ("content-type: text/event-stream", ": a comment\n\n"),
        "/events" | "/hanging" => ("content-type: text/event-stream", events),
        "/gzip" => ("content-encoding: gzip", document),
        "/short" => ("content-type: application/json", r#"{"usage":{"n":40},"#),
        _ => ("content-type: application/json", "{}"),
    };
    if path == "/short" {
        // It breaks off before its length.
        let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\ncontent-length: 1000\r\n\r\n{body}");
        return stream.write_all(head.as_bytes()).await;
    }
    let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\ntransfer-encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    for piece in body.as_bytes().chunks(7) {
        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
        stream.write_all(piece).await?;
        stream.write_all(b"\r\n").await?;
        tokio::task::yield_now().await;
    }
    if matches!(path, "/hanging" | "/silent") {
        // Until the proxy closes.
        let _ = stream.read_u8().await;
        return Ok(());
    }
    stream.write_all(b"0\r\n\r\n").await?;
    // The proxy may use the connection again; this origin closes it.
    stream.shutdown().await
}

/// The end of the events as the origin writes them last: a chunk may begin in the middle of `[DONE]`.
const LAST_PIECE: &str = "ONE]";

const BODIES: &str = "
limits:
  units: { tier: exact, algorithm: fixed_window, rate: 1000/1d, key: client_ip, cost: { response_body: /usage/n, reserve: 10, max: 500 } }
routes: [{ name: r, limits: [units] }]
check: { silence: [overspend] }
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_or_the_last_event_names_the_cost() {
    let (origin, heads) = origin().await;
    let policy = format!("origins: {{ site: {{ servers: [\"{origin}\"] }} }}\n{BODIES}");
    let gate = Gate::start(&policy).await;
    let mut spent = 0.0;
    let fields = "Accept-Encoding: gzip\r\nRange: bytes=0-3\r\nIf-Range: x\r\n";
    for (path, cost) in
        [("/json", 40.0), ("/events", 40.0), ("/gzip", 10.0), ("/short", 40.0), ("/none", 10.0)]
    {
        let answer = ask(gate.port, path, fields).await;
        // Of an answer that breaks off at once, even the head may be lost.
        if path != "/short" {
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
            // The head says what is left with the reserve.
            let left = 990.0 - spent;
            assert!(answer.contains(&format!("\"units\";r={left};")), "{path}: {answer}");
        }
        spent += cost;
        are_spent(&gate, spent).await;
    }
    for head in heads.lock().iter() {
        assert!(head.contains("accept-encoding: identity\r\n"), "{head}");
        assert!(!head.contains("range:"), "{head}");
    }
    let metrics = gate.metrics().await;
    let counts = ["encoded", "incomplete", "absent", "invalid"].map(|reason| {
        let sample = format!("tollgate_unread_costs_total{{limit=\"units\",reason=\"{reason}\"}}");
        metric(&metrics, &sample)
    });
    assert_eq!(counts, [1.0, 1.0, 1.0, 0.0]);
    let logged = eventually(Duration::from_secs(5), || async {
        let log = gate.stdout();
        log.matches("\"charged\":40,").count() == 3 && log.matches("\"charged\":10,").count() == 2
    });
    assert!(logged.await, "{}", gate.stdout());
    // The same over HTTP/2.
    let (folder, pairs) = folder(&["one.example"]);
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let client = http2_client(&pairs, gate.port);
    for n in 1..=2 {
        let url = format!("https://one.example:{}/events", gate.port);
        let answer = client.get(url).send().await.unwrap();
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
        assert!(answer.text().await.unwrap().ends_with("[DONE]\n\n"));
        are_spent(&gate, 40.0 * f64::from(n)).await;
    }
}

/// Nothing is given back to a client that leaves in the middle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_pays_what_it_has_seen() {
    let (origin, _) = origin().await;
    let origins = format!("origins: {{ site: {{ servers: [\"{origin}\"] }} }}\n");
    let gate = Gate::start(&format!("{origins}{BODIES}")).await;
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    stream.write_all(b"GET /hanging HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(LAST_PIECE) {
        assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
    }
    drop(stream);
    are_spent(&gate, 40.0).await;
    // It saw no number yet.
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    stream.write_all(b"GET /silent HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert_ne!(stream.read_u8().await.unwrap(), 0);
    drop(stream);
    let sample = "tollgate_unread_costs_total{limit=\"units\",reason=\"incomplete\"}";
    let both = eventually(Duration::from_secs(10), || async {
        metric(&gate.metrics().await, sample) == 2.0
    });
    assert!(both.await, "{}", gate.metrics().await);
    are_spent(&gate, 50.0).await;
    assert_eq!(
        metric(&gate.metrics().await, "tollgate_refunded_units_total{limit=\"units\"}"),
        0.0
    );
}

/// A request is settled under the policy that judged it, whatever the file says when its answer ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_in_the_middle_of_an_answer_changes_nothing_of_its_cost() {
    let (origin, _) = origin().await;
    let policy = format!("origins: {{ site: {{ servers: [\"{origin}\"] }} }}\n{BODIES}");
    let gate = Gate::start(&policy).await;
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    stream.write_all(b"GET /hanging HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert_ne!(stream.read_u8().await.unwrap(), 0);
    let reloaded = gate.reload(&policy.replace("/usage/n", "/other"), "").await;
    assert!(matches!(reloaded, support::servers::Reloaded::Applied), "{reloaded:?}");
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(LAST_PIECE) {
        assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
    }
    drop(stream);
    are_spent(&gate, 40.0).await;
    // The next one is read by the next policy.
    let answer = ask(gate.port, "/json", "").await;
    assert!(answer.contains("\"units\";r=950;"), "{answer}");
    are_spent(&gate, 50.0).await;
}

/// An origin of HTTP/2 whose answers have a body of a length and trailers.
async fn origin_with_trailers() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = async |request: Request<Incoming>| {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-used", "40".parse().unwrap());
                let hello = Bytes::from_static(b"hello");
                let frames =
                    vec![Ok::<_, Infallible>(Frame::data(hello)), Ok(Frame::trailers(trailers))];
                let mut answer = Response::new(StreamBody::new(futures_stream(frames)));
                if request.uri().path() == "/length" {
                    answer.headers_mut().insert("content-length", "5".parse().unwrap());
                }
                Ok::<_, Infallible>(answer)
            };
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(answer)));
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trailer_names_the_cost_to_clients_of_both_versions() {
    let origin = origin_with_trailers().await;
    let policy = format!(
        "origins: {{ site: {{ servers: [\"{origin}\"], http: 2 }} }}
limits:
  units: {{ tier: exact, algorithm: fixed_window, rate: 1000/1d, key: client_ip, cost: {{ response_trailer: x-used, reserve: 10, max: 500 }} }}
routes: [{{ name: r, limits: [units] }}]
check: {{ silence: [overspend] }}
"
    );
    let plain = Gate::start(&policy).await;
    let (folder, pairs) = folder(&["one.example"]);
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let client = http2_client(&pairs, gate.port);
    let mut spent = 0.0;
    for path in ["/chunks", "/length", "/length", "/chunks"] {
        let answer = ask(plain.port, path, "").await;
        assert!(answer.contains("hello"), "{answer}");
        let url = format!("https://one.example:{}{path}", gate.port);
        let answer = client.get(url).send().await.unwrap();
        assert_eq!(answer.text().await.unwrap(), "hello");
        spent += 40.0;
        are_spent(&plain, spent).await;
        are_spent(&gate, spent).await;
    }
}
