//! The access log: one JSON object per request.
//!
//! Texts from a request are cut and escaped. A line contains no query, no cookie and no header value except for the
//! host, the client's address and a trusted peer's request identifier. Writing never waits: a line that finds a full
//! queue is dropped and counted.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use serde::Serialize;

use super::line_writer::{self, LineWriter, ReplaceableWriter};
use super::log::timestamp;
use crate::clock::Nanos;
use crate::config::{AccessLog, LogAddress, LogPath, LogTarget};
use crate::engine::CandidateComparison;
use crate::policy::client;
use crate::proxy::{AccessRecord, AccessSink, RequestOutcome, TunnelEnd};

/// The largest number of bytes of a method, a host or a path that are logged, so that clients cannot fill the disk with
/// them.
const MAX_TEXT: usize = 1_024;

/// Writes the access log. A reload may change its target.
pub struct AccessLogSink {
    out: ReplaceableWriter,
    target: Mutex<LogTarget>,
    /// The writer before the current one. Lines may still wait in it when the process ends.
    previous: Mutex<Option<Arc<LineWriter>>>,
}

/// A line, in the order of its fields.
#[derive(Serialize)]
struct AccessLogLine<'r> {
    time: String,
    request_id: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_ip: Option<IpAddr>,
    method: &'r str,
    host: &'r str,
    path: &'r str,
    status: u16,
    route: Option<&'r str>,
    decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    limit: Option<&'r str>,
    tier: Option<&'static str>,
    remaining: Option<u32>,
    charged: Option<u32>,
    retry_after: Option<u64>,
    authenticated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tunnel: Option<&'static str>,
    degraded: bool,
    #[serde(skip_serializing_if = "is_false")]
    banned: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_us: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    candidates_would_deny: Vec<&'r str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    candidates_would_allow: Vec<&'r str>,
    generation: u64,
    origin: Option<&'r str>,
    duration_us: u64,
}

impl AccessLogSink {
    /// Opens the target that the configuration names.
    pub fn new(rules: &AccessLog) -> std::io::Result<Self> {
        let out = line_writer::open(&rules.to)?.map(Arc::new);
        Ok(Self {
            out: Arc::new(ArcSwapOption::new(out)),
            target: Mutex::new(rules.to.clone()),
            previous: Mutex::new(None),
        })
    }

    /// Changes to the target of the next configuration. A file is opened again even if its name is the same, so that a
    /// rotated file is released.
    pub fn redirect(&self, rules: &AccessLog) -> std::io::Result<()> {
        let mut target = self.target.lock();
        if *target == rules.to && !matches!(rules.to, LogTarget::File(_)) {
            return Ok(());
        }
        self.open(&rules.to)?;
        target.clone_from(&rules.to);
        Ok(())
    }

    /// Opens a file again, so that a rotated file is released.
    pub fn reopen(&self) -> std::io::Result<()> {
        let target = self.target.lock();
        if matches!(*target, LogTarget::File(_)) { self.open(&target) } else { Ok(()) }
    }

    fn open(&self, target: &LogTarget) -> std::io::Result<()> {
        let next = line_writer::open(target)?.map(Arc::new);
        *self.previous.lock() = self.out.swap(next);
        Ok(())
    }

    /// Waits until the recorded lines are written, at most `patience` for each writer.
    pub fn flush(&self, patience: Duration) {
        if let Some(previous) = self.previous.lock().take() {
            previous.flush(patience);
        }
        if let Some(out) = self.out.load().as_deref() {
            out.flush(patience);
        }
    }
}

impl AccessSink for AccessLogSink {
    fn takes(&self, outcome: RequestOutcome, outage: bool, rules: &AccessLog) -> bool {
        if rules.to == LogTarget::None {
            return false;
        }
        let passed =
            matches!(outcome, RequestOutcome::Forwarded | RequestOutcome::Failed) && !outage;
        let share = if passed { rules.sample_ppm } else { rules.sample_denied_ppm };
        share >= 1_000_000 || fastrand::u32(0..1_000_000) < share
    }

    fn record(&self, record: &AccessRecord<'_>, rules: &AccessLog) {
        let out = self.out.load();
        let Some(out) = out.as_deref() else {
            return;
        };
        // A struct of texts and numbers always becomes JSON.
        if let Ok(text) = serde_json::to_string(&line(record, rules)) {
            out.write(text);
        }
    }
}

fn line<'r>(record: &AccessRecord<'r>, rules: &AccessLog) -> AccessLogLine<'r> {
    AccessLogLine {
        time: timestamp(record.at.into()),
        request_id: record.request_id,
        client_ip: record.client_ip.and_then(|address| shown(address, rules, record.ipv6_prefix)),
        method: cut(record.method),
        host: cut(record.host),
        path: match rules.path {
            LogPath::Full => cut(record.path),
            LogPath::Route => record.route.unwrap_or(""),
        },
        status: record.status,
        route: record.route,
        decision: match record.outcome {
            RequestOutcome::Failed if record.outage => "outage",
            RequestOutcome::Forwarded | RequestOutcome::Failed => "allowed",
            RequestOutcome::Limited => "limited",
            RequestOutcome::Rejected => "rejected",
        },
        reason: record.reason.map(|reason| reason.name()),
        limit: record.limit.map(|limit| limit.name),
        tier: record.limit.map(|limit| limit.tier),
        remaining: record.limit.map(|limit| limit.remaining),
        charged: record.charged,
        retry_after: record.retry_after,
        authenticated: record.limit.is_some_and(|limit| limit.authenticated),
        tunnel: record.tunnel.map(TunnelEnd::name),
        degraded: record.degraded,
        banned: record.banned,
        waited_us: (record.waited > Nanos::ZERO).then(|| micros(record.waited)),
        candidates_would_deny: candidates(record, CandidateComparison::WouldDeny),
        candidates_would_allow: candidates(record, CandidateComparison::WouldAllow),
        generation: record.generation,
        origin: record.origin,
        duration_us: micros(record.duration),
    }
}

fn candidates<'r>(record: &AccessRecord<'r>, kind: CandidateComparison) -> Vec<&'r str> {
    let matching = record.candidates.iter().filter(|candidate| candidate.comparison == kind);
    matching.map(|candidate| candidate.limit).collect()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_false(value: &bool) -> bool {
    !*value
}

fn shown(address: IpAddr, rules: &AccessLog, ipv6_prefix: u8) -> Option<IpAddr> {
    match (rules.client_ip, address) {
        (LogAddress::None, _) => None,
        (LogAddress::Full, _) => Some(address),
        (LogAddress::Prefix, IpAddr::V4(v4)) => {
            let [a, b, c, _] = v4.octets();
            Some(IpAddr::from([a, b, c, 0]))
        }
        (LogAddress::Prefix, IpAddr::V6(_)) => Some(client::prefix(address, ipv6_prefix)),
    }
}

/// The beginning of a text: at most [`MAX_TEXT`] bytes, and whole characters.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

const fn micros(span: Nanos) -> u64 {
    span.get() / 1_000
}
