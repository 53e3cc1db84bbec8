//! Listeners that ask their clients for a certificate: who is let in, by which name requests are counted, and that
//! neither a session nor a connection outlives the authority that it was checked against.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{ExtendedKeyUsagePurpose, SanType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ClientConfig, HandshakeKind, SupportedProtocolVersion, crypto::ring::default_provider,
};

use crate::http2::{Anybody, END_HEADERS, END_STREAM, HEADERS, fields, frame};
use crate::misdirected::get;
use support::certificates::{Authority, Pair, dns, pair, uri};
use support::servers::{
    Gate, Origin, Reloaded, client, eventually, free_port, metric, origin_yaml,
};

const POLICY: &str = "
limits:
  calls: { tier: exact, rate: 2/1h, key: tls_client, missing_key: { deny: 403 } }
routes: [{ name: calls, limits: [calls] }]
limits_of_this_proxy: { handshakes_per_client: none }
";

const TLS: &str =
    "tls: { certificate: one.example.crt, private_key: one.example.key, client_ca: ca.pem }";

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// A client with a certificate, or without one, that remembers its sessions.
struct Client(TlsConnector);

impl Client {
    fn new(
        version: &'static SupportedProtocolVersion,
        shown: Option<&Pair>,
        alpn: &[&[u8]],
    ) -> Self {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody));
        let mut config = match shown {
            Some(pair) => {
                let (chain, key) = pair.to_der();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::in_memory_sessions(64);
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Self(TlsConnector::from(Arc::new(config)))
    }

    async fn connect(&self, port: u16, name: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        self.0.connect(ServerName::try_from(name.to_owned()).unwrap(), tcp).await
    }

    /// The status of an answer over a new connection; `None` if there is none.
    async fn status(&self, port: u16) -> Option<u16> {
        // Over TLS 1.3 a client learns with the first read that it is not let in.
        let mut stream = self.connect(port, "one.example").await.ok()?;
        let ask = b"GET / HTTP/1.1\r\nHost: one.example\r\nConnection: close\r\n\r\n";
        stream.write_all(ask).await.ok()?;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).split(' ').nth(1)?.parse().ok()
    }
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn folder(authorities: &[&Authority]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    pair("one.example").write(folder.path(), "one.example");
    write_authorities(folder.path(), authorities);
    folder
}

fn write_authorities(folder: &std::path::Path, authorities: &[&Authority]) {
    let all: String = authorities.iter().map(|authority| authority.pem.as_str()).collect();
    std::fs::write(folder.join("ca.pem"), all).unwrap();
}

async fn gate(origin: &Origin, authorities: &[&Authority]) -> Gate {
    let folder = folder(authorities);
    let policy = format!("{}{POLICY}", origin_yaml(origin.address));
    let (port, admin) = Gate::prepare(&folder, &policy, TLS);
    let mut gate = Gate::run(Arc::new(folder), port, admin, &[]);
    gate.wait_ready().await;
    gate
}

async fn refused(gate: &Gate) -> u64 {
    metric(&gate.metrics().await, "tollgate_rejected_total{reason=\"client_certificate\"}") as u64
}

#[tokio::test]
async fn only_who_shows_a_certificate_of_the_authority_is_let_in() {
    let origin = Origin::start("site").await;
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let gate = gate(&origin, &[&ours]).await;
    let server_only = |params: &mut rcgen::CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    let expired = |params: &mut rcgen::CertificateParams| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        params.not_before = rcgen::date_time_ymd(2019, 1, 1);
    };
    for version in VERSIONS {
        let before = refused(&gate).await;
        for stranger in [
            None,
            Some(other.sign(vec![dns("a.example")])),
            Some(pair("a.example")),
            Some(ours.sign_with(vec![dns("a.example")], server_only)),
            Some(ours.sign_with(vec![dns("a.example")], expired)),
        ] {
            let client = Client::new(version, stranger.as_ref(), &[]);
            assert_eq!(client.status(gate.port).await, None, "{version:?}");
        }
        assert_eq!(refused(&gate).await - before, 5, "each is counted by its reason");
        let friend = ours.sign(vec![dns(&format!("{version:?}.example").replace(' ', ""))]);
        assert_eq!(Client::new(version, Some(&friend), &[]).status(gate.port).await, Some(200));
    }
    assert_eq!(origin.count(), 2);
    // What is no TLS at all has another reason.
    let mut plain = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let _ = plain.read_to_end(&mut Vec::new()).await;
    assert_eq!(refused(&gate).await, 10);
    // The log says who and why, and no more than a few lines a second.
    let log = gate.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("the certificate of")).collect();
    assert!((3..=9).contains(&lines.len()), "{lines:?}");
    for line in &lines {
        assert!(
            line.contains(" warn ") && line.contains("the certificate of 127.0.0.1:"),
            "{line}"
        );
    }
    assert!(lines[0].ends_with("is refused: peer sent no certificates"), "{lines:?}");
    assert!(lines[1].contains("is refused: invalid peer certificate: "), "{lines:?}");
    let suppressed = "tollgate_log_suppressed_total{kind=\"client_certificate\"}";
    let suppressed = metric(&gate.metrics().await, suppressed) as usize;
    assert_eq!(lines.len() + suppressed, 10);
}

/// Each certificate of a chain may cost a check of a signature before the client has shown anything true.
#[tokio::test]
async fn a_chain_has_few_certificates() {
    let (origin, authority) = (Origin::start("site").await, Authority::new("ours"));
    let gate = gate(&origin, &[&authority]).await;
    let shown = |more: usize| {
        let mut shown = authority.sign(vec![dns("web.internal")]);
        shown.pem += &pair("another").pem.repeat(more);
        Client::new(&TLS13, Some(&shown), &[])
    };
    assert_eq!(shown(8).status(gate.port).await, Some(200));
    assert_eq!(shown(9).status(gate.port).await, None);
}

#[tokio::test]
async fn requests_are_counted_by_the_name_in_the_certificate() {
    let origin = Origin::start("site").await;
    let ours = Authority::new("ours");
    let gate = gate(&origin, &[&ours]).await;
    let client_of = |names: Vec<SanType>| Client::new(&TLS13, Some(&ours.sign(names)), &[]);
    // Two certificates of one service, then other kinds of the same word.
    for (names, expected) in [
        (vec![dns("web.example"), uri("spiffe://prod/web")], 200),
        (vec![uri("spiffe://prod/web")], 200),
        (vec![dns("other.example"), uri("spiffe://prod/web")], 429),
        (vec![dns("web.example")], 200),
        (vec![dns("WEB.example")], 200),
        (vec![dns("web.example"), dns("new.example")], 429),
        (vec![SanType::Rfc822Name("web.example".try_into().unwrap())], 200),
    ] {
        let answer = client_of(names.clone()).status(gate.port).await;
        assert_eq!(answer, Some(expected), "{names:?}");
    }
    // A certificate that names nobody has no key.
    let nobody = ours.sign_with(vec![], |params| {
        params.distinguished_name = rcgen::DistinguishedName::new();
    });
    assert_eq!(Client::new(&TLS13, Some(&nobody), &[]).status(gate.port).await, Some(403));
    let logged =
        eventually(Duration::from_secs(5), || async { gate.stdout().lines().count() >= 8 });
    assert!(logged.await, "{}", gate.stdout());
    let log = gate.stdout();
    assert!(log.contains("\"authenticated\":true"), "{log}");
    assert!(!log.contains("web.example") && !log.contains("spiffe"), "no key in the log: {log}");
}

#[tokio::test]
async fn fields_that_claim_a_certificate_are_not_believed_and_not_passed_on() {
    let origin = Origin::start("site").await;
    let ours = Authority::new("ours");
    let gate = gate(&origin, &[&ours]).await;
    let client = Client::new(&TLS13, Some(&ours.sign(vec![dns("web.example")])), &[]);
    let mut stream = client.connect(gate.port, "one.example").await.unwrap();
    let claims = "X-SSL-Client-S-DN: CN=admin\r\nX-Forwarded-Client-Cert: URI=a\r\nClient-Cert: :AA==:\r\nClient-Cert-Chain: :AA==:\r\nX-Mark: 1";
    let head =
        format!("GET / HTTP/1.1\r\nHost: one.example\r\n{claims}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    let told = origin.seen().last().unwrap().headers.clone();
    assert_eq!(told["x-mark"], "1");
    for name in told.keys() {
        assert!(!name.as_str().contains("client"), "{told:?}");
    }
}

#[tokio::test]
async fn no_session_skips_the_certificate() {
    let origin = Origin::start("site").await;
    let ours = Authority::new("ours");
    // One listener asks, the other does not; they serve the same certificate.
    let folder = folder(&[&ours]);
    let (port, admin) = Gate::prepare(&folder, "", "");
    let open = free_port();
    let plain = TLS.replace(", client_ca: ca.pem", "");
    let listeners = |first: &str| {
        format!(
            "version: 1\nlisteners:\n  - address: 127.0.0.1:{port}\n    {first}\n  - address: 127.0.0.1:{open}\n    {plain}\nadmin:\n  address: 127.0.0.1:{admin}\n{}routes: [{{ name: r }}]\nlimits_of_this_proxy: {{ drain: 200ms, handshakes_per_client: none }}\n",
            origin_yaml(origin.address)
        )
    };
    let file = folder.path().join("tollgate.yaml");
    std::fs::write(&file, listeners(TLS)).unwrap();
    let mut gate = Gate::run(Arc::new(folder), port, admin, &[]);
    gate.wait_ready().await;
    for version in VERSIONS {
        let friend = ours.sign(vec![dns("web.example")]);
        let client = Client::new(version, Some(&friend), &[]);
        for _ in 0..3 {
            let mut stream = client.connect(port, "one.example").await.unwrap();
            assert_eq!(status(&get(&mut stream, "/", "one.example").await), 200);
            let kind = stream.get_ref().1.handshake_kind();
            assert_eq!(kind, Some(HandshakeKind::Full), "{version:?}");
        }
        // A session of the listener that asks nobody, by a client that goes by the name alone.
        let stranger = Client::new(version, None, &[]);
        for (_, expected) in [(0, HandshakeKind::Full), (1, HandshakeKind::Resumed)] {
            let mut stream = stranger.connect(open, "one.example").await.unwrap();
            assert_eq!(status(&get(&mut stream, "/", "one.example").await), 200);
            assert_eq!(stream.get_ref().1.handshake_kind(), Some(expected));
        }
        assert_eq!(stranger.status(port).await, None, "{version:?}");
    }
    // A successor that no longer asks, and one that asks again: tickets made between do not help.
    let strangers = VERSIONS.map(|version| Client::new(version, None, &[]));
    for (tls, expected) in [(plain.as_str(), Some(200)), (TLS, None)] {
        std::fs::write(&file, listeners(tls)).unwrap();
        let mut new = gate.successor();
        let waits = eventually(Duration::from_secs(15), || async {
            gate.log().contains("a successor is waiting")
        });
        assert!(waits.await, "{}", gate.log());
        gate.signal("QUIT");
        assert!(gate.ended(Duration::from_secs(10)).await.is_some(), "{}", gate.log());
        new.wait_ready().await;
        gate = new;
        for stranger in &strangers {
            assert_eq!(stranger.status(port).await, expected);
        }
    }
}

#[tokio::test]
async fn an_authority_that_is_removed_admits_nobody_and_its_connections_end() {
    let origin = Origin::start("site").await;
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let gate = gate(&origin, &[&first, &second]).await;
    let of_first = first.sign(vec![dns("first.example")]);
    let of_second = second.sign(vec![dns("second.example")]);
    for version in VERSIONS {
        let names = [&of_first, &of_second].map(|pair| Client::new(version, Some(pair), &[]));
        let mut open = names[0].connect(gate.port, "one.example").await.unwrap();
        assert_ne!(status(&get(&mut open, "/", "one.example").await), 421);
        // The same authorities, read again, change nothing.
        assert_eq!(gate.hup().await, Reloaded::Applied);
        assert_ne!(status(&get(&mut open, "/", "one.example").await), 421);
        write_authorities(gate.folder.path(), &[&second]);
        assert_eq!(gate.hup().await, Reloaded::Applied);
        let answer = get(&mut open, "/", "one.example").await;
        assert!(answer.contains("\"reason\":\"client_certificate\""), "{answer}");
        assert_eq!(status(&answer), 421);
        assert_eq!(open.read(&mut [0; 1]).await.unwrap_or(0), 0, "the connection has ended");
        assert_eq!(names[0].status(gate.port).await, None, "{version:?}");
        assert!(names[1].status(gate.port).await.is_some());
        write_authorities(gate.folder.path(), &[&first, &second]);
        assert_eq!(gate.hup().await, Reloaded::Applied);
        assert!(names[0].status(gate.port).await.is_some());
    }
    // A file that cannot be used changes nothing.
    std::fs::write(gate.folder.path().join("ca.pem"), "no certificate").unwrap();
    assert_eq!(gate.hup().await, Reloaded::Refused);
    let logged = async |what: &str| {
        let shown = || async { gate.log().contains(what) };
        assert!(eventually(Duration::from_secs(5), shown).await, "{}", gate.log());
    };
    logged("ca.pem").await;
    let client = Client::new(&TLS13, Some(&first.sign(vec![dns("new.example")])), &[]);
    assert_eq!(client.status(gate.port).await, Some(200));
}

#[tokio::test]
async fn whether_clients_are_asked_is_not_reloaded() {
    let origin = Origin::start("site").await;
    let ours = Authority::new("ours");
    let gate = gate(&origin, &[&ours]).await;
    let policy = format!("{}{POLICY}", origin_yaml(origin.address));
    let without = TLS.replace(", client_ca: ca.pem", "");
    assert_eq!(gate.reload(&policy, &without).await, Reloaded::Refused);
    let told = eventually(Duration::from_secs(5), || async {
        gate.log().contains("listeners: a reload cannot change it")
    });
    assert!(told.await, "{}", gate.log());
    assert_eq!(Client::new(&TLS13, None, &[]).status(gate.port).await, None);
    // The name of the file may change.
    std::fs::copy(gate.folder.path().join("ca.pem"), gate.folder.path().join("b.pem")).unwrap();
    let renamed = TLS.replace("client_ca: ca.pem", "client_ca: b.pem");
    assert_eq!(gate.reload(&policy, &renamed).await, Reloaded::Applied);
}

#[tokio::test]
async fn http2_with_a_certificate_keeps_the_rule_for_hosts() {
    let origin = Origin::start("site").await;
    let ours = Authority::new("ours");
    let folder = folder(&[&ours]);
    pair("two.example").write(folder.path(), "two.example");
    let both = "tls: [{ certificate: one.example.crt, private_key: one.example.key, client_ca: ca.pem }, { certificate: two.example.crt, private_key: two.example.key, client_ca: ca.pem }]";
    let policy = format!("{}{POLICY}", origin_yaml(origin.address));
    let (port, admin) = Gate::prepare(&folder, &policy, both);
    let mut gate = Gate::run(Arc::new(folder), port, admin, &[]);
    gate.wait_ready().await;
    let friend = ours.sign(vec![dns("web.example")]);
    let mut stream =
        Client::new(&TLS13, Some(&friend), &[b"h2"]).connect(port, "one.example").await.unwrap();
    let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    begin.extend(frame(4, 0, 0, &[]));
    for (n, host) in ["one.example", "two.example", "one.example"].into_iter().enumerate() {
        let block = fields(&[
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":path", b"/"),
            (b":authority", host.as_bytes()),
        ]);
        begin.extend(frame(HEADERS, END_HEADERS | END_STREAM, n as u32 * 2 + 1, &block));
    }
    stream.write_all(&begin).await.unwrap();
    let answered =
        eventually(Duration::from_secs(10), || async { gate.stdout().lines().count() >= 3 });
    assert!(answered.await, "{}", gate.stdout());
    let log = gate.stdout();
    assert_eq!(log.matches("\"status\":421").count(), 1, "{log}");
    assert_eq!(log.matches("\"status\":200").count(), 2, "{log}");
    assert_eq!(origin.count(), 2);
}

#[tokio::test]
async fn a_plain_listener_has_no_such_key() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{POLICY}", origin_yaml(origin.address))).await;
    assert_eq!(client().get(gate.url("/")).send().await.unwrap().status(), 403);
    assert_eq!(origin.count(), 0);
    assert!(gate.log().contains("clients-not-asked"), "{}", gate.log());
}
