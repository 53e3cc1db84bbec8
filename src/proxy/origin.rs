//! Where requests go: groups of servers, how one is chosen, and whether it is well.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

use super::OriginSlots;
use crate::clock::Nanos;
use crate::config::{Balance, HealthCheck, Origin};
use crate::histogram::Histogram;
use crate::policy::{Facts, Route, key};

/// Servers that are looked at for one request before it is said that none is well.
const MAX_SERVERS_TRIED: usize = 256;

/// How long the names of an origin may take to resolve when it is loaded.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A loaded origin. Its tasks (names, health) end when it is dropped.
pub struct OriginGroup {
    meant: Origin,
    servers: Arc<Servers>,
    roots: Option<Arc<CaType>>,
    tally: Arc<OriginTally>,
    /// The only server, where there is nothing to choose: one address whose health nobody asks.
    only: Option<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
}

/// One balancer per way of choosing; the framework makes each a type of its own.
enum Servers {
    RoundRobin(LoadBalancer<RoundRobin>),
    Random(LoadBalancer<Random>),
    Hash(LoadBalancer<Consistent>),
}

macro_rules! each {
    ($servers:expr, $balancer:ident => $do:expr) => {
        match $servers {
            Servers::RoundRobin($balancer) => $do,
            Servers::Random($balancer) => $do,
            Servers::Hash($balancer) => $do,
        }
    };
}

/// What is counted of an origin, over all generations.
#[derive(Debug)]
pub struct OriginTally {
    /// By class of status: no answer, 1xx to 5xx.
    classes: [AtomicU64; 6],
    /// From the choice of a server to the end of the answer.
    pub duration: Histogram<12>,
    /// Exchanges at once.
    pub slots: Arc<OriginSlots>,
}

impl Default for OriginTally {
    fn default() -> Self {
        // From a millisecond in steps of two and a half to about 24 seconds.
        let millis = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000];
        let bounds = millis.map(|millis| Nanos::from_millis(millis).get());
        Self {
            classes: Default::default(),
            duration: Histogram::new(bounds),
            slots: Arc::default(),
        }
    }
}

impl OriginTally {
    /// Names of the classes, in order.
    pub const CLASSES: [&'static str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

    /// Counts an answer of a status, or that there was none.
    pub fn count(&self, status: Option<u16>) {
        let class = status.map_or(0, |status| usize::from(status / 100).min(5));
        self.classes[class].fetch_add(1, Ordering::Relaxed);
    }

    /// How many answers of each class.
    pub fn classes(&self) -> [u64; 6] {
        std::array::from_fn(|class| self.classes[class].load(Ordering::Relaxed))
    }
}

impl OriginGroup {
    /// Resolves the servers and starts what watches them, on the present runtime.
    ///
    /// Names that do not resolve are logged and tried again; until then the origin has the
    /// servers that are known.
    pub async fn start(meant: Origin, roots: Option<Arc<CaType>>, tally: Arc<OriginTally>) -> Self {
        let names = Names { servers: meant.servers.clone() };
        let mut backends = Backends::new(Box::new(names));
        if let Some(check) = &meant.health_check {
            backends.set_health_check(Box::new(health_check(&meant, check, roots.clone())));
        }
        let servers = Arc::new(match meant.balance {
            Balance::RoundRobin => Servers::RoundRobin(LoadBalancer::from_backends(backends)),
            Balance::Random => Servers::Random(LoadBalancer::from_backends(backends)),
            Balance::Hash(_) => Servers::Hash(LoadBalancer::from_backends(backends)),
        });
        match tokio::time::timeout(RESOLVE_TIMEOUT, servers.resolve()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => log::error!("origin {}: {error}", meant.name),
            Err(_) => log::error!("origin {}: its names did not resolve in time", meant.name),
        }
        let mut tasks = Vec::new();
        if meant.servers.iter().any(|server| server.address.parse::<SocketAddr>().is_err()) {
            let (servers, every) = (Arc::clone(&servers), meant.resolve_every);
            let name = Arc::clone(&meant.name);
            tasks.push(tokio::spawn(repeat(every, move || {
                let (servers, name) = (Arc::clone(&servers), Arc::clone(&name));
                async move {
                    if let Err(error) = servers.resolve().await {
                        log::warn!("origin {name}: {error}; the servers known before stay");
                    }
                }
            })));
        }
        if let Some(check) = &meant.health_check {
            let (servers, every) = (Arc::clone(&servers), check.every);
            // The first question is asked at once, so that a dead server is known early.
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
        let only = match meant.servers.as_slice() {
            [one] if meant.health_check.is_none() => one.address.parse().ok(),
            _ => None,
        };
        Self { meant, servers, roots, tally, only, tasks }
    }

    /// What the configuration says.
    pub const fn meant(&self) -> &Origin {
        &self.meant
    }

    /// What is counted.
    pub const fn tally(&self) -> &Arc<OriginTally> {
        &self.tally
    }

    /// How many servers are well, of how many.
    pub fn health(&self) -> (usize, usize) {
        each!(&*self.servers, balancer => {
            let all = balancer.backends().get_backend();
            let well = all.iter().filter(|backend| balancer.backends().ready(backend)).count();
            (well, all.len())
        })
    }

    /// A server that is well and was not tried before for this request.
    pub fn choose(
        &self,
        facts: &Facts<'_>,
        route: &Route,
        tried: &[SocketAddr],
    ) -> Option<SocketAddr> {
        if let Some(only) = self.only {
            return Some(only).filter(|only| !tried.contains(only));
        }
        let accept = |backend: &Backend, well: bool| {
            well && backend.as_inet().is_some_and(|address| !tried.contains(address))
        };
        let chosen = match &*self.servers {
            Servers::RoundRobin(b) => b.select_with(b"", MAX_SERVERS_TRIED, accept),
            Servers::Random(b) => b.select_with(b"", MAX_SERVERS_TRIED, accept),
            Servers::Hash(b) => {
                let part = match &self.meant.balance {
                    Balance::Hash(source) => source.part(facts, route),
                    Balance::RoundRobin | Balance::Random => key::KeyPart::Absent,
                };
                let value = match &part {
                    key::KeyPart::Present(value) => &value[..],
                    key::KeyPart::Absent
                    | key::KeyPart::Repeated
                    | key::KeyPart::Unreadable
                    | key::KeyPart::Unchecked => b"",
                };
                b.select_with(value, MAX_SERVERS_TRIED, accept)
            }
        };
        chosen.and_then(|backend| backend.as_inet().copied())
    }

    /// How a server is talked to.
    pub fn peer(&self, server: SocketAddr) -> HttpPeer {
        peer(&self.meant, server, self.roots.clone())
    }
}

impl Drop for OriginGroup {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Servers {
    async fn resolve(&self) -> pingora::Result<()> {
        each!(self, balancer => balancer.update().await)
    }

    async fn check(&self) {
        each!(self, balancer => balancer.backends().run_health_check(true).await);
    }
}

/// Servers by name, looked up again at each update.
struct Names {
    servers: Vec<crate::config::OriginServer>,
}

#[async_trait]
impl ServiceDiscovery for Names {
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
        // One name that fails does not take the others away, unless nothing is left.
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

fn peer(meant: &Origin, server: SocketAddr, roots: Option<Arc<CaType>>) -> HttpPeer {
    let sni = meant.tls.as_ref().map_or_else(String::new, |tls| tls.sni.clone());
    let mut peer = HttpPeer::new(server, meant.tls.is_some(), sni);
    let options = &mut peer.options;
    options.connection_timeout = Some(meant.timeouts.connect);
    options.total_connection_timeout = Some(meant.timeouts.connect);
    options.read_timeout = Some(meant.timeouts.read);
    options.write_timeout = Some(meant.timeouts.write);
    options.idle_timeout = Some(meant.timeouts.idle);
    options.ca = roots;
    if meant.http2 {
        options.set_http_version(2, 2);
    } else {
        options.alpn = ALPN::H1;
    }
    peer
}

fn health_check(
    meant: &Origin,
    check: &HealthCheck,
    roots: Option<Arc<CaType>>,
) -> HttpHealthCheck {
    let mut asked = HttpHealthCheck::new(meant.own_host(), meant.tls.is_some());
    let anywhere = SocketAddr::from((IpAddr::from([0, 0, 0, 0]), 1));
    asked.peer_template = peer(meant, anywhere, roots);
    asked.peer_template.options.connection_timeout = Some(check.timeout);
    asked.peer_template.options.total_connection_timeout = Some(check.timeout);
    asked.peer_template.options.read_timeout = Some(check.timeout);
    if let Ok(path) = check.path.parse() {
        asked.req.set_uri(path);
    }
    asked.validator = Some(Box::new(|answer| {
        if answer.status.is_success() {
            Ok(())
        } else {
            Error::e_explain(ErrorType::CustomCode("health", answer.status.as_u16()), "not well")
        }
    }));
    asked
}

/// Certificates to trust for an origin, from the PEM text of `ca_file`.
pub(super) fn roots(pem: &[u8]) -> Arc<CaType> {
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
