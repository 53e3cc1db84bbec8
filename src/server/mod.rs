//! The composition root: builds everything once, and owns the order of start and stop.
//!
//! It serves nothing itself. What must always hold: all listening sockets exist before the first connection is
//! accepted, and this process gives way to a successor only after the successor reports that it accepts.

mod components;
mod descriptors;
mod file_reloads;
mod housekeeping;
mod prerequisites;
mod reachability;
mod rehearsal;
mod start_error;
mod state_keeping;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server};

use crate::clock::{Clock, SystemClock};
use crate::config::{Config, ConfigErrors, LoadedConfig};
use crate::edge::{
    HandoverOffer, HandoverState, StartupBarrier, Successor, TakenOver, socket_path, take_over,
};
use crate::limiter::FileWatch;
use crate::ops::{SETTLING_TIME, Status, certificate_warnings, supervisor};
use crate::signals::OperatorRequests;
use components::{Components, LOG_FLUSH_TIMEOUT, bound_listeners};
pub use descriptors::DescriptorShortage;
use descriptors::{DescriptorPlan, idle_origin_connections};
use prerequisites::{Prerequisites, addresses};
pub use rehearsal::{Rehearsal, RehearsalScope, rehearse};
use start_error::{StartError, located};
use state_keeping::OpenState;

/// A server that is complete and accepts nothing yet.
struct PreparedServer {
    server: Server,
    components: Components,
}

/// How a process runs.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Whether it takes over from the process that serves the same file.
    pub upgrade: bool,
    /// Whether it begins anew, without what the state directory holds.
    pub ignore_state: bool,
}

/// Serves until a signal ends the process. Returns early only if the server could not start, or was told to end before
/// it had started. `file`: where the configuration was read, for reloads and successors; `None` if it cannot be read
/// again. `watch`: what reloads when it changes, begun before the configuration was read.
///
/// # Errors
///
/// The reasons why the server could not start.
pub fn run(
    loaded: LoadedConfig,
    file: Option<&Path>,
    options: RunOptions,
    watch: Option<FileWatch>,
    requests: Arc<OperatorRequests>,
) -> Result<(), ConfigErrors> {
    let LoadedConfig { config, source, warnings } = loaded;
    let clock = SystemClock::new();
    let dates = certificate_warnings(&config, &source, clock.date(clock.now()));
    for warning in warnings.iter().chain(&dates) {
        log::warn!("{warning}");
    }
    let listeners = config.listeners.clone();
    let prepared = prepare(config, file, options, watch, requests)
        .map_err(|errors| located(&errors, &listeners, &source))?;
    // The tree of a large file is no use while the server runs.
    drop((source, listeners));
    if let Some(PreparedServer { server, components }) = prepared {
        server.run(RunArgs { shutdown_signal: Box::new(components.lifecycle()) });
    }
    Ok(())
}

/// Builds everything. `None`: the process was told to end meanwhile.
fn prepare(
    config: Config,
    file: Option<&Path>,
    options: RunOptions,
    watch: Option<FileWatch>,
    requests: Arc<OperatorRequests>,
) -> Result<Option<PreparedServer>, Vec<StartError>> {
    let bounds = config.bounds.clone();
    let threads = config.threads.map_or_else(cores, std::num::NonZeroUsize::get);
    let listeners = config.listeners.clone();
    let admin = config.admin.clone();
    let addresses = addresses(&config);
    let plan = DescriptorPlan::read_from_system(bounds.max_connections).carry_out();
    if let Some(shortage) = plan.shortage() {
        log::warn!("{shortage}");
    }
    let state = opened_state(&config, options).map_err(|error| vec![error])?;
    let clock = Arc::new(state.as_ref().map_or_else(SystemClock::new, OpenState::clock));
    let mut prerequisites = Prerequisites::obtain(&config, clock.now())?;
    let tls = std::mem::take(&mut prerequisites.tls);
    let components = Components::build(
        config,
        Arc::clone(&clock),
        prerequisites,
        (Arc::clone(&requests), state.as_ref().map(OpenState::secret)),
        plan.shares,
        file,
    )
    .map_err(|error| vec![error])?;
    let socket_path = match file {
        Some(file) => socket_path(file),
        None => Err(io::Error::other("the configuration came from standard input")),
    };
    let TakenOver { sockets, successor } =
        taken_over(&components, options.upgrade, &socket_path, &requests)
            .map_err(|error| vec![error])?;
    if requests.is_ending() {
        return Ok(None);
    }
    let listening = sockets.complete(&addresses);
    let sockets = Arc::new(
        listening
            .map_err(|errors| errors.into_iter().map(StartError::Listen).collect::<Vec<_>>())?,
    );

    let mut server = Server::new_with_opt_and_conf(
        None,
        server_conf(threads, bounds.finish, idle_origin_connections(plan.allowed)),
    );
    server.bootstrap();
    let startup = Arc::new(StartupBarrier::new(if admin.is_some() { 2 } else { 1 }));
    if let Some(admin) = &admin {
        let admin = components.admin(admin, &sockets, &startup);
        server.add_service(admin.map_err(|error| vec![error])?);
    }
    let conf = Arc::clone(&server.configuration);
    let bound = bound_listeners(&listeners, tls, &sockets).map_err(|error| vec![error])?;
    server.add_service(components.edge(bound, threads, conf, &startup));
    components.background.spawn(components.housekeeping().run());
    components.background.spawn(components.memory_watch().run());
    if let (Some(file), Some(watch)) = (file, watch) {
        let shown = file.display().to_string();
        components.background.spawn(components.file_reloads().run(watch, shown));
    }
    if let Some(state) = state {
        state
            .begin(components.state_keeping(clock))
            .map_err(|error| vec![StartError::Restore(error)])?;
    }
    let status = Arc::clone(&components.status);
    let handover = HandoverState {
        sockets,
        ticket_keys: Arc::clone(&components.ticket_keys),
        clock: Arc::clone(&components.clock),
    };
    let started = StartedServer { startup, status, successor, socket_path, handover, requests };
    components.background.spawn(started.until_replaced());
    Ok(Some(PreparedServer { server, components }))
}

/// The state directory, if there is one.
fn opened_state(config: &Config, options: RunOptions) -> Result<Option<OpenState>, StartError> {
    let Some(settings) = config.store.state() else {
        return Ok(None);
    };
    if options.upgrade {
        return Err(StartError::UpgradeWithState);
    }
    let clock = SystemClock::new();
    let date = clock.date(clock.now());
    OpenState::open(settings, options.ignore_state, date.secs()).map(Some)
}

/// What the running process handed over; nothing without `upgrade`.
fn taken_over(
    components: &Components,
    upgrade: bool,
    socket_path: &io::Result<PathBuf>,
    requests: &OperatorRequests,
) -> Result<TakenOver, StartError> {
    match (socket_path, upgrade) {
        (Ok(socket_path), true) => {
            let now = || components.clock.now().mono;
            take_over(socket_path, requests, &components.ticket_keys, now)
                .map_err(StartError::TakeOver)
        }
        (Err(error), true) => {
            Err(StartError::TakeOver(io::Error::new(error.kind(), error.to_string())))
        }
        (_, false) => Ok(TakenOver::default()),
    }
}

/// What remains to be done once connections are accepted.
struct StartedServer {
    startup: Arc<StartupBarrier>,
    status: Arc<Status>,
    successor: Option<Successor>,
    socket_path: io::Result<PathBuf>,
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

fn server_conf(threads: usize, finish: Duration, idle_origin_connections: usize) -> ServerConf {
    ServerConf {
        threads,
        upstream_keepalive_pool_size: idle_origin_connections,
        // `Lifecycle` ends the process as soon as it is idle. This is only the latest time, rounded up.
        grace_period_seconds: Some((finish + SETTLING_TIME + LOG_FLUSH_TIMEOUT).as_secs() + 1),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}
