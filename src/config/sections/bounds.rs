//! `limits_of_this_proxy`: the bounds of the proxy itself, and `max_keys`, which bounds the cells
//! of all exact limits together. A key that is absent keeps its default.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::config::host_memory::{MIN_MEMORY, default_memory_budget};
use crate::config::model::{Bounds, MethodOverride, Underscores, handshake_bucket};
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{duration, integer, positive_duration, rate, size};
use crate::limit::TokenBucket;

/// Default of `max_keys`.
const DEFAULT_MAX_KEYS: usize = 1_000_000;

/// Largest `max_keys`: 2^28 cells take 13 GB.
pub(crate) const MAX_CELLS: u64 = 1 << 28;

/// Largest number of connections: a process cannot have more descriptors.
pub(crate) const MAX_CONNECTIONS: u64 = 1 << 20;

/// Smallest and largest size of the head of a request, in bytes. The HTTP parser of the framework
/// takes at most 1 MiB.
const HEADER_SIZES: std::ops::RangeInclusive<u64> = 256..=1 << 20;

/// Largest number of bytes of a refused body that are discarded.
const MAX_DISCARD: u64 = 16 << 20;

/// What `limits_of_this_proxy` contains.
#[derive(Default)]
pub(crate) struct BoundsSection {
    pub(crate) bounds: Bounds,
    /// `None`: the default.
    max_keys: Option<usize>,
}

impl BoundsSection {
    /// Largest number of cells of all exact limits together.
    pub(crate) fn max_keys(&self) -> usize {
        self.max_keys.unwrap_or(DEFAULT_MAX_KEYS)
    }
}

/// `limits_of_this_proxy`.
pub(crate) fn bounds(root: &mut Mapping<'_>) -> BoundsSection {
    let mut section = BoundsSection::default();
    let Some(mut map) = root.get("limits_of_this_proxy").and_then(|at| at.mapping()) else {
        return section;
    };
    let bounds = &mut section.bounds;
    read_durations(&mut map, bounds);
    read_numbers(&mut map, bounds);
    let max_keys = map.get("max_keys").and_then(|at| at.parse(integer(1, MAX_CELLS)));
    set(&mut map, "memory", memory, &mut bounds.memory);
    set(&mut map, "handshakes_per_client", handshakes, &mut bounds.handshakes_per_client);
    set(&mut map, "header_size", header_size, &mut bounds.header_size);
    set(&mut map, "body_size", body_size, &mut bounds.body_size);
    set(&mut map, "body_min_rate", body_min_rate, &mut bounds.body_min_rate);
    read_field_rules(&mut map, bounds);
    if let Some(at) = map.get("discard") {
        read_discard(&at, bounds);
    }
    map.finish();
    section.max_keys = max_keys.map(|keys| keys as usize);
    section
}

/// Replaces `target` if the key is present and valid.
fn set<T>(
    map: &mut Mapping<'_>,
    key: &'static str,
    read: impl FnOnce(&str) -> Result<T, String>,
    target: &mut T,
) {
    if let Some(value) = map.get(key).and_then(|at| at.parse(read)) {
        *target = value;
    }
}

fn read_durations(map: &mut Mapping<'_>, bounds: &mut Bounds) {
    let mut positive = |key, target: &mut Duration| set(map, key, positive_duration, target);
    positive("header_timeout", &mut bounds.header_timeout);
    positive("idle_timeout", &mut bounds.idle_timeout);
    positive("write_timeout", &mut bounds.write_timeout);
    positive("tls_handshake_timeout", &mut bounds.tls_handshake_timeout);
    positive("proxy_protocol_timeout", &mut bounds.proxy_protocol_timeout);
    set(map, "drain", duration, &mut bounds.drain);
    set(map, "finish", duration, &mut bounds.finish);
}

fn read_numbers(map: &mut Mapping<'_>, bounds: &mut Bounds) {
    let mut number = |key, max| map.get(key).and_then(|at| at.parse(integer(1, max)));
    if let Some(fields) = number("header_fields", 256) {
        bounds.header_fields = fields as usize;
    }
    if let Some(streams) = number("h2_streams", 10_000) {
        bounds.h2_streams = streams as u32;
    }
    if let Some(resets) = number("h2_resets", 1_000_000) {
        bounds.h2_resets = resets as u32;
    }
    if let Some(connections) = number("max_connections", MAX_CONNECTIONS) {
        bounds.max_connections = connections as usize;
    }
    if let Some(connections) = number("max_connections_per_client", MAX_CONNECTIONS) {
        bounds.max_connections_per_client = connections as usize;
    }
}

fn read_field_rules(map: &mut Mapping<'_>, bounds: &mut Bounds) {
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
}

fn read_discard(at: &Located<'_>, bounds: &mut Bounds) {
    let Some(mut map) = at.mapping() else {
        return;
    };
    set(&mut map, "bytes", discard_bytes, &mut bounds.discard_bytes);
    set(&mut map, "time", duration, &mut bounds.discard_time);
    map.finish();
}

/// `auto`, or a size. It has a minimum, because a few dozen connections would use up a smaller budget.
fn memory(text: &str) -> Result<usize, String> {
    if text == "auto" {
        return Ok(default_memory_budget());
    }
    let bytes = usize::try_from(size(text)?).unwrap_or(usize::MAX);
    let fits = (MIN_MEMORY..=1 << 40).contains(&bytes);
    fits.then_some(bytes)
        .ok_or_else(|| format!("{text:?} is neither auto nor from 16MiB to 1024GiB"))
}

fn header_size(text: &str) -> Result<usize, String> {
    let bytes = size(text)?;
    let fits = HEADER_SIZES.contains(&bytes);
    fits.then_some(bytes as usize).ok_or_else(|| format!("{text:?} is not from 256B to 1MiB"))
}

/// A size, or `none`.
fn body_size(text: &str) -> Result<Option<u64>, String> {
    if text == "none" { Ok(None) } else { size(text).map(Some) }
}

/// `50/s` (the number is also the burst), or `none`.
fn handshakes(text: &str) -> Result<Option<TokenBucket>, String> {
    if text == "none" {
        return Ok(None);
    }
    let wrong = || format!("{text:?} is too fast or too slow; write for example 50/s, or none");
    handshake_bucket(rate(text)?).map(Some).ok_or_else(wrong)
}

/// `256B/s`: bytes per second, or `none`.
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
    let fits = bytes <= MAX_DISCARD;
    fits.then_some(bytes as usize).ok_or_else(|| format!("{text:?} is more than 16MiB"))
}
