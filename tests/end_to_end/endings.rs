//! What a request holds until it ends, however it ends; and those that wait for their turn.

use std::sync::atomic::Ordering;
use std::time::Duration;

use support::moody;
use support::servers::{Gate, Origin, client, eventually, metric, now, origin_yaml};

fn slots(origin: std::net::SocketAddr, most: u32) -> String {
    format!(
        "origins: {{ site: {{ servers: [\"{origin}\"], timeouts: {{ read: 1s }} }} }}
limits:
  slots: {{ tier: exact, max_in_flight: {most}, key: header:x-api-key, missing_key: deny }}
routes: [{{ name: r, limits: [slots] }}]
access_log: {{ to: none }}
"
    )
}

async fn held(gate: &Gate) -> f64 {
    metric(&gate.metrics().await, "tollgate_in_flight{limit=\"slots\"}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_in_flight_are_freed_whatever_ends_the_request() {
    let (origin, seen) = moody::start();
    let gate = Gate::start(&slots(origin, 12)).await;
    let clients = (0..64u64).map(|seed| {
        let port = gate.port;
        tokio::task::spawn_blocking(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..20 {
                let mood = random.choice(moody::MOODS).unwrap();
                let leave = random.choice(moody::LEAVES).unwrap();
                moody::ask(port, mood, leave, random.u64(0..12));
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let free = eventually(Duration::from_secs(20), || async { held(&gate).await == 0.0 });
    assert!(free.await, "{} are held for ever", held(&gate).await);
    assert!(seen.most.load(Ordering::SeqCst) > 3, "the origin was busy");
    // All places can be taken again.
    let asking = (0..12).map(|_| {
        let port = gate.port;
        tokio::task::spawn_blocking(move || moody::ask(port, "200", "never", 300))
    });
    let asking: Vec<_> = asking.collect();
    let full = eventually(Duration::from_secs(5), || async { held(&gate).await == 12.0 });
    assert!(full.await, "all places at once");
    let asked = client().get(gate.url("/")).header("x-api-key", "k");
    let answer = asked.send().await.unwrap();
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.headers()["ratelimit-policy"], "\"slots\";q=12;qu=\"concurrent-requests\"");
    for one in asking {
        one.await.unwrap();
    }
    assert!(!gate.log().contains("panic"), "{}", gate.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_than_the_most_are_at_the_origin_at_once() {
    let (origin, seen) = moody::start();
    let gate = Gate::start(&slots(origin, 5)).await;
    let clients = (0..40).map(|_| {
        let port = gate.port;
        tokio::task::spawn_blocking(move || {
            for _ in 0..10 {
                moody::ask(port, "200", "never", 5);
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    assert_eq!(seen.most.load(Ordering::SeqCst), 5);
}

const LINE: &str = "
limits:
  line: { tier: exact, algorithm: leaky_bucket, rate: 5/s, max_delay: 2s, key: client_ip }
routes: [{ name: r, limits: [line] }]
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_wait_for_their_turn_and_who_leaves_is_not_forwarded() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{LINE}", origin_yaml(origin.address))).await;
    let began = now();
    let asking = (0..8).map(|_| {
        let (client, url) = (client(), gate.url("/"));
        tokio::spawn(async move { client.get(url).send().await.unwrap().status().as_u16() })
    });
    for one in asking.collect::<Vec<_>>() {
        assert_eq!(one.await.unwrap(), 200);
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(1_390), "eight leave in 1.4 s: {took:?}");
    assert_eq!(origin.count(), 8);
    // Six more, three of which leave the line as soon as they stand in it: their places pass unused.
    let here = async || {
        let metrics = gate.metrics().await;
        metric(&metrics, "tollgate_waiting") as usize + origin.count()
    };
    let (began, mut expected, mut asking, client) = (now(), 8, Vec::new(), client());
    for n in 0..6 {
        let (client, url) = (client.clone(), gate.url("/"));
        let asked = tokio::spawn(async move { client.get(url).send().await });
        let come = eventually(Duration::from_secs(5), || async { here().await > expected });
        assert!(come.await, "request {n} waits or was forwarded: {}", gate.metrics().await);
        if (2..5).contains(&n) {
            asked.abort();
            let gone = eventually(Duration::from_secs(5), || async { here().await <= expected });
            assert!(gone.await, "request {n} has left: {}", gate.metrics().await);
        } else {
            expected += 1;
            asking.push(asked);
        }
    }
    for asked in asking {
        assert_eq!(asked.await.unwrap().unwrap().status(), 200);
    }
    assert!(began.elapsed() > Duration::from_millis(990), "the last one's turn is its own");
    assert_eq!(origin.count(), 11, "who left the line was not forwarded");
    let metrics = gate.metrics().await;
    assert_eq!(metric(&metrics, "tollgate_waiting"), 0.0);
    let told = gate.stdout();
    assert!(told.contains("\"waited_us\":"), "{told}");
}

const BANNING: &str = "
limits:
  l: { tier: exact, algorithm: fixed_window, rate: 2/1h, key: client_ip, penalty: { after: 3, within: 1m, ban: 2s, at: connection }, candidate: { rate: 1/1h } }
routes: [{ name: r, limits: [l] }]
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_a_banned_client_are_refused_before_http() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{BANNING}", origin_yaml(origin.address))).await;
    let ask = async || {
        // Each over a connection of its own.
        client().get(gate.url("/")).send().await.map(|answer| answer.status().as_u16())
    };
    for expected in [200, 200, 429, 429, 429] {
        assert_eq!(ask().await.unwrap(), expected);
    }
    assert!(ask().await.is_err(), "no connection, no answer");
    let metrics = gate.metrics().await;
    assert!(metric(&metrics, "tollgate_rejected_total{reason=\"banned\"}") >= 1.0);
    let trials = "tollgate_candidate_verdicts_total{limit=\"l\",verdict=\"would_deny\"}";
    assert_eq!(metric(&metrics, trials), 1.0);
    let told = gate.stdout();
    assert!(told.contains("\"candidates_would_deny\":[\"l\"]"), "{told}");
    let over = eventually(Duration::from_secs(5), || async { ask().await.is_ok() });
    assert!(over.await, "a ban ends: {:?}", ask().await);
    // The operators' own door is open all the time.
    assert!(gate.admin_get("/healthz").await.is_ok());
}
