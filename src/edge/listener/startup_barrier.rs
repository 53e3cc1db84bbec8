//! Reports when all services of the process run, and accept connections as soon as they may.
//!
//! Each service arrives once. It does not know what a service serves.

use tokio::sync::watch;

/// Opens when every service has arrived.
#[derive(Debug)]
pub(crate) struct StartupBarrier {
    missing: watch::Sender<usize>,
}

impl StartupBarrier {
    /// A barrier for this number of services.
    pub(crate) fn new(services: usize) -> Self {
        Self { missing: watch::Sender::new(services) }
    }

    /// Returns when the last service has arrived.
    pub(crate) async fn wait(&self) {
        // An error is impossible: the sender lives as long as `self`.
        let _ = self.missing.subscribe().wait_for(|missing| *missing == 0).await;
    }

    /// Records that one more service runs.
    pub(super) fn arrive(&self) {
        self.missing.send_modify(|missing| *missing = missing.saturating_sub(1));
    }
}
