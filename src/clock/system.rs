//! The system's clock. This is the only file that asks the operating system for the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::nanos::Nanos;
use super::now::{Clock, Now};
use super::time_lines::TimeLines;

/// The system's clocks. Each call of `now` reads the monotonic clock. About once per second it also reads the wall
/// clock, which is enough for the edges of windows and for dates in seconds.
///
/// ```
/// use tollgate::clock::{Clock, SystemClock};
///
/// let clock = SystemClock::new();
/// let now = clock.now();
/// println!("{} s since the epoch", clock.date(now).secs());
/// ```
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
    lines: TimeLines,
    /// When (on `mono`) the wall clock is read next.
    next_reading: AtomicU64,
}

impl SystemClock {
    /// Starts `mono` at zero and `wall` at the system's time.
    #[expect(clippy::disallowed_methods, reason = "this file is where time comes from")]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
            lines: TimeLines::new(system_wall()),
            next_reading: AtomicU64::new(Nanos::SECOND.get()),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Measures how long a piece of work has taken, to end it when it takes too long. No count and no decision may depend on
/// it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    started: Instant,
}

impl Stopwatch {
    /// Starts at zero.
    #[expect(clippy::disallowed_methods, reason = "this file is where time comes from")]
    pub(crate) fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// The time since the start.
    pub(crate) fn elapsed(self) -> Duration {
        self.started.elapsed()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let mono = Nanos::from(self.origin.elapsed()).get();
        if mono >= self.next_reading.load(Ordering::Relaxed) {
            self.next_reading.store(mono.saturating_add(Nanos::SECOND.get()), Ordering::Relaxed);
            self.lines.follow(mono, system_wall());
        }
        self.lines.at(mono)
    }

    fn date(&self, at: Now) -> Nanos {
        self.lines.date(at)
    }
}

#[expect(clippy::disallowed_methods, reason = "this file is where time comes from")]
fn system_wall() -> u64 {
    // A clock before 1970 reads as 1970.
    Nanos::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()).get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_time_line_runs_back() {
        let clock = SystemClock::new();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now.mono >= last.mono && now.wall >= last.wall);
            last = now;
        }
    }
}
