//! The composition root: builds everything once, and owns the order of start and stop.
//!
//! It serves nothing itself. What must always hold: all listening sockets exist before the first connection is
//! accepted, and this process gives way to a successor only after the successor reports that it accepts.

mod components;
mod housekeeping;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server};
use rustix::process::{Resource, Rlimit};

use crate::config::Config;
use crate::edge::{
    HandoverOffer, HandoverState, ListenError, NoRandomness, StartupBarrier, Successor, TakenOver,
    socket_path, take_over,
};
use crate::ops::{Status, supervisor};
use crate::signals::OperatorRequests;
use components::Components;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A certificate cannot be used.
    #[error("{0}")]
    Certificate(String),
    /// The access log cannot be opened.
    #[error("access_log: {0}")]
    AccessLog(std::io::Error),
    /// An address cannot be listened on.
    #[error("{0}")]
    Listen(#[from] ListenError),
    /// No randomness for the secret that hashes keys.
    #[error("no randomness for the key secret: {0}")]
    Secret(getrandom::Error),
    /// No randomness for the keys of session tickets.
    #[error("{0}")]
    TicketKeys(NoRandomness),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(rustls::Error),
    /// The runtime for background work cannot be started.
    #[error("cannot start a runtime: {0}")]
    Runtime(std::io::Error),
    /// The running process did not hand over and keeps serving.
    #[error("cannot take over: {0}; the running process serves on")]
    TakeOver(std::io::Error),
}

/// Serves until a signal ends the process. Returns early only if the server could not start, or was told to end before
/// it had started. With `upgrade` it takes over from the process that serves `file`.
pub fn run(
    config: Config,
    file: &Path,
    upgrade: bool,
    requests: Arc<OperatorRequests>,
) -> Result<(), StartError> {
    let bounds = config.bounds.clone();
    let threads = config.threads.map_or_else(cores, std::num::NonZeroUsize::get);
    let listeners = config.listeners.clone();
    let admin = config.admin.clone();
    let (descriptors, all) = Descriptors::raised(bounds.max_connections);
    let components = Components::build(config, Arc::clone(&requests), descriptors)?;
    let socket_path = socket_path(file);
    let TakenOver { sockets, successor } = match (&socket_path, upgrade) {
        (Ok(socket_path), true) => {
            let now = || components.clock.now().mono;
            take_over(socket_path, &requests, &components.ticket_keys, now)
                .map_err(StartError::TakeOver)?
        }
        (Err(error), true) => return Err(StartError::TakeOver(error.kind().into())),
        (_, false) => TakenOver::default(),
    };
    if requests.is_ending() {
        return Ok(());
    }
    let addresses = listeners.iter().map(|listener| listener.address);
    let addresses: Vec<_> = addresses.chain(admin.as_ref().map(|admin| admin.address)).collect();
    let sockets = Arc::new(sockets.complete(&addresses)?);

    let mut server = Server::new_with_opt_and_conf(
        None,
        server_conf(threads, bounds.finish, idle_origin_connections(all)),
    );
    server.bootstrap();
    let startup = Arc::new(StartupBarrier::new(if admin.is_some() { 2 } else { 1 }));
    if let Some(admin) = &admin {
        server.add_service(components.admin(admin, &sockets, &startup)?);
    }
    let conf = Arc::clone(&server.configuration);
    server.add_service(components.edge(&listeners, threads, conf, &sockets, &startup)?);
    components.background.spawn(components.housekeeping(file).run());
    components.background.spawn(components.memory_watch().run());
    let status = Arc::clone(&components.status);
    let handover = HandoverState {
        sockets,
        ticket_keys: Arc::clone(&components.ticket_keys),
        clock: Arc::clone(&components.clock),
    };
    let started = StartedServer { startup, status, successor, socket_path, handover, requests };
    components.background.spawn(started.until_replaced());
    let shutdown_signal = Box::new(components.lifecycle());
    server.run(RunArgs { shutdown_signal });
    Ok(())
}

/// What remains to be done once connections are accepted.
struct StartedServer {
    startup: Arc<StartupBarrier>,
    status: Arc<Status>,
    successor: Option<Successor>,
    socket_path: std::io::Result<std::path::PathBuf>,
    handover: HandoverState,
    requests: Arc<OperatorRequests>,
}

impl StartedServer {
    async fn until_replaced(self) {
        self.startup.wait().await;
        for address in self.handover.sockets.addresses() {
            log::info!("listening on {address}");
        }
        if let Some(successor) = self.successor
            && let Err(error) = successor.confirm_accepting().await
        {
            // If this process stayed, two processes would accept on the same sockets for ever.
            log::error!("cannot take over: {error}; the running process serves on");
            log::logger().flush();
            std::process::exit(1);
        }
        self.status.set_ready(!self.requests.is_ending());
        supervisor::ready();
        let offer = self.socket_path.and_then(|socket_path| {
            HandoverOffer::new(&socket_path, self.handover, Arc::clone(&self.requests))
        });
        match offer {
            Ok(offer) => {
                offer.handed_over().await;
                self.requests.replace();
            }
            Err(error) => log::warn!("no successor will be able to take over: {error}"),
        }
    }
}

/// Descriptors that may be open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptors {
    /// Connections of clients.
    connections: usize,
    /// Exchanges with origins.
    exchanges: usize,
}

impl Descriptors {
    /// Descriptors that are reserved for operators, logs, the store, health checks and files.
    const RESERVED: usize = 256;

    /// Divides `all` descriptors. Connections get at most half of those that are neither reserved nor for idle
    /// connections to origins.
    fn of(all: usize, max_connections: usize) -> Self {
        // With few descriptors the admin listener must still work.
        let reserved = Self::RESERVED.min(all / 2);
        let rest = (all - reserved).saturating_sub(idle_origin_connections(all));
        let connections = max_connections.min(rest / 2).max(1);
        Self { connections, exchanges: rest.saturating_sub(connections).max(1) }
    }

    /// Raises the process's limit of descriptors to what the connections need, as far as the system allows. Returns the
    /// division and the number of all descriptors.
    fn raised(max_connections: usize) -> (Self, usize) {
        // Each client connection may need one to an origin.
        let wanted = max_connections * 2 + MAX_IDLE_ORIGIN_CONNECTIONS + Self::RESERVED;
        let limit = rustix::process::getrlimit(Resource::Nofile);
        let hard_limit = limit.maximum.unwrap_or(u64::MAX);
        let mut all = limit.current.unwrap_or(u64::MAX);
        if all < wanted as u64 {
            let raised =
                Rlimit { current: Some(hard_limit.min(wanted as u64)), maximum: limit.maximum };
            if rustix::process::setrlimit(Resource::Nofile, raised).is_ok() {
                all = hard_limit.min(wanted as u64);
            }
        }
        let all = usize::try_from(all).unwrap_or(usize::MAX).min(wanted);
        let descriptors = Self::of(all, max_connections);
        if descriptors.connections < max_connections {
            log::warn!(
                "max_connections: {max_connections} need {wanted} descriptors and the system allows \
                 {all}: {} connections are accepted, and {} exchanges with origins; raise the limit \
                 (LimitNOFILE=, ulimit -n) or lower max_connections",
                descriptors.connections,
                descriptors.exchanges,
            );
        }
        (descriptors, all)
    }
}

/// How many of `all` descriptors are for idle connections to origins.
fn idle_origin_connections(all: usize) -> usize {
    MAX_IDLE_ORIGIN_CONNECTIONS.min(all / 8)
}

/// The largest number of idle connections to origins that are kept: as many as a busy node uses at once. With too few,
/// a burst opens and closes connections instead of using them again, which was measured to cost 40 % more processor
/// time for each request.
const MAX_IDLE_ORIGIN_CONNECTIONS: usize = 1_024;

fn server_conf(threads: usize, finish: Duration, idle_origin_connections: usize) -> ServerConf {
    ServerConf {
        threads,
        upstream_keepalive_pool_size: idle_origin_connections,
        // `Lifecycle` ends the process as soon as it is idle. This is only the latest time.
        grace_period_seconds: Some(finish.as_secs() + 1),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}
