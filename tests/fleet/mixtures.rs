//! What counting over the fleet meets: refunds, resets, penalties, keys without room, floods of keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate::engine::{FleetOutcome, Outcome};
use tollgate::policy::KeyHash;

use super::node::{Node, Setup};
use super::store::{Faults, Store};
use super::time::{NodeClock, World};

/// Some nodes that exchange counts.
pub(super) struct Fleet {
    pub(super) store: Arc<Store>,
    pub(super) nodes: Vec<Arc<Node>>,
    clocks: Vec<Arc<NodeClock>>,
    every: Duration,
    world: Arc<World>,
    pub(super) setup: Setup,
}

impl Fleet {
    pub(super) async fn start(nodes: usize, limits: &str) -> Self {
        Self::start_with(nodes, limits, |_| {}).await
    }

    async fn start_with(nodes: usize, limits: &str, faults: impl FnOnce(&mut Faults)) -> Self {
        let every = Duration::from_millis(500);
        let world = World::new(1_000_000_000);
        let store = Store::new(&world, 7);
        store.set(faults);
        let yaml = format!(
            "version: 1
listeners: [{{ address: 127.0.0.1:1 }}]
origins: {{ site: {{ servers: [127.0.0.1:2] }} }}
store: {{ redis: {{ url: \"redis://127.0.0.1:3\" }} }}
fleet: {{ error: 10%, every: 500ms }}
limits:
  it: {limits}
routes: [{{ name: site, origin: site, limits: [it] }}]
"
        );
        let clocks: Vec<_> =
            (0..nodes).map(|n| NodeClock::new(&world, 0, 0, 1_000 * (n as u64 + 1))).collect();
        let setup = Setup { yaml, secret: 5 };
        let start = |(n, clock)| Node::start(n, &setup, &store, Arc::clone(clock));
        let nodes: Vec<_> = clocks.iter().enumerate().map(start).collect();
        for node in &nodes {
            tokio::spawn(Arc::clone(node).exchange());
        }
        let fleet = Self { store, nodes, clocks, every, world, setup };
        fleet.exchanges(3).await;
        fleet
    }

    /// Starts another node.
    pub(super) async fn join(&mut self) {
        self.join_young().await;
        self.nodes[self.nodes.len() - 1].hear_of_nothing();
        self.exchanges(5).await;
    }

    /// Adds a node that does not hear of changes and bans.
    pub(super) async fn join_young(&mut self) {
        let index = self.nodes.len();
        let clock = NodeClock::new(&self.world, 0, 0, 1_000 * (index as u64 + 1));
        let node = Node::begin(index, &self.setup, &self.store, Arc::clone(&clock));
        tokio::spawn(Arc::clone(&node).exchange());
        self.nodes.push(node);
        self.clocks.push(clock);
        self.exchanges(5).await;
    }

    pub(super) async fn exchanges(&self, count: u32) {
        tokio::time::sleep(self.every * count + Duration::from_millis(10)).await;
        self.nodes.iter().for_each(|node| node.engine.tick(&node.generation));
    }

    pub(super) fn allowed(&self, node: usize, key: KeyHash) -> bool {
        self.nodes[node].request(key, self.clocks[node].now()).allowed
    }

    /// Whether a request of a key passes the limit of a name.
    pub(super) fn allowed_by(&self, limit: &str, node: usize, key: KeyHash) -> bool {
        let (table, now) = (self.nodes[node].engine.confirm_table(), self.clocks[node].now());
        self.nodes[node].estimate_named(limit).charge(table, key, 1, now).0.allowed
    }

    /// How many of some requests pass.
    pub(super) fn passed(&self, node: usize, key: KeyHash, requests: usize) -> usize {
        (0..requests).filter(|_| self.allowed(node, key)).count()
    }
}

pub(super) fn turned<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(test)
}

pub(super) fn key(n: u64) -> KeyHash {
    let mut random = fastrand::Rng::with_seed(n);
    KeyHash { high: random.u64(..), low: random.u64(..) }
}

const PAGES: &str = "{ tier: estimate, rate: 10/60s, key: client_ip, scope: fleet }";

#[test]
fn the_limit_is_one_number_over_all_nodes() {
    turned(async {
        let fleet = Fleet::start(3, PAGES).await;
        assert_eq!(fleet.passed(0, key(1), 4), 4);
        assert_eq!(fleet.passed(1, key(1), 4), 4);
        fleet.exchanges(3).await;
        assert_eq!(fleet.passed(2, key(1), 9), 2);
        // The same by node is three times the limit.
        let scope = PAGES.replace("fleet", "node");
        let fleet = Fleet::start(3, &scope).await;
        let passed: usize = (0..3).map(|node| fleet.passed(node, key(1), 20)).sum();
        assert_eq!(passed, 30);
    });
}

#[test]
fn a_reset_and_a_refund_reach_the_other_nodes() {
    turned(async {
        let fleet = Fleet::start(2, PAGES).await;
        assert_eq!(fleet.passed(0, key(1), 10), 10);
        let (table, estimate) = (fleet.nodes[0].engine.confirm_table(), fleet.nodes[0].estimate());
        let receipt = estimate.debit(table, key(2), 10, fleet.clocks[0].now());
        fleet.exchanges(2).await;
        assert!(!fleet.allowed(1, key(1)) && !fleet.allowed(1, key(2)));
        table.reset(key(1));
        estimate.refund(table, receipt);
        fleet.exchanges(2).await;
        assert_eq!((fleet.passed(1, key(1), 12), fleet.passed(1, key(2), 12)), (10, 10));
    });
}

#[test]
fn a_reset_reaches_the_others_although_the_store_did_not_answer_in_time() {
    turned(async {
        let fleet = Fleet::start(2, PAGES).await;
        fleet.store.set(|faults| faults.lost = 100);
        assert_eq!(fleet.passed(0, key(1), 10), 10);
        fleet.exchanges(2).await;
        // It was written, and the node does not know.
        fleet.nodes[0].engine.confirm_table().reset(key(1));
        fleet.store.set(|faults| faults.lost = 0);
        fleet.exchanges(3).await;
        assert_eq!(fleet.passed(1, key(1), 12), 10);
    });
}

#[test]
fn denials_on_all_nodes_together_make_a_ban() {
    let limit = |scope: &str| {
        format!(
            "{{ tier: estimate, rate: 1/300s, key: client_ip, scope: {scope}, penalty: {{ after: 6, within: 120s, ban: 20s }} }}"
        )
    };
    let is_banned = |decision: &tollgate::engine::Decision| {
        decision.outcome == Outcome::Limited && decision.verdicts.iter().any(|v| v.banned)
    };
    for (scope, banned) in [("node", false), ("fleet", true)] {
        turned(async {
            let fleet = Fleet::start(3, &limit(scope)).await;
            let client = [192, 0, 2, 1];
            for node in &fleet.nodes {
                // One of each passes, or is refused because of the other nodes.
                for _ in 0..3 {
                    node.decide(client);
                }
                fleet.exchanges(3).await;
            }
            let last = fleet.nodes[2].decide(client);
            assert_eq!(is_banned(&last), banned, "scope {scope}");
            assert!(!is_banned(&fleet.nodes[2].decide([192, 0, 2, 2])));
            if !banned {
                return;
            }
            // After the ban the denials that led to it count no more: here, and on the nodes that were told of the ban.
            for node in &fleet.nodes[..2] {
                let key = fleet.nodes[2].decide(client).verdicts[0].key;
                node.hear_ban(key, Duration::from_secs(10), 7);
            }
            tokio::time::sleep(Duration::from_secs(25)).await;
            for node in &fleet.nodes {
                assert!(!is_banned(&node.decide(client)), "the ban is over");
                assert!(!is_banned(&node.decide(client)), "one denial makes no new ban");
            }
        });
    }
}

#[test]
fn keys_without_room_count_over_the_fleet() {
    // The store answers no charge, so each node counts by itself, and has room for one key.
    let limit = "{ tier: exact, rate: 10/60s, algorithm: sliding_window, key: client_ip, on_store_failure: local, max_keys: 1, when_full: estimate, scope: fleet }";
    turned(async {
        let fleet = Fleet::start(2, limit).await;
        let allowed = |node: usize, n: u8| {
            fleet.nodes[node].decide([192, 0, 2, n]).outcome == Outcome::Allowed
        };
        for node in 0..2 {
            assert!(allowed(node, 1), "the key that has the room");
        }
        assert_eq!((0..8).filter(|_| allowed(0, 2)).count(), 8);
        fleet.exchanges(4).await;
        assert_eq!((0..8).filter(|_| allowed(1, 2)).count(), 2);
    });
}

#[test]
fn a_flood_of_keys_costs_a_bounded_number_of_bytes_and_harms_nobody() {
    const ADDRESSES: u64 = 1_000_000;
    const HONEST: u64 = 1_000;
    turned(async {
        let fleet =
            Fleet::start(4, "{ tier: estimate, rate: 60/60s, key: client_ip, scope: fleet }").await;
        let (calls, bytes) = (fleet.store.calls.load(Ordering::SeqCst), bytes_of(&fleet));
        // The threshold of four nodes is 2.
        let steps = 100;
        for step in 0..steps {
            for n in step * ADDRESSES / steps..(step + 1) * ADDRESSES / steps {
                let node = (n % 4) as usize;
                assert!(fleet.allowed(node, key(n)) && fleet.allowed(node, key(n)));
                let _third = fleet.allowed(node, key(n));
            }
            // The abuser goes on all the time.
            for node in 0..4 {
                fleet.passed(node, key(u64::MAX), 20);
            }
            for n in 0..HONEST / 10 {
                let (node, n) = (((n + step) % 4) as usize, ADDRESSES + n * 10 + step % 10);
                assert!(fleet.allowed(node, key(n)), "an honest key");
            }
            fleet.exchanges(1).await;
        }
        let elapsed = 0.51 * f64::from(steps as u32);
        let calls = (fleet.store.calls.load(Ordering::SeqCst) - calls) as f64 / elapsed / 4.0;
        let rate = (bytes_of(&fleet) - bytes) as f64 / elapsed / 4.0;
        let largest = fleet.store.largest.load(Ordering::SeqCst);
        println!("{calls:.1} calls/s and {rate:.0} bytes/s for each node, largest {largest} bytes");
        assert!(calls <= 10.0 && rate < 1_500_000.0 && largest < 400_000);
        let keys: Vec<_> =
            fleet.nodes.iter().map(|node| node.estimate().fleet().unwrap().keys()).collect();
        assert!(keys.iter().all(|keys| *keys <= 150_000), "{keys:?}");
        // The abuser is known everywhere: it passes nowhere.
        let passed: usize = (0..4).map(|node| fleet.passed(node, key(u64::MAX), 20)).sum();
        assert!(passed <= 8, "{passed}");
    });
}

fn bytes_of(fleet: &Fleet) -> u64 {
    fleet.store.bytes_in.load(Ordering::SeqCst) + fleet.store.bytes_out.load(Ordering::SeqCst)
}

#[test]
fn a_node_that_learns_the_stores_time_keeps_what_it_counted() {
    turned(async {
        // The store is away from the first moment, and each node counts by its own clock.
        let alone = Fleet::start_with(2, PAGES, |faults| {
            (faults.is_down, faults.slow) = (true, Duration::from_millis(5));
        })
        .await;
        assert_eq!((alone.passed(0, key(1), 6), alone.passed(1, key(1), 3)), (6, 3));
        alone.store.set(|faults| faults.is_down = false);
        alone.exchanges(4).await;
        assert_eq!(alone.passed(1, key(1), 5), 1, "the sum of both nodes counts");
    });
}

#[test]
fn what_was_written_before_the_stores_clock_was_set_back_does_not_count_again() {
    turned(async {
        let mut fleet = Fleet::start(3, PAGES).await;
        assert_eq!(fleet.passed(2, key(1), 10), 10);
        fleet.exchanges(3).await;
        assert!(!fleet.allowed(0, key(1)), "all nodes know it");
        // The node that counted it has ended, and does not withdraw it.
        fleet.store.set(|faults| {
            faults.cut = 1 << 2;
            faults.off = -70_000_000;
        });
        // What the clock said when it was set back is said again.
        tokio::time::sleep(Duration::from_secs(75)).await;
        fleet.join().await;
        assert_eq!(fleet.passed(3, key(1), 10), 10, "it sent nothing for more than a window");
    });
}

#[test]
fn a_node_whose_limits_leave_while_the_store_is_away_deletes_what_it_published_later() {
    turned(async {
        let mut fleet = Fleet::start(2, PAGES).await;
        assert_eq!(fleet.passed(1, key(1), 10), 10);
        fleet.exchanges(3).await;
        fleet.store.set(|faults| faults.is_down = true);
        let alone = fleet.setup.yaml.replace("scope: fleet", "scope: node");
        fleet.nodes[1].reload(&alone);
        fleet.exchanges(3).await;
        fleet.store.set(|faults| faults.is_down = false);
        fleet.exchanges(5).await;
        fleet.join().await;
        assert!(fleet.allowed(2, key(1)), "it counts on the node that left alone");
    });
}

#[test]
fn a_store_that_takes_longer_than_an_exchange_is_not_away() {
    turned(async {
        // A reply takes up to 0.9 s, and an exchange is due each 0.5 s.
        let slow = Duration::from_millis(450);
        let fleet = Fleet::start_with(2, PAGES, |faults| faults.slow = slow).await;
        assert_eq!(fleet.passed(1, key(1), 10), 10);
        fleet.exchanges(40).await;
        assert!(!fleet.allowed(0, key(1)));
        for node in &fleet.nodes {
            let calls = |outcome| node.engine.fleet_progress().calls(outcome);
            assert!(calls(FleetOutcome::Ok) > 10);
            assert_eq!(calls(FleetOutcome::Failed), 0);
        }
    });
}
