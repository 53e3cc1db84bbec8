//! What happens when the store does not answer, answers late, forgets, moves or refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::charging::spent;
use crate::load::{Client, Paced, Sample, p99};
use crate::redis_servers::{Cluster, Redis, Watched};
use support::servers::{Gate, Origin, eventually, free_port, metric, now};
use support::wait::pause_of_a_slow_link;

/// Requests in a second, over [`KEYS`] keys: 4 a second for each.
const PACE: u32 = 200;

/// Keys that the load uses in turn.
const KEYS: usize = 50;

const SECOND: Duration = Duration::from_secs(1);

/// A node whose only limit is `rate` a key.
async fn node(origin: &Origin, store: &str, limit: &str) -> Gate {
    Gate::start(&crate::policy(origin, store, limit)).await
}

/// Whether the log says it. Lines are written a moment after what they tell of.
async fn is_logged(gate: &Gate, text: &str) -> bool {
    eventually(Duration::from_secs(5), || async { gate.log().contains(text) }).await
}

async fn ready(gate: &Gate, word: &str) -> bool {
    eventually(Duration::from_secs(20), || async {
        gate.admin_get("/ready").await.is_ok_and(|(status, text)| status == 200 && text == word)
    })
    .await
}

async fn outcome(gate: &Gate, outcome: &str) -> f64 {
    let name = format!("tollgate_store_calls_total{{outcome=\"{outcome}\"}}");
    metric(&gate.metrics().await, &name)
}

/// Waits until the load has used all `units` of each of its keys.
async fn all_keys_are_spent(origin: &Origin, units: usize) -> bool {
    eventually(20 * SECOND, || async { origin.count() >= KEYS * units }).await
}

/// Waits until the store has been told of so many units of each of so many keys, or more.
async fn all_are_told(redis: &Redis, keys: usize, units: u64) -> bool {
    eventually(20 * SECOND, || async {
        let cells: Vec<String> = redis.ask(&["KEYS", "tollgate:*"]);
        let told = |cell: &&String| {
            !cell.contains("probe") && spent(&|words| redis.ask(words), cell) >= units
        };
        cells.iter().filter(told).count() >= keys
    })
    .await
}

fn all_are(samples: &[Sample], allowed: &[u16]) {
    let wrong: Vec<_> = samples.iter().filter(|one| !allowed.contains(&one.status)).collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:?}", wrong.len(), samples.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_stops_costs_a_few_slow_requests() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let url = format!("url: \"{}\"", redis.url());
    let gate = node(&origin, &url, "rate: 100000/1h").await;
    // The machine may be busy with something else for a moment: one round of three must be quiet.
    let mut rounds = Vec::new();
    for _ in 0..3 {
        rounds.push(stopped_for_a_while(&gate, &redis).await);
        let [before, first, open] = rounds[rounds.len() - 1];
        println!("p99 before {before:?}, in the first second {first:?}, then {open:?}");
        if first <= before + Duration::from_millis(25) && open <= before + Duration::from_millis(2)
        {
            assert!(is_logged(&gate, "is away").await && is_logged(&gate, "is back after").await);
            let verdict = "tollgate_decisions_total{limit=\"one\",tier=\"exact\",verdict=\"degraded_allowed\"}";
            assert!(metric(&gate.metrics().await, verdict) > 500.0);
            return;
        }
    }
    panic!("before, in the first second, with an open breaker: {rounds:?}");
}

/// The p99 before the store stops, in the first second after, and in the two after that.
async fn stopped_for_a_while(gate: &Gate, redis: &Redis) -> [Duration; 3] {
    let paced = Paced::start(gate.port, PACE);
    // The first half second is that of the connections.
    let [warm, before, first, open] = [100, 300, 200, 400];
    paced.more(warm + before).await;
    redis.signal("STOP");
    let stopped = paced.asked();
    paced.more(first + open).await;
    redis.signal("CONT");
    assert!(ready(gate, "ready\n").await, "it comes back by itself");
    let samples = paced.samples().await;
    all_are(&samples, &[200]);
    let opened = stopped + first;
    [warm..stopped, stopped..opened, opened..opened + open].map(|range| p99(&samples[range]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_dies_and_comes_back_empty_forgets_once() {
    let _alone = crate::alone().await;
    let (origin, mut redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let url = format!("url: \"{}\"", redis.url());
    let gate = node(&origin, &url, "algorithm: fixed_window, rate: 5/30d").await;
    let paced = Paced::start(gate.port, PACE);
    assert!(all_keys_are_spent(&origin, 5).await);
    redis.kill();
    assert!(ready(&gate, "degraded\n").await);
    // Alone, at the full rate; of what was on its way when it died one unit of a key may be lost.
    assert!(all_keys_are_spent(&origin, 9).await, "{} units", origin.count());
    redis.restart().await;
    assert!(ready(&gate, "ready\n").await);
    assert!(all_are_told(&redis, KEYS, 4).await, "what it admitted alone");
    // Each key is asked for once more than it has units.
    paced.more(KEYS * 6).await;
    let samples = paced.samples().await;
    all_are(&samples, &[200, 429]);
    // Before it died, alone while it was away, and what it forgot less what it was told.
    let admitted = samples.iter().filter(|one| one.status == 200).count();
    assert!((50 * 5..=50 * 5 * 3).contains(&admitted), "{admitted}");
    assert!(is_logged(&gate, "keeps nothing on disk").await);
    assert!(
        metric(&gate.metrics().await, "tollgate_store_warning{warning=\"keeps_nothing\"}") > 0.0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_store_keeps_on_disk_it_knows_again() {
    let _alone = crate::alone().await;
    let origin = Origin::start("site").await;
    let mut redis = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let limit = "algorithm: fixed_window, rate: 5/30d, on_store_failure: deny";
    let gate = node(&origin, &format!("url: \"{}\"", redis.url()), limit).await;
    let mut client = Client::default();
    for _ in 0..3 {
        assert_eq!(client.ask(gate.port, "/", "k").await, 200);
    }
    redis.kill();
    assert_eq!(client.ask(gate.port, "/", "k").await, 503);
    redis.restart().await;
    assert!(ready(&gate, "ready\n").await);
    // The 503 was refused before anything went out: nothing was spent for it.
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(client.ask(gate.port, "/", "k").await);
    }
    assert_eq!(seen, [200, 200, 429, 429]);
    assert!(!gate.log().contains("keeps nothing on disk"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_admitted_alone_is_told_when_the_store_is_back() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let url = format!("url: \"{}\"", redis.url());
    let limit = "algorithm: fixed_window, rate: 20/30d";
    let (gate, other) = (node(&origin, &url, limit).await, node(&origin, &url, limit).await);
    redis.signal("STOP");
    assert!(ready(&gate, "degraded\n").await);
    let mut client = Client::default();
    for _ in 0..15 {
        assert_eq!(client.ask(gate.port, "/", "k").await, 200);
    }
    redis.signal("CONT");
    assert!(ready(&gate, "ready\n").await && ready(&other, "ready\n").await);
    assert!(all_are_told(&redis, 1, 15).await, "{}", gate.log());
    let mut left = 0;
    while client.ask(other.port, "/", "k").await == 200 {
        left += 1;
    }
    assert_eq!(left, 5);
}

/// Passes bytes on both ways: what a node sends arrives so many milliseconds late.
pub async fn slow_proxy(to: u16) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, delay) = (listener.local_addr().unwrap().port(), Arc::<AtomicU64>::default());
    let millis = Arc::clone(&delay);
    tokio::spawn(async move {
        loop {
            let (node, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
            for stream in [&node, &server] {
                stream.set_nodelay(true).unwrap();
            }
            let ((mut from, into), (back, out)) = (node.into_split(), server.into_split());
            let (line, pieces) = mpsc::unbounded_channel();
            tokio::spawn(pass_back(back, into));
            tokio::spawn(pass_when_due(pieces, out));
            let millis = Arc::clone(&millis);
            tokio::spawn(async move {
                let mut bytes = vec![0; 65_536];
                while let Ok(read) = from.read(&mut bytes).await {
                    let due = now() + Duration::from_millis(millis.load(Ordering::Relaxed));
                    if read == 0 || line.send((due, bytes[..read].to_vec())).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, delay)
}

/// What a server answers, as it comes.
async fn pass_back(mut from: OwnedReadHalf, mut into: OwnedWriteHalf) {
    let _ended = tokio::io::copy(&mut from, &mut into).await;
}

/// Pieces, each when it is due.
async fn pass_when_due(mut pieces: UnboundedReceiver<(Instant, Vec<u8>)>, mut out: OwnedWriteHalf) {
    while let Some((due, piece)) = pieces.recv().await {
        pause_of_a_slow_link(due.saturating_duration_since(now())).await;
        if out.write_all(&piece).await.is_err() {
            return;
        }
    }
}

/// Otherwise the second of two calls waits in the kernel for the acknowledgement of the first, which the other side
/// delays by 40 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_to_a_distant_store_waits_for_the_one_before() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let (port, delay) = slow_proxy(redis.port).await;
    let url = format!("url: \"redis://127.0.0.1:{port}\", timeout: 1s");
    let gate = node(&origin, &url, "rate: 100000/1h").await;
    let (mut first, mut second) = (Client::default(), Client::default());
    // The connections are opened, and the acknowledgements of a new one are not delayed yet.
    for n in 0..40 {
        assert_eq!(first.ask(gate.port, "/", &format!("w{n}")).await, 200);
        assert_eq!(second.ask(gate.port, "/", &format!("v{n}")).await, 200);
    }
    delay.store(60, Ordering::Relaxed);
    let mut waits = Vec::new();
    for n in 0..21 {
        let (a, b) = (format!("a{n}"), format!("b{n}"));
        let later = async {
            pause_of_a_slow_link(Duration::from_millis(2)).await;
            let began = now();
            let status = second.ask(gate.port, "/", &b).await;
            (status, began.elapsed())
        };
        let (status, (late_status, wait)) = tokio::join!(first.ask(gate.port, "/", &a), later);
        assert_eq!((status, late_status), (200, 200));
        waits.push(wait);
    }
    waits.sort();
    assert!(waits[10] < Duration::from_millis(80), "the store is 60 ms away: {waits:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_store_is_waited_for_within_the_deadline_and_not_beyond() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let (port, delay) = slow_proxy(redis.port).await;
    let url = format!("url: \"redis://127.0.0.1:{port}\", timeout: 100ms");
    let gate = node(&origin, &url, "rate: 100000/1h").await;
    let mut client = Client::default();
    delay.store(10, Ordering::Relaxed);
    for n in 0..20 {
        assert_eq!(client.ask(gate.port, "/", &format!("k{n}")).await, 200);
    }
    assert_eq!(outcome(&gate, "timeout").await, 0.0, "waited for");
    delay.store(300, Ordering::Relaxed);
    for n in 0..20 {
        assert_eq!(client.ask(gate.port, "/", &format!("k{n}")).await, 200);
    }
    let slow = outcome(&gate, "timeout").await;
    assert!((1.0..=8.0).contains(&slow), "{slow} calls waited in vain");
    delay.store(0, Ordering::Relaxed);
    assert!(ready(&gate, "ready\n").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_the_store_serves_and_finds_it_later() {
    let _alone = crate::alone().await;
    let origin = Origin::start("site").await;
    let port = free_port();
    let url = format!("url: \"redis://127.0.0.1:{port}\"");
    let gate = node(&origin, &url, "algorithm: fixed_window, rate: 3/30d").await;
    let deny = node(&origin, &url, "rate: 3/30d, on_store_failure: deny").await;
    let allow = node(&origin, &url, "rate: 3/30d, on_store_failure: allow").await;
    let mut client = Client::default();
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(client.ask(gate.port, "/", "k").await);
    }
    assert_eq!(seen, [200, 200, 200, 429, 429], "alone, at the full rate");
    assert_eq!(client.ask(deny.port, "/", "k").await, 503);
    for _ in 0..5 {
        assert_eq!(Client::default().ask(allow.port, "/", "k").await, 200);
    }
    let body = support::servers::client()
        .post(deny.url("/"))
        .header("x-api-key", "k")
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(body.contains("#temporary-reduced-capacity"), "{body}");
    let _redis = Redis::start_on(port, &[]).await;
    assert!(ready(&gate, "ready\n").await && ready(&deny, "ready\n").await);
    assert_eq!(client.ask(deny.port, "/", "other").await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_told_and_a_right_one_logs_in() {
    let _alone = crate::alone().await;
    let origin = Origin::start("site").await;
    let redis = Redis::start(&["--requirepass", "sesame-open"]).await;
    let folder = tempfile::tempdir().unwrap();
    for (word, up) in [("sesame-shut", false), ("sesame-open", true)] {
        let file = folder.path().join(word);
        std::fs::write(&file, format!("{word}\n")).unwrap();
        let store = format!("url: \"{}\", password_file: \"{}\"", redis.url(), file.display());
        let gate = node(&origin, &store, "rate: 5/1h").await;
        assert_eq!(Client::default().ask(gate.port, "/", "k").await, 200);
        assert_eq!(metric(&gate.metrics().await, "tollgate_store_up"), f64::from(u8::from(up)));
        assert_eq!(gate.log().contains("is away"), !up, "{}", gate.log());
        assert!(!gate.log().contains(word), "no password in a log: {}", gate.log());
    }
}

/// A server that takes no writes is left alone until it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_memory_is_away_until_it_has_some() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let gate = node(&origin, &format!("url: \"{}\"", redis.url()), "rate: 100000/1h").await;
    let _: String = redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let mut client = Client::default();
    for n in 0..20 {
        assert_eq!(client.ask(gate.port, "/", &format!("k{n}")).await, 200);
    }
    assert!(outcome(&gate, "refused").await >= 1.0);
    assert!(is_logged(&gate, "OOM").await, "{}", gate.log());
    assert!(ready(&gate, "degraded\n").await);
    let _: String = redis.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(ready(&gate, "ready\n").await);
    let _: String = redis.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    redis.signal("STOP");
    assert!(ready(&gate, "degraded\n").await);
    redis.signal("CONT");
    assert!(ready(&gate, "ready\n").await);
    assert!(is_logged(&gate, "maxmemory-policy allkeys-lru").await, "{}", gate.log());
}

/// What somebody else wrote under a cell's name degrades that cell, and nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_that_cannot_be_read_degrades_itself_alone() {
    let _alone = crate::alone().await;
    let (origin, redis) = (Origin::start("site").await, Redis::start(&[]).await);
    let gate = node(&origin, &format!("url: \"{}\"", redis.url()), "rate: 4/30d").await;
    let mut client = Client::default();
    assert_eq!(client.ask(gate.port, "/", "bad").await, 200);
    let keys: Vec<String> = redis.ask(&["KEYS", "tollgate:*"]);
    let cell = keys.into_iter().find(|key| !key.contains("probe")).unwrap();
    for garbage in [&["SET", &cell, "garbage"][..], &["LPUSH", &cell, "x"]] {
        let _: i64 = redis.ask(&["DEL", &cell]);
        let _: redis::Value = redis.ask(garbage);
        for _ in 0..10 {
            client.ask(gate.port, "/", "bad").await;
        }
        assert_eq!(client.ask(gate.port, "/", garbage[0]).await, 200);
    }
    assert!(outcome(&gate, "invalid").await >= 4.0);
    let (_, text) = gate.admin_get("/ready").await.unwrap();
    assert_eq!(text, "ready\n", "the server is well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_of_sentinels_is_followed() {
    let _alone = crate::alone().await;
    let (origin, mut watched) = (Origin::start("site").await, Watched::start().await);
    let gate = node(&origin, &watched.yaml(), "algorithm: fixed_window, rate: 5/30d").await;
    let paced = Paced::start(gate.port, PACE);
    assert!(all_keys_are_spent(&origin, 5).await);
    watched.master.kill();
    back_after_a_failover(&gate, paced).await;
    let role: Vec<redis::Value> = watched.replica.ask(&["ROLE"]);
    assert_eq!(role[0], redis::Value::BulkString(b"master".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_of_a_cluster_is_followed() {
    let _alone = crate::alone().await;
    let (origin, mut cluster) = (Origin::start("site").await, Cluster::start().await);
    let gate = node(&origin, &cluster.yaml(), "algorithm: fixed_window, rate: 5/30d").await;
    let paced = Paced::start(gate.port, PACE);
    assert!(all_keys_are_spent(&origin, 5).await);
    let first = cluster.masters()[0];
    cluster.servers[first].kill();
    back_after_a_failover(&gate, paced).await;
}

/// A master was killed: another one takes its place, and what the replica had not been told is
/// forgotten.
async fn back_after_a_failover(gate: &Gate, paced: Paced) {
    assert!(ready(gate, "degraded\n").await);
    assert!(ready(gate, "ready\n").await, "{}", gate.log());
    // Each key is asked for once more than it has units.
    paced.more(KEYS * 6).await;
    let samples = paced.samples().await;
    all_are(&samples, &[200, 429]);
    let admitted = samples.iter().filter(|one| one.status == 200).count();
    assert!((250..=500).contains(&admitted), "(nodes + 1) x limit: {admitted}");
}

/// All slots of a master move to another one, key by key, while requests come: MOVED, ASK and
/// TRYAGAIN are followed, and no unit is lost or found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_lose_no_unit() {
    let _alone = crate::alone().await;
    let (origin, cluster) = (Origin::start("site").await, Cluster::start().await);
    let store = format!("{}, timeout: 1s", cluster.yaml());
    let gate = node(&origin, &store, "algorithm: fixed_window, rate: 10/30d").await;
    let paced = Paced::start(gate.port, PACE);
    assert!(eventually(20 * SECOND, || async { origin.count() > 0 }).await, "the load has begun");
    let masters = cluster.masters();
    let id = |place: usize| cluster.servers[place].ask::<String>(&["CLUSTER", "MYID"]);
    let moved = std::process::Command::new("redis-cli")
        .args(["--cluster", "reshard", &format!("127.0.0.1:{}", cluster.servers[masters[0]].port)])
        .args(["--cluster-from", &id(masters[0]), "--cluster-to", &id(masters[1])])
        .args(["--cluster-slots", "2000", "--cluster-yes"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
        .wait_with_output();
    assert!(moved.unwrap().status.success());
    assert!(all_keys_are_spent(&origin, 10).await, "{} units", origin.count());
    // And each key is asked for three times more.
    paced.more(KEYS * 3).await;
    let samples = paced.samples().await;
    all_are(&samples, &[200, 429]);
    let admitted = samples.iter().filter(|one| one.status == 200).count();
    assert_eq!(outcome(&gate, "unreachable").await + outcome(&gate, "timeout").await, 0.0);
    assert_eq!(admitted, 500);
}
