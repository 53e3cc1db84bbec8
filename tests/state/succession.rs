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
    Decision, Engine, EngineSource, FinalResponse, Generation, HandedEvent, HandedRequest,
    HeldJudgment, Outcome, PendingSettlement, Predecessor, Restorer, Successor, SuccessorAnswer,
};
use tollgate::policy::{KeyHash, KeyRule, KeySecret, Ruling};
use tollgate::state::{FrameKind, FrameSink, RestoredFrame, StateMetrics, StateSource as _};

use crate::disk::SimulatedDisk;
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
";

const ROUTES: [&str; 5] = ["/one", "/two", "/three", "/four", "/five"];

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
        by: "a test".into(),
        reason: "something to be saved".into(),
    }]));
    assert!(node.saver.finish());
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
