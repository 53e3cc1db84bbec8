//! When a published set of keys is fetched again. It knows no network and reads no clock.
//!
//! ```text
//! fetched        max-age, 1 min to 1 day; the last fifth at random       fetch
//!    |---------------------------------------------------- - - - - - - ----|
//!    |        |  a token names an unknown key: fetch,
//!    |        |  if the last attempt began 30 s ago or earlier
//!    |- 30 s -|
//! failed: again after 1, 2, 4, .. 60 s
//! ```
//!
//! What must always hold: whatever clients send, an attempt begins at the earliest [`UNKNOWN_KEY_INTERVAL`] after the one
//! before, unless the set is missing or old.

use crate::clock::Nanos;

/// The shortest time between two fetches that tokens with unknown keys cause. Anyone can send such tokens; the provider
/// should not notice.
pub const UNKNOWN_KEY_INTERVAL: Nanos = Nanos::from_secs(30);

/// The age at which a set is fetched again if its publisher says nothing about it.
const DEFAULT_AGE: Nanos = Nanos::from_secs(600);

/// The bounds of the age that the publisher names. More often would be a load for it; more rarely, a key that it has
/// withdrawn would be believed for days.
const MIN_AGE: Nanos = Nanos::from_secs(60);
const MAX_AGE: Nanos = Nanos::from_secs(86_400);

/// The first and the longest pause after a failed fetch.
const FIRST_PAUSE: Nanos = Nanos::SECOND;
const LONGEST_PAUSE: Nanos = Nanos::from_secs(60);

/// The last part of an age or a pause that is random, as a divisor: nodes that started together spread over a fifth.
const JITTER_DIVISOR: u64 = 5;

/// When the next fetch begins. Times are monotonic.
#[derive(Debug, Default)]
pub(super) struct RefreshSchedule {
    /// When the next fetch begins; zero at first.
    next: Nanos,
    /// When the last attempt began.
    last_attempt: Option<Nanos>,
    /// Failed attempts since the last success.
    failures: u32,
    in_flight: bool,
}

impl RefreshSchedule {
    /// Begins a fetch if it is time for one. `wanted`: a token names a key that is not in the set.
    pub(super) fn begin(&mut self, wanted: bool, now: Nanos) -> bool {
        let is_wanted = wanted
            && self
                .last_attempt
                .is_none_or(|last| now >= last.saturating_add(UNKNOWN_KEY_INTERVAL));
        if self.in_flight || (now < self.next && !is_wanted) {
            return false;
        }
        self.in_flight = true;
        self.last_attempt = Some(now);
        true
    }

    /// Ends a fetch that gave a valid set. `max_age`: what its publisher says; `chance`: a random number.
    pub(super) fn succeeded(&mut self, max_age: Option<Nanos>, chance: u64, now: Nanos) {
        let age = max_age.unwrap_or(DEFAULT_AGE).max(MIN_AGE).min(MAX_AGE);
        (self.in_flight, self.failures) = (false, 0);
        self.next = now.saturating_add(spread(age, chance));
    }

    /// Ends a fetch that gave no valid set.
    pub(super) fn failed(&mut self, chance: u64, now: Nanos) {
        let pause = Nanos::new(FIRST_PAUSE.get() << self.failures.min(16)).min(LONGEST_PAUSE);
        (self.in_flight, self.failures) = (false, self.failures.saturating_add(1));
        self.next = now.saturating_add(spread(pause, chance));
    }

    /// Ends a fetch that nobody waited for: its task was dropped. The next one may begin at once.
    pub(super) fn abandoned(&mut self) {
        self.in_flight = false;
    }
}

/// A span less a random part of its last fifth.
fn spread(span: Nanos, chance: u64) -> Nanos {
    let random = span.get() / JITTER_DIVISOR;
    span.saturating_sub(Nanos::new(chance % random.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Nanos {
        Nanos::from_secs(secs)
    }

    /// The seconds at which fetches begin, for `span` seconds, if each ends at once.
    fn begun(
        span: u64,
        wanted: impl Fn(u64) -> bool,
        end: impl Fn(&mut RefreshSchedule, Nanos),
    ) -> Vec<u64> {
        let mut schedule = RefreshSchedule::default();
        let mut found = Vec::new();
        for second in 0..span {
            if schedule.begin(wanted(second), secs(second)) {
                found.push(second);
                end(&mut schedule, secs(second));
            }
        }
        found
    }

    #[test]
    fn a_set_is_fetched_at_the_age_that_its_publisher_names_within_bounds() {
        for (max_age, expected) in [
            (None, 600),
            (Some(300), 300),
            (Some(0), 60),
            (Some(5), 60),
            (Some(10_000_000), 86_400),
        ] {
            let found = begun(
                90_000,
                |_| false,
                |schedule, now| {
                    schedule.succeeded(max_age.map(secs), 0, now);
                },
            );
            assert_eq!(found[..2], [0, expected], "{max_age:?}");
        }
    }

    #[test]
    fn the_last_fifth_is_random() {
        for chance in [0, 1, 59_999_999_999, u64::MAX / 3, u64::MAX] {
            let mut schedule = RefreshSchedule::default();
            schedule.succeeded(Some(secs(300)), chance, Nanos::ZERO);
            assert!(schedule.next > secs(240) && schedule.next <= secs(300), "{chance}");
        }
    }

    #[test]
    fn a_storm_of_unknown_keys_causes_a_fetch_every_half_minute() {
        let found = begun(
            3_600,
            |_| true,
            |schedule, now| {
                schedule.succeeded(Some(secs(86_400)), 0, now);
            },
        );
        assert_eq!(found.len(), 120);
        assert!(found.windows(2).all(|pair| pair[1] - pair[0] == 30));
        // Also while fetches fail: the pauses alone decide until they are longer.
        let found = begun(3_600, |_| true, |schedule, now| schedule.failed(0, now));
        assert_eq!(found[..8], [0, 1, 3, 7, 15, 31, 61, 91]);
        assert!(found.windows(2).skip(5).all(|pair| pair[1] - pair[0] == 30));
    }

    #[test]
    fn a_single_unknown_key_is_asked_for_at_once() {
        let found = begun(
            100,
            |second| second == 77,
            |schedule, now| {
                schedule.succeeded(Some(secs(86_400)), 0, now);
            },
        );
        assert_eq!(found, [0, 77]);
    }

    #[test]
    fn failures_are_repeated_with_pauses_that_grow_to_a_minute() {
        let found = begun(400, |_| false, |schedule, now| schedule.failed(0, now));
        assert_eq!(found, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]);
        let mut schedule = RefreshSchedule { failures: u32::MAX, ..Default::default() };
        schedule.failed(0, Nanos::ZERO);
        assert_eq!(schedule.next, secs(60));
    }

    #[test]
    fn fetches_run_singly_and_a_dropped_fetch_is_begun_again() {
        let mut schedule = RefreshSchedule::default();
        assert!(schedule.begin(false, Nanos::ZERO));
        assert!(!schedule.begin(true, secs(1_000)), "one runs");
        schedule.abandoned();
        assert!(schedule.begin(false, secs(1_000)));
    }
}
