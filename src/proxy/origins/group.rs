//! The servers of one origin: their addresses, their health, and the choice of one for a request.
//!
//! A group resolves names and checks health in tasks of its own, so a request never waits for either. It does not know
//! how many exchanges there may be (`slots.rs`). What must always hold: a server that is not healthy is never chosen,
//! and a name that does not resolve removes no server of another name.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::lb::discovery::ServiceDiscovery;
use pingora::lb::health_check::HttpHealthCheck;
use pingora::lb::selection::{Consistent, Random, RoundRobin};
use pingora::lb::{Backend, Backends, LoadBalancer};
use pingora::protocols::ALPN;
use pingora::protocols::tls::CaType;
use pingora::upstreams::peer::HttpPeer;
use pingora::utils::tls::WrappedX509;
use pingora::{Error, ErrorType};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::task::JoinHandle;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::counters::OriginCounters;
use crate::config::{Balance, HealthCheck, Origin};
use crate::policy::{Facts, Route, key};

/// The largest number of servers that are looked at in the search for a healthy one for one request.
const MAX_SERVERS_EXAMINED: usize = 256;

/// How long the names of an origin may take to resolve when it is loaded. After that it starts without them.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A loaded origin. Its tasks (names, health checks) end when it is dropped.
pub struct OriginGroup {
    config: Origin,
    servers: Arc<Balancer>,
    roots: Option<Arc<CaType>>,
    counters: Arc<OriginCounters>,
    /// The only server, where there is no choice: a single address without a health check.
    only: Option<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
}

/// How many servers an origin has.
pub struct ServerCounts {
    /// Those that may be chosen.
    pub healthy: usize,
    /// All of them.
    pub all: usize,
}

/// A balancer for each way of choosing; each is a type of its own in the framework.
enum Balancer {
    RoundRobin(LoadBalancer<RoundRobin>),
    Random(LoadBalancer<Random>),
    Hash(LoadBalancer<Consistent>),
}

macro_rules! each {
    ($servers:expr, $balancer:ident => $do:expr) => {
        match $servers {
            Balancer::RoundRobin($balancer) => $do,
            Balancer::Random($balancer) => $do,
            Balancer::Hash($balancer) => $do,
        }
    };
}

impl OriginGroup {
    /// Resolves the servers and starts the tasks that watch them, on the runtime of the caller.
    ///
    /// Names that do not resolve are logged and tried again. Until then the origin has the servers of its other names.
    pub async fn start(
        config: Origin,
        roots: Option<Arc<CaType>>,
        counters: Arc<OriginCounters>,
    ) -> Self {
        let names = ServerNames { servers: config.servers.clone() };
        let mut backends = Backends::new(Box::new(names));
        if let Some(check) = &config.health_check {
            backends.set_health_check(Box::new(health_check(&config, check, roots.clone())));
        }
        let servers = Arc::new(match config.balance {
            Balance::RoundRobin => Balancer::RoundRobin(LoadBalancer::from_backends(backends)),
            Balance::Random => Balancer::Random(LoadBalancer::from_backends(backends)),
            Balance::Hash(_) => Balancer::Hash(LoadBalancer::from_backends(backends)),
        });
        match tokio::time::timeout(RESOLVE_TIMEOUT, servers.resolve()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => log::error!("origin {}: {error}", config.name),
            Err(_) => log::error!("origin {}: its names did not resolve in time", config.name),
        }
        let mut tasks = Vec::new();
        if config.servers.iter().any(|server| server.address.parse::<SocketAddr>().is_err()) {
            let (servers, every) = (Arc::clone(&servers), config.resolve_every);
            let name = Arc::clone(&config.name);
            tasks.push(tokio::spawn(repeat(every, move || {
                let (servers, name) = (Arc::clone(&servers), Arc::clone(&name));
                async move {
                    if let Err(error) = servers.resolve().await {
                        log::warn!("origin {name}: {error}; the servers known before stay");
                    }
                }
            })));
        }
        if let Some(check) = &config.health_check {
            let (servers, every) = (Arc::clone(&servers), check.every);
            // The first check runs at once, so that a dead server is known early.
            let first = Arc::clone(&servers);
            tasks.push(tokio::spawn(async move {
                first.check().await;
                repeat(every, move || {
                    let servers = Arc::clone(&servers);
                    async move { servers.check().await }
                })
                .await;
            }));
        }
        let only = match config.servers.as_slice() {
            [server] if config.health_check.is_none() => server.address.parse().ok(),
            _ => None,
        };
        Self { config, servers, roots, counters, only, tasks }
    }

    /// The origin's configuration.
    pub const fn config(&self) -> &Origin {
        &self.config
    }

    /// The origin's counters.
    pub const fn counters(&self) -> &Arc<OriginCounters> {
        &self.counters
    }

    /// How many servers are healthy.
    pub fn health(&self) -> ServerCounts {
        each!(&*self.servers, balancer => {
            let all = balancer.backends().get_backend();
            let healthy = all.iter().filter(|backend| balancer.backends().ready(backend)).count();
            ServerCounts { healthy, all: all.len() }
        })
    }

    /// A healthy server that was not tried before for this request.
    pub fn choose(
        &self,
        facts: &Facts<'_>,
        route: &Route,
        tried: &[SocketAddr],
    ) -> Option<SocketAddr> {
        if let Some(only) = self.only {
            return Some(only).filter(|only| !tried.contains(only));
        }
        let accept = |backend: &Backend, healthy: bool| {
            healthy && backend.as_inet().is_some_and(|address| !tried.contains(address))
        };
        let chosen = match &*self.servers {
            Balancer::RoundRobin(b) => b.select_with(b"", MAX_SERVERS_EXAMINED, accept),
            Balancer::Random(b) => b.select_with(b"", MAX_SERVERS_EXAMINED, accept),
            Balancer::Hash(b) => {
                let value = match &self.config.balance {
                    Balance::Hash(source) => source.part(facts, route),
                    Balance::RoundRobin | Balance::Random => key::KeyPart::Absent,
                };
                let value = match &value {
                    key::KeyPart::Present(value) => &value[..],
                    key::KeyPart::Absent
                    | key::KeyPart::Repeated
                    | key::KeyPart::Unreadable
                    | key::KeyPart::Unchecked => b"",
                };
                b.select_with(value, MAX_SERVERS_EXAMINED, accept)
            }
        };
        chosen.and_then(|backend| backend.as_inet().copied())
    }

    /// The framework's description of a server: address, timeouts, TLS.
    pub fn peer(&self, server: SocketAddr) -> HttpPeer {
        peer(&self.config, server, self.roots.clone())
    }
}

impl Drop for OriginGroup {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Balancer {
    async fn resolve(&self) -> pingora::Result<()> {
        each!(self, balancer => balancer.update().await)
    }

    async fn check(&self) {
        each!(self, balancer => balancer.backends().run_health_check(true).await);
    }
}

/// The addresses of the servers, looked up again at each update.
struct ServerNames {
    servers: Vec<crate::config::OriginServer>,
}

#[async_trait]
impl ServiceDiscovery for ServerNames {
    async fn discover(&self) -> pingora::Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        let mut found = BTreeSet::new();
        let mut failed = None;
        for server in &self.servers {
            match tokio::net::lookup_host(&server.address).await {
                Ok(addresses) => {
                    for address in addresses {
                        let weight = usize::from(server.weight);
                        found.insert(Backend::new_with_weight(&address.to_string(), weight)?);
                    }
                }
                Err(error) => failed = Some(format!("cannot resolve {}: {error}", server.address)),
            }
        }
        // A name that fails loses its own servers, unless no name has resolved: then all servers known before stay.
        match failed {
            Some(why) if found.is_empty() => Error::e_explain(ErrorType::ConnectNoRoute, why),
            Some(why) => {
                log::warn!("{why}");
                Ok((found, HashMap::new()))
            }
            None => Ok((found, HashMap::new())),
        }
    }
}

async fn repeat<F: Future<Output = ()>>(every: Duration, mut round: impl FnMut() -> F) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        round().await;
    }
}

fn peer(config: &Origin, server: SocketAddr, roots: Option<Arc<CaType>>) -> HttpPeer {
    let sni = config.tls.as_ref().map_or_else(String::new, |tls| tls.sni.clone());
    let mut peer = HttpPeer::new(server, config.tls.is_some(), sni);
    let options = &mut peer.options;
    options.connection_timeout = Some(config.timeouts.connect);
    options.total_connection_timeout = Some(config.timeouts.connect);
    options.read_timeout = Some(config.timeouts.read);
    options.write_timeout = Some(config.timeouts.write);
    options.idle_timeout = Some(config.timeouts.idle);
    options.ca = roots;
    if config.http2 {
        options.set_http_version(2, 2);
    } else {
        options.alpn = ALPN::H1;
    }
    peer
}

fn health_check(
    config: &Origin,
    check: &HealthCheck,
    roots: Option<Arc<CaType>>,
) -> HttpHealthCheck {
    let mut health_check = HttpHealthCheck::new(config.own_host(), config.tls.is_some());
    let anywhere = SocketAddr::from((IpAddr::from([0, 0, 0, 0]), 1));
    health_check.peer_template = peer(config, anywhere, roots);
    health_check.peer_template.options.connection_timeout = Some(check.timeout);
    health_check.peer_template.options.total_connection_timeout = Some(check.timeout);
    health_check.peer_template.options.read_timeout = Some(check.timeout);
    if let Ok(path) = check.path.parse() {
        health_check.req.set_uri(path);
    }
    health_check.validator = Some(Box::new(|answer| {
        if answer.status.is_success() {
            Ok(())
        } else {
            Error::e_explain(ErrorType::CustomCode("health", answer.status.as_u16()), "not healthy")
        }
    }));
    health_check
}

/// Certificates to trust for an origin, from the PEM text of `ca_file`.
pub(in crate::proxy) fn roots(pem: &[u8]) -> Arc<CaType> {
    let wrapped: Vec<WrappedX509> = CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .filter_map(|der| {
            WrappedX509::try_new(der.to_vec(), |raw| {
                X509Certificate::from_der(raw).map(|(_, certificate)| certificate)
            })
            .ok()
        })
        .collect();
    wrapped.into()
}
