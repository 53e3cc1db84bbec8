//! The composition root: builds everything once, and owns the order of start and stop.
//!
//! It serves nothing itself. What must always hold: all listening sockets exist before the first connection is
//! accepted, and this process gives way to a successor only after the successor reports that it accepts.

mod components;
mod descriptors;
mod file_reloads;
mod housekeeping;
mod later_state;
mod predecessor;
mod prerequisites;
mod reachability;
mod rehearsal;
mod saving;
mod start_error;
mod state_keeper;
mod state_keeping;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server};

use crate::clock::{Clock as _, SystemClock};
use crate::config::{Config, ConfigErrors, LoadedConfig};
use crate::edge::{ServingGate, StartupBarrier};
use crate::handover::{HandoverContext, HandoverOffer, LinkCount, TakeUp, socket_path};
use crate::limiter::FileWatch;
use crate::ops::{SETTLING_TIME, Status, certificate_warnings, supervisor};
use crate::signals::OperatorRequests;
use components::{Components, LOG_FLUSH_TIMEOUT, bound_listeners};
pub use descriptors::DescriptorShortage;
use descriptors::{DescriptorPlan, idle_origin_connections};
use predecessor::{Before, Beginning};
use prerequisites::{Prerequisites, addresses};
pub use rehearsal::{Rehearsal, RehearsalScope, rehearse};
use start_error::{StartError, located};
use state_keeper::SAVE_TIMEOUT;

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
    let socket_path = match file {
        Some(file) => socket_path(file),
        None => Err(io::Error::other("the configuration came from standard input")),
    };
    let before = Before::find(&config, options, &socket_path).map_err(|error| vec![error])?;
    let (clock, counts) = (Arc::new(before.clock()), before.counts(&config));
    let has_state = counts.are_saved;
    let mut prerequisites = Prerequisites::obtain(&config, &*clock)?;
    let tls = std::mem::take(&mut prerequisites.tls);
    let components = Components::build(
        config,
        Arc::clone(&clock),
        prerequisites,
        Arc::clone(&requests),
        counts,
        plan.shares,
        file,
    )
    .map_err(|error| vec![error])?;
    let begun = before.take_over(&components, &clock, &requests).map_err(|error| vec![error])?;
    let Some(Beginning { sockets, successor, state }) = begun else {
        return Ok(None);
    };
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
        let admin = components.admin(admin, &sockets, &startup, successor.is_some());
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
        let keeping = components.state_keeping(Arc::clone(&clock));
        state.begin(keeping).map_err(|error| vec![StartError::Restore(error)])?;
    }
    let started = StartedServer {
        startup,
        status: Arc::clone(&components.status),
        gate: Arc::clone(&components.gate),
        successor,
        socket_path,
        handover: components.handover_context(sockets, clock, has_state),
        links: Arc::clone(&components.links),
        requests,
    };
    components.background.spawn(started.until_replaced());
    Ok(Some(PreparedServer { server, components }))
}

/// What remains to be done once connections are accepted.
struct StartedServer {
    startup: Arc<StartupBarrier>,
    status: Arc<Status>,
    /// Opens when this process may judge.
    gate: Arc<ServingGate>,
    successor: Option<TakeUp>,
    socket_path: io::Result<PathBuf>,
    handover: HandoverContext,
    links: Arc<LinkCount>,
    requests: Arc<OperatorRequests>,
}

impl StartedServer {
    async fn until_replaced(self) {
        self.startup.wait().await;
        let links = self.links;
        if let Some(successor) = self.successor
            && let Err(error) = successor.take(links.count_alive()).await
        {
            // If this process stayed, two processes would accept on the same sockets for ever.
            log::error!(
                "cannot take over: {error}; unless the running process has ended, it serves on"
            );
            log::logger().flush();
            std::process::exit(1);
        }
        // What is not restored yet can neither be judged nor handed over.
        self.gate.passed().await;
        for address in self.handover.sockets.addresses() {
            log::info!("listening on {address}");
        }
        self.status.set_ready(!self.requests.is_ending());
        supervisor::ready();
        let offer = self
            .socket_path
            .and_then(|socket_path| HandoverOffer::new(&socket_path, self.handover, &links));
        match offer {
            // Its copies of the listening sockets must close with the others: otherwise clients would wait in their queues.
            Ok(offer) => tokio::select! {
                () = offer.handed_over() => self.requests.replace(),
                _ = self.requests.until_shutdown() => {}
            },
            Err(error) => log::warn!("no successor will be able to take over: {error}"),
        }
    }
}

fn server_conf(threads: usize, finish: Duration, idle_origin_connections: usize) -> ServerConf {
    ServerConf {
        threads,
        upstream_keepalive_pool_size: idle_origin_connections,
        // `Lifecycle` ends the process as soon as it is idle. This is only the latest time, rounded up.
        grace_period_seconds: Some(latest_end(finish).as_secs() + 1),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}

/// How long the process takes at most once its listeners close.
fn latest_end(finish: Duration) -> Duration {
    finish + SETTLING_TIME + LOG_FLUSH_TIMEOUT + SAVE_TIMEOUT
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}
