//! Volumes that hold a few times what is kept, and that nobody but tollgate fills.

use std::sync::Arc;

use tollgate::clock::{ManualClock, Nanos};

use crate::disk::SimulatedDisk;
use crate::node::{EPOCH, Node};

const POLICY: &str = "
limits:
  writes: { tier: exact, algorithm: fixed_window, rate: 100000/1d, key: header:x-key, missing_key: deny }
routes: [{ name: all, limits: [writes] }]
";

const VOLUME: usize = 1024 * 1024;

fn key(n: usize) -> String {
    format!("k{n}")
}

/// Spends a unit of each of so many keys, and saves that, `times` times. Returns how often saving has failed.
fn spend(node: &mut Node, clock: &ManualClock, keys: usize, times: usize) -> usize {
    let mut failures = 0;
    for _ in 0..times {
        assert!((0..keys).all(|n| node.is_allowed("", &key(n))));
        clock.advance(Nanos::from_millis(1_000));
        node.saver.step(true);
        failures += usize::from(node.metrics.is_failing());
    }
    failures
}

/// What is kept takes from 5% to a fifth of the volume.
#[test]
fn a_small_volume_is_never_filled() {
    for keys in [1_200, 5_000] {
        let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
        disk.set_room(Some(VOLUME));
        let mut node = Node::start(POLICY, &clock, &disk);
        assert_eq!(spend(&mut node, &clock, keys, 150), 0, "{keys}");
        assert!(disk.bytes() <= VOLUME);
        let after = Node::start(POLICY, &clock, &disk.after_kill());
        assert!((0..keys).all(|n| after.spent("writes", &key(n)) == 150), "{keys}");
        assert!(node.saver.finish());
        let after = Node::start(POLICY, &clock, &disk.after_kill());
        assert!(after.found.is_clean, "{keys}");
    }
}

/// Something else takes what is free, and gives it back: what tollgate needs for itself it has kept.
#[test]
fn a_volume_that_was_full_for_a_while_recovers() {
    for keys in [1_200, 5_000] {
        let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
        disk.set_room(Some(VOLUME));
        let mut node = Node::start(POLICY, &clock, &disk);
        spend(&mut node, &clock, keys, 30);
        let free = VOLUME - disk.bytes();
        disk.set_room(Some(0));
        assert!(spend(&mut node, &clock, keys, 10) > 0);
        let whole = Node::start(POLICY, &clock, &disk.after_kill());
        assert!((0..keys).all(|n| whole.spent("writes", &key(n)) >= 30), "the older counts stay");
        disk.set_room(Some(free.max(VOLUME - disk.bytes())));
        spend(&mut node, &clock, keys, 30);
        assert!(!node.metrics.is_failing(), "{keys}");
        let after = Node::start(POLICY, &clock, &disk.after_kill());
        assert!((0..keys).all(|n| after.spent("writes", &key(n)) == 70), "{keys}");
    }
}

/// Everything does not fit twice: what was saved stays, and so does what a start reads.
#[test]
fn a_volume_that_is_too_small_keeps_what_it_has() {
    const KEYS: usize = 15_000;
    let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
    disk.set_room(Some(VOLUME));
    let mut node = Node::start(POLICY, &clock, &disk);
    let mut saved = 0;
    for spent in 1..20 {
        if spend(&mut node, &clock, KEYS, 1) == 0 {
            saved = spent;
        }
        let after = Node::start(POLICY, &clock, &disk.after_kill());
        let least = (0..KEYS).map(|n| after.spent("writes", &key(n))).min();
        assert!(least >= Some(saved), "{least:?} after {spent}, {saved} of them saved");
    }
    assert!(saved >= 1 && node.metrics.is_failing());
}

/// Each process begins a round, and ends before it is complete. What is kept takes a sixth of the volume.
#[test]
fn processes_that_end_soon_do_not_fill_a_volume() {
    const KEYS: usize = 3_900;
    for is_orderly in [true, false] {
        let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
        let mut disk = Arc::new(disk);
        let mut spent = vec![0; KEYS];
        for (run, share) in
            [80, 38, 15, 30, 30, 30, 30, 24, 24, 12, 6, 30, 30].repeat(4).into_iter().enumerate()
        {
            disk.set_room(Some(VOLUME));
            let mut node = Node::start(POLICY, &clock, &disk);
            for n in 0..KEYS * share / 100 {
                let n = (n + run * 311) % KEYS;
                assert!(node.is_allowed("", &key(n)));
                spent[n] += 1;
            }
            clock.advance(Nanos::from_millis(1_000));
            node.saver.step(true);
            assert!(!node.metrics.is_failing(), "run {run}, {is_orderly}: {} bytes", disk.bytes());
            assert!(!is_orderly || node.saver.finish(), "run {run}");
            disk = Arc::new(disk.after_kill());
        }
        let after = Node::start(POLICY, &clock, &disk);
        assert!((0..KEYS).all(|n| after.spent("writes", &key(n)) == spent[n]));
    }
}
