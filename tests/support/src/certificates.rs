//! Certificates made for a test.

use std::net::SocketAddr;

use rcgen::{CertificateParams, KeyPair};

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
