//! What a server reports of its storage: memory in use, eviction and persistence.
//!
//! Settings that endanger the counts are logged when the server is connected to, and exported as metrics. A server
//! that does not report a setting is not warned about. This module only reads; it never changes a setting.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use super::address::Address;

/// The latest report of a server.
#[derive(Debug, Default)]
pub(super) struct ServerStorage {
    /// Bytes of memory in use.
    pub(super) bytes: AtomicU64,
    /// Whether the server may evict cells that have not refilled.
    pub(super) may_evict: AtomicBool,
    /// Whether the server writes nothing to disk, so that a restart forgets all charges.
    pub(super) lacks_persistence: AtomicBool,
}

impl ServerStorage {
    /// Asks how many bytes are in use. An answer also shows that the server is alive.
    pub(super) async fn refresh_bytes(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<()> {
        let report = info(connection, "memory").await?;
        if let Some(bytes) = field(&report, "used_memory").and_then(|bytes| bytes.parse().ok()) {
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Checks eviction and persistence, and warns once of settings that are probably unintended.
    pub(super) async fn check_settings(
        &self,
        connection: &mut MultiplexedConnection,
        address: &Address,
    ) {
        let report = info(connection, "everything").await.unwrap_or_default();
        let policy = field(&report, "maxmemory_policy").unwrap_or_default();
        let may_evict = !policy.is_empty() && policy != "noeviction";
        // The previous value is compared, so that not every new connection warns.
        if may_evict && !self.may_evict.swap(may_evict, Ordering::Relaxed) {
            log::warn!(
                "the store at {address} may drop cells that have not refilled (maxmemory-policy \
                 {policy}): a key is then unlimited once more; set maxmemory-policy noeviction"
            );
        }
        self.may_evict.store(may_evict, Ordering::Relaxed);
        let saves = config(connection, "save").await;
        let never_saves = saves.is_some_and(|saves| saves.is_empty());
        let lacks_persistence = field(&report, "aof_enabled") == Some("0") && never_saves;
        if lacks_persistence && !self.lacks_persistence.swap(lacks_persistence, Ordering::Relaxed) {
            log::warn!(
                "the store at {address} keeps nothing on disk: a restart forgets what was spent; \
                 set appendonly yes"
            );
        }
        self.lacks_persistence.store(lacks_persistence, Ordering::Relaxed);
    }
}

fn field<'t>(report: &'t str, name: &str) -> Option<&'t str> {
    report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Sends `INFO`. Without permission to send it, the report is empty: the server is alive nevertheless.
async fn info(connection: &mut MultiplexedConnection, section: &str) -> RedisResult<String> {
    let mut info = redis::cmd("INFO");
    info.arg(section);
    match info.query_async(connection).await {
        Ok(Value::BulkString(text)) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Ok(Value::VerbatimString { text, .. }) => Ok(text),
        Ok(_) => Ok(String::new()),
        Err(error) if error.code() == Some("NOPERM") => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// Sends `CONFIG GET`. `None`: the server does not answer it.
async fn config(connection: &mut MultiplexedConnection, name: &str) -> Option<String> {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(name);
    let pairs: Vec<(String, String)> = get.query_async(connection).await.ok()?;
    pairs.into_iter().next().map(|(_, value)| value)
}
