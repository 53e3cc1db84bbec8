//! More quotas, and larger cells, than one frame holds.

use std::sync::Arc;
use std::time::Instant;

use tollgate::clock::{ManualClock, Nanos, TimeMark};
use tollgate::state::{
    FrameKind, FrameSink, MAX_PAYLOAD, Recovery, SaveIntervals, Saver, StateMetrics, StateSource,
};

use crate::disk::SimulatedDisk;
use crate::node::{EPOCH, FINGERPRINT, Node, mark_of};

const OVERRIDES: u32 = 34_000;

/// A limit whose quotas take about 5 MB: each override has a rate of its own, over one of eight windows.
fn many_overrides(limit: &str) -> String {
    let overrides: Vec<String> =
        (0..OVERRIDES).map(|n| format!("{{key: k{n},rate: {}/{}h}}", 10 + n, 1 + n % 8)).collect();
    format!(
        "limits:\n  {limit}: {{ tier: exact, algorithm: sliding_window, rate: 9/1h, key: header:x-key, missing_key: deny, overrides: [{}] }}\n\
         routes: [{{ name: all, limits: [{limit}] }}]\n",
        overrides.join(",")
    )
}

/// Each of 4,096 shards is written behind the quotas that its cells name, which are encoded once and not for each shard.
#[test]
#[expect(clippy::disallowed_methods, reason = "the time that it takes is what is tested")]
fn quotas_that_no_frame_holds_alone_come_back() {
    const KEYS: u32 = 10_000;
    let limit = "l".repeat(64);
    let policy = many_overrides(&limit);
    let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
    let mut node = Node::start(&policy, &clock, &disk);
    assert!((0..KEYS).all(|n| node.is_allowed("", &format!("k{n}"))));
    let began = Instant::now();
    assert!(node.saver.finish());
    for shard in 0..node.saver.shards() {
        node.saver.copy_to_successor(|source, sink| source.copy_shard(shard, sink));
    }
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    let node = Node::start(&policy, &clock, &disk.after_kill());
    assert!(node.found.is_clean && node.found.damage.is_empty(), "{:?}", node.found);
    assert_eq!(node.unreadable, 0);
    assert!((0..KEYS).all(|n| node.spent(&limit, &format!("k{n}")) == 1));
}

/// A shard is copied under one lock, and its cells may be larger together than a frame.
#[test]
fn cells_of_a_shard_that_no_frame_holds_together_come_back() {
    const POLICY: &str = "
limits:
  writes: { tier: exact, algorithm: sliding_log, rate: 10000/1h, key: header:x-key, missing_key: deny }
routes: [{ name: all, limits: [writes] }]
";
    const KEYS: usize = 64;
    let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
    let mut node = Node::start(POLICY, &clock, &disk);
    node.saver.step(true);
    let shard_of = |key: &String| node.state("writes", key).key.high >> 52;
    let shard = shard_of(&"0".to_owned());
    let names = (0..u64::MAX).map(|n| n.to_string());
    let keys: Vec<String> = names.filter(|key| shard_of(key) == shard).take(KEYS).collect();
    for _ in 0..9_900 {
        clock.advance(Nanos::from_millis(1));
        assert!(keys.iter().all(|key| node.is_allowed("", key)));
    }
    assert!(node.saver.finish());
    let node = Node::start(POLICY, &clock, &disk.after_kill());
    assert!(node.found.is_clean && node.found.damage.is_empty(), "{:?}", node.found);
    keys.iter().for_each(|key| assert_eq!(node.spent("writes", key), 9_900, "{key}"));
}

/// Saves one frame, again and again.
struct LargeFrame {
    clock: Arc<ManualClock>,
    bytes: usize,
}

impl StateSource for LargeFrame {
    fn mark(&self) -> TimeMark {
        mark_of(Arc::clone(&self.clock))()
    }

    fn shards(&self) -> usize {
        1
    }

    fn save_changes(&mut self, sink: &mut dyn FrameSink) {
        sink.add(FrameKind::Cells, 0, &vec![1; self.bytes]);
    }

    fn batch(&self) -> u64 {
        1
    }

    fn set_saved(&mut self, _: u64) {}

    fn set_failing(&mut self) {}

    fn save_common(&mut self, _: &mut dyn FrameSink) {}

    fn save_shard(&mut self, _: usize, _: &mut dyn FrameSink) {}
}

#[test]
fn a_frame_that_could_not_be_read_again_is_a_failure_and_not_written() {
    for (bytes, is_saved) in [(MAX_PAYLOAD, true), (MAX_PAYLOAD + 1, false)] {
        let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
        let metrics = Arc::new(StateMetrics::default());
        let read =
            |disk: &SimulatedDisk| Recovery::read(Arc::new(disk.clone()), FINGERPRINT).unwrap();
        let log = read(&disk).into_log(FINGERPRINT, Arc::clone(&metrics));
        let second = Nanos::from_secs(1);
        let intervals = SaveIntervals { flush: second, sync: second };
        let source = LargeFrame { clock: Arc::clone(&clock), bytes };
        let mut saver = Saver::new(source, log, intervals, Arc::clone(&metrics));
        saver.step(true);
        assert_eq!(metrics.is_failing(), !is_saved, "{bytes}");
        assert_eq!(saver.finish(), is_saved, "{bytes}");
        let found = read(&disk);
        assert_eq!(found.summary().is_clean, is_saved, "{bytes}");
        assert!(found.summary().damage.is_empty(), "{bytes}: {:?}", found.summary());
    }
}
