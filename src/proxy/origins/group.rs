//! One origin: its servers, and the tasks that watch them.
//!
//! A group resolves names and checks health in tasks of its own, so a request never waits for either. It does not know
//! how many exchanges there may be (`slots.rs`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora::lb::Backends;
use pingora::protocols::ALPN;
use pingora::upstreams::peer::HttpPeer;
use tokio::task::JoinHandle;

use super::balance::{Attempt, Balancer, ChosenServer};
use super::checks::ServerCheck;
use super::counters::OriginCounters;
use super::discovery::ServerNames;
use super::health::ServerFailure;
use super::servers::{ServerList, ServerReport};
use super::tls::OriginTlsFiles;
use crate::clock::{Clock, Nanos, RoundedSpan};
use crate::config::{Balance, Origin};
use crate::log_sampler::{LOG_SAMPLER, LogKind};
use crate::policy::key::KeyPart;
use crate::policy::{Facts, Route};

/// How long the names of an origin may take to resolve when it is loaded. After that it starts without them.
pub(super) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A loaded origin. Its tasks (names, health checks) end when it is dropped.
pub struct OriginGroup {
    config: Origin,
    balancer: Arc<Balancer>,
    servers: Arc<ServerList>,
    tls: OriginTlsFiles,
    counters: Arc<OriginCounters>,
    clock: Arc<dyn Clock>,
    /// The only server, where there is no choice: a single address without a health check.
    only: Option<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
}

/// How many servers an origin has.
pub struct ServerCounts {
    /// Those that requests are sent to.
    pub healthy: usize,
    /// All of them.
    pub all: usize,
}

impl OriginGroup {
    /// Resolves the servers and starts the tasks that watch them, on the runtime of the caller.
    ///
    /// Names that do not resolve are logged and tried again. Until then the origin has the servers of its other names.
    pub(in crate::proxy) async fn start(
        config: Origin,
        tls: OriginTlsFiles,
        counters: Arc<OriginCounters>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let servers = Arc::new(ServerList::new(config.slow_start.map(Nanos::from)));
        let mut backends = Backends::new(Box::new(ServerNames {
            servers: config.servers.clone(),
            list: Arc::clone(&servers),
            clock: Arc::clone(&clock),
        }));
        if let Some(check) = &config.health_check {
            let peer = peer(&config, ServerCheck::any_address(), &tls);
            let (list, clock) = (Arc::clone(&servers), Arc::clone(&clock));
            let check = ServerCheck::new(&config, check, peer, list, clock);
            backends.set_health_check(Box::new(check));
        }
        let balancer = Arc::new(Balancer::new(&config.balance, backends));
        match tokio::time::timeout(RESOLVE_TIMEOUT, balancer.resolve()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => log::error!("origin {}: {error}", config.name),
            Err(_) => log::error!("origin {}: its names did not resolve in time", config.name),
        }
        let tasks = watch(&config, &balancer);
        let only = match config.servers.as_slice() {
            [server] if config.health_check.is_none() => server.address.parse().ok(),
            _ => None,
        };
        Self { config, balancer, servers, tls, counters, clock, only, tasks }
    }

    /// The origin's configuration.
    pub const fn config(&self) -> &Origin {
        &self.config
    }

    /// The files of its TLS.
    pub(in crate::proxy) const fn tls(&self) -> &OriginTlsFiles {
        &self.tls
    }

    /// The origin's counters.
    pub const fn counters(&self) -> &Arc<OriginCounters> {
        &self.counters
    }

    /// How many servers are healthy.
    pub fn health(&self) -> ServerCounts {
        let known = self.servers.load();
        let healthy = known.all.iter().filter(|server| server.health.is_up()).count();
        ServerCounts { healthy, all: known.all.len() }
    }

    /// Every server as operators see it.
    pub fn reports(&self) -> Vec<ServerReport> {
        self.servers.reports(self.clock.now().mono)
    }

    /// Whether a server is left that may be asked, besides those that were tried.
    pub(in crate::proxy) fn has_another(&self, tried: &[SocketAddr]) -> bool {
        let is_left = |address: &SocketAddr, is_ill: bool| !is_ill && !tried.contains(address);
        let known = self.servers.load();
        known.all.iter().any(|server| is_left(&server.address, server.health.is_ill()))
    }

    /// A server for an attempt: one that was not tried before, that passes its health checks, and that answers as far as
    /// is known.
    pub(in crate::proxy) fn choose(
        &self,
        facts: &Facts<'_>,
        route: &Route,
        attempt: Attempt<'_>,
    ) -> Option<ChosenServer> {
        if let Some(address) = self.only {
            let is_untried = !attempt.tried.contains(&address);
            return is_untried.then_some(ChosenServer { address, in_flight: None });
        }
        let hashed = match &self.config.balance {
            Balance::Hash(source) => source.part(facts, route),
            Balance::RoundRobin | Balance::Random | Balance::LeastRequests => KeyPart::Absent,
        };
        let hashed = match &hashed {
            KeyPart::Present(value) => &value[..],
            KeyPart::Absent
            | KeyPart::Repeated
            | KeyPart::Unreadable
            | KeyPart::Unchecked
            | KeyPart::Unknowable
            | KeyPart::Unrecorded => b"",
        };
        self.balancer.choose(&self.servers, hashed, attempt)
    }

    /// Records that a server failed a request that began at `began`.
    pub(in crate::proxy) fn failed(
        &self,
        address: SocketAddr,
        failure: ServerFailure,
        began: Nanos,
    ) {
        let Some(server) = self.servers.find(&address) else {
            return;
        };
        let now = self.clock.now();
        let chance = fastrand::u32(..1_000);
        if let Some(exclusion) = server.health.failed(failure, began, now.mono, chance)
            && LOG_SAMPLER.admit_line(LogKind::OriginServer, self.clock.date(now))
        {
            let (name, label) = (&self.config.name, server.label());
            let span = RoundedSpan(exclusion);
            log::warn!("origin {name}: server {label} does not answer: left out for {span}");
        }
    }

    /// Records that a server answered a request that began at `began`.
    pub(in crate::proxy) fn answered(&self, address: SocketAddr, began: Nanos, now: Nanos) {
        if !self.servers.is_marked() {
            return;
        }
        let Some(server) = self.servers.find(&address) else {
            return;
        };
        let was_down = !server.health.is_up() && self.health().healthy == 0;
        if server.health.answered(began, now) {
            if was_down {
                // What made all of them fail at once was hardly in the servers.
                self.servers.try_all_now(now);
            }
            if LOG_SAMPLER.admit_line(LogKind::OriginServer, self.clock.date(self.clock.now())) {
                let name = &self.config.name;
                log::info!("origin {name}: server {} answers again", server.label());
            }
        }
    }

    /// The framework's description of a server: address, timeouts, TLS.
    pub fn peer(&self, server: SocketAddr) -> HttpPeer {
        peer(&self.config, server, &self.tls)
    }
}

impl Drop for OriginGroup {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Starts the tasks that look names up and check health.
fn watch(config: &Origin, balancer: &Arc<Balancer>) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    if config.servers.iter().any(|server| server.address.parse::<SocketAddr>().is_err()) {
        let (balancer, every) = (Arc::clone(balancer), config.resolve_every);
        let name = Arc::clone(&config.name);
        tasks.push(tokio::spawn(repeat(every, move || {
            let (balancer, name) = (Arc::clone(&balancer), Arc::clone(&name));
            async move {
                if let Err(error) = balancer.resolve().await {
                    log::warn!("origin {name}: {error}; the servers known before stay");
                }
            }
        })));
    }
    if let Some(check) = &config.health_check {
        let (balancer, every) = (Arc::clone(balancer), check.every);
        tasks.push(tokio::spawn(async move {
            // The first check runs at once, so that a dead server is known early.
            balancer.check().await;
            repeat(every, move || {
                let balancer = Arc::clone(&balancer);
                async move { balancer.check().await }
            })
            .await;
        }));
    }
    tasks
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

/// The framework's description of a server of an origin.
pub(super) fn peer(config: &Origin, server: SocketAddr, tls: &OriginTlsFiles) -> HttpPeer {
    let sni = config.tls.as_ref().map_or_else(String::new, |tls| tls.sni.clone());
    let mut peer = HttpPeer::new(server, config.tls.is_some(), sni);
    let options = &mut peer.options;
    options.connection_timeout = Some(config.timeouts.connect);
    options.total_connection_timeout = Some(config.timeouts.connect);
    options.read_timeout = Some(config.timeouts.read);
    options.write_timeout = Some(config.timeouts.write);
    options.idle_timeout = Some(config.timeouts.idle);
    if config.http2 {
        options.set_http_version(2, 2);
    } else {
        options.alpn = ALPN::H1;
    }
    tls.apply(&mut peer);
    peer
}
