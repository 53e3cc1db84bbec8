//! One server: sends commands to it, and knows whether more would be answered.
//!
//! It does not know the slots of other servers, calls or charges. Requests never connect and never probe: a task of the
//! server (`server_task.rs`) opens its connection (`connection.rs`) and keeps it open. A second connection carries what no
//! request waits for; whoever needs it opens it. An error says whether the command may have been executed; once it may have
//! been written, it counts as such.
//!
//! ```text
//!             probe wrote                     connection closed
//!   away  ------------------>  ready  ---------------------------->  reconnecting
//!    ^ ^                       |   ^                                   |       |
//!    | '-- calls unanswered ---'   '---------- probe wrote ------------'       |
//!    '-------------- no connection within the store's timeout -----------------'
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::address::{Address, Login, ServerDiscovery, StoreSettings, StoreTls};
use super::away_log::{AwayLog, AwayNews};
use super::circuit_breaker::CircuitBreaker;
use super::connection::ServerConnection;
use super::failure::StoreFailure;
use super::server_storage::ServerStorage;
use super::server_task;
use super::told_failures::ToldFailures;
use super::transport::Readiness;
use crate::clock::{Clock, RoundedSpan};

/// How long a server may take to answer a question about its slots.
const SLOTS_TIMEOUT: Duration = Duration::from_secs(1);

/// Characters of what a server says that are written to the log.
const MAX_REASON: usize = 200;

/// What all servers of a store share.
pub(super) struct ServerContext {
    pub(super) login: Login,
    pub(super) tls: Option<StoreTls>,
    /// What every key begins with.
    pub(super) prefix: String,
    pub(super) clock: Arc<dyn Clock>,
    /// Whether cells lie in slots, so that another server may hold one.
    pub(super) has_slots: bool,
    /// How long a call may take, and how long a lost connection may take to be opened again.
    pub(super) timeout: Duration,
    /// Notified when a server goes away or comes back, or names another one.
    pub(super) refresh_topology: Notify,
    /// Notified when the readiness of a server may have changed.
    pub(super) readiness_changed: Notify,
}

impl ServerContext {
    pub(super) fn new(settings: StoreSettings, clock: Arc<dyn Clock>) -> Self {
        Self {
            login: settings.login,
            tls: settings.tls,
            prefix: settings.prefix,
            clock,
            has_slots: matches!(settings.servers, ServerDiscovery::Cluster(_)),
            timeout: settings.timeout,
            refresh_topology: Notify::new(),
            readiness_changed: Notify::new(),
        }
    }
}

/// One server.
pub(super) struct Server {
    pub(super) address: Address,
    pub(super) context: Arc<ServerContext>,
    pub(super) connection: ArcSwapOption<ServerConnection>,
    /// The connection of [`Lane::Background`], once it was needed.
    background: tokio::sync::Mutex<Option<Arc<ServerConnection>>>,
    background_failures: ToldFailures,
    pub(super) breaker: CircuitBreaker,
    /// Since when it is away.
    away_log: Mutex<AwayLog>,
    /// Wakes the task that keeps the connection open.
    pub(super) wake: Notify,
    /// In a Cluster, a slot that this server holds: a probe writes there.
    probe_slot: AtomicU16,
    /// What it reports of its storage.
    pub(super) storage: ServerStorage,
}

/// The connection that carries a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Of charges. A command that is not answered counts against the server.
    Charges,
    /// Of what no request waits for. A long reply delays no charge here, and a failure says nothing about charges.
    Background,
}

/// Why a command failed.
pub(super) enum CommandError {
    /// The failure, which says whether the command may have been executed, and the reason in words.
    Failed(StoreFailure, String),
    /// Another server holds the slot. Not executed.
    Moved { slot: u16, to: Address },
    /// The slot is being moved. Not executed; this one command may be sent there.
    Ask { to: Address },
    /// The slot is being moved and its keys are on both servers. Not executed.
    TryAgain,
    /// The script is not loaded. Not executed.
    NoScript,
}

impl Server {
    /// Starts the task that maintains the server. The task ends when the server is dropped.
    pub(super) fn start(address: Address, context: Arc<ServerContext>) -> Arc<Self> {
        let server = Arc::new(Self::new(address, context));
        tokio::spawn(server_task::maintain(Arc::downgrade(&server)));
        server
    }

    /// A server that nothing connects to yet.
    pub(super) fn new(address: Address, context: Arc<ServerContext>) -> Self {
        Self {
            address,
            context,
            connection: ArcSwapOption::empty(),
            background: tokio::sync::Mutex::default(),
            background_failures: ToldFailures::default(),
            breaker: CircuitBreaker::default(),
            away_log: Mutex::default(),
            wake: Notify::new(),
            probe_slot: AtomicU16::new(0),
            storage: ServerStorage::default(),
        }
    }

    /// Whether it answers. A server whose connection is being opened again still counts as up.
    pub(super) fn is_up(&self) -> bool {
        !self.breaker.is_open()
    }

    /// Whether a command would be sent now.
    pub(super) fn readiness(&self) -> Readiness {
        if !self.is_up() {
            return Readiness::Away;
        }
        match self.connection.load().as_deref() {
            Some(connection) if connection.is_open() => Readiness::Ready,
            Some(_) | None => Readiness::Reconnecting,
        }
    }

    /// The slot that a probe writes to.
    pub(super) fn probe_slot(&self) -> u16 {
        self.probe_slot.load(Ordering::Relaxed)
    }

    pub(super) fn set_probe_slot(&self, slot: u16) {
        self.probe_slot.store(slot, Ordering::Relaxed);
    }

    /// Sends one command, within `limit`. `asking`: the server does not hold the slot yet, and another one has sent
    /// this command here.
    pub(super) async fn send(
        &self,
        lane: Lane,
        command: &Cmd,
        asking: bool,
        limit: Duration,
    ) -> Result<Value, CommandError> {
        let clock = &self.context.clock;
        let deadline = clock.now().mono.saturating_add(limit.into());
        let connection = self.connection_of(lane, limit).await;
        let Some(connection) = connection.filter(|connection| self.is_up() && connection.is_open())
        else {
            return Err(CommandError::Failed(
                StoreFailure::Unreachable,
                "not connected".to_owned(),
            ));
        };
        // From here on the command may have been written, whatever error follows.
        let mut commands = connection.commands.clone();
        let sending = async {
            match asking {
                true => send_asking(&mut commands, command).await,
                false => commands.send_packed_command(command).await,
            }
        };
        match timeout(deadline.saturating_sub(clock.now().mono).into(), sending).await {
            Ok(Ok(Value::ServerError(error))) => Err(self.command_error(&error.into())),
            Ok(Ok(value)) => {
                if lane == Lane::Charges {
                    self.breaker.record_success();
                }
                Ok(value)
            }
            Ok(Err(error)) => {
                if matches!(error.kind(), ErrorKind::Io) {
                    connection.mark_closed();
                }
                Err(self.command_error(&error))
            }
            Err(_) => {
                if lane == Lane::Background {
                    // A late reply, which may be long, is not waited for again and again.
                    connection.mark_closed();
                }
                Err(CommandError::Failed(
                    StoreFailure::Timeout,
                    format!("no answer in {}", RoundedSpan(limit.into())),
                ))
            }
        }
    }

    /// The connection of a lane, which may have ended. That of the background is opened here.
    async fn connection_of(&self, lane: Lane, limit: Duration) -> Option<Arc<ServerConnection>> {
        if lane == Lane::Charges {
            return self.connection.load_full();
        }
        if !self.is_up() {
            return None;
        }
        let opening = async {
            let mut background = self.background.lock().await;
            if background.as_ref().is_none_or(|connection| !connection.is_open()) {
                *background = ServerConnection::open_further(self).await.ok().map(Arc::new);
            }
            background.clone()
        };
        timeout(limit, opening).await.ok().flatten()
    }

    /// Drops the connection of the background.
    pub(super) fn drop_background(&self) {
        // Whoever holds the lock is opening another one, and drops this one.
        if let Ok(mut background) = self.background.try_lock() {
            *background = None;
        }
    }

    /// Records that a command of the background failed. The log is told each reason once.
    pub(super) fn record_background_failure(&self, why: &str) {
        // That a server is away was told.
        if self.is_up() && self.background_failures.record(why, self.context.clock.now().mono) {
            log::warn!("the store at {}: {why}", self.address);
        }
    }

    /// Sends a question about slots, which changes nothing; `None` if it is not answered.
    pub(super) async fn ask(&self, command: &Cmd) -> Option<Value> {
        self.send(Lane::Charges, command, false, SLOTS_TIMEOUT).await.ok()
    }

    /// Loads a script that the server does not have, or not any more.
    pub(super) async fn load_script(
        &self,
        lane: Lane,
        script: &str,
        limit: Duration,
    ) -> Result<(), CommandError> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script);
        self.send(lane, &load, false, limit).await.map(|_| ())
    }

    fn command_error(&self, error: &RedisError) -> CommandError {
        let why: String = error.to_string().chars().take(MAX_REASON).collect();
        let redirect = error.redirect_node();
        let to = || Address::from_server(redirect?.0, &self.address);
        match error.code() {
            Some("MOVED") => match (redirect, to()) {
                (Some((_, slot)), Some(to)) => CommandError::Moved { slot, to },
                _ => CommandError::Failed(StoreFailure::Invalid, why),
            },
            Some("ASK") => match to() {
                Some(to) => CommandError::Ask { to },
                None => CommandError::Failed(StoreFailure::Invalid, why),
            },
            Some("TRYAGAIN") => CommandError::TryAgain,
            Some("NOSCRIPT") => CommandError::NoScript,
            Some("TOLLGATE" | "WRONGTYPE") => CommandError::Failed(StoreFailure::Unreadable, why),
            Some(_) => CommandError::Failed(StoreFailure::Refused, why),
            None if matches!(error.kind(), ErrorKind::Io) => {
                CommandError::Failed(StoreFailure::Lost, why)
            }
            None => CommandError::Failed(StoreFailure::Invalid, why),
        }
    }

    /// Records a failed call. After a few failed calls the server is away until a probe has written. A lost connection
    /// alone does not make it away: the connection is opened again first.
    pub(super) fn record_failure(&self, failure: StoreFailure, why: &str) {
        let opened_breaker = match failure {
            StoreFailure::Unreadable => {
                // The server works. What another program wrote there does not count against it.
                if self.background_failures.record(why, self.context.clock.now().mono) {
                    log::error!("the store at {}: {why}", self.address);
                }
                return;
            }
            // Nothing was sent, so this says nothing about the server.
            StoreFailure::Unreachable | StoreFailure::Withdrawn | StoreFailure::QueueFull => return,
            // The connection is marked as closed already.
            StoreFailure::Lost => false,
            StoreFailure::Invalid => {
                // The next reply on this connection may belong to another call.
                self.connection.store(None);
                self.breaker.record_failure(false)
            }
            StoreFailure::Timeout | StoreFailure::Refused => self.breaker.record_failure(false),
        };
        if opened_breaker {
            self.record_away(why);
        }
        if self.readiness() != Readiness::Ready {
            self.wake.notify_one();
            self.context.readiness_changed.notify_waiters();
        }
    }

    /// Records that the breaker has opened.
    pub(super) fn record_away(&self, why: &str) {
        match self.away_log.lock().record_away(self.context.clock.now().mono) {
            Some(AwayNews::ComesAndGoes) => log::error!(
                "the store at {} comes and goes, and is away again: {why}; on_store_failure judges then, and this is told once a minute",
                self.address
            ),
            Some(_) => log::error!(
                "the store at {} is away: {why}; on_store_failure judges until it is back",
                self.address
            ),
            None => {}
        }
        self.context.refresh_topology.notify_one();
        self.context.readiness_changed.notify_waiters();
    }

    /// Records that it answers a probe while it is ready.
    pub(super) fn record_there(&self) {
        if self.away_log.lock().record_there(self.context.clock.now().mono).is_some() {
            log::warn!("the store at {} is back, and stays", self.address);
        }
    }

    /// Records that the breaker has closed.
    pub(super) fn record_back(&self) {
        match self.away_log.lock().record_back(self.context.clock.now().mono) {
            Some(AwayNews::Back(span)) => {
                log::warn!("the store at {} is back after {}", self.address, RoundedSpan(span));
            }
            Some(_) => log::info!("the store at {} answers", self.address),
            None => {}
        }
        self.context.refresh_topology.notify_one();
    }
}

/// Sends a command behind ASKING, which makes a server accept it for a slot that it does not hold yet.
async fn send_asking(commands: &mut MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore();
    both.add_command(command.clone());
    // The error of a pipeline does not say which command failed; each reply by itself does.
    both.ignore_errors();
    let replies: RedisResult<Vec<RedisResult<Value>>> = both.query_async(commands).await;
    replies?.pop().unwrap_or(Ok(Value::Nil))
}
