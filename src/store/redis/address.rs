//! The addresses of a store's servers, and the settings with which connections to them are opened. This module opens
//! no connection itself, and its debug output shows no password.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};
use redis::{ClientTlsConfig, RedisResult, TlsCertificates};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Host and port. Whether TLS is used is the same for all servers of a store.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Address {
    /// Parses an address that the server `answering` gives for a server: `host:port`, with or without brackets around
    /// the host. An empty host is its own.
    pub(super) fn from_server(text: &str, answering: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        match answering {
            Self::Tcp(own, _) if host.is_empty() => Some(Self::Tcp(own.clone(), port)),
            _ => Self::named(host.trim_matches(['[', ']']), port),
        }
    }

    /// An address that a server names. `None`: it is none, and must not fill the log.
    pub(super) fn named(host: &str, port: u16) -> Option<Self> {
        let is_name =
            host.len() <= MAX_HOST && !host.contains(|c: char| c.is_control() || c.is_whitespace());
        is_name.then(|| Self::Tcp(host.to_owned(), port))
    }
}

/// The longest name of a host, in bytes (RFC 1035, section 2.3.4).
const MAX_HOST: usize = 253;

/// How a store is reached.
#[derive(Clone)]
pub struct StoreSettings {
    /// How its servers are found.
    pub servers: ServerDiscovery,
    /// The login for the servers that keep cells.
    pub login: Login,
    /// The TLS settings. `None`: connections are not encrypted.
    pub tls: Option<StoreTls>,
    /// The longest time that a decision waits for a reply.
    pub timeout: Duration,
    /// The beginning of every key.
    pub prefix: String,
}

/// How the servers of a store are found.
#[derive(Clone)]
pub enum ServerDiscovery {
    /// One server.
    Single(Address),
    /// A Cluster, found through some of its servers.
    Cluster(Vec<Address>),
    /// The master that sentinels name.
    Sentinel {
        /// The sentinels.
        addresses: Vec<Address>,
        /// The master's name.
        master: String,
        /// The login for the sentinels.
        login: Login,
    },
}

/// A login. With empty fields the server's default user is used.
#[derive(Clone, Default)]
pub struct Login {
    /// The user.
    pub username: String,
    /// The password.
    pub password: String,
    /// The number of the database.
    pub database: u16,
}

/// TLS settings. Certificates and keys are PEM.
#[derive(Clone, Default)]
pub struct StoreTls {
    /// Root certificates that replace those of the system.
    pub ca: Option<Vec<u8>>,
    /// This node's certificate chain and its private key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Omits the login and the keys.
impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSettings").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// A client that opens connections to a server.
pub(super) fn open_client(
    address: &Address,
    login: &Login,
    tls: Option<&StoreTls>,
    protocol: ProtocolVersion,
) -> RedisResult<Client> {
    let connection = match (address, tls) {
        (Address::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
        (Address::Tcp(host, port), None) => ConnectionAddr::Tcp(host.clone(), *port),
        (Address::Tcp(host, port), Some(_)) => ConnectionAddr::TcpTls {
            host: host.clone(),
            port: *port,
            insecure: false,
            tls_params: None,
        },
    };
    let mut settings = RedisConnectionInfo::default()
        .set_protocol(protocol)
        .set_db(i64::from(login.database))
        .set_lib_name("tollgate", env!("CARGO_PKG_VERSION"));
    if !login.username.is_empty() {
        settings = settings.set_username(&login.username);
    }
    if !login.password.is_empty() {
        settings = settings.set_password(&login.password);
    }
    // Otherwise a call waits until the server has acknowledged the one before: the round trip of a distant server, or the
    // 40 ms for which it delays acknowledgements.
    let tcp = TcpSettings::default().set_nodelay(true);
    let server =
        connection.into_connection_info()?.set_redis_settings(settings).set_tcp_settings(tcp);
    let Some(tls) = tls.filter(|_| matches!(address, Address::Tcp(..))) else {
        return Client::open(server);
    };
    // The client uses the default provider of the process. If there is one already, it stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = TlsCertificates {
        client_tls: tls.identity.as_ref().map(|(chain, key)| ClientTlsConfig {
            client_cert: chain.clone(),
            client_key: key.clone(),
        }),
        root_cert: tls.ca.clone(),
    };
    Client::build_with_tls(server, certificates)
}
