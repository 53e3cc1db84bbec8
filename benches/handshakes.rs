//! What a TLS 1.3 handshake costs a server, by who computes it and by the key exchange: `cargo bench
//! --bench handshakes`. Client and server are in this process, without sockets; the processor time of
//! the server's calls is counted. The variants take turns, so that all meet the same machine.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that meets what it does not expect shall fail"
)]

use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs, ring};
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

/// Handshakes of a variant in one round, and rounds.
const HANDSHAKES: u32 = 200;
const ROUNDS: usize = 41;

struct Variant {
    name: &'static str,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    /// Processor time of one server-side handshake in each round, in nanoseconds.
    rounds: Vec<u64>,
    /// Bytes that server and client send for one.
    bytes: (usize, usize),
}

/// Processor time of this thread, in nanoseconds.
fn spent() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

fn variant(
    name: &'static str,
    provider: CryptoProvider,
    server: &[&'static dyn SupportedKxGroup],
    client: &[&'static dyn SupportedKxGroup],
) -> Variant {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["one.example".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    let private = PrivatePkcs8KeyDer::from(key.serialize_der());
    let with = |groups: &[&'static dyn SupportedKxGroup]| {
        Arc::new(CryptoProvider { kx_groups: groups.to_vec(), ..provider.clone() })
    };
    let server = ServerConfig::builder_with_provider(with(server))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private.into())
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let mut client = ClientConfig::builder_with_provider(with(client))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.resumption = rustls::client::Resumption::disabled();
    let (server, client) = (Arc::new(server), Arc::new(client));
    Variant { name, server, client, rounds: Vec::new(), bytes: (0, 0) }
}

impl Variant {
    /// One handshake; the server's processor time, in nanoseconds.
    fn handshake(&mut self) -> u64 {
        let name = ServerName::try_from("one.example").unwrap();
        let mut client = ClientConnection::new(Arc::clone(&self.client), name).unwrap();
        let mut wire = Vec::new();
        let mut cost = 0;
        let (mut from_server, mut from_client) = (0, 0);
        let began = spent();
        let mut server = ServerConnection::new(Arc::clone(&self.server)).unwrap();
        cost += spent() - began;
        while client.is_handshaking() || server.is_handshaking() {
            from_client += client.write_tls(&mut wire).unwrap();
            let began = spent();
            let mut sent = wire.as_slice();
            while !sent.is_empty() {
                server.read_tls(&mut sent).unwrap();
                server.process_new_packets().unwrap();
            }
            wire.clear();
            while server.wants_write() {
                from_server += server.write_tls(&mut wire).unwrap();
            }
            cost += spent() - began;
            let mut sent = wire.as_slice();
            while !sent.is_empty() {
                client.read_tls(&mut sent).unwrap();
                client.process_new_packets().unwrap();
            }
            wire.clear();
        }
        self.bytes = (from_server, from_client);
        cost
    }
}

fn main() {
    let classic = [ring::kx_group::X25519, ring::kx_group::SECP256R1];
    let hybrid = [aws_lc_rs::kx_group::X25519MLKEM768, ring::kx_group::X25519];
    let classic_aws = [aws_lc_rs::kx_group::X25519, aws_lc_rs::kx_group::SECP256R1];
    let hybrid_aws = [aws_lc_rs::kx_group::X25519MLKEM768, aws_lc_rs::kx_group::X25519];
    let (of_ring, of_aws) = (ring::default_provider, aws_lc_rs::default_provider);
    let mut variants = [
        variant("ring, X25519", of_ring(), &classic, &classic),
        variant("ring, X25519MLKEM768 of aws-lc", of_ring(), &hybrid, &hybrid),
        variant("the same, a client without it", of_ring(), &hybrid, &classic),
        variant("aws-lc, X25519", of_aws(), &classic_aws, &classic_aws),
        variant("aws-lc, X25519MLKEM768", of_aws(), &hybrid_aws, &hybrid_aws),
    ];
    for _ in 0..ROUNDS {
        for variant in &mut variants {
            let all: u64 = (0..HANDSHAKES).map(|_| variant.handshake()).sum();
            variant.rounds.push(all / u64::from(HANDSHAKES));
        }
    }
    for variant in &mut variants {
        variant.rounds.sort_unstable();
        let at = |part: usize| variant.rounds[(ROUNDS - 1) * part / 4] as f64 / 1_000.0;
        println!(
            "{:<32} {:6.1} us ({:.1} to {:.1}, least {:.1}) {:6.0} a second and core; {} bytes out, {} in",
            variant.name,
            at(2),
            at(1),
            at(3),
            at(0),
            1_000_000.0 / at(2),
            variant.bytes.0,
            variant.bytes.1,
        );
    }
}
