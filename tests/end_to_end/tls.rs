//! TLS at the door and towards an origin: HTTP/2 by ALPN, certificates by name, gRPC.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_rustls::rustls;

use crate::limiting::hammer;
use support::certificates::pair;
pub use support::certificates::{ONE, Pair, folder, trusting};
use support::servers::{Gate, Origin, Reloaded, eventually, metric, origin_yaml};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_http2_connection_gets_exactly_its_limit() {
    let origin = Origin::start("site").await;
    let (folder, pairs) = folder(&["one.example"]);
    let policy = format!(
        "{}
limits:
  writes: {{ tier: exact, algorithm: token_bucket, rate: 500/1h, key: header:x-api-key, missing_key: deny }}
routes: [{{ name: api, limits: [writes] }}]
",
        origin_yaml(origin.address)
    );
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
    let client = trusting(&pairs[0], "one.example", to).build().unwrap();
    let url = format!("https://one.example:{}/x", gate.port);
    let first = client.get(&url).header("x-api-key", "other").send().await.unwrap();
    assert_eq!(first.version(), reqwest::Version::HTTP_2);
    assert_eq!(
        first.headers()["ratelimit"].to_str().unwrap().split(';').next(),
        Some("\"writes\"")
    );
    let (allowed, limited) = hammer(&client, &url, 64, 1_500).await;
    assert_eq!((allowed, limited), (500, 1_000));
    assert_eq!(origin.count(), 501);
    assert_eq!(origin.seen()[0].headers["x-forwarded-proto"], "https");
    assert_eq!(origin.seen()[0].headers["host"], format!("one.example:{}", gate.port));
    let http1 = trusting(&pairs[0], "one.example", to).http1_only().build().unwrap();
    let answer = http1.get(&url).header("x-api-key", "hot").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (429, reqwest::Version::HTTP_11));
    let body = client
        .post(&url)
        .header("x-api-key", "hot")
        .body("x".repeat(100_000))
        .send()
        .await
        .unwrap();
    assert_eq!(body.status(), 429);
    assert!(body.text().await.unwrap().contains("quota-exceeded"));
}

#[tokio::test]
async fn an_idle_http2_connection_is_closed_in_time() {
    let origin = Origin::start("site").await;
    let (folder, pairs) = folder(&["one.example"]);
    let policy = format!(
        "{}routes: [{{ name: site }}]\nlimits_of_this_proxy: {{ idle_timeout: 1s }}\n",
        origin_yaml(origin.address)
    );
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
    let client = trusting(&pairs[0], "one.example", to).build().unwrap();
    let answer = client.get(format!("https://one.example:{}/", gate.port)).send().await.unwrap();
    assert_eq!(answer.version(), reqwest::Version::HTTP_2);
    drop(answer.bytes().await);
    // The client would keep it for a minute and a half.
    let closed = eventually(std::time::Duration::from_secs(5), || async {
        metric(&gate.metrics().await, "tollgate_connections") == 0.0
    });
    assert!(closed.await);
    drop(client);
}

#[tokio::test]
async fn certificates_are_chosen_by_name_and_reload() {
    let origin = Origin::start("site").await;
    let (folder, pairs) = folder(&["one.example", "two.example"]);
    let both = "tls: [{ certificate: one.example.crt, private_key: one.example.key }, { certificate: two.example.crt, private_key: two.example.key }]";
    let policy = format!("{}routes: [{{ name: site }}]\n", origin_yaml(origin.address));
    let gate = Gate::start_in(folder, &policy, both).await;
    let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
    let get = async |pair: &Pair, name: &str| {
        let client = trusting(pair, name, to).build().unwrap();
        client.get(format!("https://{name}:{}/", gate.port)).send().await
    };
    assert_eq!(get(&pairs[0], "one.example").await.unwrap().status(), 200);
    assert_eq!(get(&pairs[1], "two.example").await.unwrap().status(), 200);
    assert!(get(&pairs[0], "two.example").await.is_err(), "two has a certificate of its own");
    let next = pair("two.example");
    std::fs::write(gate.folder.path().join("two.example.crt"), &next.pem).unwrap();
    assert_eq!(gate.hup().await, Reloaded::Refused, "a certificate without its key");
    assert_eq!(get(&pairs[1], "two.example").await.unwrap().status(), 200);
    std::fs::write(gate.folder.path().join("two.example.key"), &next.key).unwrap();
    assert_eq!(gate.hup().await, Reloaded::Applied);
    assert_eq!(get(&next, "two.example").await.unwrap().status(), 200);
    assert!(get(&pairs[1], "two.example").await.is_err(), "the old one is gone");
}

/// A TLS origin that speaks HTTP/2 and answers with trailers, as gRPC does.
async fn grpc_origin(pair: &Pair) -> SocketAddr {
    use rustls::pki_types::pem::PemObject;
    let certificate =
        rustls::pki_types::CertificateDer::from_pem_slice(pair.pem.as_bytes()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(|request: Request<hyper::body::Incoming>| async {
                    let kind = request.headers()["content-type"].clone();
                    let body = request.into_body().collect().await?.to_bytes();
                    let mut trailers = hyper::HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    let frames: Vec<Result<Frame<Bytes>, std::convert::Infallible>> =
                        vec![Ok(Frame::data(body)), Ok(Frame::trailers(trailers))];
                    let body = StreamBody::new(futures_stream(frames));
                    Ok::<_, hyper::Error>(
                        Response::builder().header("content-type", kind).body(body).unwrap(),
                    )
                });
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

pub fn futures_stream<T>(items: Vec<T>) -> impl futures_core::Stream<Item = T> {
    let mut items = items.into_iter();
    futures_util::stream::poll_fn(move |_| std::task::Poll::Ready(items.next()))
}

#[tokio::test]
async fn grpc_passes_over_tls_with_its_trailers() {
    let (folder, pairs) = folder(&["one.example", "grpc.internal"]);
    let origin = grpc_origin(&pairs[1]).await;
    let policy = format!(
        "origins:
  site:
    servers: [\"{origin}\"]
    tls: {{ sni: grpc.internal, ca_file: grpc.internal.crt }}
    http: 2
limits: {{ calls: {{ tier: exact, rate: 1/1h, key: client_ip }} }}
routes: [{{ name: grpc, limits: [calls] }}]
"
    );
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
    let client = trusting(&pairs[0], "one.example", to).http2_prior_knowledge().build().unwrap();
    let call = || {
        client
            .post(format!("https://one.example:{}/pkg.Service/Call", gate.port))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(&b"\0\0\0\0\x02hi"[..])
            .send()
    };
    let answer = call().await.unwrap();
    assert_eq!(answer.status(), 200, "{}", gate.log());
    assert_eq!(answer.headers()["content-type"], "application/grpc");
    let whole = http::Response::from(answer).into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(whole.to_bytes(), &b"\0\0\0\0\x02hi"[..]);
    assert_eq!(call().await.unwrap().status(), 429);
}
