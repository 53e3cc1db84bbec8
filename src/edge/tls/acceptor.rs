//! The TLS handshake of one listener.
//!
//! It agrees on TLS and a protocol with a client, and reports which certificate the client was served. Deadlines are
//! the caller's. What must always hold: certificates and ticket keys are looked up at each handshake, so a reload and
//! a key rotation take effect without a new acceptor.

use std::sync::Arc;

use pingora::listeners::tls::Acceptor;
use pingora::protocols::l4::stream::Stream as TcpStream;
use pingora::protocols::{Ssl, Stream};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};

use super::certificates::{CertificateResolver, CertificateStore, ServedCertificate};
use super::listener_tickets::ListenerTickets;
use super::ticket_keys::TicketKeys;
use crate::policy::ConnectionFacts;

/// Protocols offered by ALPN (RFC 7301), the preferred one first.
const ALPN_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The TLS side of a listener.
pub(crate) struct TlsAcceptor {
    acceptor: Acceptor,
    certificates: Arc<CertificateStore>,
    listener: usize,
}

/// A connection after its handshake.
pub(in crate::edge) struct TlsConnection {
    pub(in crate::edge) stream: Stream,
    pub(in crate::edge) facts: ConnectionFacts,
    /// `None` where the listener has only one certificate.
    pub(in crate::edge) served: Option<ServedCertificate>,
}

/// ring, with the key exchange X25519MLKEM768 of aws-lc added, which ring does not have and which resists quantum
/// computers. Clients that do not offer it use one of ring's.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.kx_groups.insert(0, aws_lc_rs::kx_group::X25519MLKEM768);
    provider
}

impl TlsAcceptor {
    /// For the listener with this index in the configuration.
    pub(crate) fn new(
        listener: usize,
        certificates: Arc<CertificateStore>,
        keys: Arc<TicketKeys>,
    ) -> Result<Self, rustls::Error> {
        let provider = Arc::new(provider());
        let resolver = CertificateResolver { store: Arc::clone(&certificates), listener };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = ALPN_PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        config.ticketer =
            Arc::new(ListenerTickets { keys, certificates: Arc::clone(&certificates), listener });
        Ok(Self {
            acceptor: Acceptor::from_server_config(Arc::new(config)),
            certificates,
            listener,
        })
    }

    /// Performs the handshake. `None` if it fails.
    pub(in crate::edge) async fn handshake(
        &self,
        tcp: tokio::net::TcpStream,
    ) -> Option<TlsConnection> {
        let stream = self.acceptor.tls_handshake(TcpStream::from(tcp)).await.ok()?;
        let name = stream.get_ssl().and_then(|tls| tls.server_name());
        // If a reload happens between the handshake and this line, this is the certificate that a new connection gets.
        let served = self.certificates.served(self.listener, name);
        let facts = ConnectionFacts::tls(name);
        Some(TlsConnection { stream: Box::new(stream), facts, served })
    }
}
