//! Logs of many times: what they say, how long the server is busy with them, and how much they hold.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::clock::{Nanos, Now};
use tollgate::limit::{Quota, Rate, SlidingLog, TokenBucket, WindowLengths};
use tollgate::policy::KeyHash;
use tollgate::store::redis::{
    Argument, Call, CellCharge, ChargeReply, Operation, SCRIPT, StoreCharge,
};
use tollgate::store::{self, CELL_BYTES, CellBudget, EmbeddedStore, IssuedQuota, QuotaSpec};

use crate::redis_servers::Redis;
use support::lua::Server;
use support::wait::pause_in_thread;

const BEGIN: u64 = 1_800_057_600_000_000;

const MINUTE: u64 = 60_000_000;

/// Makes the n-th call of a case.
type Make<'m> = Box<dyn Fn(usize) -> Call + 'm>;

fn log(count: u32, period: Nanos) -> Quota {
    Quota::SlidingLog(SlidingLog::new(Rate::new(count, period).unwrap()).unwrap())
}

fn issue(
    store: &EmbeddedStore,
    room: &Arc<CellBudget>,
    quota: Quota,
    windows: &WindowLengths,
) -> Arc<IssuedQuota> {
    store.issue(
        QuotaSpec {
            quota,
            windows: windows.clone(),
            budget: Arc::clone(room),
            denies_after_crash: false,
        },
        None,
    )
}

fn one(quota: &Arc<IssuedQuota>, n: u64, order: Operation, cost: u32, before: u64) -> StoreCharge {
    let key = KeyHash { high: 7, low: n };
    let spend =
        CellCharge { log_chunk: before, ..CellCharge::new(key, None, Arc::clone(quota), cost) };
    StoreCharge { operation: order, cell_charges: SmallVec::from_iter([spend]) }
}

/// Thousands of times under two windows, given back in any order, beside a plain list.
#[test]
fn a_long_log_says_what_a_plain_list_says() {
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (store, room) = (EmbeddedStore::default(), Arc::default());
        let quotas = [log(2_000, Nanos::from_secs(60)), log(300, Nanos::from_secs(7))];
        let windows = WindowLengths::of(&quotas);
        let rates = quotas.map(|quota| issue(&store, &room, quota, &windows));
        let server = Server::new();
        let mut listed: Vec<(u64, u32)> = Vec::new();
        let mut open: Vec<(usize, ChargeReply, u32, usize)> = Vec::new();
        let (mut at, mut admitted, mut returned) = (BEGIN, 0, 0);
        for _ in 0..6_000 {
            at += match random.u32(0..100) {
                0 => random.u64(..20_000_000),
                1..30 => 0,
                _ => random.u64(..20_000),
            };
            server.set_time(at);
            let (rate, cost) = (usize::from(random.u8(..10) == 0), random.u32(1..4));
            let (most, length) = [(2_000, MINUTE), (300, 7_000_000)][rate];
            let live = listed.iter().rev().take_while(|(when, _)| when + length > at);
            let counted: u32 = live.map(|(_, cost)| cost).sum();
            let charge = one(&rates[rate], 1, Operation::Charge, cost, 0);
            let answered = server.settle(std::slice::from_ref(&charge)).remove(0);
            let verdict = answered.cells[0].verdict;
            assert_eq!(answered.charged, counted + cost <= most, "seed {seed}");
            let after = if answered.charged { counted + cost } else { counted };
            assert_eq!(verdict.remaining, most.saturating_sub(after), "seed {seed}");
            if answered.charged {
                admitted += 1;
                listed.push((at, cost));
                open.push((listed.len() - 1, answered, cost, rate));
            }
            // Half of all is given back, after a while or a long while, many at once.
            if random.u8(..20) == 0 {
                let mut back = Vec::new();
                for _ in 0..random.usize(..40).min(open.len()) {
                    let recent = open.len().saturating_sub(60);
                    let from = if random.bool() { recent } else { 0 };
                    let (index, answered, cost, rate) =
                        open.swap_remove(random.usize(from..open.len()));
                    if random.bool() {
                        continue;
                    }
                    let order = Operation::Refund(answered.at);
                    back.push(one(&rates[rate], 1, order, cost, answered.cells[0].log_chunk));
                    listed[index].1 = 0;
                    returned += 1;
                }
                for part in back.chunks(10) {
                    server.settle(part);
                }
            }
        }
        assert!(admitted > 1_000 && returned > 300, "{admitted} admitted, {returned} given back");
    }
}

/// How long the server runs the script for each call, as `SLOWLOG` tells, in microseconds.
#[derive(Clone, Copy)]
struct Busy {
    median: u64,
    most: u64,
    calls: usize,
}

fn busy(connection: &mut redis::Connection, calls: impl IntoIterator<Item = Call>) -> Busy {
    let slowlog = |connection: &mut redis::Connection, words: &[&str]| -> redis::Value {
        redis::cmd("SLOWLOG").arg(words).query(connection).unwrap()
    };
    slowlog(connection, &["RESET"]);
    let mut calls = calls.into_iter();
    calls.by_ref().for_each(|call| {
        run(connection, &call);
    });
    let redis::Value::Array(told) = slowlog(connection, &["GET", "-1"]) else { panic!() };
    let mut took: Vec<u64> = told
        .iter()
        .filter_map(|entry| {
            // (What a script calls is told too.)
            let redis::Value::Array(fields) = entry else { panic!("{entry:?}") };
            let redis::Value::Int(micros) = &fields[2] else { panic!("{fields:?}") };
            let redis::Value::Array(words) = &fields[3] else { panic!("{fields:?}") };
            (words[0] == redis::Value::BulkString(b"EVALSHA".to_vec())).then_some(*micros as u64)
        })
        .collect();
    took.sort_unstable();
    Busy { median: took[took.len() / 2], most: took[took.len() - 1], calls: took.len() }
}

fn run(connection: &mut redis::Connection, call: &Call) -> Vec<u64> {
    let arguments = call.arguments(1, "t", false);
    let mut cmd = redis::cmd("EVALSHA");
    let sha = redis::Script::new(SCRIPT);
    cmd.arg(sha.get_hash()).arg(arguments.keys.len());
    arguments.keys.iter().for_each(|key| {
        cmd.arg(key.as_bytes());
    });
    for argument in &arguments.argv {
        match argument {
            Argument::Word(word) => cmd.arg(word.as_bytes()),
            Argument::Number(number) => cmd.arg(*number),
        };
    }
    cmd.query(connection).unwrap()
}

/// As many of these as a call takes.
fn call_of(charges: impl IntoIterator<Item = StoreCharge>) -> Call {
    let mut call = Call::default();
    let _ = charges.into_iter().take_while(|charge| call.add(charge).is_ok()).count();
    call
}

fn call(charges: impl IntoIterator<Item = StoreCharge>) -> Call {
    let mut call = Call::default();
    for charge in charges {
        call.add(&charge).unwrap();
    }
    call
}

/// Fills logs with times of their own, and tells where each charge was written.
fn fill(
    connection: &mut redis::Connection,
    quota: &Arc<IssuedQuota>,
    keys: u64,
    times: u32,
) -> Vec<(u64, u64)> {
    let mut written = Vec::new();
    for _ in 0..times {
        let one = call((0..keys).map(|n| one(quota, n, Operation::Charge, 1, 0)));
        let reply = run(connection, &one);
        let answers = one.read_reply(1, &reply).unwrap();
        assert!(answers.iter().all(|answered| answered.charged));
        written.push((answers[0].at, answers[0].cells[0].log_chunk));
    }
    written
}

/// No call keeps the server busy for long, whatever stands in it: `cargo test --test stores
/// busy_for_long -- --nocapture` prints how long.
#[tokio::test]
async fn no_call_keeps_the_server_busy_for_long() {
    let _alone = crate::alone().await;
    let redis =
        Redis::start(&["--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000"]).await;
    let client = redis::Client::open(redis.url()).unwrap();
    let connection = &mut client.get_connection().unwrap();
    let _: String = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query(connection).unwrap();
    let (store, room) = (EmbeddedStore::default(), Arc::default());
    let windows = WindowLengths::new([Nanos::from_secs(600), Nanos::from_secs(3_600)]);
    let long = log(10_000, Nanos::from_secs(3_600));
    let (long, short) = (
        issue(&store, &room, long, &windows),
        issue(&store, &room, log(10_000, Nanos::from_secs(600)), &windows),
    );
    // Two logs are as many as a call takes.
    let written = fill(connection, &long, 2, 9_900);
    let mut worst = 0;
    let mut told = |case: &str, took: Busy| {
        println!("{case}: median {} us, most {} us of {}", took.median, took.most, took.calls);
        worst = worst.max(took.median);
    };
    let charge = |order, n, (at, before): (u64, u64), quota: &Arc<IssuedQuota>| {
        let order = if order == Operation::Refund(0) { Operation::Refund(at) } else { order };
        one(quota, n, order, 1, before)
    };
    let any = |n: usize| written[(n * 157) % written.len()];
    let back = Operation::Refund(0);
    let cases: [(&str, Make<'_>); 5] = [
        ("one charge", Box::new(|_| call([charge(Operation::Charge, 0, (0, 0), &long)]))),
        (
            "3 refunds to one log, and a charge",
            Box::new(|turn| {
                let refunds = (0..3).map(|n| charge(back, 0, any(n + 3 * turn), &long));
                call(refunds.chain([charge(Operation::Charge, 0, (0, 0), &long)]))
            }),
        ),
        (
            "3 refunds to two logs, and a charge",
            Box::new(|turn| {
                let refunds =
                    (0..3).map(|n| charge(back, n as u64 % 2, any(n + 3 * turn + 1_000), &long));
                call(refunds.chain([charge(Operation::Charge, 0, (0, 0), &short)]))
            }),
        ),
        (
            "4 refused charges under two windows on two logs",
            Box::new(|_| {
                call((0..4).map(|n| {
                    one(
                        if n % 2 == 0 { &long } else { &short },
                        n / 2 % 2,
                        Operation::Charge,
                        9_000,
                        0,
                    )
                }))
            }),
        ),
        (
            "4 charges under two windows on two logs",
            Box::new(|_| {
                call((0..4).map(|n| {
                    one(if n % 2 == 0 { &long } else { &short }, n / 2 % 2, Operation::Charge, 1, 0)
                }))
            }),
        ),
    ];
    for (case, make) in &cases {
        told(case, busy(connection, (0..40).map(make)));
    }
    let rate = Rate::new(1_000_000, Nanos::from_secs(600)).unwrap();
    let plain = Quota::SlidingWindow(tollgate::limit::SlidingWindow::new(rate));
    let eight = WindowLengths::new((0..8).map(|n| Nanos::from_secs(600 << n)));
    for (case, windows, cells, charges) in [
        ("charges of a cell each", WindowLengths::of([&plain]), 1, 64),
        ("charges of four cells each", WindowLengths::of([&plain]), 4, 64),
        ("charges of four cells of eight windows each", eight, 4, 8),
    ] {
        let quota = issue(&store, &room, plain, &windows);
        let stack = |n: u64| {
            let key = |part| KeyHash { high: 9 + cells, low: n * cells + part };
            let spend = |part| CellCharge::new(key(part), None, Arc::clone(&quota), 1);
            StoreCharge {
                operation: Operation::Charge,
                cell_charges: (0..cells).map(spend).collect(),
            }
        };
        told(case, busy(connection, (0..40).map(|_| call_of((0..charges).map(stack)))));
    }
    for (case, cells, rates, returns, order) in [
        ("charges of buckets that remember", 64, 1, true, Operation::Charge),
        ("charges of buckets of two rates", 64, 2, false, Operation::Charge),
        ("charges of buckets of eight rates", 64, 8, false, Operation::Charge),
        ("charges of buckets of eight rates that remember", 64, 8, true, Operation::Charge),
        ("refunds to a bucket", 1, 1, true, back),
        ("refunds to a bucket of eight rates", 1, 8, true, back),
        ("refunds to buckets of eight rates", 64, 8, true, back),
    ] {
        let quotas: Vec<Quota> = (0..rates)
            .map(|n| {
                // All take about half a second to fill, and remember as long.
                let rate = Rate::new(1_000 + n, Nanos::from_secs(1)).unwrap();
                let step = Nanos::new(1_000);
                let bucket = TokenBucket::new(rate, 500, Nanos::ZERO, step).unwrap();
                Quota::TokenBucket(bucket.with_refunds(returns))
            })
            .collect();
        let variants = WindowLengths::of(&quotas);
        let rates: Vec<Arc<IssuedQuota>> =
            quotas.iter().map(|quota| issue(&store, &room, *quota, &variants)).collect();
        let key = |n: u64| KeyHash {
            high: 20 + quotas.len() as u64 + 9 * u64::from(returns),
            low: n % cells,
        };
        let one = |n: u64, order| {
            let quota = &rates[n as usize % rates.len()];
            let spends =
                SmallVec::from_iter([CellCharge::new(key(n / 8), None, Arc::clone(quota), 1)]);
            StoreCharge { operation: order, cell_charges: spends }
        };
        let mut charged = vec![];
        for turn in 0..24u64 {
            let mut all = (0..cells * 8).peekable();
            while all.peek().is_some() {
                let charges = call_of(all.clone().map(|n| one(n, Operation::Charge)));
                all.nth(charges.len() - 1);
                let reply = run(connection, &charges);
                charged.push(charges.read_reply(1, &reply).unwrap()[0].at);
            }
            pause_in_thread(std::time::Duration::from_millis(10 + turn % 2));
        }
        let late = charged[charged.len() * 3 / 4..].to_vec();
        let calls = (0..20).map(|turn| {
            call_of((0..64).map(|n| match order {
                Operation::Charge => one(n * 8 + turn, Operation::Charge),
                _ => one(n * 8 + turn, Operation::Refund(late[(n + turn) as usize % late.len()])),
            }))
        });
        told(case, busy(connection, calls));
    }
    println!("worst: {worst} us");
    // What is aimed at is a millisecond on an idle machine; one that is shared takes several times that.
    assert!(worst <= 10_000, "{worst} us");
}

/// Keys that burst and then ask once in a while: what they held comes back, what is told is what is
/// there, and what does not fit is refused.
#[test]
fn a_log_holds_no_more_than_it_needs() {
    let (store, room) = (EmbeddedStore::default(), Arc::<CellBudget>::default());
    store.set_budgets(10_000_000, &[room.bounded(None)]);
    let quota = log(500, Nanos::from_secs(60));
    let quota = issue(&store, &room, quota, &WindowLengths::of([&quota]));
    let now = |micros: u64| {
        let at = Nanos::new(micros * 1_000);
        Now { mono: at, wall: at }
    };
    let ask = |key: u64, at: u64| {
        let key = KeyHash { high: key << 50 | key, low: key.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
        let charge = store::EmbeddedCharge { key, quota: &quota, cost: 1 };
        store.settle_single(&charge, true, now(at), || panic!("there is room")).unwrap().charged
    };
    let sweep = |at: u64| {
        for _ in 0..store::SHARDS / 128 {
            store.sweep(128, now(at));
        }
    };
    let empty = store.bytes();
    for n in 0..500 {
        (0..2_000).for_each(|key| assert!(ask(key, BEGIN + n)));
    }
    let full = store.bytes() - empty;
    assert!(full > 2_000 * 500 * 16, "{full}");
    (0..2_000).for_each(|key| assert!(ask(key, BEGIN + 2 * MINUTE)));
    sweep(BEGIN + 2 * MINUTE + 1);
    let idle = room.weight() * CELL_BYTES;
    assert_eq!(room.cells(), 2_000);
    assert!(idle < 2_000 * 6 * CELL_BYTES, "{} bytes for each key", idle / 2_000);
    sweep(BEGIN + 4 * MINUTE);
    assert_eq!((room.cells(), room.weight()), (0, 0));
}

/// A log that finds no room does not grow: it joins its oldest times. What is spent stays counted, the
/// limit holds, and nobody else judges a key that is known.
#[test]
fn a_log_that_finds_no_room_does_not_grow() {
    let (store, room) = (EmbeddedStore::default(), Arc::<CellBudget>::default());
    store.set_budgets(100, &[room.bounded(None)]);
    let quota = log(600, Nanos::from_secs(60));
    let quota = issue(&store, &room, quota, &WindowLengths::of([&quota]));
    let ask = |at: u64| {
        let at = Nanos::new(at * 1_000);
        let charge =
            store::EmbeddedCharge { key: KeyHash { high: 1, low: 1 }, quota: &quota, cost: 1 };
        store
            .settle_single(&charge, true, Now { mono: at, wall: at }, || panic!("it is known"))
            .unwrap()
            .charged
    };
    let mut spent = 0;
    for n in 0..1_000u64 {
        spent += u64::from(ask(BEGIN + n * 1_000));
        assert!(room.weight() <= 100, "{} at {n}", room.weight());
    }
    assert_eq!(spent, 600);
    // The last have left a minute after they came: no later than that all is free again.
    assert!(ask(BEGIN + MINUTE + 600_000));
}
