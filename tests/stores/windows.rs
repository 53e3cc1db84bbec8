//! Limits whose rates have windows of different length, on both stores, beside a plain list of what
//! was charged.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate::clock::{Nanos, Now};
use tollgate::limit::{
    FixedWindow, MICROSECOND, Quota, Rate, SlidingLog, SlidingWindow, WindowLengths,
};
use tollgate::policy::KeyHash;
use tollgate::store::redis::{CellCharge, Operation, StoreCharge};
use tollgate::store::{self, CellBudget, EmbeddedStore, IssuedQuota, QuotaSpec};

use support::lua::Server;

/// The edge of every window used, in microseconds.
const BEGIN: u64 = 1_800_057_600_000_000;

const KEY: KeyHash = KeyHash { high: 7, low: 1 };

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Sliding,
    Log,
    Fixed,
}

/// Units, and a window in milliseconds.
type Numbers = (u32, u64);

fn quota(kind: Kind, (count, period): Numbers) -> Quota {
    let rate = Rate::new(count, Nanos::from_millis(period)).unwrap();
    match kind {
        Kind::Sliding => Quota::SlidingWindow(SlidingWindow::new(rate)),
        Kind::Log => Quota::SlidingLog(SlidingLog::new(rate).unwrap()),
        Kind::Fixed => Quota::FixedWindow(FixedWindow::new(rate)),
    }
}

/// One key's cell in some store.
trait Cell {
    fn new() -> Self;
    /// Where the rates of its limit are issued.
    fn issuer(&self) -> (&EmbeddedStore, &Arc<CellBudget>);
    fn charge(&mut self, quota: &Arc<IssuedQuota>, cost: u32, at: u64) -> bool;
}

struct InProcess(EmbeddedStore, Arc<CellBudget>);

impl Cell for InProcess {
    fn new() -> Self {
        let (store, room) = (EmbeddedStore::default(), Arc::<CellBudget>::default());
        store.set_budgets(1_000, &[room.bounded(None)]);
        Self(store, room)
    }

    fn issuer(&self) -> (&EmbeddedStore, &Arc<CellBudget>) {
        (&self.0, &self.1)
    }

    fn charge(&mut self, quota: &Arc<IssuedQuota>, cost: u32, at: u64) -> bool {
        let at = MICROSECOND.saturating_mul(at);
        let charge = store::EmbeddedCharge { key: KEY, quota, cost };
        let no_room = || panic!("there is room");
        self.0.settle_single(&charge, true, Now { mono: at, wall: at }, no_room).unwrap().charged
    }
}

struct Scripted(Server, EmbeddedStore, Arc<CellBudget>);

impl Cell for Scripted {
    fn new() -> Self {
        Self(Server::new(), EmbeddedStore::default(), Arc::default())
    }

    fn issuer(&self) -> (&EmbeddedStore, &Arc<CellBudget>) {
        (&self.1, &self.2)
    }

    fn charge(&mut self, quota: &Arc<IssuedQuota>, cost: u32, at: u64) -> bool {
        self.0.set_time(at);
        let spends = [CellCharge::new(KEY, None, Arc::clone(quota), cost)].into_iter().collect();
        self.0
            .settle(&[StoreCharge { operation: Operation::Charge, cell_charges: spends }])
            .remove(0)
            .charged
    }
}

/// The rates of one limit in one generation.
fn generation(cell: &impl Cell, kind: Kind, rates: &[Numbers]) -> Vec<Arc<IssuedQuota>> {
    let (store, room) = cell.issuer();
    let quotas: Vec<Quota> = rates.iter().map(|one| quota(kind, *one)).collect();
    let claim = |quota: &Quota| QuotaSpec {
        quota: *quota,
        windows: WindowLengths::of(&quotas),
        budget: Arc::clone(room),
        denies_after_crash: false,
    };
    quotas.iter().map(|quota| store.issue(claim(quota), None)).collect()
}

/// Everything that was charged: when (microseconds), and how much.
#[derive(Default)]
struct Charged(Vec<(u64, u32)>);

impl Charged {
    /// Whether nothing counts in any of these windows: the cell may have gone.
    fn is_idle<'l>(&self, kind: Kind, lengths: impl IntoIterator<Item = &'l u64>, at: u64) -> bool {
        lengths.into_iter().all(|length| self.counted(kind, (1, *length), at, 0) == 0)
    }

    /// What counts under a rate at an instant, of charges from `since` on.
    fn counted(&self, kind: Kind, (_, period): Numbers, at: u64, since: u64) -> u64 {
        let length = period * 1_000;
        let sum = |counts: &dyn Fn(u64) -> bool| -> u64 {
            let live = self.0.iter().filter(|(when, _)| *when >= since && counts(*when));
            live.map(|(_, cost)| u64::from(*cost)).sum()
        };
        match kind {
            Kind::Fixed => sum(&|when| when / length == at / length),
            Kind::Log => sum(&|when| when + length > at),
            Kind::Sliding => {
                let previous = sum(&|when| when / length + 1 == at / length);
                let covered = length - at % length;
                sum(&|when| when / length == at / length) + (previous * covered).div_ceil(length)
            }
        }
    }
}

/// Which windows the cell has, and since when each counts everything; whether it is there.
#[derive(Default)]
struct Present(std::collections::BTreeMap<u64, u64>, bool);

impl Present {
    /// A generation with these windows meets the cell. Says since when a window counts.
    fn meets(
        &mut self,
        (kind, charged): (Kind, &Charged),
        rates: &[Numbers],
        length: u64,
        at: u64,
    ) -> u64 {
        if charged.is_idle(kind, self.0.keys(), at) {
            // It may have gone, and with it what others need of it.
            *self = Self::default();
        }
        for (_, length) in rates {
            self.0.entry(*length).or_insert(at);
        }
        self.0[&length]
    }

    /// What came of it: a charge that is refused makes no cell where there was none.
    fn met(&mut self, admitted: bool) {
        self.1 |= admitted;
        if !self.1 {
            self.0.clear();
        }
    }
}

#[derive(Clone, Debug)]
struct Step {
    /// Microseconds.
    pause: u64,
    rate: usize,
    cost: u32,
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Sliding), Just(Kind::Log), Just(Kind::Fixed)]
}

fn rates() -> impl Strategy<Value = Vec<Numbers>> {
    let periods =
        prop_oneof![Just(1_000u64), Just(7_000), Just(10_000), Just(60_000), Just(600_000)];
    prop::collection::vec((1u32..40, periods), 1..5)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![
        3 => Just(0u64),
        6 => 0u64..300_000,
        3 => 300_000u64..9_000_000,
        1 => 9_000_000u64..130_000_000
    ];
    let step =
        (pause, 0usize..8, 1u32..9).prop_map(|(pause, rate, cost)| Step { pause, rate, cost });
    prop::collection::vec(step, 1..120)
}

/// Every rate admits exactly what its own window has room for, whatever was charged under others.
fn each_rate_counts_everything<C: Cell>(kind: Kind, rates: &[Numbers], steps: &[Step]) {
    let (mut cell, mut charged, mut at) = (C::new(), Charged::default(), BEGIN);
    let issued = generation(&cell, kind, rates);
    for step in steps {
        at += step.pause;
        let rate = step.rate % rates.len();
        let fits = charged.counted(kind, rates[rate], at, 0) + u64::from(step.cost)
            <= u64::from(rates[rate].0);
        let admitted = cell.charge(&issued[rate], step.cost, at);
        assert_eq!(admitted, fits, "{kind:?} {rates:?}, rate {rate} at {}", at - BEGIN);
        if admitted {
            charged.0.push((at, step.cost));
        }
    }
}

/// After a change of the rates no rate admits more than its limit in its window; windows that stay
/// go on as they were, and new ones are exact as soon as they began after the change.
fn a_change_keeps_what_was_spent<C: Cell>(
    kind: Kind,
    generations: [&[Numbers]; 3],
    steps: &[Step],
) {
    let (mut cell, mut charged, mut at) = (C::new(), Charged::default(), BEGIN);
    let issued = generations.map(|rates| generation(&cell, kind, rates));
    let each = steps.len().div_ceil(3);
    let mut present = Present::default();
    for (n, step) in steps.iter().enumerate() {
        at += step.pause;
        let now = n / each;
        let rates = generations[now];
        let rate = step.rate % rates.len();
        let numbers = rates[rate];
        let since = present.meets((kind, &charged), rates, numbers.1, at);
        let most = u64::from(numbers.0);
        let known = charged.counted(kind, numbers, at, since) + u64::from(step.cost);
        let admitted = cell.charge(&issued[now][rate], step.cost, at);
        present.met(admitted);
        let place = || format!("{kind:?} {generations:?}, {now}.{rate} at {}", at - BEGIN);
        assert!(!admitted || known <= most, "{}: {known} of {most}", place());
        // A window that began after it was there is exact.
        let length = numbers.1 * 1_000;
        let began = match kind {
            Kind::Log => at - length,
            Kind::Fixed => at / length * length,
            Kind::Sliding => (at / length - 1) * length,
        };
        if began > since + length {
            let all = charged.counted(kind, numbers, at, 0) + u64::from(step.cost);
            assert_eq!(admitted, all <= most, "{}: {all} of {most}", place());
        }
        if admitted {
            charged.0.push((at, step.cost));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn each_rate_counts_everything_in_this_process(kind in kinds(), rates in rates(), steps in steps()) {
        each_rate_counts_everything::<InProcess>(kind, &rates, &steps);
    }

    #[test]
    fn each_rate_counts_everything_in_the_script(kind in kinds(), rates in rates(), steps in steps()) {
        each_rate_counts_everything::<Scripted>(kind, &rates, &steps);
    }

    #[test]
    fn a_change_of_windows_keeps_what_was_spent_in_this_process(
        kind in kinds(), one in rates(), two in rates(), three in rates(), steps in steps(),
    ) {
        a_change_keeps_what_was_spent::<InProcess>(kind, [&one, &two, &three], &steps);
    }

    #[test]
    fn a_change_of_windows_keeps_what_was_spent_in_the_script(
        kind in kinds(), one in rates(), two in rates(), three in rates(), steps in steps(),
    ) {
        a_change_keeps_what_was_spent::<Scripted>(kind, [&one, &two, &three], &steps);
    }

    /// Two nodes on different generations, in any order: from when each has met the cell, none admits
    /// more than its limit in its window.
    #[test]
    fn generations_that_alternate_count_everything(
        kind in kinds(), one in rates(), two in rates(), steps in steps(),
    ) {
        let (mut cell, mut charged, mut at) = (Scripted::new(), Charged::default(), BEGIN);
        let all = [one, two].map(|rates| (generation(&cell, kind, &rates), rates));
        let mut present = Present::default();
        for step in steps {
            at += step.pause;
            let (issued, rates) = &all[usize::from(step.rate >= 4)];
            let rate = step.rate % rates.len();
            let since = present.meets((kind, &charged), rates, rates[rate].1, at);
            let known = charged.counted(kind, rates[rate], at, since) + u64::from(step.cost);
            let admitted = cell.charge(&issued[rate], step.cost, at);
            present.met(admitted);
            prop_assert!(!admitted || known <= u64::from(rates[rate].0));
            if admitted {
                charged.0.push((at, step.cost));
            }
        }
    }
}

/// What the table in docs/src/operating/redis.md says: a thousand as gold, one without the plan, again and again.
#[test]
fn no_order_of_plans_creates_units() {
    for kind in [Kind::Sliding, Kind::Log, Kind::Fixed] {
        let rates = [(60, 60_000), (1_000, 86_400_000)];
        let (mut one, mut other) = (InProcess::new(), Scripted::new());
        let issued = generation(&one, kind, &rates);
        let (mut gold, mut at) = ([0, 0], BEGIN + 1);
        for _ in 0..20 {
            for _ in 0..1_000 {
                gold[0] += u32::from(one.charge(&issued[1], 1, at));
                gold[1] += u32::from(other.charge(&issued[1], 1, at));
            }
            at += 180_000_000;
            one.charge(&issued[0], 1, at);
            other.charge(&issued[0], 1, at);
        }
        assert_eq!(gold, [1_000, 1_000], "{kind:?}");
    }
}

/// A key that asks under two rates in turn is refused by neither for long.
#[test]
fn plans_in_turn_lock_no_key_out() {
    let rates = [(1_000, 3_600_000), (5_000, 86_400_000)];
    let (mut one, mut other) = (InProcess::new(), Scripted::new());
    let issued = generation(&one, Kind::Sliding, &rates);
    let mut admitted = [0, 0];
    for second in 0..2 * 86_400u64 {
        let at = BEGIN + second * 1_000_000;
        let quota = &issued[(second % 2) as usize];
        admitted[0] += u32::from(one.charge(quota, 1, at));
        if second % 16 < 2 {
            admitted[1] += u32::from(other.charge(quota, 1, at));
        }
    }
    // What the hour's rate admits goes on, also when the day's is used up. (The second asks less often
    // than the hour's rate allows: half of what it asks is of that.)
    assert!((45_000..=51_000).contains(&admitted[0]), "{admitted:?}");
    assert!((10_800..=10_800 + 11_000).contains(&admitted[1]), "{admitted:?}");
}
