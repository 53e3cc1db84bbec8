//! One server: its connection, whether it is worth asking, and the task that maintains both.
//!
//! Requests never connect and never probe; the server's own task does. It connects, loads the
//! script and writes a key, so that a server that answers but takes no writes (out of memory, read
//! only, still loading) stays away.
//!
//! ```text
//!             probe wrote                     connection closed
//!   away  ------------------>  ready  ---------------------------->  reconnecting
//!    ^ ^                       |   ^                                   |       |
//!    | '-- calls unanswered ---'   '---------- probe wrote ------------'       |
//!    '-------------- no connection within the store's timeout -----------------'
//! ```

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, PushInfo, PushKind};
use redis::{RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::SCRIPT;
use super::address::{Address, Login, StoreTls, open_client};
use super::circuit_breaker::CircuitBreaker;
use super::failure::StoreFailure;
use super::server_storage::ServerStorage;
use super::transport::Readiness;
use crate::clock::{Clock, Nanos};

/// How long a connection may take to be opened, and a probe to be answered.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Probe interval while the server is away; bounds the recovery delay.
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// Probe interval of a healthy server; an idle server's failure is noticed before the next request.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Between the beginnings of two attempts to connect: a server that closes every connection at once
/// is not flooded with new ones.
const CONNECT_EVERY: Nanos = Nanos::from_millis(10);

/// What servers have in common.
pub(super) struct Common {
    pub(super) login: Login,
    pub(super) tls: Option<StoreTls>,
    pub(super) prefix: String,
    pub(super) clock: Arc<dyn Clock>,
    /// How long a call may take; a lost connection may take as long to be opened again.
    pub(super) timeout: Duration,
    /// Notified when a server fails or comes back, or names another one.
    pub(super) look_again: Notify,
    /// Notified when the readiness of a server may have changed.
    pub(super) changed: Notify,
}

/// One server.
pub(super) struct Server {
    pub(super) address: Address,
    common: Arc<Common>,
    connection: ArcSwapOption<Connection>,
    breaker: CircuitBreaker,
    /// Since when it is away.
    away: Mutex<Option<Nanos>>,
    /// Wakes the task that maintains the connection.
    wake: Notify,
    /// A slot that it keeps, so that a probe can write; of a Cluster's server.
    slot: AtomicU16,
    /// What it says of itself.
    pub(super) storage: ServerStorage,
}

/// An open connection, and whether the server has closed it.
struct Connection {
    commands: MultiplexedConnection,
    closed: Arc<AtomicBool>,
}

/// What went wrong with one command.
pub(super) enum CommandError {
    /// See [`StoreFailure`] for whether it was executed; with the reason in words.
    Failed(StoreFailure, String),
    /// The slot is elsewhere: not executed.
    Moved { slot: u16, to: Address },
    /// The slot is being moved: not executed; may be asked there, once.
    Ask { to: Address },
    /// The slot is being moved, its keys are here and there: not executed.
    TryAgain,
    /// The script is not loaded: not executed.
    NoScript,
}

impl Server {
    /// A server, and the task that maintains it as long as somebody holds it.
    pub(super) fn start(address: Address, common: Arc<Common>) -> Arc<Self> {
        let server = Arc::new(Self {
            address,
            common,
            connection: ArcSwapOption::empty(),
            breaker: CircuitBreaker::default(),
            away: Mutex::new(None),
            wake: Notify::new(),
            slot: AtomicU16::new(0),
            storage: ServerStorage::default(),
        });
        tokio::spawn(maintain(Arc::downgrade(&server)));
        server
    }

    /// Whether it answers. (A connection that is being opened again is no outage yet.)
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

    pub(super) fn keeps(&self, slot: u16) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// Sends one command, within `limit`.
    pub(super) async fn send(
        &self,
        cmd: &Cmd,
        asking: bool,
        limit: Duration,
    ) -> Result<Value, CommandError> {
        let connection = self.connection.load_full().filter(|one| self.is_up() && one.is_open());
        let Some(connection) = connection else {
            return Err(CommandError::Failed(
                StoreFailure::Unreachable,
                "not connected".to_owned(),
            ));
        };
        // From here on the command may have been written, whatever error follows.
        let mut commands = connection.commands.clone();
        let sending = async {
            if !asking {
                return commands.send_packed_command(cmd).await;
            }
            let mut both = redis::pipe();
            both.cmd("ASKING").ignore();
            both.add_command(cmd.clone());
            // An error of a pipeline does not say which one it is; each answer by itself does.
            both.ignore_errors();
            let answers: RedisResult<Vec<RedisResult<Value>>> =
                both.query_async(&mut commands).await;
            answers?.pop().unwrap_or(Ok(Value::Nil))
        };
        match timeout(limit, sending).await {
            Ok(Ok(Value::ServerError(error))) => Err(self.command_error(&error.into())),
            Ok(Ok(value)) => {
                self.breaker.record_success();
                Ok(value)
            }
            Ok(Err(error)) => {
                if matches!(error.kind(), ErrorKind::Io) {
                    connection.closed.store(true, Ordering::Release);
                }
                Err(self.command_error(&error))
            }
            Err(_) => {
                Err(CommandError::Failed(StoreFailure::Timeout, format!("no answer in {limit:?}")))
            }
        }
    }

    /// Sends a command that is no charge.
    pub(super) async fn ask(&self, cmd: &Cmd) -> Option<Value> {
        self.send(cmd, false, PROBE_TIMEOUT).await.ok()
    }

    /// Loads the script again: somebody flushed it.
    pub(super) async fn load(&self, limit: Duration) -> Result<(), CommandError> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SCRIPT);
        self.send(&load, false, limit).await.map(|_| ())
    }

    fn command_error(&self, error: &RedisError) -> CommandError {
        let words = error.to_string();
        let named = error.redirect_node();
        let to = || Address::from_server(named?.0, &self.address);
        match error.code() {
            Some("MOVED") => match (named, to()) {
                (Some((_, slot)), Some(to)) => CommandError::Moved { slot, to },
                _ => CommandError::Failed(StoreFailure::Invalid, words),
            },
            Some("ASK") => match to() {
                Some(to) => CommandError::Ask { to },
                None => CommandError::Failed(StoreFailure::Invalid, words),
            },
            Some("TRYAGAIN") => CommandError::TryAgain,
            Some("NOSCRIPT") => CommandError::NoScript,
            Some("TOLLGATE" | "WRONGTYPE") => CommandError::Failed(StoreFailure::Unreadable, words),
            Some(_) => CommandError::Failed(StoreFailure::Refused, words),
            None if matches!(error.kind(), ErrorKind::Io) => {
                CommandError::Failed(StoreFailure::Lost, words)
            }
            None => CommandError::Failed(StoreFailure::Invalid, words),
        }
    }

    /// Records a failed call. After a few calls without an answer the server is away until a probe
    /// has written; a lost connection is opened again first.
    pub(super) fn failed(&self, failure: StoreFailure, why: &str) {
        let opens = match failure {
            StoreFailure::Unreadable => {
                // The server is well; what somebody else wrote there is not.
                log::error!("the store at {}: {why}", self.address);
                return;
            }
            // Nothing was sent, so this says nothing about the server.
            StoreFailure::Unreachable | StoreFailure::Withdrawn | StoreFailure::QueueFull => return,
            // The connection is marked as closed.
            StoreFailure::Lost => false,
            StoreFailure::Invalid => {
                // What comes next over this connection may be the answer to something else.
                self.connection.store(None);
                self.breaker.record_failure(false)
            }
            StoreFailure::Timeout | StoreFailure::Refused => self.breaker.record_failure(false),
        };
        if opens {
            self.went_away(why);
        }
        if self.readiness() != Readiness::Ready {
            self.wake.notify_one();
            self.common.changed.notify_waiters();
        }
    }

    /// The breaker is open now.
    fn went_away(&self, why: &str) {
        let mut away = self.away.lock();
        if away.is_none() {
            log::error!(
                "the store at {} is away: {why}; on_store_failure judges until it is back",
                self.address
            );
            *away = Some(self.common.clock.now().mono);
        }
        drop(away);
        self.common.look_again.notify_one();
        self.common.changed.notify_waiters();
    }

    fn came_back(&self) {
        if let Some(since) = self.away.lock().take() {
            let took = self.common.clock.now().mono.saturating_sub(since);
            log::warn!("the store at {} is back after {took:?}", self.address);
        } else {
            log::info!("the store at {} answers", self.address);
        }
        self.common.look_again.notify_one();
    }

    /// A connection over which a write was seen to succeed.
    async fn connect(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        let (login, tls) = (&self.common.login, self.common.tls.as_ref());
        // The older protocol has no notice of a closed connection.
        let client = open_client(&self.address, login, tls, ProtocolVersion::RESP3)?;
        let closed = Arc::<AtomicBool>::default();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PROBE_TIMEOUT))
            .set_response_timeout(None)
            .set_push_sender(close_notice(Arc::downgrade(self), Arc::clone(&closed)));
        let connecting = async {
            let mut commands = client.get_multiplexed_async_connection_with_config(&config).await?;
            self.load_and_probe(&mut commands).await?;
            Ok(Connection { commands, closed })
        };
        let no_answer = |_| Err(ConnectError { why: "no answer".to_owned(), broken: false });
        timeout(PROBE_TIMEOUT, connecting).await.unwrap_or_else(no_answer)
    }

    /// Loads the script, so that no request has to, and writes a key; in one round trip.
    async fn load_and_probe(&self, commands: &mut MultiplexedConnection) -> RedisResult<()> {
        let slot = self.slot.load(Ordering::Relaxed);
        let key = super::slots::probe_key(&self.common.prefix, slot);
        let (mut load, mut write) = (redis::cmd("SCRIPT"), redis::cmd("SET"));
        load.arg("LOAD").arg(SCRIPT);
        write.arg(key).arg(1).arg("PX").arg(1_000);
        let mut second = commands.clone();
        let (loaded, written) =
            tokio::join!(load.exec_async(commands), write.exec_async(&mut second));
        match loaded.and(written) {
            Ok(()) => Ok(()),
            // Another server keeps that slot: this one answers.
            Err(error) if matches!(error.code(), Some("MOVED" | "ASK")) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Why a connection could not be opened.
struct ConnectError {
    why: String,
    /// The server took the connection and closed it: another attempt may succeed at once.
    broken: bool,
}

impl From<RedisError> for ConnectError {
    fn from(error: RedisError) -> Self {
        let broken = error.is_io_error() && !error.is_connection_refusal() && !error.is_timeout();
        Self { why: error.to_string(), broken }
    }
}

impl Connection {
    fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }
}

/// Called by the client when the connection has ended: whatever is sent after that is not written.
fn close_notice(
    server: Weak<Server>,
    closed: Arc<AtomicBool>,
) -> impl Fn(PushInfo) -> Result<(), std::convert::Infallible> {
    move |push| {
        if push.kind == PushKind::Disconnection {
            closed.store(true, Ordering::Release);
            if let Some(server) = server.upgrade() {
                server.wake.notify_one();
                server.common.changed.notify_waiters();
            }
        }
        Ok(())
    }
}

/// Connects, probes and connects again, until nobody holds the server any more.
async fn maintain(server: Weak<Server>) {
    let mut last_attempt = None;
    loop {
        let Some(held) = server.upgrade() else {
            return;
        };
        let wait = held.look(&mut last_attempt).await;
        tokio::select! {
            biased;
            () = held.wake.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

impl Server {
    /// One look; returns the time until the next.
    async fn look(self: &Arc<Self>, last_attempt: &mut Option<Nanos>) -> Duration {
        if self.readiness() == Readiness::Ready
            && let Some(connection) = self.connection.load_full()
        {
            let mut commands = connection.commands.clone();
            let why = match timeout(PROBE_TIMEOUT, self.storage.refresh_bytes(&mut commands)).await
            {
                Ok(Ok(())) => return LOOK_EVERY,
                // The connection was closed: it is opened again below.
                Ok(Err(error)) if error.is_io_error() => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("no answer to INFO".to_owned()),
            };
            self.connection.store(None);
            if let Some(why) = why
                && self.breaker.record_failure(true)
            {
                self.went_away(&why);
            }
        }
        let now = self.common.clock.now().mono;
        if let Some(last) = *last_attempt {
            let pause = last.saturating_add(CONNECT_EVERY).saturating_sub(now);
            if pause > Nanos::ZERO {
                tokio::time::sleep(pause.into()).await;
            }
        }
        *last_attempt = Some(self.common.clock.now().mono);
        self.reconnect().await
    }

    /// Connects. The server is away when that does not succeed within the timeout of the store; the
    /// attempt itself may take longer, so that a far server comes back too.
    async fn reconnect(self: &Arc<Self>) -> Duration {
        let connecting = async {
            loop {
                match self.connect().await {
                    Err(error) if error.broken && self.is_up() => {
                        tokio::time::sleep(CONNECT_EVERY.into()).await;
                    }
                    other => return other,
                }
            }
        };
        tokio::pin!(connecting);
        let connected = match timeout(self.common.timeout, &mut connecting).await {
            Ok(connected) => connected,
            Err(_) => {
                if self.breaker.record_failure(true) {
                    self.went_away("the connection was lost, and opening another takes too long");
                }
                connecting.await
            }
        };
        match connected {
            Ok(connection) => {
                let mut commands = connection.commands.clone();
                self.connection.store(Some(Arc::new(connection)));
                if self.breaker.close() {
                    self.came_back();
                }
                self.common.changed.notify_waiters();
                let warn = self.storage.check_settings(&mut commands, &self.address);
                let _ = timeout(PROBE_TIMEOUT, warn).await;
                LOOK_EVERY
            }
            Err(error) => {
                self.breaker.record_failure(true);
                self.went_away(&error.why);
                // Not cut short by the notice that this attempt's connection was closed.
                tokio::time::sleep(PROBE_EVERY + PROBE_EVERY.mul_f64(fastrand::f64())).await;
                Duration::ZERO
            }
        }
    }
}
