//! Certificates made for a test.

use std::net::SocketAddr;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, SanType,
};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate of one name, signed by itself, and its key, as PEM.
pub struct Pair {
    pub pem: String,
    pub key: String,
}

pub fn pair(name: &str) -> Pair {
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
    Pair { pem: certificate.pem(), key: key.serialize_pem() }
}

/// A folder with a certificate per name.
pub fn folder(names: &[&str]) -> (tempfile::TempDir, Vec<Pair>) {
    let folder = tempfile::tempdir().unwrap();
    let pairs: Vec<Pair> = names.iter().map(|name| pair(name)).collect();
    for (name, pair) in names.iter().zip(&pairs) {
        std::fs::write(folder.path().join(format!("{name}.crt")), &pair.pem).unwrap();
        std::fs::write(folder.path().join(format!("{name}.key")), &pair.key).unwrap();
    }
    (folder, pairs)
}

/// A client that trusts this certificate only, and finds its name at this address.
pub fn trusting(pair: &Pair, name: &str, to: SocketAddr) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([reqwest::Certificate::from_pem(pair.pem.as_bytes()).unwrap()])
        .resolve(name, to)
}

/// The `tls` of a listener with the certificate of `one.example`.
pub const ONE: &str = "tls: { certificate: one.example.crt, private_key: one.example.key }";

/// An authority that signs certificates for a test.
pub struct Authority {
    params: CertificateParams,
    key: KeyPair,
    pub pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { params, key, pem }
    }

    /// A certificate for these alternative names, for servers and clients.
    pub fn sign(&self, names: Vec<SanType>) -> Pair {
        self.sign_with(names, |_| {})
    }

    /// The same, changed.
    pub fn sign_with(
        &self,
        names: Vec<SanType>,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "nobody");
        params.subject_alt_names = names;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        Pair { pem: certificate.pem(), key: key.serialize_pem() }
    }
}

pub fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

pub fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

impl Pair {
    /// Writes it as `NAME.crt` and `NAME.key`.
    pub fn write(&self, folder: &Path, name: &str) {
        std::fs::write(folder.join(format!("{name}.crt")), &self.pem).unwrap();
        std::fs::write(folder.join(format!("{name}.key")), &self.key).unwrap();
    }

    /// For clients and servers of rustls.
    pub fn to_der(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_slice_iter(self.pem.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        (chain.map(Result::unwrap).collect(), key)
    }
}
