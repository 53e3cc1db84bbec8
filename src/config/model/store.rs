//! `store`: where exact limits keep their counters.

use std::path::PathBuf;
use std::time::Duration;

/// Where exact limits keep their counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// In this process.
    Embedded {
        /// The directory that keeps them when the process ends; `None`: nothing does.
        state: Option<StateSettings>,
    },
    /// In servers that speak the Redis protocol and that all nodes share.
    Redis(Box<RedisStore>),
}

/// `store.embedded`, with a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSettings {
    /// The directory.
    pub directory: PathBuf,
    /// The time between two writes of what has changed.
    pub flush: Duration,
    /// The time between two times that writes are brought to the disk.
    pub sync: Duration,
}

impl StateSettings {
    /// The default of `flush`.
    pub const FLUSH: Duration = Duration::from_millis(100);
    /// The default of `sync`.
    pub const SYNC: Duration = Duration::from_secs(1);
}

impl StoreConfig {
    /// In this process, and gone with it.
    pub const MEMORY: Self = Self::Embedded { state: None };

    /// Whether the counters are in this process.
    pub const fn is_embedded(&self) -> bool {
        matches!(self, Self::Embedded { .. })
    }

    /// The directory that keeps counters when the process ends.
    pub const fn state(&self) -> Option<&StateSettings> {
        match self {
            Self::Embedded { state } => state.as_ref(),
            Self::Redis(_) => None,
        }
    }
}

/// `store.redis`.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// The servers.
    pub servers: RedisServers,
    /// User name; empty for the default user.
    pub username: String,
    /// Password, read from its file; empty for none.
    pub password: String,
    /// TLS settings of `rediss:` addresses.
    pub tls: RedisTls,
    /// Longest time that a decision waits for the store.
    pub timeout: Duration,
    /// Prefix of every key.
    pub prefix: String,
    /// Secret that keys are hashed with, equal on all nodes; `None` uses a publicly known one.
    pub key_secret: Option<Vec<u8>>,
}

impl RedisStore {
    /// The default of `timeout`.
    pub const TIMEOUT: Duration = Duration::from_millis(20);
    /// The default of `prefix`.
    pub const PREFIX: &str = "tollgate";
}

/// Omits the secrets.
impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// How the servers of a store are found.
#[derive(Clone, PartialEq, Eq)]
pub enum RedisServers {
    /// A single server.
    Single(RedisUrl),
    /// A Cluster, discovered from some of its servers.
    Cluster(Vec<RedisUrl>),
    /// The master that sentinels monitor.
    Sentinel {
        /// Addresses of the sentinels.
        urls: Vec<RedisUrl>,
        /// Name of the master.
        master: String,
        /// User name for the sentinels; empty for the default user.
        username: String,
        /// Password for the sentinels; empty for none.
        password: String,
        /// Number of the database on the master.
        database: u16,
    },
}

impl RedisServers {
    /// Every address in the configuration.
    pub fn urls(&self) -> &[RedisUrl] {
        match self {
            Self::Single(url) => std::slice::from_ref(url),
            Self::Cluster(urls) | Self::Sentinel { urls, .. } => urls,
        }
    }
}

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    /// The socket.
    pub endpoint: RedisEndpoint,
    /// Number of the database.
    pub database: u16,
}

impl RedisUrl {
    /// Whether connections use TLS.
    pub const fn is_tls(&self) -> bool {
        matches!(self.endpoint, RedisEndpoint::Tcp { tls: true, .. })
    }
}

/// The socket of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisEndpoint {
    /// A TCP port.
    Tcp {
        /// DNS name or IP address.
        host: String,
        /// Port.
        port: u16,
        /// Whether connections use TLS.
        tls: bool,
    },
    /// A Unix socket of this machine.
    Unix(PathBuf),
}

/// TLS to a store; the contents of PEM files.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// Root certificates to trust instead of those of the system.
    pub ca: Option<Vec<u8>>,
    /// The certificate that this node presents.
    pub identity: Option<ClientIdentity>,
}

/// The certificate that a node presents to a store; the contents of PEM files.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The certificate chain.
    pub certificate: Vec<u8>,
    /// The private key of the certificate.
    pub private_key: Vec<u8>,
}
