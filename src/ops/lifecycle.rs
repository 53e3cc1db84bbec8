//! How the process ends.
//!
//! After TERM the process is not ready at once and goes on accepting for `drain`. Then the listeners close, and the
//! process ends as soon as no request is in flight, after `finish` at the latest. A process that a successor has
//! replaced stops accepting at once, answers on open connections for `drain`, and ends as after TERM.
//! [`crate::signals`] says which signal requests what. What must always hold: once it is requested, the end comes
//! within `drain` and `finish`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};

use super::status::Status;
use crate::clock::RoundedSpan;
use crate::proxy::Live;
use crate::signals::{OperatorRequests, ShutdownCause};

/// Interval of the check for the last connection.
const IDLE_CHECK: Duration = Duration::from_millis(20);

/// Time for requests to end after the last connection: HTTP/2 streams of a client that left are dropped one after the
/// other, and each is logged.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// Ends the process in an orderly way.
pub struct Lifecycle {
    /// What the operator requested.
    pub requests: Arc<OperatorRequests>,
    /// Readiness, which ends when the shutdown begins.
    pub status: Arc<Status>,
    /// The configuration in force, which says how long draining and finishing may take.
    pub live: Arc<ArcSwap<Live>>,
    /// Set when connections are to close after their response.
    pub leaving: Arc<AtomicBool>,
    /// Open connections.
    pub connections: Arc<AtomicUsize>,
}

#[async_trait]
impl ShutdownSignalWatch for Lifecycle {
    /// Returns when the listeners are to be closed.
    async fn recv(&self) -> ShutdownSignal {
        let cause = self.requests.until_shutdown().await;
        self.status.set_ready(false);
        self.leaving.store(true, Ordering::Relaxed);
        let bounds = self.live.load().bounds().clone();
        if cause == ShutdownCause::Replaced {
            log::info!("a successor accepts; connections end with their next answer");
            // Closing a connection while a request is on its way to it would lose that request.
            let _ = tokio::time::timeout(bounds.drain, self.until_idle()).await;
        } else {
            super::supervisor::stopping();
            let drain = RoundedSpan(bounds.drain.into());
            log::info!("TERM: not ready; accepting for {drain} more");
            tokio::time::sleep(bounds.drain).await;
        }
        self.end_when_idle(bounds.finish);
        ShutdownSignal::GracefulTerminate
    }
}

impl Lifecycle {
    async fn until_idle(&self) {
        while self.connections.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(IDLE_CHECK).await;
        }
    }

    /// Starts a thread that ends the process when the last connection has ended, or `finish` is over. The framework would
    /// sleep for a fixed time instead.
    fn end_when_idle(&self, finish: Duration) {
        let connections = Arc::clone(&self.connections);
        let rounds = finish.as_millis() / IDLE_CHECK.as_millis();
        log::info!(
            "closing the listeners; finishing {} connections",
            connections.load(Ordering::Relaxed)
        );
        let (requests, live) = (Arc::clone(&self.requests), Arc::clone(&self.live));
        let spawned = std::thread::Builder::new().name("finish".to_owned()).spawn(move || {
            for _ in 0..rounds {
                // Before the first look: a connection that arrived while the listeners close must be accepted and
                // counted.
                std::thread::sleep(IDLE_CHECK);
                if connections.load(Ordering::Acquire) == 0 {
                    await_stragglers(&live);
                    requests.exit(0);
                }
            }
            log::warn!(
                "finish is over; {} connections are cut",
                connections.load(Ordering::Relaxed)
            );
            requests.exit(0);
        });
        if spawned.is_err() {
            self.requests.exit(0);
        }
    }
}

/// Waits until no request holds the configuration any more. By then each request has handed its line to the log.
fn await_stragglers(live: &ArcSwap<Live>) {
    /// References that no request holds: that of the pointer in `live`, and the one that is used for counting.
    const OWN_REFERENCES: usize = 2;
    let rounds = STRAGGLERS.as_millis() / IDLE_CHECK.as_millis();
    for _ in 0..rounds {
        if Arc::strong_count(&live.load_full()) <= OWN_REFERENCES {
            return;
        }
        std::thread::sleep(IDLE_CHECK);
    }
}
