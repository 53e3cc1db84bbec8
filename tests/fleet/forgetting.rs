//! Resets and bans: what they forget stays forgotten, also where the node that counted it has ended.

use std::time::Duration;

use tollgate::engine::{Decision, Outcome};

use super::mixtures::{Fleet, key, turned};

fn is_banned(decision: &Decision) -> bool {
    decision.outcome == Outcome::Limited && decision.verdicts.iter().any(|verdict| verdict.banned)
}

fn penalty(rule: &str) -> String {
    format!("{{ tier: estimate, rate: 1/1h, key: client_ip, scope: fleet, penalty: {{ {rule} }} }}")
}

const CLIENT: [u8; 4] = [192, 0, 2, 1];

#[test]
fn a_reset_forgets_what_a_node_counted_that_has_ended() {
    const LIMIT: &str = "{ tier: estimate, rate: 10/600s, key: client_ip, scope: fleet }";
    turned(async {
        let fleet = Fleet::start(3, LIMIT).await;
        assert_eq!((fleet.passed(1, key(1), 10), fleet.passed(2, key(1), 0)), (10, 0));
        fleet.exchanges(3).await;
        fleet.store.set(|faults| faults.cut = 1 << 1);
        fleet.exchanges(3).await;
        assert!(!fleet.allowed(0, key(1)) && !fleet.allowed(2, key(1)));
        for node in [0, 2] {
            fleet.nodes[node].forget(key(1), 1);
            assert_eq!(fleet.passed(node, key(1), 1), 1, "at once, on node {node}");
        }
        fleet.exchanges(20).await;
        let passed = fleet.passed(0, key(1), 10) + fleet.passed(2, key(1), 10);
        assert!(passed >= 8, "{passed}: what was forgotten does not come back");
        // A later one is counted again, once what was told before is old.
        fleet.exchanges(3).await;
        assert_eq!(fleet.passed(0, key(1), 1) + fleet.passed(2, key(1), 1), 0);
    });
}

#[test]
fn what_is_counted_after_a_reset_is_believed_at_once() {
    const LIMIT: &str = "{ tier: estimate, rate: 10/600s, key: client_ip, scope: fleet }";
    turned(async {
        let fleet = Fleet::start(2, LIMIT).await;
        assert_eq!(fleet.passed(1, key(1), 10), 10);
        fleet.exchanges(3).await;
        // The other node hears of it a moment later, and counts as much again as it had published.
        fleet.nodes[0].forget(key(1), 7);
        fleet.exchanges(1).await;
        fleet.nodes[1].forget(key(1), 7);
        assert_eq!(fleet.passed(1, key(1), 10), 10);
        fleet.exchanges(3).await;
        assert_eq!(fleet.passed(0, key(1), 10), 0, "ten were counted after the reset");
    });
}

#[test]
fn a_node_that_starts_long_after_a_reset_believes_what_was_counted_since() {
    const LIMIT: &str = "{ tier: estimate, rate: 10/600s, key: client_ip, scope: fleet }";
    turned(async {
        let mut fleet = Fleet::start(2, LIMIT).await;
        for node in &fleet.nodes {
            node.forget(key(1), 7);
        }
        assert_eq!((fleet.passed(1, key(1), 10), fleet.passed(1, key(2), 10)), (10, 10));
        fleet.exchanges(3).await;
        fleet.join().await;
        // The store tells it all resets of the last weeks.
        fleet.nodes[2].forget(key(1), 7);
        fleet.exchanges(3).await;
        assert_eq!((fleet.passed(2, key(2), 10), fleet.passed(2, key(1), 10)), (0, 0));
    });
}

#[test]
fn denials_of_a_window_that_has_ended_do_not_ban() {
    turned(async {
        let fleet = Fleet::start(2, &penalty("after: 10, within: 10s, ban: 1h")).await;
        // The first passes.
        for _ in 0..10 {
            assert!(!is_banned(&fleet.nodes[1].decide(CLIENT)));
        }
        fleet.exchanges(3).await;
        tokio::time::sleep(Duration::from_secs(9)).await;
        for node in &fleet.nodes {
            assert!(!is_banned(&node.decide(CLIENT)), "nine were denied over 10 s ago");
            assert!(!is_banned(&node.decide(CLIENT)));
        }
    });
}

#[test]
fn denials_count_after_a_window_that_was_full_of_them() {
    turned(async {
        let fleet = Fleet::start(2, &penalty("after: 20, within: 60s, ban: 1h")).await;
        // The first passes.
        for n in 0..19 {
            assert!(!is_banned(&fleet.nodes[n % 2].decide(CLIENT)));
        }
        tokio::time::sleep(Duration::from_secs(61)).await;
        for _ in 0..10 {
            assert!(!is_banned(&fleet.nodes[0].decide(CLIENT)));
        }
        fleet.exchanges(3).await;
        for _ in 0..10 {
            assert!(!is_banned(&fleet.nodes[1].decide(CLIENT)));
        }
        assert!(is_banned(&fleet.nodes[1].decide(CLIENT)), "ten and ten");
    });
}

#[test]
fn denials_of_a_node_that_has_ended_ban_once() {
    turned(async {
        let fleet = Fleet::start(2, &penalty("after: 10, within: 600s, ban: 2s")).await;
        for _ in 0..10 {
            assert!(!is_banned(&fleet.nodes[1].decide(CLIENT)));
        }
        fleet.exchanges(3).await;
        fleet.store.set(|faults| faults.cut = 1 << 1);
        // Denied, since the limit is spent on the other node: the tenth denial.
        fleet.nodes[0].decide(CLIENT);
        assert!(is_banned(&fleet.nodes[0].decide(CLIENT)));
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert!(!is_banned(&fleet.nodes[0].decide(CLIENT)), "the ban is over");
            assert!(!is_banned(&fleet.nodes[0].decide(CLIENT)), "a denial makes no new ban");
        }
    });
}

#[test]
fn a_ban_that_is_shorter_than_an_exchange_clears_denials_too() {
    turned(async {
        let fleet = Fleet::start(2, &penalty("after: 10, within: 600s, ban: 300ms")).await;
        for _ in 0..10 {
            assert!(!is_banned(&fleet.nodes[1].decide(CLIENT)));
        }
        fleet.exchanges(3).await;
        fleet.nodes[0].decide(CLIENT);
        let banned = fleet.nodes[0].decide(CLIENT);
        assert!(is_banned(&banned));
        // The store tells the other node.
        fleet.nodes[1].hear_ban(banned.verdicts[0].key, Duration::from_millis(100), 7);
        tokio::time::sleep(Duration::from_millis(350)).await;
        for _ in 0..4 {
            for node in &fleet.nodes {
                assert!(!is_banned(&node.decide(CLIENT)));
            }
            fleet.exchanges(3).await;
        }
    });
}

#[test]
fn denials_that_led_to_a_ban_do_not_count_again_after_a_cut() {
    turned(async {
        let mut fleet = Fleet::start(3, &penalty("after: 10, within: 600s, ban: 5s")).await;
        // The first passes.
        for _ in 0..6 {
            assert!(!is_banned(&fleet.nodes[1].decide(CLIENT)));
        }
        for _ in 0..3 {
            assert!(!is_banned(&fleet.nodes[2].decide(CLIENT)));
        }
        fleet.exchanges(3).await;
        fleet.store.set(|faults| faults.cut = 1 << 1 | 1 << 2);
        for _ in 0..3 {
            fleet.nodes[0].decide(CLIENT);
        }
        let banned = fleet.nodes[0].decide(CLIENT);
        assert!(is_banned(&banned), "five, two and three");
        let key = banned.verdicts[0].key;
        tokio::time::sleep(Duration::from_secs(8)).await;
        // One node is back and hears of the ban after its end; another one has ended, and a new one hears of it too.
        fleet.store.set(|faults| faults.cut = 1 << 2);
        fleet.nodes[0].hear_ban(key, Duration::ZERO, 7);
        fleet.exchanges(3).await;
        fleet.nodes[1].hear_ban(key, Duration::ZERO, 7);
        fleet.join().await;
        fleet.nodes[3].hear_ban(key, Duration::ZERO, 7);
        fleet.exchanges(3).await;
        for _ in 0..3 {
            for node in [0, 1, 3] {
                assert!(
                    !is_banned(&fleet.nodes[node].decide(CLIENT)),
                    "those before have led to a ban"
                );
                fleet.exchanges(3).await;
            }
        }
        fleet.nodes[3].decide(CLIENT);
        assert!(is_banned(&fleet.nodes[3].decide(CLIENT)), "ten since the ban");
    });
}

#[test]
fn a_ban_that_is_lifted_forgets_denials_of_all_nodes() {
    turned(async {
        let fleet = Fleet::start(2, &penalty("after: 4, within: 600s, ban: 1h")).await;
        // The first passes.
        for _ in 0..3 {
            assert!(!is_banned(&fleet.nodes[0].decide(CLIENT)));
        }
        fleet.exchanges(3).await;
        // Two denials here and two there.
        for _ in 0..2 {
            assert!(!is_banned(&fleet.nodes[1].decide(CLIENT)));
        }
        let banned = fleet.nodes[1].decide(CLIENT);
        assert!(is_banned(&banned));
        // Before the other node has heard of the ban.
        for node in &fleet.nodes {
            node.lift_ban(banned.verdicts[0].key, 1);
        }
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(!is_banned(&fleet.nodes[0].decide(CLIENT)));
        fleet.exchanges(3).await;
        for _ in 0..3 {
            assert!(!is_banned(&fleet.nodes[1].decide(CLIENT)), "one denial there, three here");
        }
        assert!(is_banned(&fleet.nodes[1].decide(CLIENT)), "and these ban");
    });
}

#[test]
fn a_node_believes_nothing_before_it_has_heard_what_was_forgotten() {
    turned(async {
        let mut fleet = Fleet::start(2, &penalty("after: 10, within: 600s, ban: 2s")).await;
        // The first passes.
        for _ in 0..10 {
            assert!(!is_banned(&fleet.nodes[1].decide(CLIENT)));
        }
        fleet.exchanges(3).await;
        // The node that counted nine denials has ended. They lead to a ban, which ends.
        fleet.store.set(|faults| faults.cut = 1 << 1);
        fleet.nodes[0].decide(CLIENT);
        let banned = fleet.nodes[0].decide(CLIENT);
        assert!(is_banned(&banned));
        tokio::time::sleep(Duration::from_secs(3)).await;
        fleet.join_young().await;
        for _ in 0..3 {
            assert!(!is_banned(&fleet.nodes[2].decide(CLIENT)), "nine have led to a ban");
        }
        fleet.nodes[2].engine.set_heard_changes(0);
        fleet.nodes[2].hear_ban(banned.verdicts[0].key, Duration::ZERO, 7);
        fleet.exchanges(3).await;
        for _ in 0..9 {
            assert!(!is_banned(&fleet.nodes[2].decide(CLIENT)), "nine have led to a ban");
        }
        fleet.nodes[2].decide(CLIENT);
        assert!(is_banned(&fleet.nodes[2].decide(CLIENT)));
    });
}

#[test]
fn a_node_counts_alone_until_it_has_heard_of_the_changes() {
    const LIMIT: &str = "{ tier: estimate, rate: 10/600s, key: client_ip, scope: fleet }";
    turned(async {
        let mut fleet = Fleet::start(2, LIMIT).await;
        assert_eq!(fleet.passed(1, key(1), 10), 10);
        fleet.exchanges(3).await;
        fleet.join_young().await;
        assert_eq!(fleet.passed(2, key(1), 1), 1, "it may have been reset");
        fleet.nodes[2].hear_of_nothing();
        fleet.exchanges(2).await;
        assert_eq!(fleet.passed(2, key(1), 1), 0);
    });
}
