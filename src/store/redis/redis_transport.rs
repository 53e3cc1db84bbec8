//! Calls of the script to real servers: where a slot is kept, redirects, a script that was flushed.
//!
//! A call that may have been executed is never sent again: only answers that say "not executed"
//! (MOVED, ASK, TRYAGAIN, NOSCRIPT) are followed, within the timeout of the call.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use redis::{Cmd, Value};
use tokio::sync::Notify;

use super::address::StoreSettings;
use super::call::{Argument, Arguments};
use super::failure::StoreFailure;
use super::server::{CommandError, Common, Server};
use super::topology::Topology;
use super::transport::{Readiness, Transport};
use super::{SCRIPT, SOON};
use crate::clock::{Clock, Nanos};

/// How often one call follows an answer that says "not executed".
const MAX_HOPS: usize = 16;

/// The servers of a store.
pub(super) struct RedisTransport {
    pub(super) topology: Arc<Topology>,
    pub(super) common: Arc<Common>,
    sha: String,
}

impl RedisTransport {
    /// Begins to connect, on the runtime that this is called in.
    pub(super) fn start(settings: StoreSettings, clock: Arc<dyn Clock>) -> Arc<Self> {
        let common = Arc::new(Common {
            login: settings.login,
            tls: settings.tls,
            prefix: settings.prefix,
            clock,
            timeout: settings.timeout,
            look_again: Notify::new(),
            changed: Notify::new(),
        });
        Arc::new(Self {
            topology: Topology::start(settings.servers, Arc::clone(&common)),
            common,
            sha: redis::Script::new(SCRIPT).get_hash().to_owned(),
        })
    }

    /// Bytes that the servers hold, as they say.
    pub(super) fn bytes(&self) -> u64 {
        let servers = self.topology.servers();
        servers.iter().map(|one| one.storage.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Whether a server may drop cells that have not refilled.
    pub(super) fn may_evict(&self) -> bool {
        self.topology.servers().iter().any(|one| one.storage.may_evict.load(Ordering::Relaxed))
    }

    /// Whether a server keeps nothing on disk.
    pub(super) fn lacks_persistence(&self) -> bool {
        self.topology
            .servers()
            .iter()
            .any(|one| one.storage.lacks_persistence.load(Ordering::Relaxed))
    }

    /// Sends a command to the server that keeps its slot.
    async fn follow(
        &self,
        mut server: Arc<Server>,
        cmd: &Cmd,
        deadline: Nanos,
    ) -> Result<Value, StoreFailure> {
        let mut asking = false;
        for hop in 0..MAX_HOPS {
            let left = self.left(deadline);
            if hop > 0 && left.is_zero() {
                // The last answer said "not executed".
                return Err(StoreFailure::Refused);
            }
            match server.send(cmd, asking, left).await {
                Ok(value) => return Ok(value),
                Err(CommandError::Failed(failure, why)) => {
                    server.failed(failure, &why);
                    return Err(failure);
                }
                Err(CommandError::Moved { slot, to }) => {
                    (server, asking) = (self.topology.moved(slot, &to), false);
                    self.until_up(&server, deadline).await;
                }
                Err(CommandError::Ask { to }) => {
                    (server, asking) = (self.topology.server(&to), true);
                    self.until_up(&server, deadline).await;
                }
                Err(CommandError::TryAgain) => tokio::time::sleep(SOON).await,
                Err(CommandError::NoScript) => {
                    if let Err(CommandError::Failed(failure, why)) = server.load(left).await {
                        server.failed(failure, &why);
                        // Whatever became of the script, the call was not executed.
                        return Err(StoreFailure::Refused);
                    }
                }
            }
        }
        Err(StoreFailure::Refused)
    }

    fn left(&self, deadline: Nanos) -> Duration {
        deadline.saturating_sub(self.common.clock.now().mono).into()
    }

    /// A server that was never heard of is being connected to.
    async fn until_up(&self, server: &Server, deadline: Nanos) {
        while server.readiness() != Readiness::Ready && !self.left(deadline).is_zero() {
            tokio::time::sleep(SOON).await;
        }
    }

    fn command(&self, arguments: &Arguments) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.sha).arg(arguments.keys.len());
        for key in &arguments.keys {
            cmd.arg(key.as_bytes());
        }
        for argument in &arguments.argv {
            match argument {
                Argument::Word(word) => cmd.arg(word.as_bytes()),
                Argument::Number(number) => cmd.arg(*number),
            };
        }
        cmd
    }
}

#[async_trait]
impl Transport for RedisTransport {
    fn has_slots(&self) -> bool {
        self.topology.has_slots()
    }

    fn readiness(&self, slot: u16) -> Readiness {
        self.topology.of_slot(slot).map_or(Readiness::Away, |server| server.readiness())
    }

    async fn readiness_changed(&self) {
        self.common.changed.notified().await;
    }

    async fn call(
        &self,
        slot: u16,
        arguments: &Arguments,
        timeout: Duration,
    ) -> Result<Vec<u64>, StoreFailure> {
        let Some(server) = self.topology.of_slot(slot) else {
            return Err(StoreFailure::Unreachable);
        };
        let deadline = self.common.clock.now().mono.saturating_add(timeout.into());
        let value = self.follow(server, &self.command(arguments), deadline).await?;
        numbers(&value).ok_or_else(|| {
            self.record_invalid_reply(slot);
            StoreFailure::Invalid
        })
    }

    fn record_invalid_reply(&self, slot: u16) {
        if let Some(server) = self.topology.of_slot(slot) {
            server.failed(StoreFailure::Invalid, "an answer that means nothing");
        }
    }

    fn is_up(&self) -> bool {
        self.topology.is_up()
    }
}

/// The numbers of a reply.
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
