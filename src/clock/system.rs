//! The system's clock. This is the only file that asks the operating system for the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::nanos::Nanos;
use super::now::{Clock, Now};
use super::time_lines::TimeLines;
#[cfg(feature = "bin")]
use super::time_mark::TimeMark;

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
    /// `mono` at `origin`.
    start: u64,
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
            start: 0,
            lines: TimeLines::new(system_wall()),
            next_reading: AtomicU64::new(Nanos::SECOND.get()),
        }
    }

    /// Continues the time lines of another process, which has ended or is about to.
    #[cfg(feature = "bin")]
    #[expect(clippy::disallowed_methods, reason = "this file is where time comes from")]
    pub fn continuing(mark: &TimeMark) -> Self {
        let origin = Instant::now();
        let system = system_wall();
        let present =
            machine_mark(Now { mono: Nanos::ZERO, wall: Nanos::ZERO }, Nanos::new(system));
        let start = mark.mono.saturating_add(mark.elapsed(&present)).get();
        let lines = TimeLines::new(mark.wall.get().max(system).saturating_sub(start));
        lines.follow(start, system);
        Self { origin, start, lines, next_reading: AtomicU64::new(start) }
    }

    /// The present instant, for a process that continues.
    #[cfg(feature = "bin")]
    pub fn mark(&self) -> TimeMark {
        let now = self.now();
        machine_mark(now, Nanos::new(system_wall()))
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
        let mono = Nanos::from(self.origin.elapsed()).get().saturating_add(self.start);
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

/// A mark of an instant that was read just now.
#[cfg(feature = "bin")]
fn machine_mark(now: Now, date: Nanos) -> TimeMark {
    let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let secs = u64::try_from(uptime.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(uptime.tv_nsec).unwrap_or_default();
    let uptime = Nanos::from_secs(secs).saturating_add(Nanos::new(nanos));
    TimeMark { mono: now.mono, wall: now.wall, date, uptime, boot: boot() }
}

/// Which run of the machine its monotonic clock counts, and in which name space of clocks.
#[cfg(feature = "bin")]
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let space = std::fs::read_link("/proc/self/ns/time");
    match (id, space) {
        (Ok(id), Ok(space)) => format!("{} {}", id.trim(), space.display()),
        (Ok(id), Err(_)) => id.trim().to_owned(),
        (Err(_), _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "bin")]
    #[test]
    fn a_clock_continues_the_time_lines_of_another() {
        let before = SystemClock::new();
        let mark = before.mark();
        let after = SystemClock::continuing(&mark);
        let (old, new) = (before.now(), after.now());
        let apart = new.mono.get().abs_diff(old.mono.get());
        assert!(apart < 1_000_000_000 && new.mono >= mark.mono, "{apart}");
        // No process ran for an hour.
        let hour = Nanos::from_secs(3_600);
        let earlier = TimeMark {
            wall: mark.wall.saturating_sub(hour),
            date: mark.date.saturating_sub(hour),
            boot: String::new(),
            ..mark.clone()
        };
        let gone = SystemClock::continuing(&earlier).now().mono.saturating_sub(mark.mono);
        assert!(gone >= hour && gone.saturating_sub(hour) < Nanos::SECOND, "{gone:?}");
        // The system's clock was ahead when the mark was made: `wall` does not run back, the date does.
        let day = Nanos::from_secs(86_400);
        let ahead = TimeMark {
            wall: mark.wall.saturating_add(day),
            date: mark.date.saturating_add(day),
            boot: String::new(),
            ..mark.clone()
        };
        let after = SystemClock::continuing(&ahead);
        let now = after.now();
        assert!(now.wall >= ahead.wall && now.mono >= ahead.mono);
        assert!(
            after.date(now) < ahead.date && now.mono.saturating_sub(ahead.mono) < Nanos::SECOND
        );
    }

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
