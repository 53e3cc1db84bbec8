//! Accepts connections until the process stops accepting.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::Service;

use tokio::sync::watch;

use super::admin_connections::AdminConnections;
use super::connection::{ConnectionServer, ListenerContext};
use crate::log_sampler::{LOG_SAMPLER, LogKind};
use crate::signals::OperatorRequests;

/// After an accept that failed for want of descriptors or memory: others must end first.
const BREATHER: Duration = Duration::from_millis(100);

/// A service of the framework: its own sockets, its own runtime.
pub(crate) struct ListenerService<A> {
    pub(crate) name: &'static str,
    pub(crate) threads: usize,
    pub(crate) connections: Arc<ConnectionServer<A>>,
    pub(crate) listeners: Vec<(TcpListener, Arc<ListenerContext>)>,
    /// Places of operators' connections, where these are served.
    pub(crate) admin: Option<Arc<AdminConnections>>,
    pub(crate) startup: Arc<StartupBarrier>,
    pub(crate) requests: Arc<OperatorRequests>,
}

/// Tells when every service accepts.
#[derive(Debug)]
pub(crate) struct StartupBarrier {
    missing: watch::Sender<usize>,
}

impl StartupBarrier {
    pub(crate) fn new(services: usize) -> Self {
        Self { missing: watch::Sender::new(services) }
    }

    /// Returns when the last of the services accepts.
    pub(crate) async fn wait(&self) {
        // The sender lives as long as this.
        let _ = self.missing.subscribe().wait_for(|missing| *missing == 0).await;
    }

    fn one_more(&self) {
        self.missing.send_modify(|missing| *missing = missing.saturating_sub(1));
    }
}

#[async_trait]
impl<A> Service for ListenerService<A>
where
    A: HttpServerApp + ServerApp + Send + Sync + 'static,
{
    async fn start_service(
        &mut self,
        _fds: Option<ListenFds>,
        shutdown: ShutdownWatch,
        _listeners_per_fd: usize,
    ) {
        let mut accepting = Vec::new();
        for (socket, door) in self.listeners.drain(..) {
            match tokio::net::TcpListener::from_std(socket) {
                Ok(socket) => {
                    let connections = Arc::clone(&self.connections);
                    let shutdown = shutdown.clone();
                    let requests = Arc::clone(&self.requests);
                    let admin = self.admin.clone();
                    let accept = accept(socket, door, connections, admin, requests, shutdown);
                    accepting.push(tokio::spawn(accept));
                }
                Err(error) => log::error!("{}: cannot listen: {error}", self.name),
            }
        }
        self.startup.one_more();
        for task in accepting {
            // A task that panicked has stopped accepting, as one that ended.
            let _ = task.await;
        }
        self.connections.app.http_cleanup().await;
    }

    fn name(&self) -> &str {
        self.name
    }

    fn threads(&self) -> Option<usize> {
        Some(self.threads)
    }
}

async fn accept<A>(
    socket: tokio::net::TcpListener,
    door: Arc<ListenerContext>,
    connections: Arc<ConnectionServer<A>>,
    admin: Option<Arc<AdminConnections>>,
    requests: Arc<OperatorRequests>,
    mut shutdown: ShutdownWatch,
) where
    A: HttpServerApp + ServerApp + Send + Sync + 'static,
{
    let replaced = requests.until_replaced();
    tokio::pin!(replaced);
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = &mut replaced => return,
            _ = shutdown.wait_for(|stopping| *stopping) => return,
        };
        match accepted {
            Ok((tcp, peer)) => {
                let Some(seat) = connections.seat(peer, &door) else {
                    continue;
                };
                let (serving, door) = (Arc::clone(&connections), Arc::clone(&door));
                let serving = serving.serve(tcp, peer, seat, door, shutdown.clone());
                let Some(admin) = &admin else {
                    tokio::spawn(serving);
                    continue;
                };
                // Those that come after it wait in the kernel's queue, one after the other.
                let permit = tokio::select! {
                    permit = admin.permit(peer) => permit,
                    () = &mut replaced => return,
                    _ = shutdown.wait_for(|stopping| *stopping) => return,
                };
                tokio::spawn(permit.hold(serving));
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                if LOG_SAMPLER.admit_line(LogKind::Accept, connections.date()) {
                    log::error!("cannot accept: {error}");
                }
                tokio::time::sleep(BREATHER).await;
            }
        }
    }
}

/// Whether a connection was gone before it was accepted (accept(2), "Error handling").
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionReset, HostUnreachable, Interrupted, NetworkDown,
        NetworkUnreachable,
    };
    matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionReset
            | HostUnreachable
            | Interrupted
            | NetworkDown
            | NetworkUnreachable
    )
}
