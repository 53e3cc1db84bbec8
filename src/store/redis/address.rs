//! Where servers are, and how one logs in.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::{Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};
use redis::{ClientTlsConfig, RedisResult, TlsCertificates};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// On a port; with or without TLS is the same for all servers.
    Tcp(String, u16),
    /// On a socket of this machine.
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
    /// As a server names another one: `host:port`, the host without brackets, or empty where it is
    /// the same as `here`.
    pub(super) fn from_server(text: &str, here: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        match here {
            Self::Tcp(own, _) if host.is_empty() => Some(Self::Tcp(own.clone(), port)),
            _ => Some(Self::Tcp(host.trim_matches(['[', ']']).to_owned(), port)),
        }
    }
}

/// How a store is reached.
#[derive(Clone)]
pub struct StoreSettings {
    /// Which servers.
    pub servers: ServerDiscovery,
    /// Who logs in at the servers that count.
    pub login: Login,
    /// Whether TLS is spoken, and how it is checked.
    pub tls: Option<StoreTls>,
    /// How long a decision waits for an answer.
    pub timeout: Duration,
    /// What every key begins with.
    pub prefix: String,
}

/// How the servers of a store are found.
#[derive(Clone)]
pub enum ServerDiscovery {
    /// One server.
    Single(Address),
    /// A Cluster, found by some of its servers.
    Cluster(Vec<Address>),
    /// The master that sentinels name.
    Sentinel {
        /// The sentinels.
        addresses: Vec<Address>,
        /// The master's name.
        master: String,
        /// Who asks them.
        login: Login,
    },
}

/// Who logs in; empty texts: nobody in particular.
#[derive(Clone, Default)]
pub struct Login {
    /// The user.
    pub username: String,
    /// The password.
    pub password: String,
    /// The number of the database.
    pub database: u16,
}

/// How TLS is checked; PEM.
#[derive(Clone, Default)]
pub struct StoreTls {
    /// Roots to trust instead of the system's.
    pub ca: Option<Vec<u8>>,
    /// The chain and the key that this node shows.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Without the secrets.
impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSettings").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// What opens connections to a server.
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
    let wanted = connection.into_connection_info()?.set_redis_settings(settings);
    let Some(tls) = tls.filter(|_| matches!(address, Address::Tcp(..))) else {
        return Client::open(wanted);
    };
    // The client asks for the process's own; where one was chosen already, that stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = TlsCertificates {
        client_tls: tls.identity.as_ref().map(|(chain, key)| ClientTlsConfig {
            client_cert: chain.clone(),
            client_key: key.clone(),
        }),
        root_cert: tls.ca.clone(),
    };
    Client::build_with_tls(wanted, certificates)
}
