//! `origins`: the servers that requests are forwarded to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::listeners::Certificate;
use crate::policy::Source;

/// A group of servers that serve the same content.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// Unique in the configuration.
    pub name: Arc<str>,
    /// At least one.
    pub servers: Vec<OriginServer>,
    /// How a server is selected.
    pub balance: Balance,
    /// The `Host` that the origin receives; `None` keeps that of the client.
    pub host: Option<String>,
    /// TLS settings; `None` for unencrypted connections.
    pub tls: Option<OriginTls>,
    /// Whether the origin speaks HTTP/2.
    pub http2: bool,
    /// Health checks of the servers; `None` for no checks.
    pub health_check: Option<HealthCheck>,
    /// How long the share of a server grows after it came back; `None`: it has its whole share at once.
    pub slow_start: Option<Duration>,
    /// Deadlines.
    pub timeouts: OriginTimeouts,
    /// Largest number of concurrent exchanges.
    pub max_connections: usize,
    /// Interval at which DNS names are resolved again.
    pub resolve_every: Duration,
}

impl Origin {
    /// The `Host` for requests whose client names no host (HTTP/1.0).
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
    /// `host:port`; the host is a DNS name or an address, an IPv6 address in brackets.
    pub address: String,
    /// Share of the requests relative to the other servers; at least 1.
    pub weight: u16,
}

/// How a server is selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// One server after the other.
    RoundRobin,
    /// At random.
    Random,
    /// The one with the fewest requests in flight for its weight.
    LeastRequests,
    /// By a hash of a part of the request: equal values select the same server.
    Hash(Source),
}

/// TLS to an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginTls {
    /// The name that is sent in the handshake and verified in the certificate.
    pub sni: String,
    /// PEM file of the root certificates to trust instead of those of the system.
    pub ca_file: Option<PathBuf>,
    /// The certificate that is shown to the origin, with its key; `None` for none.
    pub client: Option<Certificate>,
}

/// A periodic `GET path` to each server; a 2xx response means that the server is healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The requested path.
    pub path: String,
    /// Time between two checks.
    pub every: Duration,
    /// Longest time until the response.
    pub timeout: Duration,
}

/// Deadlines of the connections to an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginTimeouts {
    /// Until a connection is established, TLS handshake included.
    pub connect: Duration,
    /// Between two reads.
    pub read: Duration,
    /// Between two writes.
    pub write: Duration,
    /// How long an unused connection is kept open.
    pub idle: Duration,
    /// How long a connection that switched protocols may be idle in both directions.
    pub tunnel: Duration,
}
