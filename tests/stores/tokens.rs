//! Tokens that are not checked because a limit of a shared store is known to refuse the request.

use std::time::Duration;

use tollgate::engine::Outcome;
use tollgate::store::redis::{Readiness, StoreFailure};

use crate::engines::Node;
use crate::virtual_store::{Plan, VirtualStore};
use support::signing;
use support::wait::virtual_time;

/// An address, and what its tokens say; `failure`: what the address's limit does without the store.
fn policy(failure: &str, missing: &str) -> String {
    format!(
        "limits:
  address: {{ tier: exact, algorithm: fixed_window, rate: 5/30d, key: client_ip, on_store_failure: {failure} }}
  token: {{ tier: exact, algorithm: fixed_window, rate: 1000/30d, missing_key: {missing},
           key: {{ jwt: {{ secret_file: tests/policies/keys/secret, claim: sub }} }} }}
routes: [{{ name: r, limits: [token, address] }}]"
    )
}

fn checks(node: &Node) -> u64 {
    signing::of(&node.generation).iter().map(|keys| keys.checks()).sum()
}

async fn send(node: &Node, token: &str) -> Outcome {
    let bearer = format!("Bearer {token}");
    node.decide("/", &[("authorization", &bearer)]).await.outcome
}

const REJECTED: &str = "{ deny: 401 }";

#[tokio::test(start_paused = true)]
async fn a_cached_denial_answers_before_a_signature_is_checked() {
    for (missing, slots) in [(REJECTED, false), ("skip", false), ("client_ip", true)] {
        let (store, remote) =
            VirtualStore::start_with(Duration::from_millis(1), Duration::from_millis(50), slots);
        let node = Node::over(&store, remote, &policy("local", missing));
        let mut outcomes = Vec::new();
        for n in 0..5 {
            outcomes.push(send(&node, &signing::forged(n)).await);
        }
        let expected = |outcome: &Outcome| match missing {
            REJECTED => matches!(outcome, Outcome::MissingKey { status: 401, .. }),
            _ => *outcome == Outcome::Allowed,
        };
        assert!(outcomes.iter().all(expected), "{missing}: {outcomes:?}");
        assert_eq!(store.cell(&node.cell("address", &[])), 5, "{missing}: each was charged");
        // The store says so once, and is asked again after a second.
        for second in 1..4 {
            for n in 0..100 {
                let outcome = send(&node, &signing::forged(second * 1_000 + n)).await;
                assert_eq!(outcome, Outcome::Limited, "{missing}");
            }
            assert_eq!(checks(&node), 5 + second, "{missing}");
            virtual_time(Duration::from_millis(1_100)).await;
        }
        let calls = store.calls();
        for n in 0..100 {
            let outcome = send(&node, &signing::forged(9_000 + n)).await;
            assert_eq!(outcome, Outcome::Limited, "{missing}");
        }
        assert!(store.calls() <= calls + 2, "{missing}");
        assert_eq!(store.cell(&node.cell("address", &[])), 5, "{missing}: no denial is charged");
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_in_vain_is_paid_for_when_a_limit_behind_the_token_refuses() {
    for (slots, readiness) in
        [(false, Readiness::Ready), (true, Readiness::Ready), (false, Readiness::Away)]
    {
        let (store, remote) =
            VirtualStore::start_with(Duration::from_millis(1), Duration::from_millis(50), slots);
        let guests =
            "guests: { tier: exact, algorithm: fixed_window, rate: 1/30d, key: client_ip }";
        let policy = policy("local", "{ limit: guests }")
            .replace("limits:\n", &format!("limits:\n  {guests}\n"));
        let node = Node::over(&store, remote, &policy);
        store.set_readiness(readiness);
        for n in 0..100 {
            let outcome = send(&node, &signing::forged(n)).await;
            let expected = if n == 0 { Outcome::Allowed } else { Outcome::Limited };
            assert_eq!(outcome, expected, "{slots}, {readiness:?}, {n}");
            // What no request waits for is charged meanwhile.
            virtual_time(Duration::from_millis(5)).await;
        }
        // The first denial by the address is the store's to say, for a request whose token is checked.
        let spent = if readiness == Readiness::Ready { 5 + 1 } else { 5 };
        assert!(checks(&node) <= spent, "{slots}, {readiness:?}: {}", checks(&node));
        if readiness == Readiness::Ready {
            assert_eq!(store.cell(&node.cell("address", &[])), 5, "{slots}");
        }
        assert!(node.engine.is_quiet());
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_has_no_more_signatures_checked_than_this_node_admits() {
    for (failure, checked) in [("local", 5), ("deny", 0), ("allow", 100)] {
        let (store, remote) =
            VirtualStore::start(Duration::from_millis(1), Duration::from_millis(50));
        let node = Node::over(&store, remote, &policy(failure, "skip"));
        store.set_readiness(Readiness::Away);
        for n in 0..100 {
            let outcome = send(&node, &signing::forged(n)).await;
            let expected = match failure {
                "deny" => Outcome::Outage,
                _ if n < checked => Outcome::Allowed,
                _ => Outcome::Limited,
            };
            assert_eq!(outcome, expected, "{failure}, {n}");
        }
        assert_eq!(checks(&node), checked, "{failure}");
        assert_eq!(store.calls(), 0, "{failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_forged_token_during_a_failure_is_refused_as_the_limits_say() {
    for (failure, expected) in [("local", 401), ("allow", 401), ("deny", 503)] {
        let (store, remote) =
            VirtualStore::start(Duration::from_millis(1), Duration::from_millis(50));
        let node = Node::over(&store, remote, &policy(failure, REJECTED));
        store.plan(Plan::Fail(StoreFailure::Refused));
        assert_eq!(send(&node, &signing::forged(1)).await.status(), expected, "{failure}");
        assert_eq!(checks(&node), 1, "{failure}");
    }
}
