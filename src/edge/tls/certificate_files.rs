//! Reads a certificate chain with its key, and the names that the certificate covers.
//!
//! It does not know listeners. What must always hold: a certificate and a key that do not belong together are refused,
//! and an error names the file.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use hashbrown::HashSet;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The subject alternative names of a certificate.
#[derive(Debug, Default)]
pub(super) struct AlternativeNames {
    /// Lower case; `*.example.com` is stored as `.example.com`.
    pub(super) names: HashSet<String>,
    pub(super) addresses: Vec<IpAddr>,
}

impl AlternativeNames {
    /// The names of the first certificate of a chain. The subject's common name does not count (RFC 6125, section
    /// 6.4.4): clients ignore it.
    pub(super) fn of(key: &CertifiedKey) -> Self {
        let mut all = Self::default();
        let Some(Ok((_, certificate))) = key.cert.first().map(|der| X509Certificate::from_der(der))
        else {
            return all;
        };
        let Ok(Some(extension)) = certificate.subject_alternative_name() else {
            return all;
        };
        for name in &extension.value.general_names {
            match name {
                GeneralName::DNSName(name) => {
                    let name = name.to_ascii_lowercase();
                    let stored = name.strip_prefix('*').map_or_else(|| name.clone(), str::to_owned);
                    // A lone asterisk covers no host.
                    if !stored.is_empty() {
                        all.names.insert(stored);
                    }
                }
                GeneralName::IPAddress(bytes) => all.addresses.extend(parse_address(bytes)),
                _ => {}
            }
        }
        all
    }
}

/// From when to when all certificates of a chain are valid, in seconds since the Unix epoch. Clients refuse the chain at
/// other times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainValidity {
    /// The latest beginning.
    pub not_before: i64,
    /// The earliest end.
    pub not_after: i64,
}

impl ChainValidity {
    /// Of the certificates in a PEM text; `None` if there are none.
    pub fn of_pem(pem: &[u8]) -> Option<Self> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect();
        Self::of(&chain)
    }

    pub(super) fn of(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let certificates = chain.iter().filter_map(|der| X509Certificate::from_der(der).ok());
        let each = certificates.map(|(_, certificate)| Self {
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        });
        each.reduce(|all, next| Self {
            not_before: all.not_before.max(next.not_before),
            not_after: all.not_after.min(next.not_after),
        })
    }
}

/// Four bytes or sixteen (RFC 5280, section 4.2.1.6).
fn parse_address(bytes: &[u8]) -> Option<IpAddr> {
    let ipv4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    ipv4.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}

/// Reads the PEM files of a certificate chain and its private key.
pub(super) fn read_certified_key(chain: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let chain_error = |error: &dyn fmt::Display| format!("{}: {error}", chain.display());
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| chain_error(&error))?;
    if certificates.is_empty() {
        return Err(chain_error(&"holds no certificate"));
    }
    let key_error = |error: &dyn fmt::Display| format!("{}: {error}", key.display());
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| key_error(&error))?;
    let signing = any_supported_type(&private).map_err(|error| key_error(&error))?;
    let certified = CertifiedKey::new(certificates, signing);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(certified)
        }
        Err(error) => Err(format!("{} and {}: {error}", chain.display(), key.display())),
    }
}
