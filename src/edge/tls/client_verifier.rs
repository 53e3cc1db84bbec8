//! The check of clients' certificates at a listener with `client_ca`.
//!
//! The authorities are replaced with the certificates at a reload, so they are looked up at each handshake. Sessions are
//! not resumed at such a listener: a resumed session would show no certificate, and so would outlive the certificate and
//! the authority that it began with. It does not know what a certificate is used for. What must always hold: a request
//! is served only while the authorities that its connection was checked against are in force.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::certificates::CertificateStore;
use super::client_name::CertificateName;
use super::client_trust::ClientTrust;

/// The most certificates that a client may show in addition to its own. Chains have one or two. Each may cost a check of a
/// signature, about 80 us, before the client has shown anything true.
const MAX_INTERMEDIATES: usize = 8;

/// A connection whose client showed a certificate, with the authorities that it was checked against.
#[derive(Debug)]
pub(in crate::edge) struct TrustedClient {
    store: Arc<CertificateStore>,
    listener: usize,
    trust: Arc<ClientTrust>,
}

impl TrustedClient {
    /// What a handshake that begins now is checked against, or against what replaces it meanwhile.
    pub(super) fn begin(store: &Arc<CertificateStore>, listener: usize) -> Option<Self> {
        let trust = store.client_trust(listener)?;
        Some(Self { store: Arc::clone(store), listener, trust })
    }

    /// Whether a reload has replaced the authorities since.
    pub(in crate::edge) fn is_outdated(&self) -> bool {
        let now = self.store.client_trust(self.listener);
        now.is_none_or(|now| !now.is_same(&self.trust))
    }
}

/// Verifies the certificates of clients, for rustls. It always asks for one.
pub(super) struct ClientVerifier {
    pub(super) store: Arc<CertificateStore>,
    /// The listener's index.
    pub(super) listener: usize,
}

impl ClientVerifier {
    /// The present authorities; a listener that lost them accepts nobody.
    fn trust(&self) -> Result<Arc<ClientTrust>, Error> {
        let trust = self.store.client_trust(self.listener);
        trust.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))
    }
}

impl ClientCertVerifier for ClientVerifier {
    /// Empty, so that clients show whatever they have: the list cannot change with a reload.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() > MAX_INTERMEDIATES {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        }
        let verified = self.trust()?.verifier.verify_client_cert(end_entity, intermediates, now)?;
        // The framework panics on a certificate that its parser does not read, and a name must have one reading.
        match CertificateName::read(end_entity) {
            Ok(_) => Ok(verified),
            Err(_) => Err(Error::InvalidCertificate(CertificateError::BadEncoding)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust()?.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust()?.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust().map(|trust| trust.verifier.supported_verify_schemes()).unwrap_or_default()
    }
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientVerifier").field("listener", &self.listener).finish_non_exhaustive()
    }
}
