//! From the text of a configuration to what it means.
//!
//! `text -> yaml (a tree with positions) -> read (typed values, each with its place) -> compile
//! (what is meant)`. Every mistake of a file is found in one pass, and each has a place and a cure.

mod algorithm;
mod bounds;
mod cases;
mod compile;
mod costs;
mod error;
mod files;
mod keys;
mod limits;
mod machine;
mod origins;
mod read;
mod responses;
mod routes;
mod scalars;
mod sockets;
mod store;
mod terms;
mod warnings;
mod yaml;

use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;

use crate::limit::TokenBucket;
use crate::policy::client::ClientRules;
use crate::policy::{Exempt, Policy, Source};

pub use cases::{
    Expectation, OriginAnswer, TestCase, TestRequest, TestStep, load_cases, read_cases,
};
pub use compile::{LoadedConfig, load, read_text};
pub use error::{ConfigError, ConfigErrors, Location, Warning};

/// A configuration as it is meant: every name resolved, every bound checked.
#[derive(Debug)]
pub struct Config {
    /// Worker threads; `None` is one per core.
    pub threads: Option<NonZeroUsize>,
    /// Where requests come in; at least one.
    pub listeners: Vec<Listener>,
    /// The operators' own door.
    pub admin: Option<Admin>,
    /// Who is believed about clients' addresses.
    pub clients: ClientRules,
    /// Where requests go; [`crate::policy::Route::origin`] is a place in this list.
    pub origins: Vec<Origin>,
    /// Limits and routes.
    pub policy: Policy,
    /// How answers look, one per route, in the order of the routes.
    pub responses: Vec<Arc<Responses>>,
    /// How answers look where no route was found.
    pub default_responses: Arc<Responses>,
    /// Bounds of the proxy itself.
    pub bounds: Bounds,
    /// What is logged of each request.
    pub access_log: AccessLog,
    /// Where the exact tier counts.
    pub store: StoreConfig,
}

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

/// A group of servers that answer for the same thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// Unique in the configuration.
    pub name: Arc<str>,
    /// At least one.
    pub servers: Vec<OriginServer>,
    /// How a server is chosen.
    pub balance: Balance,
    /// The `Host` that the origin sees; `None` keeps the client's.
    pub host: Option<String>,
    /// `None`: plain.
    pub tls: Option<OriginTls>,
    /// Whether the origin speaks HTTP/2.
    pub http2: bool,
    /// Whether servers are asked if they are well.
    pub health_check: Option<HealthCheck>,
    /// How long an origin may take.
    pub timeouts: OriginTimeouts,
    /// Most exchanges with it at once.
    pub max_connections: usize,
    /// How often names are resolved again.
    pub resolve_every: Duration,
}

impl Origin {
    /// What it is called where no client names a host.
    pub fn own_host(&self) -> &str {
        match (&self.tls, &self.host, self.servers.first()) {
            (_, Some(host), _) => host,
            (Some(tls), None, _) => &tls.sni,
            (None, None, Some(server)) => &server.address,
            (None, None, None) => "",
        }
    }
}

/// One server of an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginServer {
    /// `host:port`; an IPv6 host in brackets; a host may be a name.
    pub address: String,
    /// Its share of the requests, at least 1.
    pub weight: u16,
}

/// How a server is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// In turn.
    RoundRobin,
    /// By chance.
    Random,
    /// By a part of the request: the same value finds the same server.
    Hash(Source),
}

/// TLS to an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginTls {
    /// The name asked for and checked.
    pub sni: String,
    /// Roots to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
}

/// Asks a server `GET path` again and again; 2xx is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked for.
    pub path: String,
    /// Between two questions.
    pub every: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
}

/// How long an origin may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginTimeouts {
    /// To accept a connection, TLS included.
    pub connect: Duration,
    /// Between two reads.
    pub read: Duration,
    /// Between two writes.
    pub write: Duration,
    /// How long an unused connection is kept.
    pub idle: Duration,
    /// How long a connection that switched protocols may be idle in both directions.
    pub tunnel: Duration,
}

/// How answers of the proxy itself look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responses {
    /// `RateLimit` and `RateLimit-Policy`.
    pub ratelimit_fields: bool,
    /// The `X-RateLimit-*` triple.
    pub x_ratelimit_fields: bool,
    /// The bodies of a refusal, of which the client's `Accept` chooses; at least one.
    pub bodies: Vec<RefusalBody>,
    /// Who may read a refusal in a browser.
    pub cors: Cors,
    /// Requests that no limit applies to.
    pub exempt: Exempt,
    /// Clients are told to come back up to this later than they could, so that they do not come all
    /// at once.
    pub retry_after_jitter: Duration,
}

/// Origins (of the browser's kind) that may read a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cors {
    /// All of them (`*`).
    All,
    /// These.
    Only(Vec<HeaderValue>),
}

/// The body of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalBody {
    /// `application/problem+json` (RFC 9457).
    Problem,
    /// The status of a gRPC call, for requests that are one.
    Grpc,
    /// The operator's own, read when the configuration was.
    File {
        /// Its bytes.
        content: Bytes,
        /// Its media type.
        media_type: String,
    },
}

/// `limits_of_this_proxy`: bounds that hold whatever a client or an origin does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a request's header.
    pub header_size: usize,
    /// Fields of a request's header.
    pub header_fields: usize,
    /// How long a request's header may take, from its first byte to its last.
    pub header_timeout: Duration,
    /// How long a connection may be idle before a request.
    pub idle_timeout: Duration,
    /// How long a client may take nothing of an answer.
    pub write_timeout: Duration,
    /// How long a TLS handshake may take.
    pub tls_handshake_timeout: Duration,
    /// How long a PROXY header may take.
    pub proxy_protocol_timeout: Duration,
    /// Bytes per second that a client shall send of a body, and take of an answer; `None`: any.
    pub body_min_rate: Option<NonZeroU64>,
    /// What becomes of field names with `_` that would mean something with `-`.
    pub underscores: Underscores,
    /// What becomes of fields that name another method.
    pub method_override: MethodOverride,
    /// Bytes of a request's body; `None`: any.
    pub body_size: Option<u64>,
    /// Of the body of a refused request: bytes that are read and thrown away.
    pub discard_bytes: usize,
    /// Of the body of a refused request: how long that may take.
    pub discard_time: Duration,
    /// Streams at once on one HTTP/2 connection.
    pub h2_streams: u32,
    /// Streams that the client of one HTTP/2 connection may reset in a minute.
    pub h2_resets: u32,
    /// Connections at once.
    pub max_connections: usize,
    /// Connections at once of one client.
    pub max_connections_per_client: usize,
    /// Bytes that connections, TLS, streams, requests and answers may use together.
    pub memory: usize,
    /// TLS handshakes that one client may begin; `None`: any number.
    pub handshakes_per_client: Option<TokenBucket>,
    /// After TERM: not ready, still accepting.
    pub drain: Duration,
    /// Then: requests in flight.
    pub finish: Duration,
}

/// What becomes of fields whose names origins may take for others: `X_Api_Key` for `X-Api-Key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Underscores {
    /// The request is answered 400, if the policy or HTTP means something by the other name.
    RejectAmbiguous,
    /// They are forwarded.
    Pass,
    /// Those that would be refused are not forwarded.
    Drop,
}

/// What becomes of fields that name another method than the request's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodOverride {
    /// The request is answered 400.
    Reject,
    /// They are not forwarded.
    Strip,
    /// They are forwarded.
    Pass,
}

/// What is logged of each request.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// Where it goes.
    pub to: LogTarget,
    /// The share of allowed requests that is logged, in parts of a million.
    pub sample_ppm: u32,
    /// The share of refused requests that is logged, in parts of a million.
    pub sample_denied_ppm: u32,
    /// How much of the client's address.
    pub client_ip: LogAddress,
    /// Whether the path is cut to the route's name.
    pub path: LogPath,
}

/// Where a log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, appended to; opened again on reload.
    File(PathBuf),
    /// Nowhere.
    None,
}

/// How much of a client's address is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogAddress {
    /// All of it.
    Full,
    /// An IPv4 /24, an IPv6 network of `clients.ipv6_prefix` bits.
    Prefix,
    /// Nothing.
    None,
}

/// What is logged as the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPath {
    /// The path, without the query.
    Full,
    /// The route's name.
    Route,
}
