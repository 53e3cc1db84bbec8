//! The interface below the batcher: a transport carries one call to a server and brings one reply back.
//!
//! A transport knows servers, slots, connections and redirects, and nothing of limits; the batcher decides which
//! charges share a call. `redis_transport.rs` is the real one; tests use simulated ones. A call that may have been
//! executed is never sent again: a transport follows only replies that say "not executed".

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::call::Arguments;
use super::failure::StoreFailure;
use crate::store::Bans;

/// Whether a call to a server would be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It would be sent.
    Ready,
    /// The connection was lost a moment ago and is being opened again. Charges wait for it, within their deadlines.
    Reconnecting,
    /// The server is away. Charges fail at once.
    Away,
}

/// Carries calls of the script.
#[async_trait]
pub trait StoreTransport: Send + Sync + 'static {
    /// Whether cells lie in slots, as in a Cluster. All cells of a call are then in one slot. This does not change.
    fn has_slots(&self) -> bool;

    /// Whether a call to the server of a slot would be sent now. The slot is 0 where there are none.
    fn readiness(&self, slot: u16) -> Readiness;

    /// Returns when the readiness of a server may have changed since this was called.
    async fn readiness_changed(&self);

    /// Sends one call to the server of `slot` and returns the numbers of its reply. Ends within `timeout`, redirects
    /// included.
    async fn call(
        &self,
        slot: u16,
        arguments: &Arguments,
        timeout: Duration,
    ) -> Result<Vec<u64>, StoreFailure>;

    /// Runs a script that is seldom needed on the server of `slot`, and returns the texts of its reply. A transport without
    /// servers reaches none.
    async fn evaluate(
        &self,
        _slot: u16,
        _script: &str,
        _keys: &[String],
        _arguments: &[String],
        _timeout: Duration,
    ) -> Result<Vec<String>, StoreFailure> {
        Err(StoreFailure::Unreachable)
    }

    /// Records that the last reply from the server of this slot contradicted itself. The next reply on its connection
    /// may belong to another call, so the connection must not be used any more.
    fn record_invalid_reply(&self, slot: u16);

    /// Whether every server that holds a slot answers.
    fn is_up(&self) -> bool;

    /// The memory that the servers use, in bytes, as they report.
    fn bytes(&self) -> u64 {
        0
    }

    /// Whether a server may evict cells that have not refilled.
    fn may_evict(&self) -> bool {
        false
    }

    /// Whether a server keeps nothing on disk.
    fn lacks_persistence(&self) -> bool {
        false
    }

    /// Begins to share the bans of this node with other nodes. A transport without servers shares none.
    fn share_bans(self: Arc<Self>, _bans: Arc<Bans>) {}
}
