//! One configuration as the proxy serves it.
//!
//! It is complete before the first request uses it, and a request keeps the configuration that it began with. Counters,
//! and origins whose settings did not change, continue from the previous configuration. It does not know when a reload
//! happens.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::origins::{OriginGroup, OriginTlsFiles};
use super::traffic::{RouteTraffic, TrafficCounters};
use crate::clock::Nanos;
use crate::config::{
    AccessLog, Admin, Bounds, Config, Listener, Origin, Responses, RouteEdits, StoreConfig,
};
use crate::edge::ConnectionRules;
use crate::engine::{Engine, Generation, ReloadReport};
use crate::http::{FieldRules, HeadBounds, PolicyMembers, ServedHosts};
use crate::jwks;
use crate::policy::client::ClientRules;
use crate::policy::{PerRoute, RouteIndex};
use crate::refusals::PolicyNames;
use crate::tokens::KeySetReport;

/// Held while a configuration is put in force.
#[derive(Debug, Default)]
pub struct Publishing {
    /// Whether a successor counts. It knows the configurations up to then, so none is put in force here any more.
    pub is_handed_over: bool,
}

/// A configuration in force, with everything that was built from it.
pub struct Live {
    /// The sum of its files, by which operators tell versions apart.
    pub config_hash: Arc<str>,
    /// The policy with its counters.
    pub generation: Generation,
    /// The token of the admin listener; `None`: reading needs no token, and nothing can be changed.
    pub admin_token: Option<Arc<str>>,
    /// The rules for connections.
    pub connections: Arc<ConnectionRules>,
    /// The origins, in the order in which routes refer to them.
    pub origins: Vec<Arc<OriginGroup>>,
    /// What answers look like and what is counted, for each route.
    routes: Arc<PerRoute<LiveRoute>>,
    /// The members of `RateLimit-Policy`, written once for all responses.
    pub(crate) members: PolicyMembers,
    /// How refusals look where no route was found.
    pub default_responses: Arc<Responses>,
    /// The rules for fields that origins may read as other fields.
    pub field_rules: FieldRules,
    /// The hosts that a redirect may lead to.
    pub served_hosts: ServedHosts,
    /// What is logged.
    pub access_log: AccessLog,
    /// What was fixed when the process started.
    pub fixed: Fixed,
    /// The counters of requests without a route.
    no_route: RouteTraffic,
    /// The numbers of its names, for records of refusals.
    pub(super) refusal_names: Arc<PolicyNames>,
}

/// What belongs to one route.
struct LiveRoute {
    responses: Arc<Responses>,
    edits: Arc<RouteEdits>,
    traffic: RouteTraffic,
}

/// What a reload cannot change of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FixedListener {
    name: Option<Arc<str>>,
    address: SocketAddr,
    has_tls: bool,
    asks_clients: bool,
    https_port: Option<u16>,
    proxy_protocol: bool,
}

impl FixedListener {
    fn of(listener: &Listener) -> Self {
        Self {
            name: listener.name.clone(),
            address: listener.address,
            has_tls: !listener.certificates.is_empty(),
            asks_clients: listener.client_ca.is_some(),
            https_port: listener.https_port,
            proxy_protocol: listener.proxy_protocol,
        }
    }
}

/// What a reload cannot change: sockets, threads and the settings of HTTP/2 are made once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    listeners: Vec<FixedListener>,
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
            listeners: listeners.map(FixedListener::of).collect(),
            // The token may be another one after a reload.
            admin: config.admin.clone().map(|admin| Admin { token: None, ..admin }),
            threads: config.threads,
            h2_streams: config.bounds.h2_streams,
            header_size: config.bounds.header_size,
            idle_timeout: config.bounds.idle_timeout,
            store: config.store.clone(),
        }
    }

    /// The first key that differs in another configuration.
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

impl Live {
    /// Builds a configuration. Origins that did not change keep what they know about their servers, and counters
    /// continue by name.
    pub async fn build(
        config: Config,
        engine: &Engine,
        counters: &TrafficCounters,
        previous: Option<&Self>,
    ) -> (Self, ReloadReport) {
        let fixed = Fixed::of(&config);
        let field_rules = FieldRules::of(&config);
        let mut origins = Vec::with_capacity(config.origins.len());
        for origin in config.origins {
            let files = OriginTlsFiles::read(&origin);
            let before = previous.and_then(|previous| previous.origin_like(&origin, &files));
            origins.push(match before {
                Some(before) => before,
                None => {
                    let own_counters = counters.origin(&origin.name);
                    let group = OriginGroup::start(origin, files, own_counters, engine.clock());
                    Arc::new(group.await)
                }
            });
        }
        let (responses, edits) = (config.responses, config.edits);
        let served_hosts = ServedHosts::of(&config.policy);
        counters.forget_old_details();
        let routes = PerRoute::of(&config.policy.routes, |index, route| LiveRoute {
            responses: Arc::clone(&responses[index]),
            edits: Arc::clone(&edits[index]),
            traffic: counters.route(&route.name),
        });
        let (generation, report) =
            engine.generation(config.policy, previous.map(|previous| &previous.generation));
        jwks::wait_for_first(&generation.policy().key_sets, &engine.clock()).await;
        let live = Self {
            config_hash: config.hash,
            admin_token: config.admin.and_then(|admin| admin.token).map(Arc::from),
            connections: Arc::new(ConnectionRules {
                head: HeadBounds::of(&config.bounds),
                bounds: Arc::new(config.bounds),
                clients: config.clients,
            }),
            origins,
            members: PolicyMembers::of(generation.policy()),
            routes: Arc::new(routes),
            default_responses: config.default_responses,
            field_rules,
            served_hosts,
            access_log: config.access_log,
            fixed,
            no_route: counters.no_route(),
            refusal_names: Arc::new(counters.refusals().names_of(generation.policy())),
            generation,
        };
        (live, report)
    }

    /// The same configuration with another generation of its policy, which continues all counters.
    pub fn with_generation(&self, generation: Generation) -> Self {
        Self {
            config_hash: Arc::clone(&self.config_hash),
            admin_token: self.admin_token.clone(),
            connections: Arc::clone(&self.connections),
            origins: self.origins.clone(),
            routes: Arc::clone(&self.routes),
            members: PolicyMembers::of(generation.policy()),
            default_responses: Arc::clone(&self.default_responses),
            field_rules: self.field_rules.clone(),
            served_hosts: self.served_hosts.clone(),
            access_log: self.access_log.clone(),
            fixed: self.fixed.clone(),
            no_route: self.no_route.clone(),
            refusal_names: Arc::clone(&self.refusal_names),
            generation,
        }
    }

    /// The counters of a route, or of requests without one.
    pub(super) fn traffic(&self, route: Option<RouteIndex>) -> &RouteTraffic {
        route
            .and_then(|route| self.routes.get(route))
            .map_or(&self.no_route, |route| &route.traffic)
    }

    /// The sets of keys at URLs, at `now` (monotonic).
    pub fn key_sets(&self, now: Nanos) -> impl Iterator<Item = KeySetReport> {
        self.generation.policy().key_sets.iter().map(move |set| set.report(now))
    }

    /// How answers look on a route.
    pub fn responses(&self, route: Option<RouteIndex>) -> &Responses {
        route
            .and_then(|route| self.routes.get(route))
            .map_or(&self.default_responses, |route| &route.responses)
    }

    /// What is changed in the header fields of a route's requests and answers.
    pub(super) fn edits(&self, route: RouteIndex) -> Option<&RouteEdits> {
        self.routes.get(route).map(|route| &*route.edits)
    }

    /// Bounds of the proxy itself.
    pub fn bounds(&self) -> &Arc<Bounds> {
        &self.connections.bounds
    }

    /// Which peers are trusted to name clients' addresses.
    pub fn clients(&self) -> &ClientRules {
        &self.connections.clients
    }

    /// Bits of an IPv6 address that identify one client.
    pub fn ipv6_prefix(&self) -> u8 {
        self.connections.clients.ipv6_prefix
    }

    /// The origin of this configuration with the same settings, and the same content of the files that they name.
    fn origin_like(&self, config: &Origin, files: &OriginTlsFiles) -> Option<Arc<OriginGroup>> {
        let is_same = |origin: &&Arc<OriginGroup>| {
            origin.config() == config && origin.tls().group() == files.group()
        };
        self.origins.iter().find(is_same).cloned()
    }
}
