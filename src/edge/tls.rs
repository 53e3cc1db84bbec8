//! TLS of one listener: the handshake, and what the client was served by it.

use std::sync::Arc;

use pingora::listeners::tls::Acceptor;
use pingora::protocols::l4::stream::Stream as TcpStream;
use pingora::protocols::{Ssl, Stream};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};

use super::certificates::{CertificateStore, Resolver, ServedCertificate};
use super::session_tickets::{ListenerTickets, TicketKeys};

/// What a client may agree on, the first being preferred (RFC 7301).
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The TLS side of a listener.
pub(crate) struct TlsAcceptor {
    acceptor: Acceptor,
    certificates: Arc<CertificateStore>,
    listener: usize,
}

/// ring, and the key exchange that a quantum computer does not break (X25519MLKEM768), which ring does
/// not have. A client that does not offer it agrees on one of ring's.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.kx_groups.insert(0, aws_lc_rs::kx_group::X25519MLKEM768);
    provider
}

impl TlsAcceptor {
    /// For the listener at a place of the configuration.
    pub(crate) fn new(
        listener: usize,
        certificates: Arc<CertificateStore>,
        keys: Arc<TicketKeys>,
    ) -> Result<Self, rustls::Error> {
        let provider = Arc::new(provider());
        let resolver = Resolver { store: Arc::clone(&certificates), listener };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        config.ticketer =
            Arc::new(ListenerTickets { keys, certificates: Arc::clone(&certificates), listener });
        Ok(Self {
            acceptor: Acceptor::from_server_config(Arc::new(config)),
            certificates,
            listener,
        })
    }

    /// Agrees on TLS with a client. `None`: it could not be agreed on.
    pub(crate) async fn agree(
        &self,
        tcp: tokio::net::TcpStream,
    ) -> Option<(Stream, Option<ServedCertificate>)> {
        let stream = self.acceptor.tls_handshake(TcpStream::from(tcp)).await.ok()?;
        let name = stream.get_ssl().and_then(|tls| tls.server_name());
        // After a reload in this very moment it is the certificate of a connection that is opened now.
        let served = self.certificates.served(self.listener, name);
        Some((Box::new(stream), served))
    }
}
