//! What is known about one server: whether it answers, and how long it has been back.
//!
//! Requests tell it about failures and answers, and active health checks about their results. It knows neither addresses
//! nor the other servers of its origin; time is an argument. What must always hold: one answer ends a succession of
//! failures, and while a server is left out at most one request in [`TRIAL_TIME`] tries it.
//!
//! ```text
//!            failures in succession              that time has passed: one request tries it
//! admitted -------------------------> left out ---------------------------------------------> admitted,
//!    ^   |                             1 s to 30 s          it answers                        its share grows
//!    +---+                             ^        |
//!  any answer                          +--------+ it fails again: twice as long
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::clock::Nanos;

/// Failures in succession after which a server is left out.
const MAX_FAILURES: u32 = 3;

/// Failures that a request may have caused itself count only if no other request was answered for this time. Otherwise
/// one client could have a server left out by requests that the server does not survive.
const MIN_FAILING_TIME: Nanos = Nanos::SECOND;

/// How long a server is left out at first: long enough that requests stop running into it, short enough for a restart.
const FIRST_EXCLUSION: Nanos = Nanos::SECOND;

/// The longest time for which a server is left out without a trial. It bounds how late a recovery is noticed.
const MAX_EXCLUSION: Nanos = Nanos::from_secs(30);

/// After this time without a result of a trial, another request tries.
const TRIAL_TIME: Nanos = Nanos::SECOND;

/// A server has its full share at this number.
pub(super) const FULL_SHARE: u32 = 1_000;

/// The share with which a server comes back: a tenth, or it would wait long for its first requests.
const FIRST_SHARE: u32 = FULL_SHARE / 10;

/// How a server failed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum ServerFailure {
    /// No connection came about: refused, or without agreement on TLS. No request can cause that.
    Connection,
    /// No connection came about in time, or it took a request and gave no answer to it. Requests may be the cause.
    Answer,
}

/// The health of one server.
#[derive(Debug)]
pub(super) struct ServerHealth {
    /// Whether the last active health check failed.
    is_ill: AtomicBool,
    /// 0 while the server is admitted; else the time from which a request that only reads may try it.
    left_out_until: AtomicU64,
    /// The time from which any request may try it. Reads go first, because a write cannot be sent twice.
    closed_to_writes_until: AtomicU64,
    /// Whether a request tries it, whose result is unknown.
    is_tried: AtomicBool,
    /// 0, or the time since when its share grows.
    back_since: AtomicU64,
    slow_start: Option<Nanos>,
    observed: Mutex<Observed>,
    /// Whether it is counted in `marks`. Changed under the lock only.
    is_marked: AtomicBool,
    /// Servers of the origin of which something is known here.
    marks: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Observed {
    /// Failures since the last answer.
    failures: u32,
    failing_since: Nanos,
    left_out_at: Nanos,
    readmitted_at: Nanos,
    /// How long it was left out last, without jitter.
    exclusion: Nanos,
}

impl ServerHealth {
    /// Of a server of which nothing is known. `marks`: see [`Self::is_marked`].
    pub(super) fn new(slow_start: Option<Nanos>, marks: Arc<AtomicUsize>) -> Self {
        Self {
            is_ill: AtomicBool::new(false),
            left_out_until: AtomicU64::new(0),
            closed_to_writes_until: AtomicU64::new(0),
            is_tried: AtomicBool::new(false),
            back_since: AtomicU64::new(0),
            slow_start,
            observed: Mutex::default(),
            is_marked: AtomicBool::new(false),
            marks,
        }
    }

    /// Whether the last active health check failed.
    pub(super) fn is_ill(&self) -> bool {
        self.is_ill.load(Ordering::Relaxed)
    }

    /// Whether it is checked as healthy and not left out.
    pub(super) fn is_up(&self) -> bool {
        !self.is_ill() && !self.is_left_out()
    }

    /// For how long no request tries it; `None` if it is admitted.
    pub(super) fn left_out_for(&self, now: Nanos) -> Option<Nanos> {
        let until = Nanos::new(self.left_out_until.load(Ordering::Relaxed));
        (until > Nanos::ZERO).then(|| until.saturating_sub(now))
    }

    fn is_left_out(&self) -> bool {
        self.left_out_until.load(Ordering::Relaxed) > 0
    }

    /// Whether a request may be sent to it. If it is left out and its time has passed, this request becomes the trial, so
    /// the caller must choose the server then.
    pub(super) fn admit(&self, reads: bool, now: Nanos) -> Admission {
        let until = self.left_out_until.load(Ordering::Acquire);
        if until == 0 {
            return Admission::Admitted;
        }
        let opens = match reads {
            true => until,
            false => until.max(self.closed_to_writes_until.load(Ordering::Relaxed)),
        };
        let next = now.saturating_add(TRIAL_TIME).get();
        if now.get() < opens
            || self
                .left_out_until
                .compare_exchange(until, next, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
        {
            return Admission::LeftOut;
        }
        self.is_tried.store(true, Ordering::Release);
        Admission::Trial
    }

    /// Its share of the requests that it would get otherwise, of [`FULL_SHARE`].
    pub(super) fn share(&self, now: Nanos) -> u32 {
        let since = self.back_since.load(Ordering::Relaxed);
        let Some(slow_start) = self.slow_start.filter(|_| since > 0) else {
            return FULL_SHARE;
        };
        let elapsed = now.get().saturating_sub(since);
        if elapsed >= slow_start.get() {
            let observed = self.observed.lock();
            self.back_since.store(0, Ordering::Relaxed);
            self.count_mark(&observed);
            return FULL_SHARE;
        }
        let share = u128::from(elapsed) * u128::from(FULL_SHARE) / u128::from(slow_start.get());
        u32::try_from(share).unwrap_or(FULL_SHARE).max(FIRST_SHARE)
    }

    /// Records a failure of a request that began at `began`. Returns for how long the server is left out, if that begins
    /// now. `chance`: below 1,000, at random; it spreads the trials of many servers and nodes.
    pub(super) fn failed(
        &self,
        failure: ServerFailure,
        began: Nanos,
        now: Nanos,
        chance: u32,
    ) -> Option<Nanos> {
        let mut observed = self.observed.lock();
        if self.is_left_out() {
            // Requests that began before tell nothing new. Neither do those that were sent because all servers are left
            // out: if each made the time longer, it would be at its bound at once.
            if began < observed.left_out_at || !self.is_tried.swap(false, Ordering::AcqRel) {
                return None;
            }
            return Some(self.leave_out(&mut observed, now, chance));
        }
        if observed.failures == 0 {
            observed.failing_since = now;
        }
        observed.failures = observed.failures.saturating_add(1);
        let failing_for = now.saturating_sub(observed.failing_since);
        let is_certain = match failure {
            ServerFailure::Connection => true,
            ServerFailure::Answer => failing_for >= MIN_FAILING_TIME,
        };
        if observed.failures >= MAX_FAILURES && is_certain {
            return Some(self.leave_out(&mut observed, now, chance));
        }
        self.count_mark(&observed);
        None
    }

    /// Records an answer to a request that began at `began`. Returns whether the server is admitted again by it.
    pub(super) fn answered(&self, began: Nanos, now: Nanos) -> bool {
        // While another server is down, a healthy one answers many requests, and its lock is not needed.
        if !self.is_marked.load(Ordering::Relaxed) {
            return false;
        }
        let mut observed = self.observed.lock();
        let is_left_out = self.is_left_out();
        // A server that is about to end may answer its last requests and refuse new connections.
        if is_left_out && began < observed.left_out_at {
            return false;
        }
        observed.failures = 0;
        if is_left_out {
            self.readmit(&mut observed, now);
        }
        self.count_mark(&observed);
        is_left_out
    }

    /// Records the result of an active health check. A success admits the server again. Returns whether it did.
    pub(super) fn checked(&self, is_healthy: bool, now: Nanos) -> bool {
        let was_ill = self.is_ill.swap(!is_healthy, Ordering::Relaxed);
        if !is_healthy {
            return false;
        }
        let mut observed = self.observed.lock();
        let is_left_out = self.is_left_out();
        if is_left_out {
            self.readmit(&mut observed, now);
        } else if was_ill {
            self.begin_slow_start(now);
        }
        self.count_mark(&observed);
        is_left_out
    }

    /// Its share grows from now on: it is a server that was not there before.
    pub(super) fn appeared(&self, now: Nanos) {
        let observed = self.observed.lock();
        self.begin_slow_start(now);
        self.count_mark(&observed);
    }

    /// Lets the next request try it, if it is left out: what made all servers fail may be over.
    pub(super) fn try_now(&self, now: Nanos) {
        let _observed = self.observed.lock();
        if self.left_out_for(now).is_some_and(|left| left > Nanos::ZERO) {
            self.left_out_until.store(now.get().max(1), Ordering::Release);
        }
    }

    fn leave_out(&self, observed: &mut Observed, now: Nanos, chance: u32) -> Nanos {
        // It must answer for as long as it was left out, or it is left out for longer than before.
        let good_until = observed.readmitted_at.saturating_add(observed.exclusion);
        let is_repeated =
            observed.exclusion > Nanos::ZERO && (self.is_left_out() || now < good_until);
        observed.exclusion = match is_repeated {
            true => observed.exclusion.saturating_mul(2).min(MAX_EXCLUSION),
            false => FIRST_EXCLUSION,
        };
        // From three quarters to five quarters.
        let quarter = observed.exclusion.get() / 4;
        let jitter = quarter * 2 * u64::from(chance.min(1_000)) / 1_000;
        let exclusion = Nanos::new(quarter * 3 + jitter);
        let until = now.saturating_add(exclusion);
        observed.failures = 0;
        observed.left_out_at = now;
        self.back_since.store(0, Ordering::Relaxed);
        self.is_tried.store(false, Ordering::Relaxed);
        let writes = until.saturating_add(exclusion).get();
        self.closed_to_writes_until.store(writes, Ordering::Relaxed);
        self.left_out_until.store(until.get().max(1), Ordering::Release);
        self.count_mark(observed);
        exclusion
    }

    fn readmit(&self, observed: &mut Observed, now: Nanos) {
        observed.failures = 0;
        observed.readmitted_at = now;
        self.is_tried.store(false, Ordering::Relaxed);
        self.begin_slow_start(now);
        self.left_out_until.store(0, Ordering::Release);
    }

    fn begin_slow_start(&self, now: Nanos) {
        if self.slow_start.is_some() {
            self.back_since.store(now.get().max(1), Ordering::Relaxed);
        }
    }

    /// Counts the server in `marks` while something is known of it that a choice or an answer must look at.
    fn count_mark(&self, observed: &Observed) {
        let is_marked = observed.failures > 0
            || self.is_left_out()
            || self.back_since.load(Ordering::Relaxed) > 0;
        if self.is_marked.swap(is_marked, Ordering::Relaxed) != is_marked {
            match is_marked {
                true => self.marks.fetch_add(1, Ordering::Relaxed),
                false => self.marks.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }
}

impl Drop for ServerHealth {
    fn drop(&mut self) {
        if *self.is_marked.get_mut() {
            self.marks.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether a request may be sent to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It may.
    Admitted,
    /// It may, and is the only one for some time: its result decides.
    Trial,
    /// Other servers are to be asked.
    LeftOut,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server, with what is counted of it. The chance is in the middle, so there is no jitter.
    struct TestedHealth {
        health: ServerHealth,
        marks: Arc<AtomicUsize>,
    }

    impl TestedHealth {
        fn new(slow_start: Option<Nanos>) -> Self {
            let marks = Arc::<AtomicUsize>::default();
            Self { health: ServerHealth::new(slow_start, Arc::clone(&marks)), marks }
        }

        /// A failed connection that began now.
        fn refuse(&self, at: Nanos) -> Option<Nanos> {
            self.health.failed(ServerFailure::Connection, at, at, 500)
        }

        fn admit(&self, at: Nanos) -> Admission {
            self.health.admit(true, at)
        }

        fn marks(&self) -> usize {
            self.marks.load(Ordering::Relaxed)
        }
    }

    fn millis(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn three_refused_connections_in_succession_leave_it_out() {
        let bench = TestedHealth::new(None);
        for _ in 0..5 {
            assert_eq!((bench.refuse(millis(1)), bench.refuse(millis(2))), (None, None));
            assert!(!bench.health.answered(millis(2), millis(3)));
            assert_eq!(bench.marks(), 0, "an answer ends the succession");
        }
        bench.refuse(millis(4));
        bench.refuse(millis(5));
        assert_eq!(bench.marks(), 1);
        assert_eq!(bench.refuse(millis(6)), Some(Nanos::SECOND));
        assert!(!bench.health.is_up());
        assert_eq!(bench.admit(millis(1_005)), Admission::LeftOut);
        assert_eq!(bench.health.left_out_for(millis(506)), Some(millis(500)));
    }

    #[test]
    fn what_a_request_may_have_caused_counts_after_a_second_without_an_answer() {
        let bench = TestedHealth::new(None);
        let fail = |at: Nanos| bench.health.failed(ServerFailure::Answer, Nanos::ZERO, at, 500);
        // A burst of a thousand, all at once, as one client can send it.
        for n in 0..1_000_u64 {
            assert_eq!(fail(Nanos::new(n)), None);
        }
        assert!(!bench.health.answered(Nanos::ZERO, millis(500)));
        for n in 0..1_000_u64 {
            assert_eq!(fail(millis(600 + n)), None, "{n}");
        }
        assert_eq!(fail(millis(1_600)), Some(Nanos::SECOND), "nobody was answered for a second");
    }

    #[test]
    fn trials_come_singly_and_each_failure_doubles_the_time() {
        let bench = TestedHealth::new(None);
        let mut now = Nanos::ZERO;
        (0..2).for_each(|_| assert_eq!(bench.refuse(now), None));
        let mut exclusion = bench.refuse(now).unwrap();
        for expected in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            assert_eq!(exclusion, millis(expected));
            // Requests that began before, and those that are sent because no other server is left.
            assert_eq!(bench.refuse(now), None);
            let nearly = now.saturating_add(exclusion).saturating_sub(Nanos::new(1));
            assert_eq!(bench.admit(nearly), Admission::LeftOut);
            now = now.saturating_add(exclusion);
            assert_eq!(bench.admit(now), Admission::Trial);
            assert_eq!(bench.admit(now), Admission::LeftOut, "one at a time");
            exclusion = bench.refuse(now).unwrap();
        }
        // A trial without a result: the client has left.
        now = now.saturating_add(exclusion);
        assert_eq!(bench.admit(now), Admission::Trial);
        now = now.saturating_add(TRIAL_TIME);
        assert_eq!(bench.admit(now), Admission::Trial);
        assert!(bench.health.answered(now, now));
        assert_eq!((bench.admit(now), bench.marks()), (Admission::Admitted, 0));
    }

    #[test]
    fn what_began_before_it_was_left_out_does_not_admit_it() {
        let bench = TestedHealth::new(None);
        for n in 1..=3 {
            bench.refuse(millis(n));
        }
        assert!(!bench.health.answered(millis(2), millis(4)), "an answer of a server that ends");
        assert!(!bench.health.is_up());
        assert!(bench.health.answered(millis(3), millis(4)), "no other server was left");
        assert!(bench.health.is_up());
    }

    #[test]
    fn a_server_that_fails_again_soon_is_left_out_for_longer() {
        let bench = TestedHealth::new(None);
        let refuse = |at: Nanos| (0..3).fold(None, |_, _| bench.refuse(at));
        assert_eq!(refuse(millis(0)), Some(millis(1_000)));
        assert!(bench.health.answered(millis(1_000), millis(1_000)));
        assert_eq!(refuse(millis(1_500)), Some(millis(2_000)));
        assert!(bench.health.answered(millis(4_000), millis(4_000)));
        assert_eq!(refuse(millis(7_000)), Some(millis(1_000)), "it was good for long enough");
    }

    #[test]
    fn a_write_tries_only_when_no_read_has_come() {
        let bench = TestedHealth::new(None);
        for _ in 0..3 {
            bench.refuse(Nanos::ZERO);
        }
        assert_eq!(bench.health.admit(false, millis(1_000)), Admission::LeftOut);
        assert_eq!(bench.health.admit(false, millis(1_999)), Admission::LeftOut);
        assert_eq!(bench.health.admit(false, millis(2_000)), Admission::Trial);
    }

    #[test]
    fn a_passed_check_admits_and_a_failed_check_does_not_prolong() {
        let bench = TestedHealth::new(None);
        for _ in 0..3 {
            bench.refuse(Nanos::ZERO);
        }
        assert!(!bench.health.checked(false, millis(1)));
        assert!(bench.health.is_ill());
        assert!(bench.health.checked(true, millis(2)));
        assert!(bench.health.is_up());
        // It passes its checks and still refuses: each time it is left out for longer.
        let refuse = |at: Nanos| (0..3).fold(None, |_, _| bench.refuse(at));
        assert_eq!(refuse(millis(3)), Some(millis(2_000)));
        assert!(bench.health.checked(true, millis(4)));
        assert_eq!(refuse(millis(5)), Some(millis(4_000)));
    }

    #[test]
    fn jitter_spreads_trials_over_half_of_the_time() {
        let spans = [0, 250, 500, 1_000, u32::MAX].map(|chance| {
            let health = ServerHealth::new(None, Arc::default());
            let fail =
                || health.failed(ServerFailure::Connection, Nanos::ZERO, Nanos::ZERO, chance);
            (0..3).fold(None, |_, _| fail())
        });
        assert_eq!(spans, [750, 875, 1_000, 1_250, 1_250].map(|span| Some(millis(span))));
    }

    #[test]
    fn the_share_of_a_server_that_is_back_grows() {
        let bench = TestedHealth::new(Some(Nanos::from_secs(30)));
        assert_eq!(bench.health.share(Nanos::ZERO), FULL_SHARE, "all servers begin at once");
        for _ in 0..3 {
            bench.refuse(Nanos::ZERO);
        }
        assert!(bench.health.answered(millis(1_000), millis(1_000)));
        let shares =
            [1_000, 2_000, 4_000, 7_000, 16_000, 30_999].map(|at| bench.health.share(millis(at)));
        assert_eq!(shares, [100, 100, 100, 200, 500, 999]);
        assert_eq!(bench.marks(), 1);
        assert_eq!((bench.health.share(millis(31_000)), bench.marks()), (FULL_SHARE, 0));
        // A health check that passes again, and an address that is new.
        bench.health.checked(false, millis(40_000));
        bench.health.checked(true, millis(50_000));
        assert_eq!(bench.health.share(millis(65_000)), 500);
        bench.health.checked(true, millis(65_000));
        assert_eq!(bench.health.share(millis(65_000)), 500, "it was healthy before");
        bench.health.appeared(millis(100_000));
        assert_eq!(bench.health.share(millis(115_000)), 500);
        let marks = Arc::clone(&bench.marks);
        drop(bench);
        assert_eq!(marks.load(Ordering::Relaxed), 0, "a server that has gone is not counted");
    }

    #[test]
    fn when_all_were_left_out_each_is_tried_at_once() {
        let bench = TestedHealth::new(None);
        bench.health.try_now(millis(5));
        assert_eq!(bench.admit(millis(5)), Admission::Admitted);
        for _ in 0..3 {
            bench.refuse(millis(10));
        }
        bench.health.try_now(millis(20));
        assert_eq!(bench.admit(millis(20)), Admission::Trial);
    }
}
