//! Time as a value. This is the only file that reads a clock.
//!
//! All other code takes a [`Now`] as an argument. It holds two readings of one instant: `mono` never jumps and is used
//! for refills, logs and delays; `wall` counts from the Unix epoch and is used only to align windows. A third reading,
//! [`Clock::date`], is the system's clock as it is: it decides when tokens expire and rollouts begin, and is shown in
//! header fields and logs.
//!
//! `wall` and the date differ after the system's clock is set back. The date follows at once. `wall` never runs back:
//! otherwise windows would count twice, or keys would be locked out until the time of their window came again. Instead,
//! it slews:
//!
//! ```text
//!   wall                          the system's clock was ahead from a to b
//!    │           ┌──────────────────··  while ahead, a thousandth slower than mono
//!    │           │        ··──
//!    │           │   .─'' the date
//!    │         .─│─''
//!    └─────────a─b──────────────────► mono
//! ```
//!
//! So no count is lost and no key is locked out. While `wall` slews, a window lasts a thousandth longer, and the
//! `Retry-After` of a window may be too short by as much.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;

/// Nanoseconds: an instant on one of the two time lines of [`Now`], or a span between two instants.
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

    /// From milliseconds, saturating.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// From seconds, saturating.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, at most the largest value.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, at least zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `self` times `factor`, at most the largest value.
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// Seconds, rounded up, as header fields give a time to wait.
    pub const fn secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }

    /// Seconds, rounded down.
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

/// One instant, read on two time lines (see the module's documentation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since the clock was created; never jumps, never runs back.
    pub mono: Nanos,
    /// Since the Unix epoch, for windows; may jump forwards, never runs back.
    pub wall: Nanos,
}

/// A source of [`Now`]: the system, or a test that moves time by hand.
pub trait Clock: Send + Sync + 'static {
    /// The present instant.
    fn now(&self) -> Now;

    /// The date at an instant that this clock has just returned: the system's clock as it is, since the Unix epoch. It
    /// may run back. This reads no clock.
    fn date(&self, at: Now) -> Nanos;
}

/// The system's clocks. Each call reads the monotonic clock. The wall clock is read at most once per second, which is
/// enough for the edges of windows and for dates in seconds.
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
            self.lines.follow(mono, system_wall());
        }
        self.lines.at(mono)
    }

    fn date(&self, at: Now) -> Nanos {
        self.lines.date(at)
    }
}

/// While `wall` is ahead of the system's clock, it is slower than `mono` by one part of this many. A bucket's rate may be
/// rounded by the same thousandth. A step of one minute is corrected in 17 hours. A faster slew would refuse keys that
/// keep to their limit; a slower one would have no benefit.
const SLEW_DIVISOR: u64 = 1_000;

/// Smaller differences are ignored: if a thread is interrupted between the readings of the two clocks, this looks like a
/// step of some milliseconds.
const SLEW_TOLERANCE: u64 = 100_000_000;

/// The time between the decision to slew and the beginning of the slew. Until then, all threads agree on `wall`.
const SLEW_NOTICE: u64 = Nanos::SECOND.0;

/// The value of the offset while `wall` is slewing.
const SLEWING: u64 = u64::MAX;

/// `wall` and the date as functions of `mono`. The functions change only when the system's clock is read.
#[derive(Debug)]
struct TimeLines {
    /// `wall - mono`, or [`SLEWING`].
    offset: AtomicU64,
    /// `date - mono`.
    date_offset: AtomicU64,
    /// The present slew while `offset` is [`SLEWING`]. At other times it is locked only once per second.
    slew: RwLock<Slew>,
}

/// `wall - mono` while it shrinks, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Slew {
    /// The offset before the slew.
    offset: u64,
    /// When (on `mono`) it begins to shrink.
    from: u64,
    /// By how much it shrinks in total.
    by: u64,
}

impl Slew {
    const fn offset(self, mono: u64) -> u64 {
        let shrunk = mono.saturating_sub(self.from) / SLEW_DIVISOR;
        let shrunk = if shrunk < self.by { shrunk } else { self.by };
        self.offset.saturating_sub(shrunk)
    }
}

impl TimeLines {
    fn new(offset: u64) -> Self {
        Self {
            offset: AtomicU64::new(offset),
            date_offset: AtomicU64::new(offset),
            slew: RwLock::default(),
        }
    }

    fn at(&self, mono: u64) -> Now {
        let offset = match self.offset.load(Ordering::Acquire) {
            SLEWING => self.slewing(mono),
            offset => offset,
        };
        Now { mono: Nanos(mono), wall: Nanos(mono.saturating_add(offset)) }
    }

    /// (A function of its own, so that the code that every decision runs stays small.)
    #[cold]
    fn slewing(&self, mono: u64) -> u64 {
        self.slew.read().offset(mono)
    }

    fn date(&self, at: Now) -> Nanos {
        Nanos(at.mono.0.saturating_add(self.date_offset.load(Ordering::Relaxed)))
    }

    /// Follows the system's clock, which reads `system` at `mono`: `wall` goes forwards at once, and back by a slew. A slew
    /// ends before another begins.
    fn follow(&self, mono: u64, system: u64) {
        let wanted = system.saturating_sub(mono);
        self.date_offset.store(wanted, Ordering::Relaxed);
        let mut slew = self.slew.write();
        let before = self.offset.load(Ordering::Relaxed);
        let (offset, steady) = match before {
            SLEWING => (slew.offset(mono), slew.offset(mono) == slew.offset(u64::MAX)),
            offset => (offset, true),
        };
        if wanted >= offset {
            self.offset.store(wanted, Ordering::Release);
        } else if steady && offset - wanted > SLEW_TOLERANCE {
            *slew = Slew { offset, from: mono.saturating_add(SLEW_NOTICE), by: offset - wanted };
            self.offset.store(SLEWING, Ordering::Release);
        } else if steady {
            self.offset.store(offset, Ordering::Release);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this file is where time comes from")]
fn system_wall() -> u64 {
    // A clock before 1970 reads as 1970.
    Nanos::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()).0
}

/// A clock that moves only when it is told to: for tests, `tollgate explain` and `tollgate test`.
#[derive(Debug)]
pub struct ManualClock {
    mono: AtomicU64,
    /// The reading of the simulated system's clock.
    system: AtomicU64,
    lines: TimeLines,
}

impl ManualClock {
    /// `mono` starts at one hour, so that no result depends on a process that has just started. `wall` and the date start
    /// at the given time since the epoch.
    pub fn new(wall: Nanos) -> Self {
        let mono = 3_600 * Nanos::SECOND.0;
        Self {
            mono: AtomicU64::new(mono),
            system: AtomicU64::new(wall.0),
            lines: TimeLines::new(wall.0.saturating_sub(mono)),
        }
    }

    /// Moves all time lines forwards by `span`.
    pub fn advance(&self, span: Nanos) {
        let mono = self.mono.fetch_add(span.0, Ordering::SeqCst).saturating_add(span.0);
        let system = self.system.fetch_add(span.0, Ordering::SeqCst).saturating_add(span.0);
        self.lines.follow(mono, system);
    }

    /// Sets the simulated system's clock, forwards or back; no time passes.
    pub fn set_date(&self, date: Nanos) {
        self.system.store(date.0, Ordering::SeqCst);
        self.lines.follow(self.mono.load(Ordering::SeqCst), date.0);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        self.lines.at(self.mono.load(Ordering::SeqCst))
    }

    fn date(&self, at: Now) -> Nanos {
        self.lines.date(at)
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

    const DAY: Nanos = Nanos::from_secs(86_400);
    const EPOCH: Nanos = Nanos::from_secs(1_800_000_000);

    fn date(clock: &ManualClock) -> Nanos {
        clock.date(clock.now())
    }

    #[test]
    fn wall_time_slews_back_after_the_clock_was_ahead() {
        let clock = ManualClock::new(EPOCH);
        clock.set_date(EPOCH.saturating_add(DAY));
        assert_eq!(clock.now().wall, EPOCH.saturating_add(DAY), "forwards at once");
        clock.advance(Nanos::from_secs(60));
        clock.set_date(EPOCH.saturating_add(Nanos::from_secs(60)));
        assert_eq!(date(&clock), EPOCH.saturating_add(Nanos::from_secs(60)), "the date at once");
        let wall = clock.now().wall;
        clock.advance(Nanos::from_secs(1_001));
        let passed = clock.now().wall.saturating_sub(wall);
        assert_eq!(passed, Nanos::from_secs(1_000), "a thousandth slower, after the notice");
        clock.advance(DAY.saturating_mul(1_000));
        clock.advance(Nanos::ZERO);
        assert_eq!(clock.now().wall, date(&clock), "in the end it equals the date");
        let before = clock.now().wall;
        clock.advance(DAY);
        assert_eq!(clock.now().wall, before.saturating_add(DAY), "at the full pace again");
    }

    #[test]
    fn wall_time_never_runs_back_and_always_returns_after_random_steps() {
        for seed in 0..200 {
            let random = fastrand::Rng::with_seed(seed);
            check_steps(random);
        }
    }

    fn check_steps(mut random: fastrand::Rng) {
        let clock = ManualClock::new(EPOCH);
        let mut last = clock.now();
        for _ in 0..200 {
            if random.u8(..4) == 0 {
                let step = Nanos::from_millis(random.u64(..7_200_000));
                let now = date(&clock);
                clock.set_date(match random.bool() {
                    true => now.saturating_add(step),
                    false => now.saturating_sub(step),
                });
            }
            let span = Nanos::from_millis(random.u64(..2_000));
            let stepped = clock.now();
            clock.advance(span);
            let now = clock.now();
            assert!(stepped.wall >= last.wall && now.wall >= stepped.wall, "never back");
            let slowest = span.get() - span.get().div_ceil(SLEW_DIVISOR);
            let pace = now.wall.saturating_sub(stepped.wall).get();
            assert!(pace >= slowest, "{pace} of {span:?} at {now:?}");
            assert!(now.wall.get() + SLEW_TOLERANCE >= date(&clock).get(), "never behind");
            last = now;
        }
        let ahead = last.wall.saturating_sub(date(&clock));
        // A slew in progress ends first; the next one corrects the rest.
        for _ in 0..4 {
            clock.advance(ahead.saturating_mul(SLEW_DIVISOR).saturating_add(Nanos::SECOND));
        }
        let apart = clock.now().wall.get().abs_diff(date(&clock).get());
        assert!(apart <= SLEW_TOLERANCE, "{apart}");
    }

    #[test]
    fn threads_agree_on_the_wall_while_a_slew_begins() {
        let lines = TimeLines::new(EPOCH.get());
        let before = lines.at(5 * Nanos::SECOND.0 + SLEW_NOTICE).wall;
        lines.follow(5 * Nanos::SECOND.0, EPOCH.get());
        // A thread that read its offset before the step, and one that reads it after.
        assert_eq!(lines.at(5 * Nanos::SECOND.0 + SLEW_NOTICE).wall, before);
    }

    #[test]
    fn seconds_to_wait_round_up() {
        assert_eq!(Nanos::new(1).secs_ceil(), 1);
        assert_eq!(Nanos::from_secs(2).secs_ceil(), 2);
        assert_eq!(Nanos::new(2_000_000_001).secs_ceil(), 3);
    }
}
