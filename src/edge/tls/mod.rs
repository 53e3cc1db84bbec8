//! TLS of the listeners: certificates, session tickets and the handshake.
//!
//! It serves each listener its own certificates, chosen by the name that a client asks for, and resumes sessions with
//! tickets instead of a session cache. Where a listener has a `client_ca`, each client shows a certificate, and no session
//! is resumed. It does not know the protocol inside TLS. What must always hold: a session is resumed only at the listener
//! whose certificate the client has seen, and no key is ever logged or written to a file.

mod acceptor;
mod certificate_files;
mod certificates;
mod client_name;
mod client_trust;
mod client_verifier;
mod listener_tickets;
mod provider;
mod ticket_keys;

pub(super) use acceptor::HandshakeFailure;
pub(crate) use acceptor::TlsAcceptor;
pub use certificate_files::ChainValidity;
pub(super) use certificates::ServedCertificate;
pub use certificates::{CertificateExpiry, CertificateFileError, CertificateStore, Certificates};
pub(super) use client_verifier::TrustedClient;
pub use ticket_keys::{NoRandomness, TicketKeys};
