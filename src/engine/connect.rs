//! Makes an engine from the configuration of its store. A store that does not answer never prevents a start.

use std::sync::Arc;
use std::time::Duration;

use super::state::Engine;
use crate::clock::Clock;
use crate::config::{RedisEndpoint, RedisServers, RedisStore, RedisUrl, StoreConfig};
use crate::policy::KeySecret;
#[cfg(feature = "bin")]
use crate::store::redis::unreachable_servers;
use crate::store::redis::{Address, Login, ServerDiscovery, SharedStore, StoreSettings, StoreTls};

/// How long a start waits for the store, so that the first requests find it. If it does not answer in time, the
/// process starts without it.
const STARTUP_WAIT: Duration = Duration::from_secs(1);

impl Engine {
    /// An engine that counts in the configured store. Its connections live on the Tokio runtime of the caller.
    ///
    /// # Errors
    ///
    /// The operating system gives no random bytes for the secret of the keys.
    pub async fn connect(
        store: &StoreConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, getrandom::Error> {
        let StoreConfig::Redis(redis) = store else {
            return Self::embedded(clock);
        };
        let secret = KeySecret::of_shared_store(redis.key_secret.as_deref());
        let remote = SharedStore::start(settings(redis), Arc::clone(&clock));
        if !remote.wait_until_up(STARTUP_WAIT).await {
            log::error!("the store does not answer; on_store_failure judges until it does");
        }
        Ok(Self::with_store(clock, secret, remote))
    }
}

/// Asks every server of the configured store once, as a start would. Returns those that cannot be used, with the
/// reasons. The servers are asked on the Tokio runtime of the caller.
#[cfg(feature = "bin")]
pub(crate) async fn unreachable_store_servers(
    store: &StoreConfig,
    clock: Arc<dyn Clock>,
) -> Vec<(String, String)> {
    match store {
        StoreConfig::Embedded { .. } => Vec::new(),
        StoreConfig::Redis(redis) => unreachable_servers(settings(redis), clock).await,
    }
}

fn settings(redis: &RedisStore) -> StoreSettings {
    let login = |username: &str, password: &str, database| Login {
        username: username.to_owned(),
        password: password.to_owned(),
        database,
    };
    let (servers, database) = match &redis.servers {
        RedisServers::Single(url) => (ServerDiscovery::Single(address(url)), url.database),
        RedisServers::Cluster(urls) => {
            (ServerDiscovery::Cluster(urls.iter().map(address).collect()), 0)
        }
        RedisServers::Sentinel { urls, master, username, password, database } => {
            let servers = ServerDiscovery::Sentinel {
                addresses: urls.iter().map(address).collect(),
                master: master.clone(),
                login: login(username, password, 0),
            };
            (servers, *database)
        }
    };
    let tls = redis.servers.urls().iter().any(RedisUrl::is_tls);
    StoreSettings {
        servers,
        login: login(&redis.username, &redis.password, database),
        tls: tls.then(|| StoreTls {
            ca: redis.tls.ca.clone(),
            identity: redis
                .tls
                .identity
                .clone()
                .map(|identity| (identity.certificate, identity.private_key)),
        }),
        timeout: redis.timeout,
        prefix: redis.prefix.clone(),
    }
}

fn address(url: &RedisUrl) -> Address {
    match &url.endpoint {
        RedisEndpoint::Tcp { host, port, .. } => Address::Tcp(host.clone(), *port),
        RedisEndpoint::Unix(path) => Address::Unix(path.clone()),
    }
}
