//! Stands for `connect.rs` in a build without the feature `redis`: a configuration with another store than the
//! embedded one is refused when it is read.

use std::sync::Arc;

use super::state::Engine;
use crate::clock::Clock;
use crate::config::StoreConfig;

/// The embedded store has no servers.
#[cfg(feature = "bin")]
pub(crate) async fn unreachable_store_servers(
    _: &StoreConfig,
    _: Arc<dyn Clock>,
) -> Vec<(String, String)> {
    Vec::new()
}

impl Engine {
    /// An engine that counts in this process.
    ///
    /// # Errors
    ///
    /// The operating system gives no random bytes for the secret of the keys.
    pub async fn connect(_: &StoreConfig, clock: Arc<dyn Clock>) -> Result<Self, getrandom::Error> {
        Self::embedded(clock)
    }
}
