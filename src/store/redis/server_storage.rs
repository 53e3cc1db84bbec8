//! What a server says of itself that an operator should hear: in the log when it is connected to,
//! and as metrics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use super::address::Address;

/// What a server last said. One that does not say is not blamed.
#[derive(Debug, Default)]
pub(super) struct ServerStorage {
    /// Bytes that it holds.
    pub(super) bytes: AtomicU64,
    /// It may drop cells that have not refilled.
    pub(super) may_evict: AtomicBool,
    /// It keeps nothing on disk: a restart forgets what was spent.
    pub(super) lacks_persistence: AtomicBool,
}

impl ServerStorage {
    /// Asks how many bytes it holds; an answer shows that it lives.
    pub(super) async fn refresh_bytes(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<()> {
        let told = info(connection, "memory").await?;
        if let Some(bytes) = field(&told, "used_memory").and_then(|bytes| bytes.parse().ok()) {
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Looks for what is probably not meant, and says it.
    pub(super) async fn check_settings(
        &self,
        connection: &mut MultiplexedConnection,
        address: &Address,
    ) {
        let told = info(connection, "everything").await.unwrap_or_default();
        let policy = field(&told, "maxmemory_policy").unwrap_or_default();
        let may_evict = !policy.is_empty() && policy != "noeviction";
        // Said once, not at every connection.
        if may_evict && !self.may_evict.swap(may_evict, Ordering::Relaxed) {
            log::warn!(
                "the store at {address} may drop cells that have not refilled (maxmemory-policy \
                 {policy}): a key is then unlimited once more; set maxmemory-policy noeviction"
            );
        }
        self.may_evict.store(may_evict, Ordering::Relaxed);
        let saves = config(connection, "save").await;
        let never_saves = saves.is_some_and(|saves| saves.is_empty());
        let lacks_persistence = field(&told, "aof_enabled") == Some("0") && never_saves;
        if lacks_persistence && !self.lacks_persistence.swap(lacks_persistence, Ordering::Relaxed) {
            log::warn!(
                "the store at {address} keeps nothing on disk: a restart forgets what was spent; \
                 set appendonly yes"
            );
        }
        self.lacks_persistence.store(lacks_persistence, Ordering::Relaxed);
    }
}

fn field<'t>(told: &'t str, name: &str) -> Option<&'t str> {
    told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// `INFO`. Who may not ask is told nothing, which is an answer too.
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

async fn config(connection: &mut MultiplexedConnection, name: &str) -> Option<String> {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(name);
    let pairs: Vec<(String, String)> = get.query_async(connection).await.ok()?;
    pairs.into_iter().next().map(|(_, value)| value)
}
