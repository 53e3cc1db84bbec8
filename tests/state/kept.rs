//! What the random schedules do not have: limits that a reload brings, bans, operators' rules, and more changed keys than a
//! list holds.

use std::sync::Arc;

use tollgate::clock::{ManualClock, Nanos};
use tollgate::policy::{KeyRule, Ruling};

use crate::disk::SimulatedDisk;
use crate::node::{EPOCH, Node};

fn policy(limits: &[(&str, &str)]) -> String {
    let (mut named, mut routes) = (String::new(), String::new());
    for (name, rest) in limits {
        named.push_str(&format!(
            "  {name}: {{ tier: exact, algorithm: fixed_window, key: header:x-key, missing_key: deny, {rest} }}\n"
        ));
        routes.push_str(&format!(
            "- {{ name: {name}, match: {{ path: /{name} }}, limits: [{name}] }}\n"
        ));
    }
    format!("limits:\n{named}routes:\n{routes}")
}

/// A cell names its quota by a number, which must be known where the cell is read: also that of a quota which began after
/// the first save.
#[test]
fn a_limit_that_a_reload_brings_comes_back() {
    for (is_power_loss, min_round) in [(false, u64::MAX), (true, u64::MAX), (true, 1)] {
        let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
        let mut node = Node::start(&policy(&[("old", "rate: 9/1h")]), &clock, &disk);
        node.saver = node.saver.with_min_round(min_round);
        assert!(node.is_allowed("old", "k"));
        node.saver.step(true);
        let both = policy(&[("old", "rate: 8/1h"), ("new", "rate: 7/1h")]);
        node.reload(&both);
        for _ in 0..3 {
            assert!(node.is_allowed("old", "k") && node.is_allowed("new", "k"));
            node.saver.step(true);
        }
        let disk = if is_power_loss { disk.after_power_loss() } else { disk.after_kill() };
        let node = Node::start(&both, &clock, &disk);
        assert_eq!(node.unreadable, 0);
        assert_eq!((node.spent("old", "k"), node.spent("new", "k")), (4, 3));
    }
}

#[test]
fn bans_and_denials_come_back() {
    let limit = "rate: 1/1s, penalty: { after: 3, within: 1m, ban: 1h }";
    let policy = policy(&[("logins", limit)]);
    let (clock, mut disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
    let mut node = Node::start(&policy, &clock, &disk);
    node.saver.step(true);
    // One key is banned, another one has two of the three denials.
    for (key, denials) in [("banned", 3), ("warned", 2)] {
        assert!(node.is_allowed("logins", key));
        (0..denials).for_each(|_| assert!(!node.is_allowed("logins", key)));
    }
    for end in 0..3 {
        match end {
            0 => node.saver.step(true),
            _ => assert!(node.saver.finish()),
        }
        disk = if end == 1 { disk.after_kill() } else { disk.after_power_loss() };
        clock.advance(Nanos::from_millis(2_000));
        node = Node::start(&policy, &clock, &disk);
        let left = node.state("logins", "banned").banned_for.map(Nanos::secs);
        assert_eq!(left, Some(3_600 - 2 * (end + 1)), "after {end}");
        assert_eq!(node.state("logins", "warned").banned_for, None);
    }
    assert!(node.is_allowed("logins", "warned"), "a second is over");
    assert!(!node.is_allowed("logins", "warned"));
    assert!(node.state("logins", "warned").banned_for.is_some(), "its third denial in a minute");
}

#[test]
fn rules_of_operators_come_back_until_their_end() {
    let policy = policy(&[("writes", "rate: 2/1h")]);
    let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
    let mut node = Node::start(&policy, &clock, &disk);
    node.saver.step(true);
    let date = node.engine.date(node.engine.now());
    let rule = |key: &str, ruling, hours: u64| KeyRule {
        limit: Arc::from("writes"),
        key: node.state("writes", key).key,
        ruling,
        until: date.saturating_add(Nanos::from_secs(hours * 3_600)),
        made_at: date,
        version: None,
        by: Arc::from("test"),
        reason: Arc::from("test"),
    };
    let rules = [rule("bad", Ruling::Deny, 3), rule("good", Ruling::Allow, 1)];
    node.engine.set_key_rules(rules.into());
    node.saver.step(true);
    let node = Node::start(&policy, &clock, &disk.after_power_loss());
    assert!(!node.is_allowed("writes", "bad"));
    assert!((0..5).all(|_| node.is_allowed("writes", "good")));
    clock.advance(Nanos::from_secs(2 * 3_600));
    let node = Node::start(&policy, &clock, &disk.after_power_loss());
    assert!(!node.is_allowed("writes", "bad"));
    assert_eq!((0..5).filter(|_| node.is_allowed("writes", "good")).count(), 2, "it has ended");
}

/// A shard lists some of the keys that change between two saves. Of the others it knows only that there are some.
#[test]
fn more_keys_than_shards_list_are_saved_again_and_again() {
    /// A hundred for each shard, and a list has 64.
    const KEYS: usize = 400_000;
    let policy = policy(&[("writes", "rate: 9/1h")]);
    let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
    let mut node = Node::start(&policy, &clock, &disk);
    // Everything is written once, and from then on only what changes.
    node.saver = node.saver.with_min_round(u64::MAX);
    (0..3).for_each(|_| node.saver.step(true));
    let keys: Vec<String> = (0..KEYS).map(|n| n.to_string()).collect();
    for _ in 0..2 {
        assert!(keys.iter().all(|key| node.is_allowed("writes", key)));
        node.saver.step(true);
    }
    // Some change again, and few enough for the lists.
    let few = keys.iter().step_by(100);
    assert!(few.clone().all(|key| node.is_allowed("writes", key)));
    node.saver.step(true);
    let node = Node::start(&policy, &clock, &disk.after_kill());
    assert_eq!(node.unreadable, 0);
    for (n, key) in keys.iter().enumerate() {
        let expected = if n % 100 == 0 { 3 } else { 2 };
        assert_eq!(node.spent("writes", key), expected, "{key}");
    }
}

/// What a crash may have cost a key is on the disk again when the next process ends, also if nobody asked for the key.
#[test]
fn a_grant_that_a_crash_charged_stays_charged() {
    let policy = policy(&[("quota", "rate: 24/1h, after_crash: deny")]);
    let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
    let mut node = Node::start(&policy, &clock, &disk);
    (0..5).for_each(|_| assert!(node.is_allowed("quota", "k")));
    node.saver.step(true);
    // A crash, an orderly end without a request, and another one.
    let mut disk = disk.after_power_loss();
    for _ in 0..2 {
        assert!(Node::start(&policy, &clock, &disk).saver.finish());
        disk = disk.after_power_loss();
    }
    let node = Node::start(&policy, &clock, &disk);
    assert!(node.found.is_clean);
    assert_eq!(node.spent("quota", "k"), 5 + 24 / 8);
}

/// What a killed process wrote may not be on the disk yet. It is when the next process has saved, although that writes none of
/// it anew.
#[test]
fn what_a_killed_process_wrote_survives_a_loss_of_power() {
    let policy = policy(&[("writes", "rate: 24/1h")]);
    for seed in 0..50 {
        let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(seed));
        let mut node = Node::start(&policy, &clock, &disk);
        node.saver.step(true);
        (0..5).for_each(|_| assert!(node.is_allowed("writes", "k")));
        node.saver.step(false);
        let disk = disk.after_kill();
        Node::start(&policy, &clock, &disk).saver.step(true);
        let node = Node::start(&policy, &clock, &disk.after_power_loss());
        assert_eq!(node.spent("writes", "k"), 5, "seed {seed}");
    }
}
