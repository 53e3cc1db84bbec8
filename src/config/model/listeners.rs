//! `listeners` and `admin`: the sockets that accept connections.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderName;

/// One listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The name by which routes refer to it; unique.
    pub name: Option<Arc<str>>,
    /// Address and port.
    pub address: SocketAddr,
    /// Certificates in the order of the file, the default one first; empty for plain HTTP.
    pub certificates: Vec<Certificate>,
    /// PEM file of the authorities one of which must have signed the certificate of every client; `None`: clients show
    /// none.
    pub client_ca: Option<PathBuf>,
    /// The port of https that requests are redirected to; `None`: they are served.
    pub https_port: Option<u16>,
    /// Whether each connection begins with a PROXY header.
    pub proxy_protocol: bool,
}

/// A certificate chain and its private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub private_key: PathBuf,
}

/// The listener for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Address and port.
    pub address: SocketAddr,
    /// The bearer token, read from `token_file`.
    pub token: Option<String>,
    /// Values of `Host` that are accepted in addition to its address and `localhost`; lower case, without port.
    pub hosts: Vec<String>,
    /// The header whose value says who changes something, for the audit log: a proxy before the admin listener sets it.
    pub by_header: Option<HeaderName>,
    /// Whether answers show the client's address where it is a key; otherwise they show its hash only.
    pub show_addresses: bool,
}
