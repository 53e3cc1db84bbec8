use std::sync::{Arc, LazyLock};

use tollgate::clock::Nanos;
use tollgate::limit::{
    FixedWindow, MICROSECOND, Quota, Rate, SlidingLog, SlidingWindow, TokenBucket, Verdict,
    WindowLengths,
};
use tollgate::policy::KeyHash;
use tollgate::store::redis::{Call, CellCharge, ChargeReply, Operation, StoreCharge};
use tollgate::store::{CellBudget, EmbeddedStore, IssuedQuota, QuotaSpec};

/// The call's number.
const NUMBER: u32 = 7;

static QUOTAS: LazyLock<Vec<Arc<IssuedQuota>>> = LazyLock::new(|| {
    let rate = |count| Rate::new(count, Nanos::from_secs(60)).unwrap();
    let bucket = |step| TokenBucket::new(rate(60), 10, step, MICROSECOND).unwrap();
    let quotas = [
        Quota::FixedWindow(FixedWindow::new(rate(5))),
        Quota::SlidingWindow(SlidingWindow::new(rate(60))),
        Quota::TokenBucket(bucket(Nanos::ZERO)),
        Quota::SlidingLog(SlidingLog::new(rate(20)).unwrap()),
        Quota::TokenBucket(bucket(Nanos::ZERO).with_max_delay(Nanos::from_secs(3)).unwrap()),
        Quota::TokenBucket(bucket(Nanos::from_secs(10))),
        Quota::FixedWindow(FixedWindow::new(rate(u32::MAX))),
        Quota::SlidingWindow(SlidingWindow::new(rate(u32::MAX))),
    ];
    let store = EmbeddedStore::default();
    let issue = |quota: Quota| {
        let (windows, room) = (WindowLengths::of([&quota]), Arc::<CellBudget>::default());
        store.issue(QuotaSpec { quota, windows, budget: room, denies_after_crash: false }, None)
    };
    quotas.into_iter().map(issue).collect()
});

/// One charge a line (`s`pend, `q`uestion, `c`ount, `d`ebit or `r`efund, then CELL:QUOTA:COST for each
/// part), and after `=` the numbers of a server's reply. What is believed admits what the limits admit
/// and no more; a reply that is cut, longer, of another call, or that tells another number of admitted
/// charges is not believed beside it; and a true one is believed.
pub fn replies(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (charges, reply) = text.split_once('=').unwrap_or((&text, ""));
    let mut call = Call::default();
    let charges: Vec<StoreCharge> = charges.lines().filter_map(charge).collect();
    let taken = charges.iter().take_while(|charge| call.add(charge).is_ok()).count();
    let charges = &charges[..taken];
    let reply: Vec<u64> = reply.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let answers = call.read_reply(NUMBER, &reply);
    if let Some(expected) = fixed_windows_say(charges, &reply) {
        assert_eq!(answers.is_some(), expected, "{charges:?}: {reply:?}");
    }
    let Some(answers) = answers else {
        return;
    };
    assert_eq!(answers.len(), charges.len());
    for (run, answers) in runs(charges, &answers) {
        is_consistent(&run[0], answers);
    }
    is_told(charges, &answers, &reply);
    assert_eq!(call.read_reply(NUMBER + 1, &reply), None, "another call's");
    assert_eq!(call.read_reply(NUMBER, &[&reply[..], &[0]].concat()), None, "longer");
    for cut in super::cuts(reply.len()).filter(|cut| *cut < reply.len()) {
        assert_eq!(call.read_reply(NUMBER, &reply[..cut]), None, "cut at {cut}");
    }
}

fn charge(line: &str) -> Option<StoreCharge> {
    let mut words = line.split_whitespace();
    let (order, at) = words.next()?.split_at_checked(1)?;
    let order = match order {
        "s" => Operation::Charge,
        "q" => Operation::Check,
        "c" => Operation::Report,
        "d" => Operation::Debit,
        "r" => Operation::Refund(at.parse().unwrap_or(0)),
        _ => return None,
    };
    let mut charge = StoreCharge { operation: order, cell_charges: Default::default() };
    for part in words.take(8) {
        let mut numbers = part.split(':').map(|number| number.parse::<u64>().unwrap_or(0));
        let (cell, quota) = (numbers.next()?, numbers.next()? as usize % QUOTAS.len());
        let cost = u32::try_from(numbers.next()?).unwrap_or(u32::MAX);
        // The algorithm is in the key.
        let key = KeyHash { high: quota as u64, low: cell % 64 };
        if charge.cell_charges.iter().all(|spend| spend.key != key) {
            charge.cell_charges.push(CellCharge::new(key, None, Arc::clone(&QUOTAS[quota]), cost));
        }
    }
    (!charge.cell_charges.is_empty()).then_some(charge)
}

fn judges(charge: &StoreCharge) -> bool {
    matches!(charge.operation, Operation::Charge | Operation::Check)
}

fn parts(charge: &StoreCharge) -> impl Iterator<Item = (KeyHash, &Quota, u32)> {
    charge.cell_charges.iter().map(|spend| (spend.key, spend.quota.quota(), spend.cost))
}

/// How many charges from the first on are told together: equal ones that spend.
fn run_length(charges: &[StoreCharge]) -> usize {
    let first = &charges[0];
    let same = |charge: &&StoreCharge| {
        charge.operation == first.operation && parts(charge).eq(parts(first))
    };
    match first.operation {
        Operation::Charge => charges.iter().take_while(same).count(),
        Operation::Check | Operation::Report | Operation::Debit | Operation::Refund(_) => 1,
    }
}

fn runs<'c>(
    mut charges: &'c [StoreCharge],
    mut answers: &'c [ChargeReply],
) -> Vec<(&'c [StoreCharge], &'c [ChargeReply])> {
    let mut runs = Vec::new();
    while !charges.is_empty() {
        let many = run_length(charges);
        runs.push((&charges[..many], &answers[..many]));
        (charges, answers) = (&charges[many..], &answers[many..]);
    }
    runs
}

/// Verdicts that go together, and no more admitted than the limits allow.
fn is_consistent(charge: &StoreCharge, answers: &[ChargeReply]) {
    if !judges(charge) {
        let (_, _, cost) = parts(charge).min_by_key(|part| part.2).unwrap();
        let most = if charge.operation == Operation::Report { cost } else { 0 };
        let done = |one: &ChargeReply| one.charged && one.cells.is_empty() && one.reported <= most;
        return assert!(answers.iter().all(done));
    }
    let spent = answers.iter().filter(|one| one.charged).count() as u64;
    assert!(charge.operation == Operation::Charge || spent == 0, "a question spends nothing");
    for (_, quota, cost) in parts(charge) {
        assert!(spent * u64::from(cost) <= u64::from(quota.limit()), "{spent} times {cost}");
    }
    let first_refused = answers.iter().position(|one| !one.charged);
    let later = &answers[first_refused.unwrap_or(answers.len())..];
    assert!(later.iter().all(|one| !one.charged), "what was refused is admitted later");
    for one in answers {
        assert_eq!(one.cells.len(), charge.cell_charges.len());
        let fits = one.cells.iter().all(|cell| cell.verdict.allowed);
        assert_eq!(fits, one.charged || charge.operation == Operation::Check && fits);
        for (cell, (_, quota, cost)) in one.cells.iter().zip(parts(charge)) {
            let (verdict, without) = (&cell.verdict, &cell.verdict_before);
            is_true(verdict, quota, cost);
            assert!(without.allowed && without.remaining <= without.limit);
            let is_charged = one.charged && quota.max_delay() == Nanos::ZERO;
            if is_charged {
                assert_eq!(verdict.remaining, without.remaining - cost, "{quota:?}");
            }
        }
    }
}

/// One verdict by itself.
fn is_true(verdict: &Verdict, quota: &Quota, cost: u32) {
    assert_eq!(verdict.limit, quota.limit());
    assert!(verdict.remaining <= verdict.limit && verdict.delay <= quota.max_delay());
    match verdict.retry_after {
        Some(Nanos::ZERO) => assert!(verdict.allowed, "{verdict:?}"),
        Some(_) => assert!(!verdict.allowed && cost <= verdict.limit, "{verdict:?}"),
        None => assert!(!verdict.allowed && cost > verdict.limit, "{verdict:?}"),
    }
}

/// As many were admitted as the server says, and the cells were before as it says.
fn is_told(charges: &[StoreCharge], answers: &[ChargeReply], reply: &[u64]) {
    let mut numbers = reply[2..].iter().copied();
    for (run, answers) in runs(charges, answers) {
        if run[0].operation == Operation::Report {
            let told = numbers.by_ref().take(run[0].cell_charges.len()).min();
            assert_eq!(told, Some(u64::from(answers[0].reported)));
        }
        if !judges(&run[0]) {
            continue;
        }
        let admitted = |one: &&ChargeReply| one.cells.iter().all(|cell| cell.verdict.allowed);
        assert_eq!(numbers.next(), Some(answers.iter().filter(admitted).count() as u64));
        for (part, (_, quota, _)) in parts(&run[0]).enumerate() {
            let first = numbers.next().unwrap();
            assert!(
                answers.iter().all(|one| one.cells[part].log_chunk == first && one.at == reply[1])
            );
            numbers.by_ref().take(quota.reading_len() - 1).for_each(drop);
        }
    }
    assert_eq!(numbers.next(), None);
}

/// Whether a reply about fixed windows alone is true; `None`: it is about something else, or about
/// another window than the present one.
fn fixed_windows_say(charges: &[StoreCharge], reply: &[u64]) -> Option<bool> {
    const PERIOD: u64 = 60_000_000;
    let is_fixed = |quota: &Quota| matches!(quota, Quota::FixedWindow(_));
    if charges.is_empty() || !charges.iter().flat_map(parts).all(|part| is_fixed(part.1)) {
        return None;
    }
    let [number, at, numbers @ ..] = reply else {
        return Some(false);
    };
    // (Nanoseconds of a later time do not fit into 64 bits.)
    if *at > 10_000_000_000_000_000 {
        return None;
    }
    let (mut numbers, mut rest) = (numbers.iter().copied(), charges);
    let mut is_right = *number == u64::from(NUMBER);
    while !rest.is_empty() {
        let many = run_length(rest);
        let run = &rest[..many];
        rest = &rest[many..];
        if run[0].operation == Operation::Report {
            for (_, _, cost) in parts(&run[0]) {
                let Some(told) = numbers.next() else { return Some(false) };
                is_right &= told <= u64::from(cost);
            }
        }
        if !judges(&run[0]) {
            continue;
        }
        let Some(told) = numbers.next() else { return Some(false) };
        let mut fit = many as u64;
        for (_, quota, cost) in parts(&run[0]) {
            let (Some(window), Some(count)) = (numbers.next(), numbers.next()) else {
                return Some(false);
            };
            if window != at / PERIOD {
                return None;
            }
            is_right &= u32::try_from(count).is_ok();
            let left = u64::from(quota.limit()).saturating_sub(count);
            fit = fit.min(left.checked_div(u64::from(cost)).unwrap_or(u64::MAX));
        }
        is_right &= told == fit;
    }
    Some(is_right && numbers.next().is_none())
}
