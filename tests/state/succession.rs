//! Two engines of which the second takes over from the first, joined without a socket: together they decide as one would.
//!
//! The oracle is a third engine that sees every request and every end in the same order. After the switch, requests go to
//! either process, and each ends in the process where it began.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue};
use tollgate::clock::{ManualClock, Nanos};
use tollgate::engine::{
    Decision, Engine, EngineSource, FinalResponse, Generation, HandedEvent, HandedJudgment,
    HandedRequest, HeldJudgment, LateJudgment, Outcome, PendingSettlement, Predecessor, Restorer,
    Successor, SuccessorAnswer,
};
use tollgate::policy::{KeyHash, KeyRule, KeySecret, Ruling};
use tollgate::state::{
    FrameKind, FrameSink, RestoredFrame, StateMetrics, StateSource as _, run_id,
};

use crate::disk::{LateSyncs, SimulatedDisk};
use crate::node::{EPOCH, Node, facts, headers, mark_of, read};

const POLICY: &str = "
limits:
  bucket: { tier: exact, algorithm: token_bucket, rate: 8/10s, burst: 5, key: header:x-key, missing_key: deny }
  window: { tier: exact, rate: 9/10s, algorithm: sliding_window, key: header:x-key, missing_key: deny }
  log: { tier: exact, rate: 7/10s, algorithm: sliding_log, key: header:x-key, missing_key: deny, refund: { status: [404] } }
  fixed: { tier: exact, rate: 9/10s, algorithm: fixed_window, key: header:x-key, missing_key: deny, penalty: { after: 3, within: 10s, ban: 7s } }
  flying: { tier: exact, max_in_flight: 3, key: header:x-key, missing_key: deny }
  priced: { tier: exact, rate: 30/10s, key: header:x-key, missing_key: deny, cost: { response_header: x-cost, reserve: 3, max: 9 } }
  pages: { tier: estimate, rate: 9/10s, key: header:x-key, missing_key: deny }
routes:
  - { name: five, match: { path: /five }, limits: [pages] }
  - { name: one, match: { path: /one }, limits: [bucket, window] }
  - { name: two, match: { path: /two }, limits: [log, flying] }
  - { name: three, match: { path: /three }, limits: [fixed] }
  - { name: four, match: { path: /four }, limits: [priced, flying, bucket] }
  - { name: six, match: { path: /six }, limits: [pages, flying, window] }
";

const ROUTES: [&str; 6] = ["/one", "/two", "/three", "/four", "/five", "/six"];

/// A process.
struct Process {
    engine: Arc<Engine>,
    generation: Arc<Generation>,
}

/// A request that has not ended.
struct Open {
    decision: Decision,
    pending: PendingSettlement,
}

/// The successor as its predecessor sees it.
struct Joined {
    predecessor: Arc<Predecessor>,
    generation: Arc<Generation>,
    successor: std::sync::OnceLock<Arc<dyn Successor>>,
}

impl Process {
    fn start(clock: &Arc<ManualClock>, policy: &str) -> Self {
        let engine = Engine::new(Arc::clone(clock) as _, KeySecret::new([7; 16]));
        let generation = engine.generation(read(policy), None).0;
        Self { engine: Arc::new(engine), generation: Arc::new(generation) }
    }

    async fn decide(&self, path: &str, key: &str) -> Open {
        let headers = headers(key);
        let facts = facts(&self.engine, path, &headers);
        let (decision, pending) = self.engine.decide(&self.generation, &facts).await;
        Open { decision, pending }
    }

    fn finish(&self, open: &mut Open, status: u16, cost: Option<u32>) {
        let mut headers = HeaderMap::new();
        if let Some(cost) = cost {
            headers.insert("x-cost", HeaderValue::from(cost));
        }
        let response = FinalResponse { status, headers: &headers, by_origin: true };
        let Open { decision, pending } = open;
        self.engine.finish(&self.generation, decision, pending, &response);
        self.engine.finish_rest(&self.generation, decision, pending, true);
    }

    fn source(&self, clock: &Arc<ManualClock>) -> EngineSource {
        let metrics = Arc::new(StateMetrics::default());
        EngineSource::new(Arc::clone(&self.engine), mark_of(Arc::clone(clock)), metrics)
    }
}

impl Successor for Joined {
    fn judge(&self, request: HandedRequest) -> BoxFuture<'static, SuccessorAnswer> {
        let (predecessor, generation) =
            (Arc::clone(&self.predecessor), Arc::clone(&self.generation));
        let successor = Arc::clone(self.successor.get().unwrap());
        async move {
            let (judgment, save) = predecessor.judge_now(&generation, &request);
            if let Some(batch) = save {
                predecessor.until_saved(batch).await;
            }
            SuccessorAnswer::Judged(HeldJudgment::new(judgment, &request, successor))
        }
        .boxed()
    }

    fn tell(&self, event: HandedEvent) {
        self.predecessor.apply(&self.generation, event);
    }
}

/// A conversation without a socket.
#[derive(Default)]
struct Stream(Vec<(FrameKind, u8, Vec<u8>)>);

impl FrameSink for Stream {
    fn add(&mut self, kind: FrameKind, group: u8, payload: &[u8]) {
        self.0.push((kind, group, payload.to_vec()));
    }
}

/// Reads what was streamed so far, as the successor does while the process before it still serves.
fn restore(stream: &mut Stream, restorer: &mut Restorer, to: &Process) {
    let metrics = StateMetrics::default();
    for (kind, group, payload) in stream.0.drain(..) {
        let frame = RestoredFrame { kind, group, payload, is_clean: true };
        if let Some(cells) = restorer.read(frame) {
            assert_eq!(Restorer::restore_cells(&to.engine, &metrics, &cells), 0);
        }
    }
}

/// Hands over, up to the instant in which the second process counts.
fn switch(
    from: &Process,
    source: &mut EngineSource,
    mut stream: Stream,
    restorer: Restorer,
    to: &Process,
) {
    source.hand_over(&from.generation, &mut stream);
    take_up(from, stream, restorer, to);
}

/// What follows when everything has been streamed.
fn take_up(from: &Process, mut stream: Stream, mut restorer: Restorer, to: &Process) {
    let is_rest = |kind| matches!(kind, FrameKind::Confirm | FrameKind::InFlight);
    let frames = std::mem::take(&mut stream.0);
    let (rest, frames): (Vec<_>, Vec<_>) =
        frames.into_iter().partition(|(kind, ..)| is_rest(*kind));
    restore(&mut Stream(frames), &mut restorer, to);
    let rest: Vec<_> = rest.into_iter().map(|(kind, _, payload)| (kind, payload)).collect();
    let (predecessor, unreadable) = restorer.take_up(&to.engine, &to.generation, &rest);
    assert_eq!(unreadable, 0);
    let joined = Arc::new(Joined {
        predecessor: Arc::new(predecessor),
        generation: Arc::clone(&to.generation),
        successor: std::sync::OnceLock::new(),
    });
    let _first = joined.successor.set(Arc::clone(&joined) as _);
    from.engine.set_successor(joined);
}

/// What a client sees of a decision.
fn seen(decision: &Decision) -> Vec<(String, bool, u32, Nanos, Option<Nanos>)> {
    let verdicts = decision.verdicts.iter().map(|limit| {
        let verdict = limit.verdict;
        (
            format!("{:?} {:?}", decision.outcome, limit.limit),
            verdict.allowed,
            verdict.remaining,
            verdict.reset,
            verdict.retry_after,
        )
    });
    verdicts.collect()
}

#[tokio::test]
async fn two_processes_decide_as_one_would() {
    for seed in 0..400 {
        schedule(seed).await;
    }
}

async fn schedule(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let clock = Arc::new(ManualClock::new(EPOCH));
    let [old, new, whole] = [(); 3].map(|()| Process::start(&clock, POLICY));
    let mut source = old.source(&clock);
    let mut stream = Stream::default();
    let mut restorer = Restorer::new(Arc::clone(&new.engine));
    let (copies_at, gives_up_at) = (random.usize(..200), random.usize(200..300));
    let switches_at = gives_up_at + random.usize(..100);
    let mut open: Vec<(bool, Open, Open)> = Vec::new();
    let mut copied = 0;
    let mut restorer_left = true;
    for step in 0..600 {
        if step == copies_at {
            source.save_common(&mut stream);
        }
        if step > copies_at && copied < source.shards() {
            for _ in 0..random.usize(..200).min(source.shards() - copied) {
                source.copy_shard(copied, &mut stream);
                copied += 1;
            }
            restore(&mut stream, &mut restorer, &new);
        }
        if step == gives_up_at && seed.is_multiple_of(3) {
            source.hand_over(&old.generation, &mut stream);
            old.engine.take_back();
            // That conversation ends, and what only a successor gets with it.
            stream.0.retain(|(kind, ..)| !matches!(kind, FrameKind::Confirm | FrameKind::InFlight));
        }
        if step == switches_at {
            while copied < source.shards() {
                source.copy_shard(copied, &mut stream);
                copied += 1;
            }
            let restorer = std::mem::replace(&mut restorer, Restorer::new(Arc::clone(&new.engine)));
            switch(&old, &mut source, std::mem::take(&mut stream), restorer, &new);
            restorer_left = false;
        }
        match random.u32(..10) {
            0..6 => {
                let (path, key) =
                    (ROUTES[random.usize(..ROUTES.len())], random.u32(..6).to_string());
                let in_new = !restorer_left && random.bool();
                let process = if in_new { &new } else { &old };
                let mine = process.decide(path, &key).await;
                let expected = whole.decide(path, &key).await;
                let context = format!("seed {seed}, step {step}, {path} {key}, new {in_new}");
                assert_eq!(seen(&mine.decision), seen(&expected.decision), "{context}");
                open.push((in_new, mine, expected));
            }
            6..9 if !open.is_empty() => {
                let (in_new, mut mine, mut expected) = open.swap_remove(random.usize(..open.len()));
                let status = [200, 404, 500][random.usize(..3)];
                let cost = random.bool().then(|| random.u32(..10));
                let process = if in_new { &new } else { &old };
                if random.u32(..4) > 0 {
                    process.finish(&mut mine, status, cost);
                    whole.finish(&mut expected, status, cost);
                }
            }
            _ => clock.advance(Nanos::from_millis(random.u64(..1_500))),
        }
    }
    drop(open);
    for key in 0..6 {
        // Nothing is in flight any more, wherever it began.
        let left = new.decide("/two", &key.to_string()).await;
        let flying = left.decision.verdicts.last().unwrap().verdict;
        assert!(!flying.allowed || flying.remaining == 2, "seed {seed}: {flying:?}");
    }
}

/// Threads of both processes spend while the cells change hands. Nothing refills meanwhile, so each key is admitted exactly
/// its limit, and no more requests are ever in flight than allowed.
#[test]
fn a_switch_under_load_admits_exactly_the_limits() {
    const KEYS: usize = 40;
    const LIMIT: u32 = 500;
    let policy = "
limits:
  hour: { tier: exact, rate: 500/1h, algorithm: fixed_window, key: header:x-key, missing_key: deny }
  flying: { tier: exact, max_in_flight: 2, key: header:x-key, missing_key: deny }
routes:
  - { name: one, match: { path: /one }, limits: [flying, hour] }
  - { name: flying, match: { path: /flying }, limits: [flying] }
";
    for round in 0..6 {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let [old, new] = [(); 2].map(|()| Process::start(&clock, policy));
        let admitted: Vec<AtomicU32> = (0..KEYS).map(|_| AtomicU32::new(0)).collect();
        let flying: Vec<AtomicU32> = (0..KEYS).map(|_| AtomicU32::new(0)).collect();
        let switched = Mutex::new(false);
        let admitted_by: [AtomicU32; 2] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (old, new, admitted, flying, switched, admitted_by) =
                    (&old, &new, &admitted, &flying, &switched, &admitted_by);
                scope.spawn(move || {
                    let mut runtime = tokio::runtime::Builder::new_current_thread();
                    let runtime = runtime.enable_time().build().unwrap();
                    let mut random = fastrand::Rng::with_seed(round * 100 + thread);
                    for _ in 0..KEYS as u32 * LIMIT / 2 {
                        let key = random.usize(..KEYS);
                        let in_new = random.bool() && *switched.lock().unwrap();
                        let process = if in_new { new } else { old };
                        let open = runtime.block_on(process.decide("/one", &key.to_string()));
                        if open.decision.outcome == Outcome::Allowed {
                            admitted[key].fetch_add(1, Ordering::SeqCst);
                            let is_after = *switched.lock().unwrap();
                            admitted_by[usize::from(is_after)].fetch_add(1, Ordering::SeqCst);
                            let now = flying[key].fetch_add(1, Ordering::SeqCst) + 1;
                            assert!(now <= 2, "key {key} has {now} requests in flight");
                            flying[key].fetch_sub(1, Ordering::SeqCst);
                        }
                        drop(open);
                    }
                });
            }
            let mut source = old.source(&clock);
            let mut stream = Stream::default();
            let mut restorer = Restorer::new(Arc::clone(&new.engine));
            source.save_common(&mut stream);
            for shard in 0..source.shards() {
                source.copy_shard(shard, &mut stream);
            }
            source.save_changes(&mut stream);
            restore(&mut stream, &mut restorer, &new);
            switch(&old, &mut source, stream, restorer, &new);
            *switched.lock().unwrap() = true;
        });
        assert_eq!(old.engine.unanswered(), 0);
        let [before, after] = admitted_by.map(AtomicU32::into_inner);
        assert!(
            before > 0 && after > 0,
            "round {round}: {before} before the switch, {after} after it"
        );
        for (key, admitted) in admitted.iter().enumerate() {
            assert_eq!(admitted.load(Ordering::SeqCst), LIMIT, "round {round}, key {key}");
            // Nothing is in flight any more, wherever it began.
            let facts_of = headers(&key.to_string());
            let facts = facts(&new.engine, "/flying", &facts_of);
            let decided = new.engine.decide(&new.generation, &facts).now_or_never();
            let (decision, _pending) = decided.expect("in the successor nothing waits");
            let flying = decision.verdicts[0].verdict;
            assert!(
                flying.allowed && flying.remaining == 1,
                "round {round}, key {key}: {flying:?}"
            );
        }
    }
}

/// Asks for requests in the middle of a switch, once one limit's requests in flight have been handed over.
struct Meeting<'p> {
    stream: Stream,
    process: &'p Process,
    paths: Vec<&'static str>,
}

impl FrameSink for Meeting<'_> {
    fn add(&mut self, kind: FrameKind, group: u8, payload: &[u8]) {
        self.stream.add(kind, group, payload);
        if kind == FrameKind::InFlight {
            for path in self.paths.drain(..) {
                assert!(self.process.decide(path, "a").now_or_never().is_none(), "it waits");
            }
        }
    }
}

/// A request that holds one slot already, and finds the next one handed over, gives back the first: its client leaves.
#[tokio::test]
async fn a_request_that_the_switch_meets_leaves_nothing_in_flight() {
    let policy = "
limits:
  left: { tier: exact, max_in_flight: 3, key: header:x-key, missing_key: deny }
  right: { tier: exact, max_in_flight: 3, key: header:x-key, missing_key: deny }
routes:
  - { name: one, match: { path: /one }, limits: [left, right] }
  - { name: two, match: { path: /two }, limits: [right, left] }
";
    let clock = Arc::new(ManualClock::new(EPOCH));
    let [old, new] = [(); 2].map(|()| Process::start(&clock, policy));
    let mut source = old.source(&clock);
    let held = old.decide("/one", "a").await;
    let mut meeting =
        Meeting { stream: Stream::default(), process: &old, paths: vec!["/one", "/two"] };
    source.hand_over(&old.generation, &mut meeting);
    assert!(meeting.paths.is_empty(), "the switch has met them");
    take_up(&old, meeting.stream, Restorer::new(Arc::clone(&new.engine)), &new);
    let next = new.decide("/one", "a").await;
    let left: Vec<u32> =
        next.decision.verdicts.iter().map(|limit| limit.verdict.remaining).collect();
    assert_eq!(left, [1, 1], "the first and this one");
    drop((held, next));
    let next = new.decide("/one", "a").await;
    assert!(next.decision.verdicts.iter().all(|limit| limit.verdict.remaining == 2));
}

/// What a process saves after its cells have gone must not look like everything: the next start would find nothing else.
#[test]
fn a_process_without_its_cells_completes_no_round() {
    let policy = "
limits:
  hour: { tier: exact, rate: 9/10d, algorithm: fixed_window, key: header:x-key, missing_key: deny }
routes:
  - { name: hour, match: { path: /hour }, limits: [hour] }
";
    // With some of these numbers a round has just begun, and is far from its end.
    for saves in 1..9 {
        hand_over_after(policy, saves);
    }
}

fn hand_over_after(policy: &str, saves: u32) {
    let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
    let mut node = Node::start(policy, &clock, &disk);
    node.saver = node.saver.with_min_round(1);
    for _ in 0..saves {
        for key in 0..50 {
            assert!(node.is_allowed("hour", &key.to_string()));
        }
        node.saver.step(true);
    }
    assert!(node.is_allowed("hour", "0"));
    node.saver.step(true);
    let generation = &node.generation;
    node.saver.set_handed_over(true);
    node.saver.save_with_successor(|source, sink| source.hand_over(generation, sink));
    node.engine.set_key_rules(Arc::from([KeyRule {
        limit: "hour".into(),
        key: KeyHash { high: 1, low: 1 },
        ruling: Ruling::Ban,
        until: EPOCH.saturating_add(Nanos::from_secs(1_000)),
        made_at: EPOCH,
        version: None,
        by: "a test".into(),
        reason: "something to be saved".into(),
    }]));
    assert!(node.saver.finish_handed_over(|| {}));
    let next = Node::start(policy, &clock, &disk);
    for key in 0..50 {
        let spent = next.spent("hour", &key.to_string());
        assert_eq!(spent, saves + u32::from(key == 0), "{saves} saves, key {key}");
    }
}

/// The last copy for a successor is collected first. The log gets it also when a round begins before it is written.
#[test]
fn what_was_copied_for_a_successor_that_fails_is_saved() {
    let policy = "
limits:
  hour: { tier: exact, rate: 9/10d, algorithm: fixed_window, key: header:x-key, missing_key: deny }
routes:
  - { name: hour, match: { path: /hour }, limits: [hour] }
";
    for changes in 0..8 {
        let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(1));
        let mut node = Node::start(policy, &clock, &disk);
        node.saver = node.saver.with_min_round(1);
        for _ in 0..changes {
            (0..50).for_each(|key| assert!(node.is_allowed("hour", &key.to_string())));
            node.saver.step(true);
        }
        (0..50).for_each(|key| assert!(node.is_allowed("hour", &key.to_string())));
        node.saver.set_handed_over(true);
        let generation = &node.generation;
        node.saver.save_with_successor(|source, sink| source.hand_over(generation, sink));
        node.engine.take_back();
        node.saver.set_handed_over(false);
        node.saver.step(false);
        let next = Node::start(policy, &clock, &disk.after_kill());
        for key in 0..50 {
            assert_eq!(next.spent("hour", &key.to_string()), changes + 1, "{changes}, key {key}");
        }
    }
}

/// Requests end while a handover that failed is taken back: neither waits for the other.
#[test]
fn a_handover_is_taken_back_while_requests_end() {
    let policy = "
limits:
  flying: { tier: exact, max_in_flight: 9, key: header:x-key, missing_key: deny }
routes:
  - { name: one, match: { path: /one }, limits: [flying] }
";
    let clock = Arc::new(ManualClock::new(EPOCH));
    let old = Arc::new(Process::start(&clock, policy));
    let stop = Arc::new(AtomicBool::new(false));
    let left = Arc::clone(&old);
    let spend = |thread: u32| {
        let (old, stop) = (Arc::clone(&old), Arc::clone(&stop));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let runtime = runtime.unwrap();
            while !stop.load(Ordering::Relaxed) {
                drop(runtime.block_on(old.decide("/one", &thread.to_string())));
            }
        })
    };
    let spending: Vec<_> = (0..3).map(spend).collect();
    let (tell, told) = std::sync::mpsc::channel();
    let mut source = old.source(&clock);
    std::thread::spawn(move || {
        for _ in 0..300 {
            source.hand_over(&old.generation, &mut Stream::default());
            old.engine.take_back();
        }
        tell.send(()).unwrap();
    });
    let ended = told.recv_timeout(std::time::Duration::from_secs(60));
    stop.store(true, Ordering::Relaxed);
    assert!(ended.is_ok(), "they wait for each other");
    spending.into_iter().for_each(|thread| thread.join().unwrap());
    for key in 0..3 {
        let open = left.decide("/one", &key.to_string()).now_or_never().unwrap();
        let held = open.decision.verdicts[0].verdict.remaining;
        assert_eq!(held, 8, "key {key}: nothing else is in flight");
    }
}

/// A successor that counts and does not answer.
struct Silent;

impl Successor for Silent {
    fn judge(&self, _: HandedRequest) -> BoxFuture<'static, SuccessorAnswer> {
        async { SuccessorAnswer::Silent(LateJudgment::default()) }.boxed()
    }

    fn tell(&self, _: HandedEvent) {}
}

/// Requests that a successor does not answer are judged by what was counted until the handover, and counted: a pause of the
/// successor lets nobody spend a limit twice in this process.
#[tokio::test]
async fn a_successor_that_does_not_answer_gives_nobody_a_limit_again() {
    let policy = "
limits:
  five: { tier: exact, rate: 5/10d, algorithm: fixed_window, key: header:x-key, missing_key: deny }
  nine: { tier: exact, rate: 9/10d, algorithm: fixed_window, key: header:x-key, missing_key: deny }
  pages: { tier: estimate, rate: 7/10d, key: header:x-key, missing_key: deny }
  flying: { tier: exact, max_in_flight: 1, key: header:x-key, missing_key: deny }
  strict: { tier: exact, rate: 5/10d, algorithm: fixed_window, key: header:x-key, missing_key: deny, after_crash: deny }
routes:
  - { name: both, match: { path: /both }, limits: [five, nine] }
  - { name: nine, match: { path: /nine }, limits: [nine] }
  - { name: pages, match: { path: /pages }, limits: [pages] }
  - { name: flying, match: { path: /flying }, limits: [flying] }
  - { name: mixed, match: { path: /mixed }, limits: [nine, strict] }
";
    let clock = Arc::new(ManualClock::new(EPOCH));
    let old = Process::start(&clock, policy);
    let asked = async |path: &str, times: usize| {
        let mut admitted = 0;
        for _ in 0..times {
            let open = old.decide(path, "a").await;
            admitted += usize::from(open.decision.outcome == Outcome::Allowed);
        }
        admitted
    };
    assert_eq!(asked("/both", 3).await, 3);
    assert_eq!(asked("/pages", 4).await, 4);
    let held = old.decide("/flying", "a").await;
    let mut source = old.source(&clock);
    source.hand_over(&old.generation, &mut Stream::default());
    old.engine.set_successor(Arc::new(Silent));
    assert_eq!(asked("/mixed", 3).await, 0, "what the successor admits is not known");
    assert_eq!(asked("/both", 9).await, 2, "three of five are spent");
    assert_eq!(asked("/nine", 9).await, 4, "five of nine are spent");
    assert_eq!(asked("/pages", 9).await, 3);
    assert_eq!(asked("/flying", 1).await, 0, "one is in flight here");
    drop(held);
    let held = old.decide("/flying", "a").await;
    assert_eq!(held.decision.outcome, Outcome::Allowed);
    assert_eq!(asked("/flying", 1).await, 0, "it is counted here");
    assert_eq!(old.engine.unanswered(), 3 + 9 + 9 + 9 + 3);
    drop(held);
    old.engine.take_back_abandoned();
    assert_eq!((asked("/both", 9).await, asked("/nine", 9).await), (0, 0), "it stays counted");
}

/// A process that hands over lets go of its directory when everything is written: its successor must not wait with its own
/// spending for the disk to confirm that. A loss of power before the disk has everything, in any order, gives no key a unit
/// again under `deny`.
#[test]
fn a_directory_is_let_go_when_everything_is_written() {
    let policy = "
limits:
  hour: { tier: exact, rate: 24/10d, algorithm: fixed_window, key: header:x-key, missing_key: deny, after_crash: deny }
routes:
  - { name: hour, match: { path: /hour }, limits: [hour] }
";
    let mut torn = 0;
    for seed in 0..200 {
        let (clock, disk) = (Arc::new(ManualClock::new(EPOCH)), SimulatedDisk::new(seed));
        let syncs = LateSyncs::default();
        let mut node = Node::start(policy, &clock, &disk);
        node.saver = node.saver.with_sync_runner(Box::new(syncs.clone()));
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut spent, mut waits) = ([0; 5], [0; 5]);
        for round in 0..7 {
            for key in 0..5 {
                let decision = node.decide("hour", &key.to_string());
                assert_eq!(decision.outcome, Outcome::Allowed);
                spent[key] += 1;
                // What has to be on the disk first is not forwarded, if the power is lost before that.
                waits[key] = if node.engine.is_saved(&decision) { 0 } else { waits[key] + 1 };
            }
            // What is spent last is only written at the end.
            if round == 6 {
                break;
            }
            node.saver.step(true);
            if random.u32(..3) > 0 && syncs.end() {
                node.saver.poll_sync();
            }
        }
        let generation = &node.generation;
        node.saver.set_handed_over(true);
        node.saver.save_with_successor(|source, sink| source.hand_over(generation, sink));
        let mut left = None;
        let is_saved = node.saver.finish_handed_over(|| {
            assert!(syncs.is_running(), "the disk does not have everything yet");
            left = Some((disk.after_kill(), disk.after_power_loss()));
        });
        assert!(is_saved && !syncs.is_running());
        let (killed, lost) = left.unwrap();
        let next = Node::start(policy, &clock, &killed);
        assert!(next.found.was_ended_by(run_id()));
        let after_loss = Node::start(policy, &clock, &lost);
        torn += u32::from(!after_loss.found.is_clean);
        for key in 0..5 {
            assert_eq!(next.spent("hour", &key.to_string()), spent[key], "seed {seed}");
            let kept = after_loss.spent("hour", &key.to_string());
            let passed = spent[key] - waits[key];
            assert!(kept >= passed, "seed {seed}: {kept} of {passed} are known");
        }
    }
    assert!(torn > 20, "{torn}");
}

/// A process that saves what it takes up before it counts, because its directory is another one, saves also what changes until
/// then.
#[test]
fn what_changes_while_a_process_takes_up_is_saved_by_it() {
    let policy = "
limits:
  hour: { tier: exact, rate: 9/10d, algorithm: fixed_window, key: header:x-key, missing_key: deny, penalty: { after: 2, within: 1h, ban: 1h } }
routes:
  - { name: hour, match: { path: /hour }, limits: [hour] }
";
    let clock = Arc::new(ManualClock::new(EPOCH));
    let old = Process::start(&clock, policy);
    let spend = |key: &str, times: usize| {
        for _ in 0..times {
            let _open = old.decide("/hour", key).now_or_never().unwrap();
        }
    };
    spend("a", 2);
    spend("b", 3);
    let mut source = old.source(&clock);
    let mut stream = Stream::default();
    source.save_common(&mut stream);
    (0..source.shards()).for_each(|shard| source.copy_shard(shard, &mut stream));

    let disk = SimulatedDisk::new(1);
    let mut new = Node::start(policy, &clock, &disk);
    let mut restorer = Restorer::new(Arc::clone(&new.engine));
    let take_up = |stream: &mut Stream, restorer: &mut Restorer| {
        for (kind, group, payload) in stream.0.drain(..) {
            let frame = RestoredFrame { kind, group, payload, is_clean: true };
            if let Some(cells) = restorer.read(frame) {
                let metrics = StateMetrics::default();
                assert_eq!(Restorer::restore_cells(&new.engine, &metrics, &cells), 0);
            }
        }
    };
    take_up(&mut stream, &mut restorer);
    new.saver = new.saver.that_lacks_cells();
    (0..4).for_each(|_| new.saver.step(true));
    let saved = Node::start(policy, &clock, &disk.after_kill());
    assert_eq!((saved.spent("hour", "a"), saved.spent("hour", "b")), (2, 3));

    restorer.list_as_changed();
    spend("a", 1);
    spend("c", 11);
    source.save_changes(&mut stream);
    take_up(&mut stream, &mut restorer);
    new.saver.step(true);
    let saved = Node::start(policy, &clock, &disk.after_kill());
    let spent = ["a", "b", "c"].map(|key| saved.spent("hour", key));
    assert_eq!(spent, [3, 3, 9]);
    clock.advance(Nanos::from_secs(60));
    assert_eq!(
        saved.decide("hour", "c").verdicts[0].verdict.retry_after,
        Some(Nanos::from_secs(3_540))
    );
}

/// A successor whose judgments come too late, one at a time.
struct Late {
    joined: Joined,
    judged: Mutex<Option<(HandedJudgment, HandedRequest, LateJudgment)>>,
}

impl Successor for Late {
    fn judge(&self, request: HandedRequest) -> BoxFuture<'static, SuccessorAnswer> {
        let (judgment, _) = self.joined.predecessor.judge_now(&self.joined.generation, &request);
        let late = LateJudgment::default();
        *self.judged.lock().unwrap() = Some((judgment, request, late.clone()));
        async { SuccessorAnswer::Silent(late) }.boxed()
    }

    fn tell(&self, event: HandedEvent) {
        self.joined.tell(event);
    }
}

/// What a judgment has charged that came too late is charged once: not at all if the request was refused meanwhile.
#[tokio::test]
async fn a_judgment_that_comes_too_late_charges_nobody_who_was_refused() {
    let policy = "
limits:
  five: { tier: exact, rate: 5/10d, algorithm: fixed_window, key: header:x-key, missing_key: deny }
  strict: { tier: exact, rate: 5/10d, algorithm: fixed_window, key: header:x-key, missing_key: deny, after_crash: deny }
  pages: { tier: estimate, rate: 5/10d, key: header:x-key, missing_key: deny }
routes:
  - { name: five, match: { path: /five }, limits: [five, pages] }
  - { name: strict, match: { path: /strict }, limits: [strict, pages] }
";
    let clock = Arc::new(ManualClock::new(EPOCH));
    let [old, new] = [(); 2].map(|()| Process::start(&clock, policy));
    let mut source = old.source(&clock);
    let mut stream = Stream::default();
    source.hand_over(&old.generation, &mut stream);
    let mut restorer = Restorer::new(Arc::clone(&new.engine));
    restore(&mut stream, &mut restorer, &new);
    let (predecessor, _) = restorer.take_up(&new.engine, &new.generation, &[]);
    let late = Arc::new(Late {
        joined: Joined {
            predecessor: Arc::new(predecessor),
            generation: Arc::clone(&new.generation),
            successor: std::sync::OnceLock::new(),
        },
        judged: Mutex::new(None),
    });
    old.engine.set_successor(Arc::clone(&late) as _);
    for (path, expected, left, pages) in
        [("/five", Outcome::Allowed, 3, 3), ("/strict", Outcome::Limited, 4, 2)]
    {
        assert_eq!(old.decide(path, "a").await.decision.outcome, expected);
        let (judgment, request, mark) = late.judged.lock().unwrap().take().unwrap();
        assert!(judgment.charged);
        let held = HeldJudgment::new(judgment, &request, Arc::clone(&late) as _);
        let to_refund = mark.arrive(held, request);
        assert_eq!(to_refund.is_some(), expected == Outcome::Limited);
        if let Some((held, request)) = to_refund {
            old.engine.refund_late(held, &request);
        }
        let next = new.decide(path, "a").await;
        let remaining: Vec<_> =
            next.decision.verdicts.iter().map(|limit| limit.verdict.remaining).collect();
        assert_eq!(remaining, [left, pages], "{path}");
    }
}

/// Operators look for the heaviest senders after an upgrade too, also when the new file has its limits in another order.
#[tokio::test]
async fn lists_of_estimate_limits_go_over_by_name() {
    let policy = |first: &str, second: &str| {
        let limit = |name: &str| {
            format!(
                "  {name}: {{ tier: estimate, rate: 9/10s, key: header:x-key, missing_key: deny }}\n"
            )
        };
        format!(
            "\nlimits:\n{}{}routes:\n  - {{ name: one, match: {{ path: /one }}, limits: [pages] }}\n  - {{ name: two, match: {{ path: /two }}, limits: [feeds] }}\n",
            limit(first),
            limit(second)
        )
    };
    let clock = Arc::new(ManualClock::new(EPOCH));
    let old = Process::start(&clock, &policy("pages", "feeds"));
    let new = Process::start(&clock, &policy("feeds", "pages"));
    for _ in 0..9 {
        let _open = old.decide("/one", "a").await;
    }
    let mut source = old.source(&clock);
    switch(&old, &mut source, Stream::default(), Restorer::new(Arc::clone(&new.engine)), &new);
    let senders = |name: &str| {
        let mut limits = new.generation.policy().indexed_limits();
        let (index, _) = limits.find(|(_, limit)| &*limit.name == name).unwrap();
        let estimate = new.generation.estimate(index).unwrap();
        estimate.heaviest(new.engine.confirm_table(), 5, new.engine.now()).len()
    };
    assert_eq!((senders("pages"), senders("feeds")), (1, 0));
}

/// An upgrade to shorter windows charges what was sent before it, and not when the key comes next.
#[tokio::test]
async fn a_key_that_sent_nothing_for_many_shorter_windows_has_its_limit() {
    let policy = |rate: &str| {
        format!(
            "\nlimits:\n  pages: {{ tier: estimate, rate: {rate}, key: header:x-key, missing_key: deny }}\nroutes: [{{ name: one, limits: [pages] }}]\n"
        )
    };
    let admitted = async |process: &Process| {
        let mut admitted = 0;
        for _ in 0..25 {
            let outcome = process.decide("/", "a").await.decision.outcome;
            admitted += u32::from(outcome == Outcome::Allowed);
        }
        admitted
    };
    let clock = Arc::new(ManualClock::new(EPOCH));
    let old = Process::start(&clock, &policy("20/1h"));
    let new = Process::start(&clock, &policy("20/10s"));
    assert_eq!(admitted(&old).await, 20);
    let mut source = old.source(&clock);
    switch(&old, &mut source, Stream::default(), Restorer::new(Arc::clone(&new.engine)), &new);
    // It sends nothing for two of the windows.
    clock.advance(Nanos::from_secs(26));
    assert_eq!(admitted(&new).await, 20);
}

/// Old connections stay within `max_in_flight` whatever the successor's file makes of the limit, with what was in flight at the
/// switch, and each end lets one more in.
#[tokio::test]
async fn requests_in_flight_are_bounded_though_the_new_file_has_no_such_limit() {
    let policy = |limit: &str, name: &str| {
        format!(
            "\nlimits:\n  {name}: {{ tier: exact, {limit}, key: header:x-key, missing_key: deny }}\nroutes: [{{ name: one, limits: [{name}] }}]\n"
        )
    };
    let files = [
        ("the same", policy("max_in_flight: 3", "flying")),
        ("renamed", policy("max_in_flight: 3", "slots")),
        ("a rate", policy("rate: 100/1s", "flying")),
        ("none", "\nroutes: [{ name: one }]\n".to_owned()),
    ];
    for (what, file) in files {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let old = Process::start(&clock, &policy("max_in_flight: 3", "flying"));
        let new = Process::start(&clock, &file);
        let mut source = old.source(&clock);
        let first = old.decide("/", "a").await;
        switch(&old, &mut source, Stream::default(), Restorer::new(Arc::clone(&new.engine)), &new);
        let mut open = Vec::new();
        for _ in 0..9 {
            open.push(old.decide("/", "a").await);
        }
        let admitted = |open: &[Open]| {
            open.iter().filter(|open| open.decision.outcome == Outcome::Allowed).count()
        };
        assert_eq!(admitted(&open), 2, "{what}");
        drop(first);
        assert_eq!(old.decide("/", "a").await.decision.outcome, Outcome::Allowed, "{what}");
        drop(open);
        let mut open = Vec::new();
        for _ in 0..9 {
            open.push(old.decide("/", "a").await);
        }
        assert_eq!(admitted(&open), 3, "{what}: all have ended");
    }
}
