//! Certificates of the listeners: chosen by the name a client asks for, replaced at a reload.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hashbrown::{HashMap, HashSet};
use ring::digest::{self, SHA256_OUTPUT_LEN};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config::Listener;

/// All certificates, by the place of their listener.
#[derive(Default)]
pub struct CertificateStore {
    listeners: ArcSwap<Vec<Arc<Certificates>>>,
}

/// The certificates of one listener.
#[derive(Debug)]
pub struct Certificates {
    /// By name, lower case; `*.example.com` is filed under `.example.com`.
    by_name: HashMap<String, Arc<Identity>>,
    /// For clients that ask for no name, or for one that nobody has.
    default: Option<Arc<Identity>>,
    /// Whether clients can be served another one than the default.
    has_several: bool,
    /// What tickets of the listener are bound to: its address and the names of its certificates. So
    /// tickets outlive the renewal of a certificate.
    binding: [u8; SHA256_OUTPUT_LEN],
}

/// A certificate with its key, and whom it stands for.
#[derive(Debug)]
struct Identity {
    key: Arc<CertifiedKey>,
    /// As they are filed.
    names: HashSet<String>,
    addresses: Vec<IpAddr>,
}

/// The certificate that a connection was served, among those of its listener.
#[derive(Debug)]
pub struct ServedCertificate {
    certificates: Arc<Certificates>,
    served: Arc<Identity>,
}

/// What a listener's handshakes ask.
pub(super) struct Resolver {
    /// All certificates.
    pub store: Arc<CertificateStore>,
    /// Which listener.
    pub listener: usize,
}

impl CertificateStore {
    /// Reads every certificate of the listeners. An error names the file.
    pub fn read(listeners: &[Listener]) -> Result<Vec<Arc<Certificates>>, String> {
        listeners.iter().map(Certificates::read).collect()
    }

    /// Puts certificates in force.
    pub fn replace(&self, certificates: Vec<Arc<Certificates>>) {
        self.listeners.store(Arc::new(certificates));
    }

    /// What session tickets of a listener are bound to.
    pub fn binding(&self, listener: usize) -> Option<[u8; SHA256_OUTPUT_LEN]> {
        self.listeners.load().get(listener).map(|certificates| certificates.binding)
    }

    /// The certificate for a client that asked for this name; `None` where the listener has no second
    /// one, so that no connection can be one for another certificate.
    pub fn served(&self, listener: usize, name: Option<&str>) -> Option<ServedCertificate> {
        let certificates = Arc::clone(self.listeners.load().get(listener)?);
        let served = Arc::clone(certificates.of(name)?);
        certificates.has_several.then_some(ServedCertificate { certificates, served })
    }
}

impl Certificates {
    fn read(listener: &Listener) -> Result<Arc<Self>, String> {
        let (mut by_name, mut default) = (HashMap::new(), None);
        let mut binding = digest::Context::new(&digest::SHA256);
        add(&mut binding, listener.address.to_string().as_bytes());
        for files in &listener.certificates {
            let key = Arc::new(certified(&files.certificate, &files.private_key)?);
            let identity = Arc::new(Identity::of(key));
            identity.add_to(&mut binding);
            for name in &identity.names {
                by_name.entry(name.clone()).or_insert_with(|| Arc::clone(&identity));
            }
            default.get_or_insert(identity);
        }
        let is_other = |one: &Arc<Identity>| default.as_ref().is_some_and(|d| !Arc::ptr_eq(d, one));
        let has_several = by_name.values().any(is_other);
        let mut all = Self { by_name, default, has_several, binding: [0; SHA256_OUTPUT_LEN] };
        all.binding.copy_from_slice(binding.finish().as_ref());
        Ok(Arc::new(all))
    }

    /// The certificate that is served to a client that asks for a name.
    fn of(&self, name: Option<&str>) -> Option<&Arc<Identity>> {
        let named = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            let wildcard = name.find('.').and_then(|dot| self.by_name.get(&name[dot..]));
            self.by_name.get(&name).or(wildcard)
        });
        named.or(self.default.as_ref())
    }
}

impl Identity {
    fn of(key: Arc<CertifiedKey>) -> Self {
        let (mut names, mut addresses) = (HashSet::new(), Vec::new());
        for name in alternative_names(&key) {
            match name {
                AlternativeName::Dns(name) => drop(names.insert(name)),
                AlternativeName::Address(address) => addresses.push(address),
            }
        }
        Self { key, names, addresses }
    }

    /// Whether a host is one of its names (RFC 6125, section 6.4; RFC 9110, section 4.3.4): a wildcard
    /// stands for one label, an address only for itself.
    fn covers(&self, host: Host<'_>) -> bool {
        match host {
            Host::Address(address) => self.addresses.contains(&address),
            Host::Name(name) => {
                let wildcard = name.find('.').map(|dot| &name[dot..]);
                self.names.contains(name) || wildcard.is_some_and(|name| self.names.contains(name))
            }
        }
    }

    fn add_to(&self, binding: &mut digest::Context) {
        let mut names: Vec<_> = self.names.iter().cloned().collect();
        names.extend(self.addresses.iter().map(IpAddr::to_string));
        names.sort_unstable();
        add(binding, &(names.len() as u64).to_be_bytes());
        names.iter().for_each(|name| add(binding, name.as_bytes()));
        if names.is_empty() {
            // It is known by nothing but itself.
            add(binding, self.key.cert.first().map_or(&[], AsRef::as_ref));
        }
    }
}

/// One more part of what is hashed, with its length: no two lists of parts are the same bytes.
fn add(binding: &mut digest::Context, part: &[u8]) {
    binding.update(&(part.len() as u64).to_be_bytes());
    binding.update(part);
}

/// A host as certificates know it.
#[derive(Clone, Copy)]
enum Host<'h> {
    Name(&'h str),
    Address(IpAddr),
}

impl<'h> Host<'h> {
    fn of(host: &'h str) -> Self {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        bare.parse().map_or(Self::Name(host), Self::Address)
    }

    /// What a client asks for that connects to it: addresses are not asked for (RFC 6066, section 3).
    const fn asked_for(self) -> Option<&'h str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }
}

impl ServedCertificate {
    /// Whether a request for a host came over the wrong connection (RFC 9110, section 15.5.20): the
    /// certificate does not cover the host, and on a connection of its own the client would be served
    /// one that does. `host`: lower case, without port and trailing dot.
    pub fn is_misdirected(&self, host: &str) -> bool {
        let host = Host::of(host);
        let right = || self.certificates.of(host.asked_for());
        !self.served.covers(host)
            && right().is_some_and(|other| !Arc::ptr_eq(other, &self.served) && other.covers(host))
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let listeners = self.store.listeners.load();
        listeners.get(self.listener)?.of(hello.server_name()).map(|one| Arc::clone(&one.key))
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

enum AlternativeName {
    /// As it is filed.
    Dns(String),
    Address(IpAddr),
}

/// The names of the first certificate of a chain. The subject's common name is none (RFC 6125, section
/// 6.4.4): clients do not look at it any more.
fn alternative_names(key: &CertifiedKey) -> Vec<AlternativeName> {
    let Some(Ok((_, certificate))) = key.cert.first().map(|der| X509Certificate::from_der(der))
    else {
        return Vec::new();
    };
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = alternatives.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => {
            let name = name.to_ascii_lowercase();
            let filed = name.strip_prefix('*').map_or_else(|| name.clone(), str::to_owned);
            // A lone asterisk is nobody's name.
            (!filed.is_empty()).then_some(AlternativeName::Dns(filed))
        }
        GeneralName::IPAddress(bytes) => address(bytes).map(AlternativeName::Address),
        _ => None,
    });
    names.collect()
}

/// Four bytes or sixteen (RFC 5280, section 4.2.1.6).
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    four.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}
