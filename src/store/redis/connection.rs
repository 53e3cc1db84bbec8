//! The connection to one server: opened, and probed with a write.
//!
//! The probe loads the script and writes a key, so a server that answers but takes no writes (out of memory, read only,
//! still loading) gets no connection. It does not know when to connect (`server_task.rs`). A connection that has ended
//! is known as closed before anything is sent on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisError, RedisResult};
use tokio::time::timeout;

use super::address::open_client;
use super::script::SCRIPT;
use super::server::Server;
use super::slots;

/// How long a connection may take to be opened, and to be probed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the key of a probe lives, in milliseconds.
const PROBE_KEY_LIFETIME_MS: u64 = 1_000;

/// An open connection, and whether it has ended.
pub(super) struct ServerConnection {
    pub(super) commands: MultiplexedConnection,
    closed: Arc<AtomicBool>,
}

/// Why a connection could not be opened.
pub(super) struct ConnectError {
    pub(super) why: String,
    /// The server accepted the connection and closed it: another attempt may succeed at once.
    pub(super) was_closed: bool,
}

impl From<RedisError> for ConnectError {
    fn from(error: RedisError) -> Self {
        let was_closed =
            error.is_io_error() && !error.is_connection_refusal() && !error.is_timeout();
        Self { why: error.to_string(), was_closed }
    }
}

impl ServerConnection {
    /// Opens a connection to a server, over which a write has succeeded.
    pub(super) async fn open(server: &Arc<Server>) -> Result<Self, ConnectError> {
        let connecting = async {
            let mut connection = Self::connect(server, Arc::downgrade(server)).await?;
            load_and_probe(server, &mut connection.commands).await?;
            Ok(connection)
        };
        let no_answer = |_| Err(ConnectError { why: "no answer".to_owned(), was_closed: false });
        timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(no_answer)
    }

    /// Opens a further connection to a server that answers. The server is not told when it ends.
    pub(super) async fn open_further(server: &Server) -> RedisResult<Self> {
        Self::connect(server, Weak::new()).await
    }

    async fn connect(server: &Server, told: Weak<Server>) -> RedisResult<Self> {
        let (login, tls) = (&server.context.login, server.context.tls.as_ref());
        // RESP2 has no notice of a closed connection.
        let client = open_client(&server.address, login, tls, ProtocolVersion::RESP3)?;
        let closed = Arc::<AtomicBool>::default();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None)
            .set_push_sender(on_push(told, Arc::clone(&closed)));
        let commands = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { commands, closed })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    pub(super) fn mark_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

/// Loads the script, so that no request has to, and writes a key; in one round trip.
async fn load_and_probe(server: &Server, commands: &mut MultiplexedConnection) -> RedisResult<()> {
    let key = slots::probe_key(&server.context.prefix, server.probe_slot());
    let (mut load, mut write) = (redis::cmd("SCRIPT"), redis::cmd("SET"));
    load.arg("LOAD").arg(SCRIPT);
    write.arg(key).arg(1).arg("PX").arg(PROBE_KEY_LIFETIME_MS);
    let mut second = commands.clone();
    let (loaded, written) = tokio::join!(load.exec_async(commands), write.exec_async(&mut second));
    match loaded.and(written) {
        Ok(()) => Ok(()),
        // Another server holds that slot, which is an answer too.
        Err(error) if server.context.has_slots && is_redirect(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_redirect(error: &RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK"))
}

/// Called by the client for pushed messages. One of them says that the connection has ended: what is sent after that is
/// not written.
fn on_push(
    server: Weak<Server>,
    closed: Arc<AtomicBool>,
) -> impl Fn(PushInfo) -> Result<(), std::convert::Infallible> {
    move |push| {
        if push.kind == PushKind::Disconnection {
            closed.store(true, Ordering::Release);
            if let Some(server) = server.upgrade() {
                server.wake.notify_one();
                server.context.readiness_changed.notify_waiters();
            }
        }
        Ok(())
    }
}
