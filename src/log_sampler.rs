//! Bounds how often the same kind of line is logged: a few lines a second, the rest is counted.
//!
//! A flood of failures must not become a flood of lines: the disk would fill, and the line that
//! says something else would be lost among them.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::clock::Nanos;

/// Lines of one kind that are written in one second. Enough to see which servers and routes are
/// concerned, and few enough for a day of them to fit on a disk.
const MAX_LINES_PER_SECOND: u32 = 3;

/// Kinds of lines that requests and connections cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// A request ended without an answer of its origin, or in the middle of one.
    OriginFailed,
    /// A server could not be asked; the request is tried again.
    OriginRetried,
    /// A request failed inside this proxy.
    Internal,
    /// A connection could not be accepted.
    Accept,
    /// The framework says something.
    Framework,
}

impl LogKind {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 5] =
        [Self::OriginFailed, Self::OriginRetried, Self::Internal, Self::Accept, Self::Framework];

    /// The word of the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OriginFailed => "origin_failed",
            Self::OriginRetried => "origin_retried",
            Self::Internal => "internal",
            Self::Accept => "accept",
            Self::Framework => "framework",
        }
    }
}

/// Counts lines by kind.
#[derive(Debug)]
pub struct LogSampler([Kind; LogKind::ALL.len()]);

/// The one of this process, as its log is one.
pub static LOG_SAMPLER: LogSampler = LogSampler::new();

#[derive(Debug)]
struct Kind {
    window: Mutex<Window>,
    suppressed: AtomicU64,
}

/// What was logged in one second of the system's clock.
#[derive(Debug)]
struct Window {
    second: u64,
    lines: u32,
    /// Lines that were suppressed and that no summary has told yet.
    unreported: u64,
}

impl Kind {
    const fn new() -> Self {
        Self {
            window: Mutex::new(Window { second: 0, lines: 0, unreported: 0 }),
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
    /// Nothing was logged yet.
    pub const fn new() -> Self {
        Self([const { Kind::new() }; LogKind::ALL.len()])
    }

    /// Whether one more line of a kind is written. `date`: by the system's clock.
    pub fn admit_line(&self, kind: LogKind, date: Nanos) -> bool {
        let kind = &self.0[kind as usize];
        let mut window = kind.window.lock();
        if window.second != date.secs() {
            window.second = date.secs();
            window.lines = 0;
        }
        if window.lines < MAX_LINES_PER_SECOND {
            window.lines += 1;
            return true;
        }
        window.unreported += 1;
        kind.suppressed.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Lines that were suppressed in a second that is over, each told once.
    pub fn take_unreported(&self, kind: LogKind, date: Nanos) -> Option<u64> {
        let mut window = self.0[kind as usize].window.lock();
        if window.unreported == 0 || window.second == date.secs() {
            return None;
        }
        Some(std::mem::take(&mut window.unreported))
    }

    /// Lines of a kind that were suppressed so far.
    pub fn suppressed(&self, kind: LogKind) -> u64 {
        self.0[kind as usize].suppressed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines_a_second_and_the_rest_is_counted() {
        let sampler = LogSampler::new();
        let at = Nanos::from_millis;
        let kind = LogKind::OriginFailed;
        let written = |date| (0..10).filter(|_| sampler.admit_line(kind, date)).count();
        assert_eq!(written(at(1_000)), 3);
        assert_eq!(written(at(1_999)), 0, "the same second");
        assert_eq!(sampler.take_unreported(kind, at(1_999)), None, "the second is not over");
        assert_eq!(sampler.take_unreported(kind, at(2_000)), Some(17));
        assert_eq!(sampler.take_unreported(kind, at(2_000)), None, "told once");
        assert_eq!(written(at(2_000)), 3);
        assert_eq!(written(at(1_000)), 3, "a clock that is set back silences nobody");
        assert_eq!(sampler.suppressed(kind), 17 + 7 + 7);
        assert!(sampler.admit_line(LogKind::Accept, at(1_000)), "kinds are apart");
        assert_eq!(sampler.suppressed(LogKind::Accept), 0);
    }
}
