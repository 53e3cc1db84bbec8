//! The seam below the batcher: it carries one call to a server and brings one reply back.
//!
//! The batcher decides which charges share a call. A transport knows servers, slots, connections and
//! redirects, and nothing of limits. The real one is `redis_transport.rs`, which asks `topology.rs` for
//! the servers; tests put a simulated one here.
//! A call that may have been executed is never sent again: only answers that say "not executed" are
//! followed.

use std::time::Duration;

use async_trait::async_trait;

use super::{Arguments, StoreFailure};

/// Whether a call to a server would be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It would.
    Ready,
    /// The connection was lost a moment ago and is being opened again: worth waiting for, within the
    /// deadline.
    Reconnecting,
    /// The server is away: charges fail at once.
    Away,
}

/// Carries calls of the script.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Whether cells lie in slots, as in a Cluster: all cells of a call are then of one slot.
    fn has_slots(&self) -> bool;

    /// Whether a call to the server that keeps a slot would be sent now. (Slot 0 where there are none.)
    fn readiness(&self, slot: u16) -> Readiness;

    /// Returns when the readiness of some server may have changed since this was called.
    async fn readiness_changed(&self);

    /// Sends one call to the server that keeps `slot` and returns the numbers of its reply. Ends
    /// within `timeout`, also where it follows redirects.
    async fn call(
        &self,
        slot: u16,
        arguments: &Arguments,
        timeout: Duration,
    ) -> Result<Vec<u64>, StoreFailure>;

    /// The last reply from the server of this slot contradicted itself: what comes next over the same
    /// connection may be the answer to something else.
    fn record_invalid_reply(&self, slot: u16);

    /// Whether every server that keeps something answers.
    fn is_up(&self) -> bool;
}
