//! The process dies at random moments under load, most often by `kill -9`, and begins again in the same directory. What
//! reached the origin is held against what the process says each key has spent.
//!
//! `TOLLGATE_KILLS=200` has so many rounds (`make kills`); without it there are as many as `make test` has time for.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::servers::{Gate, now, origin_yaml};
use support::wait::{eventually_in_thread, pause_in_thread};

use crate::counts::{AfterCrash, Counts, End, Findings, LIMIT, Life};
use crate::load::{Answer, Asked, Clients};
use crate::origin::{self, Admissions};

const ROUNDS: usize = 60;

/// Keys of each direction, for each round: some reach their limit soon, some at the end, so that in every round some are
/// about to. An optimised program on a machine of its own answers four times as much.
const KEYS_OF_A_ROUND: usize = 12;
const MANY_KEYS_OF_A_ROUND: usize = 50;

/// What is forgotten may be this much older than `flush`: writing takes time, and the machine may be busy.
const SLACK: Duration = Duration::from_millis(500);

const FLUSH: Duration = Duration::from_millis(20);

const ALGORITHMS: [&str; 4] = ["fixed_window", "sliding_window", "sliding_log", "token_bucket"];

/// Requests under `after_crash: deny` wait for the disk together: the more connections, the more of them for one wait.
const CONNECTIONS: [(AfterCrash, usize); 2] = [(AfterCrash::Allow, 48), (AfterCrash::Deny, 192)];

fn policy(origin: SocketAddr, state: &str) -> String {
    let (mut limits, mut routes) = (String::new(), String::new());
    for after in ["allow", "deny"] {
        for (index, algorithm) in ALGORITHMS.iter().enumerate() {
            let name = format!("{after}-{index}");
            limits.push_str(&format!(
                "  {name}: {{ tier: exact, algorithm: {algorithm}, rate: {LIMIT}/366d, key: header:x-key, missing_key: deny, after_crash: {after} }}\n"
            ));
            routes.push_str(&format!(
                "- {{ name: {name}, match: {{ path: /{name}/** }}, limits: [{name}] }}\n"
            ));
        }
    }
    format!(
        "{}store: {{ embedded: {{ state: {state}, flush: {}ms, sync: 100ms }} }}\n\
         limits_of_this_proxy: {{ drain: 0s, finish: 5s }}\naccess_log: {{ to: none }}\nlimits:\n{limits}routes:\n{routes}",
        origin_yaml(origin),
        FLUSH.as_millis()
    )
}

/// What the threads share.
struct Shared {
    lives: Mutex<Vec<Life>>,
    is_over: AtomicBool,
    answers: AtomicU64,
}

/// Ends the load, also where the test fails.
struct Ending<'s>(&'s Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Asks until the test is over. A client has the keys whose number leaves its own as the remainder.
fn ask(
    (after, connections): (AfterCrash, usize),
    (first_key, keys): (usize, usize),
    address: SocketAddr,
    shared: &Shared,
    origin: &Admissions,
) -> Findings {
    let mut counts = Counts::new(after, first_key, keys);
    let mut clients = Clients::new(address, connections);
    let mut random = fastrand::Rng::with_seed(first_key as u64);
    let mut asked = vec![first_key; connections];
    let name = match after {
        AfterCrash::Allow => "allow",
        AfterCrash::Deny => "deny",
    };
    while !shared.is_over.load(Ordering::Relaxed) {
        let answers = clients.ask(
            || shared.lives.lock().unwrap().len(),
            |client, lives, request| {
                // Some keys are asked for far more often than others.
                let skewed = random.f64().powi(2) * (keys / connections) as f64;
                let key = first_key + client + connections * skewed as usize;
                asked[client] = key;
                let limit = format!("{name}-{}", key % ALGORITHMS.len());
                let head = format!(
                    "GET /{limit}/{key}/{lives} HTTP/1.1\r\nhost: a\r\nx-key: {key}\r\n\r\n"
                );
                request.extend(head.as_bytes());
            },
        );
        let lives = shared.lives.lock().unwrap().clone();
        for Asked { client, lives: before, answer } in answers {
            counts.record(asked[client], answer, &lives[..before], origin);
            let is_told = matches!(answer, Answer::Told { .. });
            shared.answers.fetch_add(is_told.into(), Ordering::Relaxed);
        }
    }
    counts.findings
}

/// How a round ends.
fn end(mut gate: Gate, random: &mut fastrand::Rng) -> Life {
    let told = now();
    let end = match random.u8(..8) {
        0 => "TERM",
        1 => "INT",
        _ => {
            // Killed, and waited for.
            drop(gate);
            return Life { told, end: End::Kill };
        }
    };
    gate.signal(end);
    let ended = eventually_in_thread(Duration::from_secs(20), || gate.try_ended());
    assert!(ended.is_some(), "{end} did not end the process: {}", gate.log());
    Life { told, end: End::Orderly }
}

#[test]
fn kills_under_load_lose_what_after_crash_says_and_orderly_ends_lose_nothing() {
    let wanted: Option<usize> =
        std::env::var("TOLLGATE_KILLS").ok().map(|rounds| rounds.parse().unwrap());
    let (rounds, keys_of_a_round) =
        wanted.map_or((ROUNDS, KEYS_OF_A_ROUND), |rounds| (rounds, MANY_KEYS_OF_A_ROUND));
    let seed = std::env::var("TOLLGATE_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let keys = keys_of_a_round * rounds;
    let (origin, admissions) = origin::start(CONNECTIONS.len() * keys);
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let state = folder.path().join("state");
    let policy = policy(origin, state.to_str().unwrap());
    let (port, admin) = Gate::prepare(&folder, &policy, "");
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let shared = Shared { lives: Mutex::default(), is_over: false.into(), answers: 0.into() };
    let (mut kills, mut waited, began) = (0, Duration::ZERO, now());
    let findings = std::thread::scope(|scope| {
        let asking = CONNECTIONS.iter().enumerate().map(|(index, of)| {
            let (shared, admissions) = (&shared, &admissions);
            scope.spawn(move || ask(*of, (index * keys, keys), address, shared, admissions))
        });
        let asking: Vec<_> = asking.collect();
        let ending = Ending(&shared);
        for round in 0..=rounds {
            let started = now();
            let gate = Gate::run(Arc::clone(&folder), port, admin, &[]);
            let before = shared.answers.load(Ordering::Relaxed);
            // Some die before they are ready.
            if round == rounds || random.u8(..4) > 0 {
                let answered = || shared.answers.load(Ordering::Relaxed) > before;
                let is_up = eventually_in_thread(Duration::from_secs(20), || {
                    let is_over = asking.iter().any(|thread| thread.is_finished());
                    (answered() || is_over).then_some(())
                });
                assert!(is_up.is_some(), "no answer: {}", gate.log());
            }
            waited += started.elapsed();
            pause_in_thread(Duration::from_millis(random.u64(..250)));
            if asking.iter().any(|thread| thread.is_finished()) {
                break;
            }
            let life = end(gate, &mut random);
            kills += u32::from(life.end == End::Kill);
            shared.lives.lock().unwrap().push(life);
        }
        drop(ending);
        let findings = asking.into_iter().map(|thread| thread.join().unwrap());
        findings.collect::<Vec<_>>()
    });
    let serving = began.elapsed().saturating_sub(waited);
    let answers: u64 = findings.iter().map(|findings| findings.answers).sum();
    println!(
        "{kills} kills and {} orderly ends, {} requests admitted, {answers} answers in {serving:.1?}: {:.0} a second",
        shared.lives.lock().unwrap().len() - kills as usize,
        admissions.total(),
        answers as f64 / serving.as_secs_f64()
    );
    for ((after, _), findings) in CONNECTIONS.iter().zip(&findings) {
        let mut ages: Vec<Duration> = findings.ages.values().copied().collect();
        ages.sort_unstable();
        let (median, oldest) = (ages.get(ages.len() / 2), ages.last());
        let Findings { answers, refused, cut, other, forgotten, largest, added, .. } = findings;
        println!(
            "{after:?}: {answers} answers, {refused} refused, {cut} cut, others {other:?}; {forgotten} units forgotten, {largest} of a \
             key at once, the oldest of a kill {median:.0?} old, {oldest:.0?} at most; {added} added"
        );
        let oldest = oldest.copied().unwrap_or_default();
        assert!(oldest <= FLUSH + SLACK, "{oldest:?} old units are forgotten");
        assert!(findings.refused > 0, "keys reach their limits, or the bounds are not tested");
    }
    let deny = keys..2 * keys;
    let most = deny.map(|key| admissions.count(key)).max().unwrap();
    assert!(most <= LIMIT as usize, "{most} of {LIMIT} were admitted under after_crash: deny");
}
