//! Many keys at once: those of one limit do not hide those of another, and new counts do not crowd out what is known.

use super::mixtures::{Fleet, key, turned};

#[test]
fn a_flood_under_one_limit_hides_nothing_of_another() {
    const LIMITS: &str = "{ tier: estimate, rate: 100/600s, key: client_ip, scope: fleet }
  tiny: { tier: estimate, rate: 2/600s, key: client_ip, scope: fleet }";
    turned(async {
        let fleet = Fleet::start(2, LIMITS).await;
        let (mut passed, mut flood) = (0, 1_000_000);
        let mut largest = 0.0_f64;
        for _ in 0..30 {
            for node in 0..2 {
                for _ in 0..1_500 {
                    flood += 1;
                    // All of the limit of the key: no change is a larger share of a limit.
                    assert!(fleet.allowed_by("tiny", node, key(flood)));
                    assert!(fleet.allowed_by("tiny", node, key(flood)));
                }
                passed += fleet.passed(node, key(1), 5);
            }
            fleet.exchanges(1).await;
            largest = largest.max(fleet.nodes[0].shown_error());
        }
        // The hidden part is nine, and up to two exchanges bring ten each.
        assert!((100..=130).contains(&passed), "{passed}");
        assert!(largest < 30.0, "{largest}");
    });
}

#[test]
fn a_node_that_comes_later_finds_what_was_counted_before_a_flood() {
    const LIMIT: &str = "{ tier: estimate, rate: 10/600s, key: client_ip, scope: fleet }";
    turned(async {
        let mut fleet = Fleet::start(2, LIMIT).await;
        for n in 0..20 {
            assert_eq!(fleet.passed(0, key(n), 10), 10);
        }
        // Longer than all chunks of a node last. More keys change in each exchange than a chunk has room for.
        for step in 0..70 {
            for n in 0..1_500 {
                assert!(fleet.allowed(0, key(1_000_000 + step * 1_500 + n)));
                assert!(fleet.allowed(0, key(1_000_000 + step * 1_500 + n)));
            }
            fleet.exchanges(1).await;
        }
        fleet.join().await;
        for n in 0..20 {
            assert_eq!(
                fleet.passed(2, key(n), 1),
                0,
                "key {n} has spent its limit on another node"
            );
        }
    });
}

#[test]
fn a_node_without_room_keeps_what_was_counted_under_other_limits() {
    const LIMITS: &str = "{ tier: estimate, rate: 100/600s, key: client_ip, scope: fleet }
  single: { tier: estimate, rate: 1/600s, key: client_ip, scope: fleet }";
    turned(async {
        let fleet = Fleet::start(5, LIMITS).await;
        for n in 0..20 {
            assert_eq!(fleet.passed(1, key(n), 60), 60);
        }
        fleet.exchanges(3).await;
        // More than a node keeps of others. One request is all of the limit of these keys.
        let mut flood = 1_000_000;
        for _ in 0..64 {
            for node in 1..5 {
                for _ in 0..700 {
                    flood += 1;
                    assert!(fleet.allowed_by("single", node, key(flood)));
                }
            }
            fleet.exchanges(1).await;
        }
        assert!(fleet.nodes[0].shown_error_of("single") > 0.0, "some were dropped");
        for n in 0..20 {
            assert_eq!(fleet.passed(0, key(n), 60), 40, "key {n}");
        }
    });
}
