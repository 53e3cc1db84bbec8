//! What an origin's TLS needs from files: the roots to trust, and the certificate that is shown.
//!
//! Files are read when a configuration is built, so that a reload sees their changes. What must always hold: a connection
//! that was made with one content of the files is never used for requests under another content. The framework keeps idle
//! connections by address and name only, so the content is part of what it keeps them by ([`OriginTlsFiles::group`]).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use pingora::protocols::tls::CaType;
use pingora::upstreams::peer::HttpPeer;
use pingora::utils::tls::{CertKey, WrappedX509};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config::Origin;

/// The content of the files that an origin's TLS names.
pub(in crate::proxy) struct OriginTlsFiles {
    roots: Option<Arc<CaType>>,
    client: Option<Arc<CertKey>>,
    /// Stands for the content; 0 if no file is named.
    group: u64,
}

impl OriginTlsFiles {
    /// Reads the files. They could be read when the configuration was checked. If one cannot be read now, no certificate
    /// is trusted or shown, so connections to this origin fail.
    pub(in crate::proxy) fn read(config: &Origin) -> Self {
        let mut files = Self { roots: None, client: None, group: 0 };
        let Some(tls) = &config.tls else {
            return files;
        };
        let mut hasher = DefaultHasher::new();
        let mut read = |file: &Path| {
            let bytes = std::fs::read(file).unwrap_or_else(|error| {
                log::error!("origin {}: cannot read {}: {error}", config.name, file.display());
                Vec::new()
            });
            bytes.hash(&mut hasher);
            bytes
        };
        files.roots = tls.ca_file.as_ref().map(|file| roots(&read(file)));
        let client = tls.client.as_ref();
        files.client = client.and_then(|client| {
            let pair = cert_key(&read(&client.certificate), &read(&client.private_key));
            if pair.is_none() {
                log::error!(
                    "origin {}: {} and {} are no certificate with its key: none is shown",
                    config.name,
                    client.certificate.display(),
                    client.private_key.display()
                );
            }
            pair
        });
        if tls.ca_file.is_some() || client.is_some() {
            // What is trusted and what is shown must not stand for each other.
            (tls.ca_file.is_some(), client.is_some()).hash(&mut hasher);
            files.group = hasher.finish().max(1);
        }
        files
    }

    /// Stands for the content of the files.
    pub(in crate::proxy) const fn group(&self) -> u64 {
        self.group
    }

    /// Lets connections to a server use the files.
    pub(super) fn apply(&self, peer: &mut HttpPeer) {
        peer.options.ca.clone_from(&self.roots);
        peer.client_cert_key.clone_from(&self.client);
        peer.group_key = self.group;
    }
}

/// Certificates to trust, from the PEM text of `ca_file`.
fn roots(pem: &[u8]) -> Arc<CaType> {
    let wrapped: Vec<WrappedX509> = CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .filter_map(|der| {
            WrappedX509::try_new(der.to_vec(), |raw| {
                X509Certificate::from_der(raw).map(|(_, certificate)| certificate)
            })
            .ok()
        })
        .collect();
    wrapped.into()
}

/// A chain and its key for the framework, which panics on what it cannot parse.
fn cert_key(chain: &[u8], key: &[u8]) -> Option<Arc<CertKey>> {
    let chain: Vec<Vec<u8>> = CertificateDer::pem_slice_iter(chain)
        .map(|der| der.ok().filter(|der| X509Certificate::from_der(der).is_ok()))
        .map(|der| der.map(|der| der.to_vec()))
        .collect::<Option<_>>()?;
    let key = PrivateKeyDer::from_pem_slice(key).ok()?.secret_der().to_vec();
    let is_usable = !chain.is_empty() && PrivateKeyDer::try_from(key.as_slice()).is_ok();
    is_usable.then(|| Arc::new(CertKey::new(chain, key)))
}
