//! Time as a value. This is the only file that asks what time it is.
//!
//! Everything below takes a [`Now`] as an argument. It carries two readings of one instant:
//! `mono` never jumps and carries refills and logs; `wall` counts from the Unix epoch and only
//! aligns windows (and dates the `X-RateLimit-Reset` header).
//!
//! `wall` follows the system's clock forwards and never backwards: after the system's clock was
//! set back, `wall` goes on at the pace of `mono`, so windows go on turning and no key is locked
//! out by the step.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds: an instant on one of the two time lines of [`Now`], or a span between two of them.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(u64);

impl Nanos {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// One second.
    pub const SECOND: Self = Self(1_000_000_000);

    /// From nanoseconds.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// From whole milliseconds, saturating.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// From whole seconds, saturating.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Sum, at most the largest value.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Difference, at least zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `self` times `factor`, at most the largest value.
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// Whole seconds, rounded up: what a header says about a time to wait.
    pub const fn secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }

    /// Whole seconds, rounded down.
    pub const fn secs(self) -> u64 {
        self.0 / 1_000_000_000
    }
}

impl From<Duration> for Nanos {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(span: Nanos) -> Self {
        Self::from_nanos(span.0)
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from(*self), f)
    }
}

/// One instant, read on two time lines. See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since an origin of the process; never jumps, never runs back.
    pub mono: Nanos,
    /// Since the Unix epoch; may jump forwards, never runs back.
    pub wall: Nanos,
}

/// Where a [`Now`] comes from: the system, or a test that turns it by hand.
pub trait Clock: Send + Sync + 'static {
    /// The present instant.
    fn now(&self) -> Now;
}

/// The system's clocks. One monotonic reading per call; the wall clock is read again at most once
/// a second, since a window's edge needs no more.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
    /// `wall - mono`, in nanoseconds; only grows.
    offset: AtomicU64,
    /// When (on `mono`) the wall clock is to be read again.
    next_reading: AtomicU64,
}

impl SystemClock {
    /// Starts `mono` at zero and `wall` at the system's time.
    #[expect(clippy::disallowed_methods, reason = "this file is where time comes from")]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
            offset: AtomicU64::new(system_wall()),
            next_reading: AtomicU64::new(Nanos::SECOND.0),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let mono = Nanos::from(self.origin.elapsed()).0;
        if mono >= self.next_reading.load(Ordering::Relaxed) {
            self.next_reading.store(mono.saturating_add(Nanos::SECOND.0), Ordering::Relaxed);
            self.offset.fetch_max(system_wall().saturating_sub(mono), Ordering::Relaxed);
        }
        let wall = mono.saturating_add(self.offset.load(Ordering::Relaxed));
        Now { mono: Nanos(mono), wall: Nanos(wall) }
    }
}

#[expect(clippy::disallowed_methods, reason = "this file is where time comes from")]
fn system_wall() -> u64 {
    // A clock before 1970 reads as 1970.
    Nanos::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()).0
}

/// A clock that stands still until it is turned: for tests, `explain` and simulated policies.
#[derive(Debug)]
pub struct ManualClock {
    mono: AtomicU64,
    wall: AtomicU64,
}

impl ManualClock {
    /// `mono` starts at one hour, so that nothing depends on a process that has just started;
    /// `wall` at the given time since the epoch.
    pub fn new(wall: Nanos) -> Self {
        Self { mono: AtomicU64::new(3_600 * Nanos::SECOND.0), wall: AtomicU64::new(wall.0) }
    }

    /// Lets `span` pass on both time lines.
    pub fn advance(&self, span: Nanos) {
        self.mono.fetch_add(span.0, Ordering::SeqCst);
        self.wall.fetch_add(span.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        Now {
            mono: Nanos(self.mono.load(Ordering::SeqCst)),
            wall: Nanos(self.wall.load(Ordering::SeqCst)),
        }
    }
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

    #[test]
    fn seconds_round_up_for_those_who_wait() {
        assert_eq!(Nanos::new(1).secs_ceil(), 1);
        assert_eq!(Nanos::from_secs(2).secs_ceil(), 2);
        assert_eq!(Nanos::new(2_000_000_001).secs_ceil(), 3);
    }
}
