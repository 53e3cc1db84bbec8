//! The traffic history in a state directory: minutes that come back, what a save writes, clocks that were set, and payloads
//! that nobody wrote.

use std::sync::Arc;

use tollgate::clock::{Clock as _, ManualClock, Nanos};
use tollgate::history::{
    HistoryMinute, HistoryQuery, MAX_LIMITS, MAX_ROUTES, MINUTES, TrafficHistory, TrafficTotals,
};

use crate::disk::SimulatedDisk;
use crate::node::{EPOCH, Node};

const POLICY: &str = "routes: [{ name: all }]";
const MINUTE: Nanos = Nanos::from_secs(60);
const ALL: HistoryQuery<'_> =
    HistoryQuery { minutes: MINUTES, route: None, has_details: true, max_entries: usize::MAX };

/// Counters of a process that has forwarded so many requests.
fn totals(forwarded: u64) -> TrafficTotals {
    TrafficTotals {
        routes: vec![("site".into(), [forwarded, 0, 0, 0, 0, 0])],
        limits: vec![("writes".into(), [forwarded, forwarded / 2, 0, 0])],
    }
}

fn read(history: &TrafficHistory, now: Nanos, date: Nanos, sent: u64) -> Vec<HistoryMinute> {
    history.read(ALL, now, date, &totals(sent)).unwrap()
}

/// The minutes in which something was forwarded: when they began, since `EPOCH`, and how much it was.
fn forwarded(minutes: &[HistoryMinute]) -> Vec<(i64, u64)> {
    let since = |date: Nanos| date.get().cast_signed() - EPOCH.get().cast_signed();
    let counted = minutes.iter().filter(|minute| minute.total[0] > 0);
    counted.map(|minute| (since(minute.date) / 1_000_000_000, minute.total[0])).collect()
}

/// A node with the counters of its process.
struct Process {
    node: Node,
    clock: Arc<ManualClock>,
    sent: u64,
}

impl Process {
    fn start(disk: &SimulatedDisk, clock: &Arc<ManualClock>, min_round: u64) -> Self {
        let mut node = Node::start(POLICY, clock, disk);
        node.saver = node.saver.with_min_round(min_round);
        Self { node, clock: Arc::clone(clock), sent: 0 }
    }

    fn now(&self) -> (Nanos, Nanos) {
        let now = self.clock.now();
        (now.mono, self.clock.date(now))
    }

    /// Forwards requests, then lets time pass.
    fn send(&mut self, requests: u64, span: Nanos) {
        self.sent += requests;
        self.clock.advance(span);
        let (now, date) = self.now();
        self.node.history.advance(now, date, || totals(self.sent));
        self.node.saver.step(false);
    }

    fn end(mut self) {
        let (now, date) = self.now();
        self.node.history.keep_present(now, date, &totals(self.sent));
        assert!(self.node.saver.finish());
    }

    fn read(&self) -> Vec<HistoryMinute> {
        let (now, date) = self.now();
        read(&self.node.history, now, date, self.sent)
    }
}

#[test]
fn minutes_come_back_and_the_one_that_had_begun_goes_on() {
    for min_round in [1, u64::MAX] {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let disk = SimulatedDisk::new(1);
        let mut expected = Vec::new();
        let mut disks = vec![disk];
        for start in 0..4_u64 {
            let mut process = Process::start(disks.last().unwrap(), &clock, min_round);
            assert_eq!(process.node.unreadable, 0);
            assert_eq!(forwarded(&process.read()), expected, "round {min_round}, start {start}");
            // Each process begins and ends in the middle of a minute.
            let began = (process.now().1.secs() - EPOCH.secs()) as i64 / 60;
            for minute in 0..100_i64 {
                process.send(3, MINUTE);
                add(&mut expected, (began + minute) * 60, 3);
            }
            process.send(2, Nanos::from_secs(10));
            add(&mut expected, (began + 100) * 60, 2);
            assert_eq!(forwarded(&process.read()), expected);
            process.end();
            disks.push(disks.last().unwrap().after_power_loss());
            clock.advance(Nanos::from_secs(15));
        }
        let last = Process::start(disks.last().unwrap(), &clock, min_round).read();
        let of_one = last.iter().find(|minute| minute.total[0] == 3).unwrap();
        assert_eq!(of_one.routes, [("site".into(), [3, 0, 0, 0, 0, 0])]);
        assert_eq!(&*of_one.limits[0].0, "writes");
    }
}

/// Adds to the last minute, or begins one.
fn add(expected: &mut Vec<(i64, u64)>, began: i64, sent: u64) {
    match expected.last_mut() {
        Some((last, count)) if *last == began => *count += sent,
        _ => expected.push((began, sent)),
    }
}

#[test]
fn a_crash_loses_the_minute_that_had_begun() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let disk = SimulatedDisk::new(1);
    let mut process = Process::start(&disk, &clock, u64::MAX);
    (0..5).for_each(|_| process.send(7, MINUTE));
    process.send(9, Nanos::from_secs(30));
    let after = Process::start(&disk.after_kill(), &clock, u64::MAX);
    assert_eq!(forwarded(&after.read()), [(0, 7), (60, 7), (120, 7), (180, 7), (240, 7)]);
}

#[test]
fn a_minute_is_written_once_and_a_quiet_one_never() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let disk = SimulatedDisk::new(1);
    let mut process = Process::start(&disk, &clock, u64::MAX);
    (0..1_000).for_each(|_| process.send(3, MINUTE));
    let written = process.node.metrics.written();
    process.send(3, MINUTE);
    let of_one = process.node.metrics.written() - written;
    assert!((1..300).contains(&of_one), "{of_one} bytes for a minute among a thousand");
    let written = process.node.metrics.written();
    (0..500).for_each(|_| process.send(0, Nanos::from_millis(100)));
    (0..5).for_each(|_| process.send(0, MINUTE));
    assert_eq!(process.node.metrics.written(), written);
}

/// Minutes that a history has saved, as payloads.
fn saved(history: &TrafficHistory) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    history.save(true, |payload| payloads.push(payload.to_vec()));
    payloads
}

fn restored(payloads: &[Vec<u8>], now: Nanos, date: Nanos) -> TrafficHistory {
    let history = TrafficHistory::default();
    let mut minutes = history.restorer(now, date);
    payloads.iter().for_each(|payload| minutes.read(payload));
    assert_eq!(minutes.unreadable(), 0);
    history.restore(minutes);
    history
}

/// A history of two hours with one request in the first minute, two in the second, and so on, at its end.
fn two_hours(now: Nanos, date: Nanos) -> TrafficHistory {
    let history = TrafficHistory::default();
    let mut sent = 0;
    for minute in 0..=120 {
        let ago = MINUTE.saturating_mul(120 - minute);
        let (now, date) = (now.saturating_sub(ago), date.saturating_sub(ago));
        history.advance(now, date, || totals(sent));
        sent += minute + 1;
    }
    history
}

/// The date was set while nothing ran: every minute is as old as before, give or take half a minute, in its order, and
/// begins with a minute of the new clock.
#[test]
fn a_date_that_was_set_meanwhile_moves_no_minute_by_more_than_half_of_one() {
    let now = Nanos::from_secs(100_000);
    let date = EPOCH.saturating_add(Nanos::from_secs(40));
    let payloads = saved(&two_hours(now, date));
    for down in [0, 1, 59, 3_600] {
        let now = now.saturating_add(Nanos::from_secs(down));
        for secs in (-90..90).step_by(7).chain([-86_400, 86_400, -1_800_000_000, 3_000_000_000]) {
            let date = date.saturating_add(Nanos::from_secs(down)).get();
            let date = Nanos::new(date.saturating_add_signed(secs * 1_000_000_000));
            let minutes = read(&restored(&payloads, now, date), now, date, 0);
            let found: Vec<&HistoryMinute> =
                minutes.iter().filter(|minute| minute.total[0] > 0).collect();
            let sum: u64 = found.iter().map(|minute| minute.total[0]).sum();
            assert_eq!(sum, (1..=120).sum::<u64>(), "{down} {secs}");
            for minute in found {
                assert!(date < MINUTE || minute.date.get() % MINUTE.get() == 0, "{down} {secs}");
                // Its age as it was: the minute with n requests began 121 - n minutes before the last one.
                let age = down as i64 + 40 + (121 - minute.total[0].cast_signed()) * 60;
                let found = (date.secs().cast_signed()) - minute.date.secs().cast_signed();
                let is_near = (found - age).abs() <= 30 || found < 60;
                assert!(is_near || date < now, "{down} {secs}: {found} for {age}");
            }
        }
    }
}

/// The clock of the process before is lost: its minutes would lie in the future, or a day back.
#[test]
fn minutes_outside_of_the_day_are_left_out() {
    let now = Nanos::from_secs(100_000);
    let payloads = saved(&two_hours(now, EPOCH));
    for now in
        [Nanos::ZERO, Nanos::from_secs(50_000), Nanos::from_secs(300_000), Nanos::new(u64::MAX)]
    {
        let history = restored(&payloads, now, EPOCH);
        let minutes = read(&history, now, EPOCH, 0);
        assert!(forwarded(&minutes).is_empty(), "{now:?}");
        history.advance(now, EPOCH, || totals(1));
    }
}

/// Processes whose clocks disagree by a part of a minute, one after the other: no request is lost, none is counted twice.
#[test]
fn minutes_of_several_grids_are_added_up() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut now, mut log, mut sum) = (Nanos::from_secs(100_000), Vec::new(), 0);
        for _ in 0..random.u32(2..6) {
            now = now.saturating_add(Nanos::from_secs(30));
            let date = EPOCH.saturating_add(Nanos::from_secs(random.u64(..60)));
            let offset = date.saturating_sub(now);
            let history = restored(&log, now, date);
            let found: u64 =
                read(&history, now, date, 0).iter().map(|minute| minute.total[0]).sum();
            assert_eq!(found, sum, "seed {seed}");
            let mut sent = 0;
            for _ in 0..random.u32(1..8) {
                sent += random.u64(..5);
                now = now.saturating_add(Nanos::from_secs(random.u64(..90)));
                history.advance(now, now.saturating_add(offset), || totals(sent));
                // As the saver does: what is new, and at times everything.
                history.save(random.u8(..4) == 0, |payload| log.push(payload.to_vec()));
            }
            history.keep_present(now, now.saturating_add(offset), &totals(sent));
            history.save(false, |payload| log.push(payload.to_vec()));
            sum += sent;
        }
    }
}

#[test]
fn the_largest_day_comes_back_and_takes_several_payloads() {
    let history = TrafficHistory::default();
    let name = |kind: &str, n: usize| format!("{kind}-{n:058}").into();
    let counted = |minute: u64| TrafficTotals {
        routes: (0..MAX_ROUTES + 9).map(|n| (name("route", n), [minute * 70_000; 6])).collect(),
        limits: (0..MAX_LIMITS + 9).map(|n| (name("limit", n), [minute * 70_000; 4])).collect(),
    };
    let at = |minute: u64| MINUTE.saturating_mul(10_000 + minute);
    for minute in 0..=MINUTES as u64 {
        history.advance(at(minute), EPOCH, || counted(minute));
    }
    let payloads = saved(&history);
    assert_eq!(payloads.len(), MINUTES / 60);
    let largest = payloads.iter().map(Vec::len).max().unwrap();
    assert!(largest < 1 << 20, "{largest}");
    let now = at(MINUTES as u64);
    let again = restored(&payloads, now, EPOCH);
    let read = |history: &TrafficHistory, totals: &TrafficTotals| {
        history.read(ALL, now, EPOCH, totals).unwrap()
    };
    let (before, after) =
        (read(&history, &counted(MINUTES as u64)), read(&again, &TrafficTotals::default()));
    assert!(before[700].routes.len() == MAX_ROUTES + 1 && before == after);
}

#[test]
fn hostile_payloads_are_bounded_and_never_a_panic() {
    let now = Nanos::from_secs(100_000);
    let whole = saved(&two_hours(now, EPOCH));
    let (mut left_out, mut kept) = (0, 0);
    for seed in 0..20_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut payload = whole[random.usize(..whole.len())].clone();
        match random.u8(..4) {
            0 => payload = (0..random.usize(..300)).map(|_| random.u8(..)).collect(),
            1 => payload.truncate(random.usize(..payload.len())),
            _ => (0..random.usize(1..8)).for_each(|_| {
                // The head decides over everything behind it.
                let end = if random.bool() { 40 } else { payload.len() };
                payload[random.usize(..end)] = if random.bool() { 0xff } else { random.u8(..) };
            }),
        }
        let history = TrafficHistory::default();
        let mut minutes = history.restorer(now, EPOCH);
        minutes.read(&payload);
        minutes.read(&payload);
        left_out += minutes.unreadable();
        history.restore(minutes);
        let read = history.read(ALL, now, EPOCH, &TrafficTotals::default()).unwrap();
        kept += u64::from(read.iter().any(|minute| minute.total[0] > 0));
        assert!(read.iter().all(|minute| minute.routes.len() <= MAX_ROUTES + 1));
        history.advance(now.saturating_add(MINUTE), EPOCH, || totals(1));
    }
    assert!(left_out > 1_000 && kept > 300, "{left_out} {kept}");
}
