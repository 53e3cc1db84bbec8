//! What a decision costs over a Redis server on loopback, beside one bare EVALSHA of the same script
//! for each decision: `make compare-redis` starts a server and ends it.
//!
//! - a hot key, many callers; many keys; a key that is spent: decisions a second, turn by turn, and
//!   decisions for each second of the server's processor;
//! - one caller: the median of each, turn by turn.
#![expect(clippy::unwrap_used, reason = "a bench that meets what it does not expect shall fail")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the time")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue};
use tollgate::clock::SystemClock;
use tollgate::config;
use tollgate::engine::{Engine, Generation, Outcome};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{Facts, KeySecret};
use tollgate::store::redis::{Address, Login, SCRIPT, ServerDiscovery, SharedStore, StoreSettings};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const POLICY: &str = "
version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { site: { servers: [127.0.0.1:1] } }
clients: { trusted_proxies: [10.0.0.0/8] }
store: { redis: { url: redis://127.0.0.1 } }
limits:
  hot: { tier: exact, algorithm: fixed_window, rate: 4000000000/1h, key: header:x-key, missing_key: deny }
  spent: { tier: exact, algorithm: fixed_window, rate: 1/30d, key: header:x-key, missing_key: deny }
  user: { tier: exact, algorithm: fixed_window, rate: 4000000000/1h, key: header:x-key, missing_key: deny }
  org:
    tier: exact
    algorithm: fixed_window
    rate: 4000000000/1h
    key: header:x-org
    missing_key: deny
    plans: { by: header:x-plan, rates: { gold: 4100000000/1h, silver: 4200000000/1d } }
routes:
  - { name: org, match: { path: /org }, limits: [user, org] }
  - { name: spent, match: { path: /spent }, limits: [spent] }
  - { name: r, limits: [hot] }
";

struct Node {
    engine: Engine,
    generation: Generation,
}

impl Node {
    async fn start(port: u16) -> Self {
        let settings = StoreSettings {
            servers: ServerDiscovery::Single(Address::Tcp("127.0.0.1".to_owned(), port)),
            login: Login::default(),
            tls: None,
            timeout: Duration::from_secs(1),
            prefix: "bench".to_owned(),
        };
        let clock = Arc::new(SystemClock::new());
        let remote = SharedStore::start(settings, Arc::clone(&clock) as _);
        assert!(remote.wait_until_up(Duration::from_secs(5)).await, "no server on port {port}");
        let engine = Engine::with_store(clock, KeySecret::new([1; 16]), Arc::clone(&remote));
        let loaded = config::read_text(POLICY, "bench.yaml", Path::new("")).unwrap();
        let (generation, _) = engine.generation(loaded.config.policy, None);
        Self { engine, generation }
    }

    async fn decide(&self, path: &str, headers: &HeaderMap) {
        let decided = self.spend(path, headers).await;
        let expected = if path == "/spent" { Outcome::Limited } else { Outcome::Allowed };
        assert_eq!(decided, (expected, false), "outcome, and whether the store was away");
    }

    async fn spend(&self, path: &str, headers: &HeaderMap) -> (Outcome, bool) {
        let facts = Facts {
            connection: &tollgate::policy::ConnectionFacts::NONE,
            client: RequestClient {
                ip: [192, 0, 2, 1].into(),
                ipv6_prefix: 64,
                peer_trusted: true,
            },
            now: tollgate::clock::Nanos::ZERO,
            method: "POST",
            host: "h",
            path,
            readings: &[],
            query: None,
            headers,
            conditions: None,
        };
        let (decision, _) = self.engine.decide(&self.generation, &facts).await;
        (decision.outcome, decision.is_degraded())
    }
}

/// One bare script call for each decision, over as many connections as a pool would have.
struct Bare {
    connections: Vec<redis::aio::MultiplexedConnection>,
    sha: String,
}

impl Bare {
    async fn connect(port: u16) -> Self {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        let mut connections = Vec::new();
        for _ in 0..4 {
            connections.push(client.get_multiplexed_async_connection().await.unwrap());
        }
        let sha = redis::Script::new(SCRIPT).get_hash().to_owned();
        Self { connections, sha }
    }

    async fn decide(&self, path: &str, key: u64) {
        static TICKET: AtomicU64 = AtomicU64::new(0);
        let ticket = TICKET.fetch_add(1, Ordering::Relaxed);
        let most: u64 = if path == "/spent" { 1 } else { 4_000_000_000 };
        let hour = 3_600_000_000_u64;
        // The cells, the call's number, each cell's kind and window, one charge of all of them.
        let cells: Vec<String> = match path {
            "/org" => vec![format!("bench:bare:user:{key}"), "bench:bare:org".to_owned()],
            _ => vec![format!("bench:bare{path}:{key}")],
        };
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.sha).arg(cells.len()).arg(&cells).arg(ticket);
        for _ in &cells {
            call.arg(4).arg(1).arg(hour);
        }
        call.arg("s").arg(1).arg(cells.len());
        for n in 1..=cells.len() {
            call.arg(n).arg(1).arg(most).arg(hour);
        }
        let mut connection = self.connections[ticket as usize % self.connections.len()].clone();
        let _: Vec<u64> = call.query_async(&mut connection).await.unwrap();
    }
}

fn key(n: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("x-key", HeaderValue::try_from(n.to_string()).unwrap());
    headers.insert("x-org", HeaderValue::from_static("one"));
    let plan = ["gold", "silver", "none"][n as usize % 3];
    headers.insert("x-plan", HeaderValue::from_static(plan));
    headers
}

/// What is decided by many callers, each of whom waits for his answer.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    path: &'static str,
    callers: u64,
    keys: u64,
}

/// Decisions a second, for a while.
async fn drive<F: Future<Output = ()> + Send + 'static>(
    load: Load,
    decide: impl Fn(u64) -> F + Clone + Send + 'static,
) -> (f64, u64) {
    const SPAN: Duration = Duration::from_secs(2);
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let tasks = (0..load.callers).map(|caller| {
        let (decide, done) = (decide.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            let mut n = caller;
            while began.elapsed() < SPAN {
                n = (n * 7 + 13) % load.keys;
                decide(n).await;
                done.fetch_add(1, Ordering::Relaxed);
                // What is refused at home waits for nothing; requests of a proxy would.
                tokio::task::yield_now().await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let done = done.load(Ordering::Relaxed);
    (done as f64 / began.elapsed().as_secs_f64(), done)
}

/// Tollgate and bare calls in turn, three times: the medians.
async fn in_turn(load: Load, node: &Arc<Node>, bare: &Arc<Bare>, port: u16) {
    let all: Arc<Vec<HeaderMap>> = Arc::new((0..load.keys).map(key).collect());
    let mut figures = [const { Vec::new() }; 4];
    for _ in 0..3 {
        for turn in 0..2 {
            let before = server_seconds(port).await;
            let (rate, done) = if turn == 0 {
                let (node, all) = (Arc::clone(node), Arc::clone(&all));
                let decide = move |n: u64| {
                    let (node, all) = (Arc::clone(&node), Arc::clone(&all));
                    async move { node.decide(load.path, &all[n as usize]).await }
                };
                drive(load, decide).await
            } else {
                let bare = Arc::clone(bare);
                let decide = move |n: u64| {
                    let bare = Arc::clone(&bare);
                    async move { bare.decide(load.path, n).await }
                };
                drive(load, decide).await
            };
            // The server's own clock has steps; what it did not show was less than one.
            let seconds = (server_seconds(port).await - before).max(0.001);
            figures[turn].push(rate);
            figures[turn + 2].push(done as f64 / seconds);
        }
    }
    let [ours, bare, ours_of_core, bare_of_core] = figures.map(|mut all| {
        all.sort_unstable_by(f64::total_cmp);
        all[all.len() / 2]
    });
    println!(
        "| {} | {ours:.0} | {bare:.0} | {:.2} | {ours_of_core:.0} | {bare_of_core:.0} |",
        load.name,
        ours / bare
    );
}

/// Processor time that the server has used.
async fn server_seconds(port: u16) -> f64 {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let told: String = redis::cmd("INFO").arg("cpu").query_async(&mut connection).await.unwrap();
    let field = |name: &str| -> f64 {
        let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().trim().parse().unwrap()
    };
    field("used_cpu_user") + field("used_cpu_sys")
}

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 2]
}

async fn one_caller(node: &Node, bare: &Bare) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let headers = key(1);
    for _ in 0..20_000 {
        let began = Instant::now();
        node.decide("/", &headers).await;
        ours.push(began.elapsed());
        let began = Instant::now();
        bare.decide("/", 1).await;
        theirs.push(began.elapsed());
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    println!("\none caller: p50 {ours:?}, one bare call {theirs:?}: {ratio:.2} x");
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let Some(port) = std::env::var("TOLLGATE_BENCH_REDIS").ok().and_then(|p| p.parse().ok()) else {
        println!("TOLLGATE_BENCH_REDIS=PORT names the server; see make compare-redis");
        return;
    };
    let node = Arc::new(Node::start(port).await);
    let bare = Arc::new(Bare::connect(port).await);
    // The key that is spent is spent first.
    node.spend("/spent", &key(0)).await;
    println!(
        "| a decision over Redis | tollgate, a second | bare calls, a second | ratio | for each \
         second of the server's processor | bare |"
    );
    println!("|---|---|---|---|---|---|");
    for load in [
        Load { name: "a hot key, 256 callers", path: "/", callers: 256, keys: 1 },
        Load { name: "a hot key, 1,024 callers", path: "/", callers: 1_024, keys: 1 },
        Load { name: "100,000 keys, 256 callers", path: "/", callers: 256, keys: 100_000 },
        Load { name: "100,000 keys, 1,024 callers", path: "/", callers: 1_024, keys: 100_000 },
        Load {
            name: "three plans of one organisation, 256 callers",
            path: "/org",
            callers: 256,
            keys: 256,
        },
        Load { name: "a key that is spent, 256 callers", path: "/spent", callers: 256, keys: 1 },
    ] {
        in_turn(load, &node, &bare, port).await;
    }
    one_caller(&node, &bare).await;
}
