//! Requests for hosts that the connection's certificate does not cover: 421 where another connection
//! would be the right one.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, crypto::ring::default_provider};

use crate::http2::{Anybody, Attacker, END_HEADERS, END_STREAM, HEADERS, fields, frame};
use crate::tls::{ONE, folder};
use support::servers::{Gate, Origin, metric, origin_yaml};

const ROUTE: &str =
    "routes: [{ name: r }]\nlimits_of_this_proxy: { handshakes_per_client: none }\n";

/// A certificate for each list of names, in files `0.crt`, `0.key` and so on; the `tls` of a listener
/// that has them all.
fn certificates(folder: &tempfile::TempDir, lists: &[&[&str]]) -> String {
    let mut pairs = Vec::new();
    for (n, names) in lists.iter().enumerate() {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        std::fs::write(folder.path().join(format!("{n}.crt")), certificate.pem()).unwrap();
        std::fs::write(folder.path().join(format!("{n}.key")), key.serialize_pem()).unwrap();
        pairs.push(format!("{{ certificate: {n}.crt, private_key: {n}.key }}"));
    }
    format!("tls: [{}]", pairs.join(", "))
}

/// A connection for a name, or for an address, which asks for no name.
async fn connect(port: u16, name: &'static str) -> TlsStream<TcpStream> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from(name).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
}

/// The answer to a request for a host; the connection stays open.
async fn ask(stream: &mut TlsStream<TcpStream>, host: &str) -> String {
    get(stream, "/", host).await
}

/// The answer to a request for a path of a host; the connection stays open.
pub async fn get(stream: &mut TlsStream<TcpStream>, path: &str, host: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        let length =
            text.split_once("content-length: ").and_then(|(_, rest)| rest.split_once("\r\n"));
        if let (Some((length, _)), Some(end)) = (length, text.find("\r\n\r\n"))
            && answer.len() >= end + 4 + length.parse::<usize>().unwrap()
        {
            return String::from_utf8(answer).unwrap();
        }
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "{text}");
    }
}

async fn misdirected(gate: &Gate) -> u64 {
    metric(&gate.metrics().await, "tollgate_rejected_total{reason=\"misdirected\"}") as u64
}

#[tokio::test]
async fn a_host_of_another_certificate_is_misdirected() {
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(
        &folder,
        &[&["one.example", "127.0.0.1"], &["two.example"], &["*.wild.example"]],
    );
    let policy = format!("{}{ROUTE}", origin_yaml(origin.address));
    let gate = Gate::start_in(folder, &policy, &tls).await;
    let cases = [
        ("one.example", "one.example", 200),
        ("one.example", "ONE.example:8443", 200),
        ("one.example", "one.example.", 200),
        ("one.example", "two.example", 421),
        ("one.example", "TWO.example.:8443", 421),
        ("one.example", "a.wild.example", 421),
        // No certificate covers these: no other connection would be better.
        ("one.example", "other.example", 200),
        ("one.example", "wild.example", 200),
        ("one.example", "a.b.wild.example", 200),
        ("one.example", "127.0.0.2", 200),
        ("one.example", "[::1]:8443", 200),
        ("two.example", "two.example", 200),
        ("two.example", "one.example", 421),
        ("a.wild.example", "b.wild.example", 200),
        ("a.wild.example", "one.example", 421),
        // Without a name it is the default certificate's, which has the address.
        ("two.example", "127.0.0.1", 421),
        ("127.0.0.1", "127.0.0.1", 200),
        ("127.0.0.1", "one.example", 200),
        ("127.0.0.1", "two.example", 421),
        // A name that no certificate has is served the default one.
        ("other.example", "other.example", 200),
        ("other.example", "two.example", 421),
    ];
    let (mut refused, mut served) = (0_u64, 0_usize);
    for (name, host, expected) in cases {
        let answer = ask(&mut connect(gate.port, name).await, host).await;
        let head = format!("HTTP/1.1 {expected}");
        assert!(answer.starts_with(&head), "{host} over {name}: {answer}");
        if expected == 200 {
            served += 1;
        } else {
            refused += 1;
            assert!(answer.contains("\"reason\":\"misdirected\""), "{answer}");
            assert!(answer.to_ascii_lowercase().contains("cache-control: no-store"), "{answer}");
        }
    }
    assert_eq!((misdirected(&gate).await, origin.count()), (refused, served));

    // The connection is as good as before for the hosts that it covers.
    let mut stream = connect(gate.port, "one.example").await;
    for (host, expected) in [("two.example", 421), ("one.example", 200), ("two.example", 421)] {
        let answer = ask(&mut stream, host).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{host}: {answer}");
    }
}

#[tokio::test]
async fn a_stream_for_another_certificate_is_misdirected() {
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(&folder, &[&["one.example"], &["two.example"]]);
    let policy = format!("{}{ROUTE}", origin_yaml(origin.address));
    let gate = Gate::start_in(folder, &policy, &tls).await;
    // It asks for one.example.
    let mut client = Attacker::new(gate.port).await;
    for (n, (host, expected)) in
        [("one.example", 200), ("two.example", 0), ("other.example", 200), ("one.example", 200)]
            .into_iter()
            .enumerate()
    {
        let stream = n as u32 * 2 + 1;
        let block = fields(&[
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":path", b"/"),
            (b":authority", host.as_bytes()),
        ]);
        assert!(client.write(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)).await);
        assert_eq!(client.answer(stream).await, Some(expected), "{host}");
    }
    assert_eq!((misdirected(&gate).await, origin.count()), (1, 3));
    let log = gate.stdout();
    assert!(log.contains("\"status\":421"), "{log}");
}

#[tokio::test]
async fn nobody_is_misdirected_without_a_better_connection() {
    let origin = Origin::start("site").await;
    // A private certificate whose name nobody asks for.
    let (folder, _) = folder(&["one.example"]);
    let gate =
        Gate::start_in(folder, &format!("{}{ROUTE}", origin_yaml(origin.address)), ONE).await;
    for name in ["one.example", "two.example", "127.0.0.1"] {
        for host in ["one.example", "two.example", "127.0.0.1"] {
            let answer = ask(&mut connect(gate.port, name).await, host).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{host} over {name}: {answer}");
        }
    }
    // A trusted proxy sends the requests of many over the connections it has.
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(&folder, &[&["one.example"], &["two.example"]]);
    let policy = format!(
        "{}{ROUTE}clients: {{ trusted_proxies: [127.0.0.1/32] }}\n",
        origin_yaml(origin.address)
    );
    let gate = Gate::start_in(folder, &policy, &tls).await;
    for name in ["one.example", "127.0.0.1"] {
        let answer = ask(&mut connect(gate.port, name).await, "two.example").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "over {name}: {answer}");
    }
    assert_eq!(misdirected(&gate).await, 0);
}
