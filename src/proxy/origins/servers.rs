//! The servers of one origin: their addresses, and for each its health and its requests in flight.
//!
//! A list is replaced when names are resolved. A server that stays keeps what is known about it. It does not know how a
//! server is chosen. What must always hold: a request that is counted for a server is counted until its guard is dropped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use arc_swap::{ArcSwap, Guard};
use hashbrown::HashMap;

use super::health::ServerHealth;
use crate::clock::Nanos;

/// One server.
#[derive(Debug)]
pub(super) struct KnownServer {
    pub(super) address: SocketAddr,
    /// What metrics call it: the address as configured, or a name with the address that it resolved to.
    label: Arc<str>,
    weight: AtomicU32,
    pub(super) health: ServerHealth,
    requests: AtomicUsize,
}

/// An address that a configured server has now.
pub(super) struct ResolvedServer {
    pub(super) address: SocketAddr,
    pub(super) weight: u16,
    pub(super) label: Arc<str>,
}

/// A server as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// What metrics call it.
    pub label: Arc<str>,
    /// Whether requests are sent to it.
    pub is_up: bool,
    /// For how long no request tries it, if requests found that it does not answer.
    pub left_out_for: Option<Nanos>,
}

/// The servers that an origin has now.
#[derive(Debug)]
pub(super) struct ServerList {
    known: ArcSwap<KnownServers>,
    slow_start: Option<Nanos>,
    marks: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
pub(super) struct KnownServers {
    pub(super) all: Vec<Arc<KnownServer>>,
    by_address: HashMap<SocketAddr, Arc<KnownServer>>,
}

impl KnownServers {
    /// The server with this address.
    pub(super) fn find(&self, address: &SocketAddr) -> Option<&Arc<KnownServer>> {
        self.by_address.get(address)
    }
}

impl ServerList {
    /// Without servers.
    pub(super) fn new(slow_start: Option<Nanos>) -> Self {
        Self { known: ArcSwap::default(), slow_start, marks: Arc::default() }
    }

    /// Whether anything is known that a choice or an answer must look at: failures, exclusions, growing shares.
    pub(super) fn is_marked(&self) -> bool {
        self.marks.load(Ordering::Relaxed) > 0
    }

    /// The servers, each address once.
    pub(super) fn load(&self) -> Guard<Arc<KnownServers>> {
        self.known.load()
    }

    /// The server with this address.
    pub(super) fn find(&self, address: &SocketAddr) -> Option<Arc<KnownServer>> {
        self.known.load().find(address).cloned()
    }

    /// Replaces the servers. An address that occurs several times has the weight of all of them.
    pub(super) fn replace(&self, resolved: &[ResolvedServer], now: Nanos) {
        let before = self.known.load();
        let mut next = KnownServers::default();
        for ResolvedServer { address, weight, label } in resolved {
            if let Some(server) = next.by_address.get(address) {
                server.weight.fetch_add(u32::from(*weight), Ordering::Relaxed);
                continue;
            }
            let server = match before.by_address.get(address).filter(|known| known.label == *label)
            {
                Some(known) => {
                    known.weight.store(u32::from(*weight), Ordering::Relaxed);
                    Arc::clone(known)
                }
                None => {
                    let server = self.appeared(*address, *weight, label);
                    // All servers of a new origin begin at once.
                    if !before.all.is_empty() {
                        server.health.appeared(now);
                    }
                    server
                }
            };
            next.by_address.insert(*address, Arc::clone(&server));
            next.all.push(server);
        }
        self.known.store(Arc::new(next));
    }

    fn appeared(&self, address: SocketAddr, weight: u16, label: &Arc<str>) -> Arc<KnownServer> {
        Arc::new(KnownServer {
            address,
            label: Arc::clone(label),
            weight: AtomicU32::new(weight.into()),
            health: ServerHealth::new(self.slow_start, Arc::clone(&self.marks)),
            requests: AtomicUsize::new(0),
        })
    }

    /// Lets the next requests try the servers that are left out.
    pub(super) fn try_all_now(&self, now: Nanos) {
        self.known.load().all.iter().for_each(|server| server.health.try_now(now));
    }

    /// Every server as operators see it.
    pub(super) fn reports(&self, now: Nanos) -> Vec<ServerReport> {
        let report = |server: &Arc<KnownServer>| ServerReport {
            label: Arc::clone(&server.label),
            is_up: server.health.is_up(),
            left_out_for: server.health.left_out_for(now),
        };
        self.known.load().all.iter().map(report).collect()
    }
}

impl KnownServer {
    /// What metrics call it.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Its share of the requests relative to other servers.
    pub(super) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Requests in flight, of those that are counted ([`InFlight`]).
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

/// A request that is counted for a server until this is dropped.
#[derive(Debug)]
pub(in crate::proxy) struct InFlight(Arc<KnownServer>);

impl InFlight {
    /// Counts one more request.
    pub(super) fn begin(server: &Arc<KnownServer>) -> Self {
        server.requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(server))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::origins::health::ServerFailure;

    fn resolved(servers: &[(&str, u16)]) -> Vec<ResolvedServer> {
        let servers = servers.iter().map(|(address, weight)| ResolvedServer {
            address: address.parse().unwrap(),
            weight: *weight,
            label: Arc::from(*address),
        });
        servers.collect()
    }

    #[test]
    fn a_server_that_stays_keeps_what_is_known_about_it() {
        let list = ServerList::new(Some(Nanos::SECOND));
        list.replace(
            &resolved(&[("192.0.2.1:1", 1), ("192.0.2.2:1", 2), ("192.0.2.2:1", 3)]),
            Nanos::ZERO,
        );
        let weights: Vec<u32> = list.load().all.iter().map(|server| server.weight()).collect();
        assert_eq!((weights, list.is_marked()), (vec![1, 5], false));
        let second = list.find(&"192.0.2.2:1".parse().unwrap()).unwrap();
        let began = InFlight::begin(&second);
        for _ in 0..3 {
            second.health.failed(ServerFailure::Connection, Nanos::ZERO, Nanos::ZERO, 500);
        }
        list.replace(&resolved(&[("192.0.2.2:1", 4), ("192.0.2.3:1", 1)]), Nanos::SECOND);
        let same = list.find(&second.address).unwrap();
        assert!(Arc::ptr_eq(&same, &second) && !same.health.is_up());
        assert_eq!((same.weight(), same.requests()), (4, 1));
        let third = list.find(&"192.0.2.3:1".parse().unwrap()).unwrap();
        assert!(third.health.share(Nanos::SECOND) < third.health.share(Nanos::from_secs(3)));
        drop((began, second, same, third));
        list.replace(&[], Nanos::SECOND);
        assert!(!list.is_marked(), "servers that have gone leave nothing");
        assert_eq!(list.reports(Nanos::ZERO), []);
    }
}
