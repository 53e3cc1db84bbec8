//! What clients of HTTP/1.0, 1.1 and 2 receive, byte by byte what the origin sent, however it framed it;
//! and what an origin is told by a client of HTTP/1.0.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::streams::Server;
use crate::tls::{ONE, folder, futures_stream, trusting};
use support::servers::{Gate, Origin, eventually, origin_yaml};

const ROUTE: &str = "routes: [{ name: site }]\n";

/// Random answers that are asked for.
const ANSWERS: u64 = 3_400;

/// How an origin tells where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length,
    Chunks,
    /// Chunks, and fields after them.
    Trailers,
    /// The end of the connection, over HTTP/1.1 or 1.0.
    Close,
    Close10,
}

/// An answer that a number makes.
#[derive(Debug)]
struct Answer {
    method: &'static str,
    status: u16,
    framing: Framing,
    body: Vec<u8>,
    rng: fastrand::Rng,
}

impl Answer {
    fn of(seed: u64) -> Self {
        use Framing::{Chunks, Close, Close10, Length, Trailers};
        let mut rng = fastrand::Rng::with_seed(seed);
        let method = if rng.u8(0..6) == 0 { "HEAD" } else { "GET" };
        let status = [200, 200, 200, 200, 201, 404, 503, 204, 304][rng.usize(0..9)];
        let framing = [Length, Chunks, Chunks, Trailers, Close, Close10][rng.usize(0..6)];
        let most = [1, 100, 5_000, 70_000][rng.usize(0..4)];
        let length = rng.usize(0..most);
        let mut body = vec![0; length];
        rng.fill(&mut body);
        Self { method, status, framing, body, rng }
    }

    fn has_body(&self) -> bool {
        self.method != "HEAD" && !matches!(self.status, 204 | 304)
    }

    /// What a client has to receive.
    fn expected(&self) -> &[u8] {
        if self.has_body() { &self.body } else { b"" }
    }

    /// What the origin writes; whether the connection stays open.
    fn wire(mut self) -> (Vec<u8>, bool) {
        let version = if self.framing == Framing::Close10 { "1.0" } else { "1.1" };
        let mut out = format!("HTTP/{version} {} X\r\nX-Mark: 1\r\n", self.status).into_bytes();
        let mut closes = matches!(self.framing, Framing::Close | Framing::Close10);
        match self.framing {
            // These have no body, whatever would frame it (RFC 9110, section 6.4.1).
            _ if self.status == 204 => closes = false,
            Framing::Length => {
                out.extend_from_slice(
                    format!("Content-Length: {}\r\n", self.body.len()).as_bytes(),
                );
            }
            Framing::Chunks | Framing::Trailers => {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            }
            Framing::Close | Framing::Close10 => out.extend_from_slice(b"Connection: close\r\n"),
        }
        out.extend_from_slice(b"\r\n");
        if self.has_body() {
            match self.framing {
                Framing::Length | Framing::Close | Framing::Close10 => {
                    out.extend_from_slice(&self.body);
                }
                Framing::Chunks | Framing::Trailers => self.write_chunks(&mut out),
            }
        }
        (out, !closes)
    }

    fn write_chunks(&mut self, out: &mut Vec<u8>) {
        let mut rest = &self.body[..];
        while !rest.is_empty() {
            let size = self.rng.usize(1..=rest.len().min(9_000));
            let (chunk, after) = rest.split_at(size);
            out.extend_from_slice(format!("{size:x}\r\n").as_bytes());
            out.extend_from_slice(chunk);
            out.extend_from_slice(b"\r\n");
            rest = after;
        }
        let trailers = if self.framing == Framing::Trailers { "X-Sum: 7\r\n" } else { "" };
        out.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
    }
}

/// An origin that writes the answer whose number stands in the path, in pieces.
async fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

async fn serve(mut stream: TcpStream) -> Option<()> {
    let _ = stream.set_nodelay(true);
    let (from, mut to) = stream.split();
    let mut lines = BufReader::new(from).lines();
    loop {
        let request = lines.next_line().await.ok()??;
        while !lines.next_line().await.ok()??.is_empty() {}
        let seed: u64 = request.split(['/', ' ']).find_map(|word| word.parse().ok())?;
        let (bytes, stays) = Answer::of(seed).wire();
        let cut = fastrand::Rng::with_seed(seed).usize(1..=bytes.len());
        to.write_all(&bytes[..cut]).await.ok()?;
        tokio::task::yield_now().await;
        to.write_all(&bytes[cut..]).await.ok()?;
        if !stays {
            return None;
        }
    }
}

/// The same answers over HTTP/2, by prior knowledge.
async fn start_http2() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let service = service_fn(async |request: Request<Incoming>| {
                    let seed = request.uri().path().trim_start_matches('/').parse().unwrap();
                    Ok::<_, Infallible>(over_http2(Answer::of(seed)))
                });
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

type Frames = Vec<Result<Frame<Bytes>, Infallible>>;

fn over_http2(
    mut answer: Answer,
) -> Response<StreamBody<impl futures_core::Stream<Item = Result<Frame<Bytes>, Infallible>>>> {
    let mut head = Response::builder().status(answer.status).header("x-mark", "1");
    if answer.framing == Framing::Length && answer.status != 204 {
        head = head.header("content-length", answer.body.len());
    }
    let mut frames = Frames::new();
    let mut rest = answer.expected().to_vec();
    while !rest.is_empty() {
        let after = rest.split_off(answer.rng.usize(1..=rest.len().min(9_000)));
        frames.push(Ok(Frame::data(Bytes::from(rest))));
        rest = after;
    }
    if answer.framing == Framing::Trailers && answer.has_body() {
        frames.push(Ok(Frame::trailers(
            [("x-sum".parse().unwrap(), "7".parse().unwrap())].into_iter().collect(),
        )));
    }
    head.body(StreamBody::new(futures_stream(frames))).unwrap()
}

/// The head's lines, in lower case, and the body, as a client of HTTP/1.0 reads them.
async fn get10(port: u16, answer: &Answer, seed: u64, keeps: bool) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let connection = if keeps { "Connection: keep-alive\r\n" } else { "" };
    let head = format!("{} /{seed} HTTP/1.0\r\nHost: a\r\n{connection}\r\n", answer.method);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut came = Vec::new();
    let end = loop {
        if let Some(at) = came.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        assert!(stream.read_buf(&mut came).await.unwrap() > 0, "{seed}: {came:?}");
    };
    let head = String::from_utf8_lossy(&came[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = came.split_off(end);
    match length {
        _ if !answer.has_body() && head.contains("connection: keep-alive") => {}
        Some(length) if answer.has_body() => {
            while body.len() < length {
                assert!(stream.read_buf(&mut body).await.unwrap() > 0, "{seed}: cut");
            }
        }
        // A client that would wait for the end of a connection that stays open waits for ever.
        _ => {
            let reading = stream.read_to_end(&mut body);
            let read = tokio::time::timeout(Duration::from_secs(10), reading).await;
            read.unwrap_or_else(|_| panic!("{seed}: not closed: {head}")).unwrap();
        }
    }
    (head, body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http10_receives_what_the_origin_sent() {
    http10_receives(&origin_yaml(start().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http10_receives_what_an_origin_of_http2_sent() {
    let site = format!("{{ servers: [\"{}\"], http: 2 }}", start_http2().await);
    http10_receives(&format!("origins: {{ site: {site} }}\n")).await;
}

async fn http10_receives(origins: &str) {
    let gate = Gate::start(&format!("{origins}{ROUTE}")).await;
    let port = gate.port;
    let clients = (0..8).map(|client| {
        tokio::spawn(async move {
            let mut wrong = Vec::new();
            for seed in (0..ANSWERS).filter(|seed| seed % 8 == client) {
                let answer = Answer::of(seed);
                let (head, body) = get10(port, &answer, seed, seed % 3 == 0).await;
                let status = format!(" {} ", answer.status);
                if body != answer.expected()
                    || !head["http/1.x".len()..].starts_with(&status)
                    || head.contains("transfer-encoding")
                    || !head.contains("x-mark: 1")
                {
                    let (framing, length) = (answer.framing, answer.expected().len());
                    wrong.push(format!("{seed} {framing:?} {length}: {} {head}", body.len()));
                }
            }
            wrong
        })
    });
    nothing_is(clients.collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_receives_what_the_origin_sent() {
    let (folder, pairs) = folder(&["one.example"]);
    let policy = format!("{}{ROUTE}", origin_yaml(start().await));
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
    let clients = (0..8).map(|client| {
        // hyper checks the lengths that HTTP/2 declares.
        let http2 = trusting(&pairs[0], "one.example", to).build().unwrap();
        tokio::spawn(async move {
            let mut wrong = Vec::new();
            for seed in (0..ANSWERS).filter(|seed| seed % 8 == client) {
                let answer = Answer::of(seed);
                let url = format!("https://one.example:{}/{seed}", to.port());
                let method: reqwest::Method = answer.method.parse().unwrap();
                let came = http2.request(method, url).send().await.unwrap();
                assert_eq!(came.version(), reqwest::Version::HTTP_2);
                let (status, headers) = (came.status().as_u16(), came.headers().clone());
                let body = came.bytes().await;
                let is_right = body.as_ref().is_ok_and(|body| body == answer.expected());
                if !is_right || status != answer.status || !headers.contains_key("x-mark") {
                    let (framing, length) = (answer.framing, answer.expected().len());
                    let got = body.map(|body| body.len());
                    wrong.push(format!("{seed} {framing:?} {length}: {status} {got:?}"));
                }
            }
            wrong
        })
    });
    nothing_is(clients.collect()).await;
}

/// Waits for clients that tell what was wrong.
async fn nothing_is(clients: Vec<tokio::task::JoinHandle<Vec<String>>>) {
    let mut wrong = Vec::new();
    for client in clients {
        wrong.extend(client.await.unwrap());
    }
    let first = wrong.iter().take(3).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {ANSWERS}:\n{first}", wrong.len());
}

/// One request of HTTP/1.0 as text; the whole answer.
async fn raw10(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_secs(10), reading).await.expect("is closed").unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn an_origin_is_always_told_a_host() {
    let origin = Origin::start("site").await;
    let address = origin.address;
    let port = address.port();
    for (site, host) in [
        (format!("{{ servers: [\"{address}\"] }}"), address.to_string()),
        (format!("{{ servers: [\"localhost:{port}\"] }}"), format!("localhost:{port}")),
        (
            format!("{{ servers: [\"{address}\"], host: site.internal }}"),
            "site.internal".to_owned(),
        ),
        (format!("{{ servers: [\"{address}\"], http: 2 }}"), address.to_string()),
    ] {
        let gate = Gate::start(&format!("origins: {{ site: {site} }}\n{ROUTE}")).await;
        let answer = raw10(gate.port, "GET /old HTTP/1.0\r\n\r\n").await;
        assert!(answer.contains(" 200 ") && answer.ends_with("site"), "{site}: {answer}");
        let told = origin.seen().last().unwrap().clone();
        let authority = told.target.strip_prefix("http://").and_then(|rest| rest.split('/').next());
        let named = told.headers.get("host").map(|host| host.to_str().unwrap()).or(authority);
        assert_eq!(named, Some(&*host), "{site}");
        assert!(!told.headers.contains_key("x-forwarded-host"), "{site}: nobody named a host");
    }
}

/// Servers that refuse a request of HTTP/1.1 without a host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_take_what_came_over_http10_without_a_host() {
    for name in ["nginx", "node", "python"] {
        let server = Server::start(name).await;
        let address = SocketAddr::from(([127, 0, 0, 1], server.port));
        let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(address))).await;
        let answer = raw10(gate.port, "GET /old HTTP/1.0\r\n\r\n").await;
        assert!(answer.contains(" 200 "), "{name}: {answer}");
        assert!(!answer.to_ascii_lowercase().contains("transfer-encoding"), "{name}: {answer}");
        let seen = eventually(Duration::from_secs(5), || async {
            server
                .seen()
                .iter()
                .any(|[host, target, _]| host.contains("127.0.0.1") && target == "/old")
        });
        assert!(seen.await, "{name}: {:?}", server.seen());
    }
}

/// No interim answer goes to a client that does not know any (RFC 9110, section 15.2).
#[tokio::test]
async fn http10_is_told_no_interim_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let origin = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut chunk = [0; 4096];
        assert!(stream.read(&mut chunk).await.unwrap() > 0);
        let answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(answer).await.unwrap();
    });
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(address))).await;
    let request =
        "POST / HTTP/1.0\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab";
    let answer = raw10(gate.port, request).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
    origin.await.unwrap();
}
