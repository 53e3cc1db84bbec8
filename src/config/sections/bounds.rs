//! `limits_of_this_proxy` and `access_log`.

use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;

use crate::clock::Nanos;
use crate::config::host_memory;
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{duration, rate, share, size, some_duration, whole};
use crate::config::{
    AccessLog, Bounds, LogAddress, LogPath, LogTarget, MethodOverride, Underscores,
};
use crate::limit::{Rate, TokenBucket};

/// `max_keys` where the file does not say.
const DEFAULT_MAX_KEYS: usize = 1_000_000;

/// Most cells: 2^28 of them are 13 GB.
pub(crate) const MOST_KEYS: u64 = 1 << 28;

/// Most connections: more descriptors than a process can have.
pub(crate) const MOST_CONNECTIONS: u64 = 1 << 20;

/// Bounds of the proxy, and `max_keys`.
pub(crate) fn bounds(root: &mut Mapping<'_>) -> (Bounds, usize) {
    let mut bounds = Bounds::default();
    let mut max_keys = DEFAULT_MAX_KEYS;
    let Some(mut map) = root.get("limits_of_this_proxy").and_then(|at| at.map()) else {
        return (bounds, max_keys);
    };
    let mut time = |key, into: &mut Duration, read: fn(&str) -> Result<Duration, String>| {
        if let Some(value) = map.get(key).and_then(|at| at.parse(read)) {
            *into = value;
        }
    };
    time("header_timeout", &mut bounds.header_timeout, some_duration);
    time("idle_timeout", &mut bounds.idle_timeout, some_duration);
    time("write_timeout", &mut bounds.write_timeout, some_duration);
    time("tls_handshake_timeout", &mut bounds.tls_handshake_timeout, some_duration);
    time("proxy_protocol_timeout", &mut bounds.proxy_protocol_timeout, some_duration);
    time("drain", &mut bounds.drain, duration);
    time("finish", &mut bounds.finish, duration);
    let mut number = |key, least, most| map.get(key).and_then(|at| at.parse(whole(least, most)));
    if let Some(fields) = number("header_fields", 1, 256) {
        bounds.header_fields = fields as usize;
    }
    if let Some(streams) = number("h2_streams", 1, 10_000) {
        bounds.h2_streams = streams as u32;
    }
    if let Some(resets) = number("h2_resets", 1, 1_000_000) {
        bounds.h2_resets = resets as u32;
    }
    if let Some(most) = number("max_connections", 1, MOST_CONNECTIONS) {
        bounds.max_connections = most as usize;
    }
    if let Some(most) = number("max_connections_per_client", 1, MOST_CONNECTIONS) {
        bounds.max_connections_per_client = most as usize;
    }
    if let Some(keys) = number("max_keys", 1, MOST_KEYS) {
        max_keys = keys as usize;
    }
    if let Some(bytes) = map.get("memory").and_then(|at| at.parse(memory)) {
        bounds.memory = bytes;
    }
    if let Some(bucket) = map.get("handshakes_per_client").and_then(|at| at.parse(handshakes)) {
        bounds.handshakes_per_client = bucket;
    }
    if let Some(bytes) = map.get("header_size").and_then(|at| at.parse(header_size)) {
        bounds.header_size = bytes;
    }
    if let Some(most) = map.get("body_size").and_then(|at| at.parse(body_size)) {
        bounds.body_size = most;
    }
    if let Some(rate) = map.get("body_min_rate").and_then(|at| at.parse(body_min_rate)) {
        bounds.body_min_rate = rate;
    }
    let underscores = [
        ("reject_ambiguous", Underscores::RejectAmbiguous),
        ("pass", Underscores::Pass),
        ("drop", Underscores::Drop),
    ];
    if let Some(chosen) = map.get("underscores").and_then(|at| at.choice(&underscores)) {
        bounds.underscores = chosen;
    }
    let overrides = [
        ("reject", MethodOverride::Reject),
        ("strip", MethodOverride::Strip),
        ("pass", MethodOverride::Pass),
    ];
    if let Some(chosen) = map.get("method_override").and_then(|at| at.choice(&overrides)) {
        bounds.method_override = chosen;
    }
    if let Some(mut map) = map.get("discard").and_then(|at| at.map()) {
        if let Some(bytes) = map.get("bytes").and_then(|at| at.parse(discard_bytes)) {
            bounds.discard_bytes = bytes;
        }
        if let Some(time) = map.get("time").and_then(|at| at.parse(duration)) {
            bounds.discard_time = time;
        }
        map.finish();
    }
    map.finish();
    (bounds, max_keys)
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            header_size: 32 * 1024,
            header_fields: 100,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            tls_handshake_timeout: Duration::from_secs(10),
            proxy_protocol_timeout: Duration::from_secs(5),
            body_min_rate: NonZeroU64::new(256),
            underscores: Underscores::RejectAmbiguous,
            method_override: MethodOverride::Strip,
            body_size: None,
            discard_bytes: 64 * 1024,
            discard_time: Duration::from_secs(1),
            h2_streams: 100,
            h2_resets: 100,
            max_connections: 20_000,
            max_connections_per_client: 1_000,
            memory: host_memory::memory_share(),
            // A browser opens a handful of connections; an office behind one address some dozens.
            handshakes_per_client: Rate::new(50, Nanos::SECOND).ok().and_then(handshake_bucket),
            // Together below the 30 s after which Kubernetes kills; without requests in flight below
            // the 10 s of Docker.
            drain: Duration::from_secs(5),
            finish: Duration::from_secs(20),
        }
    }
}

/// `auto`, or a size. A budget that a few dozen connections use up would refuse everything.
fn memory(text: &str) -> Result<usize, String> {
    if text == "auto" {
        return Ok(host_memory::memory_share());
    }
    let bytes = usize::try_from(size(text)?).unwrap_or(usize::MAX);
    let fits = (host_memory::MIN_MEMORY..=1 << 40).contains(&bytes);
    fits.then_some(bytes).ok_or_else(|| format!("{text:?} is not auto, nor from 16MiB to 1024GiB"))
}

/// The framework's parser takes at most 1 MiB of header.
fn header_size(text: &str) -> Result<usize, String> {
    let bytes = size(text)?;
    let fits = (256..=1 << 20).contains(&bytes);
    fits.then_some(bytes as usize).ok_or_else(|| format!("{text:?} is not from 256B to 1MiB"))
}

fn body_size(text: &str) -> Result<Option<u64>, String> {
    if text == "none" { Ok(None) } else { size(text).map(Some) }
}

/// `50/s`: so many TLS handshakes at once, then at that rate; or `none`.
fn handshakes(text: &str) -> Result<Option<TokenBucket>, String> {
    if text == "none" {
        return Ok(None);
    }
    let wrong = || format!("{text:?} is too fast or too slow; write for example 50/s, or none");
    handshake_bucket(rate(text)?).map(Some).ok_or_else(wrong)
}

fn handshake_bucket(rate: Rate) -> Option<TokenBucket> {
    TokenBucket::new(rate, rate.count(), Nanos::ZERO, Nanos::ZERO).ok()
}

/// `256B/s`: bytes in one second, or `none`.
fn body_min_rate(text: &str) -> Result<Option<NonZeroU64>, String> {
    if text == "none" {
        return Ok(None);
    }
    let wrong = || format!("{text:?} is not bytes per second; write 256B/s, 1KiB/s or none");
    let bytes = text.strip_suffix("/s").ok_or_else(wrong)?;
    let bytes = size(bytes).map_err(|_| wrong())?;
    NonZeroU64::new(bytes).map(Some).ok_or_else(wrong)
}

fn discard_bytes(text: &str) -> Result<usize, String> {
    let bytes = size(text)?;
    let fits = bytes <= 16 << 20;
    fits.then_some(bytes as usize).ok_or_else(|| format!("{text:?} is more than 16MiB"))
}

/// `access_log`.
pub(crate) fn access_log(root: &mut Mapping<'_>, folder: &Path) -> AccessLog {
    let mut log = AccessLog {
        to: LogTarget::Stdout,
        sample_ppm: 1_000_000,
        sample_denied_ppm: 1_000_000,
        client_ip: LogAddress::Full,
        path: LogPath::Full,
    };
    let Some(mut map) = root.get("access_log").and_then(|at| at.map()) else {
        return log;
    };
    if let Some(at) = map.get("to")
        && let Some(target) = at.text()
    {
        log.to = target_of(&at, target, folder);
    }
    if let Some(ppm) = map.get("sample").and_then(|at| at.parse(share)) {
        log.sample_ppm = ppm;
    }
    if let Some(ppm) = map.get("sample_denied").and_then(|at| at.parse(share)) {
        log.sample_denied_ppm = ppm;
    }
    let addresses =
        [("full", LogAddress::Full), ("prefix", LogAddress::Prefix), ("none", LogAddress::None)];
    if let Some(address) = map.get("client_ip").and_then(|at| at.choice(&addresses)) {
        log.client_ip = address;
    }
    let paths = [("full", LogPath::Full), ("route", LogPath::Route)];
    if let Some(path) = map.get("path").and_then(|at| at.choice(&paths)) {
        log.path = path;
    }
    map.finish();
    log
}

fn target_of(at: &Located<'_>, target: &str, folder: &Path) -> LogTarget {
    match target {
        "stdout" => LogTarget::Stdout,
        "stderr" => LogTarget::Stderr,
        "none" => LogTarget::None,
        // A file is told from a misspelt word by its slash or dot.
        file if file.contains(['/', '.']) => LogTarget::File(folder.join(file)),
        word => {
            let cure = "stdout, stderr, none, or a file as ./access.log";
            at.error_with(format!("unknown word {word:?}"), cure);
            LogTarget::None
        }
    }
}
