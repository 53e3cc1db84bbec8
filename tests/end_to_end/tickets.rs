//! TLS sessions that are resumed: after many others, a reload and a handover, and nowhere else. And the
//! key exchanges that sessions begin with.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ClientConfig, HandshakeKind, SupportedProtocolVersion, crypto::ring::default_provider,
};

use crate::http2::Anybody;
use crate::tls::{ONE, folder};
use support::servers::{Gate, Origin, Reloaded, eventually, free_port, origin_yaml};

const ROUTE: &str =
    "routes: [{ name: r }]\nlimits_of_this_proxy: { drain: 200ms, handshakes_per_client: none }\n";

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// Sessions of others between two of one client. The default of rustls forgets one after 256.
const OTHERS: usize = 10_000;

/// A client that remembers its sessions.
struct Client(TlsConnector);

impl Client {
    fn new(version: &'static SupportedProtocolVersion) -> Self {
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        config.resumption = Resumption::in_memory_sessions(8);
        Self(TlsConnector::from(Arc::new(config)))
    }

    /// How a connection came about; one request is answered on it.
    async fn connect(&self, port: u16) -> HandshakeKind {
        let tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let name = ServerName::try_from("one.example").unwrap();
        let mut stream = self.0.connect(name, tcp).await.unwrap();
        // Tickets come with the answer.
        let ask = b"GET / HTTP/1.1\r\nHost: one.example\r\nConnection: close\r\n\r\n";
        stream.write_all(ask).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        stream.get_ref().1.handshake_kind().unwrap()
    }
}

/// Handshakes without requests.
async fn others(port: u16, count: usize) {
    let client = Client::new(&TLS13);
    let name = ServerName::try_from("one.example").unwrap();
    for _ in 0..count {
        let tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        client.0.connect(name.clone(), tcp).await.unwrap();
    }
}

async fn gate(origin: &Origin) -> Gate {
    let (folder, _) = folder(&["one.example"]);
    Gate::start_in(folder, &format!("{}{ROUTE}", origin_yaml(origin.address)), ONE).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_session_is_resumed_after_many_others() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let clients = VERSIONS.map(Client::new);
    for client in &clients {
        assert_eq!(client.connect(gate.port).await, HandshakeKind::Full);
    }
    let (port, share) = (gate.port, OTHERS / 4);
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(others(port, share))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    for client in &clients {
        assert_eq!(client.connect(gate.port).await, HandshakeKind::Resumed);
    }
}

#[tokio::test]
async fn a_reload_loses_no_session() {
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    for client in VERSIONS.map(Client::new) {
        assert_eq!(client.connect(gate.port).await, HandshakeKind::Full);
        assert_eq!(gate.hup().await, Reloaded::Applied);
        assert_eq!(client.connect(gate.port).await, HandshakeKind::Resumed);
        // Nor does a certificate that is renewed for the same names.
        let (renewed, _) = folder(&["one.example"]);
        for file in ["one.example.crt", "one.example.key"] {
            std::fs::copy(renewed.path().join(file), gate.folder.path().join(file)).unwrap();
        }
        assert_eq!(gate.hup().await, Reloaded::Applied);
        assert_eq!(client.connect(gate.port).await, HandshakeKind::Resumed);
        // One for another name does.
        let (other, _) = folder(&["two.example"]);
        for kind in ["crt", "key"] {
            let from = other.path().join(format!("two.example.{kind}"));
            std::fs::copy(from, gate.folder.path().join(format!("one.example.{kind}"))).unwrap();
        }
        assert_eq!(gate.hup().await, Reloaded::Applied);
        assert_eq!(client.connect(gate.port).await, HandshakeKind::Full);
        for file in ["one.example.crt", "one.example.key"] {
            std::fs::copy(renewed.path().join(file), gate.folder.path().join(file)).unwrap();
        }
        assert_eq!(gate.hup().await, Reloaded::Applied);
    }
}

#[tokio::test]
async fn a_successor_resumes_the_sessions_of_the_process_before() {
    let origin = Origin::start("site").await;
    let mut old = gate(&origin).await;
    let clients = VERSIONS.map(Client::new);
    for client in &clients {
        assert_eq!(client.connect(old.port).await, HandshakeKind::Full);
    }
    // Twice: keys that were handed over are handed on.
    for _ in 0..2 {
        let mut new = old.successor();
        let waits = eventually(Duration::from_secs(15), || async {
            old.log().contains("a successor is waiting")
        });
        assert!(waits.await, "{}", old.log());
        old.signal("QUIT");
        assert!(old.ended(Duration::from_secs(10)).await.is_some(), "{}", old.log());
        new.wait_ready().await;
        for client in &clients {
            assert_eq!(client.connect(new.port).await, HandshakeKind::Resumed);
        }
        old = new;
    }
    // A process that takes nothing over knows no session.
    old.signal("INT");
    assert!(old.ended(Duration::from_secs(10)).await.is_some());
    let mut fresh = Gate::run(Arc::clone(&old.folder), old.port, old.admin, &[]);
    fresh.wait_ready().await;
    for client in &clients {
        assert_eq!(client.connect(fresh.port).await, HandshakeKind::Full);
    }
}

#[tokio::test]
async fn a_session_of_one_listener_is_none_of_another() {
    let origin = Origin::start("site").await;
    let (folder, _) = folder(&["one.example", "two.example"]);
    let (port, admin) = Gate::prepare(&folder, "", "");
    let other = free_port();
    let two = "tls: { certificate: two.example.crt, private_key: two.example.key }";
    let text = format!(
        "version: 1\nlisteners:\n  - address: 127.0.0.1:{port}\n    {ONE}\n  - address: \
         127.0.0.1:{other}\n    {two}\nadmin:\n  address: 127.0.0.1:{admin}\n{}{ROUTE}",
        origin_yaml(origin.address)
    );
    std::fs::write(folder.path().join("tollgate.yaml"), text).unwrap();
    let mut gate = Gate::run(Arc::new(folder), port, admin, &[]);
    gate.wait_ready().await;
    for client in VERSIONS.map(Client::new) {
        assert_eq!(client.connect(port).await, HandshakeKind::Full);
        assert_eq!(client.connect(port).await, HandshakeKind::Resumed);
        // The client, which goes by the name alone, offers its session there too.
        assert_eq!(client.connect(other).await, HandshakeKind::Full);
        assert_eq!(client.connect(other).await, HandshakeKind::Resumed);
    }
}

#[tokio::test]
async fn a_key_exchange_that_outlives_quantum_computers_is_offered() {
    use tokio_rustls::rustls::crypto::{SupportedKxGroup, aws_lc_rs, ring};
    let origin = Origin::start("site").await;
    let gate = gate(&origin).await;
    let hybrid: &dyn SupportedKxGroup = aws_lc_rs::kx_group::X25519MLKEM768;
    for offered in
        [vec![hybrid], vec![hybrid, ring::kx_group::X25519], ring::default_provider().kx_groups]
    {
        let expected = offered[0].name();
        let mut provider = default_provider();
        provider.kx_groups = offered;
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        let tcp = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
        let name = ServerName::try_from("one.example").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
        let agreed = stream.get_ref().1.negotiated_key_exchange_group().unwrap();
        assert_eq!(agreed.name(), expected);
    }
}
