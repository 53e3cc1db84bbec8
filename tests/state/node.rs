//! A node with a state directory on a simulated disk, in one thread, on a turned clock.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::{HeaderMap, HeaderValue};
use tollgate::clock::{Clock as _, ManualClock, Nanos, TimeMark};
use tollgate::config;
use tollgate::engine::{
    Decision, Engine, EngineSource, Generation, KeyState, Outcome, Restorer, TypedKey,
};
use tollgate::history::TrafficHistory;
use tollgate::ops::HistorySection;
use tollgate::policy::client::RequestClient;
use tollgate::policy::{ConnectionFacts, Facts, KeySecret, Policy};
use tollgate::state::{
    FrameKind, Recovery, SaveIntervals, Saver, StateDirectory, StateLock, StateLog, StateMetrics,
    StateSummary,
};

use crate::disk::SimulatedDisk;

/// The begin of a day, so that windows begin with the test.
pub const EPOCH: Nanos = Nanos::from_secs(1_800_057_600);

pub const FINGERPRINT: u64 = 7;

pub struct Node {
    pub engine: Arc<Engine>,
    pub history: Arc<TrafficHistory>,
    pub generation: Generation,
    pub saver: Saver<EngineSource>,
    pub metrics: Arc<StateMetrics>,
    pub found: StateSummary,
    /// Records that could not be restored.
    pub unreadable: u64,
}

impl Node {
    /// Starts on a disk. The clock goes on from before, as it does for a process that continues the time lines.
    pub fn start(policy: &str, clock: &Arc<ManualClock>, disk: &SimulatedDisk) -> Self {
        let recovery = Recovery::read(Arc::new(disk.clone()), FINGERPRINT).unwrap();
        let restored = Restored::read(&recovery, clock, KeySecret::new([7; 16]));
        restored.serve(policy, clock, |metrics| recovery.into_log(FINGERPRINT, metrics))
    }

    /// The same, in a directory. Its lock is given back.
    pub fn start_in(policy: &str, clock: &Arc<ManualClock>, directory: StateDirectory) -> Self {
        Self::start_holding(policy, clock, directory).0
    }

    /// The same, with the lock of the directory.
    pub fn start_holding(
        policy: &str,
        clock: &Arc<ManualClock>,
        directory: StateDirectory,
    ) -> (Self, StateLock) {
        let secret = KeySecret::new(*directory.secret());
        let restored = Restored::read(directory.recovery(), clock, secret);
        let mut held = None;
        let node = restored.serve(policy, clock, |metrics| {
            let (log, lock) = directory.into_log(metrics);
            held = Some(lock);
            log
        });
        (node, held.unwrap())
    }

    /// A request of a key, to the route of this name.
    pub fn decide(&self, route: &str, key: &str) -> Decision {
        let (path, headers) = (format!("/{route}"), headers(key));
        let facts = facts(&self.engine, &path, &headers);
        self.engine.decide_now(&self.generation, &facts).0
    }

    pub fn is_allowed(&self, route: &str, key: &str) -> bool {
        self.decide(route, key).outcome == Outcome::Allowed
    }

    /// Reloads another policy.
    pub fn reload(&mut self, policy: &str) {
        self.generation = self.engine.generation(read(policy), Some(&self.generation)).0;
    }

    /// What a key has spent under a limit.
    pub fn spent(&self, limit: &str, key: &str) -> u32 {
        let state = self.state(limit, key);
        state.verdict.limit - state.verdict.remaining
    }

    /// What is known of a key under a limit.
    pub fn state(&self, limit: &str, key: &str) -> KeyState {
        let mut limits = self.generation.policy().indexed_limits();
        let (index, _) = limits.find(|(_, found)| &*found.name == limit).unwrap();
        let typed = TypedKey::Values(&[key]);
        ready(self.engine.look_up(&self.generation, index, &typed, None, 64)).unwrap()
    }
}

/// What was restored, before a configuration is in force.
struct Restored {
    engine: Arc<Engine>,
    history: Arc<TrafficHistory>,
    metrics: Arc<StateMetrics>,
    found: StateSummary,
    unreadable: u64,
}

impl Restored {
    fn read(recovery: &Recovery, clock: &Arc<ManualClock>, secret: KeySecret) -> Self {
        let engine = Arc::new(Engine::new(Arc::clone(clock) as _, secret));
        let metrics = Arc::new(StateMetrics::default());
        let mut restorer = Restorer::new(Arc::clone(&engine));
        let mut unreadable = 0;
        let history = Arc::new(TrafficHistory::default());
        let mut minutes = history.restorer(engine.now().mono, engine.date(engine.now()));
        let restored = recovery.replay(&metrics, |frame| {
            if frame.kind == FrameKind::History {
                minutes.read(&frame.payload);
            } else if let Some(cells) = restorer.read(frame) {
                unreadable += Restorer::restore_cells(&engine, &metrics, &cells);
            }
        });
        restored.unwrap();
        unreadable += restorer.finish() + minutes.unreadable();
        history.restore(minutes);
        let found = recovery.summary().clone();
        Self { engine, history, metrics, found, unreadable }
    }

    fn serve(
        self,
        policy: &str,
        clock: &Arc<ManualClock>,
        log: impl FnOnce(Arc<StateMetrics>) -> StateLog,
    ) -> Node {
        let Self { engine, history, metrics, found, unreadable } = self;
        let generation = engine.generation(read(policy), None).0;
        let log = log(Arc::clone(&metrics));
        let mark = mark_of(Arc::clone(clock));
        let source = EngineSource::new(Arc::clone(&engine), mark, Arc::clone(&metrics))
            .with_section(Box::new(HistorySection::new(Arc::clone(&history))));
        let intervals =
            SaveIntervals { flush: Nanos::from_millis(100), sync: Nanos::from_millis(1_000) };
        let saver = Saver::new(source, log, intervals, Arc::clone(&metrics));
        Node { engine, history, generation, saver, metrics, found, unreadable }
    }
}

/// The result of a future that waits for nothing.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the embedded store waits for nothing"),
    }
}

pub fn mark_of(clock: Arc<ManualClock>) -> Box<dyn Fn() -> TimeMark + Send> {
    Box::new(move || {
        let now = clock.now();
        let date = clock.date(now);
        TimeMark { mono: now.mono, wall: now.wall, date, uptime: now.mono, boot: "one".to_owned() }
    })
}

pub fn read(policy: &str) -> Policy {
    let text = format!(
        "version: 1
listeners: [{{ address: 127.0.0.1:1 }}]
store: {{ embedded: {{ state: /nowhere }} }}
origins: {{ site: {{ servers: [127.0.0.1:1] }} }}
{policy}
"
    );
    config::read_text(&text, "test.yaml", Path::new("")).unwrap().config.policy
}

/// The headers of a request of a key.
pub fn headers(key: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("x-key", HeaderValue::from_str(key).unwrap());
    headers
}

/// What an engine sees of a request, at its present time.
pub fn facts<'f>(engine: &Engine, path: &'f str, headers: &'f HeaderMap) -> Facts<'f> {
    Facts {
        connection: &ConnectionFacts::NONE,
        client: RequestClient { ip: [192, 0, 2, 1].into(), ipv6_prefix: 64, peer_trusted: true },
        now: engine.date(engine.now()),
        method: "GET",
        host: "a",
        path,
        readings: &[],
        query: None,
        headers,
        conditions: None,
    }
}
