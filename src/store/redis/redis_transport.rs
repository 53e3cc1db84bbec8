//! Carries calls of the script to real servers: the server of a slot, redirects, a script that was flushed.
//!
//! It does not know what a call charges. A call that may have been executed is never sent again: only replies that say
//! "not executed" (MOVED, ASK, TRYAGAIN, NOSCRIPT) are followed, within the timeout of the call.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use redis::{Cmd, Value};

use super::address::StoreSettings;
use super::bans;
use super::call::{Argument, Arguments};
use super::failure::StoreFailure;
use super::script::SCRIPT;
use super::server::{CommandError, Lane, Server, ServerContext};
use super::topology::Topology;
use super::transport::{Readiness, StoreTransport};
use crate::clock::{Clock, Nanos};
use crate::store::Bans;

/// Maximum number of times that one call is sent. It is sent again only after a reply that says "not executed".
const MAX_ATTEMPTS: usize = 16;

/// The time between two attempts at a slot that is being moved, and between two checks of a server that is connecting.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// The servers of a store.
pub(super) struct RedisTransport {
    pub(super) topology: Arc<Topology>,
    pub(super) context: Arc<ServerContext>,
    script_sha: String,
}

impl RedisTransport {
    /// Begins to connect, on the current runtime.
    pub(super) fn start(settings: StoreSettings, clock: Arc<dyn Clock>) -> Arc<Self> {
        let servers = settings.servers.clone();
        let context = Arc::new(ServerContext::new(settings, clock));
        Arc::new(Self {
            topology: Topology::start(servers, Arc::clone(&context)),
            context,
            script_sha: redis::Script::new(SCRIPT).get_hash().to_owned(),
        })
    }

    /// Sends a command to a server, and follows replies that say "not executed". `script` is what a server loads that
    /// does not have the script of the command.
    async fn send_following(
        &self,
        mut server: Arc<Server>,
        lane: Lane,
        command: &Cmd,
        script: &str,
        deadline: Nanos,
    ) -> Result<Value, StoreFailure> {
        let mut asking = false;
        for attempt in 0..MAX_ATTEMPTS {
            let left = self.time_left(deadline);
            if attempt > 0 && left.is_zero() {
                // The last reply was "not executed".
                return Err(StoreFailure::Refused);
            }
            match server.send(lane, command, asking, left).await {
                Ok(value) => return Ok(value),
                Err(CommandError::Failed(failure, why)) => {
                    record_failure(&server, lane, failure, &why);
                    return Err(failure);
                }
                Err(CommandError::Moved { .. } | CommandError::Ask { .. }) if !self.has_slots() => {
                    record_failure(&server, lane, StoreFailure::Refused, NAMES_ANOTHER);
                    return Err(StoreFailure::Refused);
                }
                Err(CommandError::Moved { slot, to }) => {
                    (server, asking) = (self.topology.record_move(slot, &to), false);
                    self.wait_until_ready(&server, deadline).await;
                }
                Err(CommandError::Ask { to }) => {
                    (server, asking) = (self.topology.find_or_add_server(&to), true);
                    self.wait_until_ready(&server, deadline).await;
                }
                Err(CommandError::TryAgain) => tokio::time::sleep(RETRY_INTERVAL).await,
                Err(CommandError::NoScript) => {
                    if let Err(CommandError::Failed(failure, why)) =
                        server.load_script(lane, script, left).await
                    {
                        record_failure(&server, lane, failure, &why);
                        // Whatever happened to the script, the call was not executed.
                        return Err(StoreFailure::Refused);
                    }
                }
            }
        }
        Err(StoreFailure::Refused)
    }

    fn time_left(&self, deadline: Nanos) -> Duration {
        deadline.saturating_sub(self.context.clock.now().mono).into()
    }

    /// Waits for a server that another one named: it may be new and still be connecting.
    async fn wait_until_ready(&self, server: &Server, deadline: Nanos) {
        while server.readiness() != Readiness::Ready && !self.time_left(deadline).is_zero() {
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    fn command(&self, arguments: &Arguments) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.script_sha).arg(arguments.keys.len());
        for key in &arguments.keys {
            command.arg(key.as_bytes());
        }
        for argument in &arguments.argv {
            match argument {
                Argument::Word(word) => command.arg(word.as_bytes()),
                Argument::Number(number) => command.arg(*number),
            };
        }
        command
    }
}

#[async_trait]
impl StoreTransport for RedisTransport {
    fn has_slots(&self) -> bool {
        self.topology.has_slots()
    }

    fn readiness(&self, slot: u16) -> Readiness {
        self.topology.server_of_slot(slot).map_or(Readiness::Away, |server| server.readiness())
    }

    async fn readiness_changed(&self) {
        self.context.readiness_changed.notified().await;
    }

    async fn call(
        &self,
        slot: u16,
        arguments: &Arguments,
        timeout: Duration,
    ) -> Result<Vec<u64>, StoreFailure> {
        let Some(server) = self.topology.server_of_slot(slot) else {
            return Err(StoreFailure::Unreachable);
        };
        let deadline = self.context.clock.now().mono.saturating_add(timeout.into());
        let value = self
            .send_following(server, Lane::Charges, &self.command(arguments), SCRIPT, deadline)
            .await?;
        numbers(&value).ok_or_else(|| {
            self.record_invalid_reply(slot);
            StoreFailure::Invalid
        })
    }

    async fn evaluate(
        &self,
        slot: u16,
        script: &str,
        keys: &[String],
        arguments: &[String],
        timeout: Duration,
    ) -> Result<Vec<String>, StoreFailure> {
        let server = self.topology.server_of_slot(slot).ok_or(StoreFailure::Unreachable)?;
        let deadline = self.context.clock.now().mono.saturating_add(timeout.into());
        let mut command = redis::cmd("EVALSHA");
        let name = redis::Script::new(script).get_hash().to_owned();
        command.arg(name).arg(keys.len()).arg(keys).arg(arguments);
        let value =
            self.send_following(server, Lane::Background, &command, script, deadline).await?;
        texts(&value).ok_or(StoreFailure::Invalid)
    }

    fn record_invalid_reply(&self, slot: u16) {
        if let Some(server) = self.topology.server_of_slot(slot) {
            server.record_failure(StoreFailure::Invalid, "an invalid reply");
        }
    }

    fn is_up(&self) -> bool {
        self.topology.is_up()
    }

    fn bytes(&self) -> u64 {
        let servers = self.topology.servers();
        servers.iter().map(|server| server.storage.bytes.load(Ordering::Relaxed)).sum()
    }

    fn may_evict(&self) -> bool {
        let servers = self.topology.servers();
        servers.iter().any(|server| server.storage.may_evict.load(Ordering::Relaxed))
    }

    fn lacks_persistence(&self) -> bool {
        let servers = self.topology.servers();
        servers.iter().any(|server| server.storage.lacks_persistence.load(Ordering::Relaxed))
    }

    fn share_bans(self: Arc<Self>, bans: Arc<Bans>) {
        tokio::spawn(bans::share(Arc::downgrade(&self), bans));
    }
}

/// The texts of a reply; `None` if it is anything else than a list of texts.
fn texts(value: &Value) -> Option<Vec<String>> {
    let Value::Array(values) = value else {
        return None;
    };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    values.iter().map(text).collect()
}

/// Why a single server that redirects is not followed: whoever answers for it could name any address, for good.
pub(super) const NAMES_ANOTHER: &str = "it names another server, as those of a Cluster do (MOVED); write cluster: with their addresses instead of url:";

fn record_failure(server: &Server, lane: Lane, failure: StoreFailure, why: &str) {
    match lane {
        Lane::Charges => server.record_failure(failure, why),
        Lane::Background => server.record_background_failure(why),
    }
}

/// The numbers of a reply; `None` if it is anything else than a list of numbers.
fn numbers(value: &Value) -> Option<Vec<u64>> {
    let Value::Array(values) = value else {
        return None;
    };
    let number = |value: &Value| match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    values.iter().map(number).collect()
}
