//! Holds back connections until the process can judge them. Meanwhile they wait in the queues of the sockets.

use tokio::sync::watch;

/// Closed when it is made; once open, it stays open.
#[derive(Debug)]
pub(crate) struct ServingGate(watch::Sender<bool>);

impl ServingGate {
    /// A gate.
    pub(crate) fn new(is_open: bool) -> Self {
        Self(watch::Sender::new(is_open))
    }

    /// Lets connections pass from now on.
    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    /// Returns when the gate is open.
    pub(crate) async fn passed(&self) {
        // An error is impossible: the sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|is_open| *is_open).await;
    }
}
