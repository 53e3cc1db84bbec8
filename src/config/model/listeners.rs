//! `listeners` and `admin`: the sockets that accept connections.

use std::net::SocketAddr;
use std::path::PathBuf;

/// One listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Address and port.
    pub address: SocketAddr,
    /// Certificates in the order of the file, the first being the default; empty: plain.
    pub certificates: Vec<Certificate>,
    /// Whether connections begin with a PROXY header.
    pub proxy_protocol: bool,
}

/// A certificate chain and its key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The chain.
    pub certificate: PathBuf,
    /// The key.
    pub private_key: PathBuf,
}

/// The operators' own door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Address and port.
    pub address: SocketAddr,
    /// The token's value, read from `token_file`.
    pub token: Option<String>,
    /// Hosts that it answers to besides its address and `localhost`, in lower case.
    pub hosts: Vec<String>,
}
