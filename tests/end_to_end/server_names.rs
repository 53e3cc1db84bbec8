//! `tls_sni`: the server name of the handshake as a key, over HTTP/1, HTTP/2 and resumed sessions.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ClientConfig, HandshakeKind, SupportedProtocolVersion, crypto::ring::default_provider,
};

use crate::http2::{Anybody, Attacker, END_HEADERS, END_STREAM, HEADERS, fields, frame};
use crate::misdirected::get;
use crate::tls::{ONE, folder};
use support::servers::{Gate, Origin, client, metric, origin_yaml};

const POLICY: &str = "
limits:
  names: { tier: exact, rate: 6/1h, key: tls_sni, missing_key: { deny: 403 } }
  pages: { tier: estimate, rate: 2/1h, key: [tls_sni, path_segment:2], missing_key: { deny: 403 } }
  shards: { tier: exact, rate: 2/1h, key: { shard: tls_sni, of: 1 }, missing_key: { deny: 403 } }
routes:
  - { name: pages, match: { path: /pages/* }, limits: [pages] }
  - { name: shards, match: { path: /shards }, limits: [shards] }
  - { name: names, limits: [names] }
limits_of_this_proxy: { handshakes_per_client: none }
";

/// A client that resumes its sessions and accepts any certificate.
struct Client(TlsConnector);

impl Client {
    fn new(version: &'static SupportedProtocolVersion) -> Self {
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        config.resumption = Resumption::in_memory_sessions(64);
        Self(TlsConnector::from(Arc::new(config)))
    }

    /// A connection for a name, or for an address, which sends no name.
    async fn connect(&self, port: u16, name: &str) -> TlsStream<TcpStream> {
        let tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        self.0.connect(name, tcp).await.unwrap()
    }
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

async fn gate(origin: &Origin) -> Gate {
    let (folder, _) = folder(&["one.example"]);
    Gate::start_in(folder, &format!("{}{POLICY}", origin_yaml(origin.address)), ONE).await
}

#[tokio::test]
async fn a_server_name_is_one_key_on_every_connection_resumed_ones_too() {
    let origin = Origin::start("site").await;
    for version in [&TLS12, &TLS13] {
        let gate = gate(&origin).await;
        let client = Client::new(version);
        for (name, host, kind, expected) in [
            ("a.example", "x.example", HandshakeKind::Full, 200),
            ("a.example", "y.example", HandshakeKind::Resumed, 200),
            ("A.EXAMPLE", "a.example", HandshakeKind::Resumed, 200),
            ("a.example", "b.example", HandshakeKind::Resumed, 429),
            ("b.example", "a.example", HandshakeKind::Full, 200),
            ("127.0.0.1", "a.example", HandshakeKind::Full, 403),
            ("127.0.0.1", "a.example", HandshakeKind::Resumed, 403),
        ] {
            let mut stream = client.connect(gate.port, name).await;
            assert_eq!(stream.get_ref().1.handshake_kind(), Some(kind), "{name}, {version:?}");
            let answer = get(&mut stream, "/", host).await;
            assert_eq!(status(&answer), expected, "{host} over {name}, {version:?}: {answer}");
            let again = get(&mut stream, "/", host).await;
            assert_eq!(status(&again) == 403, expected == 403, "the connection keeps its name");
        }
    }
}

#[tokio::test]
async fn lists_and_shards_read_the_server_name() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let client = Client::new(&TLS13);
    for (name, path, expected) in [
        ("a.example", "/pages/1", 200),
        ("a.example", "/pages/1", 200),
        ("a.example", "/pages/1", 429),
        ("a.example", "/pages/2", 200),
        ("b.example", "/pages/1", 200),
        ("127.0.0.1", "/pages/1", 403),
        ("a.example", "/shards", 200),
        ("b.example", "/shards", 200),
        ("c.example", "/shards", 429),
        ("127.0.0.1", "/shards", 403),
    ] {
        let answer = get(&mut client.connect(gate.port, name).await, path, "x.example").await;
        assert_eq!(status(&answer), expected, "{path} over {name}: {answer}");
    }
}

#[tokio::test]
async fn streams_of_http2_have_the_name_of_their_connection() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    // It asks for one.example.
    let mut attacker = Attacker::new(gate.port).await;
    for n in 0..7 {
        let (stream, host) = (n * 2 + 1, format!("h{n}.example"));
        let block = fields(&[
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":path", b"/"),
            (b":authority", host.as_bytes()),
        ]);
        assert!(attacker.write(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)).await);
        let answer = attacker.answer(stream).await;
        assert_eq!(answer == Some(200), n < 6, "{host}: {answer:?}");
    }
    let denied = "tollgate_decisions_total{limit=\"names\",tier=\"exact\",verdict=\"denied\"}";
    assert_eq!(metric(&gate.metrics().await, denied), 1.0);
    let mut http1 = Client::new(&TLS13).connect(gate.port, "one.example").await;
    assert_eq!(status(&get(&mut http1, "/", "z.example").await), 429, "one count for both");
}

#[tokio::test]
async fn without_tls_there_is_no_server_name() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{POLICY}", origin_yaml(origin.address))).await;
    let answer = client().get(gate.url("/")).header("host", "one.example").send().await.unwrap();
    assert_eq!(answer.status(), 403);
    assert_eq!(origin.count(), 0);
}

#[tokio::test]
async fn servers_of_an_origin_are_chosen_by_the_server_name() {
    let (a, b) = (Origin::start("a").await, Origin::start("b").await);
    let policy = format!(
        "origins: {{ site: {{ servers: [\"{}\", \"{}\"], balance: {{ hash: tls_sni }} }} }}
routes: [{{ name: site }}]
limits_of_this_proxy: {{ handshakes_per_client: none }}
",
        a.address, b.address
    );
    let (folder, _) = folder(&["one.example"]);
    let gate = Gate::start_in(folder, &policy, ONE).await;
    let client = Client::new(&TLS13);
    let mut seen = HashSet::new();
    for n in 0..20 {
        let mut servers = HashSet::new();
        for host in ["x.example", "y.example", "z.example"] {
            let mut stream = client.connect(gate.port, &format!("n{n}.example")).await;
            let answer = get(&mut stream, "/", host).await;
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert_eq!(status(head), 200);
            servers.insert(body.to_owned());
        }
        assert_eq!(servers.len(), 1, "one name, one server");
        seen.extend(servers);
    }
    assert_eq!(seen, HashSet::from(["a".to_owned(), "b".to_owned()]), "names are spread");
}
