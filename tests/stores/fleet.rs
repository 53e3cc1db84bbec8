//! `scope: fleet` with four real nodes and a real store: an abuser that spreads over all nodes meets one limit, and thousands of
//! honest clients are never refused, also while the store is stopped or dies and comes back empty.
//!
//! ```text
//!  windows   |1 2 3 4|    1 2    |    1    |   1 2   |    1    |
//!  store       up     stopped      up        killed    up, empty
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::clock::{Clock, Nanos, SystemClock};
use tollgate::limit::{FleetBound, PROPAGATION_EXCHANGES, Rate, SlidingWindow, WindowPair};

use crate::redis_servers::Redis;
use support::servers::{Gate, eventually, metric, now, origin_yaml};
use support::spending::{CountingOrigin, Kept, ask};
use support::wait::observe_for;

const NODES: usize = 4;

/// Units of a window.
const LIMIT: u32 = 300;

/// The length of a window. A moving one is as long.
const PERIOD: Duration = Duration::from_secs(5);

/// The allowed error: one tenth.
const ERROR_PPM: u32 = 100_000;

/// The time between two exchanges of a node.
const EVERY: Duration = Duration::from_millis(250);

/// Requests a second of the abuser: each node alone would admit four fifths of them.
const ABUSE: u32 = 300;

/// Clients that send [`HONEST_REQUESTS`] requests in a row, one to each node.
const HONEST_CLIENTS: usize = 10_000;
const HONEST_REQUESTS: usize = NODES;
const HONEST_PACE: u32 = 800;

/// Clients that always use two thirds of the limit: a unit that counts twice has them refused.
const BUSY_CLIENTS: usize = 4;
const BUSY_PACE: u32 = 160;

/// Keys: the honest clients have the numbers below.
const FIRST_BUSY: usize = HONEST_CLIENTS;
const ABUSER: usize = FIRST_BUSY + BUSY_CLIENTS;

/// A request may take so much longer while the store is away. One that waited for the store would take 1 s.
const SLOWER: Duration = Duration::from_millis(200);

const PATIENCE: Duration = Duration::from_secs(20);

const AWAY: &str = "limits with scope: fleet count on this node, with what is known of the others";
const BACK: &str = "nodes exchange counts for limits with scope: fleet again";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Honest,
    Busy,
    Abuser,
}

/// One request, and what came of it.
#[derive(Clone, Debug)]
struct Arrival {
    sender: Sender,
    /// When it was sent, by the clock that the store has too.
    at: Nanos,
    took: Duration,
    /// Whether it was admitted; why there was no answer.
    answer: Result<bool, String>,
}

/// Connections to a node that are not in use.
type Idle = Mutex<Vec<Kept>>;

/// Requests at a steady pace, whether or not earlier ones are answered.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Vec<Arrival>>>,
}

impl Load {
    fn start(ports: &[u16]) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let nodes: Arc<[(u16, Idle)]> = ports.iter().map(|port| (*port, Idle::default())).collect();
        let start = |sender, pace| {
            tokio::spawn(send_paced(sender, pace, Arc::clone(&nodes), Arc::clone(&stop)))
        };
        let tasks = vec![
            start(Sender::Honest, HONEST_PACE),
            start(Sender::Busy, BUSY_PACE),
            start(Sender::Abuser, ABUSE),
        ];
        Self { stop, tasks }
    }

    async fn arrivals(self) -> Vec<Arrival> {
        self.stop.store(true, Ordering::Relaxed);
        let mut arrivals = Vec::new();
        for task in self.tasks {
            arrivals.extend(task.await.unwrap());
        }
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    }
}

async fn send_paced(
    sender: Sender,
    each_second: u32,
    nodes: Arc<[(u16, Idle)]>,
    stop: Arc<AtomicBool>,
) -> Vec<Arrival> {
    let (began, mut requests) = (now(), Vec::new());
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let goal = began.elapsed().as_millis() as usize * each_second as usize / 1_000;
        for n in requests.len()..goal {
            let (key, node) = match sender {
                Sender::Honest => (n / HONEST_REQUESTS % HONEST_CLIENTS, n % NODES),
                Sender::Busy => (FIRST_BUSY + n % BUSY_CLIENTS, n / BUSY_CLIENTS % NODES),
                Sender::Abuser => (ABUSER, n % NODES),
            };
            requests.push(tokio::spawn(send(sender, key, Arc::clone(&nodes), node)));
        }
    }
    let mut arrivals = Vec::new();
    for request in requests {
        arrivals.push(request.await.unwrap());
    }
    arrivals
}

async fn send(sender: Sender, key: usize, nodes: Arc<[(u16, Idle)]>, node: usize) -> Arrival {
    let (port, idle) = &nodes[node];
    let mut kept = idle.lock().unwrap().pop().unwrap_or_default();
    let (at, began) = (wall(), now());
    let answer = ask(*port, key, &mut kept).await;
    let took = began.elapsed();
    idle.lock().unwrap().push(kept);
    Arrival { sender, at, took, answer }
}

fn wall() -> Nanos {
    SystemClock::default().now().wall
}

fn rate() -> Rate {
    Rate::new(LIMIT, PERIOD.into()).unwrap()
}

/// A span of wall time.
type Span = std::ops::Range<Nanos>;

/// Waits for the end of so many windows.
async fn windows_from(from: Nanos, count: u32) -> Span {
    let to = from.saturating_add(Nanos::from(PERIOD * count));
    observe_for(to.saturating_sub(wall()).into()).await;
    from..to
}

async fn next_edge() -> Nanos {
    let period = Nanos::from(PERIOD);
    let edge = period.saturating_mul(wall().get().div_ceil(period.get()));
    observe_for(edge.saturating_sub(wall()).into()).await;
    edge
}

/// What was sent in a span.
fn within<'a>(arrivals: &'a [Arrival], span: &Span) -> &'a [Arrival] {
    let from = arrivals.partition_point(|arrival| arrival.at < span.start);
    let to = arrivals.partition_point(|arrival| arrival.at < span.end);
    &arrivals[from..to]
}

/// The largest number of these instants in a moving window.
fn most_within(instants: &[Nanos], length: Duration) -> usize {
    let length = Nanos::from(length);
    let count = |(index, from): (usize, &Nanos)| {
        instants.partition_point(|at| *at < from.saturating_add(length)) - index
    };
    instants.iter().enumerate().map(count).max().unwrap_or_default()
}

fn instants(arrivals: &[Arrival], sender: Sender, is_of: impl Fn(bool) -> bool) -> Vec<Nanos> {
    let counts = |arrival: &&Arrival| {
        arrival.sender == sender && arrival.answer.as_ref().is_ok_and(|admitted| is_of(*admitted))
    };
    arrivals.iter().filter(counts).map(|arrival| arrival.at).collect()
}

/// What one node would admit that sees all requests.
fn admitted_by_one_node(sent: &[Nanos]) -> Vec<Nanos> {
    let (window, mut counted) = (SlidingWindow::new(rate()), WindowPair::default());
    let mut admitted = Vec::new();
    for at in sent {
        if window.judge(counted, 1, *at).allowed {
            window.charge(&mut counted, 1, *at);
            admitted.push(*at);
        }
    }
    admitted
}

/// Units of the abuser in each window of the grid.
fn abuse_by_window(arrivals: &[Arrival], span: &Span) -> Vec<usize> {
    let mut windows = Vec::new();
    let mut from = span.start;
    while from < span.end {
        let to = from.saturating_add(PERIOD.into());
        windows.push(instants(within(arrivals, &(from..to)), Sender::Abuser, |is| is).len());
        from = to;
    }
    windows
}

/// The time that 99 of 100 requests do not exceed, and the longest.
fn latencies(arrivals: &[Arrival]) -> (Duration, Duration) {
    let mut spans: Vec<Duration> = arrivals.iter().map(|arrival| arrival.took).collect();
    spans.sort_unstable();
    assert!(spans.len() > 1_000, "{} requests", spans.len());
    (spans[spans.len() * 99 / 100], spans[spans.len() - 1])
}

/// What the server of the store has used since it began.
#[derive(Clone, Copy, Debug)]
struct ServerUse {
    processor_seconds: f64,
    read_bytes: f64,
    written_bytes: f64,
    script_calls: f64,
    script_micros: f64,
}

impl ServerUse {
    fn of(redis: &Redis) -> Self {
        let told: String = redis.ask(&["INFO", "everything"]);
        let value = |name: &str| -> f64 {
            let line = told.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
        };
        let scripts = |part: &str| -> f64 {
            let lines = told.lines().filter(|line| line.starts_with("cmdstat_eval"));
            let values = lines.filter_map(|line| {
                let found = line.split([',', ':']).find_map(|word| word.strip_prefix(part));
                found?.parse::<f64>().ok()
            });
            values.sum()
        };
        Self {
            processor_seconds: value("used_cpu_user") + value("used_cpu_sys"),
            read_bytes: value("total_net_input_bytes"),
            written_bytes: value("total_net_output_bytes"),
            script_calls: scripts("calls="),
            script_micros: scripts("usec="),
        }
    }
}

/// A policy with one estimate limit by `X-Key`, and the servers that `store` names.
pub fn policy(origin: std::net::SocketAddr, store: &str, every: Duration, limit: &str) -> String {
    format!(
        "{}store: {{ redis: {{ {store}, timeout: 1s }} }}
fleet: {{ error: 10%, every: {}ms }}
limits:
  pages: {{ tier: estimate, key: header:x-key, missing_key: deny, {limit} }}
routes: [{{ name: r, limits: [pages] }}]
access_log: {{ to: none }}
limits_of_this_proxy: {{ drain: 300ms, finish: 10s }}
",
        origin_yaml(origin),
        every.as_millis(),
    )
}

/// Exchanges of a node that the store answered.
pub async fn calls(gate: &Gate) -> f64 {
    metric(&gate.metrics().await, "tollgate_fleet_calls_total{outcome=\"ok\"}")
}

/// Waits until each node has heard that there are so many.
pub async fn all_meet(gates: &[&Gate], nodes: usize) {
    let met = eventually(PATIENCE, || async {
        for gate in gates {
            if metric(&gate.metrics().await, "tollgate_fleet_nodes") != nodes as f64 {
                return false;
            }
        }
        true
    });
    assert!(met.await, "{nodes} nodes do not meet: {}", gates[0].log());
}

fn lines_with(gate: &Gate, words: &str) -> usize {
    gate.log().lines().filter(|line| line.contains(words)).count()
}

/// The largest lag and the smallest error that nodes tell.
async fn lag_and_error(gates: &[Gate]) -> (f64, f64) {
    let (mut lag, mut error) = (0.0_f64, f64::MAX);
    for gate in gates {
        let text = gate.metrics().await;
        lag = lag.max(metric(&text, "tollgate_fleet_lag_seconds"));
        error = error.min(metric(&text, "tollgate_fleet_error{limit=\"pages\"}"));
    }
    (lag, error)
}

/// Observes two windows without the store. All nodes notice, once, and tell so.
async fn without_store(gates: &[Gate], outage: usize, from: Nanos) -> Span {
    let span = windows_from(from, 2).await;
    let (lag, error) = lag_and_error(gates).await;
    println!("store away: lag {lag:.1} s, error {error} of the limit");
    assert!(lag > 5.0, "{lag}");
    assert_eq!(error, (NODES - 1) as f64, "each node may admit the limit");
    for gate in gates {
        assert_eq!(lines_with(gate, AWAY), outage, "{}", gate.log());
        assert_eq!(lines_with(gate, BACK), outage - 1, "{}", gate.log());
    }
    span
}

/// Waits until all nodes exchange again and say so, then observes a window.
async fn with_store_again(gates: &[Gate], outage: usize) -> Span {
    let began = now();
    let back = eventually(PATIENCE, || async {
        gates.iter().all(|gate| lines_with(gate, BACK) == outage)
    });
    assert!(back.await, "{}", gates[0].log());
    println!("all nodes exchange again after {:?}", began.elapsed());
    all_meet(&gates.iter().collect::<Vec<_>>(), NODES).await;
    let span = windows_from(next_edge().await, 1).await;
    let (lag, error) = lag_and_error(gates).await;
    assert!(lag < 5.0 * EVERY.as_secs_f64() && error < 0.1, "lag {lag}, error {error}");
    for gate in gates {
        assert_eq!(lines_with(gate, AWAY), outage, "{}", gate.log());
    }
    span
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abuser_of_four_nodes_meets_one_limit_and_the_honest_meet_none() {
    let _alone = crate::alone().await;
    let (origin, mut redis) = (CountingOrigin::start().await, Redis::start(&[]).await);
    let limit = format!("rate: {LIMIT}/{}s, scope: fleet", PERIOD.as_secs());
    let policy = policy(origin.address, &redis.yaml(), EVERY, &limit);
    let mut gates = Vec::new();
    for _ in 0..NODES {
        gates.push(Gate::start(&policy).await);
    }
    all_meet(&gates.iter().collect::<Vec<_>>(), NODES).await;

    let edge = next_edge().await;
    let load = Load::start(&gates.iter().map(|gate| gate.port).collect::<Vec<_>>());
    let (mut calls_before, used_before, began) = (Vec::new(), ServerUse::of(&redis), now());
    for gate in &gates {
        calls_before.push(calls(gate).await);
    }
    let up = windows_from(edge, 4).await;
    let (span, used) = (began.elapsed().as_secs_f64(), ServerUse::of(&redis));
    let mut calls_a_second = Vec::new();
    for (gate, before) in gates.iter().zip(calls_before) {
        calls_a_second.push((calls(gate).await - before) / span);
    }
    let (lag, error) = lag_and_error(&gates).await;
    println!("store up: lag {lag:.3} s, error {error} of the limit");

    redis.signal("STOP");
    let stopped = without_store(&gates, 1, up.end).await;
    redis.signal("CONT");
    let continued = with_store_again(&gates, 1).await;
    redis.kill();
    let killed = without_store(&gates, 2, continued.end).await;
    redis.restart().await;
    let restarted = with_store_again(&gates, 2).await;
    let arrivals = load.arrivals().await;

    // What it costs.
    let per_second = |now: f64, before: f64| (now - before) / span;
    println!(
        "exchanges a second and node: {calls_a_second:.2?}; of the store's server: {:.4} s of processor time a second, \
         {:.0} bytes read and {:.0} bytes written a second, {:.1} scripts a second of {:.0} us",
        per_second(used.processor_seconds, used_before.processor_seconds),
        per_second(used.read_bytes, used_before.read_bytes),
        per_second(used.written_bytes, used_before.written_bytes),
        per_second(used.script_calls, used_before.script_calls),
        (used.script_micros - used_before.script_micros)
            / (used.script_calls - used_before.script_calls),
    );
    let pace = 1.0 / EVERY.as_secs_f64();
    for calls in &calls_a_second {
        assert!((0.5 * pace..=1.05 * pace).contains(calls), "{calls_a_second:?}");
    }
    let processor = per_second(used.processor_seconds, used_before.processor_seconds);
    assert!(processor < 0.1, "{processor} s of processor time a second");
    let bytes = per_second(used.written_bytes, used_before.written_bytes);
    assert!(bytes < 100_000.0, "{bytes} bytes a second");

    // No honest client was refused, no request failed, and none waited for the store.
    let failed: Vec<_> = arrivals.iter().filter(|arrival| arrival.answer.is_err()).collect();
    assert!(failed.is_empty(), "{} requests failed: {:?}", failed.len(), failed[0]);
    let honest = instants(&arrivals, Sender::Honest, |_| true).len();
    assert!(honest >= HONEST_CLIENTS * HONEST_REQUESTS, "every client has sent: {honest}");
    for sender in [Sender::Honest, Sender::Busy] {
        let sent = instants(&arrivals, sender, |_| true).len();
        let refused = instants(&arrivals, sender, |admitted| !admitted);
        println!("{sender:?}: {sent} requests, {} refused", refused.len());
        assert_eq!(refused, [], "{sender:?}, of {sent}");
    }
    // The first windows have the opening of all connections.
    let settled = up.start.saturating_add(Nanos::from(PERIOD * 2))..up.end;
    let (before, longest) = latencies(within(&arrivals, &settled));
    println!("store up: 99 of 100 requests took at most {before:?}, all {longest:?}");
    for (state, span) in [("stopped", &stopped), ("killed", &killed)] {
        let (during, longest) = latencies(within(&arrivals, span));
        println!("store {state}: 99 of 100 requests took at most {during:?}, all {longest:?}");
        assert!(during <= before + SLOWER, "{during:?}, before {before:?}");
    }

    // The abuser.
    let bound = FleetBound::of(LIMIT, ERROR_PPM, NODES as u32);
    let slowest = calls_a_second.iter().copied().fold(f64::MAX, f64::min);
    let delay = Duration::from_secs_f64(f64::from(PROPAGATION_EXCHANGES) / slowest);
    let sent = instants(&arrivals, Sender::Abuser, |_| true);
    let late = most_within(&sent, delay);
    let most = bound.admitted(LIMIT, NODES as u32) as usize + late;
    let alone = NODES * LIMIT as usize;
    println!(
        "bound: {LIMIT} + {} hidden + {late} sent in {delay:?} = {most}; with scope: node {alone}",
        bound.hidden
    );
    assert!(most < alone / 2, "the bound of four nodes says something: {most}");
    for (state, span) in [("up", &up), ("continued", &continued), ("restarted", &restarted)] {
        let windows = abuse_by_window(&arrivals, span);
        println!("store {state}: the abuser was admitted {windows:?}");
        for admitted in windows {
            assert!(admitted <= most, "store {state}: {admitted} of at most {most}");
            assert!(admitted >= LIMIT as usize / 4, "store {state}: {admitted}");
        }
    }
    let span = within(&arrivals, &up);
    let ideal = admitted_by_one_node(&instants(span, Sender::Abuser, |_| true));
    let ideal = most_within(&ideal, PERIOD);
    let moving = most_within(&instants(span, Sender::Abuser, |admitted| admitted), PERIOD);
    println!("moving windows: at most {moving}; one node that sees everything admits {ideal}");
    assert!(moving <= ideal.max(LIMIT as usize) + bound.hidden as usize + late, "{moving}");
    for (state, span) in [("stopped", &stopped), ("killed", &killed)] {
        let windows = abuse_by_window(&arrivals, span);
        println!("store {state}: the abuser was admitted {windows:?}");
        assert!(windows[1] > most, "each node counts by itself: {windows:?}");
        assert!(windows.iter().all(|admitted| *admitted <= alone), "{windows:?}");
    }
}
