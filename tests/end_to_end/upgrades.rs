//! `run --upgrade` under load: the counts go with the sockets. Successors that fail at every step leave the old process whole.
//!
//! The clients spend keys whose limit does not refill while a test runs, so the sum over all processes has one right value:
//! the limit, for every key. The origin counts what it has in flight.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::tls::{ONE, folder, trusting};
use support::servers::{Gate, client, eventually, metric, origin_yaml, signal};
use support::spending::{CountingOrigin, Spenders, ask};

const IN_FLIGHT: usize = 3;

/// Nothing refills within a test: one unit takes hours.
fn policy(origin: SocketAddr, limit: usize, store: &str) -> String {
    format!(
        "{}{store}
limits:
  day: {{ tier: exact, algorithm: token_bucket, rate: {limit}/10d, burst: {limit}, key: header:x-key, missing_key: deny }}
  log: {{ tier: exact, algorithm: sliding_log, rate: {limit}/10d, key: header:x-key, missing_key: deny, refund: {{ status: [500] }} }}
  flying: {{ tier: exact, max_in_flight: {IN_FLIGHT}, key: header:x-key, missing_key: deny }}
routes: [{{ name: r, limits: [day, log, flying] }}]
limits_of_this_proxy: {{ drain: 1s, finish: 10s }}
",
        origin_yaml(origin)
    )
}

/// The socket on which a process waits for successors, as soon as it is there: a process serves before it waits
/// for any.
async fn meeting_place(gate: &Gate) -> PathBuf {
    let folder = gate.folder.path().join("tollgate");
    let find = || {
        let mut entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        entries.find_map(|entry| (entry.path().extension()? == "sock").then(|| entry.path()))
    };
    assert!(eventually(Duration::from_secs(5), || async { find().is_some() }).await);
    find().unwrap()
}

async fn logged(gate: &Gate, text: &str) -> bool {
    eventually(Duration::from_secs(20), || async { gate.log().contains(text) }).await
}

/// Hands over to a new process, and returns it.
async fn upgraded(old: &mut Gate) -> Gate {
    let mut new = old.successor();
    assert!(logged(old, "a successor is waiting").await, "{}\n{}", old.log(), new.log());
    old.signal("QUIT");
    let status = old.ended(Duration::from_secs(20)).await;
    assert!(status.is_some_and(|status| status.success()), "{}\n{}", old.log(), new.log());
    new.wait_ready().await;
    new
}

/// The union of all processes admits what one would have.
async fn upgrade_often(store: &str, upgrades: usize, clients: usize, keys: usize, limit: usize) {
    let origin = CountingOrigin::start().await;
    let mut gate = Gate::start(&policy(origin.address, limit, store)).await;
    let spenders = Spenders::start(gate.port, clients, keys);
    for _ in 0..upgrades {
        spenders.more(300).await;
        let new = upgraded(&mut gate).await;
        assert!(!gate.log().contains("warn tollgate::engine"), "{}", gate.log());
        gate = new;
    }
    let metrics = gate.metrics().await;
    assert!(metric(&metrics, "tollgate_handover_cells") > 0.0, "{metrics}");
    assert!(metric(&metrics, "tollgate_handover_pause_seconds") < 0.5, "{metrics}");
    let totals = spenders.totals(gate.port).await;
    let wrong: Vec<_> = totals.iter().enumerate().filter(|(_, total)| **total != limit).collect();
    assert!(wrong.is_empty(), "limit {limit}, admitted otherwise: {wrong:?}\n{}", gate.log());
    let most = origin.most_in_flight();
    assert!(most <= IN_FLIGHT, "{most} requests of a key were in flight");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_upgrades_admit_what_one_process_would() {
    upgrade_often("", 20, 64, 1_000, 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_directory_goes_from_process_to_process() {
    upgrade_often("store: { embedded: { state: state } }\n", 5, 16, 100, 60).await;
}

/// A process that has taken over counts which it had no file of saves them all, also those that do not change any more.
#[tokio::test]
async fn a_successor_with_a_directory_of_its_own_saves_everything() {
    let origin = CountingOrigin::start().await;
    let mut gate = Gate::start(&policy(origin.address, 3, "")).await;
    let admitted = async |gate: &Gate| {
        let mut admitted = 0;
        for key in 0..30 {
            let request = client().get(gate.url("/")).header("x-key", key).send();
            admitted += u32::from(request.await.unwrap().status() == 200);
        }
        admitted
    };
    assert_eq!((admitted(&gate).await, admitted(&gate).await), (30, 30));
    let store = "store: { embedded: { state: state } }\n";
    let text = std::fs::read_to_string(gate.file()).unwrap();
    std::fs::write(gate.file(), text.replace("limits:\n", &format!("{store}limits:\n"))).unwrap();
    let mut gate = upgraded(&mut gate).await;
    let saved = eventually(Duration::from_secs(20), || async {
        metric(&gate.metrics().await, "tollgate_state_bytes") > 1_000.0
    });
    assert!(saved.await, "{}", gate.log());
    gate.signal("KILL");
    gate.ended(Duration::from_secs(10)).await.unwrap();
    let mut gate = Gate::run(Arc::clone(&gate.folder), gate.port, gate.admin, &[]);
    gate.wait_ready().await;
    assert_eq!((admitted(&gate).await, admitted(&gate).await), (30, 0), "{}", gate.log());
}

/// A successor that does what it is told to, and then fails.
struct Fake(UnixStream);

impl Fake {
    fn connect(place: &Path) -> Self {
        let stream = UnixStream::connect(place).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(stream)
    }

    fn say(&mut self, line: &str) {
        // The other side may have gone.
        let _is_sent = self.0.write_all(line.as_bytes());
    }

    /// Introduces itself, and reads what it is told.
    fn greet(place: &Path) -> Self {
        let mut fake = Self::connect(place);
        fake.say("tollgate 6 wait\n");
        let _hello = fake.packet();
        fake
    }

    /// Reads the message with the sockets. Returns its word.
    fn sockets(&mut self) -> String {
        let mut text = String::new();
        while text.matches('\n').count() < 3 {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            text.push(byte[0] as char);
        }
        let word: u64 =
            text.lines().last().unwrap().strip_prefix("word ").unwrap().parse().unwrap();
        format!("{word:016x}")
    }

    /// The kind of the next packet, and its payload.
    fn packet(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 6];
        self.0.read_exact(&mut head).unwrap();
        let mut payload =
            vec![0; u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize];
        self.0.read_exact(&mut payload).unwrap();
        (head[0], payload)
    }

    /// Reads up to a packet of this kind. Returns its word.
    fn up_to(&mut self, wanted: u8) -> String {
        loop {
            let (kind, payload) = self.packet();
            if kind == wanted {
                // A postcard number: seven bits in each byte, the lowest first.
                let bytes = payload.iter().scan(true, |goes_on, byte| {
                    let is_part = *goes_on;
                    *goes_on = byte & 0x80 != 0;
                    is_part.then_some(u64::from(byte & 0x7f))
                });
                let word = bytes.enumerate().fold(0, |word, (n, bits)| word | bits << (7 * n));
                return format!("{word:016x}");
            }
        }
    }

    /// Takes up everything but the end.
    fn prepared(place: &Path, gate: &Gate) -> Self {
        let mut fake = Self::looked(place, gate);
        let word = fake.up_to(SERVING);
        fake.say(&format!("prepared {word}\n"));
        fake
    }

    /// Has looked whether its directory is free.
    fn looked(place: &Path, gate: &Gate) -> Self {
        let mut fake = Self::copying(place, gate);
        let word = fake.up_to(COPIED);
        fake.say(&format!("looked {word}\n"));
        fake
    }

    /// Takes the sockets and asks for the copy.
    fn copying(place: &Path, gate: &Gate) -> Self {
        let mut fake = Self::greet(place);
        gate.signal("QUIT");
        let word = fake.sockets();
        fake.say(&format!("copy {word}\n"));
        fake
    }
}

const COPIED: u8 = 201;
const LAST: u8 = 202;
const SERVING: u8 = 203;

/// How successors fail, each with what the old process says then.
const FAILURES: [(&str, &str); 22] = [
    ("says nothing and stays", "but is no successor"),
    ("is no successor", "but is no successor"),
    ("never ends its first line", "but is no successor"),
    ("speaks an older version", "a successor speaks version 2"),
    ("dies while it waits", "the successor has gone"),
    ("says everything before it is asked", "the successor has gone"),
    ("does not read the sockets", "does not take over"),
    ("dies with the sockets", "does not take over"),
    ("says another word", "does not take over"),
    ("repeats another word", "does not take over"),
    ("dies while it copies", "does not take over"),
    ("does not read the copies", "does not take over"),
    ("says that it counts when it should be prepared", "does not take over"),
    ("dies when everything is copied", "does not take over"),
    ("is prepared before it has looked", "does not take over"),
    ("dies when it has looked", "does not take over"),
    ("hangs when it has looked", "does not take over"),
    ("dies when it is prepared", "does not take over"),
    ("dies with the last changes", "does not take over"),
    ("hangs with the last changes", "does not take over"),
    ("repeats another word at the end", "does not take over"),
    ("is stopped by a signal", "does not take over"),
];

/// Lets a successor fail. Returns what must not be dropped before the old process has noticed.
async fn fail(
    how: &str,
    place: PathBuf,
    gate: &Arc<Gate>,
) -> Option<Box<dyn std::any::Any + Send>> {
    if how == "is stopped by a signal" {
        let successor = gate.successor();
        assert!(logged(gate, "a successor is waiting").await, "{}", successor.log());
        signal("STOP", successor.pid());
        gate.signal("QUIT");
        return Some(Box::new(successor));
    }
    let (how, gate) = (how.to_owned(), Arc::clone(gate));
    let kept = tokio::task::spawn_blocking(move || -> Option<Fake> {
        let place = place.as_path();
        match how.as_str() {
            "says nothing and stays" => return Some(Fake::connect(place)),
            "is no successor" => Fake::connect(place).say("GET / HTTP/1.1\r\n\r\n"),
            "never ends its first line" => {
                let mut fake = Fake::connect(place);
                fake.say(&"x".repeat(100_000));
                return Some(fake);
            }
            "speaks an older version" => Fake::connect(place).say("tollgate 2 wait\n"),
            "dies while it waits" => drop(Fake::greet(place)),
            "says everything before it is asked" => {
                let mut fake = Fake::greet(place);
                fake.say(
                    "copy 0000000000000000\nprepared 0000000000000000\ntaken 0000000000000000\n",
                );
                return Some(fake);
            }
            "does not read the sockets" => {
                let fake = Fake::greet(place);
                gate.signal("QUIT");
                return Some(fake);
            }
            "dies with the sockets" => {
                let mut fake = Fake::greet(place);
                gate.signal("QUIT");
                let _word = fake.sockets();
            }
            "says another word" => {
                let mut fake = Fake::greet(place);
                gate.signal("QUIT");
                let word = fake.sockets();
                fake.say(&format!("taken {word}\n"));
                return Some(fake);
            }
            "repeats another word" => {
                let mut fake = Fake::greet(place);
                gate.signal("QUIT");
                let _word = fake.sockets();
                fake.say("copy 0123456789abcdef\n");
                return Some(fake);
            }
            "dies while it copies" => {
                let mut fake = Fake::copying(place, &gate);
                let _first = fake.packet();
            }
            "does not read the copies" => return Some(Fake::copying(place, &gate)),
            "says that it counts when it should be prepared" => {
                let mut fake = Fake::copying(place, &gate);
                let word = fake.up_to(COPIED);
                fake.say(&format!("taken {word}\n"));
                return Some(fake);
            }
            "dies when everything is copied" => {
                drop(Fake::copying(place, &gate).up_to(COPIED));
            }
            "is prepared before it has looked" => {
                let mut fake = Fake::copying(place, &gate);
                let word = fake.up_to(COPIED);
                fake.say(&format!("prepared {word}\n"));
                return Some(fake);
            }
            "dies when it has looked" => drop(Fake::looked(place, &gate).up_to(SERVING)),
            "hangs when it has looked" => {
                let mut fake = Fake::looked(place, &gate);
                let _word = fake.up_to(SERVING);
                return Some(fake);
            }
            "dies when it is prepared" => drop(Fake::prepared(place, &gate)),
            "dies with the last changes" => drop(Fake::prepared(place, &gate).up_to(LAST)),
            "hangs with the last changes" => {
                let mut fake = Fake::prepared(place, &gate);
                let _word = fake.up_to(LAST);
                return Some(fake);
            }
            "repeats another word at the end" => {
                let mut fake = Fake::prepared(place, &gate);
                let _word = fake.up_to(LAST);
                fake.say("taken 0123456789abcdef\n");
                return Some(fake);
            }
            other => panic!("no such failure: {other}"),
        }
        None
    });
    kept.await.unwrap().map(|fake| Box::new(fake) as _)
}

/// One old process for each way to fail; then a good successor.
async fn survive(how: &'static str, said: &'static str) {
    const LIMIT: usize = 150;
    let origin = CountingOrigin::start().await;
    let gate = Arc::new(Gate::start(&policy(origin.address, LIMIT, "")).await);
    let spenders = Spenders::start(gate.port, 4, 10);
    spenders.more(50).await;
    let place = meeting_place(&gate).await;
    let kept = fail(how, place, &gate).await;
    let told = eventually(Duration::from_secs(30), || async { gate.log().contains(said) }).await;
    assert!(told, "{how}: {}", gate.log());
    spenders.more(50).await;
    let mut gate = Arc::into_inner(gate).unwrap();
    assert!(gate.ended(Duration::ZERO).await.is_none(), "{how}: it serves on");
    if let Some(successor) = kept.and_then(|kept| kept.downcast::<Gate>().ok()) {
        // It wakes up when everything is over, and must not count.
        signal("CONT", successor.pid());
        let mut successor = *successor;
        let status = successor.ended(Duration::from_secs(20)).await;
        assert!(status.is_some_and(|status| !status.success()), "{}", successor.log());
    }
    let new = upgraded(&mut gate).await;
    spenders.more(50).await;
    let totals = spenders.totals(new.port).await;
    assert_eq!(totals, vec![LIMIT; 10], "{how}: {}\n{}", gate.log(), new.log());
    assert!(origin.most_in_flight() <= IN_FLIGHT, "{how}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn successors_that_fail_at_every_step_leave_the_old_process_exact() {
    let ways = FAILURES.map(|(how, said)| tokio::spawn(survive(how, said)));
    for (way, (how, _)) in ways.into_iter().zip(FAILURES) {
        way.await.unwrap_or_else(|error| panic!("{how}: {error}"));
    }
}

/// Bans, overrides and denials go over, and so does what the estimate tier knows for certain.
#[tokio::test]
async fn what_is_known_of_keys_goes_over() {
    let origin = CountingOrigin::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "0123456789abcdef").unwrap();
    let policy = format!(
        "  token_file: token
{}
limits:
  guarded: {{ tier: exact, rate: 2/10d, algorithm: fixed_window, key: header:x-key, missing_key: skip, penalty: {{ after: 3, within: 1h, ban: 1h }} }}
  pages: {{ tier: estimate, rate: 40/10d, key: header:x-page, missing_key: skip }}
routes: [{{ name: r, limits: [guarded, pages] }}]
limits_of_this_proxy: {{ drain: 1s, finish: 10s }}
",
        origin_yaml(origin.address)
    );
    let mut gate = Gate::start_in(folder, &policy, "").await;
    let ask = async |gate: &Gate, header: &'static str, key: &str| {
        let request = client().get(gate.url("/")).header(header, key).header("x-key", key);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.headers().get("retry-after").cloned())
    };
    let change = async |gate: &Gate, what: &str, key: &str| {
        let url = format!("http://127.0.0.1:{}/keys/{what}", gate.admin);
        let body = format!(
            r#"{{"limit": "guarded", "key": "{key}", "reason": "a test", "for": "1h", "action": "allow"}}"#
        );
        let body = if what == "ban" { body.replace(r#", "action": "allow""#, "") } else { body };
        let request = client().post(url).bearer_auth("0123456789abcdef").body(body);
        let answer = request.header("content-type", "application/json").send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    };
    change(&gate, "ban", "banned").await;
    change(&gate, "override", "allowed").await;
    // Two denials; the third bans.
    for (n, expected) in [200, 200, 429, 429].into_iter().enumerate() {
        assert_eq!(ask(&gate, "x-other", "denied").await.0, expected, "request {n}");
    }
    let pages = async |gate: &Gate| {
        let mut admitted = 0;
        for _ in 0..60 {
            let request = client().get(gate.url("/")).header("x-page", "reader").send();
            admitted += u32::from(request.await.unwrap().status() == 200);
        }
        admitted
    };
    assert_eq!(pages(&gate).await, 40);

    for upgrade in 0..2 {
        gate = upgraded(&mut gate).await;
        assert_eq!(ask(&gate, "x-other", "banned").await.0, 429, "upgrade {upgrade}");
        for _ in 0..5 {
            assert_eq!(ask(&gate, "x-other", "allowed").await.0, 200, "upgrade {upgrade}");
        }
        assert_eq!(pages(&gate).await, 0, "upgrade {upgrade}");
        let (status, retry_after) = ask(&gate, "x-other", "denied").await;
        let wait: u64 = retry_after.unwrap().to_str().unwrap().parse().unwrap();
        let is_banned = wait <= 3_600;
        assert_eq!((status, is_banned), (429, upgrade == 1), "upgrade {upgrade}: {wait} s");
    }
}

/// What a successor that died has admitted is not known to the process before it: `deny` refuses rather than admit too much.
#[tokio::test]
async fn a_successor_that_dies_later_makes_deny_refuse() {
    const LIMIT: usize = 40;
    let origin = CountingOrigin::start().await;
    let policy = format!(
        "{}store: {{ embedded: {{ state: state }} }}
limits:
  day: {{ tier: exact, algorithm: token_bucket, rate: {LIMIT}/10d, burst: {LIMIT}, key: header:x-key, missing_key: deny, after_crash: deny }}
routes: [{{ name: r, limits: [day] }}]
limits_of_this_proxy: {{ drain: 20s, finish: 20s }}
",
        origin_yaml(origin.address)
    );
    let gate = Gate::start(&policy).await;
    let (mut kept, mut other) = (None, None);
    let mut admitted = 0;
    for _ in 0..4 {
        admitted += usize::from(ask(gate.port, 1, &mut kept).await.unwrap());
    }
    let _opened = ask(gate.port, 2, &mut other).await.unwrap();
    let mut new = gate.successor();
    assert!(logged(&gate, "a successor is waiting").await, "{}", gate.log());
    gate.signal("QUIT");
    assert!(logged(&gate, "the successor counts").await, "{}", gate.log());
    new.wait_ready().await;
    for _ in 0..3 {
        admitted += usize::from(ask(new.port, 1, &mut None).await.unwrap());
    }
    admitted += usize::from(ask(gate.port, 1, &mut kept).await.unwrap());
    assert_eq!(admitted, 8, "the successor judges requests on old connections");
    new.signal("KILL");
    new.ended(Duration::from_secs(10)).await.unwrap();
    assert!(logged(&gate, "the successor has gone").await, "{}", gate.log());
    assert_eq!(ask(gate.port, 1, &mut other).await, Ok(false));
    drop((kept, other));
    let mut gate = gate;
    gate.signal("INT");
    gate.ended(Duration::from_secs(10)).await.unwrap();
    let mut gate = Gate::run(Arc::clone(&gate.folder), gate.port, gate.admin, &[]);
    gate.wait_ready().await;
    let mut kept = None;
    while ask(gate.port, 1, &mut kept).await.unwrap() {
        admitted += 1;
    }
    assert!((LIMIT - LIMIT / 8..=LIMIT).contains(&admitted), "{admitted} of {LIMIT}");
}

/// The one in the middle cannot use the directory, which ends as the first has left it: in an orderly way. Its successor must
/// not take that for its own end.
#[tokio::test]
async fn a_successor_saves_what_the_process_before_could_not() {
    let origin = CountingOrigin::start().await;
    let limits = "
limits:
  allow: { tier: exact, rate: 3/10d, key: header:x-key, missing_key: deny }
  deny: { tier: exact, rate: 3/10d, key: header:x-key, missing_key: deny, after_crash: deny }
routes: [{ name: deny, match: { path: /deny }, limits: [deny] }, { name: allow, limits: [allow] }]
limits_of_this_proxy: { drain: 300ms }
";
    for end in ["KILL", "TERM"] {
        let store = "store: { embedded: { state: state, flush: 20ms, sync: 50ms } }";
        let policy = format!("{}{store}{limits}", origin_yaml(origin.address));
        let mut first = Gate::start(&policy).await;
        let admitted = async |gate: &Gate| {
            let mut admitted = 0;
            for path in ["/allow", "/deny"] {
                for request in 0..50 {
                    let asked = client().get(gate.url(path)).header("x-key", request % 10).send();
                    admitted += u32::from(asked.await.unwrap().status() == 200);
                }
            }
            admitted
        };
        let obstacle = first.folder.path().join("state/lock");
        std::fs::remove_file(&obstacle).unwrap();
        std::fs::create_dir(&obstacle).unwrap();
        let mut second = upgraded(&mut first).await;
        assert!(logged(&second, "the state is not saved yet").await, "{}", second.log());
        assert_eq!(admitted(&second).await, 60);
        // An alert on the age, or on failures, would fire.
        let is_told = eventually(Duration::from_secs(20), || async {
            let metrics = second.metrics().await;
            metric(&metrics, "tollgate_state_age_seconds") > 0.5
                && metric(&metrics, "tollgate_state_writes_total{outcome=\"error\"}") > 1.0
        });
        assert!(is_told.await, "{}", second.metrics().await);
        let mut third = second.successor();
        assert!(logged(&second, "a successor is waiting").await);
        second.signal("QUIT");
        assert!(second.ended(Duration::from_secs(20)).await.is_some(), "{}", second.log());
        third.wait_ready().await;
        std::fs::remove_dir(&obstacle).unwrap();
        let saved = eventually(Duration::from_secs(20), || async {
            let written = "tollgate_state_writes_total{outcome=\"ok\"}";
            metric(&third.metrics().await, written) > 0.0
        });
        assert!(saved.await, "{}", third.log());
        third.signal(end);
        third.ended(Duration::from_secs(20)).await.unwrap();
        let mut last = Gate::run(Arc::clone(&third.folder), third.port, third.admin, &[]);
        last.wait_ready().await;
        assert_eq!(admitted(&last).await, 0, "{end}: {}", last.log());
    }
}

/// Clients of HTTP/2 have several requests under way on one connection, and the old process tells them to use another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_under_http2_admit_what_one_process_would() {
    const LIMIT: usize = 20;
    const KEYS: usize = 200;
    let origin = CountingOrigin::start().await;
    let (folder, pairs) = folder(&["one.example"]);
    let mut gate = Gate::start_in(folder, &policy(origin.address, LIMIT, ""), ONE).await;
    let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
    let url = format!("https://one.example:{}/", gate.port);
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> =
        (0..8).map(|_| trusting(&pairs[0], "one.example", to).build().unwrap()).collect();
    let ask = |client: &reqwest::Client, key: usize| client.get(&url).header("x-key", key).send();
    let admitted = |answer: reqwest::Result<reqwest::Response>| {
        let answer = answer.unwrap();
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
        assert!([200, 429].contains(&answer.status().as_u16()), "{answer:?}");
        usize::from(answer.status() == 200)
    };
    let spend = |n: usize| {
        let (client, stop, asked) =
            (clients[n % clients.len()].clone(), Arc::clone(&stop), Arc::clone(&asked));
        let mut random = fastrand::Rng::with_seed(n as u64);
        async move {
            let mut totals = vec![0; KEYS];
            while !stop.load(Ordering::Relaxed) {
                let key = random.usize(..KEYS);
                totals[key] += admitted(ask(&client, key).await);
                asked.fetch_add(1, Ordering::Relaxed);
            }
            totals
        }
    };
    let spending = futures_util::future::join_all((0..32).map(spend));
    let upgrading = async {
        for _ in 0..5 {
            let goal = asked.load(Ordering::Relaxed) + 300;
            let come = || async { asked.load(Ordering::Relaxed) >= goal };
            assert!(eventually(Duration::from_secs(60), come).await);
            gate = upgraded(&mut gate).await;
        }
        stop.store(true, Ordering::Relaxed);
    };
    let (spent, ()) = tokio::join!(spending, upgrading);
    for key in 0..KEYS {
        let mut total: usize = spent.iter().map(|totals| totals[key]).sum();
        for _ in 0..=LIMIT {
            total += admitted(ask(&clients[0], key).await);
        }
        assert_eq!(total, LIMIT, "key {key}");
    }
    assert!(origin.most_in_flight() <= IN_FLIGHT);
}

/// Stops a process. The signal takes effect when the thread that gets it runs; until then the others go on.
async fn stop(pid: u32) {
    signal("STOP", pid);
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit(')').next().is_some_and(|state| state.trim_start().starts_with('T'))
    };
    let all = || async { std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(is_stopped) };
    assert!(eventually(Duration::from_secs(10), all).await);
}

/// A successor that pauses does not let clients on old connections spend again what is spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_pauses_gives_nobody_a_limit_again() {
    const LIMIT: usize = 6;
    let origin = CountingOrigin::start().await;
    let policy = format!(
        "{}store: {{ embedded: {{ state: state }} }}
limits:
  allow: {{ tier: exact, algorithm: fixed_window, rate: {LIMIT}/10d, key: header:x-key, missing_key: deny }}
  deny: {{ tier: exact, algorithm: fixed_window, rate: 90/10d, key: header:x-key, missing_key: deny, after_crash: deny }}
routes: [{{ name: r, match: {{ path: / }}, limits: [allow] }}]
limits_of_this_proxy: {{ drain: 20s, finish: 20s }}
",
        origin_yaml(origin.address)
    );
    for limits in ["[allow]", "[deny]"] {
        let gate = Gate::start(&policy.replace("[allow]", limits)).await;
        let mut kept: Vec<_> = (0..20).map(|_| None).collect();
        for (key, kept) in kept.iter_mut().enumerate() {
            // Two keys: one that is spent later, and one that has some left.
            assert_eq!(ask(gate.port, key % 2, kept).await, Ok(true), "{limits}");
            if key == 7 {
                break;
            }
        }
        for kept in kept.iter_mut().skip(8) {
            assert!(ask(gate.port, 2, kept).await.is_ok());
        }
        let new = gate.successor();
        assert!(logged(&gate, "a successor is waiting").await, "{}", gate.log());
        gate.signal("QUIT");
        assert!(logged(&gate, "the successor counts").await, "{}", gate.log());
        stop(new.pid()).await;
        let asked = kept.iter_mut().map(|kept| ask(gate.port, 0, kept));
        let answers = futures_util::future::join_all(asked).await;
        let admitted = answers.iter().filter(|answer| **answer == Ok(true)).count();
        // Four of six are spent. What the successor admits is not known, so `deny` refuses.
        let expected = if limits == "[allow]" { LIMIT - 4 } else { 0 };
        assert_eq!(admitted, expected, "{limits}: {answers:?}\n{}", gate.log());
        assert!(logged(&gate, "the successor does not answer").await, "{}", gate.log());
        signal("CONT", new.pid());
        assert!(logged(&gate, "the successor answers again").await, "{}", gate.log());
    }
}

/// What the old process still has to be charged is in the directory of the new one when that ends.
#[tokio::test]
async fn an_orderly_end_waits_for_the_process_before() {
    let [go_on, held] = [(); 2].map(|()| Arc::new(tokio::sync::Notify::new()));
    let (waiting, arrived) = (Arc::clone(&go_on), Arc::clone(&held));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = listener.local_addr().unwrap();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (waiting, arrived) = (Arc::clone(&waiting), Arc::clone(&arrived));
            tokio::spawn(async move {
                let mut chunk = [0; 4096];
                assert!(stream.read(&mut chunk).await.unwrap() > 0);
                let slow = chunk.starts_with(b"GET /slow");
                if slow {
                    arrived.notify_one();
                    waiting.notified().await;
                }
                let cost = if slow { 40 } else { 1 };
                let answer =
                    format!("HTTP/1.1 200 OK\r\nx-cost: {cost}\r\nContent-Length: 4\r\n\r\nsite");
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
        }
    });
    let policy = format!(
        "{}store: {{ embedded: {{ state: state }} }}
limits:
  day: {{ tier: exact, algorithm: fixed_window, rate: 60/10d, key: header:x-key, missing_key: deny, cost: {{ response_header: x-cost, reserve: 1, max: 40 }} }}
routes: [{{ name: r, limits: [day] }}]
limits_of_this_proxy: {{ drain: 200ms, finish: 20s }}
",
        origin_yaml(origin)
    );
    let mut old = Gate::start(&policy).await;
    let slow = client().get(old.url("/slow")).header("x-key", "a").send();
    let slow = tokio::spawn(slow);
    held.notified().await;
    let mut new = old.successor();
    assert!(logged(&old, "a successor is waiting").await, "{}", old.log());
    old.signal("QUIT");
    assert!(logged(&new, "listening on").await, "{}", new.log());
    new.signal("TERM");
    assert!(logged(&new, "closing the listeners").await, "{}", new.log());
    assert!(new.ended(Duration::from_millis(500)).await.is_none(), "{}", new.log());
    go_on.notify_one();
    assert_eq!(slow.await.unwrap().unwrap().status(), 200);
    assert!(old.ended(Duration::from_secs(20)).await.is_some(), "{}", old.log());
    assert!(new.ended(Duration::from_secs(20)).await.is_some(), "{}", new.log());
    let mut last = Gate::run(Arc::clone(&new.folder), new.port, new.admin, &[]);
    last.wait_ready().await;
    let answer = client().get(last.url("/")).header("x-key", "a").send().await.unwrap();
    assert_eq!(answer.headers()["x-ratelimit-remaining"], "19", "{}", new.log());
}
