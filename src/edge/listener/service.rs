//! Accepts connections until the process shuts down or a successor has taken over.
//!
//! A service of the framework: it has its own sockets and its own runtime, and starts one task for each connection
//! that gets a permit. It does not read from connections. What must always hold: an accept that fails for a single
//! connection, or for want of descriptors, never ends the loop.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::Service;

use super::serving_gate::ServingGate;
use super::startup_barrier::StartupBarrier;
use crate::edge::admission::AdminConnections;
use crate::edge::connection::{ConnectionServer, ListenerContext};
use crate::log_sampler::{LOG_SAMPLER, LogKind};
use crate::signals::OperatorRequests;

/// Pause after an accept that failed for want of descriptors or memory: other connections must end first.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A listening socket, and how its connections are served.
pub(crate) struct BoundListener {
    pub(crate) socket: TcpListener,
    pub(crate) context: Arc<ListenerContext>,
}

/// Listeners that share one application and one runtime.
pub(crate) struct ListenerService<A> {
    pub(crate) name: &'static str,
    pub(crate) threads: usize,
    pub(crate) connections: Arc<ConnectionServer<A>>,
    pub(crate) listeners: Vec<BoundListener>,
    /// Permits for operators' connections; `None` for clients' connections.
    pub(crate) admin: Option<Arc<AdminConnections>>,
    pub(crate) startup: Arc<StartupBarrier>,
    /// Held back until it opens.
    pub(crate) gate: Arc<ServingGate>,
    pub(crate) requests: Arc<OperatorRequests>,
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
        self.startup.arrive();
        self.gate.passed().await;
        let mut accept_tasks = Vec::new();
        for BoundListener { socket, context } in self.listeners.drain(..) {
            match tokio::net::TcpListener::from_std(socket) {
                Ok(socket) => {
                    let accept_loop = AcceptLoop {
                        socket,
                        context,
                        connections: Arc::clone(&self.connections),
                        admin: self.admin.clone(),
                        requests: Arc::clone(&self.requests),
                        shutdown: shutdown.clone(),
                    };
                    accept_tasks.push(tokio::spawn(accept_loop.run()));
                }
                Err(error) => log::error!("{}: cannot listen: {error}", self.name),
            }
        }
        for task in accept_tasks {
            // A task that panicked accepts no more, like one that ended.
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

/// Accepts on one socket.
struct AcceptLoop<A> {
    socket: tokio::net::TcpListener,
    context: Arc<ListenerContext>,
    connections: Arc<ConnectionServer<A>>,
    admin: Option<Arc<AdminConnections>>,
    requests: Arc<OperatorRequests>,
    shutdown: ShutdownWatch,
}

impl<A> AcceptLoop<A>
where
    A: HttpServerApp + ServerApp + Send + Sync + 'static,
{
    async fn run(self) {
        let Self { socket, context, connections, admin, requests, mut shutdown } = self;
        let replaced = requests.until_replaced();
        tokio::pin!(replaced);
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = &mut replaced => return,
                _ = shutdown.wait_for(|is_stopping| *is_stopping) => return,
            };
            let (tcp, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if concerns_single_connection(&error) => continue,
                Err(error) => {
                    if LOG_SAMPLER.admit_line(LogKind::Accept, connections.date()) {
                        log::error!("cannot accept: {error}");
                    }
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let Some(permit) = connections.permit(peer, &context) else {
                continue;
            };
            let serving = Arc::clone(&connections).serve(
                tcp,
                peer,
                permit,
                Arc::clone(&context),
                shutdown.clone(),
            );
            let Some(admin) = &admin else {
                tokio::spawn(serving);
                continue;
            };
            // Later connections wait in the kernel's queue meanwhile.
            let admin_permit = tokio::select! {
                admin_permit = admin.permit(peer) => admin_permit,
                () = &mut replaced => return,
                _ = shutdown.wait_for(|is_stopping| *is_stopping) => return,
            };
            tokio::spawn(admin_permit.hold(serving));
        }
    }
}

/// Whether a connection failed before it was accepted (accept(2), "Error handling").
fn concerns_single_connection(error: &io::Error) -> bool {
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
