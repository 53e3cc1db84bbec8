//! The certificates of the listeners, chosen by the name that a client asks for and replaced at a reload.
//!
//! It also decides whether a request came over a connection that was served the wrong certificate. It does not know
//! handshakes or requests. What must always hold: the certificates of all listeners are replaced at once, and a
//! connection is judged by the certificates of its handshake.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use ring::digest::{self, SHA256_OUTPUT_LEN};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::certificate_files::{AlternativeNames, ChainValidity, read_certified_key};
use super::client_trust::ClientTrust;
use crate::config::Listener;

/// The certificates of all listeners, by the listener's index in the configuration.
#[derive(Debug, Default)]
pub struct CertificateStore {
    listeners: ArcSwap<Vec<Arc<Certificates>>>,
}

/// The certificates of one listener.
#[derive(Debug)]
pub struct Certificates {
    /// By name, lower case; `*.example.com` is stored as `.example.com`.
    by_name: HashMap<String, Arc<CertificateEntry>>,
    /// For clients that ask for no name, or for a name without a certificate.
    default: Option<Arc<CertificateEntry>>,
    /// Whether some name selects another certificate than the default.
    has_several: bool,
    /// What session tickets of the listener are bound to: a hash of its address and of the names of its certificates.
    /// The names do not change when a certificate is renewed, so its tickets stay valid.
    binding: [u8; SHA256_OUTPUT_LEN],
    /// Who signs the certificates of clients; `None` where they show none.
    client_trust: Option<Arc<ClientTrust>>,
    /// Of each file.
    expiries: Vec<CertificateExpiry>,
}

/// A certificate with its key and its names.
#[derive(Debug)]
struct CertificateEntry {
    key: Arc<CertifiedKey>,
    covered: AlternativeNames,
}

/// When a certificate of a listener expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateExpiry {
    /// The listener's name, or its address if it has none.
    pub listener: Arc<str>,
    /// The file of the certificate and its chain.
    pub file: PathBuf,
    /// When the first certificate of the chain expires, in seconds since the Unix epoch.
    pub not_after: i64,
}

/// A certificate of a listener that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct CertificateFileError {
    /// The listener's index.
    pub listener: usize,
    /// The reason, with the name of the file.
    pub why: String,
}

/// The certificate that a connection was served, with the others of its listener.
#[derive(Debug)]
pub(in crate::edge) struct ServedCertificate {
    certificates: Arc<Certificates>,
    served: Arc<CertificateEntry>,
}

/// Chooses the certificate of a handshake, for rustls.
pub(super) struct CertificateResolver {
    pub(super) store: Arc<CertificateStore>,
    /// The listener's index.
    pub(super) listener: usize,
}

impl CertificateStore {
    /// Reads every certificate of the listeners.
    pub fn read(listeners: &[Listener]) -> Result<Vec<Arc<Certificates>>, CertificateFileError> {
        let read = |(index, listener)| {
            Certificates::read(listener)
                .map_err(|why| CertificateFileError { listener: index, why })
        };
        listeners.iter().enumerate().map(read).collect()
    }

    /// Puts certificates in force, one set for each listener.
    pub fn replace(&self, certificates: Vec<Arc<Certificates>>) {
        self.listeners.store(Arc::new(certificates));
    }

    /// When the certificates in force expire.
    pub fn expiries(&self) -> Vec<CertificateExpiry> {
        let listeners = self.listeners.load();
        listeners.iter().flat_map(|listener| listener.expiries.iter().cloned()).collect()
    }

    /// What session tickets of a listener are bound to.
    pub(super) fn binding(&self, listener: usize) -> Option<[u8; SHA256_OUTPUT_LEN]> {
        self.listeners.load().get(listener).map(|certificates| certificates.binding)
    }

    /// Who signs the certificates of a listener's clients now.
    pub(super) fn client_trust(&self, listener: usize) -> Option<Arc<ClientTrust>> {
        self.listeners.load().get(listener)?.client_trust.clone()
    }

    /// The certificate for a client that asked for this name. `None` if the listener has only one certificate, because
    /// then no other connection would be served a different one.
    pub(super) fn served(&self, listener: usize, name: Option<&str>) -> Option<ServedCertificate> {
        let certificates = Arc::clone(self.listeners.load().get(listener)?);
        let served = Arc::clone(certificates.select(name)?);
        certificates.has_several.then_some(ServedCertificate { certificates, served })
    }
}

impl Certificates {
    fn read(listener: &Listener) -> Result<Arc<Self>, String> {
        let (mut by_name, mut default) = (HashMap::new(), None);
        let mut expiries = Vec::with_capacity(listener.certificates.len());
        let name = listener.name.clone();
        let name = name.unwrap_or_else(|| Arc::from(listener.address.to_string()));
        let mut binding = digest::Context::new(&digest::SHA256);
        hash_field(&mut binding, listener.address.to_string().as_bytes());
        let client_trust = listener.client_ca.as_deref().map(ClientTrust::read).transpose()?;
        for files in &listener.certificates {
            let key = Arc::new(read_certified_key(&files.certificate, &files.private_key)?);
            expiries.extend(ChainValidity::of(&key.cert).map(|validity| CertificateExpiry {
                listener: Arc::clone(&name),
                file: files.certificate.clone(),
                not_after: validity.not_after,
            }));
            let covered = AlternativeNames::of(&key);
            let entry = Arc::new(CertificateEntry { key, covered });
            entry.hash_into(&mut binding);
            for name in &entry.covered.names {
                by_name.entry(name.clone()).or_insert_with(|| Arc::clone(&entry));
            }
            default.get_or_insert(entry);
        }
        let is_other = |entry: &Arc<CertificateEntry>| {
            default.as_ref().is_some_and(|default| !Arc::ptr_eq(default, entry))
        };
        let has_several = by_name.values().any(is_other);
        let empty = [0; SHA256_OUTPUT_LEN];
        let mut all =
            Self { by_name, default, has_several, binding: empty, client_trust, expiries };
        all.binding.copy_from_slice(binding.finish().as_ref());
        Ok(Arc::new(all))
    }

    /// The certificate that is served to a client that asks for this name.
    fn select(&self, name: Option<&str>) -> Option<&Arc<CertificateEntry>> {
        let named = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            let wildcard = name.find('.').and_then(|dot| self.by_name.get(&name[dot..]));
            self.by_name.get(&name).or(wildcard)
        });
        named.or(self.default.as_ref())
    }
}

impl CertificateEntry {
    /// Whether the certificate covers a host (RFC 6125, section 6.4; RFC 9110, section 4.3.4): a wildcard covers one
    /// label, an address only itself.
    fn covers(&self, host: CertificateHost<'_>) -> bool {
        match host {
            CertificateHost::Address(address) => self.covered.addresses.contains(&address),
            CertificateHost::Name(name) => {
                let names = &self.covered.names;
                let wildcard = name.find('.').map(|dot| &name[dot..]);
                names.contains(name) || wildcard.is_some_and(|name| names.contains(name))
            }
        }
    }

    fn hash_into(&self, binding: &mut digest::Context) {
        let mut names: Vec<_> = self.covered.names.iter().cloned().collect();
        names.extend(self.covered.addresses.iter().map(IpAddr::to_string));
        names.sort_unstable();
        hash_field(binding, &(names.len() as u64).to_be_bytes());
        names.iter().for_each(|name| hash_field(binding, name.as_bytes()));
        if names.is_empty() {
            // Without names only the certificate itself identifies it.
            hash_field(binding, self.key.cert.first().map_or(&[], AsRef::as_ref));
        }
    }
}

/// Hashes a field together with its length, so that different lists of fields are different bytes.
fn hash_field(binding: &mut digest::Context, field: &[u8]) {
    binding.update(&(field.len() as u64).to_be_bytes());
    binding.update(field);
}

/// A host as certificates name it.
#[derive(Clone, Copy)]
enum CertificateHost<'h> {
    Name(&'h str),
    Address(IpAddr),
}

impl<'h> CertificateHost<'h> {
    fn parse(host: &'h str) -> Self {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        bare.parse().map_or(Self::Name(host), Self::Address)
    }

    /// The server name that a client sends when it connects to this host: none for an address (RFC 6066, section 3).
    const fn server_name(self) -> Option<&'h str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }
}

impl ServedCertificate {
    /// Whether a request for a host came over the wrong connection (RFC 9110, section 15.5.20): the certificate does
    /// not cover the host, and a connection opened for that host would be served a certificate that does. `host`:
    /// lower case, without port and trailing dot.
    pub(in crate::edge) fn is_misdirected(&self, host: &str) -> bool {
        let host = CertificateHost::parse(host);
        let selected = || self.certificates.select(host.server_name());
        !self.served.covers(host)
            && selected()
                .is_some_and(|other| !Arc::ptr_eq(other, &self.served) && other.covers(host))
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let listeners = self.store.listeners.load();
        let entry = listeners.get(self.listener)?.select(hello.server_name())?;
        Some(Arc::clone(&entry.key))
    }
}

impl fmt::Debug for CertificateResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateResolver")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}
