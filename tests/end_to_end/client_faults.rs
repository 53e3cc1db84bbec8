//! What a client does alone leaves every server in service: bodies that stall, resets, bodies that come slowly.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::http2::{Attacker, DATA, END_HEADERS, HEADERS, RST_STREAM, frame, request};
use crate::tls::{ONE, folder};
use support::servers::{Gate, metric};
use support::wait::{pause_between_arrivals, pause_of_a_slow_client};

/// How often each client does the same.
const TIMES: u32 = 20;

/// The first of the bodies that the clients announce, and their announced length.
const BEGINNING: &[u8] = b"0123456789";
const LENGTH: usize = 1_000;

/// How a server treats a request.
#[derive(Clone, Copy, Debug)]
enum Patience {
    /// It waits for the whole body and answers.
    Patient,
    /// If the body does not come within this time, it ends the exchange without an answer.
    Impatient(Duration),
    /// It waits for the whole body and never answers.
    Hangs,
}

/// A server of HTTP/1 and of HTTP/2 by prior knowledge.
async fn server(patience: Patience) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let service = service_fn(move |request| answer(request, patience));
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

async fn answer(
    request: Request<Incoming>,
    patience: Patience,
) -> Result<Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let is_waited_for = match patience {
        Patience::Impatient(time) => time,
        Patience::Patient | Patience::Hangs => Duration::from_secs(60),
    };
    timeout(is_waited_for, request.into_body().collect()).await??;
    if matches!(patience, Patience::Hangs) {
        std::future::pending::<Infallible>().await;
    }
    Ok(Response::new(Full::from("ok")))
}

/// What a client does in the middle of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Stalls,
    /// It pauses between the head and the beginning of the body, and sends no more than that.
    PausesAndStalls,
    Resets,
    /// It sends the rest in small pieces, for longer than `timeouts.read`.
    Trickles,
}

/// A client of HTTP/1. The beginning of the answer, if there was one.
async fn over_http1(port: u16, fault: Fault) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(BEGINNING).await.unwrap();
    match fault {
        Fault::Stalls | Fault::PausesAndStalls => {}
        Fault::Resets => {
            pause_of_a_slow_client(Duration::from_millis(50)).await;
            stream.set_zero_linger().unwrap();
            return String::new();
        }
        Fault::Trickles => {
            for piece in [b'x'; LENGTH - BEGINNING.len()].chunks(90) {
                pause_of_a_slow_client(Duration::from_millis(200)).await;
                let _ = stream.write_all(piece).await;
            }
        }
    }
    let mut answer = [0; 12];
    let _ = timeout(Duration::from_secs(30), stream.read_exact(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// A client of HTTP/2: whether there was an answer.
async fn over_http2(port: u16, fault: Fault) -> bool {
    let mut client = Attacker::new(port).await;
    let length = LENGTH.to_string();
    let head = request("POST", "/", &[(b"content-length", length.as_bytes())]);
    client.write(&frame(HEADERS, END_HEADERS, 1, &head)).await;
    if fault == Fault::PausesAndStalls {
        pause_of_a_slow_client(Duration::from_millis(100)).await;
    }
    client.write(&frame(DATA, 0, 1, BEGINNING)).await;
    if fault == Fault::Resets {
        pause_of_a_slow_client(Duration::from_millis(50)).await;
        client.write(&frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes())).await;
        return false;
    }
    client.answer(1).await.is_some()
}

/// Two servers of one kind, and a gate in front of them.
struct Site {
    gate: Gate,
    servers: [SocketAddr; 2],
}

impl Site {
    async fn start(patience: Patience, origin_http2: bool, client_http2: bool) -> Self {
        let servers = [server(patience).await, server(patience).await];
        let policy = format!(
            "origins:\n  site: {{ servers: [\"{}\", \"{}\"], http: {}, \
             timeouts: {{ read: 400ms }} }}\nroutes: [{{ name: r }}]\n",
            servers[0],
            servers[1],
            if origin_http2 { 2 } else { 1 }
        );
        let gate = match client_http2 {
            true => Gate::start_in(folder(&["one.example"]).0, &policy, ONE).await,
            false => Gate::start(&policy).await,
        };
        Self { gate, servers }
    }

    /// Lets a client do the same again and again, over more than the second for which no request was answered.
    async fn suffer<F: Future + Send + 'static>(&self, client: impl Fn(u16) -> F) -> Vec<F::Output>
    where
        F::Output: Send,
    {
        let mut clients = JoinSet::new();
        for _ in 0..TIMES {
            clients.spawn(client(self.gate.port));
            pause_between_arrivals(Duration::from_millis(150)).await;
        }
        clients.join_all().await
    }

    /// How many servers are in service.
    async fn in_service(&self) -> usize {
        let metrics = self.gate.metrics().await;
        let is_up = |server: &&SocketAddr| {
            let sample =
                format!("tollgate_origin_server_up{{origin=\"site\",server=\"{server}\"}}");
            metric(&metrics, &sample) == 1.0
        };
        self.servers.iter().filter(is_up).count()
    }

    /// A counter; 0 while it does not exist.
    async fn count(&self, sample: &str) -> u32 {
        let metrics = self.gate.metrics().await;
        if metrics.contains(sample) { metric(&metrics, sample) as u32 } else { 0 }
    }
}

const FAILED: &str = "tollgate_requests_total{route=\"r\",outcome=\"failed\"}";
const CUT: &str = "tollgate_rejected_total{reason=\"body_rate\"}";

#[tokio::test]
async fn a_body_that_stalls_is_answered_408_and_no_server_is_left_out() {
    let sites = [false, true].map(async |origin_http2| {
        let site = Site::start(Patience::Patient, origin_http2, false).await;
        let answers = site.suffer(|port| over_http1(port, Fault::Stalls)).await;
        assert!(answers.iter().all(|answer| answer == "HTTP/1.1 408"), "{answers:?}");
        assert_eq!(site.in_service().await, 2, "over HTTP/2: {origin_http2}");
        assert_eq!((site.count(CUT).await, site.count(FAILED).await), (TIMES, 0));
    });
    let [http1, http2] = sites;
    tokio::join!(http1, http2);
}

#[tokio::test]
async fn a_stream_whose_body_stalls_is_answered_408_and_no_server_is_left_out() {
    let (stalls, pauses) = (Fault::Stalls, Fault::PausesAndStalls);
    let sites = [(stalls, false), (stalls, true), (pauses, false), (pauses, true)];
    let sites = sites.map(async |(fault, origin_http2)| {
        let site = Site::start(Patience::Patient, origin_http2, true).await;
        site.suffer(move |port| over_http2(port, fault)).await;
        assert_eq!(site.in_service().await, 2, "{fault:?}, over HTTP/2: {origin_http2}");
        let counted = (site.count(CUT).await, site.count(FAILED).await);
        assert_eq!(counted, (TIMES, 0), "{fault:?}, over HTTP/2: {origin_http2}");
    });
    let [a, b, c, d] = sites;
    tokio::join!(a, b, c, d);
}

/// Servers have deadlines of their own for a body, and some end a connection without an answer then.
#[tokio::test]
async fn a_server_that_gives_a_stalled_body_up_is_not_left_out() {
    let sites = [(false, false), (false, true), (true, false), (true, true)];
    let sites = sites.map(async |(origin_http2, client_http2)| {
        // Before `timeouts.read` where that runs, so that the end of the exchange is what is seen.
        let patience = match client_http2 {
            true => Duration::from_millis(250),
            false => Duration::from_millis(1_500),
        };
        let site = Site::start(Patience::Impatient(patience), origin_http2, client_http2).await;
        let kind = format!("origin HTTP/2: {origin_http2}, client HTTP/2: {client_http2}");
        if client_http2 {
            site.suffer(|port| over_http2(port, Fault::Stalls)).await;
        } else {
            let answers = site.suffer(|port| over_http1(port, Fault::Stalls)).await;
            assert!(answers.iter().all(|answer| answer == "HTTP/1.1 408"), "{kind}: {answers:?}");
        }
        assert_eq!(site.in_service().await, 2, "{kind}");
    });
    let [a, b, c, d] = sites;
    tokio::join!(a, b, c, d);
}

#[tokio::test]
async fn a_client_that_resets_leaves_every_server_in_service() {
    let sites = [(false, false), (false, true), (true, false), (true, true)];
    let sites = sites.map(async |(origin_http2, client_http2)| {
        let site = Site::start(Patience::Patient, origin_http2, client_http2).await;
        match client_http2 {
            true => drop(site.suffer(|port| over_http2(port, Fault::Resets)).await),
            false => drop(site.suffer(|port| over_http1(port, Fault::Resets)).await),
        }
        assert_eq!(site.in_service().await, 2, "{origin_http2} {client_http2}");
        assert_eq!(site.count(CUT).await, 0);
    });
    let [a, b, c, d] = sites;
    tokio::join!(a, b, c, d);
}

/// The time of an origin begins when it has the whole request.
#[tokio::test]
async fn a_body_that_takes_longer_than_the_read_timeout_arrives() {
    let sites = [false, true].map(async |origin_http2| {
        let site = Site::start(Patience::Patient, origin_http2, false).await;
        let answers = site.suffer(|port| over_http1(port, Fault::Trickles)).await;
        assert!(answers.iter().all(|answer| answer == "HTTP/1.1 200"), "{answers:?}");
        assert_eq!(site.in_service().await, 2, "over HTTP/2: {origin_http2}");
    });
    let [http1, http2] = sites;
    tokio::join!(http1, http2);
}

/// Fields of HTTP/1 that HTTP/2 forbids, and a `TE` that it restricts (RFC 9113, section 8.2.2).
#[tokio::test]
async fn fields_that_an_origin_of_http2_may_not_see_leave_every_server_in_service() {
    let site = Site::start(Patience::Patient, true, false).await;
    for field in ["TE: gzip", "TE: trailers, gzip", "Keep-Alive: 5", "Proxy-Connection: x"] {
        let ask = move |port| async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            let _ = timeout(Duration::from_secs(5), stream.read_exact(&mut answer)).await;
            String::from_utf8_lossy(&answer).into_owned()
        };
        let answers = site.suffer(ask).await;
        assert!(answers.iter().all(|answer| answer == "HTTP/1.1 200"), "{field}: {answers:?}");
        assert_eq!(site.in_service().await, 2, "{field}");
    }
}

/// With the whole request, the silence of a server is its own.
#[tokio::test]
async fn a_server_that_hangs_after_the_whole_body_is_left_out() {
    let sites = [false, true].map(async |origin_http2| {
        let site = Site::start(Patience::Hangs, origin_http2, false).await;
        let post = |port| async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nwhole";
            stream.write_all(request).await.unwrap();
            let mut answer = [0; 12];
            let _ = timeout(Duration::from_secs(5), stream.read_exact(&mut answer)).await;
            String::from_utf8_lossy(&answer).into_owned()
        };
        let answers = site.suffer(post).await;
        assert!(answers.iter().all(|answer| answer == "HTTP/1.1 504"), "{answers:?}");
        assert_eq!(site.in_service().await, 0, "over HTTP/2: {origin_http2}");
    });
    let [http1, http2] = sites;
    tokio::join!(http1, http2);
}
