//! Costs that an answer names after the node has reported the charge, which it made while the store was away.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tollgate::engine::{Decision, FinalResponse, Outcome, PendingSettlement};
use tollgate::policy::LimitIndex;
use tollgate::store::redis::{Readiness, StoreFailure};

use crate::engines::Node;
use crate::virtual_store::{Plan, VirtualStore};
use support::wait::virtual_time;

const MS: Duration = Duration::from_millis(1);

const KEY: &[(&str, &str)] = &[("x-key", "k")];

fn policy(algorithm: &str) -> String {
    format!(
        "
limits:
  units: {{ tier: exact, algorithm: {algorithm}, rate: 1000/30d, key: header:x-key, missing_key: deny,
           cost: {{ response_header: x-cost, reserve: 500, max: 1000 }}, refund: {{ status: [503] }},
           on_store_failure: local }}
routes: [{{ name: r, limits: [units] }}]
"
    )
}

type Open = (Decision, PendingSettlement);

fn start(algorithm: &str) -> (Arc<VirtualStore>, Node) {
    let (store, remote) = VirtualStore::start(2 * MS, 100 * MS);
    let node = Node::over(&store, remote, &policy(algorithm));
    (store, node)
}

/// Requests that the node admits by itself.
async fn admit_alone<const N: usize>(store: &VirtualStore, node: &Node) -> [Open; N] {
    store.set_readiness(Readiness::Away);
    let mut admitted = Vec::new();
    for _ in 0..N {
        let open = node.open("/", KEY).await;
        assert_eq!(open.0.outcome, Outcome::Allowed);
        assert!(open.0.is_degraded());
        admitted.push(open);
    }
    admitted.try_into().unwrap()
}

/// The store is back, and the node has reported to it.
async fn report(store: &VirtualStore) {
    store.set_readiness(Readiness::Ready);
    virtual_time(Duration::from_secs(2)).await;
}

/// The answer comes, with a cost. Returns what the decision says was charged.
async fn answer(node: &Node, (decision, pending): &mut Open, status: u16, cost: &str) -> u32 {
    let headers = HeaderMap::from_iter([(
        http::HeaderName::from_static("x-cost"),
        HeaderValue::from_str(cost).unwrap(),
    )]);
    let response = FinalResponse { status, headers: &headers, by_origin: true };
    node.engine.finish(&node.generation, decision, pending, &response);
    virtual_time(100 * MS).await;
    decision.verdicts[0].charged
}

/// Units spent in the store, as the next request reads them.
async fn spent(node: &Node) -> u32 {
    let (mut decision, mut pending) = node.open("/", KEY).await;
    assert!(!decision.is_degraded());
    let verdict = decision.verdicts[0].verdict;
    let before = 1_000 - verdict.remaining - if verdict.allowed { 500 } else { 0 };
    let headers = HeaderMap::new();
    let response = FinalResponse { status: 503, headers: &headers, by_origin: true };
    node.engine.finish(&node.generation, &mut decision, &mut pending, &response);
    virtual_time(100 * MS).await;
    before
}

const ALGORITHMS: [&str; 4] = ["fixed_window", "sliding_window", "sliding_log", "token_bucket"];

#[tokio::test(start_paused = true)]
async fn a_charge_that_was_reported_is_corrected_in_the_store() {
    for algorithm in ALGORITHMS {
        for (status, cost, kept) in
            [(200, "10", 10), (200, "700", 700), (503, "", 0), (200, "500", 500)]
        {
            let (store, node) = start(algorithm);
            let [mut one] = admit_alone(&store, &node).await;
            report(&store).await;
            assert_eq!(spent(&node).await, 500, "{algorithm}: the reserve is reported");
            let charged = answer(&node, &mut one, status, cost).await;
            virtual_time(Duration::from_secs(2)).await;
            assert_eq!((charged, spent(&node).await), (kept, kept), "{algorithm} {status} {cost}");
        }
    }
}

/// Units above the limit are reported by a charge of their own. A refund takes those back first.
#[tokio::test(start_paused = true)]
async fn a_refund_meets_units_above_the_limit() {
    for algorithm in ALGORITHMS {
        let (store, node) = start(algorithm);
        let [mut first, mut second] = admit_alone(&store, &node).await;
        assert_eq!(answer(&node, &mut first, 200, "700").await, 700);
        report(&store).await;
        assert_eq!(spent(&node).await, 1_000, "{algorithm}: 1200, as far as a verdict shows");
        assert_eq!(answer(&node, &mut second, 200, "10").await, 10);
        assert_eq!(spent(&node).await, 710, "{algorithm}");
    }
}

/// Other nodes had spent the limit, so the store took nothing of the report, and nothing comes back.
#[tokio::test(start_paused = true)]
async fn a_refund_creates_no_units() {
    for algorithm in ALGORITHMS {
        let (store, node) = start(algorithm);
        for _ in 0..2 {
            let (_, elsewhere) = node.open("/", KEY).await;
            drop(elsewhere);
        }
        let [mut one] = admit_alone(&store, &node).await;
        report(&store).await;
        answer(&node, &mut one, 200, "10").await;
        assert_eq!(spent(&node).await, 1_000, "{algorithm}");
    }
}

/// The answer ends while the report is on its way: the refund follows it.
#[tokio::test(start_paused = true)]
async fn a_refund_waits_for_the_report() {
    for failure in [None, Some(StoreFailure::Refused)] {
        let (store, remote) = VirtualStore::start(400 * MS, Duration::from_secs(1));
        let node = Node::over(&store, remote, &policy("fixed_window"));
        let [mut one] = admit_alone(&store, &node).await;
        store.plan(failure.map_or(Plan::Answer, Plan::Fail));
        let calls = store.calls();
        store.set_readiness(Readiness::Ready);
        while store.calls() == calls {
            virtual_time(10 * MS).await;
        }
        assert_eq!(answer(&node, &mut one, 200, "10").await, 10);
        virtual_time(400 * MS).await;
        store.plan(Plan::Answer);
        virtual_time(Duration::from_secs(3)).await;
        assert_eq!(spent(&node).await, 10, "{failure:?}");
    }
}

/// Nobody knows whether the store took the report: the charge stays, and log and counters say so.
#[tokio::test(start_paused = true)]
async fn a_report_whose_reply_is_lost_stays_charged() {
    let (store, node) = start("fixed_window");
    let [mut one] = admit_alone(&store, &node).await;
    store.plan(Plan::LoseReply);
    report(&store).await;
    store.plan(Plan::Answer);
    virtual_time(Duration::from_secs(2)).await;
    assert_eq!(answer(&node, &mut one, 200, "10").await, 500);
    let counters = node.generation.counters(one.0.verdicts[0].limit);
    assert_eq!([counters.charged(), counters.refunded()], [500, 0]);
    assert_eq!(spent(&node).await, 500);
}

/// A report that failed joins what was admitted since: both are corrected.
#[tokio::test(start_paused = true)]
async fn a_report_that_failed_is_corrected_with_newer_usage() {
    let (store, remote) = VirtualStore::start(400 * MS, Duration::from_secs(1));
    let node = Node::over(&store, remote, &policy("fixed_window"));
    let [mut first] = admit_alone(&store, &node).await;
    store.plan(Plan::Fail(StoreFailure::Refused));
    let calls = store.calls();
    store.set_readiness(Readiness::Ready);
    while store.calls() == calls {
        virtual_time(10 * MS).await;
    }
    let [mut second] = admit_alone(&store, &node).await;
    virtual_time(Duration::from_secs(1)).await;
    assert_eq!(answer(&node, &mut second, 200, "20").await, 20);
    store.plan(Plan::Answer);
    report(&store).await;
    assert_eq!(answer(&node, &mut first, 200, "10").await, 10);
    assert_eq!(spent(&node).await, 30);
}

fn counted(node: &Node, decision: &Decision) -> [u64; 2] {
    let limit = decision.verdicts.first().map_or(LimitIndex(0), |verdict| verdict.limit);
    let counters = node.generation.counters(limit);
    [counters.charged(), counters.refunded()]
}

/// The store may have made the charge, and keeps it: nothing of it counts as given back.
#[tokio::test(start_paused = true)]
async fn a_charge_whose_reply_is_lost_stays_charged() {
    let (store, node) = start("fixed_window");
    store.plan(Plan::LoseReply);
    let mut one = node.open("/", KEY).await;
    assert!(one.0.is_degraded());
    store.plan(Plan::Answer);
    assert_eq!(answer(&node, &mut one, 200, "10").await, 500);
    assert_eq!(counted(&node, &one.0), [500, 0]);
    assert_eq!(spent(&node).await, 500);
}

/// A shadow limit that denies has charged nothing, so its answer changes nothing.
#[tokio::test(start_paused = true)]
async fn a_shadow_limit_that_denies_counts_no_late_cost() {
    let (store, remote) = VirtualStore::start(2 * MS, 100 * MS);
    let shadow = policy("fixed_window").replace("tier: exact,", "tier: exact, mode: shadow,");
    let node = Node::over(&store, remote, &shadow);
    let mut counts = Vec::new();
    for _ in 0..3 {
        let (mut decision, mut pending) = node.open("/", KEY).await;
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("x-cost"),
            HeaderValue::from_static("700"),
        )]);
        // Before the store has replied.
        let response = FinalResponse { status: 200, headers: &headers, by_origin: true };
        node.engine.finish(&node.generation, &mut decision, &mut pending, &response);
        virtual_time(100 * MS).await;
        counts.push(counted(&node, &decision));
    }
    assert_eq!(counts, [[700, 0]; 3], "the first one passes, the others are denied");
}

/// Where nothing keeps the units, none count as charged.
#[tokio::test(start_paused = true)]
async fn what_passes_uncounted_is_not_counted() {
    let (store, remote) = VirtualStore::start(2 * MS, 100 * MS);
    let allow =
        policy("fixed_window").replace("on_store_failure: local", "on_store_failure: allow");
    let node = Node::over(&store, remote, &allow);
    store.set_readiness(Readiness::Away);
    let mut one = node.open("/", KEY).await;
    assert_eq!((one.0.outcome, one.0.verdicts[0].charged), (Outcome::Allowed, 0));
    assert_eq!(answer(&node, &mut one, 200, "700").await, 0);
    assert_eq!(counted(&node, &one.0), [0, 0]);
}
