//! The composition root: builds everything once, and owns the order of start and stop.

mod connection;
mod frames;
mod guarded;
mod listening;
mod pace;
mod seats;
mod sockets;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora::apps::HttpServerOptions;
use pingora::apps::http_app::HttpServer;
use pingora::listeners::tls::{Acceptor, TlsSettings};
use pingora::protocols::http::v2::server::default_h2_options;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server};
use pingora_proxy::HttpProxy;
use rustix::process::{Resource, Rlimit};
use tokio::time::MissedTickBehavior;

use crate::clock::{Clock, SystemClock};
use crate::config::{Admin, Bounds, Config, Listener};
use crate::engine::Engine;
use crate::ops::{AccessLogSink, AdminDoor, Lifecycle, Orders, ReloadSource, Reloader, Status};
use crate::policy::KeySecret;
use crate::proxy::{Books, CertificateStore, Live, Porter, Resolver, Tollgate};
use connection::{Connections, Door};
use listening::Listening;
use seats::Seats;
use sockets::Sockets;

/// Between two rounds of the engine's housekeeping.
const TICK: Duration = Duration::from_millis(100);

/// How long the access log may take to be written when the process ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A certificate that cannot be used.
    #[error("{0}")]
    Certificate(String),
    /// The access log cannot be opened.
    #[error("access_log: {0}")]
    AccessLog(std::io::Error),
    /// An address that cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Which.
        address: std::net::SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// No randomness for the secret of the keys.
    #[error("no randomness for the key secret: {0}")]
    Secret(getrandom::Error),
    /// No runtime to build the configuration on.
    #[error("cannot start a runtime: {0}")]
    Runtime(std::io::Error),
}

/// Connections at once at the operators' own door.
const ADMIN_CONNECTIONS: usize = 100;

/// Everything that is built once.
struct Parts {
    clock: Arc<dyn Clock>,
    engine: Arc<Engine>,
    live: Arc<ArcSwap<Live>>,
    books: Arc<Books>,
    status: Arc<Status>,
    access: Arc<AccessLogSink>,
    certificates: Arc<CertificateStore>,
    connections: Arc<AtomicUsize>,
    leaving: Arc<AtomicBool>,
    orders: Arc<Orders>,
    /// Runs what goes on beside requests: housekeeping, reloads, health checks, names.
    beside: tokio::runtime::Runtime,
}

/// Serves until a signal ends the process; returns only when it could not start.
pub fn run(config: Config, file: &Path, orders: Arc<Orders>) -> Result<(), StartError> {
    let threads = config.threads.map_or_else(cores, std::num::NonZeroUsize::get);
    let listeners = config.listeners.clone();
    let admin = config.admin.clone();
    let bounds = config.bounds.clone();
    let addresses: Vec<_> = listeners
        .iter()
        .map(|one| one.address)
        .chain(admin.as_ref().map(|admin| admin.address))
        .collect();
    descriptors(bounds.max_connections);
    let sockets = Sockets::default().complete(&addresses)?;
    let parts = Parts::build(config, orders)?;

    let mut server = Server::new_with_opt_and_conf(None, server_conf(threads, bounds.finish));
    server.bootstrap();
    if let Some(admin) = &admin {
        server.add_service(admin_service(admin, &parts, &sockets)?);
    }
    let conf = Arc::clone(&server.configuration);
    server.add_service(Listening {
        name: "tollgate",
        threads,
        connections: Arc::new(Connections {
            app: Arc::new(parts.proxy(&bounds, conf)),
            live: Arc::clone(&parts.live),
            porter: parts.porter(),
            clock: Arc::clone(&parts.clock),
            seats: Arc::new(Seats::new(Arc::clone(&parts.connections))),
            most: None,
        }),
        doors: parts.doors(&listeners, &sockets)?,
    });
    parts.beside.spawn(parts.housekeeping(file).go_on());
    let shutdown_signal = Box::new(parts.lifecycle());
    server.run(RunArgs { shutdown_signal });
    Ok(())
}

impl Parts {
    fn build(config: Config, orders: Arc<Orders>) -> Result<Self, StartError> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(StartError::Secret)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let engine = Arc::new(Engine::new(Arc::clone(&clock), KeySecret::new(secret)));
        let certificates = Arc::new(CertificateStore::default());
        certificates
            .replace(CertificateStore::read(&config.listeners).map_err(StartError::Certificate)?);
        let access =
            Arc::new(AccessLogSink::new(&config.access_log).map_err(StartError::AccessLog)?);
        let books = Arc::new(Books::default());
        let beside = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("beside")
            .enable_all()
            .build()
            .map_err(StartError::Runtime)?;
        let (live, _) = beside.block_on(Live::build(config, &engine, &books, None));
        let live = Arc::new(ArcSwap::from_pointee(live));
        let status = Arc::new(Status::new(engine.now()));
        Ok(Self {
            clock,
            engine,
            live,
            books,
            status,
            access,
            certificates,
            connections: Arc::default(),
            leaving: Arc::default(),
            orders,
            beside,
        })
    }

    fn proxy(&self, bounds: &Bounds, conf: Arc<ServerConf>) -> HttpProxy<Tollgate> {
        let mut options = default_h2_options();
        options.max_concurrent_streams(bounds.h2_streams);
        options.max_header_list_size(u32::try_from(bounds.header_size).unwrap_or(u32::MAX));
        let mut server_options = HttpServerOptions::default();
        server_options.h2_idle_timeout = Some(bounds.idle_timeout);
        // The gate refuses it, with a reason.
        server_options.allow_connect_method_proxying = true;
        let mut proxy = HttpProxy::new(self.tollgate(), conf);
        proxy.h2_options = Some(options);
        proxy.server_options = Some(server_options);
        proxy.handle_init_modules();
        proxy
    }

    fn porter(&self) -> Arc<Porter> {
        Arc::new(Porter {
            engine: Arc::clone(&self.engine),
            live: Arc::clone(&self.live),
            books: Arc::clone(&self.books),
            access: Arc::clone(&self.access) as _,
        })
    }

    fn doors(
        &self,
        listeners: &[Listener],
        sockets: &Sockets,
    ) -> Result<Vec<(std::net::TcpListener, Arc<Door>)>, StartError> {
        let mut doors = Vec::with_capacity(listeners.len());
        for (place, listener) in listeners.iter().enumerate() {
            let tls = !listener.certificates.is_empty();
            let tls = tls.then(|| acceptor(place, &self.certificates)).transpose()?;
            let door = Door { tls, proxy_protocol: listener.proxy_protocol };
            doors.push((socket_of(sockets, listener.address)?, Arc::new(door)));
        }
        Ok(doors)
    }

    fn tollgate(&self) -> Tollgate {
        Tollgate {
            engine: Arc::clone(&self.engine),
            live: Arc::clone(&self.live),
            books: Arc::clone(&self.books),
            access: Arc::clone(&self.access) as _,
            leaving: Arc::clone(&self.leaving),
        }
    }

    fn housekeeping(&self, file: &Path) -> Housekeeping {
        Housekeeping {
            reloader: Reloader {
                source: ReloadSource { file: file.to_owned() },
                engine: Arc::clone(&self.engine),
                live: Arc::clone(&self.live),
                books: Arc::clone(&self.books),
                status: Arc::clone(&self.status),
                access: Arc::clone(&self.access),
                certificates: Arc::clone(&self.certificates),
            },
            orders: Arc::clone(&self.orders),
        }
    }

    fn lifecycle(&self) -> Lifecycle {
        let access = Arc::clone(&self.access);
        Lifecycle {
            orders: Arc::clone(&self.orders),
            status: Arc::clone(&self.status),
            live: Arc::clone(&self.live),
            leaving: Arc::clone(&self.leaving),
            connections: Arc::clone(&self.connections),
            last_words: Box::new(move || access.flush(LAST_WORDS)),
        }
    }
}

/// Turns sketches, sweeps cells, reloads when told to.
struct Housekeeping {
    reloader: Reloader,
    orders: Arc<Orders>,
}

impl Housekeeping {
    async fn go_on(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.reloader.status.set_ready(true);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let live = self.reloader.live.load_full();
                    self.reloader.engine.tick(&live.generation);
                }
                () = self.orders.reload.notified() => {
                    self.reloader.reload().await;
                }
            }
        }
    }
}

fn admin_service(
    admin: &Admin,
    parts: &Parts,
    sockets: &Sockets,
) -> Result<Listening<HttpServer<AdminDoor>>, StartError> {
    let door = AdminDoor {
        engine: Arc::clone(&parts.engine),
        live: Arc::clone(&parts.live),
        books: Arc::clone(&parts.books),
        status: Arc::clone(&parts.status),
        connections: Arc::clone(&parts.connections),
        token: admin.token.clone(),
    };
    let connections = Connections {
        app: Arc::new(HttpServer::new_app(door)),
        live: Arc::clone(&parts.live),
        porter: parts.porter(),
        clock: Arc::clone(&parts.clock),
        seats: Arc::default(),
        most: Some(ADMIN_CONNECTIONS),
    };
    let door = Arc::new(Door { tls: None, proxy_protocol: false });
    Ok(Listening {
        name: "admin",
        threads: 1,
        connections: Arc::new(connections),
        doors: vec![(socket_of(sockets, admin.address)?, door)],
    })
}

fn socket_of(
    sockets: &Sockets,
    address: std::net::SocketAddr,
) -> Result<std::net::TcpListener, StartError> {
    let unbound = || std::io::Error::from(std::io::ErrorKind::NotFound);
    let socket = sockets.get(&address).ok_or_else(unbound);
    socket
        .and_then(std::net::TcpListener::try_clone)
        .map_err(|error| StartError::Listen { address, error })
}

fn acceptor(listener: usize, certificates: &Arc<CertificateStore>) -> Result<Acceptor, StartError> {
    let resolver = Resolver { store: Arc::clone(certificates), listener };
    // The paths are not read: the resolver stands for them.
    let mut settings = TlsSettings::intermediate("", "")
        .map_err(|error| StartError::Certificate(error.to_string()))?;
    settings.enable_h2();
    settings.set_cert_resolver(Arc::new(resolver));
    Ok(settings.build())
}

/// As many descriptors as the connections need, as far as the system lets.
fn descriptors(max_connections: usize) {
    // A connection to an origin for each of a client, and what the process itself needs.
    let wanted = max_connections as u64 * 2 + 256;
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = Rlimit { current: Some(wanted.min(most)), maximum: limit.maximum };
    let raised = rustix::process::setrlimit(Resource::Nofile, raised);
    if raised.is_err() || most < wanted {
        log::warn!(
            "max_connections: {max_connections} need {wanted} descriptors and the system allows \
             {most}; raise the limit (LimitNOFILE=, ulimit -n) or lower max_connections"
        );
    }
}

fn server_conf(threads: usize, finish: Duration) -> ServerConf {
    ServerConf {
        threads,
        // The process ends by itself as soon as it is idle; this is the longest it can take.
        grace_period_seconds: Some(finish.as_secs() + 1),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}
