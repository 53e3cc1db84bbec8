//! `store`: where exact limits keep their counters.

use std::path::PathBuf;
use std::time::Duration;

/// Where the exact tier counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// In this process.
    Embedded,
    /// In servers that speak the protocol of Redis, as one number for every node.
    Redis(Box<RedisStore>),
}

/// `store.redis`.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// Which servers.
    pub servers: RedisServers,
    /// As whom; empty: the default user.
    pub username: String,
    /// The password, read from its file; empty: none.
    pub password: String,
    /// How `rediss:` addresses are checked.
    pub tls: RedisTls,
    /// How long a decision waits for an answer.
    pub timeout: Duration,
    /// What every key begins with.
    pub prefix: String,
    /// The secret of the keys, the same on all nodes; `None`: a fixed one.
    pub key_secret: Option<Vec<u8>>,
}

impl RedisStore {
    /// `timeout` where it is not written.
    pub const TIMEOUT: Duration = Duration::from_millis(20);
    /// `prefix` where it is not written.
    pub const PREFIX: &str = "tollgate";
}

/// Without the secrets.
impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// How the servers of a store are found.
#[derive(Clone, PartialEq, Eq)]
pub enum RedisServers {
    /// One server.
    One(RedisUrl),
    /// A Cluster, found by some of its servers.
    Cluster(Vec<RedisUrl>),
    /// The master that these sentinels name.
    Sentinel {
        /// The sentinels.
        urls: Vec<RedisUrl>,
        /// The master's name.
        master: String,
        /// As whom the sentinels are asked; empty: the default user.
        username: String,
        /// The sentinels' password; empty: none.
        password: String,
        /// The database on the master.
        database: u16,
    },
}

impl RedisServers {
    /// Every address that is written.
    pub fn urls(&self) -> &[RedisUrl] {
        match self {
            Self::One(url) => std::slice::from_ref(url),
            Self::Cluster(urls) | Self::Sentinel { urls, .. } => urls,
        }
    }
}

/// One server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    /// Where.
    pub endpoint: RedisEndpoint,
    /// The number of the database.
    pub database: u16,
}

impl RedisUrl {
    /// Whether TLS is spoken.
    pub const fn is_tls(&self) -> bool {
        matches!(self.endpoint, RedisEndpoint::Tcp { tls: true, .. })
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisEndpoint {
    /// On a port.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
        /// Whether TLS is spoken.
        tls: bool,
    },
    /// On a socket of this machine.
    Unix(PathBuf),
}

/// How TLS to a store is checked; PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// Roots to trust instead of the system's.
    pub ca: Option<Vec<u8>>,
    /// The chain and the key that this node shows.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}
