//! Certificates of the listeners: chosen by the name a client asks for, replaced at a reload.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config::{Certificate, Listener};

/// All certificates, by the place of their listener.
#[derive(Default)]
pub struct CertificateStore {
    listeners: ArcSwap<Vec<Arc<Certificates>>>,
}

/// The certificates of one listener.
#[derive(Debug, Default)]
pub struct Certificates {
    /// By name, lower case; `*.example.com` is filed under `.example.com`.
    by_name: HashMap<String, Arc<CertifiedKey>>,
    /// For clients that ask for no name, or for one that nobody has.
    default: Option<Arc<CertifiedKey>>,
}

/// What a listener's handshakes ask.
pub struct Resolver {
    /// All certificates.
    pub store: Arc<CertificateStore>,
    /// Which listener.
    pub listener: usize,
}

impl CertificateStore {
    /// Reads every certificate of the listeners. An error names the file.
    pub fn read(listeners: &[Listener]) -> Result<Vec<Arc<Certificates>>, String> {
        listeners.iter().map(|listener| Certificates::read(&listener.certificates)).collect()
    }

    /// Puts certificates in force.
    pub fn replace(&self, certificates: Vec<Arc<Certificates>>) {
        self.listeners.store(Arc::new(certificates));
    }
}

impl Certificates {
    fn read(files: &[Certificate]) -> Result<Arc<Self>, String> {
        let mut all = Self::default();
        for files in files {
            let key = Arc::new(certified(&files.certificate, &files.private_key)?);
            for name in names(&key) {
                all.by_name.entry(name).or_insert_with(|| Arc::clone(&key));
            }
            all.default.get_or_insert(key);
        }
        Ok(Arc::new(all))
    }

    fn of(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let named = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            let wildcard = name.find('.').and_then(|dot| self.by_name.get(&name[dot..]));
            self.by_name.get(&name).or(wildcard)
        });
        named.or(self.default.as_ref()).cloned()
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let listeners = self.store.listeners.load();
        listeners.get(self.listener)?.of(hello.server_name())
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("listener", &self.listener).finish_non_exhaustive()
    }
}

fn certified(chain: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let in_chain = |error: &dyn fmt::Display| format!("{}: {error}", chain.display());
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| in_chain(&error))?;
    if certificates.is_empty() {
        return Err(in_chain(&"holds no certificate"));
    }
    let of_key = |error: &dyn fmt::Display| format!("{}: {error}", key.display());
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| of_key(&error))?;
    let signing = any_supported_type(&private).map_err(|error| of_key(&error))?;
    let certified = CertifiedKey::new(certificates, signing);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(certified)
        }
        Err(error) => Err(format!("{} and {}: {error}", chain.display(), key.display())),
    }
}

/// The DNS names of the first certificate of a chain, as they are filed.
fn names(key: &CertifiedKey) -> Vec<String> {
    let Some(Ok((_, certificate))) = key.cert.first().map(|der| X509Certificate::from_der(der))
    else {
        return Vec::new();
    };
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let dns = alternatives.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    dns.map(|name| name.strip_prefix('*').map_or(name.clone(), str::to_owned)).collect()
}
