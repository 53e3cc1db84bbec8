//! `store`: where exact limits keep their counters. Secrets are read from files and appear in no
//! error. This module does not connect to a store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::files::{
    MAX_NAMED_FILE, check_certificates, check_key_pair, check_roots, read_bounded,
};
use crate::config::model::{
    ClientIdentity, RedisEndpoint, RedisServers, RedisStore, RedisTls, RedisUrl, StateSettings,
    StoreConfig,
};
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{duration, positive_duration};

/// Bounds of the intervals at which a state directory is written. More often would keep a disk busy; less often would lose
/// more than anybody expects.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
const MAX_FLUSH: Duration = Duration::from_secs(10);
const MAX_SYNC: Duration = Duration::from_secs(60);

/// Largest number of servers that a configuration names to discover the others.
const MAX_SERVERS: usize = 100;

/// Longest time that a decision may wait for a store. The client waits as long.
const MAX_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest prefix, in bytes. It is a part of every key.
const MAX_PREFIX: usize = 64;

/// Shortest secret that makes it impractical to guess keys from their hashes, in bytes.
const MIN_KEY_SECRET: usize = 16;

/// `store`: the embedded store if the key is absent.
pub(crate) fn store(root: &mut Mapping<'_>, folder: &Path) -> StoreConfig {
    let Some(at) = root.get("store") else {
        return StoreConfig::MEMORY;
    };
    if !at.is_mapping() {
        match at.scalar() {
            Some(text) if text.starts_with("redis") => {
                let cure = "write store: { redis: { url: redis://127.0.0.1:6379 } }";
                at.error_with("where Redis is has to be named", cure);
            }
            _ => drop(at.choice(&[("embedded", ())])),
        }
        return StoreConfig::MEMORY;
    }
    let Some(mut map) = at.mapping() else {
        return StoreConfig::MEMORY;
    };
    let (embedded, redis) = (map.get("embedded"), map.get("redis"));
    map.finish();
    match (&embedded, &redis) {
        (Some(embedded), Some(_)) => {
            embedded.error_with("counters are kept in one store", "write embedded or redis");
            return StoreConfig::MEMORY;
        }
        (Some(embedded), None) => {
            return StoreConfig::Embedded { state: state_settings(embedded, folder) };
        }
        (None, None) => {
            at.error_with(
                "no store is named",
                "write store: embedded, or store: { redis: { url: .. } }",
            );
        }
        (None, Some(_)) => {}
    }
    if let (Some(at), false) = (&redis, cfg!(feature = "redis")) {
        let cure = "build tollgate with the feature `redis`, or write store: embedded";
        at.error_with("this build has no Redis store", cure);
    }
    let redis = redis.and_then(|at| redis_store(&at, folder));
    // A substitute for a store with a mistake: a file with a mistake produces no configuration.
    redis.map_or(StoreConfig::MEMORY, |redis| StoreConfig::Redis(Box::new(redis)))
}

/// Whether the section names a store that nodes share, even with a mistake in it.
pub(crate) fn names_shared_store(at: &Located<'_>) -> bool {
    match at.is_mapping() {
        true => at.named_values().iter().any(|entry| entry.name == "redis"),
        false => at.scalar().is_some_and(|text| text.starts_with("redis")),
    }
}

/// `store.embedded`: without `state`, everything is in memory.
fn state_settings(at: &Located<'_>, folder: &Path) -> Option<StateSettings> {
    let mut map = at.mapping()?;
    let state = map.get("state");
    let (flush_at, sync_at) = (map.get("flush"), map.get("sync"));
    map.finish();
    let flush = flush_at.as_ref().map(|at| at.parse(|text| interval(text, MAX_FLUSH)));
    let sync = sync_at.as_ref().map(|at| at.parse(|text| interval(text, MAX_SYNC)));
    let Some(state) = state else {
        if let Some(at) = flush_at.or(sync_at) {
            at.error_with(
                "nothing is written without state",
                "name a directory: state: /var/lib/tollgate",
            );
        }
        return None;
    };
    if !cfg!(feature = "bin") {
        state.error_with(
            "only the program tollgate keeps its state",
            "leave out state, or use store.redis",
        );
        return None;
    }
    let flush = flush.unwrap_or(Some(StateSettings::FLUSH))?;
    // Where only flush is written and is long, sync follows it.
    let sync = sync.unwrap_or(Some(StateSettings::SYNC.max(flush)))?;
    if let Some(at) = sync_at.filter(|_| sync < flush) {
        at.error_with("sync is shorter than flush", "write a sync of at least flush");
        return None;
    }
    let text = state.text()?;
    if text.is_empty() {
        state.error_with("no directory is named", "write for example /var/lib/tollgate");
        return None;
    }
    Some(StateSettings { directory: folder.join(text), flush, sync })
}

fn interval(text: &str, max: Duration) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < MIN_INTERVAL || interval > max {
        return Err(format!("{text:?} is not between {MIN_INTERVAL:?} and {max:?}"));
    }
    Ok(interval)
}

fn redis_store(at: &Located<'_>, folder: &Path) -> Option<RedisStore> {
    let mut map = at.mapping()?;
    let servers = servers(&mut map, folder);
    let username = map.get("username").map(|at| at.text().map(str::to_owned));
    let password = map.get("password_file").map(|at| password(&at, folder));
    let tls_at = map.get("tls");
    let tls = tls_at.as_ref().map(|at| tls(at, folder));
    let timeout = map.get("timeout").map(|at| at.parse(timeout));
    let prefix = map.get("prefix").map(|at| at.parse(prefix));
    let key_secret = map.get("key_secret_file").map(|at| secret(&at, folder, MIN_KEY_SECRET));
    map.finish();
    let servers = servers?;
    if let Some(at) = tls_at
        && servers.urls().iter().any(|url| !url.is_tls())
    {
        at.error_with("tls without a rediss: address", "write rediss:// instead of redis://");
    }
    let store = RedisStore {
        servers,
        username: username.unwrap_or(Some(String::new()))?,
        password: password.unwrap_or(Some(String::new()))?,
        tls: tls.unwrap_or(Some(RedisTls::default()))?,
        timeout: timeout.unwrap_or(Some(RedisStore::TIMEOUT))?,
        prefix: prefix.unwrap_or_else(|| Some(RedisStore::PREFIX.to_owned()))?,
        key_secret: match key_secret {
            None => None,
            Some(secret) => Some(secret?),
        },
    };
    if !store.username.is_empty() && store.password.is_empty() {
        at.error_with("a username without a password", "write password_file: /run/secrets/redis");
    }
    Some(store)
}

fn servers(map: &mut Mapping<'_>, folder: &Path) -> Option<RedisServers> {
    let (url_at, cluster, sentinel) = (map.get("url"), map.get("cluster"), map.get("sentinel"));
    match (url_at, cluster, sentinel) {
        (Some(at), None, None) => at.parse_or_env(url, URL_FORM).map(RedisServers::Single),
        (None, Some(at), None) => {
            let urls = urls(&at)?;
            if urls.iter().any(|url| url.database != 0) {
                at.error_with("a Cluster has only one database", "leave the number out");
            }
            Some(RedisServers::Cluster(urls))
        }
        (None, None, Some(at)) => sentinels(&at, folder),
        _ => {
            let cure = "write url: redis://127.0.0.1:6379, cluster: [..] or \
                        sentinel: { urls: [..], master: NAME }";
            map.at().error_with("one of url, cluster and sentinel is needed", cure);
            None
        }
    }
}

fn sentinels(at: &Located<'_>, folder: &Path) -> Option<RedisServers> {
    let mut map = at.mapping()?;
    let urls_at = map.require("urls", "write urls: [redis://10.0.0.1:26379]");
    let master = map.require("master", "write master: NAME, as the sentinels call it");
    let username = map.get("username").map(|at| at.text().map(str::to_owned));
    let password = map.get("password_file").map(|at| password(&at, folder));
    let database = map.get("database").map(|at| at.parse(database));
    map.finish();
    Some(RedisServers::Sentinel {
        urls: urls(&urls_at?)?,
        master: master?.text()?.to_owned(),
        username: username.unwrap_or(Some(String::new()))?,
        password: password.unwrap_or(Some(String::new()))?,
        database: database.unwrap_or(Some(0))?,
    })
}

fn urls(at: &Located<'_>) -> Option<Vec<RedisUrl>> {
    let items = at.list_or_single();
    if items.is_empty() || items.len() > MAX_SERVERS {
        at.error_with(format!("{} servers", items.len()), format!("write 1 to {MAX_SERVERS}"));
        return None;
    }
    let urls: Option<Vec<_>> = items.iter().map(|at| at.parse_or_env(url, URL_FORM)).collect();
    let urls = urls?;
    if urls.iter().any(|url| url.is_tls() != urls[0].is_tls()) {
        at.error_with("redis: and rediss: addresses are mixed", "use TLS for all or for none");
        return None;
    }
    Some(urls)
}

/// What an address is, in words.
const URL_FORM: &str = "redis://HOST:6379, without a password";

/// `redis://HOST:PORT/DATABASE`, `rediss://..` for TLS, or `unix:/PATH`.
fn url(text: &str) -> Result<RedisUrl, String> {
    let wrong = || {
        format!(
            "{text:?} is not an address; write redis://HOST:6379, rediss://HOST:6379 or unix:/run/redis.sock"
        )
    };
    if let Some(path) = text.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return Err(wrong());
        }
        let endpoint = RedisEndpoint::Unix(PathBuf::from(path));
        return Ok(RedisUrl { endpoint, database: 0 });
    }
    let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
    let tls = match scheme {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => return Err(wrong()),
    };
    if rest.contains('@') {
        return Err(
            "an address must not contain a password; write it without, and username and password_file"
                .to_owned()
        );
    }
    if rest.contains(['?', '#']) {
        return Err(wrong());
    }
    let (authority, number) = rest.split_once('/').unwrap_or((rest, ""));
    let number = if number.is_empty() { 0 } else { database(number)? };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().map_err(|_| wrong())?)
        }
        _ => (authority, 6379),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() || host.contains(['[', ']', ' ']) || port == 0 {
        return Err(wrong());
    }
    let endpoint = RedisEndpoint::Tcp { host: host.to_owned(), port, tls };
    Ok(RedisUrl { endpoint, database: number })
}

fn database(text: &str) -> Result<u16, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not the number of a database; write 0 or leave it out"))
}

fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = positive_duration(text)?;
    if timeout > MAX_TIMEOUT {
        return Err(format!(
            "{text:?} is longer than {MAX_TIMEOUT:?}, and the client waits as long; write for example 20ms"
        ));
    }
    Ok(timeout)
}

/// Excludes the braces of a hash tag, and characters that a shell treats specially.
fn prefix(text: &str) -> Result<String, String> {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    if text.is_empty() || text.len() > MAX_PREFIX || !text.bytes().all(known) {
        return Err(format!(
            "{text:?} is not a prefix; write at most {MAX_PREFIX} of a-z A-Z 0-9 - _ . :"
        ));
    }
    Ok(text.to_owned())
}

fn tls(at: &Located<'_>, folder: &Path) -> Option<RedisTls> {
    let mut map = at.mapping()?;
    let ca_at = map.get("ca_file");
    let (certificate_at, key_at) = (map.get("certificate"), map.get("private_key"));
    map.finish();
    let pem = |at: &Located<'_>, check: &dyn Fn(&Path) -> Result<(), String>| {
        let file = folder.join(at.text()?);
        if let Err(error) = check(&file) {
            at.error(error);
        }
        content(at, &file)
    };
    let ca = match ca_at {
        None => None,
        Some(at) => Some(pem(&at, &check_roots)?),
    };
    let identity = match (certificate_at, key_at) {
        (None, None) => None,
        (Some(certificate_at), Some(key_at)) => {
            let certificate = pem(&certificate_at, &check_certificates);
            let chain = folder.join(certificate_at.text()?);
            let private_key = pem(&key_at, &|key| check_key_pair(&chain, key));
            Some(ClientIdentity { certificate: certificate?, private_key: private_key? })
        }
        _ => {
            at.error_with(
                "a client certificate needs two files",
                "write certificate and private_key",
            );
            return None;
        }
    };
    Some(RedisTls { ca, identity })
}

fn content(at: &Located<'_>, file: &Path) -> Option<Vec<u8>> {
    read_bounded(file, MAX_NAMED_FILE).map_err(|error| at.error(error)).ok()
}

/// The content of a file without surrounding white space. Errors never contain it.
fn secret(at: &Located<'_>, folder: &Path, min: usize) -> Option<Vec<u8>> {
    let file = folder.join(at.text()?);
    let secret = content(at, &file)?.trim_ascii().to_vec();
    if secret.len() < min {
        let message = format!("{}: has fewer than {min} characters", file.display());
        at.error_with(message, "make a secret as: openssl rand -hex 32");
        return None;
    }
    Some(secret)
}

fn password(at: &Located<'_>, folder: &Path) -> Option<String> {
    secret(at, folder, 1).map(|secret| String::from_utf8_lossy(&secret).into_owned())
}
