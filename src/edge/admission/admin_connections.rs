//! Connections of operators: bounded in number, and none is held by silence.
//!
//! When all permits are taken, a new connection replaces the one that has been idle longest. A connection is safe from
//! that while its request is served, and for a short time after it was opened, so that its request can arrive; a new
//! connection waits that long if necessary. It does not know which requests are served. What must always hold: a client
//! that keeps opening connections waits in the same queue as an operator, and no connection keeps its permit for ever.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hashbrown::HashMap;
use parking_lot::Mutex;
use pingora::apps::http_app::HttpServer;
use pingora::apps::{HttpServerApp, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::sync::{Notify, oneshot};

use crate::clock::{Clock, Nanos};

/// Connections at once: more than operators, scrapers and probes of one node need.
const MAX_CONNECTIONS: usize = 100;

/// How long a connection may be idle before another one may replace it. A request over a slow line arrives within this
/// time.
const IDLE_GRACE: Nanos = Nanos::SECOND;

/// How long a request may be served before another connection may replace its connection. Only a client that does not
/// read its response needs longer.
const BUSY_GRACE: Nanos = Nanos::from_secs(10);

/// From this age on a connection is safe only while a request is served. Otherwise a connection with one request after
/// the other would keep its permit for ever.
const SAFE_AGE: Nanos = Nanos::from_secs(10);

/// The connections that are open.
pub(crate) struct AdminConnections {
    open: Mutex<HashMap<SocketAddr, AdminConnection>>,
    /// Notified when a connection ends.
    freed: Notify,
    clock: Arc<dyn Clock>,
}

struct AdminConnection {
    opened: Nanos,
    /// From this time on another connection may replace it.
    replaceable: Nanos,
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

    /// A permit for one more connection. Waits at most [`IDLE_GRACE`] if any connection is idle, else at most
    /// [`BUSY_GRACE`].
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
        let mut open = self.open.lock();
        if open.len() >= MAX_CONNECTIONS {
            let first = open.iter().min_by_key(|(_, connection)| connection.replaceable);
            let first = first.map(|(peer, connection)| (*peer, connection.replaceable));
            if let Some((peer, replaceable)) = first {
                if replaceable > now {
                    return Err(replaceable.saturating_sub(now));
                }
                open.remove(&peer);
            }
        }
        let (close, closed) = oneshot::channel();
        let replaceable = now.saturating_add(IDLE_GRACE);
        open.insert(peer, AdminConnection { opened: now, replaceable, _close: close });
        Ok(AdminPermit { connections: Arc::clone(self), peer, closed })
    }

    /// Records that a request begins.
    fn begin_request(&self, peer: SocketAddr) -> BusyGuard<'_> {
        let now = self.clock.now().mono;
        if let Some(connection) = self.open.lock().get_mut(&peer) {
            connection.replaceable = now.saturating_add(BUSY_GRACE);
        }
        BusyGuard { connections: self, peer }
    }

    /// Records that a request has ended.
    fn end_request(&self, peer: SocketAddr) {
        let now = self.clock.now().mono;
        if let Some(connection) = self.open.lock().get_mut(&peer) {
            let safe_until = connection.opened.saturating_add(SAFE_AGE);
            connection.replaceable = now.saturating_add(IDLE_GRACE).min(safe_until);
        }
    }
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

/// Serves requests of operators and records which connections are busy.
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
        self.connections.end_request(self.peer);
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
        self.server.process_new_http(session, shutdown).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn peer(n: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1_000 + u16::try_from(n).unwrap()))
    }

    #[test]
    fn the_longest_idle_connection_is_replaced_and_busy_connections_are_not() {
        let clock = Arc::new(ManualClock::new(Nanos::SECOND));
        let connections = Arc::new(AdminConnections::new(Arc::clone(&clock) as _));
        let acquire = |n| connections.try_permit(peer(n));
        let mut held = Vec::new();
        for n in 0..MAX_CONNECTIONS {
            held.push(acquire(n).ok().unwrap());
            clock.advance(Nanos::from_millis(1));
        }
        let busy = connections.begin_request(peer(0));
        // The second connection is idle for 99 ms.
        assert_eq!(acquire(500).err(), Some(Nanos::from_millis(901)));
        clock.advance(Nanos::from_millis(901));
        let newest = acquire(500).ok().unwrap();
        assert!(held[1].closed.try_recv().is_err_and(|e| e != oneshot::error::TryRecvError::Empty));
        assert!(held[0].closed.try_recv() == Err(oneshot::error::TryRecvError::Empty), "busy");
        assert_eq!(
            acquire(501).err(),
            Some(Nanos::from_millis(1)),
            "the next connection is replaceable soon"
        );
        let replaced = held.remove(1);
        drop(replaced);
        assert_eq!(
            connections.open.lock().len(),
            MAX_CONNECTIONS,
            "its permit belongs to another connection"
        );
        drop(newest);
        assert!(acquire(502).is_ok(), "a permit that was returned");
        drop((busy, held));
    }

    #[test]
    fn a_connection_that_keeps_sending_requests_is_replaced_between_two() {
        let clock = Arc::new(ManualClock::new(Nanos::SECOND));
        let connections = Arc::new(AdminConnections::new(Arc::clone(&clock) as _));
        let acquire = |n| connections.try_permit(peer(n));
        let _held: Vec<_> = (0..MAX_CONNECTIONS).map(|n| acquire(n).ok().unwrap()).collect();
        for _ in 0..19 {
            clock.advance(Nanos::from_millis(500));
            (0..MAX_CONNECTIONS).for_each(|n| drop(connections.begin_request(peer(n))));
            assert!(acquire(500).is_err(), "each is idle for half a second");
        }
        clock.advance(Nanos::from_millis(500));
        (1..MAX_CONNECTIONS).for_each(|n| std::mem::forget(connections.begin_request(peer(n))));
        let newest = acquire(500);
        assert!(newest.is_ok(), "the connection without a request is old");
        assert!(acquire(501).is_err(), "the others serve a request");
    }
}
