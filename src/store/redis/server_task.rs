//! The task of one server: connects, probes, and connects again.
//!
//! It does not know calls. It is the only code that opens connections and closes the breaker, so a request never waits
//! for either. An attempt to connect may take longer than the store's timeout, so that a distant server comes back too.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::timeout;

use super::connection::{ConnectError, ServerConnection};
use super::server::Server;
use super::transport::Readiness;
use crate::clock::Nanos;

/// How long a server may take to answer a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Probe interval while the server is away; bounds the recovery delay. A random part of it is added, so that the nodes
/// do not connect at the same time.
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// Probe interval of a healthy server, so that the failure of an idle server is usually noticed before the next
/// request.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Minimum time between the beginnings of two attempts to connect: a server that closes every connection at once is not
/// flooded with new ones.
const CONNECT_EVERY: Nanos = Nanos::from_millis(10);

/// Maintains a server until it is dropped.
pub(super) async fn maintain(server: Weak<Server>) {
    let mut last_attempt = None;
    loop {
        let Some(held) = server.upgrade() else {
            return;
        };
        let wait = held.check(&mut last_attempt).await;
        tokio::select! {
            biased;
            () = held.wake.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

impl Server {
    /// Probes the server if it is connected, and connects if that fails. Returns the time until the next check.
    async fn check(self: &Arc<Self>, last_attempt: &mut Option<Nanos>) -> Duration {
        if self.readiness() == Readiness::Ready
            && let Some(connection) = self.connection.load_full()
        {
            let probed = self.probe(&connection).await;
            if probed == ProbeResult::Answered {
                self.record_there();
                return CHECK_EVERY;
            }
            self.connection.store(None);
            if let ProbeResult::Failed(why) = probed
                && self.breaker.record_failure(true)
            {
                self.record_away(&why);
            }
        }
        self.drop_connections();
        let now = self.context.clock.now().mono;
        if let Some(last) = *last_attempt {
            let pause = last.saturating_add(CONNECT_EVERY).saturating_sub(now);
            if pause > Nanos::ZERO {
                tokio::time::sleep(pause.into()).await;
            }
        }
        *last_attempt = Some(self.context.clock.now().mono);
        self.reconnect().await
    }

    /// Drops what is not used any more. As long as a connection is held, its replies are read, however long they are.
    fn drop_connections(&self) {
        self.connection.store(None);
        if !self.is_up() {
            self.drop_background();
        }
    }

    async fn probe(&self, connection: &ServerConnection) -> ProbeResult {
        let mut commands = connection.commands.clone();
        match timeout(PROBE_TIMEOUT, self.storage.refresh_bytes(&mut commands)).await {
            Ok(Ok(())) => ProbeResult::Answered,
            Ok(Err(error)) if error.is_io_error() => ProbeResult::ConnectionClosed,
            Ok(Err(error)) => ProbeResult::Failed(error.to_string()),
            Err(_) => ProbeResult::Failed("no answer to INFO".to_owned()),
        }
    }

    /// Connects. The server is away if that takes longer than the store's timeout; the attempt goes on. Returns the
    /// time until the next check.
    async fn reconnect(self: &Arc<Self>) -> Duration {
        let connecting = self.connect();
        tokio::pin!(connecting);
        let connected = match timeout(self.context.timeout, &mut connecting).await {
            Ok(connected) => connected,
            Err(_) => {
                if self.breaker.record_failure(true) {
                    self.record_away("the connection was lost, and opening another takes too long");
                }
                connecting.await
            }
        };
        match connected {
            Ok(connection) => {
                let mut commands = connection.commands.clone();
                self.connection.store(Some(Arc::new(connection)));
                if self.breaker.close() {
                    self.record_back();
                }
                self.context.readiness_changed.notify_waiters();
                let checking = self.storage.check_settings(&mut commands, &self.address);
                // It only warns; a server that does not answer is told by the next probe.
                let _ = timeout(PROBE_TIMEOUT, checking).await;
                CHECK_EVERY
            }
            Err(error) => {
                self.breaker.record_failure(true);
                self.record_away(&error.why);
                // It sleeps here, since the notice that this attempt's connection was closed would end a wait in
                // `maintain`.
                tokio::time::sleep(PROBE_EVERY + PROBE_EVERY.mul_f64(fastrand::f64())).await;
                Duration::ZERO
            }
        }
    }

    /// Opens a connection. While the server is up, one that it closes at once is opened again.
    async fn connect(self: &Arc<Self>) -> Result<ServerConnection, ConnectError> {
        loop {
            match ServerConnection::open(self).await {
                Err(error) if error.was_closed && self.is_up() => {
                    tokio::time::sleep(CONNECT_EVERY.into()).await;
                }
                result => return result,
            }
        }
    }
}

/// How a probe of a connected server ended.
#[derive(PartialEq, Eq)]
enum ProbeResult {
    Answered,
    /// The connection has ended. It is opened again before the server counts as away.
    ConnectionClosed,
    Failed(String),
}
