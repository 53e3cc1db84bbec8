//! A shared store in real servers.

use std::sync::Arc;

use super::address::StoreSettings;
use super::redis_transport::RedisTransport;
use super::shared_store::SharedStore;
use crate::clock::Clock;

impl SharedStore {
    /// Begins to connect, on the current Tokio runtime. Charges can be settled at once; while no server answers,
    /// they fail immediately.
    pub fn start(settings: StoreSettings, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (prefix, timeout) = (settings.prefix.clone(), settings.timeout);
        let servers = RedisTransport::start(settings, Arc::clone(&clock));
        // Random, so that a late reply to an earlier process is not taken for a reply to this one.
        let first_call = fastrand::u32(..);
        Self::new(servers, prefix, timeout, clock, first_call)
    }
}
