//! `store`: where the exact tier counts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;

use crate::config::files::{MAX_NAMED, read_bounded};
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::some_duration;
use crate::config::sections::listeners::certificates_in;
use crate::config::{RedisEndpoint, RedisServers, RedisStore, RedisTls, RedisUrl, StoreConfig};

/// Most servers that a configuration names to find the others by.
const MAX_SERVERS: usize = 100;

/// The longest time a decision may wait for a store: a client waits with it.
const MAX_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest prefix: it stands in every key.
const MAX_PREFIX: usize = 64;

/// Fewest bytes of a secret that keeps keys apart from guesses.
const MIN_SECRET: usize = 16;

/// Where cells live; the embedded store unless it is written.
pub(crate) fn store(root: &mut Mapping<'_>, folder: &Path) -> StoreConfig {
    let Some(at) = root.get("store") else {
        return StoreConfig::Embedded;
    };
    if !at.is_map() {
        at.choice(&[("embedded", ())]);
        return StoreConfig::Embedded;
    }
    let Some(mut map) = at.map() else {
        return StoreConfig::Embedded;
    };
    let redis = map.require("redis", "write store: embedded, or store: { redis: { url: .. } }");
    map.finish();
    let redis = redis.and_then(|at| redis_store(&at, folder));
    // A stand-in for one with a mistake: a file with a mistake makes no configuration.
    redis.map_or(StoreConfig::Embedded, |redis| StoreConfig::Redis(Box::new(redis)))
}

fn redis_store(at: &Located<'_>, folder: &Path) -> Option<RedisStore> {
    let mut map = at.map()?;
    let servers = servers(&mut map, folder);
    let username = map.get("username").map(|at| at.text().map(str::to_owned));
    let password = map.get("password_file").map(|at| secret(&at, folder, 1));
    let tls_at = map.get("tls");
    let tls = tls_at.as_ref().map(|at| tls(at, folder));
    let timeout = map.get("timeout").map(|at| at.parse(timeout));
    let prefix = map.get("prefix").map(|at| at.parse(prefix));
    let key_secret = map.get("key_secret_file").map(|at| secret(&at, folder, MIN_SECRET));
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
        password: password.unwrap_or(Some(Vec::new())).map(text_of)?,
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
        (Some(at), None, None) => at.parse(url).map(RedisServers::One),
        (None, Some(at), None) => {
            let urls = urls(&at)?;
            if urls.iter().any(|url| url.database != 0) {
                at.error_with("a Cluster has one database", "leave the number out");
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
    let mut map = at.map()?;
    let urls_at = map.require("urls", "write urls: [redis://10.0.0.1:26379]");
    let master = map.require("master", "write master: NAME, as the sentinels call it");
    let username = map.get("username").map(|at| at.text().map(str::to_owned));
    let password = map.get("password_file").map(|at| secret(&at, folder, 1));
    let database = map.get("database").map(|at| at.parse(database));
    map.finish();
    Some(RedisServers::Sentinel {
        urls: urls(&urls_at?)?,
        master: master?.text()?.to_owned(),
        username: username.unwrap_or(Some(String::new()))?,
        password: password.unwrap_or(Some(Vec::new())).map(text_of)?,
        database: database.unwrap_or(Some(0))?,
    })
}

fn urls(at: &Located<'_>) -> Option<Vec<RedisUrl>> {
    let items = at.one_or_more();
    if items.is_empty() || items.len() > MAX_SERVERS {
        at.error(format!("{} servers; 1 to {MAX_SERVERS} are taken", items.len()));
        return None;
    }
    let urls: Option<Vec<_>> = items.iter().map(|at| at.parse(url)).collect();
    let urls = urls?;
    if urls.iter().any(|url| url.is_tls() != urls[0].is_tls()) {
        at.error_with("redis: beside rediss:", "all with TLS or all without");
        return None;
    }
    Some(urls)
}

/// `redis://host:port/number`, `rediss://..`, `unix:/path`.
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
        return Err("a password stands in no address; write username and password_file".to_owned());
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
    text.parse().map_err(|_| format!("{text:?} is not the number of a database"))
}

fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = some_duration(text)?;
    if timeout > MAX_TIMEOUT {
        return Err(format!("{text:?} is longer than {MAX_TIMEOUT:?}, and a client waits with it"));
    }
    Ok(timeout)
}

/// Nothing that a server could take for a hash tag, or a shell for more than a word.
fn prefix(text: &str) -> Result<String, String> {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    if text.is_empty() || text.len() > MAX_PREFIX || !text.bytes().all(known) {
        return Err(format!("{text:?} is no prefix; at most {MAX_PREFIX} of a-z A-Z 0-9 - _ . :"));
    }
    Ok(text.to_owned())
}

fn tls(at: &Located<'_>, folder: &Path) -> Option<RedisTls> {
    let mut map = at.map()?;
    let (roots, chain, key) = (map.get("ca_file"), map.get("certificate"), map.get("private_key"));
    map.finish();
    let pem = |at: Located<'_>| {
        let file = folder.join(at.text()?);
        if let Err(why) = certificates_in(&file) {
            at.error(why);
        }
        content(&at, &file)
    };
    let ca = match roots {
        None => None,
        Some(at) => Some(pem(at)?),
    };
    let identity = match (chain, key) {
        (None, None) => None,
        (Some(chain), Some(key_at)) => {
            let file = folder.join(key_at.text()?);
            if let Err(error) = PrivateKeyDer::from_pem_file(&file) {
                key_at.error(format!("{}: {error}", file.display()));
            }
            Some((pem(chain)?, content(&key_at, &file)?))
        }
        _ => {
            at.error_with("half of a client certificate", "write certificate and private_key");
            return None;
        }
    };
    Some(RedisTls { ca, identity })
}

fn content(at: &Located<'_>, file: &Path) -> Option<Vec<u8>> {
    read_bounded(file, MAX_NAMED).map_err(|error| at.error(error)).ok()
}

/// What a file holds, without the blanks around it. Its value is in no error.
fn secret(at: &Located<'_>, folder: &Path, least: usize) -> Option<Vec<u8>> {
    let file = folder.join(at.text()?);
    let secret = content(at, &file)?.trim_ascii().to_vec();
    if secret.len() < least {
        at.error(format!("{}: has fewer than {least} characters", file.display()));
        return None;
    }
    Some(secret)
}

fn text_of(secret: Vec<u8>) -> String {
    String::from_utf8_lossy(&secret).into_owned()
}
