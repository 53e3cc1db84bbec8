//! One configuration as the proxy serves it. A request holds on to one from beginning to end.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use pingora::protocols::tls::CaType;

use super::origin::{self, OriginGroup, OriginTally};
use crate::config::{AccessLog, Admin, Bounds, Config, Origin, Responses, StoreConfig};
use crate::edge::{ConnectionRules, ShedReason};
use crate::engine::{Engine, Generation, ReloadReport};
use crate::http::{FieldRules, HeadBounds, PolicyMembers, RejectReason};
use crate::policy::RouteIndex;
use crate::policy::client::ClientRules;

/// Everything that is loaded, built whole before the first request sees it.
pub struct Live {
    /// The policy with its counters.
    pub generation: Generation,
    /// What connections are served by.
    pub connections: Arc<ConnectionRules>,
    /// In the order that routes name them by.
    pub origins: Vec<Arc<OriginGroup>>,
    /// One per route.
    pub responses: Vec<Arc<Responses>>,
    /// What the answers say of each limit.
    pub(crate) members: PolicyMembers,
    /// Where no route was found.
    pub default_responses: Arc<Responses>,
    /// What becomes of fields that readers take for others.
    pub field_rules: FieldRules,
    /// What is logged.
    pub access_log: AccessLog,
    /// What was fixed when the process started.
    pub fixed: Fixed,
    /// One per route, and one for requests without.
    tallies: Vec<Arc<RouteTally>>,
    no_route: Arc<RouteTally>,
}

/// What a reload cannot change: sockets, threads and the settings of HTTP/2 are made once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    listeners: Vec<(SocketAddr, bool, bool)>,
    admin: Option<Admin>,
    threads: Option<NonZeroUsize>,
    h2_streams: u32,
    header_size: usize,
    idle_timeout: Duration,
    store: StoreConfig,
}

impl Fixed {
    /// The fixed part of a configuration.
    pub fn of(config: &Config) -> Self {
        let listeners = config.listeners.iter();
        Self {
            listeners: listeners
                .map(|one| (one.address, one.certificates.is_empty(), one.proxy_protocol))
                .collect(),
            admin: config.admin.clone(),
            threads: config.threads,
            h2_streams: config.bounds.h2_streams,
            header_size: config.bounds.header_size,
            idle_timeout: config.bounds.idle_timeout,
            store: config.store.clone(),
        }
    }

    /// The first key that another configuration has otherwise.
    pub fn difference(&self, next: &Self) -> Option<&'static str> {
        if self.listeners != next.listeners {
            Some("listeners")
        } else if self.admin != next.admin {
            Some("admin")
        } else if self.threads != next.threads {
            Some("threads")
        } else if self.h2_streams != next.h2_streams {
            Some("limits_of_this_proxy.h2_streams")
        } else if self.header_size != next.header_size {
            Some("limits_of_this_proxy.header_size")
        } else if self.idle_timeout != next.idle_timeout {
            Some("limits_of_this_proxy.idle_timeout")
        } else if self.store != next.store {
            Some("store")
        } else {
            None
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The origin answered.
    Forwarded,
    /// A limit refused it.
    Limited,
    /// It was not clean, or matched nothing.
    Rejected,
    /// The origin did not answer.
    Failed,
}

impl RequestOutcome {
    /// Every outcome, in the order of the counters.
    pub const ALL: [Self; 4] = [Self::Forwarded, Self::Limited, Self::Rejected, Self::Failed];

    /// The word of the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::Limited => "limited",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
        }
    }
}

/// How a route's requests ended, over all generations.
#[derive(Debug, Default)]
pub struct RouteTally([AtomicU64; RequestOutcome::ALL.len()]);

impl RouteTally {
    pub(super) fn count(&self, outcome: RequestOutcome) {
        self.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many ended so.
    pub fn get(&self, outcome: RequestOutcome) -> u64 {
        self.0[outcome as usize].load(Ordering::Relaxed)
    }
}

/// What the proxy counts over all configurations.
#[derive(Debug, Default)]
pub struct TrafficCounters {
    routes: Mutex<HashMap<Arc<str>, Arc<RouteTally>>>,
    origins: Mutex<HashMap<Arc<str>, Arc<OriginTally>>>,
    reasons: [AtomicU64; RejectReason::ALL.len()],
    shed: [AtomicU64; ShedReason::ALL.len()],
}

impl TrafficCounters {
    /// The tally of requests without a route has this name; no route can have it.
    pub const NO_ROUTE: &'static str = "";

    pub(super) fn reject(&self, reason: RejectReason) {
        self.reasons[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what there was no room for.
    pub fn shed(&self, why: ShedReason) {
        self.shed[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How much was refused or closed because there was no room for it.
    pub fn times_shed(&self, why: ShedReason) -> u64 {
        self.shed[why as usize].load(Ordering::Relaxed)
    }

    /// How many requests were refused for a reason.
    pub fn rejected(&self, reason: RejectReason) -> u64 {
        self.reasons[reason as usize].load(Ordering::Relaxed)
    }

    /// Every route that ever was, with its tally.
    pub fn routes(&self) -> Vec<(Arc<str>, Arc<RouteTally>)> {
        sorted(&self.routes)
    }

    /// Every origin that ever was, with its tally.
    pub fn origins(&self) -> Vec<(Arc<str>, Arc<OriginTally>)> {
        sorted(&self.origins)
    }
}

impl Live {
    /// Loads a configuration: origins that did not change go on with what they know of their
    /// servers, counters go on by name.
    pub async fn build(
        config: Config,
        engine: &Engine,
        counters: &TrafficCounters,
        previous: Option<&Self>,
    ) -> (Self, ReloadReport) {
        let fixed = Fixed::of(&config);
        let field_rules = FieldRules::of(&config);
        let mut origins = Vec::with_capacity(config.origins.len());
        for meant in config.origins {
            let before = previous.and_then(|previous| previous.origin_like(&meant));
            origins.push(match before {
                Some(before) => before,
                None => Arc::new(start(meant, counters).await),
            });
        }
        let routes = config.policy.routes.iter();
        let tallies = routes.map(|route| of(&counters.routes, &route.name)).collect();
        let (generation, report) =
            engine.generation(config.policy, previous.map(|previous| &previous.generation));
        let live = Self {
            connections: Arc::new(ConnectionRules {
                head: HeadBounds::of(&config.bounds),
                bounds: Arc::new(config.bounds),
                clients: config.clients,
            }),
            origins,
            members: PolicyMembers::of(generation.policy()),
            responses: config.responses,
            default_responses: config.default_responses,
            field_rules,
            access_log: config.access_log,
            fixed,
            tallies,
            no_route: of(&counters.routes, &Arc::from(TrafficCounters::NO_ROUTE)),
            generation,
        };
        (live, report)
    }

    /// The tally of a route, or of requests without.
    pub fn tally(&self, route: Option<RouteIndex>) -> &RouteTally {
        route.and_then(|route| self.tallies.get(route.0)).unwrap_or(&self.no_route)
    }

    /// How answers look on a route.
    pub fn responses(&self, route: Option<RouteIndex>) -> &Responses {
        route.and_then(|route| self.responses.get(route.0)).unwrap_or(&self.default_responses)
    }

    /// Bounds of the proxy itself.
    pub fn bounds(&self) -> &Arc<Bounds> {
        &self.connections.bounds
    }

    /// Which peers are believed about clients' addresses.
    pub fn clients(&self) -> &ClientRules {
        &self.connections.clients
    }

    /// Bits of an IPv6 address that identify one client.
    pub fn ipv6_prefix(&self) -> u8 {
        self.connections.clients.ipv6_prefix
    }

    fn origin_like(&self, meant: &Origin) -> Option<Arc<OriginGroup>> {
        // A file of roots may have new content under its old name.
        let reads_a_file = meant.tls.as_ref().is_some_and(|tls| tls.ca_file.is_some());
        let same = self.origins.iter().find(|origin| origin.meant() == meant);
        same.filter(|_| !reads_a_file).cloned()
    }
}

async fn start(meant: Origin, counters: &TrafficCounters) -> OriginGroup {
    let tally = of(&counters.origins, &meant.name);
    OriginGroup::start(meant.clone(), roots_of(&meant), tally).await
}

/// The file was read when the configuration was checked; if it has gone since, no certificate is
/// trusted, which fails closed and says so at the first request.
fn roots_of(meant: &Origin) -> Option<Arc<CaType>> {
    let file = meant.tls.as_ref()?.ca_file.as_ref()?;
    let pem = std::fs::read(file).unwrap_or_else(|error| {
        log::error!("origin {}: cannot read {}: {error}", meant.name, file.display());
        Vec::new()
    });
    Some(origin::roots(&pem))
}

fn of<T: Default>(by_name: &Mutex<HashMap<Arc<str>, Arc<T>>>, name: &Arc<str>) -> Arc<T> {
    Arc::clone(by_name.lock().entry(Arc::clone(name)).or_default())
}

fn sorted<T>(by_name: &Mutex<HashMap<Arc<str>, Arc<T>>>) -> Vec<(Arc<str>, Arc<T>)> {
    let mut all: Vec<_> =
        by_name.lock().iter().map(|(n, t)| (Arc::clone(n), Arc::clone(t))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}
