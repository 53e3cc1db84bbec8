//! What a decision costs over a Redis server on loopback: `make bench-store` starts one and ends it.
//!
//! - one hot key, many callers: decisions a second, charges in a call;
//! - many keys: decisions a second for one core of the server;
//! - one caller: the median beside that of one bare EVALSHA of the same script, turn by turn.
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
use tollgate::policy::{Facts, KeySecret};
use tollgate::store::redis::{Address, Login, Remote, SCRIPT, Servers, Settings};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const POLICY: &str = "
version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { site: { servers: [127.0.0.1:1] } }
store: { redis: { url: redis://127.0.0.1 } }
limits:
  hot: { tier: exact, algorithm: fixed_window, rate: 4000000000/1h, key: header:x-key, missing_key: deny }
routes: [{ name: r, limits: [hot] }]
";

struct Node {
    engine: Engine,
    generation: Generation,
    remote: Arc<Remote>,
}

impl Node {
    async fn start(port: u16) -> Self {
        let settings = Settings {
            servers: Servers::One(Address::Tcp("127.0.0.1".to_owned(), port)),
            login: Login::default(),
            tls: None,
            timeout: Duration::from_secs(1),
            prefix: "bench".to_owned(),
        };
        let clock = Arc::new(SystemClock::new());
        let remote = Remote::start(settings, Arc::clone(&clock) as _);
        assert!(remote.ready(Duration::from_secs(5)).await, "no server on port {port}");
        let engine = Engine::with_store(clock, KeySecret::new([1; 16]), Arc::clone(&remote));
        let loaded = config::read_text(POLICY, "bench.yaml", Path::new("")).unwrap();
        let (generation, _) = engine.generation(loaded.config.policy, None);
        Self { engine, generation, remote }
    }

    async fn decide(&self, headers: &HeaderMap) {
        let facts = Facts {
            client_ip: [192, 0, 2, 1].into(),
            peer_trusted: false,
            now: tollgate::clock::Nanos::ZERO,
            method: "POST",
            host: "h",
            path: "/",
            readings: &[],
            query: None,
            headers,
            ipv6_prefix: 64,
        };
        let (decision, _) = self.engine.decide(&self.generation, &facts).await;
        assert!(decision.outcome == Outcome::Allowed && !decision.is_degraded());
    }
}

fn key(n: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("x-key", HeaderValue::try_from(n.to_string()).unwrap());
    headers
}

/// Callers that each wait for their answer, for a while; decisions a second.
async fn load(node: &Arc<Node>, callers: u64, keys: u64, span: Duration) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let tasks = (0..callers).map(|caller| {
        let (node, done) = (Arc::clone(node), Arc::clone(&done));
        tokio::spawn(async move {
            let mut n = caller;
            let own: Vec<HeaderMap> = (0..keys.min(64))
                .map(|_| {
                    n = (n * 7 + 13) % keys;
                    key(n)
                })
                .collect();
            for headers in own.iter().cycle() {
                if began.elapsed() > span {
                    return;
                }
                node.decide(headers).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
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

async fn beside_a_bare_call(node: &Node, port: u16) {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let sha = redis::Script::new(SCRIPT).get_hash().to_owned();
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    let headers = key(1);
    for n in 0..20_000 {
        let began = Instant::now();
        node.decide(&headers).await;
        ours.push(began.elapsed());
        let began = Instant::now();
        let mut call = redis::cmd("EVALSHA");
        call.arg(&sha).arg(1).arg("bench:bare").arg(n);
        call.arg(4).arg(4_000_000_000_u64).arg(3_600_000_000_u64).arg(0);
        call.arg("s").arg(1).arg(1).arg(1).arg(1);
        let _: Vec<u64> = call.query_async(&mut connection).await.unwrap();
        bare.push(began.elapsed());
    }
    let (ours, bare) = (median(ours), median(bare));
    let ratio = ours.as_secs_f64() / bare.as_secs_f64();
    println!("one caller: p50 {ours:?}, bare EVALSHA {bare:?}: {ratio:.2} x");
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let Some(port) = std::env::var("TOLLGATE_BENCH_REDIS").ok().and_then(|p| p.parse().ok()) else {
        println!("TOLLGATE_BENCH_REDIS=PORT names the server; see make bench-store");
        return;
    };
    let node = Arc::new(Node::start(port).await);
    for callers in [256, 1_024, 4_096] {
        let before = node.remote.books().batches.totals();
        let rate = load(&node, callers, 1, Duration::from_secs(3)).await;
        let after = node.remote.books().batches.totals();
        let batch = (after.1 - before.1) as f64 / (after.0 - before.0) as f64;
        println!("one key, {callers} callers: {rate:.0} decisions/s, {batch:.1} charges a call");
    }
    for callers in [64, 256, 1_024] {
        let before = (server_seconds(port).await, node.remote.books().batches.totals().1);
        let rate = load(&node, callers, 100_000, Duration::from_secs(3)).await;
        let after = (server_seconds(port).await, node.remote.books().batches.totals().1);
        let of_a_core = (after.1 - before.1) as f64 / (after.0 - before.0);
        println!(
            "100,000 keys, {callers} callers: {rate:.0} decisions/s; {of_a_core:.0} for each \
             second of the server's processor"
        );
    }
    beside_a_bare_call(&node, port).await;
}
