//! Everything that is built once from a configuration, and the services that use it.
//!
//! It only puts parts together. What must always hold: parts that exist once in the process (permits, memory budget,
//! ticket keys) are shared by all services that need them.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pingora::apps::HttpServerOptions;
use pingora::apps::http_app::HttpServer;
use pingora::protocols::http::v2::server::default_h2_options;
use pingora::server::configuration::ServerConf;
use pingora_proxy::HttpProxy;

use super::descriptors::DescriptorShares;
use super::file_reloads::FileReloads;
use super::housekeeping::Housekeeping;
use super::prerequisites::{Prerequisites, TlsAcceptors};
use super::saving::SaveContext;
use super::start_error::StartError;
use super::state_keeper::StateKeeper;
use super::state_keeping::StateKeeping;
use crate::clock::{Clock, SystemClock};
use crate::config::{Admin, Bounds, Config, Listener};
use crate::edge::{
    AdminConnections, AdminServer, BoundListener, CertificateStore, ConnectionPermits,
    ConnectionPolicy, ConnectionServer, Cutoff, H2_SEND_BUFFER_BYTES, HandshakeLimiter,
    ListenError, ListenerContext, ListenerService, ListeningSockets, MemoryBudget, MemoryWatch,
    ServingGate, SlowReaders, StartupBarrier, TicketKeys,
};
use crate::engine::Engine;
use crate::handover::{BeginSaving, HandoverContext, LinkCount, TakeUpContext};
use crate::history::TrafficHistory;
use crate::ops::{
    AccessLogSink, AdminAccess, AdminApi, AnswerQueue, AuditLog, KeyChanges, Lifecycle,
    ReloadSource, Reloader, RequestBuckets, Status, process_collector, traffic_totals,
};
use crate::policy::KeySecret;
use crate::proxy::{AllOriginSlots, EarlyRejection, Live, RequestIds, Tollgate, TrafficCounters};
use crate::signals::OperatorRequests;
use crate::state::StateMetrics;

/// Time for the access log to be written when the process ends. A pipe without a reader never takes it, and an idle
/// process must end within half a second after `drain`.
pub(super) const LOG_FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// What was counted before this process.
#[derive(Clone, Copy)]
pub(super) struct CountsBefore {
    /// The secret that its keys are hashed with; `None`: it is of the shared store, or random.
    pub(super) secret: Option<KeySecret>,
    /// Whether this process has a state directory.
    pub(super) are_saved: bool,
    /// Whether nothing may be judged before they are there.
    pub(super) are_awaited: bool,
}

/// Everything that is built once.
pub(super) struct Components {
    pub(super) clock: Arc<dyn Clock>,
    engine: Arc<Engine>,
    live: Arc<ArcSwap<Live>>,
    counters: Arc<TrafficCounters>,
    pub(super) status: Arc<Status>,
    access: Arc<AccessLogSink>,
    request_ids: Arc<RequestIds>,
    certificates: Arc<CertificateStore>,
    pub(super) ticket_keys: Arc<TicketKeys>,
    connections: Arc<AtomicUsize>,
    descriptors: DescriptorShares,
    origin_slots: Arc<AllOriginSlots>,
    memory: Arc<MemoryBudget>,
    readers: Arc<SlowReaders>,
    permits: Arc<ConnectionPermits>,
    leaving: Arc<AtomicBool>,
    cutoff: Arc<Cutoff>,
    requests: Arc<OperatorRequests>,
    reloader: Arc<Reloader>,
    changes: Arc<KeyChanges>,
    audit: Arc<AuditLog>,
    history: Arc<TrafficHistory>,
    /// Opens when the state is restored.
    pub(super) gate: Arc<ServingGate>,
    state: Arc<StateMetrics>,
    keeper: Arc<StateKeeper>,
    /// The processes before this one that still serve.
    pub(super) links: Arc<LinkCount>,
    /// Runs the work that no request waits for: housekeeping, reloads, health checks, name resolution.
    pub(super) background: tokio::runtime::Runtime,
}

impl Components {
    pub(super) fn build(
        config: Config,
        clock: Arc<SystemClock>,
        prerequisites: Prerequisites,
        requests: Arc<OperatorRequests>,
        counts: CountsBefore,
        descriptors: DescriptorShares,
        file: Option<&Path>,
    ) -> Result<Self, StartError> {
        let counters = Arc::new(TrafficCounters::default());
        let background = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("background")
            .enable_all()
            .build()
            .map_err(StartError::Runtime)?;
        let clock: Arc<dyn Clock> = clock;
        let engine = Arc::new(match counts.secret {
            Some(secret) => Engine::new(Arc::clone(&clock), secret),
            None => background
                .block_on(Engine::connect(&config.store, Arc::clone(&clock)))
                .map_err(StartError::Secret)?,
        });
        let state = Arc::<StateMetrics>::default();
        let request_ids = Arc::new(RequestIds::new().map_err(StartError::RequestIds)?);
        let (live, _) = background.block_on(Live::build(config, &engine, &counters, None));
        let live = Arc::new(ArcSwap::from_pointee(live));
        let connections = Arc::<AtomicUsize>::default();
        let permits = Arc::new(ConnectionPermits::new(Arc::clone(&connections)));
        let started = engine.now();
        let status = Status::new(started, engine.date(started));
        let status = Arc::new(status.with_state(Arc::clone(&state), counts.are_saved));
        let reloader = Arc::new(Reloader {
            source: ReloadSource { file: file.map(Path::to_owned) },
            engine: Arc::clone(&engine),
            live: Arc::clone(&live),
            counters: Arc::clone(&counters),
            status: Arc::clone(&status),
            access: Arc::clone(&prerequisites.access),
            certificates: Arc::clone(&prerequisites.certificates),
            retired: Mutex::default(),
            publishing: Arc::default(),
            waiting: Mutex::default(),
        });
        let changes = Arc::new(KeyChanges::new(Arc::clone(&engine), Arc::clone(&reloader)));
        // The first request meets the rules that hold on the other nodes.
        background.block_on(changes.poll());
        Ok(Self {
            clock,
            engine,
            live,
            counters,
            status,
            access: prerequisites.access,
            request_ids,
            certificates: prerequisites.certificates,
            ticket_keys: prerequisites.ticket_keys,
            connections,
            descriptors,
            origin_slots: Arc::new(AllOriginSlots::new(descriptors.exchanges)),
            memory: Arc::default(),
            readers: Arc::default(),
            permits,
            leaving: Arc::default(),
            cutoff: Arc::default(),
            requests,
            reloader,
            changes,
            audit: Arc::default(),
            history: Arc::default(),
            gate: Arc::new(ServingGate::new(!counts.are_awaited)),
            state,
            keeper: Arc::default(),
            links: Arc::new(LinkCount::new()),
            background,
        })
    }

    fn proxy(&self, bounds: &Bounds, conf: Arc<ServerConf>) -> HttpProxy<Tollgate> {
        let mut options = default_h2_options();
        options.max_concurrent_streams(bounds.h2_streams);
        options.max_send_buffer_size(H2_SEND_BUFFER_BYTES);
        options.max_header_list_size(u32::try_from(bounds.header_size).unwrap_or(u32::MAX));
        let mut server_options = HttpServerOptions::default();
        // The framework would count from the last queued response. Our stream counts from the last one that was sent.
        server_options.h2_idle_timeout = None;
        // Otherwise the framework answers CONNECT by itself. Request validation refuses it with a reason.
        server_options.allow_connect_method_proxying = true;
        let mut proxy = HttpProxy::new(self.tollgate(), conf);
        proxy.h2_options = Some(options);
        proxy.server_options = Some(server_options);
        proxy.handle_init_modules();
        proxy
    }

    /// The service of the admin listener.
    pub(super) fn admin(
        &self,
        admin: &Admin,
        sockets: &ListeningSockets,
        startup: &Arc<StartupBarrier>,
        is_successor: bool,
    ) -> Result<ListenerService<AdminServer<AdminApi>>, StartError> {
        let app = AdminApi {
            engine: Arc::clone(&self.engine),
            live: Arc::clone(&self.live),
            counters: Arc::clone(&self.counters),
            status: Arc::clone(&self.status),
            connections: Arc::clone(&self.connections),
            memory: Arc::clone(&self.memory),
            certificates: Arc::clone(&self.certificates),
            process: process_collector(),
            by_header: admin.by_header.clone(),
            changes: Arc::clone(&self.changes),
            audit: Arc::clone(&self.audit),
            reloader: Arc::clone(&self.reloader),
            requests: Arc::clone(&self.requests),
            request_buckets: RequestBuckets::default(),
            answers: AnswerQueue::default(),
            access: AdminAccess { address: admin.address, hosts: admin.hosts.clone() },
            history: Arc::clone(&self.history),
            show_addresses: admin.show_addresses,
            access_log: Arc::clone(&self.access),
        };
        let admin_connections = Arc::new(AdminConnections::new(Arc::clone(&self.clock)));
        let server = AdminServer {
            server: Arc::new(HttpServer::new_app(app)),
            connections: Arc::clone(&admin_connections),
        };
        let connections = self.connections(Arc::new(server), Arc::default(), true);
        let context = Arc::new(ListenerContext {
            name: None,
            tls: None,
            proxy_protocol: false,
            https_port: None,
        });
        Ok(ListenerService {
            name: "admin",
            threads: 1,
            connections: Arc::new(connections),
            listeners: vec![BoundListener { socket: socket_of(sockets, admin.address)?, context }],
            admin: Some(admin_connections),
            startup: Arc::clone(startup),
            // While a state is restored, operators are told how far that is. While another process serves, it answers them.
            gate: if is_successor {
                Arc::clone(&self.gate)
            } else {
                Arc::new(ServingGate::new(true))
            },
            requests: Arc::clone(&self.requests),
        })
    }

    /// The service of the proxy's listeners.
    pub(super) fn edge(
        &self,
        listeners: Vec<BoundListener>,
        threads: usize,
        conf: Arc<ServerConf>,
        startup: &Arc<StartupBarrier>,
    ) -> ListenerService<HttpProxy<Tollgate>> {
        let bounds = Arc::clone(self.live.load().bounds());
        let permits = Arc::clone(&self.permits);
        let connections = self.connections(Arc::new(self.proxy(&bounds, conf)), permits, false);
        ListenerService {
            name: "tollgate",
            threads,
            connections: Arc::new(connections),
            listeners,
            admin: None,
            startup: Arc::clone(startup),
            gate: Arc::clone(&self.gate),
            requests: Arc::clone(&self.requests),
        }
    }

    /// What restoring and saving the state need.
    pub(super) fn state_keeping(&self, clock: Arc<SystemClock>) -> StateKeeping {
        StateKeeping {
            saved: self.saved(clock),
            reloader: Arc::clone(&self.reloader),
            gate: Arc::clone(&self.gate),
            keeper: Arc::clone(&self.keeper),
        }
    }

    fn saved(&self, clock: Arc<SystemClock>) -> SaveContext {
        SaveContext {
            engine: Arc::clone(&self.engine),
            history: Arc::clone(&self.history),
            clock,
            metrics: Arc::clone(&self.state),
        }
    }

    /// What takes up the counts of the process before.
    pub(super) fn take_up_context(
        &self,
        look: Option<Box<dyn FnOnce() -> BeginSaving + Send>>,
    ) -> TakeUpContext {
        let (gate, reloader) = (Arc::clone(&self.gate), Arc::clone(&self.reloader));
        let (state, keeper) = (Arc::clone(&self.state), Arc::clone(&self.keeper));
        let clock = Arc::clone(&self.clock);
        TakeUpContext {
            engine: Arc::clone(&self.engine),
            history: Arc::clone(&self.history),
            live: Arc::clone(&self.live),
            clock: Arc::clone(&self.clock),
            metrics: Arc::clone(&self.state),
            requests: Arc::clone(&self.requests),
            republish: Box::new(move || reloader.republish_restored()),
            look,
            open: Box::new(move || {
                state.end_restoring();
                if keeper.set_counting() {
                    state.begin_unsaved(clock.now().mono);
                }
                gate.open();
            }),
        }
    }

    /// What is handed over to a successor.
    pub(super) fn handover_context(
        &self,
        sockets: Arc<ListeningSockets>,
        clock: Arc<SystemClock>,
        has_state: bool,
    ) -> HandoverContext {
        let (keeper, saved) = (Arc::clone(&self.keeper), self.saved(Arc::clone(&clock)));
        HandoverContext {
            sockets,
            ticket_keys: Arc::clone(&self.ticket_keys),
            clock,
            engine: Arc::clone(&self.engine),
            live: Arc::clone(&self.live),
            publishing: Arc::clone(&self.reloader.publishing),
            requests: Arc::clone(&self.requests),
            runtime: self.background.handle().clone(),
            keep_history: Box::new(self.keep_history()),
            keeper: Box::new(move |task| keeper.run(task, saved.clone())),
            has_state,
        }
    }

    fn connections<A>(
        &self,
        app: Arc<A>,
        permits: Arc<ConnectionPermits>,
        is_admin: bool,
    ) -> ConnectionServer<A> {
        ConnectionServer {
            app,
            policy: self.early_rejection(),
            clock: Arc::clone(&self.clock),
            permits,
            handshakes: HandshakeLimiter::default(),
            is_admin,
            descriptors: self.descriptors.connections,
            // Operators' connections are few and must be served whatever clients do, so they do not count against the
            // budget.
            memory: if is_admin { Arc::default() } else { Arc::clone(&self.memory) },
            readers: Arc::clone(&self.readers),
            // Operators may look on until the process ends.
            cutoff: if is_admin { Arc::default() } else { Arc::clone(&self.cutoff) },
        }
    }

    fn early_rejection(&self) -> Arc<dyn ConnectionPolicy> {
        Arc::new(EarlyRejection {
            engine: Arc::clone(&self.engine),
            live: Arc::clone(&self.live),
            counters: Arc::clone(&self.counters),
            access: Arc::clone(&self.access) as _,
            request_ids: Arc::clone(&self.request_ids),
        })
    }

    fn tollgate(&self) -> Tollgate {
        Tollgate {
            engine: Arc::clone(&self.engine),
            live: Arc::clone(&self.live),
            counters: Arc::clone(&self.counters),
            access: Arc::clone(&self.access) as _,
            request_ids: Arc::clone(&self.request_ids),
            origin_slots: Arc::clone(&self.origin_slots),
            memory: Arc::clone(&self.memory),
            leaving: Arc::clone(&self.leaving),
            cutoff: Arc::clone(&self.cutoff),
        }
    }

    pub(super) fn housekeeping(&self) -> Housekeeping {
        Housekeeping {
            reloader: Arc::clone(&self.reloader),
            changes: Arc::clone(&self.changes),
            ticket_keys: Arc::clone(&self.ticket_keys),
            requests: Arc::clone(&self.requests),
            history: Arc::clone(&self.history),
            state: Arc::clone(&self.state),
            gate: Arc::clone(&self.gate),
        }
    }

    pub(super) fn file_reloads(&self) -> FileReloads {
        FileReloads { reloader: Arc::clone(&self.reloader), requests: Arc::clone(&self.requests) }
    }

    pub(super) fn memory_watch(&self) -> MemoryWatch {
        MemoryWatch {
            budget: Arc::clone(&self.memory),
            readers: Arc::clone(&self.readers),
            policy: self.early_rejection(),
            permits: Arc::clone(&self.permits),
            clock: Arc::clone(&self.clock),
        }
    }

    /// Has the history keep what was counted in the present minute, before the process ends or is replaced.
    fn keep_history(&self) -> impl Fn() + Send + Sync + 'static {
        let (engine, history) = (Arc::clone(&self.engine), Arc::clone(&self.history));
        let (live, counters) = (Arc::clone(&self.live), Arc::clone(&self.counters));
        move || {
            let now = engine.now();
            let totals = traffic_totals(&live.load(), &counters);
            history.keep_present(now.mono, engine.date(now), &totals);
        }
    }

    pub(super) fn lifecycle(&self) -> Lifecycle {
        let (access, keeper) = (Arc::clone(&self.access), Arc::clone(&self.keeper));
        let (engine, keep_history) = (Arc::clone(&self.engine), self.keep_history());
        let links = Arc::clone(&self.links);
        self.requests.set_exit_hook(move || {
            access.flush(LOG_FLUSH_TIMEOUT);
            keep_history();
            keeper.finish(&engine);
        });
        Lifecycle {
            requests: Arc::clone(&self.requests),
            status: Arc::clone(&self.status),
            live: Arc::clone(&self.live),
            leaving: Arc::clone(&self.leaving),
            connections: Arc::clone(&self.connections),
            cutoff: Arc::clone(&self.cutoff),
            engine: Arc::clone(&self.engine),
            has_predecessor: Arc::new(move || links.are_alive()),
        }
    }
}

/// The listeners with their sockets.
pub(super) fn bound_listeners(
    listeners: &[Listener],
    tls: TlsAcceptors,
    sockets: &ListeningSockets,
) -> Result<Vec<BoundListener>, StartError> {
    let mut bound = Vec::with_capacity(listeners.len());
    for (listener, tls) in listeners.iter().zip(tls) {
        let context = ListenerContext {
            name: listener.name.clone(),
            tls,
            proxy_protocol: listener.proxy_protocol,
            https_port: listener.https_port,
        };
        let socket = socket_of(sockets, listener.address)?;
        bound.push(BoundListener { socket, context: Arc::new(context) });
    }
    Ok(bound)
}

fn socket_of(sockets: &ListeningSockets, address: SocketAddr) -> Result<TcpListener, StartError> {
    let unbound = || std::io::Error::from(std::io::ErrorKind::NotFound);
    let socket = sockets.get(&address).ok_or_else(unbound);
    socket
        .and_then(TcpListener::try_clone)
        .map_err(|error| StartError::Listen(ListenError { address, error }))
}
