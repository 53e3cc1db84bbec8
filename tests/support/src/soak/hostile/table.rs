//! Every kind of hostile client. One more is one more row.

use std::time::Duration;

use futures_util::FutureExt;

use super::{Aim, Attempt, Kind, http1, http2, tls};

/// A second's worth of a body above and below `body_min_rate` (256 B/s), in bytes.
const ABOVE: usize = 300;
const BELOW: usize = 200;

const fn kind(
    name: &'static str,
    connections: u64,
    pause_ms: u64,
    attempt: fn(Aim) -> Attempt,
    shows: Option<&'static str>,
) -> Kind {
    Kind { name, connections, pause: Duration::from_millis(pause_ms), attempt, shows }
}

const EARLY: &str = "tollgate_origin_requests_total{origin=\"early\",class=\"4xx\"}";
const HEADER_TIMEOUT: &str = "tollgate_rejected_total{reason=\"header_timeout\"}";
const BODY_RATE: &str = "tollgate_rejected_total{reason=\"body_rate\"}";
const FRAMING: &str = "tollgate_rejected_total{reason=\"framing\"}";
const PATH: &str = "tollgate_rejected_total{reason=\"path\"}";
const TOKENS: &str = "tollgate_tokens_refused_total{reason=\"signature\"}";
const LIMITED: &str = "tollgate_decisions_total{limit=\"few\",tier=\"exact\",verdict=\"denied\"}";
const RESETS: &str = "tollgate_rejected_total{reason=\"h2_resets\"}";
const HANDSHAKE: &str = "tollgate_rejected_total{reason=\"tls_handshake\"}";

/// Name, connections, pause in ms, what each does, what shows it. With the 400 of the tool they are more than two
/// thousand, since some are always between two attempts.
#[rustfmt::skip]
pub(super) static KINDS: &[Kind] = &[
    kind("idle", 800, 100, |aim| http1::idle(aim).boxed(), None),
    kind("a head byte by byte", 250, 500, |aim| http1::half_head(aim).boxed(), Some(HEADER_TIMEOUT)),
    kind("a body that does not come after the answer", 60, 3_000, |aim| http1::unfinished_body(aim).boxed(), Some(EARLY)),
    kind("a body below the rate", 60, 1_000, |aim| http1::slow_body(aim, BELOW).boxed(), Some(BODY_RATE)),
    kind("a body above the rate", 60, 1_000, |aim| http1::slow_body(aim, ABOVE).boxed(), None),
    kind("a slow reader", 100, 1_000, |aim| http1::slow_reader(aim).boxed(), None),
    kind("paths with many readings", 40, 1_000, |aim| http1::readings(aim, Duration::from_secs(2)).boxed(), Some(PATH)),
    kind("forged tokens", 40, 1_000, |aim| http1::forged_tokens(aim, Duration::from_secs(2)).boxed(), Some(TOKENS)),
    kind("pipelined requests", 30, 8_000, |aim| http1::pipelined(aim).boxed(), None),
    kind("extensions of chunks", 40, 1_000, |aim| http1::chunk_extensions(aim).boxed(), None),
    kind("trailers without end", 40, 1_000, |aim| http1::trailers(aim).boxed(), Some(FRAMING)),
    kind("100-continue, and nothing", 60, 1_000, |aim| http1::expects(aim).boxed(), None),
    kind("upgrades that say nothing", 60, 1_000, |aim| http1::upgrade(aim).boxed(), None),
    kind("refused, with a body", 30, 2_000, |aim| http1::refused_body(aim).boxed(), Some(LIMITED)),
    kind("100 streams whose bodies do not come", 5, 10_000, |aim| http2::unfinished_streams(aim, 100).boxed(), Some(EARLY)),
    kind("slow readers of streams", 20, 1_000, |aim| http2::slow_reader(aim, 5).boxed(), None),
    kind("windows that stay closed", 20, 1_000, |aim| http2::closed_window(aim).boxed(), None),
    kind("rapid resets", 10, 5_000, |aim| http2::resets(aim, Duration::ZERO).boxed(), None),
    kind("resets at leisure", 10, 5_000, |aim| http2::resets(aim, Duration::from_millis(500)).boxed(), Some(RESETS)),
    kind("floods of frames", 40, 10_000, |aim| http2::flood(aim).boxed(), None),
    kind("half a TLS handshake", 180, 500, |aim| tls::half_handshake(aim).boxed(), Some(HANDSHAKE)),
    kind("TLS handshakes, one after the other", 15, 1_000, |aim| tls::handshakes(aim).boxed(), None),
];
