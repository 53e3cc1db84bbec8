//! `origins`: the servers that requests are forwarded to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::policy::Source;

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
