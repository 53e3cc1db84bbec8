//! The batcher over a store on virtual time: which charges share a call, which reply is whose, what
//! a deadline means, and what becomes of charges that were not sent.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::clock::{Clock, Nanos};
use tollgate::histogram::HistogramTotals;
use tollgate::store::redis::{
    CallOutcome, CellCharge, ChargeReply, Readiness, SharedStore, StoreCharge, StoreFailure,
};

use crate::virtual_store::{Plan, VirtualStore, charge, key, quota};
use support::wait::virtual_time;

const MS: Duration = Duration::from_millis(1);

type Settled = Result<ChargeReply, StoreFailure>;

/// Settles a charge within so long, in a task of its own. Returns how long it took, too.
fn settle(
    store: &Arc<VirtualStore>,
    remote: &Arc<SharedStore>,
    charge: StoreCharge,
    within: Duration,
) -> tokio::task::JoinHandle<(Settled, Duration)> {
    let (clock, remote) = (Arc::clone(&store.clock), Arc::clone(remote));
    tokio::spawn(async move {
        let now = clock.now().mono;
        let settled = remote.settle(charge, 1, now.saturating_add(within.into()), now).await;
        (settled, clock.now().mono.saturating_sub(now).into())
    })
}

/// One cell under two quotas, as with a plan for half of the requests, while more calls are away
/// than go out at once: each request gets its own verdict, and the cell says what was admitted.
#[tokio::test(start_paused = true)]
async fn one_cell_under_two_quotas_gets_every_reply_right() {
    let (store, remote) = VirtualStore::start(5 * MS, Duration::from_secs(10));
    let (user, plans) = (quota(1_000), [quota(3_000), quota(5_000)]);
    let mut admitted = 0;
    for round in 0..8 {
        let tasks: Vec<_> = (0..256u64)
            .map(|n| {
                let plan = &plans[((n + round) % 2) as usize];
                let org = charge(&[(1_000 + n, &user), (1, plan)]);
                (plan.quota().limit(), settle(&store, &remote, org, Duration::from_secs(10)))
            })
            .collect();
        for (limit, task) in tasks {
            let (settled, _) = task.await.unwrap();
            let answered = settled.unwrap();
            let verdicts = answered.verdicts();
            assert_eq!((verdicts[0].limit, verdicts[1].limit), (1_000, limit));
            assert!(answered.charged, "{verdicts:?}");
            admitted += 1;
        }
    }
    assert_eq!(store.spent(key(1)), admitted);
    assert_eq!(admitted, 8 * 256);
}

/// A thousand callers on one key of a far store: none waits for longer than the timeout, and nearly
/// all are answered by the store.
#[tokio::test(start_paused = true)]
async fn a_far_store_does_not_serialize_a_hot_key() {
    for arrive_within in [0, 50] {
        let (store, remote) = VirtualStore::start(80 * MS, 100 * MS);
        let limit = quota(1_000_000);
        let mut tasks = Vec::new();
        for n in 0..1_000u32 {
            tasks.push(settle(&store, &remote, charge(&[(1, &limit)]), 100 * MS));
            if arrive_within > 0 && n % 20 == 19 {
                virtual_time(MS).await;
            }
        }
        let (mut answered, mut longest) = (0, Duration::ZERO);
        for task in tasks {
            let (settled, took) = task.await.unwrap();
            answered += u64::from(settled.is_ok());
            longest = longest.max(took);
            assert!(!matches!(settled, Err(StoreFailure::Unreachable | StoreFailure::QueueFull)));
        }
        let calls = store.calls();
        println!(
            "1,000 callers on one key within {arrive_within} ms, store 80 ms away, timeout 100 ms: \
             longest {longest:?}, {answered} answered by the store in {calls} calls"
        );
        assert!(longest <= 100 * MS, "{longest:?}");
        assert!(answered >= 900, "{answered}");
        virtual_time(Duration::from_secs(1)).await;
        assert!(store.spent(key(1)) >= answered && remote.is_quiet());
    }
}

/// A key with a few requests, each later than the last call's half: none waits for a whole call
/// before its own begins.
#[tokio::test(start_paused = true)]
async fn charges_on_a_key_of_a_far_store_are_answered_in_time() {
    let (store, remote) = VirtualStore::start(80 * MS, 100 * MS);
    let limit = quota(1_000);
    let mut tasks = Vec::new();
    for _ in 0..40 {
        tasks.push(settle(&store, &remote, charge(&[(1, &limit)]), 100 * MS));
        virtual_time(10 * MS).await;
    }
    for task in tasks {
        let (settled, took) = task.await.unwrap();
        assert!(settled.is_ok() && took <= 90 * MS, "{settled:?} after {took:?}");
    }
}

/// So many calls that no more go out: each on a cell of its own.
async fn occupy(store: &Arc<VirtualStore>, remote: &Arc<SharedStore>) {
    let (limit, before) = (quota(1_000), store.calls());
    for n in 0..16 {
        let _waits = settle(store, remote, charge(&[(9_000 + n, &limit)]), Duration::from_secs(60));
        virtual_time(MS).await;
    }
    assert_eq!(store.calls() - before, 16);
}

/// Which of these keys the store was ever asked about.
fn asked(store: &VirtualStore, keys: std::ops::Range<u64>) -> Vec<u64> {
    let sent = store.sent.lock();
    let names = |n: &u64| sent.iter().flatten().any(|name| *name == format!("t:{}", key(*n)));
    keys.filter(names).collect()
}

#[tokio::test(start_paused = true)]
async fn what_misses_its_deadline_in_the_queue_is_withdrawn_and_never_sent() {
    let (store, remote) = VirtualStore::start(500 * MS, Duration::from_secs(1));
    occupy(&store, &remote).await;
    let limit = quota(1_000);
    let tasks: Vec<_> = (0..20u32)
        .map(|n| {
            let within = (30 + n) * MS;
            (within, settle(&store, &remote, charge(&[(u64::from(n), &limit)]), within))
        })
        .collect();
    for (within, task) in tasks {
        let (settled, took) = task.await.unwrap();
        assert_eq!(settled, Err(StoreFailure::Withdrawn));
        assert!(took >= within && took <= within + 2 * MS, "{took:?} of {within:?}");
    }
    virtual_time(Duration::from_secs(2)).await;
    assert!(asked(&store, 0..20).is_empty());
    assert!(remote.is_quiet());
    let failed: u64 = [CallOutcome::Timeout, CallOutcome::Unreachable]
        .map(|outcome| remote.metrics().calls(outcome))
        .iter()
        .sum();
    assert_eq!(failed, 0, "a charge that waited is no failed call");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_takes_an_unsent_charge_along_and_leaves_a_sent_one() {
    let (store, remote) = VirtualStore::start(500 * MS, Duration::from_secs(1));
    let limit = quota(1_000);
    let second = Duration::from_secs(1);
    let sent = settle(&store, &remote, charge(&[(50, &limit)]), second);
    virtual_time(MS).await;
    sent.abort();
    let after = settle(&store, &remote, charge(&[(50, &limit)]), second);
    virtual_time(600 * MS).await;
    occupy(&store, &remote).await;
    let tasks: Vec<_> =
        (0..20).map(|n| settle(&store, &remote, charge(&[(n, &limit)]), second)).collect();
    virtual_time(MS).await;
    for (n, task) in tasks.iter().enumerate() {
        if n % 2 == 0 {
            task.abort();
        }
    }
    for (n, task) in tasks.into_iter().enumerate() {
        let ended = task.await;
        assert!(if n % 2 == 0 { ended.is_err() } else { ended.unwrap().0.is_ok() });
    }
    assert!(after.await.unwrap().0.is_ok());
    assert_eq!(asked(&store, 0..20), (0..20).filter(|n| n % 2 == 1).collect::<Vec<_>>());
    assert_eq!(store.spent(key(50)), 2, "its caller had left, and it stays charged");
    virtual_time(second).await;
    assert!(remote.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_a_failing_store() {
    let (store, remote) = VirtualStore::start(Duration::from_secs(9), Duration::from_secs(10));
    occupy(&store, &remote).await;
    let limit = quota(1_000_000);
    let hot: Vec<_> = (0..16_500)
        .map(|_| settle(&store, &remote, charge(&[(1, &limit)]), Duration::from_secs(1)))
        .collect();
    let others: Vec<_> = (0..50_000)
        .map(|n| settle(&store, &remote, charge(&[(10 + n, &limit)]), Duration::from_secs(1)))
        .collect();
    let mut full = [0, 0];
    for (n, task) in
        hot.into_iter().map(|one| (0, one)).chain(others.into_iter().map(|one| (1, one)))
    {
        let (settled, took) = task.await.unwrap();
        match settled {
            Err(StoreFailure::QueueFull) => {
                full[n] += 1;
                assert!(took < MS, "{took:?}");
            }
            other => assert_eq!(other, Err(StoreFailure::Withdrawn)),
        }
    }
    // 16 are away. Beyond 16,384 on one cell, and 65,536 in all, there is no room.
    println!("no room for {full:?}");
    assert_eq!(full[0], 16_500 - 16_384);
    assert!((900..=1_100).contains(&full[1]), "{full:?}");
}

#[tokio::test(start_paused = true)]
async fn charges_wait_for_a_connection_within_their_deadline() {
    let (store, remote) = VirtualStore::start(2 * MS, 100 * MS);
    let limit = quota(1_000);
    store.set_readiness(Readiness::Reconnecting);
    let patient = settle(&store, &remote, charge(&[(1, &limit)]), 100 * MS);
    let hasty = settle(&store, &remote, charge(&[(2, &limit)]), 20 * MS);
    virtual_time(30 * MS).await;
    assert_eq!(store.calls(), 0);
    store.set_readiness(Readiness::Ready);
    let (settled, took) = patient.await.unwrap();
    assert!(settled.is_ok() && took >= 30 * MS && took <= 34 * MS, "{settled:?} {took:?}");
    let (settled, took) = hasty.await.unwrap();
    assert!(settled == Err(StoreFailure::Withdrawn) && took <= 21 * MS, "{settled:?} {took:?}");
    assert_eq!(asked(&store, 1..3), [1]);

    store.set_readiness(Readiness::Reconnecting);
    let waiting = settle(&store, &remote, charge(&[(1, &limit)]), 100 * MS);
    virtual_time(10 * MS).await;
    store.set_readiness(Readiness::Away);
    assert_eq!(waiting.await.unwrap(), (Err(StoreFailure::Unreachable), 10 * MS));
    let refused = settle(&store, &remote, charge(&[(1, &limit)]), 100 * MS);
    assert_eq!(refused.await.unwrap(), (Err(StoreFailure::Unreachable), Duration::ZERO));
    assert_eq!(store.spent(key(1)), 1);
}

/// What was certainly not sent is tried again, a few times; what may have been never is.
#[tokio::test(start_paused = true)]
async fn only_what_was_not_sent_is_sent_again() {
    for (failure, calls) in
        [(StoreFailure::Unreachable, 4), (StoreFailure::Lost, 1), (StoreFailure::Refused, 1)]
    {
        let (store, remote) = VirtualStore::start(2 * MS, 100 * MS);
        let limit = quota(1_000);
        store.plan(Plan::Fail(failure));
        let task = settle(&store, &remote, charge(&[(1, &limit)]), 100 * MS);
        assert_eq!(task.await.unwrap().0, Err(failure));
        assert_eq!(store.calls(), calls, "{failure:?}");
        let task = settle(&store, &remote, charge(&[(1, &limit)]), 100 * MS);
        virtual_time(MS).await;
        store.plan(Plan::Answer);
        assert_eq!(task.await.unwrap().0.is_ok(), failure == StoreFailure::Unreachable);
        assert_eq!(store.spent(key(1)), u64::from(failure == StoreFailure::Unreachable));
    }
}

/// One cell holds what tollgate did not write: the charges that shared its call are settled.
#[tokio::test(start_paused = true)]
async fn an_unreadable_cell_fails_its_own_charges_alone() {
    let (store, remote) = VirtualStore::start(2 * MS, 100 * MS);
    let limit = quota(1_000);
    let garbage = support::lua::Kept::Text("garbage".to_owned());
    store.lua.lock().put(&format!("t:{}", key(5)), garbage);
    let tasks: Vec<_> =
        (0..30).map(|n| settle(&store, &remote, charge(&[(n, &limit)]), 100 * MS)).collect();
    for (n, task) in tasks.into_iter().enumerate() {
        let (settled, _) = task.await.unwrap();
        if n == 5 {
            assert_eq!(settled, Err(StoreFailure::Unreadable));
        } else {
            assert!(settled.unwrap().charged);
            assert_eq!(store.spent(key(n as u64)), 1, "once");
        }
    }
    assert!(store.sent.lock()[0].len() == 30, "they shared a call");
}

/// Refunds a whole charge.
fn refund(remote: &SharedStore, mut spends: SmallVec<[CellCharge; 4]>, answered: &ChargeReply) {
    for (spend, cell) in spends.iter_mut().zip(&answered.cells) {
        spend.log_chunk = cell.log_chunk;
    }
    remote.refund(spends, answered.at);
}

/// Spends and refunds of a hot key are settled in few calls, whatever a call may mix.
#[tokio::test(start_paused = true)]
async fn refunds_and_spends_of_a_hot_key_are_batched() {
    let (store, remote) = VirtualStore::start(2 * MS, 200 * MS);
    let limit = quota(100_000);
    let tasks: Vec<_> = (0..128)
        .map(|_| {
            let (remote, clock) = (Arc::clone(&remote), Arc::clone(&store.clock));
            let charge = charge(&[(1, &limit)]);
            tokio::spawn(async move {
                for _ in 0..20 {
                    let now = clock.now().mono;
                    let deadline = now.saturating_add(Nanos::from_millis(200));
                    let settled = remote.settle(charge.clone(), 1, deadline, now).await;
                    refund(&remote, charge.cell_charges.clone(), &settled.unwrap());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    virtual_time(Duration::from_secs(1)).await;
    let HistogramTotals { count: calls, sum: charges } = remote.metrics().batches.totals();
    println!("{charges} charges in {calls} calls");
    assert_eq!(charges, 2 * 128 * 20);
    assert!(charges > 8 * calls, "{charges} charges in {calls} calls");
    assert_eq!(store.spent(key(1)), 0);
    assert!(remote.is_quiet());
}

/// What was admitted without the store is reported once, and what a failed report certainly did not
/// execute is reported again; refunds and debits that found no store follow too.
#[tokio::test(start_paused = true)]
async fn unreported_usage_is_reported_exactly_once() {
    let (store, remote) = VirtualStore::start(2 * MS, 100 * MS);
    let limit = quota(1_000);
    let spends = |n: u64| charge(&[(n, &limit)]).cell_charges;
    let spent = settle(&store, &remote, charge(&[(3, &limit)]), 100 * MS).await.unwrap().0.unwrap();
    // Single failures are reported too: the store never was away.
    store.plan(Plan::Fail(StoreFailure::Refused));
    for n in 1..=2 {
        for _ in 0..5 {
            let _ = remote.record_unreported(&spends(n)[0], store.clock.now());
        }
    }
    remote.debit(spends(4)[0].clone());
    refund(&remote, spends(3), &spent);
    virtual_time(Duration::from_secs(5)).await;
    assert_eq!([1, 2, 3, 4].map(|n| store.spent(key(n))), [0, 0, 1, 0]);
    store.plan(Plan::Answer);
    virtual_time(Duration::from_secs(2)).await;
    assert_eq!([1, 2, 3, 4].map(|n| store.spent(key(n))), [5, 5, 0, 1]);

    // Executed, but the reply is lost: it may have been charged, and is not reported again.
    store.plan(Plan::LoseReply);
    remote.record_unreported(&spends(1)[0], store.clock.now());
    virtual_time(Duration::from_secs(3)).await;
    store.plan(Plan::Answer);
    virtual_time(Duration::from_secs(3)).await;
    assert_eq!(store.spent(key(1)), 6);

    // While the store is away nothing is sent; soon after it is back all is.
    store.set_readiness(Readiness::Away);
    remote.record_unreported(&spends(2)[0], store.clock.now());
    remote.debit(spends(4)[0].clone());
    let calls = store.calls();
    virtual_time(Duration::from_secs(5)).await;
    assert_eq!(store.calls(), calls);
    store.set_readiness(Readiness::Ready);
    virtual_time(600 * MS).await;
    assert_eq!([2, 4].map(|n| store.spent(key(n))), [6, 2]);
    assert_eq!(remote.metrics().unreported_lost(), 0);
}

/// Calls of a Cluster are of one slot; the order of calls is the same in every run.
#[tokio::test(start_paused = true)]
async fn calls_of_a_cluster_are_of_one_slot_and_runs_repeat() {
    let mut runs = Vec::new();
    for slots in [false, true, true] {
        let (store, remote) = VirtualStore::start_with(3 * MS, 100 * MS, slots);
        let limit = quota(1_000_000);
        let mut tasks = Vec::new();
        for round in 0..20u64 {
            for n in 0..100u64 {
                let cell = (n * n + round) % 37;
                tasks.push(settle(&store, &remote, charge(&[(cell, &limit)]), 100 * MS));
            }
            virtual_time(MS).await;
        }
        for task in tasks {
            assert!(task.await.unwrap().0.is_ok());
        }
        let sum: u64 = (0..37).map(|n| store.spent(key(n))).sum();
        assert_eq!(sum, 2_000);
        let sent = std::mem::take(&mut *store.sent.lock());
        let most = sent.iter().map(Vec::len).max();
        assert!(if slots { most == Some(1) } else { most > Some(8) }, "{most:?}");
        runs.push(sent);
    }
    assert_eq!(runs[1], runs[2]);
}
