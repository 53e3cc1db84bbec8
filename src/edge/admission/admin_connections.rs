//! Connections of operators: bounded in number, and none is held by a peer that is slow or silent.
//!
//! When there is no room, a new connection replaces an older one: of those that wait for a request the one that has
//! waited longest, and if there is none, the one whose request is served longest. An answer is made in one step, so what
//! is "served" for long waits for its peer: for the rest of a body, or to be read. A client with many connections
//! replaces its own. It does not know which requests are served. What must always hold: a new connection waits for no
//! peer longer than [`NEW_GRACE`], and no client takes all connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hashbrown::HashMap;
use parking_lot::Mutex;
use pingora::apps::http_app::HttpServer;
use pingora::apps::{HttpServerApp, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::sync::{Notify, oneshot};

use crate::clock::{Clock, Nanos};
use crate::policy::client;

/// Connections at once: more than operators, scrapers and probes of one node need. Descriptors are reserved for them.
const MAX_CONNECTIONS: usize = 128;

/// Connections of one client at once. The rest is for other clients.
const MAX_PER_CLIENT: usize = 96;

/// The bits of an IPv6 address that are one client: what one customer of a provider gets at least.
const IPV6_CLIENT_BITS: u8 = 64;

/// How long a new connection is not replaced, so that its request can arrive: a client sends it together with the last
/// packet of the handshake. It also bounds the work that a flood of connections causes, to [`MAX_PER_CLIENT`] in this
/// time, and how long those wait that were accepted behind it.
const NEW_GRACE: Nanos = Nanos::from_millis(40);

/// The time in which a request is served: its body read, its answer taken, and what is left of the body dropped.
/// Scrapers wait ten seconds by default.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The connections that are open.
pub(crate) struct AdminConnections {
    open: Mutex<HashMap<SocketAddr, AdminConnection>>,
    /// Notified when a connection ends.
    freed: Notify,
    clock: Arc<dyn Clock>,
}

struct AdminConnection {
    client: IpAddr,
    opened: Nanos,
    /// Whether a request is served.
    is_serving: bool,
    /// Since when it is served, or waits for a request.
    since: Nanos,
    /// Dropped when another connection replaces it.
    _close: oneshot::Sender<()>,
}

/// The permit of one connection; returned when dropped.
pub(in crate::edge) struct AdminPermit {
    connections: Arc<AdminConnections>,
    peer: SocketAddr,
    closed: oneshot::Receiver<()>,
}

impl AdminConnections {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { open: Mutex::default(), freed: Notify::new(), clock }
    }

    /// A permit for one more connection. Waits at most [`NEW_GRACE`].
    pub(in crate::edge) async fn permit(self: &Arc<Self>, peer: SocketAddr) -> AdminPermit {
        loop {
            let wait = match self.try_permit(peer) {
                Ok(permit) => return permit,
                Err(wait) => wait,
            };
            // Until a connection ends, or may be replaced.
            let _ = tokio::time::timeout(wait.into(), self.freed.notified()).await;
        }
    }

    /// `Err`: the time until some connection may be replaced.
    fn try_permit(self: &Arc<Self>, peer: SocketAddr) -> Result<AdminPermit, Nanos> {
        let now = self.clock.now().mono;
        let client = client::prefix(peer.ip(), IPV6_CLIENT_BITS);
        let mut open = self.open.lock();
        if let Some(holder) = holder_without_room(&open, client) {
            let replaced = replaceable(&open, holder, now)?;
            open.remove(&replaced);
        }
        let (close, closed) = oneshot::channel();
        let connection =
            AdminConnection { client, opened: now, is_serving: false, since: now, _close: close };
        open.insert(peer, connection);
        Ok(AdminPermit { connections: Arc::clone(self), peer, closed })
    }

    /// Records that a request begins.
    fn begin_request(&self, peer: SocketAddr) -> BusyGuard<'_> {
        self.set_serving(peer, true);
        BusyGuard { connections: self, peer }
    }

    fn set_serving(&self, peer: SocketAddr, is_serving: bool) {
        let now = self.clock.now().mono;
        if let Some(connection) = self.open.lock().get_mut(&peer) {
            (connection.is_serving, connection.since) = (is_serving, now);
        }
    }
}

/// The client of which a connection must end before `client` gets one more; `None` if there is room.
fn holder_without_room(
    open: &HashMap<SocketAddr, AdminConnection>,
    client: IpAddr,
) -> Option<IpAddr> {
    let held_by = |client: IpAddr| open.values().filter(|held| held.client == client).count();
    if held_by(client) >= MAX_PER_CLIENT {
        return Some(client);
    }
    if open.len() < MAX_CONNECTIONS {
        return None;
    }
    open.values().map(|held| held.client).max_by_key(|holder| held_by(*holder))
}

/// The connection of a client that is replaced next. `Err`: the time until there is one.
fn replaceable(
    open: &HashMap<SocketAddr, AdminConnection>,
    holder: IpAddr,
    now: Nanos,
) -> Result<SocketAddr, Nanos> {
    let held = || open.iter().filter(|(_, connection)| connection.client == holder);
    let safe_until = |connection: &AdminConnection| connection.opened.saturating_add(NEW_GRACE);
    held()
        .filter(|(_, connection)| safe_until(connection) <= now)
        .min_by_key(|(_, connection)| (connection.is_serving, connection.since))
        .map(|(peer, _)| *peer)
        .ok_or_else(|| {
            let first = held().map(|(_, connection)| safe_until(connection)).min();
            first.unwrap_or(now).saturating_sub(now)
        })
}

impl AdminPermit {
    /// Serves the connection until it ends or another one replaces it.
    pub(in crate::edge) async fn hold(mut self, serving: impl Future<Output = ()>) {
        tokio::select! {
            () = serving => {}
            _ = &mut self.closed => {}
        }
    }
}

impl Drop for AdminPermit {
    fn drop(&mut self) {
        // A replaced connection has no entry any more: another connection may use its address by now.
        if matches!(self.closed.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
            self.connections.open.lock().remove(&self.peer);
        }
        self.connections.freed.notify_one();
    }
}

/// Serves requests of operators, each within [`EXCHANGE_TIMEOUT`], and records which connections are busy.
pub(crate) struct AdminServer<A> {
    pub(crate) server: Arc<HttpServer<A>>,
    pub(crate) connections: Arc<AdminConnections>,
}

/// Held while a request is served.
struct BusyGuard<'c> {
    connections: &'c AdminConnections,
    peer: SocketAddr,
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.connections.set_serving(self.peer, false);
    }
}

#[async_trait]
impl<A> HttpServerApp for AdminServer<A>
where
    HttpServer<A>: HttpServerApp + Send + Sync + 'static,
    A: Send + Sync + 'static,
{
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        let peer = session.client_addr().and_then(|address| address.as_inet()).copied();
        let _busy = peer.map(|peer| self.connections.begin_request(peer));
        let serving = self.server.process_new_http(session, shutdown);
        tokio::time::timeout(EXCHANGE_TIMEOUT, serving).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    /// A connection of a client.
    fn peer(client: u8, n: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, client], 1_000 + u16::try_from(n).unwrap()))
    }

    struct Tested {
        clock: Arc<ManualClock>,
        connections: Arc<AdminConnections>,
    }

    impl Tested {
        fn new() -> Self {
            let clock = Arc::new(ManualClock::new(Nanos::SECOND));
            let connections = Arc::new(AdminConnections::new(Arc::clone(&clock) as _));
            Self { clock, connections }
        }

        /// So many connections of a client, each opened a millisecond after the one before.
        fn hold(&self, client: u8, connections: usize) -> Vec<AdminPermit> {
            let open = |n| {
                self.clock.advance(Nanos::from_millis(1));
                self.acquire(client, n).ok().unwrap()
            };
            (0..connections).map(open).collect()
        }

        fn acquire(&self, client: u8, n: usize) -> Result<AdminPermit, Nanos> {
            self.connections.try_permit(peer(client, n))
        }
    }

    fn is_replaced(permit: &mut AdminPermit) -> bool {
        permit.closed.try_recv() != Err(oneshot::error::TryRecvError::Empty)
    }

    #[test]
    fn the_longest_idle_connection_is_replaced_before_any_that_serves() {
        let all = Tested::new();
        let mut held = all.hold(1, MAX_PER_CLIENT);
        all.clock.advance(NEW_GRACE);
        let busy = all.connections.begin_request(peer(1, 0));
        let newest = all.acquire(1, 500).ok().unwrap();
        assert!(
            is_replaced(&mut held[1]) && !is_replaced(&mut held[0]) && !is_replaced(&mut held[2])
        );
        drop(held.remove(1));
        let open = || all.connections.open.lock().len();
        assert_eq!(open(), MAX_PER_CLIENT, "its permit belongs to another connection");
        // A request that ended is the youngest wait.
        all.clock.advance(Nanos::from_millis(1));
        drop(busy);
        let _other = all.acquire(1, 501).ok().unwrap();
        assert!(is_replaced(&mut held[1]) && !is_replaced(&mut held[0]));
        drop(newest);
        assert_eq!(open(), MAX_PER_CLIENT - 1);
        assert!(all.acquire(1, 502).is_ok(), "a permit that was returned");
    }

    #[test]
    fn where_all_serve_the_longest_served_is_replaced() {
        let all = Tested::new();
        let mut held = all.hold(1, MAX_PER_CLIENT);
        for n in (0..MAX_PER_CLIENT).rev() {
            all.clock.advance(Nanos::from_millis(1));
            std::mem::forget(all.connections.begin_request(peer(1, n)));
        }
        let _newest = all.acquire(1, 500).ok().unwrap();
        assert!(is_replaced(&mut held[MAX_PER_CLIENT - 1]) && !is_replaced(&mut held[0]));
    }

    #[test]
    fn a_new_connection_has_time_for_its_request() {
        let all = Tested::new();
        let _held: Vec<_> = (0..MAX_PER_CLIENT).map(|n| all.acquire(1, n).ok().unwrap()).collect();
        all.clock.advance(Nanos::from_millis(39));
        assert_eq!(all.acquire(1, 500).err(), Some(Nanos::from_millis(1)));
        all.clock.advance(Nanos::from_millis(1));
        assert!(all.acquire(1, 500).is_ok());
    }

    #[test]
    fn a_client_takes_neither_all_connections_nor_those_of_others() {
        let all = Tested::new();
        let mut operator = all.hold(2, 1);
        let mut held = all.hold(1, MAX_PER_CLIENT);
        all.clock.advance(NEW_GRACE);
        for n in 0..2 * MAX_CONNECTIONS {
            all.clock.advance(NEW_GRACE);
            held.push(all.acquire(1, 1_000 + n).ok().unwrap());
        }
        assert!(!is_replaced(&mut operator[0]), "it is the oldest");
        assert_eq!(all.connections.open.lock().len(), MAX_PER_CLIENT + 1);
        // When there is no room at all, the largest holder makes some.
        let mut third = all.hold(3, MAX_CONNECTIONS - MAX_PER_CLIENT - 1);
        all.clock.advance(NEW_GRACE);
        let _fourth = all.acquire(4, 0).ok().unwrap();
        assert!(!is_replaced(&mut operator[0]) && !third.iter_mut().any(is_replaced));
        assert_eq!(all.connections.open.lock().len(), MAX_CONNECTIONS);
    }

    #[test]
    fn an_ipv6_network_counts_as_a_single_client() {
        let all = Tested::new();
        let peer = |n: u16| SocketAddr::from(([0x2001, 0xdb8, 0, 0, n, 0, 0, 1], 1_000));
        let open = |n| all.connections.try_permit(peer(n)).ok();
        let held: Vec<_> = (0..u16::try_from(MAX_PER_CLIENT).unwrap()).filter_map(open).collect();
        assert_eq!(held.len(), MAX_PER_CLIENT);
        assert!(open(500).is_none(), "all are new");
    }
}
