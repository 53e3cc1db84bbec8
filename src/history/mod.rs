//! What happened in each of the last 1,440 minutes: differences of counters that other rooms keep.
//!
//! ```text
//!   counters ──► once a minute: the difference to a minute before, by route and by limit
//! ```
//!
//! It knows neither routes nor limits, only names with numbers; it reads no counter itself. Minutes are counted on the
//! monotonic clock and get their dates when they are read, so a step of the wall clock moves all of them together and
//! neither loses nor repeats one. What must always hold: memory is bounded ([`MAX_BYTES`]), and a minute in which nothing
//! happened takes none.

mod saved_minutes;
mod series;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Nanos;
pub use saved_minutes::RestoredMinutes;
use series::{Counted, Series};

/// Minutes that are kept.
pub const MINUTES: usize = 1_440;

/// Routes with numbers of their own in one day. Those of the others are summed.
pub const MAX_ROUTES: usize = 256;

/// Limits with numbers of their own in one day.
pub const MAX_LIMITS: usize = 200;

/// The name of what has no numbers of its own. No route or limit can have this name.
pub const OTHERS: &str = "(other)";

/// What is counted of a route, in the order of its numbers.
pub const ROUTE_COUNTS: [&str; 6] =
    ["forwarded", "limited", "rejected", "failed", "redirected", "limited_authenticated"];

/// What is counted of a limit, in the order of its numbers.
pub const LIMIT_COUNTS: [&str; 4] = ["admitted", "refused", "degraded", "shadow_refused"];

/// The bytes that all minutes can take.
pub const MAX_BYTES: usize = MINUTES
    * ((MAX_ROUTES + 1) * size_of::<Counted<{ ROUTE_COUNTS.len() }>>()
        + (MAX_LIMITS + 1) * size_of::<Counted<{ LIMIT_COUNTS.len() }>>());

const MINUTE: Nanos = Nanos::from_secs(60);

/// Counters as they are now: each grows as long as the process lives.
#[derive(Clone, Debug, Default)]
pub struct TrafficTotals {
    /// By route, as [`ROUTE_COUNTS`].
    pub routes: Vec<(Arc<str>, [u64; ROUTE_COUNTS.len()])>,
    /// By limit, as [`LIMIT_COUNTS`].
    pub limits: Vec<(Arc<str>, [u64; LIMIT_COUNTS.len()])>,
}

/// One minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryMinute {
    /// When it began, since the Unix epoch.
    pub date: Nanos,
    /// Whether it is over.
    pub is_complete: bool,
    /// The sums of all routes that were asked for.
    pub total: [u64; ROUTE_COUNTS.len()],
    /// Routes in which something happened.
    pub routes: Vec<(Arc<str>, [u32; ROUTE_COUNTS.len()])>,
    /// Limits that judged something.
    pub limits: Vec<(Arc<str>, [u32; LIMIT_COUNTS.len()])>,
}

/// Which minutes are asked for.
#[derive(Clone, Copy, Debug)]
pub struct HistoryQuery<'q> {
    /// How many, the present one included.
    pub minutes: usize,
    /// Only this route, and no limits.
    pub route: Option<&'q str>,
    /// Whether routes and limits are listed, or only the sums.
    pub has_details: bool,
    /// The most routes and limits of all minutes together.
    pub max_entries: usize,
}

/// The answer would have more than the largest number of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryTooLarge;

/// The minutes of a day.
#[derive(Debug, Default)]
pub struct TrafficHistory(Mutex<Option<KeptMinutes>>);

#[derive(Debug)]
struct KeptMinutes {
    /// The time by which the first minute of the process is shorter, so that minutes begin with those of its dates.
    phase: Nanos,
    /// The present minute.
    minute: u64,
    routes: Series<{ ROUTE_COUNTS.len() }>,
    limits: Series<{ LIMIT_COUNTS.len() }>,
    /// The first minute that has numbers and was not saved since.
    unsaved_from: Option<u64>,
}

impl TrafficHistory {
    /// Keeps the minute that has ended, if one has. Housekeeping calls it all the time; `totals` runs once a minute.
    /// `date`: that of `now` (monotonic).
    pub fn advance(&self, now: Nanos, date: Nanos, totals: impl FnOnce() -> TrafficTotals) {
        let mut kept = self.0.lock();
        let kept = kept.get_or_insert_with(|| KeptMinutes::new(now, date));
        let minute = kept.minute_of(now);
        if minute > kept.minute {
            kept.keep(&totals());
            kept.minute = minute;
        }
    }

    /// Keeps what the present minute has until now, at the end of the process. The next process goes on with the minute.
    pub fn keep_present(&self, now: Nanos, date: Nanos, totals: &TrafficTotals) {
        let mut kept = self.0.lock();
        kept.get_or_insert_with(|| KeptMinutes::new(now, date)).keep(totals);
    }

    /// The latest minutes, the oldest first. The last is the present one.
    ///
    /// # Errors
    /// There is more to tell than the query allows.
    pub fn read(
        &self,
        query: HistoryQuery<'_>,
        now: Nanos,
        date: Nanos,
        totals: &TrafficTotals,
    ) -> Result<Vec<HistoryMinute>, HistoryTooLarge> {
        let mut kept = self.0.lock();
        let kept = kept.get_or_insert_with(|| KeptMinutes::new(now, date));
        let last = kept.minute;
        let present =
            (kept.routes.unended(last, &totals.routes), kept.limits.unended(last, &totals.limits));
        let first = (last + 1).saturating_sub(query.minutes.min(MINUTES) as u64);
        let (mut minutes, mut entries) = (Vec::new(), 0_usize);
        for number in first..=last {
            let (routes, limits) = match number == last {
                true => present.clone(),
                false => (kept.routes.minute(number), kept.limits.minute(number)),
            };
            let is_wanted =
                |(name, _): &(Arc<str>, _)| query.route.is_none_or(|route| **name == *route);
            let mut routes: Vec<_> = routes.into_iter().filter(is_wanted).collect();
            let mut total = [0; ROUTE_COUNTS.len()];
            for (_, counts) in &routes {
                total.iter_mut().zip(counts).for_each(|(sum, count)| *sum += u64::from(*count));
            }
            let mut limits = if query.route.is_some() { Vec::new() } else { limits };
            if !query.has_details {
                (routes, limits) = (Vec::new(), Vec::new());
            }
            entries += routes.len() + limits.len();
            if entries > query.max_entries {
                return Err(HistoryTooLarge);
            }
            let began = kept.begin_of(number);
            minutes.push(HistoryMinute {
                date: date.saturating_sub(now.saturating_sub(began)),
                is_complete: number < last,
                total,
                routes,
                limits,
            });
        }
        Ok(minutes)
    }
}

impl KeptMinutes {
    fn new(now: Nanos, date: Nanos) -> Self {
        let phase = Nanos::new(date.saturating_sub(now).get() % MINUTE.get());
        let mut kept = Self {
            phase,
            minute: 0,
            routes: Series::new(MAX_ROUTES),
            limits: Series::new(MAX_LIMITS),
            unsaved_from: None,
        };
        kept.minute = kept.minute_of(now);
        kept
    }

    /// Adds what was counted since the last call to the present minute.
    fn keep(&mut self, totals: &TrafficTotals) {
        self.routes.end_minute(self.minute, &totals.routes);
        self.limits.end_minute(self.minute, &totals.limits);
        self.unsaved_from.get_or_insert(self.minute);
    }

    fn minute_of(&self, now: Nanos) -> u64 {
        now.saturating_add(self.phase).get() / MINUTE.get()
    }

    /// When a minute begins, on the monotonic clock. The first one begins with the process.
    fn begin_of(&self, minute: u64) -> Nanos {
        Nanos::new(minute.saturating_mul(MINUTE.get())).saturating_sub(self.phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Nanos = Nanos::from_secs(1_800_000_000);
    const ALL: HistoryQuery<'_> =
        HistoryQuery { minutes: MINUTES, route: None, has_details: true, max_entries: usize::MAX };

    fn totals(forwarded: u64, limited: u64, refused: u64) -> TrafficTotals {
        TrafficTotals {
            routes: vec![("site".into(), [forwarded, limited, 0, 0, 0, limited])],
            limits: vec![("writes".into(), [forwarded, refused, 0, 0])],
        }
    }

    fn secs(n: u64) -> Nanos {
        Nanos::from_secs(n)
    }

    /// The dates of the minutes since the first date of the test, with what was forwarded.
    fn forwarded(minutes: &[HistoryMinute]) -> Vec<(i64, u64)> {
        let since = |date: Nanos| date.secs() as i64 - EPOCH.secs() as i64;
        minutes.iter().map(|minute| (since(minute.date), minute.total[0])).collect()
    }

    #[test]
    fn minutes_are_those_of_the_clock_and_the_last_goes_on() {
        let history = TrafficHistory::default();
        // It starts 20 seconds before a full minute.
        let date = |now: Nanos| EPOCH.saturating_sub(secs(20)).saturating_add(now);
        let advance = |at: u64, total: TrafficTotals| {
            history.advance(secs(at), date(secs(at)), || total);
        };
        advance(0, TrafficTotals::default());
        advance(19, totals(99, 0, 0));
        advance(20, totals(5, 1, 1));
        advance(80, totals(12, 1, 1));
        advance(140, totals(12, 1, 1));
        let now = secs(150);
        let read = history.read(ALL, now, date(now), &totals(15, 4, 4)).unwrap();
        assert_eq!(forwarded(&read), [(-20, 5), (0, 7), (60, 0), (120, 3)]);
        assert_eq!(read[0].routes, [("site".into(), [5, 1, 0, 0, 0, 1])]);
        assert_eq!(read[0].limits, [("writes".into(), [5, 1, 0, 0])]);
        assert!(read[2].routes.is_empty() && read[2].limits.is_empty());
        assert_eq!(read[3].total, [3, 3, 0, 0, 0, 3]);
        let complete: Vec<bool> = read.iter().map(|minute| minute.is_complete).collect();
        assert_eq!(complete, [true, true, true, false]);
        let ask = |query| history.read(query, now, date(now), &totals(15, 4, 4));
        let other = ask(HistoryQuery { route: Some("x"), minutes: 2, ..ALL }).unwrap();
        assert_eq!(forwarded(&other), [(60, 0), (120, 0)]);
        let sums = ask(HistoryQuery { has_details: false, max_entries: 0, ..ALL }).unwrap();
        assert!(sums.iter().all(|minute| minute.routes.is_empty() && minute.limits.is_empty()));
        assert_eq!(forwarded(&sums), forwarded(&read));
        assert_eq!(ask(HistoryQuery { max_entries: 5, ..ALL }), Err(HistoryTooLarge));
        assert!(ask(HistoryQuery { max_entries: 6, ..ALL }).is_ok());
    }

    /// A date that is set a day ahead, then back: no minute is lost or counted twice, and none is in the future.
    #[test]
    fn a_turned_clock_moves_all_minutes_together() {
        let history = TrafficHistory::default();
        let day = secs(86_400);
        let mut now = Nanos::ZERO;
        let mut sent = 0;
        let mut expected = Vec::new();
        for minute in 0..30_u64 {
            let date = match minute {
                10..20 => EPOCH.saturating_add(now).saturating_add(day),
                _ => EPOCH.saturating_add(now),
            };
            history.advance(now, date, || totals(sent, 0, 0));
            sent += minute;
            expected.push(minute);
            now = now.saturating_add(MINUTE);
            let read = history.read(ALL, now, date, &totals(sent, 0, 0)).unwrap();
            let counted: Vec<u64> = read.iter().map(|minute| minute.total[0]).collect();
            assert_eq!(counted, expected);
            let dates: Vec<Nanos> = read.iter().map(|minute| minute.date).collect();
            let steps = dates.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
            assert!(steps.into_iter().all(|step| step == MINUTE), "{dates:?}");
            assert!(dates.last().is_some_and(|last| *last <= date), "{dates:?}");
        }
    }

    #[test]
    fn a_day_is_kept_and_a_pause_is_no_gap() {
        let history = TrafficHistory::default();
        let at = |minute: u64| MINUTE.saturating_mul(minute);
        let advance = |minute: u64, sent: u64| {
            history.advance(at(minute), EPOCH.saturating_add(at(minute)), || totals(sent, 0, 0));
        };
        advance(0, 0);
        (1..=2_000).for_each(|minute| advance(minute, minute));
        // Nobody keeps house for three minutes.
        advance(2_004, 2_500);
        let now = at(2_004);
        let read = history.read(ALL, now, EPOCH.saturating_add(now), &totals(2_500, 0, 0)).unwrap();
        assert_eq!(read.len(), MINUTES);
        let sums: Vec<u64> = read.iter().map(|minute| minute.total[0]).collect();
        assert!(sums[..MINUTES - 5].iter().all(|sum| *sum == 1), "{sums:?}");
        assert_eq!(sums[MINUTES - 5..], [500, 0, 0, 0, 0]);
    }
}
