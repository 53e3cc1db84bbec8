//! The TLS handshake of one listener.
//!
//! It agrees on TLS and a protocol with a client, and reports which certificate the client was served and which name is in
//! the client's own. Deadlines are the caller's. What must always hold: certificates, the authorities of clients and
//! ticket keys are looked up at each handshake, so a reload and a key rotation take effect without a new acceptor.

use std::sync::Arc;

use pingora::listeners::tls::Acceptor;
use pingora::protocols::l4::stream::Stream as TcpStream;
use pingora::protocols::{Ssl, Stream};
use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;

use super::certificates::{CertificateResolver, CertificateStore, ServedCertificate};
use super::client_name::CertificateName;
use super::client_verifier::{ClientVerifier, TrustedClient};
use super::listener_tickets::ListenerTickets;
use super::provider::provider;
use super::ticket_keys::TicketKeys;
use crate::http::RejectReason;
use crate::policy::ConnectionFacts;

/// Protocols offered by ALPN (RFC 7301), the preferred one first.
const ALPN_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The TLS side of a listener.
pub(crate) struct TlsAcceptor {
    acceptor: Acceptor,
    certificates: Arc<CertificateStore>,
    listener: usize,
    asks_clients: bool,
}

/// A connection after its handshake.
pub(in crate::edge) struct TlsConnection {
    pub(in crate::edge) stream: Stream,
    pub(in crate::edge) facts: ConnectionFacts,
    /// `None` where the listener has only one certificate.
    pub(in crate::edge) served: Option<ServedCertificate>,
    /// `None` where the listener asks for no certificate.
    pub(in crate::edge) client: Option<TrustedClient>,
}

impl TlsAcceptor {
    /// For the listener with this index in the configuration. `asks_clients`: every client must show a certificate.
    pub(crate) fn new(
        listener: usize,
        asks_clients: bool,
        certificates: Arc<CertificateStore>,
        keys: Arc<TicketKeys>,
    ) -> Result<Self, rustls::Error> {
        let provider = Arc::new(provider());
        let resolver = CertificateResolver { store: Arc::clone(&certificates), listener };
        let builder =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = match asks_clients {
            true => {
                let store = Arc::clone(&certificates);
                builder.with_client_cert_verifier(Arc::new(ClientVerifier { store, listener }))
            }
            false => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = ALPN_PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        if asks_clients {
            // Neither tickets nor a cache: a resumed session shows no certificate.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        } else {
            let certificates = Arc::clone(&certificates);
            config.ticketer = Arc::new(ListenerTickets { keys, certificates, listener });
        }
        Ok(Self {
            acceptor: Acceptor::from_server_config(Arc::new(config)),
            certificates,
            listener,
            asks_clients,
        })
    }

    /// Performs the handshake. The error says why the connection is closed.
    pub(in crate::edge) async fn handshake(
        &self,
        tcp: tokio::net::TcpStream,
    ) -> Result<TlsConnection, HandshakeFailure> {
        // Before the handshake: what a reload puts in force meanwhile must not count as checked.
        let client = match self.asks_clients {
            true => TrustedClient::begin(&self.certificates, self.listener),
            false => None,
        };
        let stream = self.acceptor.tls_handshake(TcpStream::from(tcp)).await;
        let stream = stream.map_err(|error| HandshakeFailure::of(&error.to_string()))?;
        let tls = stream.get_ssl();
        let name = tls.and_then(|tls| tls.server_name());
        // If a reload happens between the handshake and this line, this is the certificate that a new connection gets.
        let served = self.certificates.served(self.listener, name);
        let mut facts = ConnectionFacts::tls(name);
        if self.asks_clients {
            let shown = tls.and_then(|tls| tls.peer_certificate_der());
            let unread = HandshakeFailure::Certificate("it cannot be read".to_owned());
            let name = shown.and_then(|shown| CertificateName::read(shown).ok()).ok_or(unread)?;
            facts = facts.with_client_name(name.into_text());
        }
        Ok(TlsConnection { stream: Box::new(stream), facts, served, client })
    }
}

/// The longest cause that a log line repeats, in characters.
const MAX_CAUSE: usize = 160;

/// Why a handshake failed.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::edge) enum HandshakeFailure {
    /// Because of the client's certificate, or because it showed none; with the cause in words.
    Certificate(String),
    /// Something else.
    Other,
}

impl HandshakeFailure {
    /// The framework keeps of a cause only its text.
    fn of(error: &str) -> Self {
        let texts = ["peer sent no certificates", "invalid peer certificate"];
        match texts.iter().find_map(|text| error.find(text)) {
            // What a certificate contains may be in the text.
            Some(start) => Self::Certificate(
                error[start..].chars().filter(|c| !c.is_control()).take(MAX_CAUSE).collect(),
            ),
            None => Self::Other,
        }
    }

    /// The reason by which it is counted.
    pub(in crate::edge) const fn reason(&self) -> RejectReason {
        match self {
            Self::Certificate(_) => RejectReason::ClientCertificate,
            Self::Other => RejectReason::TlsHandshake,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::{CertificateError, Error};

    use super::*;

    /// rustls words these; another version may word them otherwise.
    #[test]
    fn failures_of_certificates_are_known_by_their_texts() {
        for error in [
            Error::NoCertificatesPresented,
            Error::InvalidCertificate(CertificateError::UnknownIssuer),
            Error::InvalidCertificate(CertificateError::BadEncoding),
            Error::InvalidCertificate(CertificateError::Expired),
        ] {
            let text = error.to_string();
            let failure = HandshakeFailure::of(&format!("TLSHandshakeFailure cause: {text}"));
            assert_eq!(failure, HandshakeFailure::Certificate(text));
        }
        let other = Error::General("other".to_owned());
        assert_eq!(HandshakeFailure::of(&other.to_string()), HandshakeFailure::Other);
        let hostile = format!("invalid peer certificate: \n{}", "x".repeat(1_000));
        let HandshakeFailure::Certificate(cause) = HandshakeFailure::of(&hostile) else {
            panic!("{hostile}");
        };
        assert!(cause.len() == MAX_CAUSE && !cause.contains('\n'), "{cause}");
    }
}
