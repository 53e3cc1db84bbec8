//! `RequestLimit` in a Pingora proxy, as an outsider writes one: clients that leave, answers of the proxy itself, the end of
//! the server. The proxy runs in the test's process, over HTTP/1 and HTTP/2 without TLS.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::StatusCode;
use pingora::apps::{HttpServerOptions, ServerApp};
use pingora::http::ResponseHeader;
use pingora::prelude::*;
use pingora::protocols::l4::stream::Stream;
use pingora::server::configuration::ServerConf;
use pingora::services::background::BackgroundService;
use pingora_proxy::{HttpProxy, ProxyHttp, Session, subrequest};
use support::servers::Origin;
use support::wait::{eventually, pause_of_a_slow_client, virtual_time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tollgate::Limiter;
use tollgate::clock::{ManualClock, Nanos};
use tollgate::plugin::RequestLimit;

/// What the proxy does with a request that passed, by the first segment of its path:
/// `/local/STATUS` it answers itself; `/error/STATUS` it ends with an error; `/silent` it ends without an answer;
/// `/echo` it answers with the request's body. Everything else goes to the origin.
struct MyProxy {
    limiter: Limiter,
    origin: SocketAddr,
}

#[async_trait]
impl ProxyHttp for MyProxy {
    type CTX = RequestLimit;

    fn new_ctx(&self) -> RequestLimit {
        RequestLimit::default()
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut RequestLimit) -> Result<bool> {
        if ctx.request_filter(&self.limiter, session).await? {
            return Ok(true);
        }
        let path = session.req_header().uri.path().to_owned();
        let mut segments = path.trim_start_matches('/').split('/');
        let (kind, status) = (segments.next().unwrap_or_default(), segments.next());
        let status: u16 = status.and_then(|status| status.parse().ok()).unwrap_or(200);
        match kind {
            "local" => {
                let mut head = ResponseHeader::build(status, None)?;
                head.insert_header("content-length", "0")?;
                session.write_response_header(Box::new(head), true).await?;
            }
            "error" => return Error::e_explain(HTTPStatus(status), "the proxy refuses"),
            "silent" => session.set_keepalive(None),
            "echo" => {
                let mut body = Vec::new();
                while let Some(chunk) = session.read_request_body().await? {
                    body.extend_from_slice(&chunk);
                }
                let mut head = ResponseHeader::build(200, None)?;
                head.insert_header("content-length", body.len())?;
                session.write_response_header(Box::new(head), false).await?;
                session.write_response_body(Some(body.into()), true).await?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    async fn response_filter(
        &self,
        _: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut RequestLimit,
    ) -> Result<()> {
        ctx.response_filter(response)
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut RequestLimit) {
        ctx.logging(session, error);
    }

    async fn upstream_peer(&self, _: &mut Session, _: &mut RequestLimit) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.origin, false, String::new())))
    }
}

/// A limiter on a manual clock, with one exact limit.
fn limiter(limit: &str) -> Limiter {
    let policy = format!(
        "version: 1\nlimits: {{ site: {{ tier: exact, key: client_ip, {limit} }} }}\n\
         routes: [{{ name: pages, limits: [site] }}]\n"
    );
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_700_000_000)));
    Limiter::builder().policy_text(policy).clock(clock).build().unwrap()
}

/// Serves the proxy on a port of loopback until the runtime ends.
async fn serve(limiter: &Limiter, origin: SocketAddr) -> SocketAddr {
    let my_proxy = MyProxy { limiter: limiter.clone(), origin };
    let mut proxy = HttpProxy::new(my_proxy, Arc::new(ServerConf::default()));
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    proxy.server_options = Some(options);
    proxy.handle_init_modules();
    let proxy = Arc::new(proxy);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (_running, shutdown) = watch::channel(false);
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (proxy, shutdown) = (Arc::clone(&proxy), shutdown.clone());
            tokio::spawn(async move {
                let mut stream = Some(Box::new(Stream::from(stream)) as pingora::protocols::Stream);
                while let Some(next) = stream.take() {
                    stream = proxy.process_new(next, &shutdown).await;
                }
            });
        }
    });
    address
}

/// Where nobody listens.
async fn dead_origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

fn http2() -> reqwest::Client {
    reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap()
}

fn http1() -> reqwest::Client {
    reqwest::Client::builder().http1_only().no_proxy().build().unwrap()
}

async fn soon(limiter: &Limiter, delayed: usize) -> bool {
    let patience = Duration::from_secs(10);
    eventually(patience, || async { limiter.metrics().delayed == delayed }).await
}

/// The first request passes, the second waits for a minute.
const SLOW: &str = "algorithm: leaky_bucket, rate: 1/1m, max_delay: 2m";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_it_waits_is_not_forwarded() {
    let origin = Origin::start("site").await;
    for (client, with_body) in [(http1(), false), (http2(), false), (http2(), true)] {
        let limiter = limiter(SLOW);
        let address = serve(&limiter, origin.address).await;
        let url = format!("http://{address}/");
        let before = origin.count();
        assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
        let mut request = client.post(&url);
        if with_body {
            request = request.body("body");
        }
        let waiting = tokio::spawn(request.send());
        assert!(soon(&limiter, 1).await, "it waits");
        waiting.abort();
        assert!(soon(&limiter, 0).await, "it is noticed: body {with_body}");
        assert_eq!(origin.count(), before + 1, "it is not forwarded");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delay_loses_no_byte_of_a_body() {
    for client in [http1(), http2()] {
        let limiter = limiter("algorithm: leaky_bucket, rate: 5/s, max_delay: 2s");
        let address = serve(&limiter, dead_origin().await).await;
        for body in ["", "a", "a longer body", &"x".repeat(300_000)] {
            let request = client.post(format!("http://{address}/echo")).body(body.to_owned());
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), 200);
            assert!(answer.text().await.unwrap() == body, "{} bytes", body.len());
        }
    }
}

/// Whether the charge of a request to `path` is given back, for a limit with one unit an hour.
async fn is_refunded(limit: &str, path: &str) -> bool {
    let limiter = limiter(limit);
    let address = serve(&limiter, dead_origin().await).await;
    // A silent proxy gives no answer, which is an error of the client.
    let _ = http1().get(format!("http://{address}{path}")).send().await;
    let settled = || async {
        let answer = http1().get(format!("http://{address}/local/299")).send().await;
        answer.unwrap().status() != StatusCode::TOO_MANY_REQUESTS
    };
    // The client may have its answer before the phase `logging`.
    eventually(Duration::from_millis(300), settled).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_settled_by_the_status_that_was_written() {
    let count = "rate: 1/1h, count: { status: [401] }";
    let refund = "rate: 1/1h, refund: { status: [403, 502] }";
    let reserve = "rate: 9/1h, algorithm: token_bucket, cost: { response_header: x-cost, reserve: 9, max: 9 }";
    let rows = [
        (count, "/local/200", true),
        (count, "/local/403", true),
        (count, "/local/401", false),
        (count, "/error/403", true),
        (count, "/error/401", false),
        (refund, "/local/403", true),
        (refund, "/local/200", false),
        (refund, "/error/403", true),
        (refund, "/error/503", false),
        // No origin was asked, so nothing of the reserve was used.
        (reserve, "/local/403", true),
        // Nothing was written: as 502 of a proxy whose origin did not answer.
        (refund, "/silent", true),
        (count, "/silent", false),
        // An origin that does not answer.
        (refund, "/", true),
        (count, "/", false),
    ];
    for (limit, path, expected) in rows {
        assert_eq!(is_refunded(limit, path).await, expected, "{limit}: {path}");
    }
}

/// Pingora's signal comes when shutdown begins, and requests continue for minutes.
#[tokio::test(start_paused = true)]
async fn the_background_work_goes_on_while_the_server_drains() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, "version: 1\nroutes: [{ name: site }]\n").unwrap();
    let limiter = Limiter::builder().policy_file(&file).reload_on_change().build().unwrap();
    let (shutdown, watched) = watch::channel(false);
    let task = limiter.background().task();
    let running = tokio::spawn(async move { task.start(watched).await });
    virtual_time(Duration::from_secs(1)).await;
    shutdown.send(true).unwrap();
    virtual_time(Duration::from_secs(1)).await;
    let next = "version: 1\nlimits: { new: { tier: exact, rate: 1/1m, key: client_ip } }\n\
                routes: [{ name: site, limits: [new] }]\n";
    std::fs::write(&file, next).unwrap();
    virtual_time(Duration::from_secs(5)).await;
    assert_eq!(limiter.metrics().limits.len(), 1, "the changed file is in force");
    assert!(!running.is_finished());
}

/// A cache that fetches anew in the background asks with the head of a client that was judged already.
#[tokio::test]
async fn a_subrequest_is_not_judged_a_second_time() {
    let limiter = limiter("rate: 1/1h");
    for is_subrequest in [true, true, false] {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").await.unwrap();
        let mut session = Session::new_h1(Box::new(server));
        assert!(session.read_request().await.unwrap());
        session.subrequest_ctx =
            is_subrequest.then(|| Box::new(subrequest::Ctx::builder().build()));
        let mut limit = RequestLimit::default();
        assert!(!limit.request_filter(&limiter, &mut session).await.unwrap());
        assert_eq!(limit.judged().is_none(), is_subrequest);
        limit.logging(&session, None);
    }
    assert_eq!(limiter.metrics().limits[0].verdicts.allowed, 1);
}

/// A limiter whose only unit is spent.
async fn spent() -> (Limiter, SocketAddr) {
    let limiter = limiter("rate: 1/1h");
    let address = serve(&limiter, dead_origin().await).await;
    let answer = http1().get(format!("http://{address}/local/200")).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    (limiter, address)
}

/// Many clients write all before they read, and take a failed write for a failed request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_upload_can_write_a_bounded_part_and_sees_its_answer() {
    let (_limiter, address) = spent().await;
    let (mut from, mut to) = TcpStream::connect(address).await.unwrap().into_split();
    let head = "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100000\r\n\r\n";
    to.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..30 {
        to.write_all(&[b'x'; 1_000]).await.unwrap();
        pause_of_a_slow_client(Duration::from_millis(10)).await;
    }
    let mut answer = String::new();
    from.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    assert!(answer.contains("quota-exceeded"), "the body too: {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_keeps_the_connection_if_nothing_is_unread_and_the_request_is_valid() {
    let (_limiter, address) = spent().await;
    let last = "GET /last HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    let rows = [
        ("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", 2),
        ("HEAD / HTTP/1.1\r\nHost: a.example\r\n\r\n", 2),
        ("GET / HTTP/1.0\r\nHost: a.example\r\n\r\n", 1),
        ("GET /a%00b HTTP/1.1\r\nHost: a.example\r\n\r\n", 1),
        ("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\n\r\n", 1),
        (
            "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n",
            1,
        ),
    ];
    for (first, expected) in rows {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(first.as_bytes()).await.unwrap();
        // The head of the first answer, so that the second request is not pipelined.
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        let _ = stream.write_all(last.as_bytes()).await;
        // A connection that was closed may be reset by the second request.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert_eq!(answer.matches("HTTP/1.1 4").count(), expected, "{first}: {answer}");
        assert!(!first.starts_with("HEAD") || answer.matches("quota-exceeded").count() == 1);
    }
}
