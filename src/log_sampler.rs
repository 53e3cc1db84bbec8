//! Bounds how many log lines of the same kind are written: a few per second; the others are counted.
//!
//! A flood of failures must not become a flood of lines, which would fill the disk and hide other lines. This module
//! knows neither the lines nor the log; the caller asks before it writes.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::clock::Nanos;

/// Lines of one kind that are written per second. Enough to show which servers and routes are affected; few enough
/// that a day of them fits on a disk.
const MAX_LINES_PER_SECOND: u32 = 3;

/// Kinds of lines that requests and connections cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// A request ended without a response from its origin, or in the middle of one.
    OriginFailed,
    /// A server of an origin could not be reached; the request is tried again.
    OriginRetried,
    /// A server of an origin is left out, or admitted again.
    OriginServer,
    /// A request failed inside the proxy.
    Internal,
    /// A connection could not be accepted.
    Accept,
    /// The certificate of a client was refused, or it showed none.
    ClientCertificate,
    /// A line of the framework.
    Framework,
}

impl LogKind {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 7] = [
        Self::OriginFailed,
        Self::OriginRetried,
        Self::OriginServer,
        Self::Internal,
        Self::Accept,
        Self::ClientCertificate,
        Self::Framework,
    ];

    /// The label value of the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OriginFailed => "origin_failed",
            Self::OriginRetried => "origin_retried",
            Self::OriginServer => "origin_server",
            Self::Internal => "internal",
            Self::Accept => "accept",
            Self::ClientCertificate => "client_certificate",
            Self::Framework => "framework",
        }
    }
}

/// Counts lines by kind. Each log needs one sampler.
#[derive(Debug)]
pub struct LogSampler([KindCounters; LogKind::ALL.len()]);

/// The sampler of the process, which has one log.
pub static LOG_SAMPLER: LogSampler = LogSampler::new();

#[derive(Debug)]
struct KindCounters {
    second: Mutex<LoggedSecond>,
    /// Suppressed lines since the process started.
    suppressed: AtomicU64,
}

/// The lines of one second of the system's clock.
#[derive(Debug)]
struct LoggedSecond {
    /// Since the Unix epoch.
    second: u64,
    /// Lines that were written.
    lines: u32,
    /// Suppressed lines that no summary has reported yet.
    unreported: u64,
}

impl KindCounters {
    const fn new() -> Self {
        Self {
            second: Mutex::new(LoggedSecond { second: 0, lines: 0, unreported: 0 }),
            suppressed: AtomicU64::new(0),
        }
    }
}

impl Default for LogSampler {
    fn default() -> Self {
        Self::new()
    }
}

impl LogSampler {
    /// A sampler that has counted no lines.
    pub const fn new() -> Self {
        Self([const { KindCounters::new() }; LogKind::ALL.len()])
    }

    /// Counts one more line of a kind. Returns whether it may be written; otherwise it is recorded as suppressed.
    /// `date`: by the system's clock.
    pub fn admit_line(&self, kind: LogKind, date: Nanos) -> bool {
        let counters = &self.0[kind as usize];
        let mut logged = counters.second.lock();
        if logged.second != date.secs() {
            logged.second = date.secs();
            logged.lines = 0;
        }
        if logged.lines < MAX_LINES_PER_SECOND {
            logged.lines += 1;
            return true;
        }
        logged.unreported += 1;
        counters.suppressed.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Takes the number of suppressed lines of a kind that no summary has reported, once their second is over. `None`
    /// if there are none.
    pub fn take_unreported(&self, kind: LogKind, date: Nanos) -> Option<u64> {
        let mut logged = self.0[kind as usize].second.lock();
        if logged.unreported == 0 || logged.second == date.secs() {
            return None;
        }
        Some(std::mem::take(&mut logged.unreported))
    }

    /// Lines of a kind that were suppressed since the process started.
    pub fn suppressed(&self, kind: LogKind) -> u64 {
        self.0[kind as usize].suppressed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines_per_second_are_written_and_the_others_are_counted() {
        let sampler = LogSampler::new();
        let at = Nanos::from_millis;
        let kind = LogKind::OriginFailed;
        let written = |date| (0..10).filter(|_| sampler.admit_line(kind, date)).count();
        assert_eq!(written(at(1_000)), 3);
        assert_eq!(written(at(1_999)), 0, "the same second");
        assert_eq!(sampler.take_unreported(kind, at(1_999)), None, "the second is not over");
        assert_eq!(sampler.take_unreported(kind, at(2_000)), Some(17));
        assert_eq!(sampler.take_unreported(kind, at(2_000)), None, "reported once");
        assert_eq!(written(at(2_000)), 3);
        assert_eq!(written(at(1_000)), 3, "a clock that is set back suppresses nothing");
        assert_eq!(sampler.suppressed(kind), 17 + 7 + 7);
        assert!(sampler.admit_line(LogKind::Accept, at(1_000)), "each kind has its own bound");
        assert_eq!(sampler.suppressed(LogKind::Accept), 0);
    }
}
