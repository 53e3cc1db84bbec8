//! Buckets under several rates and with refunds, against lists of charges.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use proptest::prelude::*;
use tollgate::clock::{Nanos, Now};
use tollgate::limit::{Cell, Quota, Rate, Receipt, TokenBucket, WindowLengths};

const BEGIN: u64 = 7_200_000_000_000;
const SECOND: u64 = 1_000_000_000;

fn at(offset: u64) -> Now {
    let at = Nanos::new(BEGIN + offset);
    Now { mono: at, wall: at }
}

/// Units, seconds, burst.
type Numbers = (u32, u64, u32);

fn bucket((count, period, burst): Numbers) -> TokenBucket {
    let rate = Rate::new(count, Nanos::from_secs(period)).unwrap();
    TokenBucket::new(rate, burst, Nanos::ZERO, Nanos::new(1_000)).unwrap()
}

fn numbers() -> impl Strategy<Value = Numbers> {
    (1u32..40, prop_oneof![Just(1u64), Just(10), Just(60), Just(3_600)], 1u32..40)
}

/// A key of a limit with several rates, as a store keeps it.
struct Key {
    windows: WindowLengths,
    cell: Option<(Quota, Cell)>,
}

impl Key {
    fn new() -> Self {
        Self { windows: WindowLengths::default(), cell: None }
    }

    /// The cell, readable by a quota.
    fn cell(&mut self, quota: &Quota, now: Now) -> &mut Cell {
        let cell = match self.cell.take() {
            Some((old, cell)) if !old.is_idle(&cell, now) => match quota.can_read(&old) {
                true => cell,
                false => quota.convert(&self.windows, &old, cell, now),
            },
            _ => quota.empty_cell_for(&self.windows, now),
        };
        &mut self.cell.insert((*quota, cell)).1
    }

    fn charge(&mut self, quota: &Quota, cost: u32, now: Now) -> Result<Receipt, Option<Nanos>> {
        let cell = self.cell(quota, now);
        let verdict = quota.judge(Some(cell), cost, now);
        if !verdict.allowed {
            return Err(verdict.retry_after);
        }
        quota.charge(cell, cost, now);
        Ok(quota.receipt(&verdict, cost, now))
    }

    fn refund(&mut self, quota: &Quota, units: u32, receipt: Receipt, now: Now) {
        let windows = WindowLengths::default();
        quota.refund(&windows, self.cell(quota, now), units, receipt, now);
    }
}

/// What these charges have spent of a bucket, as the time it takes to come back.
fn spent(charges: &[(u64, u32)], emission: u64, now: u64) -> u64 {
    let full =
        charges.iter().fold(0u64, |full, (at, units)| full.max(*at) + u64::from(*units) * emission);
    full.saturating_sub(now)
}

/// At most `burst + rate x T` in any interval `T`.
fn check_bound(
    (_, _, burst): Numbers,
    emission: u64,
    kept: &[(u64, u32)],
) -> Result<(), TestCaseError> {
    let most = spent(kept, emission, kept.last().map_or(0, |(at, _)| *at));
    let mut full = 0u64;
    for (at, units) in kept {
        full = full.max(*at) + u64::from(*units) * emission;
        prop_assert!(full - at <= u64::from(burst) * emission, "{most} of {burst}: {kept:?}");
    }
    Ok(())
}

/// The first two remembered charges come in reverse order of their times. Both can be refunded.
#[test]
fn charges_in_reverse_time_order_are_refunded() {
    let quota = Quota::TokenBucket(bucket((6, 3_600, 6)).with_refunds(true));
    let mut key = Key::new();
    let late = key.charge(&quota, 2, at(2_000_000)).unwrap();
    let early = key.charge(&quota, 3, at(1_000_000)).unwrap();
    for (units, receipt) in [(3, early), (2, late)] {
        key.refund(&quota, units, receipt, at(5_000_000));
    }
    assert!(key.charge(&quota, 6, at(6_000_000)).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Each rate admits at most its bucket, whatever is charged and refunded under the others. A refused charge fits at
    /// its retry time, if nothing else is charged.
    #[test]
    fn each_rate_keeps_its_own_promise(
        rates in prop::collection::vec(numbers(), 1..5),
        returns in any::<bool>(),
        steps in prop::collection::vec(
            (0u64..40, 0usize..5, 1u32..20, prop::option::weighted(0.3, any::<prop::sample::Index>())),
            1..60,
        ),
    ) {
        let quotas: Vec<Quota> =
            rates.iter().map(|one| Quota::TokenBucket(bucket(*one).with_refunds(returns))).collect();
        let mut key = Key::new();
        let mut kept = vec![Vec::new(); rates.len()];
        let mut open: Vec<(usize, usize, Receipt)> = Vec::new();
        let mut now = 0u64;
        for (pause, which, cost, back) in steps {
            now += pause * pause * SECOND / 50;
            let which = which % rates.len();
            if let Some(index) = back.filter(|_| !open.is_empty()) {
                let (which, n, receipt) = open.swap_remove(index.index(open.len()));
                let charge: &mut (u64, u32) = &mut kept[which][n];
                let units = cost.min(charge.1);
                charge.1 -= units;
                key.refund(&quotas[which], units, receipt, at(now));
            }
            match key.charge(&quotas[which], cost, at(now)) {
                Ok(receipt) => {
                    open.push((which, kept[which].len(), receipt));
                    kept[which].push((now, cost));
                }
                Err(None) => prop_assert!(cost > rates[which].2),
                Err(Some(wait)) => {
                    prop_assert!(wait <= quotas[which].window(), "{wait:?}");
                    now += wait.get();
                    prop_assert!(key.charge(&quotas[which], cost, at(now)).is_ok(), "too early");
                    kept[which].push((now, cost));
                }
            }
            for (one, kept) in rates.iter().zip(&kept) {
                check_bound(*one, bucket(*one).emission().get(), kept)?;
            }
        }
    }

    /// However refunds overlap, the bucket is never fuller than without the refunded charges. After refunds within the
    /// fill time, at most a sixteenth of the burst is missing.
    #[test]
    fn a_refund_leaves_what_would_be_there_without_the_charge(
        numbers in numbers(),
        steps in prop::collection::vec((0u64..1_000, 1u32..8, 0u8..4, any::<prop::sample::Index>()), 1..80),
    ) {
        let quota = Quota::TokenBucket(bucket(numbers).with_refunds(true));
        let (emission, capacity) = (bucket(numbers).emission().get(), quota.window().get());
        let mut key = Key::new();
        let mut charges: Vec<(u64, u32)> = Vec::new();
        let mut open: Vec<(usize, Receipt)> = Vec::new();
        let (mut now, mut prompt) = (0u64, true);
        for (pause, cost, what, which) in steps {
            now += pause * pause * (capacity / 4_000_000);
            if what > 0 || open.is_empty() {
                if let Ok(receipt) = key.charge(&quota, cost, at(now)) {
                    open.push((charges.len(), receipt));
                    charges.push((now, cost));
                }
            } else {
                let (index, receipt) = open.swap_remove(which.index(open.len()));
                let units = cost.min(charges[index].1);
                charges[index].1 -= units;
                prompt &= charges[index].0 + capacity * 15 / 16 > now;
                key.refund(&quota, units, receipt, at(now));
            }
            let truth = spent(&charges, emission, now);
            let verdict = quota.judge(Some(key.cell(&quota, at(now))), 0, at(now));
            let counted = verdict.reset.get();
            prop_assert!(counted >= truth, "{counted} counted, {truth} spent");
            let most = truth + capacity / 16 + 1_000;
            prop_assert!(!prompt || counted <= most, "{counted} counted, {truth} spent");
        }
    }
}

/// `10/1h` with a plan of `100/1s`: the plan's bucket does not depend on the other rate.
#[test]
fn a_fast_plan_is_not_locked_out_by_a_slow_rate() {
    let slow = Quota::TokenBucket(bucket((10, 3_600, 10)));
    let fast = Quota::TokenBucket(bucket((100, 1, 100)));
    let mut key = Key::new();
    let mut admitted = 0;
    for second in 0..60 {
        let now = at(second * SECOND);
        if second % 10 == 0 {
            // The charges of the fast rate have used up the slow one.
            assert_eq!(key.charge(&slow, 1, now).is_ok(), second == 0, "{second}");
        }
        admitted += (0..99).filter(|_| key.charge(&fast, 1, now).is_ok()).count();
    }
    assert_eq!(admitted, 60 * 99);
    // The plan's charges leave no debt: after six minutes, one unit of the slow rate has come back.
    let now = 59 * SECOND;
    let Err(Some(wait)) = key.charge(&slow, 1, at(now)) else { panic!("it is empty") };
    assert_eq!(wait, Nanos::from_secs(360));
    assert!(key.charge(&slow, 1, at(now + wait.get())).is_ok());
}

/// An immediate refund leaves the bucket as it was, whatever charges are in the same sum.
#[test]
fn a_prompt_refund_is_exact() {
    let quota = Quota::TokenBucket(bucket((100, 60, 100)).with_refunds(true));
    let mut key = Key::new();
    let left = |key: &mut Key, now| quota.judge(Some(key.cell(&quota, now)), 0, now).reset;
    for n in 0..200u64 {
        let now = at(n * SECOND / 3);
        if n % 2 == 0 {
            let _ = key.charge(&quota, 1, now);
            continue;
        }
        let before = left(&mut key, now);
        let receipt = key.charge(&quota, 5, now).unwrap();
        key.refund(&quota, 5, receipt, now);
        assert_eq!(left(&mut key, now), before, "{n}");
    }
}

/// When all requests are refunded, every bucket is full again, also that of a slower rate which they had emptied together.
#[test]
fn refunded_units_come_back_under_every_rate() {
    let slow = Quota::TokenBucket(bucket((10, 3_600, 10)).with_refunds(true));
    let fast = Quota::TokenBucket(bucket((100, 1, 100)).with_refunds(true));
    let mut key = Key::new();
    key.charge(&slow, 1, at(0)).unwrap();
    // All at once, and over more steps than the fast bucket takes to fill.
    for (begin, gap) in [(1, 1), (2, SECOND / 10)] {
        let charge = |n| key.charge(&fast, 1, at(begin * SECOND + n * gap)).unwrap();
        let receipts: Vec<Receipt> = (0..50).map(charge).collect();
        assert!(key.charge(&slow, 1, at(begin * SECOND + 50 * gap)).is_err());
        for receipt in receipts {
            key.refund(&fast, 1, receipt, at(begin * SECOND + 51 * gap));
        }
    }
    assert!((0..9).all(|_| key.charge(&slow, 1, at(10 * SECOND)).is_ok()));
    assert!(key.charge(&slow, 1, at(10 * SECOND)).is_err());
}

/// A rate that is added later begins with the largest number of units spent under any other rate.
#[test]
fn a_rate_that_is_added_later_begins_with_the_units_spent_under_others() {
    let of = |count, burst| Quota::TokenBucket(bucket((count, 3_600, burst)));
    let (own, gold, silver) = (of(1, 1), of(1_000, 1_000), of(999, 999));
    let mut key = Key::new();
    assert!(key.charge(&own, 1, at(0)).is_ok());
    assert!(key.charge(&gold, 998, at(1)).is_ok());
    assert!(key.charge(&silver, 1, at(2)).is_err());
}

/// Many fast rates do not reset the slow rate of a key that is charged under all of them.
#[test]
fn many_rates_do_not_reset_a_slow_one() {
    let own = Quota::TokenBucket(bucket((10, 3_600, 10)));
    let fast: Vec<Quota> = (0..12).map(|n| Quota::TokenBucket(bucket((60 + n, 60, 60)))).collect();
    let mut key = Key::new();
    assert!(key.charge(&own, 10, at(0)).is_ok());
    for round in 1..10 {
        let now = at(round * 30 * SECOND);
        assert!(fast.iter().all(|rate| key.charge(rate, 1, now).is_ok()));
        assert!(key.charge(&own, 1, now).is_err(), "{round}");
    }
}

/// Requests wait at an empty bucket: units spent under another rate do not shorten the delay.
#[test]
fn another_rate_does_not_use_up_the_delay() {
    let delay = Nanos::from_secs(10);
    let own = Quota::TokenBucket(bucket((1, 1, 1)).with_max_delay(delay).unwrap());
    let gold = Quota::TokenBucket(bucket((100, 1, 100)));
    let mut key = Key::new();
    assert!(key.charge(&own, 1, at(0)).is_ok());
    assert!(key.charge(&gold, 20, at(1)).is_ok());
    let cell = key.cell(&own, at(2));
    let verdict = own.judge(Some(cell), 1, at(2));
    assert!(verdict.allowed && verdict.delay <= Nanos::SECOND, "{verdict:?}");
}

/// Units above the burst, from a cost that became known late, stay spent when a charge under another rate is refunded.
#[test]
fn a_refund_under_one_rate_leaves_the_debt_of_another() {
    let of = |numbers| Quota::TokenBucket(bucket(numbers).with_refunds(true));
    let (own, gold) = (of((4, 60, 7)), of((8, 60, 7)));
    let mut key = Key::new();
    assert!(key.charge(&own, 7, at(0)).is_ok());
    // The response reports three more units.
    own.charge(key.cell(&own, at(1)), 3, at(1));
    let left = |key: &mut Key, now| own.judge(Some(key.cell(&own, now)), 0, now).reset;
    let now = at(100 * SECOND);
    let before = left(&mut key, now);
    let receipt = key.charge(&gold, 2, now).unwrap();
    key.refund(&gold, 2, receipt, now);
    assert_eq!(left(&mut key, now), before);
}
