//! A clock that is moved by hand.

use std::sync::atomic::{AtomicU64, Ordering};

use super::nanos::Nanos;
use super::now::{Clock, Now};
use super::time_lines::TimeLines;
#[cfg(feature = "bin")]
use super::time_mark::TimeMark;

/// A clock that moves only when it is told to: for tests, `tollgate explain` and `tollgate test`.
///
/// ```
/// use tollgate::clock::{Clock, ManualClock, Nanos};
///
/// let clock = ManualClock::new(Nanos::from_secs(1_700_000_000));
/// let before = clock.now();
/// clock.advance(Nanos::from_secs(60));
/// assert_eq!(clock.now().mono.saturating_sub(before.mono), Nanos::from_secs(60));
/// ```
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
        let mono = 3_600 * Nanos::SECOND.get();
        Self {
            mono: AtomicU64::new(mono),
            system: AtomicU64::new(wall.get()),
            lines: TimeLines::new(wall.get().saturating_sub(mono)),
        }
    }

    /// The clock of another process, standing at this mark.
    #[cfg(feature = "bin")]
    pub fn at(mark: &TimeMark) -> Self {
        let mono = mark.mono.get();
        let lines = TimeLines::new(mark.wall.get().saturating_sub(mono));
        lines.follow(mono, mark.date.get());
        Self { mono: AtomicU64::new(mono), system: AtomicU64::new(mark.date.get()), lines }
    }

    /// Moves all time lines forwards by `span`.
    pub fn advance(&self, span: Nanos) {
        let mono = self.mono.fetch_add(span.get(), Ordering::SeqCst).saturating_add(span.get());
        let system = self.system.fetch_add(span.get(), Ordering::SeqCst).saturating_add(span.get());
        self.lines.follow(mono, system);
    }

    /// Sets the simulated system's clock, forwards or back; no time passes.
    pub fn set_date(&self, date: Nanos) {
        self.system.store(date.get(), Ordering::SeqCst);
        self.lines.follow(self.mono.load(Ordering::SeqCst), date.get());
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
    use super::super::time_lines::{SLEW_DIVISOR, SLEW_TOLERANCE};
    use super::*;

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
}
