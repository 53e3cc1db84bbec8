//! Connections of operators: a bounded number, of which none is held by silence.
//!
//! When all are taken, a new connection takes the place of the one that has been idle for the longest
//! time. A connection is safe from that while its request is served, and for a short while after
//! it was opened, so that its request can arrive. A new connection waits that long if it must. So
//! somebody who opens connections again at once waits in the same queue as an operator, and each
//! round gives all places away anew.

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

/// How long a connection may be idle before another one may take its place. A request over a slow
/// line arrives within this time.
const IDLE_GRACE: Nanos = Nanos::SECOND;

/// How long a request is served before another connection may take its place. Only a client that
/// does not take its answer needs longer.
const BUSY_GRACE: Nanos = Nanos::from_secs(10);

/// From this age on a connection is safe only while a request is served: one that asks again and again
/// would keep its place for ever.
const SAFE_AGE: Nanos = Nanos::from_secs(10);

/// The connections that are open.
pub(crate) struct AdminConnections {
    open: Mutex<HashMap<SocketAddr, Open>>,
    /// Rings when a connection ends.
    freed: Notify,
    clock: Arc<dyn Clock>,
}

struct Open {
    since: Nanos,
    /// Another connection may take its place from then on.
    replaceable: Nanos,
    /// Dropped when another connection takes the place.
    _close: oneshot::Sender<()>,
}

/// The place of one connection; given up when dropped.
pub(crate) struct AdminPermit {
    of: Arc<AdminConnections>,
    peer: SocketAddr,
    closed: oneshot::Receiver<()>,
}

impl AdminConnections {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { open: Mutex::default(), freed: Notify::new(), clock }
    }

    /// A place for one more connection. Waits for [`IDLE_GRACE`] at most if any place is idle, else
    /// for [`BUSY_GRACE`].
    pub(crate) async fn permit(self: &Arc<Self>, peer: SocketAddr) -> AdminPermit {
        loop {
            let wait = match self.try_permit(peer) {
                Ok(permit) => return permit,
                Err(wait) => wait,
            };
            // Whichever comes first: a connection ends, or may be replaced.
            let _ = tokio::time::timeout(wait.into(), self.freed.notified()).await;
        }
    }

    /// `Err`: how long until some connection may be replaced.
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
        open.insert(peer, Open { since: now, replaceable, _close: close });
        Ok(AdminPermit { of: Arc::clone(self), peer, closed })
    }

    /// A request of a connection begins.
    fn begin(&self, peer: SocketAddr) -> Busy<'_> {
        let now = self.clock.now().mono;
        if let Some(connection) = self.open.lock().get_mut(&peer) {
            connection.replaceable = now.saturating_add(BUSY_GRACE);
        }
        Busy(self, peer)
    }

    /// A request of a connection has ended.
    fn end(&self, peer: SocketAddr) {
        let now = self.clock.now().mono;
        if let Some(connection) = self.open.lock().get_mut(&peer) {
            let old = connection.since.saturating_add(SAFE_AGE);
            connection.replaceable = now.saturating_add(IDLE_GRACE).min(old);
        }
    }
}

impl AdminPermit {
    /// Serves the connection until it ends or another one takes its place.
    pub(crate) async fn hold(mut self, serving: impl Future<Output = ()>) {
        tokio::select! {
            () = serving => {}
            _ = &mut self.closed => {}
        }
    }
}

impl Drop for AdminPermit {
    fn drop(&mut self) {
        // One that was replaced has nothing to give up: its port may be somebody else's by now.
        if matches!(self.closed.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
            self.of.open.lock().remove(&self.peer);
        }
        self.of.freed.notify_one();
    }
}

/// Serves requests of operators, and notes which connections are busy.
pub(crate) struct AdminServer<A> {
    pub(crate) server: Arc<HttpServer<A>>,
    pub(crate) connections: Arc<AdminConnections>,
}

/// A request is served; over when dropped.
struct Busy<'c>(&'c AdminConnections, SocketAddr);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
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
        let _busy = peer.map(|peer| self.connections.begin(peer));
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
    fn the_longest_idle_one_is_replaced_and_no_busy_one() {
        let clock = Arc::new(ManualClock::new(Nanos::SECOND));
        let connections = Arc::new(AdminConnections::new(Arc::clone(&clock) as _));
        let take = |n| connections.try_permit(peer(n));
        let mut held = Vec::new();
        for n in 0..MAX_CONNECTIONS {
            held.push(take(n).ok().unwrap());
            clock.advance(Nanos::from_millis(1));
        }
        let busy = connections.begin(peer(0));
        // The second is idle for 99 ms.
        assert_eq!(take(500).err(), Some(Nanos::from_millis(901)));
        clock.advance(Nanos::from_millis(901));
        let newest = take(500).ok().unwrap();
        assert!(held[1].closed.try_recv().is_err_and(|e| e != oneshot::error::TryRecvError::Empty));
        assert!(held[0].closed.try_recv() == Err(oneshot::error::TryRecvError::Empty), "busy");
        assert_eq!(take(501).err(), Some(Nanos::from_millis(1)), "and the next one soon");
        let replaced = held.remove(1);
        drop(replaced);
        assert_eq!(connections.open.lock().len(), MAX_CONNECTIONS, "its place is another's");
        drop(newest);
        assert!(take(502).is_ok(), "a place that was given up");
        drop((busy, held));
    }

    #[test]
    fn a_connection_that_asks_again_and_again_is_replaced_between_two_requests() {
        let clock = Arc::new(ManualClock::new(Nanos::SECOND));
        let connections = Arc::new(AdminConnections::new(Arc::clone(&clock) as _));
        let take = |n| connections.try_permit(peer(n));
        let _held: Vec<_> = (0..MAX_CONNECTIONS).map(|n| take(n).ok().unwrap()).collect();
        for _ in 0..19 {
            clock.advance(Nanos::from_millis(500));
            (0..MAX_CONNECTIONS).for_each(|n| drop(connections.begin(peer(n))));
            assert!(take(500).is_err(), "each is idle for half a second");
        }
        clock.advance(Nanos::from_millis(500));
        (1..MAX_CONNECTIONS).for_each(|n| std::mem::forget(connections.begin(peer(n))));
        let newest = take(500);
        assert!(newest.is_ok(), "the one that is not served is old");
        assert!(take(501).is_err(), "the others are served");
    }
}
