//! Asks the other machines that a configuration names, for `tollgate check --connect`: the store, the servers of the
//! origins, and the publishers of keys.
//!
//! What they do not answer is a warning, because `run` starts without them. What must always hold: no request is sent to an
//! origin, and nothing is charged.

use std::io;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::clock::SystemClock;
use crate::config::{Config, RedisServers, RedisUrl, SourceMap, StoreConfig, Warning, WarningCode};
use crate::engine::unreachable_store_servers;
use crate::jwks::fetch_failure;
use crate::policy::{Policy, Source};
use crate::proxy::unreachable_origin_servers;
use crate::tokens::{FetchError, PublishedKeySet};

/// Warnings about the machines that cannot be used now. The error: there are no threads to ask them with.
pub(super) fn ask(config: &Config, source: &SourceMap) -> io::Result<Vec<Warning>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (store, origins, keys) = runtime.block_on(async {
        let clock = Arc::new(SystemClock::new());
        let origins = join_all(config.origins.iter().map(unreachable_origin_servers));
        let keys = join_all(config.policy.key_sets.iter().map(|set| fetch_failure(set)));
        tokio::join!(unreachable_store_servers(&config.store, clock), origins, keys)
    });
    let sets = config.policy.key_sets.iter().zip(keys);
    let keys = sets.filter_map(|(set, failure)| {
        let failure = failure?;
        let message = format!("the keys at {} cannot be used: {failure}", set.name());
        let path = key_set_path(&config.policy, set);
        source.warning(WarningCode::KeysUnreachable, &path, message, keys_cure(&failure))
    });
    let store = store.into_iter().filter_map(|(server, why)| {
        let message = format!("the store at {server} cannot be used: {why}");
        let cure = store_cure(&why, has_tls(config));
        source.warning(WarningCode::StoreUnreachable, store_path(config), message, cure)
    });
    let origins = config.origins.iter().zip(origins).flat_map(|(origin, servers)| {
        servers.into_iter().filter_map(|(index, why)| {
            let path = format!("origins.{}.servers[{index}]", origin.name);
            let cure = "start the server, or correct its address and tls";
            source.warning(WarningCode::OriginUnreachable, &path, why, cure)
        })
    });
    Ok(store.chain(origins).chain(keys).collect())
}

/// The key that names the URL of a set, of the first limit that reads it.
fn key_set_path(policy: &Policy, set: &Arc<PublishedKeySet>) -> String {
    let reads = |source: &Source| {
        let own = source.claim().and_then(|claim| claim.tokens.published_set());
        own.is_some_and(|own| Arc::ptr_eq(own, set))
    };
    for limit in &policy.limits {
        let sources = limit.key.sources();
        if let Some(index) = sources.iter().position(reads) {
            let index = if sources.len() > 1 { format!("[{index}]") } else { String::new() };
            return format!("limits.{}.key{index}.jwt.jwks_url", limit.name);
        }
        if limit.terms.plans.as_ref().is_some_and(|plans| reads(&plans.by)) {
            return format!("limits.{}.plans.by.jwt.jwks_url", limit.name);
        }
    }
    "limits".to_owned()
}

fn keys_cure(failure: &FetchError) -> &'static str {
    match failure {
        FetchError::Unreachable(_) => "correct the URL, jwks_ca_file, or the way to its server",
        FetchError::Timeout(_) => "see to it that its server answers",
        FetchError::Status(_) => "correct the URL",
        FetchError::TooLarge(_) => "write the URL of the set itself",
        FetchError::Invalid(_) => {
            "write the URL of the set itself (jwks_uri in .well-known/openid-configuration)"
        }
    }
}

/// Whether connections to the store use TLS.
fn has_tls(config: &Config) -> bool {
    match &config.store {
        StoreConfig::Redis(redis) => redis.servers.urls().iter().any(RedisUrl::is_tls),
        StoreConfig::Embedded { .. } => false,
    }
}

/// The key that names the servers of the store.
fn store_path(config: &Config) -> &'static str {
    match &config.store {
        StoreConfig::Redis(redis) => match &redis.servers {
            RedisServers::Single(_) => "store.redis.url",
            RedisServers::Cluster(_) => "store.redis.cluster",
            RedisServers::Sentinel { .. } => "store.redis.sentinel",
        },
        StoreConfig::Embedded { .. } => "store",
    }
}

/// What to do about a reason, which the server or its client words.
fn store_cure(why: &str, has_tls: bool) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if has(&["NOAUTH", "WRONGPASS", "uthentication"]) {
        "correct username and password_file"
    } else if has(&["NOPERM"]) {
        "allow this user EVALSHA, SCRIPT, SET and the keys of the prefix"
    } else if has(&["ertificate", "TLS", "tls", "corrupt message"]) {
        "correct tls and ca_file, or use redis:// if the server speaks no TLS"
    } else if has_tls {
        // A server that speaks no TLS waits for the rest of what it takes for a command.
        "start the store, correct its address, or write redis:// if it speaks no TLS"
    } else {
        "start the store, correct its address, or write rediss:// if it speaks only TLS"
    }
}
