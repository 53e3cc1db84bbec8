//! Serves the connections of one application: issues permits, and leads each connection through its phases.
//!
//! It does not know what the application does with requests. What must always hold: a connection that is refused or cut
//! is recorded with its reason, and one whose client leaves is not.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::{ALPN, Ssl};
use pingora::server::ShutdownWatch;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::admit::AdmittedConnection;
use crate::clock::{Clock, Nanos};
use crate::edge::admission::{ConnectionPermit, ConnectionPermits, HandshakeLimiter};
use crate::edge::cutoff::Cutoff;
use crate::edge::memory::{MemoryBudget, SlowReaders};
use crate::edge::policy::{ConnectionPolicy, ShedReason};
use crate::edge::tls::TlsAcceptor;
use crate::http::RejectReason;

/// How long handshakes may still take when the process stops accepting. A silent one must not keep an idle process
/// running.
const HANDSHAKE_GRACE: Duration = Duration::from_millis(200);

/// How the connections of one listener are served.
pub(crate) struct ListenerContext {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) proxy_protocol: bool,
    /// The port of https that requests are redirected to.
    pub(crate) https_port: Option<u16>,
}

/// Serves connections. Shared by all listeners of an application.
pub(crate) struct ConnectionServer<A> {
    pub(crate) app: Arc<A>,
    pub(crate) policy: Arc<dyn ConnectionPolicy>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) permits: Arc<ConnectionPermits>,
    pub(crate) handshakes: HandshakeLimiter,
    /// Whether the connections are operators'. [`AdminConnections`](crate::edge::admission::AdminConnections) bounds
    /// them, and no client is banned there.
    pub(crate) is_admin: bool,
    /// The number of connections for which there are descriptors.
    pub(crate) descriptors: usize,
    pub(crate) memory: Arc<MemoryBudget>,
    pub(crate) readers: Arc<SlowReaders>,
    pub(crate) cutoff: Arc<Cutoff>,
}

/// Why a connection ends without a response; `None` if the client has left.
pub(super) type ConnectionEnd = Option<RejectReason>;

impl<A> ConnectionServer<A>
where
    A: HttpServerApp + ServerApp + Send + Sync + 'static,
{
    /// Acquires a permit for a connection that was accepted; records the refusal if there is none. Called in the
    /// order of accepting.
    pub(in crate::edge) fn permit(
        &self,
        peer: SocketAddr,
        listener: &ListenerContext,
    ) -> Option<ConnectionPermit> {
        let rules = self.policy.rules();
        if !listener.proxy_protocol && self.is_banned(peer.ip()) {
            self.policy.record_rejected_connection(peer.ip(), RejectReason::Banned);
            return None;
        }
        let max = match self.is_admin {
            true => usize::MAX,
            false => rules.bounds.max_connections.min(self.descriptors),
        };
        // Behind a PROXY header the client is not the peer.
        let share = match listener.proxy_protocol || self.is_admin {
            true => None,
            false => rules.share_of(peer.ip()),
        };
        let permit = self.permits.acquire(max, share, self.clock.now().mono);
        match &permit {
            Some(permit) if permit.has_displaced => {
                self.policy.record_shed(ShedReason::IdleConnections);
            }
            Some(_) => {}
            None => self.policy.record_rejected_connection(peer.ip(), RejectReason::Connections),
        }
        permit
    }

    /// The current date.
    pub(in crate::edge) fn date(&self) -> Nanos {
        self.clock.date(self.clock.now())
    }

    pub(super) fn is_banned(&self, client: IpAddr) -> bool {
        !self.is_admin && self.policy.is_banned(client)
    }

    /// Serves a connection that was accepted on a listener.
    pub(in crate::edge) async fn serve(
        self: Arc<Self>,
        tcp: TcpStream,
        peer: SocketAddr,
        permit: ConnectionPermit,
        listener: Arc<ListenerContext>,
        shutdown: ShutdownWatch,
    ) {
        let admitted = tokio::select! {
            admitted = self.admit(tcp, peer, &listener, permit) => admitted,
            () = handshakes_end(shutdown.clone()) => Err(None),
        };
        match admitted {
            Ok(connection) => {
                self.cutoff.wake_when_cut(self.serve_http(connection, shutdown)).await;
            }
            Err(Some(reason)) => self.policy.record_rejected_connection(peer.ip(), reason),
            Err(None) => {}
        }
    }

    async fn serve_http(&self, connection: AdmittedConnection, shutdown: ShutdownWatch) {
        let AdmittedConnection { stream, client, permit } = connection;
        if matches!(stream.selected_alpn_proto(), Some(ALPN::H2)) {
            let state = stream.state();
            self.app.process_new(stream, &shutdown).await;
            if let Some(reason) = state.cut_reason() {
                self.policy.record_rejected_connection(client, reason);
            }
        } else {
            self.serve_http1(stream, client, &permit, shutdown).await;
        }
    }
}

/// Returns when the process has stopped accepting, and handshakes that had begun have had time to end.
async fn handshakes_end(mut shutdown: ShutdownWatch) {
    // An error means that the sender is gone, which is a shutdown as well.
    let _ = shutdown.wait_for(|is_stopping| *is_stopping).await;
    sleep(HANDSHAKE_GRACE).await;
}
