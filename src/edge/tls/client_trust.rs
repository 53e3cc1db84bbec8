//! The authorities that sign the certificates of a listener's clients (`client_ca`).
//!
//! They are read with the listener's own certificates. It does not know listeners or handshakes. What must always hold:
//! two sets of authorities are equal only if they hold the same certificates.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ring::digest::{self, SHA256_OUTPUT_LEN};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::provider::provider;

/// The authorities of one listener's clients.
#[derive(Debug)]
pub(super) struct ClientTrust {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// Identifies the authorities, whatever the file is called.
    fingerprint: [u8; SHA256_OUTPUT_LEN],
}

impl ClientTrust {
    /// Reads the PEM file of `client_ca`.
    pub(super) fn read(file: &Path) -> Result<Arc<Self>, String> {
        let in_file = |error: &dyn fmt::Display| format!("{}: {error}", file.display());
        let certificates = CertificateDer::pem_file_iter(file)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| in_file(&error))?;
        let (mut roots, mut digest) =
            (RootCertStore::empty(), digest::Context::new(&digest::SHA256));
        for certificate in certificates {
            digest.update(&(certificate.len() as u64).to_be_bytes());
            digest.update(&certificate);
            roots.add(certificate).map_err(|error| in_file(&error))?;
        }
        // Fails if there is no certificate.
        let (roots, provider) = (Arc::new(roots), Arc::new(provider()));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|error| in_file(&error))?;
        let mut fingerprint = [0; SHA256_OUTPUT_LEN];
        fingerprint.copy_from_slice(digest.finish().as_ref());
        Ok(Arc::new(Self { verifier, fingerprint }))
    }

    /// Whether both hold the same authorities.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}
