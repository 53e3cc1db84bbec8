//! The script of the remote store against the algorithms of the embedded one, on the same random
//! schedules of a clock that is turned by hand.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate::clock::{Nanos, Now};
use tollgate::limit::{
    Cell, FixedWindow, MICROSECOND, Quota, Rate, Receipt, SlidingLog, SlidingWindow, TokenBucket,
    Verdict, WindowLengths,
};
use tollgate::policy::KeyHash;
use tollgate::store::redis::{Call, CellCharge, Operation, StoreCharge};
use tollgate::store::{CellBudget, EmbeddedStore, IssuedQuota, QuotaSpec};

use support::lua::{Kept, Server};

/// The edge of a window of every period used, in microseconds.
const BEGIN: u64 = 1_800_057_600_000_000;

fn now(micros: u64) -> Now {
    let now = MICROSECOND.saturating_mul(micros);
    Now { mono: now, wall: now }
}

fn key(n: usize) -> KeyHash {
    KeyHash { high: 7, low: n as u64 }
}

fn issue(quota: Quota, windows: WindowLengths) -> Arc<IssuedQuota> {
    let claim = QuotaSpec {
        quota,
        windows,
        budget: Arc::<CellBudget>::default(),
        denies_after_crash: false,
    };
    EmbeddedStore::default().issue(claim, None)
}

fn spend(n: usize, quota: Quota, cost: u32) -> CellCharge {
    spend_in(n, quota, WindowLengths::of([&quota]), cost)
}

/// `windows`: of all rates of the limit.
fn spend_in(n: usize, quota: Quota, windows: WindowLengths, cost: u32) -> CellCharge {
    CellCharge::new(key(n), None, issue(quota, windows), cost)
}

fn charge(spends: impl IntoIterator<Item = CellCharge>) -> StoreCharge {
    StoreCharge { operation: Operation::Charge, cell_charges: spends.into_iter().collect() }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bucket,
    Window,
    Log,
    Fixed,
}

/// Numbers of a quota: units, milliseconds, burst, steps of a refill.
type Numbers = (u32, u64, u32, u64);

fn quota(kind: Kind, (count, period, burst, steps): Numbers) -> Quota {
    let rate = Rate::new(count, Nanos::from_millis(period)).unwrap();
    match kind {
        Kind::Bucket => {
            let each = period * 1_000 / u64::from(count) * steps;
            let whole = each * u64::from(count) == period * 1_000 * steps;
            let step = if whole && steps <= u64::from(count) { each } else { 0 };
            let step = MICROSECOND.saturating_mul(step);
            let made = TokenBucket::new(rate, burst, step, MICROSECOND);
            Quota::TokenBucket(made.unwrap_or_else(|_| {
                TokenBucket::new(Rate::PER_SECOND, burst, Nanos::ZERO, MICROSECOND).unwrap()
            }))
        }
        Kind::Window => Quota::SlidingWindow(SlidingWindow::new(rate)),
        Kind::Log => Quota::SlidingLog(SlidingLog::new(rate).unwrap()),
        Kind::Fixed => Quota::FixedWindow(FixedWindow::new(rate)),
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Bucket), Just(Kind::Window), Just(Kind::Log), Just(Kind::Fixed)]
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let periods = prop_oneof![Just(8u64), Just(1_000), Just(7_000), Just(60_000), Just(3_600_000)];
    (1u32..40, periods, 1u32..40, 0u64..4)
}

/// One limit's part of a charge: which cell, under which rate, the windows of its limit, the cost.
type Part = (usize, Quota, WindowLengths, u32);

/// The embedded algorithms on cells that are kept as a store keeps them: read as the rate that asks,
/// and written so when a charge is spent.
#[derive(Default)]
struct Oracle(Vec<Option<(Quota, Cell)>>);

impl Oracle {
    fn cell(&self, (n, quota, windows, _): &Part, now: Now) -> Cell {
        match self.0.get(*n) {
            // One that is idle has gone.
            Some(Some((old, cell))) if !old.is_idle(cell, now) => {
                match quota.name() == "token_bucket" && quota.can_read(old) {
                    true => cell.clone(),
                    false => quota.convert(windows, old, cell.clone(), now),
                }
            }
            _ => quota.empty_cell_for(windows, now),
        }
    }

    fn settle(&mut self, parts: &[Part], now: Now) -> (bool, Vec<Verdict>) {
        for part in parts {
            // What a window or a bucket begins with is read once.
            let cell = self.cell(part, now);
            if let Some(Some(kept)) = self.0.get_mut(part.0)
                && !kept.0.is_idle(&kept.1, now)
            {
                *kept = (part.1, cell);
            }
        }
        let judged = |one: &Self, part: &Part, cost: u32| {
            part.1.judge(Some(&one.cell(part, now)), cost, now)
        };
        let mut verdicts: Vec<Verdict> =
            parts.iter().map(|part| judged(self, part, part.3)).collect();
        let spent = verdicts.iter().all(|verdict| verdict.allowed);
        for (part, verdict) in parts.iter().zip(&mut verdicts) {
            if spent {
                let (n, quota, _, cost) = part;
                let mut cell = self.cell(part, now);
                quota.charge(&mut cell, *cost, now);
                self.0.resize(self.0.len().max(n + 1), None);
                self.0[*n] = Some((*quota, cell));
            } else if verdict.allowed {
                *verdict = judged(self, part, 0);
            }
        }
        (spent, verdicts)
    }

    /// As the embedded store gives back: a bucket does so under all its rates.
    fn give_back(&mut self, part: &Part, units: u32, receipt: Receipt, now: Now) {
        let (n, quota, windows, _) = part;
        let cell = self.cell(part, now);
        let Some(Some((old, kept))) = self.0.get_mut(*n) else { return };
        match kept {
            Cell::Buckets(_) => {}
            Cell::Bucket(_) if !quota.can_read(old) => return,
            _ => (*old, *kept) = (*quota, cell),
        }
        quota.refund(windows, kept, units, receipt, now);
    }

    /// Microseconds after which the cell equals an absent one, rounded up.
    fn idle_at(&self, n: usize, at: u64) -> Option<u64> {
        let (quota, cell) = self.0.get(n)?.as_ref()?;
        if quota.is_idle(cell, now(at)) {
            return None;
        }
        let (mut low, mut high) = (at, at + 400 * 86_400 * 1_000_000);
        while low < high {
            let middle = low.midpoint(high);
            if quota.is_idle(cell, now(middle)) { high = middle } else { low = middle + 1 }
        }
        Some(low)
    }
}

#[derive(Clone, Debug)]
struct Step {
    /// Thousandths of the first quota's period.
    pause: u64,
    /// Which of two generations of the limits charges.
    generation: bool,
    /// Which cells, as bits, and what each costs.
    cells: u8,
    costs: [u32; 3],
    /// How many equal charges stand in the call.
    many: usize,
    /// Which of the earlier charges is given back after it, and how many units.
    back: Option<(prop::sample::Index, u32)>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause =
        prop_oneof![4 => Just(0u64), 8 => 0u64..200, 2 => 200u64..1_500, 1 => 1_500u64..9_000];
    let back = prop::option::weighted(0.4, (any::<prop::sample::Index>(), 1u32..12));
    let step = (
        pause,
        prop::bool::weighted(0.2),
        1u8..8,
        prop::array::uniform3(1u32..12),
        1usize..6,
        back,
    )
        .prop_map(|(pause, generation, cells, costs, many, back)| Step {
            pause,
            generation,
            cells,
            costs,
            many,
            back,
        });
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    /// Three limits of any kinds under two generations of numbers, several charges in a call: the
    /// script and the embedded algorithms say the same of each charge, and a cell ends when it
    /// equals an absent one.
    #[test]
    fn the_script_answers_as_the_embedded_store_does(
        kinds in prop::array::uniform3(kinds()),
        one_limit in any::<bool>(),
        returns in prop::array::uniform3(any::<bool>()),
        before in prop::array::uniform3(numbers()),
        mut after in prop::array::uniform3(numbers()),
        steps in steps(),
    ) {
        for n in 0..3 {
            // What has left a log's window is gone, and does not come back with a longer one; a
            // cell lives up to 2 ms longer, in which it would.
            if kinds[n] == Kind::Log {
                after[n].1 = before[n].1;
            }
        }
        let server = Server::new();
        let mut oracle = Oracle::default();
        let mut at = BEGIN;
        let mut open: Vec<(Part, Receipt, u64, u64)> = Vec::new();
        for step in steps {
            at += step.pause * before[0].1;
            server.set_time(at);
            let numbers = if step.generation { &after } else { &before };
            let parts: Vec<Part> = (0..3)
                .filter(|n| step.cells & (1 << n) != 0)
                .map(|n| {
                    let quota = |numbers| quota(kinds[n], numbers).with_refunds(returns[n]);
                    let rates = [before[n], after[n]].map(quota);
                    let quota = quota(numbers[n]);
                    let windows =
                        if one_limit { WindowLengths::of(&rates) } else { WindowLengths::of([&quota]) };
                    (n, quota, windows, step.costs[n])
                })
                .collect();
            let spends = || {
                parts.iter().map(|(n, quota, windows, cost)| {
                    spend_in(*n, *quota, windows.clone(), *cost)
                })
            };
            let charges: Vec<StoreCharge> = (0..step.many).map(|_| charge(spends())).collect();
            for answered in server.settle(&charges) {
                let (spent, verdicts) = oracle.settle(&parts, now(at));
                prop_assert_eq!(answered.at, at);
                prop_assert_eq!(answered.charged, spent);
                prop_assert_eq!(answered.verdicts().to_vec(), &verdicts[..]);
                let told = parts.iter().zip(&verdicts).zip(&answered.cells);
                open.extend(told.filter(|_| spent).map(|((part, verdict), cell)| {
                    let receipt = part.1.receipt(verdict, part.3, now(at));
                    (part.clone(), receipt, answered.at, cell.log_chunk)
                }));
            }
            if let Some((which, units)) = step.back
                && !open.is_empty()
            {
                let (part, receipt, charged, before) = open.swap_remove(which.index(open.len()));
                let units = units.min(part.3);
                oracle.give_back(&part, units, receipt, now(at));
                let mut back = charge([spend_in(part.0, part.1, part.2, units)]);
                back.operation = Operation::Refund(charged);
                back.cell_charges[0].log_chunk = before;
                server.settle(&[back]);
            }
            for (n, ..) in &parts {
                let ends = server.get(&format!("t:{}", key(*n))).map(|(_, until)| until);
                let Some(idle) = oracle.idle_at(*n, at) else { continue };
                let ends = ends.unwrap_or(0);
                prop_assert!(ends >= idle && ends <= idle + 2_001, "ends {ends}, idle {idle}, at {at}");
            }
        }
    }

    /// What is given back was never there: a charge that is taken back some time later leaves the
    /// cells as they would be without it, or fuller, never emptier.
    #[test]
    fn what_is_given_back_was_never_there(
        kind in kinds(),
        numbers in numbers(),
        steps in steps(),
        taken_back in 0usize..40,
        later in 0usize..4,
    ) {
        let quota = quota(kind, numbers);
        let (with, without) = (Server::new(), Server::new());
        let (mut at, mut receipt) = (BEGIN, None);
        // All that is charged fits, so that both see the same.
        let room = quota.limit() / 40;
        for (n, step) in steps.iter().enumerate() {
            at += step.pause * numbers.1 / 100;
            with.set_time(at);
            without.set_time(at);
            let one = charge([spend(0, quota, step.costs[0].min(room).max(1))]);
            let answered = with.settle(std::slice::from_ref(&one)).remove(0);
            if n == taken_back {
                let order = Operation::Refund(answered.at);
                let mut back = StoreCharge { operation: order, ..one };
                back.cell_charges[0].log_chunk = answered.cells[0].log_chunk;
                receipt = answered.charged.then_some((n, back));
            } else if answered.charged {
                without.settle(std::slice::from_ref(&one));
            }
            if let Some((made, back)) = receipt.take_if(|(made, _)| *made + later <= n) {
                let _ = made;
                with.settle(&[back]);
            }
        }
        if let Some((_, back)) = receipt {
            with.settle(&[back]);
        }
        let look = |server: &Server| {
            let probe = charge([spend(0, quota, u32::MAX)]);
            server.settle(&[probe]).remove(0).cells[0].verdict
        };
        let (one, other) = (look(&with), look(&without));
        let exact = kind != Kind::Bucket;
        prop_assert!(
            if exact { one.remaining == other.remaining } else { one.remaining <= other.remaining },
            "{one:?} with, {other:?} without"
        );
    }
}

#[test]
fn a_prompt_return_to_a_bucket_is_exact() {
    let rate = Rate::new(100, Nanos::from_secs(3_600)).unwrap();
    let quota = Quota::TokenBucket(TokenBucket::new(rate, 100, Nanos::ZERO, MICROSECOND).unwrap());
    let server = Server::new();
    server.set_time(BEGIN);
    server.settle(&[charge([spend(0, quota, 10)])]);
    for n in 1..200 {
        server.set_time(BEGIN + n * 3_000);
        let one = charge([spend(0, quota, 5)]);
        let answered = server.settle(std::slice::from_ref(&one)).remove(0);
        assert!(answered.charged);
        let mut back = StoreCharge { operation: Operation::Refund(answered.at), ..one };
        back.cell_charges[0].log_chunk = answered.cells[0].log_chunk;
        server.set_time(BEGIN + n * 3_000 + 2_000);
        server.settle(&[back]);
    }
    let verdict = server.settle(&[charge([spend(0, quota, 1)])]).remove(0).cells[0].verdict;
    assert_eq!(verdict.remaining, 89);
}

#[test]
fn what_was_admitted_elsewhere_is_posted_up_to_the_limit() {
    for kind in [Kind::Bucket, Kind::Window, Kind::Log, Kind::Fixed] {
        let quota = quota(kind, (20, 3_600_000, 20, 0));
        let server = Server::new();
        server.set_time(BEGIN);
        server.settle(&[charge([spend(0, quota, 15)])]);
        let mut posted = charge([spend(0, quota, 3)]);
        posted.operation = Operation::Report;
        let told = server.settle(std::slice::from_ref(&posted)).remove(0);
        assert_eq!(told.reported, 3, "{kind:?}");
        let left = |server: &Server| {
            let answered = server.settle(&[charge([spend(0, quota, 21)])]).remove(0);
            answered.cells[0].verdict.remaining
        };
        assert_eq!(left(&server), 2, "{kind:?}");
        assert_eq!(server.settle(&[posted]).remove(0).reported, 2, "{kind:?}");
        assert_eq!(left(&server), 0, "{kind:?}: no debt");
    }
}

#[test]
fn a_clock_that_jumps_locks_nobody_out_and_forgets_nothing() {
    for kind in [Kind::Bucket, Kind::Window, Kind::Log, Kind::Fixed] {
        let quota = quota(kind, (10, 60_000, 10, 0));
        let full = || charge([spend(0, quota, 10)]);
        let one = || charge([spend(0, quota, 1)]);
        for back in [1, 1_000, 59_000_000, 61_000_000, 3_600_000_000, 86_400_000_000] {
            let server = Server::new();
            server.set_time(BEGIN + 30_000_000);
            assert!(server.settle(&[full()])[0].charged);
            // The clock is set back; then it goes on.
            let from = BEGIN + 30_000_000 - back;
            server.set_time(from);
            assert!(!server.settle(&[one()])[0].charged, "{kind:?} back by {back}: forgotten");
            server.set_time(from + 1_000_000);
            server.settle(&[one()]);
            // Two windows hold what a window pair does; a moment over an edge adds one.
            let most = match kind {
                Kind::Bucket | Kind::Log => 60_000_000,
                Kind::Window | Kind::Fixed => 180_000_000,
            };
            server.set_time(from + most + 1);
            assert!(server.settle(&[one()])[0].charged, "{kind:?} back by {back}: locked out");
        }
    }
}

#[test]
fn what_tollgate_did_not_write_is_told_and_left_alone() {
    let texts = [
        "",
        "1",
        "b1 1 2 3",
        "b1 1 2 0 0",
        "w1 -1 0 0 0",
        "w1 1 1 1 0",
        "f1 1 1 0",
        "x",
        "b1 99999999999999999999 1 1 0",
    ];
    for kind in [Kind::Bucket, Kind::Window, Kind::Fixed] {
        for text in texts {
            let server = Server::new();
            server.set_time(BEGIN);
            let name = format!("t:{}", key(1));
            server.put(&name, Kept::Text(text.to_owned()));
            let mut call = Call::default();
            let quota = quota(kind, (10, 60_000, 10, 0));
            // The cell before it can be read, and must not be written either.
            call.add(&charge([spend(0, quota, 1), spend(1, quota, 1)])).unwrap();
            let error = server.run(&call.arguments(9, "t", false)).unwrap_err().to_string();
            assert!(error.contains("was not written by tollgate"), "{text}: {error}");
            assert_eq!(server.writes(), 0);
            assert_eq!(server.get(&name).unwrap().0, Kept::Text(text.to_owned()));
        }
    }
}

#[test]
fn a_log_that_tollgate_did_not_write_is_told_or_read_without_harm() {
    let directories = [
        "",
        "x",
        "1800057600000000 60000000 1800057600;",
        "1800057600000000 60000000 1800057600;x",
        "1800057600000000 60000000 1800057600;1 1800057600000000 1 5;",
        "1800057600000000 60000000 1800057600;1 5 9 9;2 4 1 1;",
        "99999999999999999999 60000000 1800057600;1 1 1 1;",
        "1 1 1;1 1 1 1;",
    ];
    let chunks = ["", "x", "1800057600000000 5", "1800057600000000 5;", "9 9;8 8;", ";;;"];
    let quota = quota(Kind::Log, (10, 60_000, 10, 0));
    let name = format!("t:{}", key(0));
    let mut cells = vec![
        Kept::Text("w1 1 1 1 1".to_owned()),
        Kept::List(vec!["0 0".to_owned()]),
        Kept::Hash([("a".to_owned(), "b".to_owned())].into()),
    ];
    for directory in directories {
        for chunk in chunks {
            let fields = [("h", directory), ("1", chunk)];
            let fields = fields.map(|(field, text)| (field.to_owned(), text.to_owned()));
            cells.push(Kept::Hash(fields.into()));
        }
    }
    for kept in cells {
        let server = Server::new();
        server.set_time(BEGIN + 1);
        server.put(&name, kept.clone());
        let mut call = Call::default();
        call.add(&charge([spend(0, quota, 8)])).unwrap();
        let mut back = charge([spend(0, quota, 8)]);
        back.operation = Operation::Refund(BEGIN);
        call.add(&back).unwrap();
        match server.run(&call.arguments(9, "t", false)) {
            Ok(_) => {}
            Err(error) => {
                let error = error.to_string();
                let told = ["was not written by tollgate", "WRONGTYPE"];
                assert!(told.iter().any(|words| error.contains(words)), "{kept:?}: {error}");
                assert_eq!(server.writes(), 0, "{kept:?}");
            }
        }
    }
}

#[test]
fn a_refusal_writes_nothing() {
    for kind in [Kind::Bucket, Kind::Window, Kind::Log, Kind::Fixed] {
        let quota = quota(kind, (10, 60_000, 10, 0));
        let server = Server::new();
        server.set_time(BEGIN);
        server.settle(&[charge([spend(0, quota, 10), spend(1, quota, 3)])]);
        let writes = server.writes();
        let answered = server.settle(&[charge([spend(0, quota, 1), spend(1, quota, 1)])]).remove(0);
        assert!(!answered.charged);
        assert_eq!(server.writes(), writes);
        assert_eq!(answered.cells[1].verdict.remaining, 7);
    }
}

/// Numbers at the ends of what a configuration can say stay exact.
#[test]
fn the_largest_numbers_are_exact() {
    let year = 366 * 86_400_000;
    let cases = [
        (Kind::Window, (u32::MAX, year, 1, 0)),
        (Kind::Fixed, (u32::MAX, year, 1, 0)),
        (Kind::Bucket, (1, year, 99, 0)),
        (Kind::Bucket, (1_000_000, 1_000, u32::MAX, 0)),
        (Kind::Window, (4_000_000_000, 3_600_000, 1, 0)),
    ];
    for (kind, numbers) in cases {
        let quota = quota(kind, numbers);
        let server = Server::new();
        let mut oracle = Oracle::default();
        for n in 0..200u64 {
            let at = BEGIN + n * 977_777_777_771;
            server.set_time(at);
            let cost = (quota.limit() / 7).max(1);
            let answered = server.settle(&[charge([spend(0, quota, cost)])]).remove(0);
            let (spent, verdicts) =
                oracle.settle(&[(0, quota, WindowLengths::of([&quota]), cost)], now(at));
            assert_eq!(answered.charged, spent, "{kind:?} {n}");
            assert_eq!(answered.verdicts().as_slice(), verdicts.as_slice(), "{kind:?} {n}");
        }
    }
}
