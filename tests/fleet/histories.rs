//! What a node has in the store when it comes back, when its limits change, and when the store has lost data.

use std::time::Duration;

use super::mixtures::{Fleet, key, turned};

const LIMIT: &str = "{ tier: estimate, rate: 2/3600s, key: client_ip, scope: fleet }";

/// More than a node writes in ten exchanges.
const KEYS: u64 = 8_000;

/// A fleet of two nodes of which the first has published that each key has spent its limit.
async fn published() -> Fleet {
    let fleet = Fleet::start(2, LIMIT).await;
    let passed: usize = (0..KEYS).map(|n| fleet.passed(0, key(n), 2)).sum();
    assert_eq!(passed, 2 * KEYS as usize);
    fleet.exchanges(16).await;
    fleet
}

/// How many keys pass on a node that begins now.
async fn admitted_by_a_new_node(fleet: &mut Fleet) -> usize {
    fleet.join().await;
    let new = fleet.nodes.len() - 1;
    (0..KEYS).map(|n| fleet.passed(new, key(n), 1)).sum()
}

#[test]
fn a_node_that_was_away_keeps_its_chunks_until_it_has_written_them_anew() {
    turned(async {
        let mut fleet = published().await;
        fleet.store.set(|faults| faults.cut = 1);
        fleet.exchanges(24).await;
        fleet.store.set(|faults| faults.cut = 0);
        fleet.exchanges(2).await;
        assert_eq!(admitted_by_a_new_node(&mut fleet).await, 0);
    });
}

#[test]
fn a_node_that_counts_under_another_limit_too_keeps_its_chunks() {
    turned(async {
        let mut fleet = published().await;
        let limits = fleet.setup.yaml.replace("limits:\n", &format!("limits:\n  other: {LIMIT}\n"));
        assert_ne!(limits, fleet.setup.yaml);
        fleet.nodes[0].reload(&limits);
        fleet.exchanges(2).await;
        assert_eq!(admitted_by_a_new_node(&mut fleet).await, 0);
    });
}

/// What a key spent before a reset comes back with older data of a store. A node that begins then has not heard of the reset.
#[test]
fn chunks_from_before_a_loss_of_data_are_deleted() {
    turned(async {
        let mut fleet = Fleet::start(2, LIMIT).await;
        assert_eq!(fleet.passed(0, key(1), 2), 2);
        fleet.exchanges(3).await;
        fleet.store.save();
        for node in 0..2 {
            fleet.nodes[node].forget(key(1), 7);
        }
        // Until the node has written each of its chunks, and need not withdraw anything any more.
        for n in 0..70 {
            assert_eq!(fleet.passed(0, key(100 + n), 2), 2);
            fleet.exchanges(1).await;
        }
        fleet.store.restore();
        fleet.exchanges(3).await;
        fleet.join().await;
        assert_eq!(fleet.passed(2, key(1), 2), 2);
    });
}

/// A node that may have missed changes forgets what it counted before them, and believes nobody who may have missed them too.
#[test]
fn a_node_that_has_missed_changes_forgets_what_may_have_been_forgiven() {
    turned(async {
        let fleet = Fleet::start(3, LIMIT).await;
        assert_eq!((fleet.passed(0, key(1), 2), fleet.passed(1, key(2), 2)), (2, 2));
        fleet.exchanges(3).await;
        assert!(!fleet.allowed(1, key(1)) && !fleet.allowed(0, key(2)));
        let (missing, old) = (&fleet.nodes[1], &fleet.nodes[2]);
        assert_eq!(fleet.passed(2, key(3), 2), 2);
        missing.engine.forget_before(&missing.generation, 7, false);
        missing.engine.set_heard_changes(9);
        // The other one counted nothing before them.
        old.engine.forget_before(&old.generation, 7, true);
        old.engine.set_heard_changes(9);
        fleet.exchanges(2).await;
        assert_eq!(fleet.passed(1, key(2), 1), 1, "its own count");
        assert_eq!(fleet.passed(1, key(1), 1), 1, "that of a node that has not made them");
        assert_eq!(fleet.passed(2, key(3), 1), 0, "what it counted since");
        fleet.nodes[0].engine.set_heard_changes(9);
        assert_eq!(fleet.passed(0, key(4), 2), 2);
        fleet.exchanges(3).await;
        assert_eq!(fleet.passed(1, key(4), 1), 0, "it has made them now");
    });
}

/// Nodes that begin in a new history have made no changes. They are believed again when the windows from before have ended; until
/// then a node shows that each counts by itself.
#[test]
fn nodes_of_a_new_history_are_believed_in_the_end() {
    const SHORT: &str = "{ tier: estimate, rate: 2/10s, key: client_ip, scope: fleet }";
    turned(async {
        let fleet = Fleet::start(2, SHORT).await;
        let old = &fleet.nodes[0];
        old.engine.forget_before(&old.generation, 7, true);
        old.engine.set_heard_changes(9);
        assert_eq!(fleet.passed(1, key(2), 2), 2);
        fleet.exchanges(3).await;
        assert_eq!((old.shown_error(), fleet.passed(0, key(2), 2)), (2.0, 2));
        tokio::time::sleep(Duration::from_secs(25)).await;
        fleet.exchanges(1).await;
        assert!(old.shown_error() < 2.0);
        assert_eq!(fleet.passed(1, key(1), 2), 2);
        fleet.exchanges(3).await;
        assert_eq!(fleet.passed(0, key(1), 1), 0);
    });
}
