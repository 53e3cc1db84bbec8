//! Every algorithm against an oracle that is too simple to be wrong: the list of admitted charges.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use proptest::prelude::*;
use tollgate::clock::{Nanos, Now};
use tollgate::limit::{
    Cell, FixedWindow, Quota, Rate, SlidingLog, SlidingWindow, TokenBucket, Verdict, WindowLengths,
};

/// Where schedules begin on both time lines: an edge of the windows of every period that is used.
const MONO: u64 = 7_200_000_000_000;
const WALL: u64 = 1_800_057_600_000_000_000;

/// One step of a schedule: time that passes (or runs back), then a charge.
#[derive(Clone, Copy, Debug)]
struct Step {
    pause: i64,
    cost: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bucket,
    Stepped,
    Window,
    Log,
    Fixed,
}

/// An algorithm and its numbers, as the oracle needs them.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    count: u32,
    /// Nanoseconds.
    period: u64,
    burst: u32,
    /// Nanoseconds; for buckets that refill in steps.
    step: u64,
}

impl Case {
    fn quota(&self) -> Quota {
        let rate = Rate::new(self.count, Nanos::new(self.period)).unwrap();
        match self.kind {
            Kind::Bucket | Kind::Stepped => Quota::TokenBucket(
                TokenBucket::new(rate, self.burst, Nanos::new(self.step), Nanos::new(1)).unwrap(),
            ),
            Kind::Window => Quota::SlidingWindow(SlidingWindow::new(rate)),
            Kind::Log => Quota::SlidingLog(SlidingLog::new(rate).unwrap()),
            Kind::Fixed => Quota::FixedWindow(FixedWindow::new(rate)),
        }
    }

    /// Units that a key can spend at once.
    fn limit(&self) -> u32 {
        match self.kind {
            Kind::Bucket | Kind::Stepped => self.burst,
            Kind::Window | Kind::Log | Kind::Fixed => self.count,
        }
    }

    fn emission(&self) -> u64 {
        self.period.div_ceil(u64::from(self.count))
    }
}

fn case() -> impl Strategy<Value = Case> {
    let kinds = prop_oneof![
        Just(Kind::Bucket),
        Just(Kind::Stepped),
        Just(Kind::Window),
        Just(Kind::Log),
        Just(Kind::Fixed)
    ];
    let periods = prop_oneof![
        Just(1_000_000_000u64),
        Just(60_000_000_000),
        Just(8_000_000),
        Just(3_600_000_000_000)
    ];
    (kinds, 1u32..40, periods, 1u32..40, 1u64..5).prop_map(|(kind, count, period, burst, steps)| {
        // A refill that brings a whole number of units and is no longer than the period.
        let each = period / u64::from(count);
        let whole = each * u64::from(count) == period && steps <= u64::from(count);
        let step = match kind {
            Kind::Stepped if whole => each * steps,
            Kind::Stepped => period,
            Kind::Bucket | Kind::Window | Kind::Log | Kind::Fixed => 0,
        };
        Case { kind, count, period, burst, step }
    })
}

/// Pauses as shares of the period: none, short ones, idle gaps and, with `back`, steps back.
fn steps(back: bool) -> impl Strategy<Value = Vec<(i64, u32)>> {
    let forth =
        prop_oneof![4 => Just(0i64), 8 => 0i64..200, 2 => 200i64..1_500, 1 => 1_500i64..9_000];
    let pause =
        if back { prop_oneof![6 => forth, 1 => -3_000i64..0].boxed() } else { forth.boxed() };
    proptest::collection::vec((pause, 1u32..12), 1..60)
}

/// Numbers up to `most`, half of them near an end.
fn extreme(most: u64) -> impl Strategy<Value = u64> {
    prop_oneof![0..=most, 0..=most.min(3), (0u64..3).prop_map(move |less| most - less), {
        // Any order of magnitude.
        (0u32..64).prop_map(move |bits| (1u64 << bits).min(most))
    }]
}

fn schedule(case: &Case, steps: &[(i64, u32)]) -> Vec<Step> {
    let scaled = |(pause, cost): &(i64, u32)| {
        let pause = i128::from(*pause) * i128::from(case.period) / 1_000;
        Step { pause: i64::try_from(pause).unwrap(), cost: *cost }
    };
    steps.iter().map(scaled).collect()
}

fn at(offset: i64) -> Now {
    let shifted = |base: u64| Nanos::new(base.saturating_add_signed(offset));
    Now { mono: shifted(MONO), wall: shifted(WALL) }
}

fn later(now: Now, span: Nanos) -> Now {
    Now { mono: now.mono.saturating_add(span), wall: now.wall.saturating_add(span) }
}

/// Runs a schedule. Returns the admitted charges as (offset, cost).
fn run(
    quota: &Quota,
    steps: &[Step],
    mut look: impl FnMut(&Cell, Now, u32, &Verdict),
) -> Vec<(i64, u32)> {
    let (mut cell, mut offset, mut admitted) = (quota.empty_cell(), 0i64, Vec::new());
    for step in steps {
        offset = offset.saturating_add(step.pause);
        let now = at(offset);
        let before = cell.clone();
        let verdict = quota.judge(Some(&cell), step.cost, now);
        assert_eq!(cell, before, "judging changes nothing");
        look(&cell, now, step.cost, &verdict);
        if verdict.allowed {
            quota.charge(&mut cell, step.cost, now);
            admitted.push((offset, step.cost));
        }
    }
    admitted
}

/// Cost admitted in `from <= t < until`.
fn between(admitted: &[(i64, u32)], from: i64, until: i64) -> u64 {
    let inside = admitted.iter().filter(|(t, _)| (from..until).contains(t));
    inside.map(|(_, cost)| u64::from(*cost)).sum()
}

/// The promise of the algorithm, in every interval that begins and ends with an admitted charge.
fn check_bound(case: &Case, admitted: &[(i64, u32)]) {
    let period = i64::try_from(case.period).unwrap();
    for (i, (from, _)) in admitted.iter().enumerate() {
        for (until, _) in &admitted[i..] {
            let total = between(admitted, *from, until + 1);
            let span = u64::try_from(until - from).unwrap();
            match case.kind {
                Kind::Bucket | Kind::Stepped => {
                    let refilled = (span + case.step) / case.emission();
                    assert!(total <= u64::from(case.burst) + refilled, "{total} in {span} ns");
                }
                Kind::Log if until - from < period => assert!(total <= u64::from(case.count)),
                Kind::Window if until - from < period => {
                    assert!(total < 2 * u64::from(case.count), "{total} in {span} ns");
                }
                Kind::Log | Kind::Window | Kind::Fixed => {}
            }
        }
        if matches!(case.kind, Kind::Fixed | Kind::Window) {
            let window = from.div_euclid(period) * period;
            assert!(between(admitted, window, window + period) <= u64::from(case.count));
        }
    }
}

/// What a sliding window must answer, computed from the list.
fn window_admits(case: &Case, admitted: &[(i64, u32)], offset: i64, cost: u32) -> bool {
    let period = i64::try_from(case.period).unwrap();
    let begin = offset.div_euclid(period) * period;
    let current = between(admitted, begin, begin + period);
    let previous = between(admitted, begin - period, begin);
    let covered = u128::from(case.period) - u128::try_from(offset - begin).unwrap();
    let share = (u128::from(previous) * covered).div_ceil(u128::from(case.period));
    u128::from(current) + share + u128::from(cost) <= u128::from(case.count)
}

fn check_verdict(case: &Case, quota: &Quota, cell: &Cell, now: Now, cost: u32, verdict: &Verdict) {
    assert_eq!(verdict.limit, case.limit());
    assert!(verdict.remaining <= verdict.limit);
    // Retry-After is exact: the charge fits at that instant, and not a nanosecond before.
    match verdict.retry_after {
        None => assert!(cost > case.limit() && !verdict.allowed),
        Some(wait) => {
            assert!(cost <= case.limit());
            assert_eq!(wait == Nanos::ZERO, verdict.allowed);
            assert!(quota.judge(Some(cell), cost, later(now, wait)).allowed, "true at retry_after");
            if wait > Nanos::ZERO {
                let early = later(now, wait.saturating_sub(Nanos::new(1)));
                assert!(!quota.judge(Some(cell), cost, early).allowed, "and not earlier");
            }
        }
    }
    // Remaining is exact: this many units fit at once, and not one more.
    let mut after = cell.clone();
    if verdict.allowed {
        quota.charge(&mut after, cost, now);
    }
    if verdict.remaining > 0 {
        assert!(quota.judge(Some(&after), verdict.remaining, now).allowed);
    }
    assert!(!quota.judge(Some(&after), verdict.remaining + 1, now).allowed);
    // At the reset time the full limit fits, and the cell equals an absent one.
    let full = later(now, verdict.reset);
    assert!(quota.judge(Some(&after), case.limit(), full).allowed);
    assert!(quota.is_idle(&after, full));
    if verdict.reset > Nanos::ZERO {
        let early = later(now, verdict.reset.saturating_sub(Nanos::new(1)));
        assert!(!quota.is_idle(&after, early), "full no earlier than it says");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50_000, ..ProptestConfig::default() })]

    /// 10,000 cases for each of the five kinds: the bound holds in every interval, and every number of every verdict is
    /// true.
    #[test]
    fn the_promise_holds_and_every_number_is_true(case in case(), steps in steps(false)) {
        let quota = case.quota();
        let steps = schedule(&case, &steps);
        let mut known: Vec<(i64, u32)> = Vec::new();
        let admitted = run(&quota, &steps, |cell, now, cost, verdict| {
            check_verdict(&case, &quota, cell, now, cost, verdict);
            let offset = i64::try_from(now.mono.get() - MONO).unwrap();
            if case.kind == Kind::Window {
                assert_eq!(verdict.allowed, window_admits(&case, &known, offset, cost));
            }
            if verdict.allowed {
                known.push((offset, cost));
            }
        });
        check_bound(&case, &admitted);
    }

    /// A key that never sends more than the limit in any window is never denied, by the algorithms that promise this.
    #[test]
    fn a_key_within_its_limit_is_never_denied(case in case(), steps in steps(false)) {
        let kind = match case.kind {
            Kind::Window => Kind::Fixed,
            Kind::Stepped => Kind::Bucket,
            promised => promised,
        };
        let case = Case { burst: case.count, step: 0, kind, ..case };
        let quota = case.quota();
        let period = i64::try_from(case.period).unwrap();
        let (mut cell, mut offset, mut sent) = (quota.empty_cell(), 0i64, Vec::new());
        for step in schedule(&case, &steps) {
            offset += step.pause;
            // The key sends only what fits into the window that ends now, its beginning included.
            if between(&sent, offset - period, offset + 1) + u64::from(step.cost) > u64::from(case.count) {
                continue;
            }
            let verdict = quota.judge(Some(&cell), step.cost, at(offset));
            prop_assert!(verdict.allowed, "{verdict:?} of {sent:?}");
            quota.charge(&mut cell, step.cost, at(offset));
            sent.push((offset, step.cost));
        }
    }

    /// Threads read the clock and then wait for the cell, so times come out of order by less than a period. Every number
    /// is true for the thread that asks. The bound holds if each charge counts no earlier than those admitted before it.
    #[test]
    fn charges_out_of_time_order_keep_the_promise(
        case in case(),
        steps in proptest::collection::vec((0i64..400, 0i64..1_000, 1u32..12), 1..40),
    ) {
        let quota = case.quota();
        let period = i64::try_from(case.period).unwrap();
        let scaled = |share: i64| i64::try_from(i128::from(share) * i128::from(period) / 1_000).unwrap();
        let (mut cell, mut clock, mut latest) = (quota.empty_cell(), 0i64, i64::MIN);
        let mut admitted = Vec::new();
        for (pause, lag, cost) in steps {
            clock += scaled(pause);
            // Two of three threads are on time.
            let read = clock - if lag % 3 == 0 { scaled(lag) } else { 0 };
            let verdict = quota.judge(Some(&cell), cost, at(read));
            check_verdict(&case, &quota, &cell, at(read), cost, &verdict);
            if verdict.allowed {
                quota.charge(&mut cell, cost, at(read));
                latest = latest.max(read);
                admitted.push((latest, cost));
            }
        }
        check_bound(&case, &admitted);
    }

    /// Numbers at both ends of every range: nothing panics (tests check for overflow), no charge above the limit is
    /// admitted, and a charge that can never succeed has no retry time.
    #[test]
    fn the_largest_numbers_neither_panic_nor_exceed_the_limit(
        kind in prop_oneof![Just(Kind::Bucket), Just(Kind::Window), Just(Kind::Log), Just(Kind::Fixed)],
        counts in (extreme(u64::from(u32::MAX)), extreme(u64::from(u32::MAX))),
        period in extreme(366 * 86_400_000_000_000),
        burst in extreme(u64::from(u32::MAX)),
        steps in proptest::collection::vec((extreme(u64::MAX), extreme(u64::from(u32::MAX))), 1..12),
    ) {
        let quota = |count: u64| {
            let count = u32::try_from(count).unwrap();
            let rate = Rate::new(count, Nanos::new(period)).ok()?;
            Some(match kind {
                Kind::Bucket | Kind::Stepped => Quota::TokenBucket(
                    TokenBucket::new(rate, u32::try_from(burst).unwrap(), Nanos::ZERO, Nanos::new(1)).ok()?,
                ),
                Kind::Window => Quota::SlidingWindow(SlidingWindow::new(rate)),
                Kind::Log => Quota::SlidingLog(SlidingLog::new(rate).ok()?),
                Kind::Fixed => Quota::FixedWindow(FixedWindow::new(rate)),
            })
        };
        let (Some(one), Some(other)) = (quota(counts.0), quota(counts.1)) else {
            return Ok(());
        };
        let mut cell = one.empty_cell();
        for (time, cost) in steps {
            let now = Now { mono: Nanos::new(time), wall: Nanos::new(time) };
            let cost = u32::try_from(cost).unwrap();
            let verdict = one.judge(Some(&cell), cost, now);
            prop_assert!(verdict.remaining <= verdict.limit);
            prop_assert!(!verdict.allowed || cost <= one.limit());
            prop_assert_eq!(verdict.retry_after.is_none(), cost > one.limit());
            // Also charges that do not fit: a store may learn late of what it admitted before.
            one.charge(&mut cell, cost, now);
            other.judge(Some(&other.convert(&WindowLengths::of([&other]), &one, cell.clone(), now)), cost, now);
            one.is_idle(&cell, now);
        }
    }

    /// A clock that runs back causes no panic, and locks no key out for longer than one full refill or window (two for a
    /// sliding window) after the latest time of the schedule, or a second if that is longer.
    #[test]
    fn a_clock_that_runs_back_locks_out_no_key(case in case(), steps in steps(true)) {
        let quota = case.quota();
        let (mut cell, mut offset, mut latest) = (quota.empty_cell(), 0i64, 0i64);
        for step in schedule(&case, &steps) {
            offset = offset.saturating_add(step.pause);
            latest = latest.max(offset);
            let now = at(offset);
            let verdict = quota.judge(Some(&cell), step.cost, now);
            prop_assert!(verdict.remaining <= verdict.limit);
            if verdict.allowed {
                quota.charge(&mut cell, step.cost, now);
            }
        }
        let windows = if case.kind == Kind::Window { 2 } else { 1 };
        let refill = quota.window().saturating_mul(windows).saturating_add(Nanos::new(case.step));
        prop_assert!(quota.is_idle(&cell, later(at(latest), refill)));
        // The wall clock is set by others, so there it also holds after the present time, however far the step.
        if matches!(case.kind, Kind::Window | Kind::Fixed) {
            let wait = quota.window().saturating_mul(windows + 1).max(Nanos::from_secs(3));
            let retry = quota.judge(Some(&cell), case.limit(), at(offset)).retry_after.unwrap();
            prop_assert!(retry <= wait);
            let then = quota.judge(Some(&cell), case.limit(), later(at(offset), retry));
            prop_assert!(then.allowed);
        }
    }

    /// A cell that has refilled gives the same verdicts as an absent one, whatever is charged later.
    #[test]
    fn an_idle_cell_equals_an_absent_one(case in case(), before in steps(false), after in steps(false)) {
        let quota = case.quota();
        let (mut cell, mut offset) = (quota.empty_cell(), 0i64);
        for step in schedule(&case, &before) {
            offset += step.pause;
            if quota.judge(Some(&cell), step.cost, at(offset)).allowed {
                quota.charge(&mut cell, step.cost, at(offset));
            }
        }
        let reset = quota.judge(Some(&cell), 0, at(offset)).reset;
        offset += i64::try_from(reset.get()).unwrap();
        prop_assert!(quota.is_idle(&cell, at(offset)));
        let mut fresh: Option<Cell> = None;
        for step in schedule(&case, &after) {
            offset += step.pause;
            let now = at(offset);
            let (old, new) =
                (quota.judge(Some(&cell), step.cost, now), quota.judge(fresh.as_ref(), step.cost, now));
            prop_assert_eq!(old, new);
            if old.allowed {
                quota.charge(&mut cell, step.cost, now);
                quota.charge(fresh.get_or_insert_with(|| quota.empty_cell()), step.cost, now);
            }
        }
    }

    /// After a change of the limit, the same units are spent (a bucket may round up by one), but at most a full bucket.
    #[test]
    fn spent_units_stay_spent_when_the_limit_changes(case in case(), steps in steps(false), other in 1u32..60) {
        let old = case.quota();
        let changed = Case { count: other, burst: other, step: 0, ..case };
        let changed = if case.kind == Kind::Stepped { Case { kind: Kind::Bucket, ..changed } } else { changed };
        let new = changed.quota();
        let (mut cell, mut offset) = (old.empty_cell(), 0i64);
        for step in schedule(&case, &steps) {
            offset += step.pause;
            if old.judge(Some(&cell), step.cost, at(offset)).allowed {
                old.charge(&mut cell, step.cost, at(offset));
            }
        }
        let now = at(offset);
        let left = old.judge(Some(&cell), 0, now).remaining;
        let spent = old.limit() - left;
        let converted = new.convert(&WindowLengths::of([&new]), &old, cell, now);
        let left = new.judge(Some(&converted), 0, now).remaining;
        let expected = new.limit().saturating_sub(spent);
        // A bucket counts full units only in what is left: a partial unit may count on either side.
        let slack = u32::from(matches!(case.kind, Kind::Bucket | Kind::Stepped));
        prop_assert!(left.abs_diff(expected) <= slack, "{left} left, {expected} expected");
    }
}

/// Two threads charge alternately, and one of them read the clock some windows ago: it neither drops what the other has
/// counted, nor are its own charges lost.
#[test]
fn a_thread_that_is_windows_late_is_counted() {
    let rate = Rate::new(5, Nanos::from_millis(10)).unwrap();
    for quota in
        [Quota::FixedWindow(FixedWindow::new(rate)), Quota::SlidingWindow(SlidingWindow::new(rate))]
    {
        for late in [10, 11, 20, 1_000] {
            let at = |millis: u64| Now {
                mono: Nanos::from_millis(3_600_000 + millis),
                wall: Nanos::from_millis(1_800_057_600_000 + millis),
            };
            let mut cell = quota.empty_cell();
            let admitted = (0..100).filter(|n| {
                let now = if n % 2 == 0 { at(2_005) } else { at(2_005 - late) };
                let verdict = quota.judge(Some(&cell), 1, now);
                if verdict.allowed {
                    quota.charge(&mut cell, 1, now);
                } else {
                    let again = at(2_005 - late * (n % 2));
                    let after = verdict.retry_after.unwrap();
                    let then = Now {
                        mono: again.mono.saturating_add(after),
                        wall: again.wall.saturating_add(after),
                    };
                    assert!(quota.judge(Some(&cell), 1, then).allowed, "{after:?}");
                }
                verdict.allowed
            });
            assert_eq!(admitted.count(), 5, "{} ms late: {}", late, quota.name());
        }
    }
}
