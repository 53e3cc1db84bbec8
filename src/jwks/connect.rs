//! A connection to a publisher of keys: the addresses of its name, TCP, and TLS with the system's authorities or those of
//! a file.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::tokens::{FetchError, KeySetUrl};

/// How many addresses of a name are tried.
const MAX_ADDRESSES: usize = 4;

/// How long one address is tried, so that one that swallows packets leaves time for another.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection, with TLS or without.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Connects to the server of a URL.
pub(super) async fn connect(url: &KeySetUrl) -> Result<Box<dyn Connection>, FetchError> {
    let host = url.uri.host().unwrap_or_default();
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let is_tls = url.uri.scheme_str() == Some("https");
    let port = url.uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let stream = connect_tcp(name, port, !is_tls).await?;
    if !is_tls {
        return Ok(Box::new(stream));
    }
    let ca = url.ca.clone();
    // The files of the system's authorities are read at each fetch, so that a renewed one counts; on a thread that may
    // block.
    let config = tokio::task::spawn_blocking(move || tls_config(ca.as_deref())).await;
    let config = config.map_err(unreachable)??;
    let server = ServerName::try_from(name.to_owned()).map_err(unreachable)?;
    let stream = TlsConnector::from(config).connect(server, stream).await;
    Ok(Box::new(stream.map_err(|error| FetchError::Unreachable(format!("TLS: {error}")))?))
}

/// Connects to the first address of a name that accepts. `only_here`: to this machine only, whatever the name says.
async fn connect_tcp(name: &str, port: u16, only_here: bool) -> Result<TcpStream, FetchError> {
    let found = tokio::net::lookup_host((name, port)).await.map_err(unreachable)?;
    let may_ask = |address: &SocketAddr| !only_here || address.ip().is_loopback();
    let mut last_error = FetchError::Unreachable("the name has no address".to_owned());
    for address in found.filter(may_ask).take(MAX_ADDRESSES) {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last_error = unreachable(error),
            Err(_) => last_error = FetchError::Timeout(CONNECT_TIMEOUT.as_secs()),
        }
    }
    Err(last_error)
}

/// TLS that trusts the authorities of a PEM text, or those of the system.
fn tls_config(ca: Option<&[u8]>) -> Result<Arc<ClientConfig>, FetchError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate.map_err(unreachable)?).map_err(unreachable)?;
            }
        }
        None => {
            // A system has some that this library refuses; the others count.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                let message = "the system trusts no authority; write jwks_ca_file";
                return Err(FetchError::Unreachable(message.to_owned()));
            }
        }
    }
    // The provider is named, because a program may have installed none, or another one.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unreachable)?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn unreachable(error: impl std::fmt::Display) -> FetchError {
    FetchError::Unreachable(error.to_string())
}
