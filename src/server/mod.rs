//! The composition root: builds everything once, and owns the order of start and stop.

mod connection;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora::apps::HttpServerOptions;
use pingora::apps::http_app::HttpServer;
use pingora::listeners::tls::TlsSettings;
use pingora::protocols::http::v2::server::default_h2_options;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server};
use pingora::services::listening::Service;
use pingora_proxy::HttpProxy;
use tokio::time::MissedTickBehavior;

use crate::clock::SystemClock;
use crate::config::{Admin, Config, Listener};
use crate::engine::Engine;
use crate::ops::{AccessLogSink, AdminDoor, Lifecycle, Orders, ReloadSource, Reloader, Status};
use crate::policy::KeySecret;
use crate::proxy::{Books, CertificateStore, Live, Resolver, Tollgate};
use connection::Connections;

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

/// Everything that is built once.
struct Parts {
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
    for address in listeners.iter().map(|one| one.address).chain(admin.as_ref().map(|a| a.address))
    {
        can_listen(address)?;
    }
    let finish = config.bounds.finish;
    let h2_streams = config.bounds.h2_streams;
    let header_size = config.bounds.header_size;
    let mut server_options = HttpServerOptions::default();
    server_options.h2_idle_timeout = Some(config.bounds.idle_timeout);
    let parts = Parts::build(config, orders)?;

    let mut server = Server::new_with_opt_and_conf(None, server_conf(threads, finish));
    server.bootstrap();
    let mut options = default_h2_options();
    options.max_concurrent_streams(h2_streams);
    options.max_header_list_size(u32::try_from(header_size).unwrap_or(u32::MAX));
    let conf = Arc::clone(&server.configuration);
    let mut proxy = HttpProxy::new(parts.tollgate(), conf);
    proxy.h2_options = Some(options);
    proxy.server_options = Some(server_options);
    proxy.handle_init_modules();
    let connections = Connections { proxy: Arc::new(proxy), count: Arc::clone(&parts.connections) };
    let mut service = Service::new("tollgate".to_owned(), connections);
    for (place, listener) in listeners.iter().enumerate() {
        listen(&mut service, place, listener, &parts.certificates);
    }
    if let Some(admin) = admin {
        server.add_service(admin_service(&admin, &parts));
    }
    server.add_service(service);
    parts.beside.spawn(parts.housekeeping(file).go_on());
    let shutdown_signal = Box::new(parts.lifecycle());
    server.run(RunArgs { shutdown_signal });
    Ok(())
}

impl Parts {
    fn build(config: Config, orders: Arc<Orders>) -> Result<Self, StartError> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(StartError::Secret)?;
        let engine = Arc::new(Engine::new(Arc::new(SystemClock::new()), KeySecret::new(secret)));
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

fn admin_service(admin: &Admin, parts: &Parts) -> Service<HttpServer<AdminDoor>> {
    let door = AdminDoor {
        engine: Arc::clone(&parts.engine),
        live: Arc::clone(&parts.live),
        books: Arc::clone(&parts.books),
        status: Arc::clone(&parts.status),
        connections: Arc::clone(&parts.connections),
        token: admin.token.clone(),
    };
    let mut service = Service::new("admin".to_owned(), HttpServer::new_app(door));
    service.threads = Some(1);
    service.add_tcp(&admin.address.to_string());
    service
}

fn listen(
    service: &mut Service<Connections>,
    place: usize,
    listener: &Listener,
    certificates: &Arc<CertificateStore>,
) {
    let address = listener.address.to_string();
    if listener.certificates.is_empty() {
        service.add_tcp(&address);
        return;
    }
    // The paths are not read: the resolver stands for them.
    match TlsSettings::intermediate("", "") {
        Ok(mut settings) => {
            settings.enable_h2();
            settings.set_cert_resolver(Arc::new(Resolver {
                store: Arc::clone(certificates),
                listener: place,
            }));
            service.add_tls_with_settings(&address, None, settings);
        }
        Err(error) => log::error!("{address}: no TLS: {error}"),
    }
}

/// The framework panics on an address it cannot have; so it is tried first and told well.
fn can_listen(address: std::net::SocketAddr) -> Result<(), StartError> {
    let bound = std::net::TcpListener::bind(address);
    bound.map(drop).map_err(|error| StartError::Listen { address, error })
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
