//! What a state directory costs decisions: the same load in turn with it and without it, on a real disk, with the real thread
//! that saves. `make compare-state`.
//!
//! Every decision is timed while 100,000 are asked for each second; then as many as one thread can
//! make. `saving fill DIR CELLS` only leaves a directory with so many cells, for `scripts/compare/state.py`.
#![expect(clippy::unwrap_used, reason = "a bench that meets what it does not expect shall fail")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the time")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue};
use tollgate::clock::{Nanos, SystemClock};
use tollgate::config;
use tollgate::engine::{Engine, EngineSource, Generation, Outcome};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{ConnectionFacts, Facts, KeySecret};
use tollgate::state::{LastSave, SaveIntervals, Saver, SaverHandle, StateDirectory, StateMetrics};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const KEYS: usize = 1_000_000;

const RATE: u32 = 100_000;

/// Decisions that are made together, then the thread waits for its time.
const BATCH: u32 = 100;

const ROUNDS: usize = 5;
const SECONDS: u32 = 8;

/// Decisions of a load that is as fast as it can be.
const FULL_LOAD: u32 = 2_000_000;

struct Node {
    engine: Arc<Engine>,
    generation: Generation,
    saving: Option<Saving>,
    folder: Option<tempfile::TempDir>,
    requests: Vec<HeaderMap>,
    next: usize,
}

struct Saving {
    handle: Arc<SaverHandle<EngineSource>>,
    metrics: Arc<StateMetrics>,
}

impl Node {
    fn new(algorithm: &str, keys: usize, has_state: bool) -> Self {
        // Not where the system keeps temporary files, which may be memory.
        let folder = has_state.then(|| tempfile::tempdir_in("target").unwrap());
        let state = folder.as_ref().map(|folder| folder.path().join("state"));
        let mut node = Self::start(algorithm, state.as_deref());
        node.requests = (0..keys).map(|key| request(&format!("key-{key:08}"))).collect();
        node.folder = folder;
        (0..keys).for_each(|_| node.decide());
        node
    }

    /// Without keys of its own.
    fn start(algorithm: &str, state: Option<&Path>) -> Self {
        let text = format!(
            "version: 1
listeners: [{{ address: 127.0.0.1:1 }}]
store: {{ embedded: {{ state: /nowhere }} }}
limits_of_this_proxy: {{ max_keys: 20000000 }}
origins: {{ site: {{ servers: [127.0.0.1:1] }} }}
limits:
  l: {{ tier: exact, algorithm: {algorithm}, rate: 10000/1h, key: header:x-key, missing_key: deny }}
routes: [{{ name: r, limits: [l] }}]
"
        );
        let policy = config::read_text(&text, "bench.yaml", Path::new("")).unwrap().config.policy;
        let clock = Arc::new(SystemClock::new());
        let engine = Arc::new(Engine::new(Arc::clone(&clock) as _, KeySecret::new([7; 16])));
        let generation = engine.generation(policy, None).0;
        let saving = state.map(|state| {
            let directory = StateDirectory::open(state, false, 0).unwrap();
            let metrics = Arc::new(StateMetrics::default());
            let (log, lock) = directory.into_log(Arc::clone(&metrics));
            let source = EngineSource::new(
                Arc::clone(&engine),
                Box::new(move || clock.mark()),
                Arc::clone(&metrics),
            );
            let intervals =
                SaveIntervals { flush: Nanos::from_millis(100), sync: Nanos::from_millis(1_000) };
            let saver = Saver::new(source, log, intervals, Arc::clone(&metrics));
            let handle = SaverHandle::spawn(saver, lock).unwrap();
            Saving { handle, metrics }
        });
        Self { engine, generation, saving, folder: None, requests: Vec::new(), next: 0 }
    }

    fn decide(&mut self) {
        self.decide_for(&self.requests[self.next]);
        self.next = (self.next + 1) % self.requests.len();
    }

    fn decide_for(&self, headers: &HeaderMap) {
        let facts = Facts {
            connection: &ConnectionFacts::NONE,
            client: RequestClient {
                ip: [192, 0, 2, 1].into(),
                ipv6_prefix: 64,
                peer_trusted: true,
            },
            now: self.engine.date(self.engine.now()),
            method: "GET",
            host: "a",
            path: "/",
            readings: &[],
            query: None,
            headers,
            conditions: None,
        };
        let outcome = self.engine.decide_now(&self.generation, &facts).0.outcome;
        assert!(outcome == Outcome::Allowed, "{outcome:?}");
    }

    /// Decisions at a steady pace. Returns what each took, sorted.
    fn paced(&mut self) -> Vec<Duration> {
        let step = Duration::from_secs(1) * BATCH / RATE;
        let began = Instant::now();
        let mut times = Vec::new();
        for batch in 0..SECONDS * RATE / BATCH {
            let at = began + step * batch;
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            for _ in 0..BATCH {
                let before = Instant::now();
                self.decide();
                times.push(before.elapsed());
            }
        }
        times.sort_unstable();
        times
    }

    /// Decisions a second of a thread that does nothing else.
    fn full(&mut self) -> f64 {
        let began = Instant::now();
        (0..FULL_LOAD).for_each(|_| self.decide());
        f64::from(FULL_LOAD) / began.elapsed().as_secs_f64()
    }

    fn written(&self) -> u64 {
        self.saving.as_ref().map_or(0, |saving| saving.metrics.written())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(saving) = &self.saving {
            assert_eq!(saving.handle.finish(Duration::from_secs(60)), LastSave::Saved);
        }
    }
}

fn request(key: &str) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(1);
    headers.insert("x-key", HeaderValue::from_str(key).unwrap());
    headers
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn range(figures: &[f64]) -> String {
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = figures.iter().copied().fold(0.0, f64::max);
    format!("{:.2} ({least:.2} to {largest:.2})", median(figures.to_vec()))
}

fn beside(algorithm: &str, keys: usize) {
    println!("## {algorithm}, {keys} keys");
    let mut nodes = [Node::new(algorithm, keys, false), Node::new(algorithm, keys, true)];
    let (mut tails, mut rates) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut processor = [Vec::new(), Vec::new()];
    let (mut written, mut decided) = (0, 0);
    for round in 0..ROUNDS {
        for turn in 0..2 {
            let index = (round + turn) % 2;
            let node = &mut nodes[index];
            let (before, spent) = (node.written(), processor_time());
            let times = node.paced();
            written += node.written() - before;
            decided += if index == 1 { times.len() as u64 } else { 0 };
            processor[index].push((processor_time() - spent) / f64::from(SECONDS));
            tails[index].push(times[times.len() * 999 / 1_000].as_secs_f64() * 1e6);
            rates[index].push(node.full() / 1e6);
        }
    }
    let ratios = rates[1].iter().zip(&rates[0]).map(|(with, without)| with / without);
    println!(
        "p99.9 at {RATE} decisions/s, us: {} without, {} with",
        range(&tails[0]),
        range(&tails[1])
    );
    println!(
        "processor time at {RATE} decisions/s, of one core: {} without, {} with",
        range(&processor[0]),
        range(&processor[1])
    );
    println!(
        "million decisions/s of one thread: {} without, {} with",
        range(&rates[0]),
        range(&rates[1])
    );
    println!("with, against without: {}", range(&ratios.collect::<Vec<_>>()));
    println!("bytes written for each decision: {:.1}", written as f64 / decided as f64);
    if let Some(saving) = &nodes[1].saving {
        println!("longest lock of a shard: {} us", saving.metrics.longest_lock().get() / 1_000);
    }
}

/// Of all threads, in seconds.
fn processor_time() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

fn fill(state: &Path, cells: usize) {
    let node = Node::start("sliding_window", Some(state));
    (0..cells).for_each(|key| node.decide_for(&request(&format!("key-{key:08}"))));
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, state, cells, ..] = &arguments[..]
        && word == "fill"
    {
        return fill(Path::new(state), cells.parse().unwrap());
    }
    beside("sliding_window", KEYS);
    beside("sliding_log", KEYS / 10);
}
