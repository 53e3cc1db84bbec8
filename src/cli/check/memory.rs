//! The part of `tollgate check` about memory: how much clients can make the proxy hold.

use std::io::{self, Write};

use crate::config::Config;
use crate::edge::connection_bytes;
use crate::edge::{EXCHANGE_BYTES, HEAD_COPIES, MAX_BODY_BYTES, MAX_RESPONSE_BYTES};
use crate::history::{self, MAX_LIMITS, MAX_ROUTES, MINUTES};
use crate::ops::{RECENT_LINES_BYTES, keeps_recent_lines};
use crate::refusals::{KEYS_BYTES, MAX_REFUSALS, REFUSALS_BYTES};

const MIB: usize = 1 << 20;

/// Writes the budget, what fills it, and what the most expensive connection holds.
pub(super) fn write_memory(out: &mut dyn Write, config: &Config) -> io::Result<()> {
    let bounds = &config.bounds;
    let budget = bounds.memory;
    let has_tls = config.listeners.iter().any(|listener| !listener.certificates.is_empty());
    let connection = connection_bytes(has_tls);
    let all_idle = connection.idle.saturating_mul(bounds.max_connections);
    let exchange = EXCHANGE_BYTES + HEAD_COPIES * bounds.header_size;
    let download = exchange + MAX_RESPONSE_BYTES;
    let upload = exchange + MAX_BODY_BYTES;
    writeln!(out, "\nmemory of clients (limits_of_this_proxy.memory: {} MiB)", budget / MIB)?;
    writeln!(
        out,
        "  {} connections without a request: {} MiB",
        bounds.max_connections,
        all_idle.div_ceil(MIB),
    )?;
    writeln!(
        out,
        "  an exchange at most: {} KiB with a response that the client does not read, {} KiB \
         with a body that the origin does not read",
        download.div_ceil(1024),
        upload.div_ceil(1024),
    )?;
    if has_tls {
        let streams = bounds.h2_streams as usize;
        let per_connection = connection.idle + streams * (connection.stream + download);
        writeln!(
            out,
            "  an HTTP/2 connection at most: {} MiB ({streams} streams that the client does not read)",
            per_connection.div_ceil(MIB),
        )?;
    }
    let at_once = budget.saturating_sub(all_idle) / download.max(upload);
    writeln!(
        out,
        "  so the budget suffices for {at_once} such exchanges in addition; the slowest readers are \
         disconnected when an eighth of it is left, and above it new requests are answered with 503",
    )?;
    write_traffic_memory(out, config)
}

/// Writes what the log of refusals, the history and the last lines of the access log take at most. They grow to it as
/// refusals, minutes and requests come.
fn write_traffic_memory(out: &mut dyn Write, config: &Config) -> io::Result<()> {
    writeln!(out, "\nmemory of what operators are told, at most")?;
    writeln!(
        out,
        "  the last {MAX_REFUSALS} refusals: {} MiB; keys that are refused most, by limit and hour: {} MiB",
        REFUSALS_BYTES.div_ceil(MIB),
        KEYS_BYTES.div_ceil(MIB),
    )?;
    writeln!(
        out,
        "  {MINUTES} minutes of {MAX_ROUTES} routes and {MAX_LIMITS} limits: {} MiB",
        history::MAX_BYTES.div_ceil(MIB),
    )?;
    if keeps_recent_lines(&config.access_log) {
        let bytes = RECENT_LINES_BYTES.div_ceil(MIB);
        writeln!(out, "  the last lines of the access log, for tollgate ctl log: {bytes} MiB")?;
    }
    Ok(())
}
