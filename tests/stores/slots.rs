//! Limits whose cells are in several slots of a Cluster: what a request is told and charged, whatever
//! refuses and whatever fails.

use std::time::Duration;

use fastrand::Rng;
use http::HeaderMap;
use tollgate::clock::{Clock, Nanos};
use tollgate::engine::{
    Decision, Engine, FinalResponse, LimitVerdict, Outcome, PendingSettlement, VerdictKind,
};
use tollgate::policy::LimitIndex;
use tollgate::store::redis::StoreFailure;

use crate::cluster::{Cluster, Fate, generation, quiet};
use crate::engines::{Node, facts, headers, secret};
use support::wait::virtual_time;

const KEYS: [(&str, &str); 3] = [("x-a", "k"), ("x-b", "k"), ("x-c", "k")];

/// Within so long, what was not sent is reported.
const REPORTED: Duration = Duration::from_secs(5);

/// Three fixed windows; `rules` are what stands in each besides.
fn policy(rates: [&str; 3], rules: [&str; 3]) -> String {
    let limit = |n: usize| {
        let (name, rate, rule) = (["a", "b", "c"][n], rates[n], rules[n]);
        format!(
            "  {name}: {{ tier: exact, algorithm: fixed_window, rate: {rate}, \
             key: header:x-{name}, missing_key: skip{rule} }}\n"
        )
    };
    format!(
        "limits:\n{}{}{}routes: [{{ name: r, limits: [a, b, c] }}]\n",
        limit(0),
        limit(1),
        limit(2)
    )
}

/// The slots of the three limits, which differ.
fn slots(node: &Node) -> [u16; 3] {
    let slots = ["a", "b", "c"].map(|limit| node.slot(limit, &KEYS));
    assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[0] != slots[2]);
    slots
}

async fn spend(node: &Node, keys: &[(&'static str, &str)], times: usize) {
    for _ in 0..times {
        assert_eq!(node.decide("/", keys).await.outcome, Outcome::Allowed);
    }
}

/// Limit, kind and what is left, of each answer.
fn told(decision: &Decision) -> Vec<(usize, VerdictKind, u32)> {
    let told = |answer: &LimitVerdict| (answer.limit.0, answer.kind, answer.verdict.remaining);
    decision.verdicts.iter().map(told).collect()
}

fn spent(cluster: &Cluster, node: &Node) -> [u64; 3] {
    ["a", "b", "c"].map(|limit| cluster.spent(&node.cell(limit, &KEYS)))
}

use VerdictKind::{Allowed, DegradedAllowed, DegradedDenied, Denied};

/// A random policy of three limits over three slots answers to the unit and to the microsecond as the
/// embedded store does, where one lock judges all of them.
#[tokio::test]
async fn several_slots_answer_as_the_embedded_store_does() {
    let mut refused = [0; 4];
    for seed in 0..150 {
        let mut random = Rng::with_seed(seed);
        let algorithms = ["fixed_window", "sliding_window", "sliding_log", "token_bucket"];
        let limit = |random: &mut Rng, name| {
            let algorithm = random.choice(algorithms).unwrap();
            let (count, period) = (random.u32(1..9), random.choice([1, 7, 60]).unwrap());
            // With `refund` no denial is cached: each request asks the store.
            format!(
                "  {name}: {{ tier: exact, algorithm: {algorithm}, rate: {count}/{period}s, \
                 cost: {}, key: header:x-{name}, missing_key: skip, refund: {{ status: [503] }} }}\n",
                random.u32(1..3).min(count)
            )
        };
        let limits = ["a", "b", "c"].map(|name| limit(&mut random, name)).concat();
        let policy = format!("limits:\n{limits}routes: [{{ name: r, limits: [a, b, c] }}]\n");
        let cluster = Cluster::start();
        let node = cluster.node(&policy);
        let alone = Engine::new(cluster.clock().clone(), secret());
        let of_alone = generation(&alone, &policy);
        for step in 0..60 {
            let keys: Vec<_> = KEYS.into_iter().filter(|_| random.u8(0..4) > 0).collect();
            let headers = headers(&keys);
            let decision = node.decide("/", &keys).await;
            quiet(&node).await;
            let (expected, _) = alone.decide_now(&of_alone, &facts("/", &headers));
            assert_eq!(
                (decision.outcome, decision.verdicts.as_slice(), decision.retry_after()),
                (expected.outcome, expected.verdicts.as_slice(), expected.retry_after()),
                "seed {seed}, step {step}: {keys:?}\n{policy}"
            );
            refused[decision.refusing().count()] += 1;
            if random.bool() {
                cluster.clock().advance(Nanos::new(random.u64(1..4_000_000) * 1_000));
            }
        }
    }
    println!("requests by the number of limits that refuse: {refused:?}");
    assert!(refused.iter().all(|count| *count > 50), "{refused:?}");
}

/// A denial that is cached is told without asking; the other limits that refuse are cached too.
#[tokio::test]
async fn every_refusing_limit_is_named_again_from_the_cache() {
    let cluster = Cluster::start();
    let node = cluster.node(&policy(["9/1m", "2/1m", "2/1h"], ["", "", ""]));
    spend(&node, &KEYS, 2).await;
    let first = node.decide("/", &KEYS).await;
    assert_eq!(told(&first), [(0, Allowed, 7), (1, Denied, 0), (2, Denied, 0)]);
    assert_eq!(first.retry_after(), Some(Nanos::from_secs(3_600)));
    quiet(&node).await;
    assert_eq!(spent(&cluster, &node), [2, 2, 2]);
    cluster.take_seen();
    let second = node.decide("/", &KEYS).await;
    assert_eq!(told(&second), [(1, Denied, 0), (2, Denied, 0)]);
    assert_eq!(second.retry_after(), Some(Nanos::from_secs(3_600)));
    assert!(cluster.take_seen().is_empty(), "the store was asked");
}

/// What one limit of a failing slot does, beside one that refuses and one that admits.
#[tokio::test]
async fn a_slot_that_fails_is_judged_as_its_limit_says() {
    // The rule of the first limit, whether the second one refuses, and what the request is told.
    let cases = [
        (
            "local",
            false,
            Outcome::Allowed,
            vec![(0, DegradedAllowed, 8), (1, Allowed, 1), (2, Allowed, 7)],
        ),
        (
            "allow",
            false,
            Outcome::Allowed,
            vec![(0, DegradedAllowed, 8), (1, Allowed, 1), (2, Allowed, 7)],
        ),
        (
            "deny",
            false,
            Outcome::Outage,
            vec![(0, DegradedDenied, 0), (1, Allowed, 2), (2, Allowed, 8)],
        ),
        (
            "local",
            true,
            Outcome::Limited,
            vec![(0, DegradedAllowed, 9), (1, Denied, 0), (2, Allowed, 8)],
        ),
        (
            "allow",
            true,
            Outcome::Limited,
            vec![(0, DegradedAllowed, 9), (1, Denied, 0), (2, Allowed, 8)],
        ),
        ("deny", true, Outcome::Limited, vec![(1, Denied, 0), (2, Allowed, 8)]),
    ];
    for (rule, refuses, outcome, expected) in cases {
        let text = format!(", on_store_failure: {rule}");
        let rate = if refuses { "1/1m" } else { "3/1m" };
        let cluster = Cluster::start();
        let node = cluster.node(&policy(["9/1m", rate, "9/1h"], [&text, "", ""]));
        spend(&node, &KEYS, 1).await;
        cluster.take_away(slots(&node)[0]);
        let decision = node.decide("/", &KEYS).await;
        assert_eq!(decision.outcome, outcome, "{rule}, {refuses}");
        assert_eq!(told(&decision), expected, "{rule}, {refuses}");
        quiet(&node).await;
        let more = u64::from(outcome == Outcome::Allowed);
        assert_eq!(spent(&cluster, &node)[1..], [1 + more; 2], "{rule}, {refuses}");
        if outcome == Outcome::Limited {
            assert_eq!(decision.retry_after(), Some(Nanos::from_secs(60)), "{rule}");
        }
    }
}

/// The slot that fails may come last, after others were charged.
#[tokio::test]
async fn what_was_charged_is_refunded_in_an_outage() {
    let cluster = Cluster::start();
    let node = cluster.node(&policy(["9/1m"; 3], ["", ", on_store_failure: deny", ""]));
    let [a, b, c] = slots(&node);
    cluster.set_fates(move |seen| match seen {
        (slot, "s") if slot == b => Fate::Failed(StoreFailure::Unreachable),
        _ => Fate::Answered,
    });
    let decision = node.decide("/", &KEYS).await;
    assert_eq!(decision.outcome, Outcome::Outage);
    assert_eq!(told(&decision), [(0, Allowed, 9), (1, DegradedDenied, 0), (2, Allowed, 9)]);
    quiet(&node).await;
    let mut seen = cluster.take_seen();
    // What certainly was not sent may be tried again within the deadline.
    seen.sort_unstable();
    seen.dedup();
    let mut expected =
        [(a, "q"), (b, "q"), (c, "q"), (a, "s"), (b, "s"), (c, "s"), (a, "r"), (c, "r")];
    expected.sort_unstable();
    assert_eq!(seen, expected);
    assert_eq!(spent(&cluster, &node), [0, 0, 0]);
}

/// A refund that cannot be sent leaves the charge, so that never more is admitted, and is made when
/// the server takes it.
#[tokio::test(start_paused = true)]
async fn a_refund_that_cannot_be_sent_is_made_later() {
    let cluster = Cluster::start();
    let node = cluster.node(&policy(["9/1d"; 3], ["", ", on_store_failure: deny", ""]));
    let [a, b, _] = slots(&node);
    cluster.set_fates(move |seen| match seen {
        (slot, "r") if slot == a => Fate::Failed(StoreFailure::Unreachable),
        (slot, "s") if slot == b => Fate::Failed(StoreFailure::Unreachable),
        _ => Fate::Answered,
    });
    let decision = node.decide("/", &KEYS).await;
    assert_eq!(told(&decision), [(0, Allowed, 9), (1, DegradedDenied, 0), (2, Allowed, 9)]);
    virtual_time(REPORTED).await;
    assert_eq!(spent(&cluster, &node), [1, 0, 0]);
    cluster.set_fates(|_| Fate::Answered);
    virtual_time(REPORTED).await;
    assert_eq!(spent(&cluster, &node), [0, 0, 0]);
}

/// What was admitted without the store is reported to it, but for what was refunded before.
#[tokio::test(start_paused = true)]
async fn what_was_not_sent_is_reported_and_its_refund_is_not() {
    let cluster = Cluster::start();
    let refund = ", refund: { status: [503] }";
    let node = cluster.node(&policy(["9/1d"; 3], [refund, "", ""]));
    cluster.fail(slots(&node)[0], Fate::Failed(StoreFailure::Unreachable));
    for status in [200, 503, 200] {
        let (mut decision, mut pending) = node.open("/", &KEYS).await;
        assert_eq!(decision.verdicts[0].kind, DegradedAllowed);
        answer(&node, &mut decision, &mut pending, status);
    }
    cluster.set_fates(|_| Fate::Answered);
    virtual_time(REPORTED).await;
    assert_eq!(spent(&cluster, &node), [2, 3, 3]);
}

fn answer(node: &Node, decision: &mut Decision, pending: &mut PendingSettlement, status: u16) {
    let response = FinalResponse { status, headers: &HeaderMap::new(), by_origin: true };
    node.engine.finish(&node.generation, decision, pending, &response);
}

/// No failure of the store is the client's fault: none is a denial, and none counts towards a ban.
#[tokio::test]
async fn a_failing_store_never_bans() {
    let failures = [
        StoreFailure::Timeout,
        StoreFailure::Unreachable,
        StoreFailure::Lost,
        StoreFailure::Withdrawn,
        StoreFailure::QueueFull,
        StoreFailure::Refused,
    ];
    for rule in ["deny", "local"] {
        let text = format!(
            ", on_store_failure: {rule}, penalty: {{ after: 1, within: 1m, ban: 10m, double_up_to: 1h }}"
        );
        for failure in failures {
            let cluster = Cluster::start();
            let node = cluster.node(&policy(["9/1m"; 3], [&text, "", ""]));
            cluster.fail(slots(&node)[0], Fate::Failed(failure));
            for _ in 0..5 {
                let decision = node.decide("/", &KEYS).await;
                let expected = if rule == "deny" { Outcome::Outage } else { Outcome::Allowed };
                assert_eq!(decision.outcome, expected, "{rule}, {failure:?}");
                assert_eq!(decision.retry_after(), None);
            }
            let counters = node.generation.counters(LimitIndex(0));
            assert_eq!((counters.bans(), counters.get(Denied)), (0, 0), "{rule}, {failure:?}");
        }
    }
}

/// With `local`, what this node's own count denies is a denial like any other.
#[tokio::test]
async fn what_this_node_denies_by_its_own_count_does_ban() {
    let rule = ", penalty: { after: 2, within: 1m, ban: 10m, double_up_to: 1h }";
    let cluster = Cluster::start();
    let node = cluster.node(&policy(["3/1m", "9/1m", "9/1m"], [rule, "", ""]));
    cluster.take_away(slots(&node)[0]);
    spend(&node, &KEYS, 3).await;
    for _ in 0..2 {
        let decision = node.decide("/", &KEYS).await;
        assert_eq!(told(&decision), [(0, DegradedDenied, 0), (1, Allowed, 6), (2, Allowed, 6)]);
        quiet(&node).await;
    }
    assert!(node.decide("/", &KEYS).await.is_banned());
}

/// A charge whose reply was lost counts as charged in the store: it is not reported again, and its
/// refund is made in this process only.
#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_charged_once_in_the_store() {
    for failure in [StoreFailure::Timeout, StoreFailure::Lost] {
        let cluster = Cluster::start();
        let refund = ", refund: { status: [503] }";
        let node = cluster.node(&policy(["9/1d"; 3], [refund, "", ""]));
        let [a, ..] = slots(&node);
        cluster.set_fates(move |seen| match seen {
            (slot, "s") if slot == a => Fate::Executed(failure),
            _ => Fate::Answered,
        });
        let (mut decision, mut pending) = node.open("/", &KEYS).await;
        assert_eq!(told(&decision), [(0, DegradedAllowed, 8), (1, Allowed, 8), (2, Allowed, 8)]);
        cluster.set_fates(|_| Fate::Answered);
        cluster.take_seen();
        answer(&node, &mut decision, &mut pending, 503);
        virtual_time(REPORTED).await;
        assert_eq!(cluster.take_seen(), [], "{failure:?}: nobody knows what the store has");
        assert_eq!(spent(&cluster, &node), [1, 1, 1], "{failure:?}");
        // This node's own count has it back.
        cluster.take_away(a);
        let decision = node.decide("/", &KEYS).await;
        assert_eq!(told(&decision)[0], (0, DegradedAllowed, 8), "{failure:?}");
    }
}

/// A question whose answer was lost has charged nothing: what this node admits instead is reported.
#[tokio::test(start_paused = true)]
async fn a_question_that_is_lost_charges_nothing() {
    let cluster = Cluster::start();
    let node = cluster.node(&policy(["9/1d"; 3], ["", "", ""]));
    let [a, ..] = slots(&node);
    cluster.fail(a, Fate::Executed(StoreFailure::Lost));
    let decision = node.decide("/", &KEYS).await;
    assert_eq!(told(&decision), [(0, DegradedAllowed, 8), (1, Allowed, 8), (2, Allowed, 8)]);
    cluster.set_fates(|_| Fate::Answered);
    virtual_time(REPORTED).await;
    assert_eq!(spent(&cluster, &node), [1, 1, 1]);
}

/// A request that one slot refuses charges nothing anywhere, so nobody else is refused for it.
#[tokio::test]
async fn a_request_that_is_refused_disturbs_nobody() {
    let cluster = Cluster::start();
    let node = cluster.node(&policy(["1/1m", "1/1m", "9/1m"], ["", "", ""]));
    let [a, b, c] = slots(&node);
    spend(&node, &KEYS[1..2], 1).await;
    cluster.take_seen();
    assert_eq!(node.decide("/", &KEYS).await.outcome, Outcome::Limited);
    let mut seen = cluster.take_seen();
    seen.sort_unstable();
    let mut expected = [(a, "q"), (b, "q"), (c, "q")];
    expected.sort_unstable();
    assert_eq!(seen, expected);
    spend(&node, &KEYS[..1], 1).await;
}

/// One deadline holds for all slots together.
#[tokio::test]
async fn all_slots_share_one_deadline() {
    let cluster = Cluster::start();
    let node = cluster.node(&policy(["9/1m"; 3], ["", "", ""]));
    let [a, b, c] = slots(&node);
    cluster.set_latency(Nanos::from_millis(15));
    let began = cluster.clock().now().mono;
    let decision = node.decide("/", &KEYS).await;
    let mut seen = cluster.take_seen();
    seen.sort_unstable();
    let mut expected = [(a, "q"), (b, "q"), (c, "q")];
    expected.sort_unstable();
    assert_eq!(seen, expected, "the first slot is charged too late");
    assert!(decision.is_degraded() && decision.outcome == Outcome::Allowed);
    let took = cluster.clock().now().mono.saturating_sub(began);
    assert!(took <= Nanos::from_millis(45), "{took:?}");
}
