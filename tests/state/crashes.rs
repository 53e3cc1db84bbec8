//! Random schedules of requests, saves, orderly ends, crashes and losses of power.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::clock::{Clock as _, ManualClock, Nanos};
use tollgate::engine::{Decision, Outcome};

use crate::disk::{Faults, LateSyncs, SimulatedDisk};
use crate::node::{EPOCH, Node};

const LIMIT: u32 = 24;

/// The units ahead of a limit with `after_crash: deny`.
const AHEAD: u32 = LIMIT / 8;

const KEYS: [&str; 2] = ["a", "b"];

const ALGORITHMS: [&str; 5] =
    ["fixed_window", "sliding_window", "sliding_log", "token_bucket", "plans"];

const AFTER: [&str; 2] = ["allow", "deny"];
const DENY: usize = 1;

/// The time between two units of the bucket.
const EMISSION_SECS: u64 = 3_600 / LIMIT as u64;

/// Limits of one algorithm, one for each direction, each with a route.
fn policy(algorithm: &str) -> String {
    let (mut limits, mut routes) = (String::new(), String::new());
    for after in AFTER {
        let name = format!("{algorithm}-{after}");
        let rest = match algorithm {
            // Several windows: a cell with several counters.
            "plans" => {
                "algorithm: sliding_window, plans: { by: header:x-plan, rates: { gold: 100/1d } }"
                    .to_owned()
            }
            "token_bucket" => "algorithm: token_bucket, refund: { status: [500] }".to_owned(),
            algorithm => format!("algorithm: {algorithm}"),
        };
        limits.push_str(&format!(
            "  {name}: {{ tier: exact, rate: {LIMIT}/1h, key: header:x-key, missing_key: deny, after_crash: {after}, {rest} }}\n"
        ));
        routes.push_str(&format!(
            "- {{ name: {name}, match: {{ path: /{name} }}, limits: [{name}] }}\n"
        ));
    }
    format!("limits:\n{limits}routes:\n{routes}")
}

type Name = (usize, usize, usize);

fn limit_of((algorithm, after, _): Name) -> String {
    format!("{}-{}", ALGORITHMS[algorithm], AFTER[after])
}

/// What is known of a key without asking the node, and two look-ups to compare with.
///
/// ```text
///   charges   synced │ flushed │ memory        a kill loses what is in memory only; a loss of power also what was
///             ───────┼─────────┼───────        flushed and not synced. What a kill leaves unsynced stays so until the
///               kept   unsynced (both)         next process has synced it: a loss of power after a kill loses it.
/// ```
#[derive(Default)]
struct KeyHistory {
    /// Requests that were let through to the origin.
    passed: u32,
    /// Those of them that a crash may have made forgotten.
    lost: u32,
    /// Charges that no completed write, and no completed sync, contains.
    unflushed: u32,
    unsynced: u32,
    /// What the key had spent when it was last written, and last synced.
    flushed: u32,
    synced: u32,
    first: Option<Nanos>,
}

struct Schedule {
    seed: u64,
    random: fastrand::Rng,
    algorithm: usize,
    policy: String,
    clock: Arc<ManualClock>,
    disk: SimulatedDisk,
    node: Node,
    /// Syncs that take longer than a step, in some schedules; and what the one that runs covers: of each key what it had
    /// spent, and how many charges were not synced then.
    syncs: Option<LateSyncs>,
    covered: Vec<(Name, u32, u32)>,
    /// Whether a loss of power may have left cells whose quotas it took: neither was synced.
    has_been_late: bool,
    keys: HashMap<Name, KeyHistory>,
    waiting: Vec<(Name, Decision)>,
    crashes: u32,
    /// Requests that a limit refused: a schedule in which none is refused shows little.
    refused: u64,
}

impl Schedule {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let algorithm = random.usize(..ALGORITHMS.len());
        let (policy, disk) = (policy(ALGORITHMS[algorithm]), SimulatedDisk::new(seed));
        let clock = Arc::new(ManualClock::new(EPOCH));
        let node = Node::start(&policy, &clock, &disk);
        let (keys, waiting) = (HashMap::new(), Vec::new());
        let mut schedule = Self {
            seed,
            random,
            algorithm,
            policy,
            clock,
            disk,
            node,
            syncs: None,
            covered: Vec::new(),
            has_been_late: false,
            keys,
            waiting,
            crashes: 0,
            refused: 0,
        };
        schedule.start();
        schedule
    }

    /// Returns how many requests were refused.
    fn run(mut self, steps: u32) -> u64 {
        for _ in 0..steps {
            match self.random.u8(..40) {
                0..26 => {
                    let after = self.random.usize(..AFTER.len());
                    let name = (self.algorithm, after, self.random.usize(..KEYS.len()));
                    for _ in 0..self.random.u32(1..5) {
                        self.request(name);
                    }
                }
                26..29 => self.end_sync(),
                29..31 => self.clock.advance(Nanos::from_millis(self.random.u64(..3_000))),
                31..34 => self.save(false),
                34..36 => self.save(true),
                36 => self.end(),
                37 => self.crash(true),
                _ => self.crash(false),
            }
            self.pass_saved();
        }
        self.refused
    }

    fn request(&mut self, name: Name) {
        let decision = self.node.decide(&limit_of(name), KEYS[name.2]);
        if decision.outcome != Outcome::Allowed {
            self.refused += 1;
            return;
        }
        let now = self.clock.now().mono;
        let history = self.keys.entry(name).or_default();
        history.first.get_or_insert(now);
        history.unflushed += 1;
        history.unsynced += 1;
        assert!(name.1 == DENY || decision.save.is_none(), "only deny waits");
        self.waiting.push((name, decision));
    }

    /// Forwards the requests whose charges are saved, as far as they have to be.
    fn pass_saved(&mut self) {
        let engine = Arc::clone(&self.node.engine);
        let (saved, waiting): (Vec<_>, Vec<_>) =
            self.waiting.drain(..).partition(|(_, decision)| engine.is_saved(decision));
        self.waiting = waiting;
        for (name, _) in saved {
            let history = self.keys.get_mut(&name).unwrap();
            history.passed += 1;
            let refilled = history.refilled(name, self.clock.now().mono);
            let bound = LIMIT + refilled + if name.1 == DENY { 0 } else { history.lost };
            assert!(
                history.passed <= bound,
                "seed {}: {} {}: {} passed of {bound}",
                self.seed,
                limit_of(name),
                KEYS[name.2],
                history.passed
            );
        }
    }

    fn save(&mut self, is_urgent: bool) {
        let started = self.syncs.as_ref().map(LateSyncs::started);
        self.node.saver.step(is_urgent);
        let is_late = self.syncs.is_some();
        for (name, spent) in self.spent() {
            let history = self.keys.get_mut(&name).unwrap();
            (history.unflushed, history.flushed) = (0, spent);
            if is_urgent && !is_late {
                (history.unsynced, history.synced) = (0, spent);
            }
        }
        if self.syncs.as_ref().map(LateSyncs::started) != started {
            self.cover_written();
        }
        self.pass_saved();
    }

    /// A sync has begun, which covers what is written.
    fn cover_written(&mut self) {
        let covered = |(name, history): (&Name, &KeyHistory)| {
            (*name, history.flushed, history.unsynced - history.unflushed)
        };
        self.covered = self.keys.iter().map(covered).collect();
    }

    /// The disk has got what it was sent, and the process hears of it.
    fn end_sync(&mut self) {
        let Some(syncs) = self.syncs.clone().filter(LateSyncs::end) else {
            return;
        };
        for (name, spent, unsynced) in self.covered.drain(..) {
            let history = self.keys.get_mut(&name).unwrap();
            history.unsynced -= unsynced;
            history.synced = spent;
        }
        let started = syncs.started();
        self.node.saver.poll_sync();
        if syncs.started() != started {
            self.cover_written();
        }
    }

    /// What each key has spent, as the node sees it.
    fn spent(&self) -> Vec<(Name, u32)> {
        let spent = |name: &Name| (*name, self.node.spent(&limit_of(*name), KEYS[name.2]));
        self.keys.keys().map(spent).collect()
    }

    /// An orderly end: nothing is lost, and nothing is added.
    fn end(&mut self) {
        assert!(self.node.saver.finish());
        let before = self.spent();
        self.pass_saved();
        self.waiting.clear();
        let disk = match self.random.bool() {
            true => self.disk.after_kill(),
            false => self.disk.after_power_loss(),
        };
        let observer = self.restart(disk);
        assert!(self.node.found.is_clean, "seed {}", self.seed);
        for (name, spent) in before {
            let asked = observer.as_ref().unwrap_or(&self.node);
            let after = asked.spent(&limit_of(name), KEYS[name.2]);
            let refilled = u32::from(ALGORITHMS[name.0] == "token_bucket");
            assert!(
                (spent.saturating_sub(refilled)..=spent).contains(&after),
                "seed {}: {} {}: {after} for {spent}",
                self.seed,
                limit_of(name),
                KEYS[name.2]
            );
            let history = self.keys.get_mut(&name).unwrap();
            (history.unflushed, history.unsynced) = (0, 0);
            (history.flushed, history.synced) = (after, after);
        }
    }

    fn crash(&mut self, is_power_loss: bool) {
        self.crashes += 1;
        self.waiting.clear();
        if let Some(syncs) = self.syncs.as_ref().filter(|_| self.random.bool()) {
            // It may be on the disk before the process hears of it.
            syncs.end();
        }
        let before = self.spent();
        let disk = match is_power_loss {
            true => self.disk.after_power_loss(),
            false => self.disk.after_kill(),
        };
        let observer = self.restart(disk);
        let now = self.clock.now().mono;
        for (name, before) in before {
            let asked = observer.as_ref().unwrap_or(&self.node);
            let after = asked.spent(&limit_of(name), KEYS[name.2]);
            let history = self.keys.get_mut(&name).unwrap();
            let refilled = history.refilled(name, now);
            let kept = if is_power_loss { history.synced } else { history.flushed };
            let (least, most) = match name.1 == DENY {
                true => (kept.max(history.passed.min(LIMIT)), (before + AHEAD).min(LIMIT)),
                false => (kept, before),
            };
            assert!(
                (least.saturating_sub(refilled)..=most).contains(&after),
                "seed {}: {} {}: {after} is restored of {before}, at least {least} and at most {most}",
                self.seed,
                limit_of(name),
                KEYS[name.2]
            );
            history.crash(is_power_loss, after);
        }
    }

    /// Returns the node to ask: in some schedules one on a copy of the disk, because asking for a restored cell has it saved
    /// again, and a process that nobody asks must lose nothing either.
    fn restart(&mut self, disk: SimulatedDisk) -> Option<Node> {
        if self.random.bool() {
            self.clock.advance(Nanos::from_millis(self.random.u64(..2_000)));
        }
        let observed = self.seed.is_multiple_of(3).then(|| disk.after_kill());
        let observer = observed.map(|disk| Node::start(&self.policy, &self.clock, &disk));
        self.disk = disk;
        self.start();
        assert!(self.node.unreadable == 0 || self.has_been_late, "seed {}", self.seed);
        let inside = self.node.found.damage.iter().any(|damage| !damage.is_tail);
        // What lies behind a torn write was not synced, and was written again or is lost with it.
        assert!(!inside || self.crashes > 0, "seed {}: {:?}", self.seed, self.node.found);
        observer
    }

    fn start(&mut self) {
        let mut node = start(&self.policy, &self.clock, &self.disk, self.seed);
        self.syncs = self.random.bool().then(LateSyncs::default);
        if let Some(syncs) = &self.syncs {
            node.saver = node.saver.with_sync_runner(Box::new(syncs.clone()));
            self.has_been_late = true;
        }
        self.node = node;
        self.covered.clear();
    }
}

impl KeyHistory {
    /// `left`: what the key has spent after the crash.
    fn crash(&mut self, is_power_loss: bool, left: u32) {
        if is_power_loss {
            self.lost += self.unsynced;
            // What the disk holds now, it holds for certain.
            (self.unflushed, self.unsynced) = (0, 0);
            (self.flushed, self.synced) = (left, left);
        } else {
            self.lost += self.unflushed;
            self.unsynced -= self.unflushed;
            self.unflushed = 0;
            self.synced = self.synced.min(left);
            self.flushed = self.flushed.min(left);
        }
    }

    /// Units that have come back since the first charge, at most.
    fn refilled(&self, name: Name, now: Nanos) -> u32 {
        let since = now.saturating_sub(self.first.unwrap_or(now));
        match ALGORITHMS[name.0] {
            "token_bucket" => 1 + (since.secs() / EMISSION_SECS) as u32,
            _ => 0,
        }
    }
}

fn start(policy: &str, clock: &Arc<ManualClock>, disk: &SimulatedDisk, seed: u64) -> Node {
    let mut node = Node::start(policy, clock, disk);
    // Many rounds in some schedules, one in others.
    node.saver = node.saver.with_min_round(if seed.is_multiple_of(2) { 1 } else { u64::MAX });
    node
}

#[test]
fn a_crash_loses_what_its_limit_says_and_an_orderly_end_loses_nothing() {
    let only = std::env::var("TOLLGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..2_000, |seed: u64| seed..seed + 1);
    let refused: u64 = seeds.map(|seed| Schedule::new(seed).run(80)).sum();
    assert!(
        refused > 1_000 || only.is_some(),
        "keys reach their limits, or the bounds are not tested"
    );
}

/// Otherwise a process that dies over and over would refuse keys that hardly ever ask.
#[test]
fn a_key_that_asks_nothing_pays_for_one_crash_only() {
    let (mut disk, clock) = (SimulatedDisk::new(0), Arc::new(ManualClock::new(EPOCH)));
    let policy = policy("fixed_window");
    let mut node = start(&policy, &clock, &disk, 0);
    assert!(node.is_allowed("fixed_window-deny", "a"));
    for crash in 1..=10 {
        (0..3).for_each(|_| node.saver.step(true));
        disk = disk.after_kill();
        node = start(&policy, &clock, &disk, 0);
        assert_eq!(node.spent("fixed_window-deny", "a"), 1 + AHEAD, "after crash {crash}");
    }
}

/// A failure loses changes that the log does not list again. Whatever is told to be saved before everything is written anew,
/// and an orderly end meanwhile, would be wrong about them.
#[test]
fn nothing_counts_as_saved_before_what_a_failure_lost_is_written_anew() {
    for is_ended in [false, true] {
        let (disk, clock) = (SimulatedDisk::new(0), Arc::new(ManualClock::new(EPOCH)));
        let policy = policy("fixed_window");
        let mut node = Node::start(&policy, &clock, &disk);
        // Each step after the failure writes few shards of 4,096.
        node.saver = node.saver.with_urgent_bytes(200);
        for key in 0..500 {
            assert!(node.is_allowed("fixed_window-deny", &format!("k{key}")));
        }
        node.saver.step(true);
        disk.set_faults(Faults { error: 1, ..Faults::default() });
        let passed: Vec<_> = (0..500)
            .map(|key| {
                let decision = node.decide("fixed_window-deny", &format!("k{key}"));
                (key, decision)
            })
            .collect();
        node.saver.step(true);
        disk.set_faults(Faults::default());
        clock.advance(Nanos::from_millis(1_000));
        node.saver.step(true);
        assert!(
            node.metrics.age(clock.now().mono) >= Nanos::from_millis(1_000),
            "it is not all saved yet"
        );
        let later = node.decide("fixed_window-deny", "new");
        assert!(later.save.is_some(), "it has to wait for the disk");
        match is_ended {
            true => assert!(node.saver.finish()),
            false => {
                while !node.engine.is_saved(&later) {
                    clock.advance(Nanos::from_millis(100));
                    node.saver.step(true);
                }
                assert!(node.metrics.age(clock.now().mono) < Nanos::from_millis(100));
            }
        }
        let after = Node::start(&policy, &clock, &disk.after_kill());
        for (key, decision) in passed {
            assert_eq!(decision.outcome, Outcome::Allowed);
            let found = after.spent("fixed_window-deny", &format!("k{key}"));
            assert!(found >= 2, "key {key}: {found} of 2 are restored, ended {is_ended}");
        }
    }
}

/// The operator frees as much as was missing at first, and not also what attempts have taken since.
#[test]
fn attempts_on_a_full_disk_take_no_room() {
    let (disk, clock) = (SimulatedDisk::new(0), Arc::new(ManualClock::new(EPOCH)));
    let policy = policy("fixed_window");
    let mut node = Node::start(&policy, &clock, &disk);
    for key in 0..100 {
        assert!(node.is_allowed("fixed_window-allow", &format!("k{key}")));
    }
    node.saver.step(true);
    disk.set_room(Some(0));
    assert!(node.is_allowed("fixed_window-allow", "k0"));
    node.saver.step(true);
    assert!(node.metrics.is_failing());
    // What can be begun now cannot be ended.
    disk.set_room(Some(1_000));
    let mut taken = Vec::new();
    for attempt in 0..20 {
        assert!(node.is_allowed("fixed_window-allow", &format!("k{attempt}")));
        clock.advance(Nanos::from_millis(20_000));
        node.saver.step(true);
        assert!(node.metrics.is_failing());
        taken.push(disk.bytes());
    }
    assert_eq!(taken[0], taken[19], "{taken:?}");
    disk.set_room(None);
    clock.advance(Nanos::from_millis(20_000));
    node.saver.step(true);
    assert!(!node.metrics.is_failing());
    let after = Node::start(&policy, &clock, &disk.after_kill());
    assert_eq!(after.spent("fixed_window-allow", "k19"), 2);
}

/// Each attempt writes everything. Kept, they would fill the disk, and with it whatever else is there.
#[test]
fn attempts_that_the_disk_does_not_confirm_take_no_room() {
    let (disk, clock) = (SimulatedDisk::new(0), Arc::new(ManualClock::new(EPOCH)));
    let policy = policy("fixed_window");
    let mut node = Node::start(&policy, &clock, &disk);
    for key in 0..100 {
        assert!(node.is_allowed("fixed_window-allow", &format!("k{key}")));
    }
    node.saver.step(true);
    disk.set_faults(Faults { sync: 1, ..Faults::default() });
    let mut taken = Vec::new();
    for attempt in 0..20 {
        assert!(node.is_allowed("fixed_window-allow", &format!("k{attempt}")));
        clock.advance(Nanos::from_millis(20_000));
        node.saver.step(true);
        assert!(node.metrics.is_failing());
        taken.push(disk.bytes());
    }
    assert!(taken[19] <= taken[1], "{taken:?}");
    disk.set_faults(Faults::default());
    clock.advance(Nanos::from_millis(20_000));
    node.saver.step(true);
    assert!(!node.metrics.is_failing());
    let after = Node::start(&policy, &clock, &disk.after_power_loss());
    assert_eq!(after.spent("fixed_window-allow", "k19"), 2);
}

/// A disk that takes a minute for each sync, after a failure: it is waited for, and not asked for everything once more.
#[test]
fn a_slow_disk_gets_everything_once() {
    let (disk, clock) = (SimulatedDisk::new(0), Arc::new(ManualClock::new(EPOCH)));
    let policy = policy("fixed_window");
    let mut node = Node::start(&policy, &clock, &disk);
    let syncs = LateSyncs::default();
    node.saver = node.saver.with_sync_runner(Box::new(syncs.clone()));
    for key in 0..100 {
        assert!(node.is_allowed("fixed_window-allow", &format!("k{key}")));
    }
    disk.set_faults(Faults { error: 1, ..Faults::default() });
    node.saver.step(true);
    disk.set_faults(Faults::default());
    let mut written = Vec::new();
    for minute in 0..5 {
        assert!(node.is_allowed("fixed_window-allow", &format!("k{minute}")));
        for _ in 0..60 {
            clock.advance(Nanos::from_millis(1_000));
            node.saver.step(false);
        }
        let age = node.metrics.age(clock.now().mono);
        assert!(age >= Nanos::from_millis(40_000), "an operator is told: {age:?}");
        syncs.end();
        node.saver.poll_sync();
        written.push(disk.bytes());
    }
    assert!(!node.metrics.is_failing());
    assert!(written[4] - written[0] < 2_000, "{written:?}");
    let after = Node::start(&policy, &clock, &disk.after_kill());
    assert_eq!(after.spent("fixed_window-allow", "k99"), 1);
}

/// Errors and full disks at any call: nothing panics, requests are judged as before, and when the disk is well again, so is
/// the state.
#[test]
fn a_failing_disk_changes_no_decision_and_recovers_by_itself() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let disk = SimulatedDisk::new(seed);
        let clock = Arc::new(ManualClock::new(EPOCH));
        let algorithm = ALGORITHMS[(seed % 5) as usize];
        let mut node = start(&policy(algorithm), &clock, &disk, seed);
        let route = format!("{algorithm}-{}", AFTER[(seed % 2) as usize]);
        let mut spent = 0;
        for _ in 0..60 {
            let faults =
                Faults { error: random.u32(..4), full: random.u32(..4), sync: random.u32(..4) };
            disk.set_faults(faults);
            for _ in 0..random.u32(..3) {
                let is_allowed = node.is_allowed(&route, "a");
                assert_eq!(is_allowed, spent < LIMIT, "seed {seed}");
                spent += u32::from(is_allowed);
            }
            node.saver.step(random.bool());
            clock.advance(Nanos::from_millis(random.u64(..200)));
        }
        disk.set_faults(Faults::default());
        for _ in 0..60 {
            clock.advance(Nanos::from_millis(1_000));
            node.saver.step(false);
        }
        assert!(!node.metrics.is_failing());
        let expected = node.spent(&route, "a");
        let after = Node::start(&policy(algorithm), &clock, &disk.after_power_loss());
        assert_eq!(after.unreadable, 0);
        let found = after.spent(&route, "a");
        let ahead = if seed % 2 == 1 { AHEAD } else { 0 };
        assert!(
            (expected..=expected + ahead).contains(&found),
            "seed {seed}: {found} for {expected}"
        );
    }
}
