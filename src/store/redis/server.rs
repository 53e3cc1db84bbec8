//! One server: its connection, whether it is worth asking, and who looks after both.
//!
//! Requests never connect and never probe. A task of the server's own does, again and again while
//! it is away: it connects, loads the script and writes a key, so that a server that answers but
//! takes no writes (out of memory, read only, still loading) stays out of the way.

use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::SCRIPT;
use super::address::{Address, Login, Tls, client};
use super::books::{Failure, StoreBooks};
use super::said::Said;
use crate::clock::{Clock, Nanos};
use crate::store::breaker::Breaker;

/// How long a connection may take to be opened, and a probe to be answered.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two probes of a server that is away: it is back soon after it is back.
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// Between two looks at a server that is well, so that one that dies at night is found out before
/// the first request in the morning.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What servers have in common.
pub(super) struct Common {
    pub(super) login: Login,
    pub(super) tls: Option<Tls>,
    pub(super) prefix: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) books: StoreBooks,
    /// Told when a server fails or comes back, or names another one.
    pub(super) look_again: Notify,
    /// Told when a server comes back.
    pub(super) back: Notify,
}

/// One server.
pub(super) struct Server {
    pub(super) address: Address,
    common: Arc<Common>,
    connection: ArcSwapOption<MultiplexedConnection>,
    breaker: Breaker,
    /// Since when it is away, and why.
    away: Mutex<Option<(Nanos, String)>>,
    /// Told when it fails.
    failed: Notify,
    /// A slot that it keeps, so that a probe can write; of a Cluster's server.
    slot: std::sync::atomic::AtomicU16,
    /// What it says of itself.
    pub(super) said: Said,
}

/// What went wrong with one command.
pub(super) enum Trouble {
    /// Nobody knows whether it was executed, or it certainly was not; see [`Failure`].
    Failed(Failure, String),
    /// The slot is elsewhere: not executed.
    Moved { slot: u16, to: Address },
    /// The slot is on its way: not executed; may be asked there, once.
    Ask { to: Address },
    /// The slot is on its way, its keys are here and there: not executed.
    TryAgain,
    /// The script is not loaded: not executed.
    NoScript,
}

impl Server {
    /// A server, and the task that looks after it as long as somebody holds it.
    pub(super) fn start(address: Address, common: Arc<Common>) -> Arc<Self> {
        let server = Arc::new(Self {
            address,
            common,
            connection: ArcSwapOption::empty(),
            breaker: Breaker::default(),
            away: Mutex::new(None),
            failed: Notify::new(),
            slot: 0.into(),
            said: Said::default(),
        });
        tokio::spawn(look_after(Arc::downgrade(&server)));
        server
    }

    /// Whether it answers.
    pub(super) fn is_up(&self) -> bool {
        !self.breaker.is_open()
    }

    pub(super) fn keeps(&self, slot: u16) {
        self.slot.store(slot, std::sync::atomic::Ordering::Relaxed);
    }

    /// Sends one command, within `most`.
    pub(super) async fn send(
        &self,
        cmd: &Cmd,
        asking: bool,
        most: Duration,
    ) -> Result<Value, Trouble> {
        let Some(connection) = self.connection.load_full().filter(|_| self.is_up()) else {
            return Err(Trouble::Failed(Failure::Unreachable, "not connected".to_owned()));
        };
        let mut connection = MultiplexedConnection::clone(&connection);
        let sending = async {
            if !asking {
                return connection.send_packed_command(cmd).await;
            }
            let mut both = redis::pipe();
            both.cmd("ASKING").ignore();
            both.add_command(cmd.clone());
            let values: RedisResult<Vec<Value>> = both.query_async(&mut connection).await;
            values.map(|mut values| values.pop().unwrap_or(Value::Nil))
        };
        match timeout(most, sending).await {
            Ok(Ok(Value::ServerError(error))) => Err(self.trouble(&error.into())),
            Ok(Ok(value)) => {
                self.breaker.answered();
                Ok(value)
            }
            Ok(Err(error)) => Err(self.trouble(&error)),
            Err(_) => Err(Trouble::Failed(Failure::Timeout, format!("no answer in {most:?}"))),
        }
    }

    /// Sends a command that is no charge.
    pub(super) async fn ask(&self, cmd: &Cmd) -> Option<Value> {
        self.send(cmd, false, PROBE_TIMEOUT).await.ok()
    }

    /// Loads the script again: somebody flushed it.
    pub(super) async fn load(&self, most: Duration) -> Result<(), Trouble> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SCRIPT);
        self.send(&load, false, most).await.map(|_| ())
    }

    fn trouble(&self, error: &RedisError) -> Trouble {
        let words = error.to_string();
        let named = error.redirect_node();
        let to = || Address::named(named?.0, &self.address);
        match error.code() {
            Some("MOVED") => match (named, to()) {
                (Some((_, slot)), Some(to)) => Trouble::Moved { slot, to },
                _ => Trouble::Failed(Failure::Invalid, words),
            },
            Some("ASK") => match to() {
                Some(to) => Trouble::Ask { to },
                None => Trouble::Failed(Failure::Invalid, words),
            },
            Some("TRYAGAIN") => Trouble::TryAgain,
            Some("NOSCRIPT") => Trouble::NoScript,
            Some("TOLLGATE" | "WRONGTYPE") => Trouble::Failed(Failure::Unreadable, words),
            Some(_) => Trouble::Failed(Failure::Refused, words),
            None if matches!(error.kind(), ErrorKind::Io) => {
                Trouble::Failed(Failure::Unreachable, words)
            }
            None => Trouble::Failed(Failure::Invalid, words),
        }
    }

    /// Books a failure: after a few the server is not asked until it is seen to be well.
    pub(super) fn failed(&self, failure: Failure, why: &str) {
        if failure == Failure::Unreadable {
            // The server is well; what somebody else wrote there is not.
            log::error!("the store at {}: {why}", self.address);
            return;
        }
        let gone = failure == Failure::Unreachable;
        if matches!(failure, Failure::Invalid | Failure::Unreachable) {
            // What comes next over this connection may be the answer to something else.
            self.connection.store(None);
        }
        if self.breaker.failed(gone) {
            self.went(why);
        }
        self.failed.notify_one();
        self.common.look_again.notify_one();
    }

    fn went(&self, why: &str) {
        let mut away = self.away.lock();
        if away.is_none() {
            log::error!(
                "the store at {} is away: {why}; on_store_failure judges until it is back",
                self.address
            );
            *away = Some((self.common.clock.now().mono, why.to_owned()));
        }
    }

    fn came_back(&self) {
        if let Some((since, _)) = self.away.lock().take() {
            let took = self.common.clock.now().mono.saturating_sub(since);
            log::warn!("the store at {} is back after {took:?}", self.address);
        } else {
            log::info!("the store at {} answers", self.address);
        }
        self.common.back.notify_waiters();
        self.common.look_again.notify_one();
    }

    /// A connection that was seen to take writes.
    async fn connect(&self) -> Result<MultiplexedConnection, String> {
        let told = |error: RedisError| error.to_string();
        let client: Client =
            client(&self.address, &self.common.login, self.common.tls.as_ref()).map_err(told)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PROBE_TIMEOUT))
            .set_response_timeout(None);
        let connecting = async {
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await.map_err(told)?;
            load_script(&mut connection).await.map_err(told)?;
            self.probe(&mut connection).await?;
            Ok(connection)
        };
        timeout(PROBE_TIMEOUT, connecting).await.unwrap_or_else(|_| Err("no answer".to_owned()))
    }

    async fn probe(&self, connection: &mut MultiplexedConnection) -> Result<(), String> {
        let slot = self.slot.load(std::sync::atomic::Ordering::Relaxed);
        let key = super::slots::key_in(&self.common.prefix, slot);
        let mut write = redis::cmd("SET");
        write.arg(key).arg(1).arg("PX").arg(1_000);
        match write.exec_async(connection).await {
            Ok(()) => Ok(()),
            // Another one keeps that slot: this one lives.
            Err(error) if matches!(error.code(), Some("MOVED" | "ASK")) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Loads the script, so that no request has to.
async fn load_script(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(SCRIPT);
    load.exec_async(connection).await
}

/// Connects, probes and connects again, until nobody holds the server any more.
async fn look_after(server: Weak<Server>) {
    loop {
        let Some(held) = server.upgrade() else {
            return;
        };
        let wait = held.look().await;
        let failed = held.failed.notified();
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            // A failure that opened the breaker is looked at soon; others can wait.
            () = failed => tokio::time::sleep(PROBE_EVERY / 10).await,
        }
    }
}

impl Server {
    /// One look; says when the next is due.
    async fn look(&self) -> Duration {
        let connection = self.connection.load_full();
        if self.is_up()
            && let Some(connection) = connection
        {
            let mut connection = MultiplexedConnection::clone(&connection);
            let looked = timeout(PROBE_TIMEOUT, self.said.look(&mut connection)).await;
            let why = match looked {
                Ok(Ok(())) => return LOOK_EVERY,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer to INFO".to_owned(),
            };
            self.failed(Failure::Unreachable, &why);
        }
        match self.connect().await {
            Ok(connection) => {
                self.said.warn(&mut connection.clone(), &self.address).await;
                self.connection.store(Some(Arc::new(connection)));
                if self.breaker.close() {
                    self.came_back();
                }
                LOOK_EVERY
            }
            Err(why) => {
                self.breaker.failed(true);
                self.went(&why);
                PROBE_EVERY + PROBE_EVERY.mul_f64(fastrand::f64())
            }
        }
    }
}
